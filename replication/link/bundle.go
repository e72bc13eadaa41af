package link

import (
	"sync"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
)

// bundle is the connections of one link's life. It is up when all are there,
// and down as soon as one breaks.
type bundle struct {
	peer   *peer
	id     uint64 // not 0
	dialed bool   // by this node
	full   chan struct{}
	broken chan struct{}

	mu    sync.Mutex // guards the fields below
	conns []*conn    // by slot; the last carries requests
	count int
	err   error
}

func newBundle(p *peer, id uint64, slots int) *bundle {
	return &bundle{
		peer: p, id: id, dialed: true, conns: make([]*conn, slots),
		full: make(chan struct{}), broken: make(chan struct{}),
	}
}

// join adds a connection; nil is one that broke before.
func (b *bundle) join(c *peerConn) {
	if c == nil {
		b.fail(ErrUnreachable)
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	slot := int(c.hello.slot)
	if b.err != nil || b.conns[slot] != nil {
		_ = c.Close()
		return
	}
	b.conns[slot] = newConn(b, c, slot == len(b.conns)-1)
	if b.count++; b.count == len(b.conns) {
		close(b.full)
	}
}

// fail breaks the bundle; the first reason counts.
func (b *bundle) fail(err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.err != nil {
		return
	}
	b.err = err
	close(b.broken)
	for _, c := range b.conns {
		if c != nil {
			_ = c.from.Close()
		}
	}
}

// live sees the bundle through its life; false if it never came up.
func (b *bundle) live() bool {
	patience := time.NewTimer(b.peer.links.mux.config.HandshakeTimeout)
	defer patience.Stop()
	select {
	case <-b.full:
	case <-b.broken:
		return false
	case <-patience.C:
		b.fail(ErrTimeout)
		return false
	case <-b.peer.links.ctx.Done():
		b.fail(ErrClosed)
		return false
	}
	var wg sync.WaitGroup
	handler := b.peer.links.handler
	b.peer.up.Store(b)
	handler.Up(b.peer.node)
	for _, c := range b.conns {
		wg.Go(func() { b.fail(c.read()) })
		wg.Go(func() { b.fail(c.write()) })
	}
	select {
	case <-b.broken:
	case <-b.peer.links.ctx.Done():
		b.fail(ErrClosed)
	}
	wg.Wait()
	b.peer.up.Store(nil)
	for _, c := range b.conns {
		c.shut(b.err)
	}
	handler.Down(b.peer.node, b.err)
	return true
}

// doubt is called when the peer dials though there is a bundle: it may have
// lost its end. If the bundle is silent too, it is over.
func (b *bundle) doubt() {
	select {
	case <-b.full:
	default:
		if !b.dialed {
			go b.fail(ErrBusy) // the peer has given it up
		}
		return
	}
	since := time.Now().Add(-2 * b.peer.links.config.HeartbeatEvery).UnixNano()
	for _, c := range b.conns {
		if c.heard.Load() < since {
			go b.fail(ErrUnreachable) // the caller holds the peer's lock
			return
		}
	}
}

// connOf is the connection of a stream.
func (b *bundle) connOf(s chunk.Incarnation) *conn {
	return b.conns[uint64(s)%uint64(len(b.conns)-1)]
}

// requests is the connection of requests.
func (b *bundle) requests() *conn { return b.conns[len(b.conns)-1] }
