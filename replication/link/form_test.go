package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/replication/protocol"
)

// form is whether connections count as those of one machine.
type form struct {
	name string
	near func(net.Conn) bool
}

func far(net.Conn) bool { return false }

// elsewhere makes a host's connections those of two machines.
func elsewhere(c *MuxConfig, _ *Config) { c.near = far }

// dialer is a node that only dials, by one secret.
func dialer(w *town, node protocol.NodeID, secret byte, near func(net.Conn) bool) *Mux {
	m := &Mux{config: MuxConfig{Cluster: "c1", Node: node, Security: withSecret(secret), Address: w.address, near: near}}
	m.config.setDefaults()
	return m
}

// TestForm_near: plain is for two ends on loopback, and for nothing else.
func TestForm_near(t *testing.T) {
	for _, r := range []struct {
		local, remote string
		want          bool
	}{
		{"127.0.0.1:1", "127.0.0.1:2", true},
		{"127.0.0.1:1", "127.9.0.1:2", true},
		{"[::1]:1", "[::1]:2", true},
		{"[::ffff:127.0.0.1]:1", "127.0.0.1:2", true},
		{"192.0.2.7:1", "192.0.2.7:2", false}, // one machine, but by an address that others can take
		{"127.0.0.1:1", "192.0.2.7:2", false},
		{"192.0.2.7:1", "127.0.0.1:2", false},
		{"[fe80::1]:1", "[fe80::1]:2", false},
		{"169.254.1.1:1", "169.254.1.1:2", false},
		{"0.0.0.0:1", "0.0.0.0:2", false},
	} {
		if got := near(between(t, r.local, r.remote)); got != r.want {
			t.Errorf("%s to %s: %v", r.local, r.remote, got)
		}
	}
	if one, two := net.Pipe(); near(one) || near(two) {
		t.Error("no addresses pass for loopback")
	}
}

// addressed is a connection of which only the addresses are known.
type addressed struct {
	net.Conn
	local, remote net.Addr
}

func (a addressed) LocalAddr() net.Addr  { return a.local }
func (a addressed) RemoteAddr() net.Addr { return a.remote }

func between(t *testing.T, local, remote string) net.Conn {
	t.Helper()
	l, err1 := net.ResolveTCPAddr("tcp", local)
	r, err2 := net.ResolveTCPAddr("tcp", remote)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	return addressed{nil, l, r}
}

// Between machines a node with a secret says nothing that can be read or put in
// plain; between loopback addresses it does, for speed.
func TestForm_whatGoesOverTheWire(t *testing.T) {
	for _, f := range []form{{"here", near}, {"elsewhere", far}} {
		w := newTown(t)
		change := func(c *MuxConfig, _ *Config) { c.near = f.near }
		a, b := w.host(t, "a", withSecret(1), change), w.host(t, "b", withSecret(1), change)
		there, _ := w.address("b")
		p := newProxy(t, there)
		w.move("b", p.addr())
		a.links.Connect("b")
		a.waitEvent("up b", 1)
		a.links.Send("b", chunkFrame(1, 'x', 4096))
		b.wait("the chunk", func() bool { return len(b.frames) == 1 })
		plain := bytes.Contains(p.everything(), []byte(helloMagic)) || bytes.Contains(p.everything(), bytes2(64, 'x'))
		if plain != (f.name == "here") {
			t.Errorf("%s: in plain: %v", f.name, plain)
		}
		if f.name == "elsewhere" && p.recorded()[0] != firstOfTLS {
			t.Errorf("a connection began with %x", p.recorded()[0])
		}
	}
}

// An acceptor takes no plain hello from another machine, says so, and so does the
// dialer; that is what a node of before this rule meets too.
func TestForm_plainFromElsewhere(t *testing.T) {
	for _, purpose := range []Purpose{PurposeRaft, PurposeLink, PurposeKnock} {
		w := newTown(t)
		b := w.host(t, "b", withSecret(1), func(c *MuxConfig, k *Config) { elsewhere(c, k); echo(c, k) })
		h := hello{purpose: purpose, slots: 1, to: "b"}
		if purpose == PurposeKnock {
			h.to = ""
		}
		there, _ := w.address("b")
		_, err := dialer(w, "a", 1, near).dialAt(t.Context(), there, h, func() {})
		if !errors.Is(err, ErrPlain) || !strings.Contains(err.Error(), "TLS is needed") {
			t.Errorf("%c: the dialer is told %v", purpose, err)
		}
		b.waitRefused(ErrPlain)
	}
}

