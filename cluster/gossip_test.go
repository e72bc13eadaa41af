package cluster

import (
	"bytes"
	"fmt"
	"log"
	"math/rand/v2"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// chatty are nodes that gossip by a shared secret.
func (w *town) chatty(names ...protocol.NodeID) []*site {
	w.t.Helper()
	return w.chattyAs(func(*site) {}, names...)
}

// chattyAs changes each before it starts.
func (w *town) chattyAs(change func(*site), names ...protocol.NodeID) []*site {
	w.t.Helper()
	var sites []*site
	for i, name := range names {
		s := w.site(name)
		s.gossip = Gossip{
			Addr: "127.0.0.1:0", Host: "127.0.0.1", Secrets: [][]byte{bytes.Repeat([]byte{1}, 32)},
			JoinEvery: 50 * time.Millisecond, PingEvery: 200 * time.Millisecond,
		}
		change(s)
		joins := Joins{Expect: 1}
		if i > 0 {
			joins = Joins{Addresses: []string{sites[0].addr}}
		}
		s.start(joins)
		sites = append(sites, s)
	}
	return sites
}

// members are the names that gossip knows at a site.
func (s *site) members() map[string]bool {
	known := map[string]bool{}
	for _, n := range s.Cluster.gossip.list.Members() {
		known[n.Name] = true
	}
	return known
}

// stranger joins in the gossip of a site from outside, as its configuration says.
func stranger(t *testing.T, s *site, change func(*memberlist.Config)) (*memberlist.Memberlist, error) {
	t.Helper()
	keys, err := gossipKeys(s.gossip.Secrets)
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) == 0 {
		keys = [][]byte{s.View().GossipKey()}
	}
	m := memberlist.DefaultLANConfig()
	m.Name, m.Label, m.SecretKey = "stranger", s.ID(), keys[0]
	m.EnableCompression = false
	m.BindAddr, m.BindPort, m.AdvertisePort = "127.0.0.1", 0, 0
	m.Logger = log.New(&lines{}, "", 0)
	change(m)
	l, err := memberlist.Create(m)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Shutdown() })
	_, err = l.Join([]string{s.Cluster.gossip.addr})
	return l, err
}

func TestGossip_knowsTheMembersAndNobodyElse(t *testing.T) {
	t.Parallel()
	sites := newTown(t).chatty("n1", "n2", "n3")
	for _, s := range sites {
		until(t, "gossip has all members", func() bool { return len(s.members()) == 3 })
		eventually(t, s.Cluster, "the catalog has the gossip's addresses", func(v *catalog.State) bool {
			n, _ := v.Node("n3")
			return n != nil && n.Endpoints.Gossip == sites[2].Cluster.gossip.addr
		})
	}
	for name, change := range map[string]func(*memberlist.Config){
		"another label": func(m *memberlist.Config) { m.Label = "another" },
		"no label":      func(m *memberlist.Config) { m.Label = "" },
		"another key":   func(m *memberlist.Config) { m.SecretKey = bytes.Repeat([]byte{9}, 32) },
		"no key":        func(m *memberlist.Config) { m.SecretKey = nil },
	} {
		if l, err := stranger(t, sites[0], change); err == nil {
			t.Errorf("%s: let in", name)
			_ = l
		}
	}
	// One that has key and label, but is no member: no use for anything.
	_, _ = stranger(t, sites[0], func(*memberlist.Config) {})
	// And one under the name of a member.
	_, _ = stranger(t, sites[0], func(m *memberlist.Config) { m.Name = "n2" })
	until(t, "the clash is told", func() bool { return sites[0].lines.has("two nodes go by one name") })
	for _, s := range sites {
		if m := s.members(); len(m) != 3 || m["stranger"] {
			t.Errorf("%s has %v", s.name, m)
		}
		create(t, s.Cluster, "after-"+string(s.name))
	}
}

