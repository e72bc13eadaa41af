package broker

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

var (
	noon     = time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	stranger = netip.MustParseAddr("192.0.2.7")
	other    = netip.MustParseAddr("192.0.2.8")
	home     = netip.MustParseAddr("127.0.0.1")
)

func doorman(change func(*Config)) *admission {
	config := Config{}.withDefaults()
	change(&config)
	return newAdmission(config)
}

func mustAdmit(t *testing.T, a *admission, address netip.Addr, at time.Time, drop func()) *ticket {
	t.Helper()
	admitted, err := a.admit(address, at, drop)
	if err != nil {
		t.Fatalf("admit %s: %v", address, err)
	}
	return admitted
}

func never(t *testing.T) func() {
	return func() { t.Helper(); t.Error("dropped a connection that should live on") }
}

func TestAdmission_refusalsNameTheSetting(t *testing.T) {
	for _, row := range []struct {
		name    string
		change  func(*Config)
		address netip.Addr
		want    error
		setting string
	}{
		{"node", func(c *Config) { c.Connections = 2 }, home, errNodeFull, "stream.connections "},
		{"address", func(c *Config) { c.ConnectionsPerAddress = 2 }, stranger, errAddressFull, "stream.connections_per_address"},
		{"rate", func(c *Config) { c.NewConnectionsPerAddress = 2 }, stranger, errAddressFast, "stream.new_connections_per_address"},
	} {
		t.Run(row.name, func(t *testing.T) {
			a := doorman(row.change)
			for range 2 {
				a.opened(mustAdmit(t, a, row.address, noon, never(t)))
			}
			_, err := a.admit(row.address, noon, never(t))
			if !errors.Is(err, row.want) || !strings.Contains(err.Error(), row.setting) {
				t.Fatalf("third connection: %v, want %v", err, row.want)
			}
		})
	}
}

func TestAdmission_loopbackIsExemptFromAddressLimits(t *testing.T) {
	a := doorman(func(c *Config) {
		c.ConnectionsPerAddress, c.NewConnectionsPerAddress, c.UnopenedPerAddress = 1, 1, 1
	})
	for range 100 {
		mustAdmit(t, a, home, noon, never(t))
	}
	mapped := netip.MustParseAddr("::ffff:127.0.0.1")
	mustAdmit(t, a, mapped, noon, never(t))
}

func TestAdmission_oldestUnopenedMakesRoom(t *testing.T) {
	a := doorman(func(c *Config) { c.Unopened = 3 })
	var dropped []int
	tickets := make([]*ticket, 5)
	for i := range tickets {
		tickets[i] = mustAdmit(t, a, home, noon, func() { dropped = append(dropped, i) })
		if i == 0 {
			a.opened(tickets[0]) // an open one is never dropped
		}
	}
	if len(dropped) != 1 || dropped[0] != 1 {
		t.Fatalf("dropped %v, want only connection 1, the oldest that is not open", dropped)
	}
}

func TestAdmission_oldestOfTheAddressMakesRoom(t *testing.T) {
	a := doorman(func(c *Config) { c.UnopenedPerAddress = 2 })
	var dropped []string
	drop := func(name string) func() { return func() { dropped = append(dropped, name) } }
	mustAdmit(t, a, other, noon, drop("other"))
	mustAdmit(t, a, stranger, noon, drop("first"))
	mustAdmit(t, a, stranger, noon, drop("second"))
	mustAdmit(t, a, stranger, noon, drop("third"))
	if len(dropped) != 1 || dropped[0] != "first" {
		t.Fatalf("dropped %v, want the address's first", dropped)
	}
}

func TestAdmission_endedConnectionsCountNoMore(t *testing.T) {
	a := doorman(func(c *Config) { c.Connections, c.ConnectionsPerAddress, c.UnopenedPerAddress = 1, 1, 1 })
	for round := range 50 {
		at := noon.Add(time.Duration(round) * time.Second)
		admitted := mustAdmit(t, a, stranger, at, never(t))
		if round%2 == 0 {
			a.opened(admitted)
		}
		a.ended(admitted)
	}
	if a.total != 0 || a.unopened.Len() != 0 {
		t.Fatalf("%d connections, %d unopened are still counted", a.total, a.unopened.Len())
	}
	mustAdmit(t, a, other, noon.Add(time.Hour), never(t))
	if len(a.addresses) != 1 {
		t.Fatalf("%d addresses are remembered, want the living one", len(a.addresses))
	}
}

func TestAdmission_ipv6CountsByNetwork(t *testing.T) {
	a := doorman(func(c *Config) { c.ConnectionsPerAddress = 1 })
	mustAdmit(t, a, netip.MustParseAddr("2001:db8::1"), noon, never(t))
	if _, err := a.admit(netip.MustParseAddr("2001:db8::2"), noon, never(t)); !errors.Is(err, errAddressFull) {
		t.Fatalf("second address of one /64: %v, want %v", err, errAddressFull)
	}
	mustAdmit(t, a, netip.MustParseAddr("2001:db8:0:1::1"), noon, never(t))
}

func TestConfig_defaultsAreValid(t *testing.T) {
	if err := (Config{}).Validate(); err != nil {
		t.Fatal(err)
	}
	err := Config{FrameMax: 17 << 20, Publishers: 300, UnconfirmedBytes: 1}.Validate()
	for _, setting := range []string{"stream.frame_max", "stream.publishers_per_connection", "stream.unconfirmed_bytes"} {
		if err == nil || !strings.Contains(err.Error(), setting+" is") {
			t.Errorf("problems %v, want one about %s", err, setting)
		}
	}
}