// The other way round: where an older node, or none at all, answers a hello of
// TLS, the dialer says what may be wrong, and does not wait.
func TestForm_nobodySpeaksTLSThere(t *testing.T) {
	for name, answers := range map[string]func(net.Conn){
		"an older node": func(c net.Conn) { _, _, _ = readHello(c) }, // and closes
		"an HTTP server": func(c net.Conn) {
			_, _ = io.ReadFull(c, make([]byte, 64))
			_, _ = io.WriteString(c, "HTTP/1.1 400 Bad Request\r\n\r\n")
		},
	} {
		l := listen(t)
		defer l.Close()
		go func() {
			for {
				c, err := l.Accept()
				if err != nil {
					return
				}
				answers(c)
				_ = c.Close()
			}
		}()
		w := newTown(t)
		w.move("b", l.Addr().String())
		_, err := dialer(w, "a", 1, far).dial(t.Context(), hello{purpose: PurposeRaft, slots: 1, to: "b"}, func() {})
		if err == nil || !strings.Contains(err.Error(), "is that the port between nodes") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// relay is somebody between two nodes: whoever dials him, he ends its TLS, or
// none, with a certificate of his own, dials on, and passes all bytes.
type relay struct {
	l       net.Listener
	in, out bool // TLS on his two sides
	cert    *tls.Certificate
	to      string
}

func newRelay(t *testing.T, to string, in, out bool) *relay {
	t.Helper()
	cert, err := newMoment(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	r := &relay{listen(t), in, out, cert, to}
	t.Cleanup(func() { _ = r.l.Close() })
	go r.run()
	return r
}

func (r *relay) run() {
	for {
		in, err := r.l.Accept()
		if err != nil {
			return
		}
		go r.between(in)
	}
}

func (r *relay) between(in net.Conn) {
	defer in.Close()
	out, err := net.Dial("tcp", r.to)
	if err != nil {
		return
	}
	defer out.Close()
	names := []string{protocolNames[PurposeRaft]}
	if r.in {
		in = tls.Server(in, boundConfig(r.cert, names))
	}
	if r.out {
		out = tls.Client(out, boundConfig(nil, names))
	}
	go func() {
		_, _ = io.Copy(out, in)
		_ = out.Close()
	}()
	_, _ = io.Copy(in, out)
}

// TestForm_betweenTwoNodes: who comes between two nodes and relays their words is
// refused by the acceptor, and the dialer has no connection, whether he speaks TLS
// to both, or has one of them believe that the other speaks plain.
func TestForm_betweenTwoNodes(t *testing.T) {
	here := form{"plain", near}
	there := form{"TLS", far}
	for _, r := range []struct {
		dialer, acceptor form
		want             error // at the acceptor; nil: comes through
	}{
		{here, here, nil}, // of one machine: whoever is there can read along, and is not kept from it
		{there, there, ErrUnproven},
		{there, here, ErrUnproven}, // the acceptor takes TLS and plain
		{here, there, ErrUnproven},
	} {
		t.Run(r.dialer.name+" to "+r.acceptor.name, func(t *testing.T) {
			w := newTown(t)
			b := w.host(t, "b", withSecret(1), func(c *MuxConfig, _ *Config) { c.near = r.acceptor.near })
			layer := b.mux.Raft()
			to, _ := w.address("b")
			w.move("b", newRelay(t, to, r.dialer.name == "TLS", r.acceptor.name == "TLS").l.Addr().String())
			c, err := dialer(w, "a", 1, r.dialer.near).dial(t.Context(), hello{purpose: PurposeRaft, slots: 1, to: "b"}, func() {})
			if r.want == nil {
				if err != nil {
					t.Fatal(err)
				}
				_ = c.Close()
				return
			}
			if !errors.Is(err, r.want) {
				t.Errorf("the dialer: %v", err)
			}
			b.waitRefused(r.want)
			if len(layer.conns) > 0 {
				t.Error("raft got a connection")
			}
		})
	}
}

// over makes a connection of TLS to a host, as a dialer would, and returns its
// binding.
func over(t *testing.T, h *host, purpose Purpose) (*tls.Conn, []byte) {
	t.Helper()
	c := tls.Client(h.raw(), boundConfig(nil, []string{protocolNames[purpose]}))
	_ = c.SetDeadline(time.Now().Add(patience))
	if err := c.Handshake(); err != nil {
		t.Fatal(err)
	}
	state := c.ConnectionState()
	binding, err := state.ExportKeyingMaterial(bindingLabel, nil, bindingBytes)
	if err != nil {
		t.Fatal(err)
	}
	return c, binding
}

// TestForm_proofsOfAnotherConnection: who knows what was said within one connection
// can't say it in another, and no half of it, nor what the acceptor says itself.
func TestForm_proofsOfAnotherConnection(t *testing.T) {
	w := newTown(t)
	b := w.host(t, "b", withSecret(1), elsewhere)
	first := (&hello{purpose: PurposeRaft, min: 1, max: 1, slots: 1, cluster: "c1", from: "a", to: "b"}).append(nil)
	good := func(second, binding []byte) []byte {
		p := proof(secretOf(1), labelDialer, first, second, binding)
		return p[:]
	}
	var before, said []byte // the proof and the challenge of the good connection
	for _, r := range []struct {
		name  string
		proof func(second, binding []byte) []byte
		want  error
	}{
		{"nothing wrong", func(second, binding []byte) []byte { before, said = good(second, binding), second; return before }, nil},
		{"the proof of before", func(_, _ []byte) []byte { return before }, ErrUnproven},
		{"for the challenge of before", func(_, binding []byte) []byte { return good(said, binding) }, ErrUnproven},
		{"without the connection", func(second, _ []byte) []byte { return good(second, nil) }, ErrUnproven},
		{"the challenge itself", func(second, _ []byte) []byte { return second[answerBytes-proofBytes:] }, ErrUnproven},
		{"as the acceptor", func(second, binding []byte) []byte {
			p := proof(secretOf(1), labelAcceptor, first, second, binding)
			return p[:]
		}, ErrUnproven},
		{"another secret", func(second, binding []byte) []byte {
			p := proof(secretOf(2), labelDialer, first, second, binding)
			return p[:]
		}, ErrUnproven},
		{"no proof", func(_, _ []byte) []byte { return emptyProof[:] }, ErrUnproven},
	} {
		c, binding := over(t, b, PurposeRaft)
		_, _ = c.Write(first)
		_, second, err := readAnswer(c)
		if err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		_, _ = c.Write(r.proof(second, binding))
		if _, _, err = readAnswer(c); !errors.Is(err, r.want) {
			t.Errorf("%s: %v", r.name, err)
		}
		_ = c.Close()
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.refused) != 7 {
		t.Errorf("refused: %v", b.refused)
	}
}

// An acceptor that does not know the secret has nothing that it could answer:
// neither the dialer's own words nor its own.
func TestForm_rogueAcceptor(t *testing.T) {
	cert, err := newMoment(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	for name, answers := range map[string]func(first, third []byte, challenge *answer) []byte{
		"the dialer's proof":     func(_, third []byte, _ *answer) []byte { return third },
		"the dialer's nonce":     func(first, _ []byte, _ *answer) []byte { return first[18:50] },
		"its own challenge":      func(_, _ []byte, c *answer) []byte { return c.value[:] },
		"no proof":               func(_, _ []byte, _ *answer) []byte { return emptyProof[:] },
		"nothing, and goes away": func(_, _ []byte, _ *answer) []byte { return nil },
	} {
		l := listen(t)
		defer l.Close()
		go func() {
			in, err := l.Accept()
			if err != nil {
				return
			}
			c := tls.Server(in, boundConfig(cert, []string{protocolNames[PurposeRaft]}))
			defer in.Close()
			_, first, err := readHello(c)
			if err != nil {
				return
			}
			challenge := answer{version: 1}
			copy(challenge.value[:], first[18:]) // the dialer's own, sent back
			_, _ = c.Write(challenge.append(nil))
			third := make([]byte, proofBytes)
			if _, err := io.ReadFull(c, third); err != nil {
				return
			}
			value := answers(first, third, &challenge)
			if value == nil {
				return
			}
			welcome := answer{version: 1}
			copy(welcome.value[:], value)
			_, _ = c.Write(welcome.append(nil))
		}()
		w := newTown(t)
		w.move("b", l.Addr().String())
		_, err := dialer(w, "a", 1, far).dial(t.Context(), hello{purpose: PurposeRaft, slots: 1, to: "b"}, func() {})
		if want := ErrUnproven; name != "nothing, and goes away" && !errors.Is(err, want) || err == nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestForm_truncated: a dialer that stops at any byte of what it says, within TLS
// or of TLS's own, is let go, and nobody is let in.
func TestForm_truncated(t *testing.T) {
	w := newTown(t)
	b := w.host(t, "b", withSecret(1), elsewhere)
	layer := b.mux.Raft()
	first := (&hello{purpose: PurposeRaft, min: 1, max: 1, slots: 1, cluster: "c1", from: "a", to: "b"}).append(nil)
	all := len(first) + proofBytes
	for n := range all {
		c, binding := over(t, b, PurposeRaft)
		_, _ = c.Write(first[:min(n, len(first))])
		if n >= len(first) {
			_, second, err := readAnswer(c)
			if err != nil {
				t.Fatal(err)
			}
			third := proof(secretOf(1), labelDialer, first, second, binding)
			_, _ = c.Write(third[:n-len(first)])
		}
		_ = c.NetConn().(*net.TCPConn).CloseWrite()
		if said, _ := io.ReadAll(c); len(said) > 0 {
			t.Fatalf("after %d bytes: %d bytes were said", n, len(said))
		}
	}
	there, _ := w.address("b")
	p := newProxy(t, there)
	w.move("b", p.addr())
	if _, err := dialer(w, "a", 1, far).dial(t.Context(), hello{purpose: PurposeRaft, slots: 1, to: "b"}, func() {}); err != nil {
		t.Fatal(err)
	}
	recorded := p.recorded()
	for n := 0; n < len(recorded); n += 7 {
		c := b.raw()
		_, _ = c.Write(recorded[:n])
		_ = c.(*net.TCPConn).CloseWrite()
		closed(t, c)
	}
	b.wait("all refusals", func() bool { return len(b.refused) >= all+(len(recorded)+6)/7 })
	if len(layer.conns) != 1 {
		t.Errorf("raft got %d connections, not the good one alone", len(layer.conns))
	}
}

// A bit that is flipped on the way ends the link: no frame is believed that its
// sender did not send.
func TestForm_flippedBit(t *testing.T) {
	w := newTown(t)
	a, b := w.host(t, "a", withSecret(1), elsewhere), w.host(t, "b", withSecret(1), elsewhere)
	there, _ := w.address("b")
	p := newProxy(t, there)
	w.move("b", p.addr())
	a.links.Connect("b")
	a.waitEvent("up b", 1)
	b.waitEvent("up a", 1)
	p.flip()
	a.links.Send("b", chunkFrame(1, 'x', 4096))
	b.waitEvent("down a", 1)
	b.mu.Lock()
	why := b.why
	for i := range b.frames {
		if !bytes.Equal(b.frames[i].Data, bytes2(4096, 'x')) {
			t.Error("a changed chunk was believed")
		}
	}
	b.mu.Unlock()
	if why == nil || !strings.Contains(why.Error(), "bad record MAC") {
		t.Errorf("the link ended for %v", why)
	}
	b.waitEvent("up a", 2)
}

// FuzzAccept: whoever does not know the secret gets nowhere, whatever he says
// first; the acceptor neither waits for ever nor says more than an answer.
func FuzzAccept(f *testing.F) {
	for _, purpose := range []Purpose{PurposeLink, PurposeRaft, PurposeKnock} {
		h := hello{purpose: purpose, min: 1, max: 1, slots: 1, cluster: "c1", from: "a", to: "b"}
		if purpose == PurposeKnock {
			h.to = ""
		}
		f.Add(append(h.append(nil), emptyProof[:]...), true)
		f.Add(append(h.append(nil), emptyProof[:]...), false)
	}
	f.Add([]byte{firstOfTLS, 3, 1, 0, 5, 1, 0, 0, 1, 3}, true)
	f.Add([]byte("GET / HTTP/1.1\r\n\r\n"), false)
	moment, err := newMoment(time.Now())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, said []byte, here bool) {
		m := &Mux{
			config: MuxConfig{Cluster: "c1", Node: "b", Security: withSecret(1), near: func(net.Conn) bool { return here }},
			moment: moment, ctx: context.Background(),
		}
		m.config.setDefaults()
		in, out := net.Pipe()
		answered := make(chan int)
		go func() {
			n, _ := io.Copy(io.Discard, out)
			answered <- int(n)
		}()
		go func() {
			_, _ = out.Write(said)
			_ = out.Close()
		}()
		c, _, err := m.acceptHandshake(in)
		_ = in.Close()
		if n := <-answered; err == nil || c != nil || n > 2*answerBytes && said[0] != firstOfTLS {
			t.Fatalf("%x: %v, %d bytes said", said, err, n)
		}
	})
}

// FuzzAnswer: whatever is read as an answer is written as the same bytes.
func FuzzAnswer(f *testing.F) {
	f.Add((&answer{version: 1, bundle: 7}).append(nil))
	f.Add((&answer{code: 9, version: 1}).append(nil))
	f.Add([]byte{200})
	f.Fuzz(func(t *testing.T, p []byte) {
		a, raw, err := readAnswer(bytes.NewReader(p))
		if err == nil && (a.code != 0 || !bytes.Equal(a.append(nil), raw) || !bytes.HasPrefix(p, raw)) {
			t.Fatalf("%x became %x", p, raw)
		}
		if len(p) >= answerBytes && (err == nil) != (p[0] == 0) {
			t.Fatalf("%x: %v", p, err)
		}
	})
}