// Nodes without a shared secret gossip by a key that the catalog keeps: one that
// is drawn once, that members alone learn, and that is there after all have gone.
func TestGossip_keyOfTheCatalog(t *testing.T) {
	t.Parallel()
	sites := newTown(t).chattyAs(func(s *site) { s.gossip.Secrets = nil }, "n1", "n2", "n3")
	key := sites[0].View().GossipKey()
	if len(key) != gossipKeyBytes {
		t.Fatalf("a key of %d bytes", len(key))
	}
	whole := func() {
		t.Helper()
		for _, s := range sites {
			until(t, "gossip has all members", func() bool { return len(s.members()) == 3 })
			eventually(t, s.Cluster, "the catalog has the gossip's addresses, and the key", func(v *catalog.State) bool {
				for _, o := range sites {
					if n, _ := v.Node(o.name); n == nil || n.Endpoints.Gossip != o.Cluster.gossip.addr {
						return false
					}
				}
				return bytes.Equal(v.GossipKey(), key)
			})
		}
	}
	whole()
	if _, err := stranger(t, sites[0], func(m *memberlist.Config) { m.SecretKey = bytes.Repeat([]byte{9}, 32) }); err == nil {
		t.Error("a stranger with a key of its own is let in")
	}
	if _, err := stranger(t, sites[0], func(m *memberlist.Config) { m.SecretKey = nil }); err == nil {
		t.Error("a stranger without a key is let in")
	}
	for _, s := range sites {
		s.stop()
	}
	var work sync.WaitGroup
	var joins Joins
	var listeners []net.Listener
	for _, s := range sites {
		listeners = append(listeners, s.bind())
		joins.Addresses = append(joins.Addresses, s.addr)
	}
	for i, s := range sites {
		work.Go(func() {
			if err := s.open(within(t), listeners[i], joins); err != nil {
				t.Errorf("start %s: %v", s.name, err)
			}
		})
	}
	work.Wait()
	if t.Failed() {
		return
	}
	whole()
}

// A farewell that cannot be told, since no round of gossip comes any more, keeps
// no node from its end.
func TestGossip_farewellToNobody(t *testing.T) {
	var lists []*memberlist.Memberlist
	for _, name := range []string{"a", "b"} {
		m := memberlist.DefaultLANConfig()
		m.Name, m.BindAddr, m.BindPort, m.AdvertisePort, m.GossipInterval = name, "127.0.0.1", 0, 0, 0
		m.Logger = log.New(&lines{}, "", 0)
		l, err := memberlist.Create(m)
		if err != nil {
			t.Fatal(err)
		}
		lists = append(lists, l)
	}
	defer func() { _ = lists[1].Shutdown() }()
	if _, err := lists[0].Join([]string{lists[1].LocalNode().Address()}); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		(&gossip{list: lists[0]}).close()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(6 * gossipFarewell): // memberlist's own end comes later, or never
		t.Fatal("the node does not end")
	}
}

// Noise on the port ends nothing and does not grow (EL-11).
func TestGossip_noise(t *testing.T) {
	t.Parallel()
	s := newTown(t).chatty("n1")[0]
	keys, err := gossipKeys(s.gossip.Secrets)
	if err != nil || len(keys[0]) != gossipKeyBytes || bytes.Equal(keys[0], s.gossip.Secrets[0]) {
		t.Fatalf("keys %v, %v", keys, err)
	}
	udp, err := net.Dial("udp", s.Cluster.gossip.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	r := rand.New(rand.NewPCG(1, 2))
	const packets = 20_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	for i := range packets {
		b := make([]byte, r.IntN(1500))
		for k := range b {
			b[k] = byte(r.Uint32())
		}
		if i%3 == 0 && len(b) > 2 { // with our label in front
			b = append(append([]byte{244, byte(len(s.ID()))}, s.ID()...), b[min(len(b), 1+r.IntN(64)):]...)
		}
		_, _ = udp.Write(b)
	}
	for _, b := range [][]byte{{}, {0xff, 0xff, 0xff, 0xff}, bytes.Repeat([]byte{244, 255}, 4096), []byte("GET / HTTP/1.1\r\n\r\n")} {
		c, err := net.Dial("tcp", s.Cluster.gossip.addr)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = c.Write(b)
		_ = c.Close()
	}
	create(t, s.Cluster, "still-there")
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapAlloc) - int64(before.HeapAlloc); grown > 64<<20 {
		t.Errorf("%d packets left %d bytes", packets, grown)
	}
	s.lines.mu.Lock()
	defer s.lines.mu.Unlock()
	if n := len(s.lines.all); n > 200 {
		t.Errorf("%d lines were logged", n)
	}
}

