package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// raw is a connection to a host's port that follows no rules.
func (h *host) raw() net.Conn {
	h.t.Helper()
	c, err := net.Dial("tcp", h.mux.config.Listener.Addr().String())
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// closed waits for the host's end to close; what it says before is returned.
func closed(t *testing.T, c net.Conn) []byte {
	t.Helper()
	_ = c.SetReadDeadline(time.Now().Add(patience))
	said, err := io.ReadAll(c)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatal("still open")
	}
	return said
}

func (h *host) waitRefused(want error) {
	h.t.Helper()
	h.wait("refusing with "+want.Error(), func() bool {
		for _, err := range h.refused {
			if errors.Is(err, want) {
				return true
			}
		}
		return false
	})
}

func hasEvent(h *host, e string) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count(e) > 0
}

// TestMux_whoIsThere dials with every kind of identity; the right ones come
// through, and the host goes on in any case.
func TestMux_whoIsThere(t *testing.T) {
	ca, other, ca2 := authority(t, "c1"), authority(t, "c1"), authority(t, "c2")
	us := identity(t, ca, "c1", "b")
	both := *us
	both.secrets = withSecret(1).secrets
	withBoth := func(node protocol.NodeID, secret byte) *security {
		s := *identity(t, ca, "c1", node)
		s.secrets = withSecret(secret).secrets
		return &s
	}
	member := func(c *MuxConfig) {
		c.Member = func(_ Purpose, n protocol.NodeID) error {
			if n == "gone" {
				return errors.New("was removed")
			}
			return nil
		}
	}
	rows := []struct {
		name     string
		acceptor *security
		dialer   *security
		node     protocol.NodeID
		cluster  string
		want     error // at the acceptor; nil: comes through
	}{
		{"certificates", us, identity(t, ca, "c1", "a"), "a", "c1", nil},
		{"certificates of an authority that is new", us, identity(t, other, "c1", "a", ca), "a", "c1", ErrCertificate},
		{"certificate of another cluster", us, identity(t, ca, "c2", "a"), "a", "c2", errAny},
		{"authority of another cluster", us, identity(t, ca2, "c2", "a", ca), "a", "c2", errAny},
		{"certificate of another node", us, identity(t, ca, "c1", "x"), "a", "c1", ErrNode},
		{"certificate of ours, hello of another cluster", us, identity(t, ca, "c1", "a"), "a", "c2", errAny},
		{"no certificate", us, withSecret(1), "a", "c1", errAny},
		{"a member no more", us, identity(t, ca, "c1", "gone"), "gone", "c1", ErrStranger},
		{"this very node", us, identity(t, ca, "c1", "b"), "b", "c1", ErrNode},
		{"secret", withSecret(1), withSecret(1), "a", "c1", nil},
		{"secret, the older of two", withSecret(2, 1), withSecret(1, 2), "a", "c1", nil},
		{"another secret", withSecret(1), withSecret(2), "a", "c1", ErrUnproven},
		{"secret of another cluster's node", withSecret(1), withSecret(1), "a", "c2", ErrCluster},
		{"certificate for a secret", withSecret(1), identity(t, ca, "c1", "a"), "a", "c1", ErrHandshake},
		{"both", &both, withBoth("a", 1), "a", "c1", nil},
		{"both, another secret", &both, withBoth("a", 2), "a", "c1", ErrUnproven},
		{"both, and only a certificate comes", &both, identity(t, ca, "c1", "a"), "a", "c1", ErrUnproven},
	}
	for i, r := range slices.Concat(rows, rows) {
		form := form{"here", near}
		if i >= len(rows) {
			form.name, form.near = "elsewhere", far
		}
		t.Run(r.name+", "+form.name, func(t *testing.T) {
			w := newTown(t)
			b := w.host(t, "b", r.acceptor, func(c *MuxConfig, _ *Config) { member(c); c.near = form.near })
			dialer := &Mux{config: MuxConfig{Cluster: r.cluster, Node: r.node, Security: r.dialer, Address: w.address, near: form.near}}
			dialer.config.setDefaults()
			c, err := dialer.dial(t.Context(), hello{purpose: PurposeRaft, slots: 1, to: "b"}, func() {})
			layer := b.mux.Raft()
			if r.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				_ = c.Close()
				return
			}
			if err == nil {
				// Over TLS 1.3 the dialer is done before it is refused.
				_, err = c.Read(make([]byte, 1))
			}
			if err == nil {
				t.Fatal("came through")
			}
			select {
			case c := <-layer.conns:
				t.Fatalf("raft got a connection from %v", c.RemoteAddr())
			default:
			}
			if !errors.Is(r.want, errAny) && !errors.Is(r.want, ErrHandshake) {
				b.waitRefused(r.want)
			}
			// And the node still serves those that it knows.
			good := &Mux{config: MuxConfig{Cluster: "c1", Node: "ok", Security: r.acceptor, Address: w.address, near: form.near}}
			if r.acceptor.cert != nil {
				s := *identity(t, ca, "c1", "ok")
				s.secrets = r.acceptor.secrets
				good.config.Security = &s
			}
			good.config.setDefaults()
			again, err := good.dial(t.Context(), hello{purpose: PurposeRaft, slots: 1, to: "b"}, func() {})
			if err != nil {
				t.Fatalf("afterwards: %v", err)
			}
			_ = again.Close()
		})
	}
}

