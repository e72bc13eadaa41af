package link

import (
	"net"
	"slices"
	"sync"
	"testing"
)

// proxy passes connections on and can stop passing bytes, or record them.
type proxy struct {
	l  net.Listener
	to string

	mu      sync.Mutex // guards the fields below
	cond    *sync.Cond
	stalled bool
	conns   []net.Conn
	said    [][]byte // by the dialer of each connection
	heard   []byte   // by any of them
	flips   bool     // the next of the dialer's bytes is to be another
}

func newProxy(t *testing.T, to string) *proxy {
	p := &proxy{l: listen(t), to: to}
	p.cond = sync.NewCond(&p.mu)
	go p.run()
	t.Cleanup(func() {
		_ = p.l.Close()
		p.resume()
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range p.conns {
			_ = c.Close()
		}
	})
	return p
}

func (p *proxy) addr() string { return p.l.Addr().String() }

func (p *proxy) set(stalled bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stalled = stalled
	p.cond.Broadcast()
}

func (p *proxy) stall()  { p.set(true) }
func (p *proxy) resume() { p.set(false) }

func (p *proxy) run() {
	for {
		in, err := p.l.Accept()
		if err != nil {
			return
		}
		out, err := net.Dial("tcp", p.to)
		if err != nil {
			_ = in.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, in, out)
		p.said = append(p.said, nil)
		n := len(p.said) - 1
		p.mu.Unlock()
		go p.pass(in, out, n)
		go p.pass(out, in, -1)
	}
}

func (p *proxy) pass(from, to net.Conn, n int) {
	defer to.Close()
	buf := make([]byte, 32<<10)
	for {
		m, err := from.Read(buf)
		p.mu.Lock()
		for p.stalled {
			p.cond.Wait()
		}
		if n >= 0 {
			p.said[n] = append(p.said[n], buf[:m]...)
			if p.flips && m > 0 {
				buf[m-1] ^= 1
				p.flips = false
			}
		} else {
			p.heard = append(p.heard, buf[:m]...)
		}
		p.mu.Unlock()
		if _, werr := to.Write(buf[:m]); err != nil || werr != nil {
			return
		}
	}
}

// recorded is what the dialer of the first connection has said so far.
func (p *proxy) recorded() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.said) == 0 {
		return nil
	}
	return append([]byte(nil), p.said[0]...)
}

// flip changes a bit of what a dialer says next.
func (p *proxy) flip() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.flips = true
}

// everything is what was said so far, by all.
func (p *proxy) everything() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Concat(append(p.said, p.heard)...)
}