// What gossip says is believed of members on their own disk alone, and a dead
// one without a link is missed at once.
func TestGossip_isAHint(t *testing.T) {
	b := &book{entry: map[protocol.NodeID]entry{"n2": {"old:1", "d"}}, told: map[protocol.NodeID]string{}}
	gone := map[protocol.NodeID]catalog.Presence{}
	c := &Cluster{book: b}
	c.presence = newPresence(func(n protocol.NodeID, p catalog.Presence) { gone[n] = p })
	g := &gossip{c: c}
	now := time.Now()
	for _, n := range []protocol.NodeID{"n2", "n3"} {
		c.presence.expect(n)
	}
	c.presence.set("n3", true)
	g.look(&memberlist.Node{Name: "n2", Meta: []byte(`{"a":"new:1","d":"another"}`)})
	if b.find("n2") != "old:1" {
		t.Error("another disk's word is taken")
	}
	g.look(&memberlist.Node{Name: "n2", Meta: []byte("{")})
	g.look(&memberlist.Node{Name: "n2", Meta: []byte(`{"a":"new:1","d":"d"}`)})
	if b.find("n2") != "new:1" {
		t.Errorf("n2 is at %s", b.find("n2"))
	}
	c.presence.look(now)
	if len(gone) != 0 {
		t.Errorf("told already: %v", gone)
	}
	for _, n := range []string{"n2", "n3"} {
		g.look(&memberlist.Node{Name: n, State: memberlist.StateDead})
	}
	c.presence.look(now)
	if want := map[protocol.NodeID]catalog.Presence{"n2": catalog.Gone}; fmt.Sprint(gone) != fmt.Sprint(want) {
		t.Errorf("told %v, want %v: a link outweighs gossip", gone, want)
	}
}

// TestGossip_tellsClocks: every node knows what the others' clocks say, also one
// that is wrong; a node that is silent is forgotten, and so is one that is no
// member any more.
func TestGossip_tellsClocks(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	const ahead = 30 * 24 * time.Hour
	sites := w.chattyAs(func(s *site) {
		if s.name == "n2" {
			s.gossip.Wall = func() time.Time { return time.Now().Add(ahead) }
		}
	}, "n1", "n2", "n3")
	off := func(s *site) (list []time.Duration) {
		for _, c := range s.Clocks() {
			list = append(list, time.Until(c).Round(time.Hour))
		}
		slices.Sort(list)
		return list
	}
	for i, want := range [][]time.Duration{{0, ahead}, {0, 0}, {0, ahead}} {
		until(t, "clocks are known", func() bool { return slices.Equal(off(sites[i]), want) })
	}
	k := &sites[0].Cluster.gossip.clocks
	k.mu.Lock()
	k.read["n2"] = reading{time.Now(), time.Now().Add(-clockFresh - time.Second)}
	k.read["stranger"] = reading{time.Now(), time.Now()}
	k.mu.Unlock()
	if list := off(sites[0]); len(list) > 2 || len(list) == 2 && list[1] != ahead { // n2 may have answered since
		t.Errorf("an old reading and a stranger's count: %v", list)
	}
}

// TestGossip_tellsLowDisks: what a node says of its disk, all know soon; of one
// that is gone nothing is known.
func TestGossip_tellsLowDisks(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	changes := make(chan struct{}, 100)
	sites := w.chattyAs(func(s *site) {
		if s.name == "n3" {
			s.lowChanged = func() { changes <- struct{}{} }
		}
	}, "n1", "n2", "n3")
	for _, s := range sites {
		until(t, "gossip has all members", func() bool { return len(s.members()) == 3 })
	}
	knows := func(s *site, names ...protocol.NodeID) bool {
		low := s.Low()
		for _, n := range names {
			if !low[n] {
				return false
			}
		}
		return len(low) == len(names)
	}
	sites[0].SetLow(true)
	sites[1].SetLow(true)
	for _, s := range sites {
		until(t, "two are low", func() bool { return knows(s, "n1", "n2") })
	}
	if len(changes) != 2 {
		t.Errorf("n3 heard of %d changes, want 2", len(changes))
	}
	sites[1].SetLow(false)
	until(t, "one is low", func() bool { return knows(sites[2], "n1") })
	sites[0].stop()
	until(t, "it is gone", func() bool { return knows(sites[2]) })
}