var errAny = errors.New("any")

// A dialer that reaches another node than it meant, by a stale address, notices.
func TestMux_anotherNodeAtTheAddress(t *testing.T) {
	ca := authority(t, "c1")
	for name, secured := range map[string]func(protocol.NodeID) Security{
		"certificates": func(n protocol.NodeID) Security { return identity(t, ca, "c1", n) },
		"secret":       func(protocol.NodeID) Security { return withSecret(1) },
	} {
		w := newTown(t)
		a := w.host(t, "a", secured("a"), nil)
		w.host(t, "b", secured("b"), nil)
		there, _ := w.address("b")
		w.move("c", there)
		if _, err := a.mux.Raft().Dial("c", patience); !errors.Is(err, ErrNode) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A node's name leads to three addresses: nobody is at the first, a node with a
// certificate of somebody else at the second, and itself at the third (RP-11).
func TestMux_triesAllAddresses(t *testing.T) {
	ca, other := authority(t, "c1"), authority(t, "c1")
	w := newTown(t)
	b := w.host(t, "b", identity(t, ca, "c1", "b"), nil)
	_, port, _ := net.SplitHostPort(b.mux.config.Listener.Addr().String())
	stranger, err := net.Listen("tcp", net.JoinHostPort("127.0.0.2", port))
	if err != nil {
		t.Skipf("this system has no second loopback address: %v", err)
	}
	mux, err := NewMux(MuxConfig{Listener: stranger, Cluster: "c1", Node: "b", Security: identity(t, other, "c1", "b")})
	if err != nil {
		t.Fatal(err)
	}
	defer mux.Close()
	a := w.host(t, "a", identity(t, ca, "c1", "a"), func(c *MuxConfig, _ *Config) {
		c.Resolve = func(_ context.Context, host string) ([]string, error) {
			if host != "b.example" {
				return nil, errors.New("nobody of that name")
			}
			return []string{"127.0.0.3", "127.0.0.2", "127.0.0.1"}, nil
		}
	})
	w.move("b", net.JoinHostPort("b.example", port))
	a.links.Connect("b")
	a.waitEvent("up b", 1)
	b.waitEvent("up a", 1)
}

// Who opens connections and lets them go, a thousand times, keeps nobody out
// (RP-11).
func TestMux_portScanner(t *testing.T) {
	ca := authority(t, "c1")
	w := newTown(t)
	b := w.host(t, "b", identity(t, ca, "c1", "b"), nil)
	addr := b.mux.config.Listener.Addr().String()
	for i := range 1000 {
		conn, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 { // the beginning of a TLS handshake
			_, _ = conn.Write([]byte{22, 3, 1, 2, 0, 1, 0})
		}
		_ = conn.Close()
	}
	a := w.host(t, "a", identity(t, ca, "c1", "a"), nil)
	a.links.Connect("b")
	a.waitEvent("up b", 1)
	b.waitEvent("up a", 1)
}

func TestMux_recordedHandshakeIsRefused(t *testing.T) {
	ca := authority(t, "c1")
	shared := func(protocol.NodeID) Security { return withSecret(1) }
	for name, r := range map[string]struct {
		secured func(protocol.NodeID) Security
		near    func(net.Conn) bool
		want    error
	}{
		"secret":           {shared, near, ErrUnproven},
		"secret, with TLS": {shared, far, errAny},
		"certificates":     {func(n protocol.NodeID) Security { return identity(t, ca, "c1", n) }, near, errAny},
	} {
		t.Run(name, func(t *testing.T) { recordedHandshakeIsRefused(t, r.secured, r.near, r.want) })
	}
}

func recordedHandshakeIsRefused(t *testing.T, secured func(protocol.NodeID) Security, near func(net.Conn) bool, want error) {
	w := newTown(t)
	change := func(c *MuxConfig, _ *Config) { c.near = near }
	a, b := w.host(t, "a", secured("a"), change), w.host(t, "b", secured("b"), change)
	there, _ := w.address("b")
	p := newProxy(t, there)
	w.move("b", p.addr())
	a.links.Connect("b")
	a.waitEvent("up b", 1)
	recorded := p.recorded()
	a.links.Close()
	b.waitEvent("down a", 1)
	c := b.raw()
	if _, err := c.Write(recorded); err != nil {
		t.Fatal(err)
	}
	said := closed(t, c)
	if errors.Is(want, errAny) { // TLS has ended it, before any word of ours
		b.wait("a refusal", func() bool { return len(b.refused) > 0 })
	} else if b.waitRefused(want); len(said) > 2*answerBytes {
		t.Fatalf("%d bytes were said to a recording", len(said))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.count("up a") != 1 {
		t.Fatalf("events %q", b.events)
	}
}

// The acceptor's own proof, sent back, proves nothing.
func TestMux_proofsHaveDirections(t *testing.T) {
	first, second := []byte("hello"), []byte("challenge")
	d := proof(secretOf(1), labelDialer, first, second)
	secrets := [][]byte{secretOf(2), secretOf(1)}
	if provedBy(secrets, d[:], labelDialer, first, second) == nil {
		t.Fatal("a good proof is refused")
	}
	if provedBy(secrets, d[:], labelAcceptor, first, second) != nil {
		t.Error("the dialer's proof passes for the acceptor's")
	}
	if provedBy(secrets, d[:], labelDialer, []byte("hell"), []byte("ochallenge")) != nil {
		t.Error("the parts' borders are not proven")
	}
	if provedBy(secrets, d[:], labelDialer, first, second, []byte("key of another TLS connection")) != nil {
		t.Error("the connection is not proven")
	}
	if provedBy(secrets, emptyProof[:], labelDialer, first, second) != nil {
		t.Error("no proof passes")
	}
}

// TestMux_badInput: the first bytes are anything. The host closes, says at most
// an answer, and goes on.
func TestMux_badInput(t *testing.T) {
	good := (&hello{purpose: PurposeLink, min: 1, max: 1, slots: 3, cluster: "c1", from: "a", to: "b"}).append(nil)
	with := func(at int, b byte) []byte {
		p := bytes.Clone(good)
		p[at] = b
		return p
	}
	rows := map[string][]byte{
		"http":             []byte("GET / HTTP/1.1\r\nHost: b\r\n\r\n"),
		"zeros":            make([]byte, 1000),
		"ones":             bytes.Repeat([]byte{0xff}, 1000),
		"tls hello":        {0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3},
		"length max":       with(4, 0xff),
		"length short":     with(5, 10),
		"length long":      append(with(5, byte(len(good)-6+4)), 1, 2, 3, 4),
		"purpose":          with(0, 'X'),
		"slot over":        with(8, 3),
		"slots none":       with(9, 0),
		"slots many":       with(9, 200),
		"version ahead":    with(6, 9),
		"versions no":      append(append(bytes.Clone(good[:6]), 2, 2), good[8:]...),
		"cluster longer":   with(50, 250),
		"cluster none":     with(50, 0),
		"client's Open":    {0, 0, 0, 9, 0, 0x15, 0, 1, 0, 0, 0, 1, 0},
		"another's bundle": with(8, 1),
	}
	w := newTown(t)
	b := w.host(t, "b", withSecret(1), nil)
	for name, sent := range rows {
		c := b.raw()
		_, _ = c.Write(append(bytes.Clone(sent), make([]byte, proofBytes)...))
		_ = c.(*net.TCPConn).CloseWrite()
		if said := closed(t, c); len(said) > 2*answerBytes {
			t.Errorf("%s: %d bytes said: %q", name, len(said), said)
		}
	}
	ca := authority(t, "c1")
	s := w.host(t, "s", identity(t, ca, "c1", "s"), nil)
	for name, sent := range rows {
		c := s.raw()
		_, _ = c.Write(sent)
		_ = c.(*net.TCPConn).CloseWrite()
		if said := closed(t, c); bytes.Contains(said, []byte(helloMagic)) || len(said) > 64 {
			t.Errorf("over TLS, %s: %q said", name, said)
		}
	}
	a := w.host(t, "a", withSecret(1), nil)
	a.links.Connect("b")
	a.waitEvent("up b", 1)
}

// TestMux_rogueDialer believes whatever it is shown, so that the acceptor alone
// decides.
func TestMux_rogueDialer(t *testing.T) {
	ca, ca2 := authority(t, "c1"), authority(t, "c2")
	rows := []struct {
		name    string
		shows   *security
		cluster string
		from    protocol.NodeID
		want    error
	}{
		{"nothing wrong", identity(t, ca, "c1", "a"), "c1", "a", nil},
		{"no certificate", nil, "c1", "a", errAny},
		{"certificate for another cluster", identity(t, ca, "c2", "a"), "c1", "a", ErrCluster},
		{"another authority", identity(t, ca2, "c1", "a"), "c1", "a", ErrCertificate},
		{"another node's certificate", identity(t, ca, "c1", "x"), "c1", "a", ErrNode},
		{"hello for another cluster", identity(t, ca, "c1", "a"), "c2", "a", ErrCluster},
	}
	for _, r := range rows {
		w := newTown(t)
		b := w.host(t, "b", identity(t, ca, "c1", "b"), nil)
		config := &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"millrace-raft/1"}, InsecureSkipVerify: true}
		if r.shows != nil {
			config.Certificates = []tls.Certificate{*r.shows.cert}
		}
		over := tls.Client(b.raw(), config)
		_, _ = over.Write((&hello{purpose: PurposeRaft, min: 1, max: 1, slots: 1, cluster: r.cluster, from: r.from, to: "b"}).append(nil))
		_ = over.SetReadDeadline(time.Now().Add(patience))
		_, _, err := readAnswer(over)
		if (err == nil) != (r.want == nil) {
			t.Errorf("%s: %v", r.name, err)
		}
		switch {
		case r.want == nil:
		case errors.Is(r.want, errAny):
			b.wait("a refusal", func() bool { return len(b.refused) > 0 })
		default:
			b.waitRefused(r.want)
		}
	}
}

// A connection's protocol name must agree with its purpose, and there must be
// one.
func TestMux_protocolNames(t *testing.T) {
	ca := authority(t, "c1")
	w := newTown(t)
	b := w.host(t, "b", identity(t, ca, "c1", "b"), nil)
	a := identity(t, ca, "c1", "a")
	for _, names := range [][]string{nil, {"h2"}, {"millrace-raft/1"}} {
		over := tls.Client(b.raw(), &tls.Config{
			MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{*a.cert}, NextProtos: names, InsecureSkipVerify: true,
		})
		_, _ = over.Write((&hello{purpose: PurposeLink, min: 1, max: 1, slots: 3, cluster: "c1", from: "a", to: "b"}).append(nil))
		_, _ = io.ReadAll(over)
	}
	b.wait("three refusals", func() bool { return len(b.refused) == 3 })
	// TLS 1.2 is refused before anything else.
	over := tls.Client(b.raw(), &tls.Config{MaxVersion: tls.VersionTLS12, Certificates: []tls.Certificate{*a.cert}, InsecureSkipVerify: true})
	if err := over.Handshake(); err == nil || !strings.Contains(err.Error(), "protocol version") {
		t.Errorf("TLS 1.2: %v", err)
	}
}

// Who drips bytes does not extend the time that it has.
func TestMux_dripIsCut(t *testing.T) {
	w := newTown(t)
	b := w.host(t, "b", withSecret(1), func(c *MuxConfig, _ *Config) { c.HandshakeTimeout = 300 * time.Millisecond })
	c := b.raw()
	drip := time.NewTicker(10 * time.Millisecond)
	defer drip.Stop()
	done := make(chan struct{})
	go func() { defer close(done); closed(t, c) }()
	for _, x := range (&hello{purpose: PurposeLink, min: 1, max: 1, slots: 3, cluster: strings.Repeat("c", 200), from: "a", to: "b"}).append(nil) {
		select {
		case <-done:
			return
		case <-drip.C:
			_, _ = c.Write([]byte{x})
		}
	}
	t.Fatal("dripped a whole hello of 250 bytes in 2.5 s; 300 ms were allowed")
}

func TestMux_oldestHandshakeGoes(t *testing.T) {
	w := newTown(t)
	b := w.host(t, "b", withSecret(1), func(c *MuxConfig, _ *Config) { c.Handshakes = 8 })
	a := w.host(t, "a", withSecret(1), nil)
	a.links.Connect("b")
	a.waitEvent("up b", 1)
	b.waitEvent("up a", 1) // it shook hands with the last of the connections too
	var idle []net.Conn
	for range 40 {
		idle = append(idle, b.raw())
	}
	for _, c := range idle[:32] {
		closed(t, c)
	}
	b.wait("32 refusals", func() bool { return len(b.refused) >= 32 })
	b.mux.mu.Lock()
	open := len(b.mux.open)
	b.mux.mu.Unlock()
	if open > 8 {
		t.Errorf("%d handshakes are open", open)
	}
	if hasEvent(a, "down b") {
		t.Error("a link that was up went down")
	}
}

func TestLayer(t *testing.T) {
	w := newTown(t)
	a, b := w.host(t, "a", withSecret(1), nil), w.host(t, "b", withSecret(1), nil)
	layer := b.mux.Raft()
	out, err := a.mux.Raft().Dial("b", patience)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	in, err := layer.Accept()
	if err != nil {
		t.Fatal(err)
	}
	go func() { _, _ = out.Write([]byte("vote")) }()
	got := make([]byte, 4)
	if _, err := io.ReadFull(in, got); err != nil || string(got) != "vote" {
		t.Fatalf("%q %v", got, err)
	}
	next := b.mux.Raft() // raft starts anew
	if _, err := layer.Accept(); !errors.Is(err, net.ErrClosed) {
		t.Fatalf("the layer before: %v", err)
	}
	if _, err := a.mux.Raft().Dial("b", patience); err != nil {
		t.Fatal(err)
	}
	if in, err = next.Accept(); err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
}

func TestLinks_overTLS(t *testing.T) {
	ca := authority(t, "c1")
	t.Run("certificates", func(t *testing.T) { linksOverTLS(t, identity(t, ca, "c1", "a"), identity(t, ca, "c1", "b")) })
	t.Run("secret", func(t *testing.T) { linksOverTLS(t, withSecret(1), withSecret(1)) })
}

func linksOverTLS(t *testing.T, as, bs Security) {
	w := newTown(t)
	a, b := w.host(t, "a", as, elsewhere), w.host(t, "b", bs, elsewhere)
	a.links.Connect("b")
	a.waitEvent("up b", 1)
	b.waitEvent("up a", 1)
	for n := range 50 {
		a.links.Send("b", chunkFrame(1, n, 40<<10))
		a.links.Send("b", chunkFrame(1, n, 10))
	}
	b.wait("all", func() bool { return len(b.frames) == 100 })
	for i, f := range b.frames {
		if f.Message.Commit != chunk.LSN(i/2) || f.Data[len(f.Data)-1] != byte(i/2) {
			t.Fatalf("frame %d is another", i)
		}
	}
}
