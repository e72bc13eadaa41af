package link

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	mathrand "math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/replication/protocol"
)

// peer is another node. It has one bundle at most, dialed by either side. Where
// both dial at once, the bundle of the lesser name stands: the greater one's
// node has its own dialing given up, the lesser one's refuses.
type peer struct {
	links *Links
	node  protocol.NodeID
	kick  chan struct{} // something below has changed
	up    atomic.Pointer[bundle]

	mu     sync.Mutex // guards the fields below
	wanted bool
	// bundle is the one that is up or being put together.
	bundle *bundle
	// meeting is set while a connection that this node dialed shakes hands; it
	// gives the dialing up.
	meeting context.CancelFunc
}

func (p *peer) want(yes bool) {
	p.mu.Lock()
	changed := p.wanted != yes
	p.wanted = yes
	p.mu.Unlock()
	if changed {
		p.wake()
	}
}

func (p *peer) wake() {
	select {
	case p.kick <- struct{}{}:
	default:
	}
}

func (p *peer) breakLink(err error) {
	p.mu.Lock()
	b := p.bundle
	p.mu.Unlock()
	if b != nil {
		b.fail(err)
	}
}

// run dials while there is no bundle and one is wanted, and sees each one
// through.
func (p *peer) run() {
	backoff := time.Duration(0)
	for p.links.ctx.Err() == nil {
		p.mu.Lock()
		b, wanted := p.bundle, p.wanted
		p.mu.Unlock()
		switch {
		case b != nil:
			if b.live() {
				backoff = 0
			}
			p.mu.Lock()
			p.bundle = nil
			p.mu.Unlock()
		case !wanted:
			p.rest(-1)
		default:
			if backoff > 0 && p.rest(backoff/2+mathrand.N(backoff/2)) {
				continue // look again: somebody came, or it is not wanted any more
			}
			backoff = min(max(2*backoff, p.links.config.BackoffMin), p.links.config.BackoffMax)
			p.dial()
		}
	}
	p.breakLink(ErrClosed)
	p.mu.Lock()
	b := p.bundle
	p.mu.Unlock()
	if b != nil {
		b.live()
	}
}

// rest waits for that long, or for ever if it is negative; true if it was cut
// short.
func (p *peer) rest(d time.Duration) bool {
	var after <-chan time.Time
	if d >= 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		after = t.C
	}
	select {
	case <-after:
		return false
	case <-p.kick:
	case <-p.links.ctx.Done():
	}
	return true
}

// dial puts a bundle together; what goes wrong is tried again by run.
func (p *peer) dial() {
	ctx, cancel := context.WithCancel(p.links.ctx)
	defer cancel()
	slots := byte(p.links.config.Connections + 1)
	h := hello{purpose: PurposeLink, slots: slots, to: p.node}
	first, err := p.links.mux.dial(ctx, h, func() {
		p.mu.Lock()
		p.meeting = cancel
		p.mu.Unlock()
	})
	p.mu.Lock()
	p.meeting = nil
	if err != nil || p.bundle != nil {
		p.mu.Unlock()
		if err == nil {
			_ = first.Close()
		}
		return
	}
	b := newBundle(p, first.bundle, int(slots))
	p.bundle = b
	p.mu.Unlock()
	b.join(first)
	h.bundle = first.bundle
	for h.slot = 1; h.slot < slots; h.slot++ {
		c, err := p.links.mux.dial(ctx, h, func() {})
		if err != nil {
			b.fail(err)
			return
		}
		b.join(c)
	}
}

// admit decides on a connection that the peer dialed.
func (p *peer) admit(h *hello) (*bundle, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	self := p.links.mux.config.Node
	b := p.bundle
	switch {
	case h.slot > 0:
		if b == nil || b.dialed || b.id != h.bundle || int(h.slots) != len(b.conns) {
			return nil, ErrBusy
		}
		return b, nil
	case h.bundle != 0 || h.slots < 2:
		return nil, ErrHandshake
	case b != nil:
		b.doubt()
		return nil, ErrBusy
	case p.meeting != nil && self < p.node:
		return nil, ErrBusy
	case p.meeting != nil:
		p.meeting()
	}
	var id [8]byte
	_, _ = rand.Read(id[:])
	b = newBundle(p, binary.BigEndian.Uint64(id[:])|1, int(h.slots))
	b.dialed = false
	p.bundle = b
	p.wake()
	return b, nil
}
