package link

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// patience bounds the waits of all tests; nothing is measured by it.
const patience = 20 * time.Second

// security is one for tests.
type security struct {
	cert    *tls.Certificate
	roots   *x509.CertPool
	secrets [][]byte
}

func (s *security) Certificate() (*tls.Certificate, *x509.CertPool, error) {
	return s.cert, s.roots, nil
}
func (s *security) Secrets() ([][]byte, error) { return s.secrets, nil }

func secretOf(b byte) []byte { return bytes.Repeat([]byte{b}, secretBytesMin) }

func withSecret(b ...byte) *security {
	s := &security{}
	for _, x := range b {
		s.secrets = append(s.secrets, secretOf(x))
	}
	return s
}

// counted is a chunk's count.
type counted struct {
	mu sync.Mutex
	n  int
}

func (c *counted) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n += n; c.n < 0 {
		panic("released too often")
	}
}
func (c *counted) Retain()  { c.add(1) }
func (c *counted) Release() { c.add(-1) }
func (c *counted) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// host is a node with its handler, which records what it is told.
type host struct {
	t     *testing.T
	name  protocol.NodeID
	mux   *Mux
	links *Links

	mu      sync.Mutex // guards the fields below
	changed chan struct{}
	events  []string
	frames  []Frame
	refused []error
	why     error // of the last link that broke
	admit   func(protocol.NodeID, *Frame) error
	serve   func(protocol.NodeID, *Request)
	keep    bool // does not call Taken
}

func (h *host) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = append(h.events, fmt.Sprintf(format, args...))
	h.tell()
}

func (h *host) tell() {
	close(h.changed)
	h.changed = make(chan struct{})
}

func (h *host) Up(p protocol.NodeID) { h.note("up %s", p) }
func (h *host) Down(p protocol.NodeID, why error) {
	h.mu.Lock()
	h.why = why
	h.mu.Unlock()
	h.note("down %s", p)
}
func (h *host) StreamDown(p protocol.NodeID, s chunk.Incarnation) {
	h.note("stream down %s %d", p, uint64(s))
}
func (h *host) StreamUp(p protocol.NodeID, s chunk.Incarnation) {
	h.note("stream up %s %d", p, uint64(s))
}
func (h *host) Admit(p protocol.NodeID, f *Frame) error {
	h.mu.Lock()
	admit := h.admit
	h.mu.Unlock()
	if admit == nil {
		return nil
	}
	return admit(p, f)
}
func (h *host) Buffer(head, data int) ([]byte, []byte, Held) {
	return make([]byte, head), make([]byte, data), &counted{n: 1}
}
func (h *host) Deliver(p protocol.NodeID, f *Frame) {
	h.mu.Lock()
	h.frames = append(h.frames, *f)
	keep := h.keep
	h.tell()
	h.mu.Unlock()
	if f.Taken != nil && !keep {
		f.Taken(f.Credit())
	}
}
func (h *host) Serve(p protocol.NodeID, r *Request) {
	h.mu.Lock()
	serve := h.serve
	h.mu.Unlock()
	serve(p, r)
}

// wait until the condition holds; it is looked at under the lock.
func (h *host) wait(what string, ok func() bool) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(h.t.Context(), patience)
	defer cancel()
	h.waitFor(ctx, what, ok)
}

// waitFor is wait with a bound of the caller's.
func (h *host) waitFor(ctx context.Context, what string, ok func() bool) {
	h.t.Helper()
	for {
		h.mu.Lock()
		done, changed := ok(), h.changed
		h.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			h.mu.Lock()
			defer h.mu.Unlock()
			h.t.Fatalf("%s never saw: %s; events %q, %d frames, refused %v", h.name, what, h.events, len(h.frames), h.refused)
		}
	}
}

func (h *host) waitEvent(e string, times int) {
	h.t.Helper()
	h.wait(fmt.Sprintf("%s, %d times", e, times), func() bool { return h.count(e) >= times })
}

// count is called with the lock held.
func (h *host) count(e string) (n int) {
	for _, o := range h.events {
		if o == e {
			n++
		}
	}
	return n
}

// town is a set of hosts that find each other.
type town struct {
	t     testing.TB
	mu    sync.Mutex
	addrs map[protocol.NodeID]string
}

func newTown(t testing.TB) *town { return &town{t: t, addrs: map[protocol.NodeID]string{}} }

func (w *town) address(n protocol.NodeID) (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	a, ok := w.addrs[n]
	if !ok {
		return "", fmt.Errorf("nobody knows %s", n)
	}
	return a, nil
}

func (w *town) move(n protocol.NodeID, addr string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.addrs[n] = addr
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// quick has the beats of tests.
var quick = Config{
	HeartbeatEvery: 20 * time.Millisecond, HeartbeatTimeout: 2 * time.Second,
	BackoffMin: 5 * time.Millisecond, BackoffMax: 50 * time.Millisecond,
}

// host founds a node; change may alter what it is made of.
func (w *town) host(t *testing.T, name protocol.NodeID, s Security, change func(*MuxConfig, *Config)) *host {
	t.Helper()
	h := &host{t: t, name: name, changed: make(chan struct{})}
	l := listen(t)
	w.move(name, l.Addr().String())
	mc := MuxConfig{
		Listener: l, Cluster: "c1", Node: name, Security: s, Address: w.address,
		Refused: func(_ net.Addr, err error) {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.refused = append(h.refused, err)
			h.tell()
		},
	}
	c := quick
	if change != nil {
		change(&mc, &c)
	}
	m, err := NewMux(mc)
	if err != nil {
		t.Fatal(err)
	}
	h.mux, h.links = m, New(m, c, h)
	t.Cleanup(func() {
		h.links.Close()
		_ = m.Close()
	})
	return h
}

// chunkFrame is a chunk of a stream; its bytes tell its number.
func chunkFrame(s chunk.Incarnation, n, bytes int) *Frame {
	head := make([]byte, chunk.HeadLengthMin)
	data := bytes2(bytes, byte(n))
	return &Frame{Stream: s, Head: head, Data: data, Held: &counted{n: 1}, Message: protocol.Message{
		Kind: protocol.MsgChunk, Epoch: 3, Session: 1, Commit: chunk.LSN(n)}}
}

func bytes2(n int, b byte) []byte { return bytes.Repeat([]byte{b}, n) }

// hexFile reads a golden: hex with comments.
func hexFile(t *testing.T, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var digits []byte
	for line := range bytes.Lines(text) {
		line, _, _ = bytes.Cut(line, []byte("#"))
		digits = append(digits, bytes.Join(bytes.Fields(line), nil)...)
	}
	b, err := hex.DecodeString(string(digits))
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return b
}
