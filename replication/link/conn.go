package link

import (
	"bufio"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
)

// conn is one connection of a bundle: one reader, one writer, and what waits
// between the writer and those who send.
type conn struct {
	b       *bundle
	from    *peerConn // to be closed
	net     net.Conn  // its own
	cork    *cork     // under TLS
	plain   bool      // the kernel takes many runs at once
	serves  bool      // carries requests, not streams
	in      input
	reader  *bufio.Reader
	heard   atomic.Int64 // when bytes came last, in Unix nanoseconds
	written atomic.Bool  // something was since the last tick
	wake    chan struct{}

	mu      sync.Mutex // guards the fields below
	closed  bool
	control []byte // frames of the link, ahead of all others
	queue   queue
	flow    flow
	asks    asks
}

const readerBytes = 64 << 10

func newConn(b *bundle, c *peerConn, serves bool) *conn {
	config := &b.peer.links.config
	n := &conn{b: b, from: c, net: c.Conn, cork: c.cork, plain: c.cork == nil, serves: serves, wake: make(chan struct{}, 1)}
	n.in = input{conn: n, timeout: config.HeartbeatTimeout}
	n.reader = bufio.NewReaderSize(&n.in, readerBytes)
	n.heard.Store(time.Now().UnixNano())
	n.queue.init(config)
	n.flow.init(config.WindowBytes)
	n.asks.init()
	return n
}

// poke has the writer look.
func (c *conn) poke() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// send queues a frame. One too many, or too large, has the stream dropped and
// told.
func (c *conn) send(f *Frame) {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return
	}
	fits := c.queue.push(f)
	c.mu.Unlock()
	if !fits {
		c.b.peer.links.handler.StreamDown(c.b.peer.node, f.Stream)
	}
	c.poke()
}

// taken gives credit back to the peer; enough of it at once, or at the next
// tick, goes out.
func (c *conn) taken(s chunk.Incarnation, n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if give := c.flow.taken(s, n); give > 0 && !c.closed {
		c.control = appendControl(c.control, &control{kind: kindCredit, stream: s, bytes: uint32(give)})
		c.poke()
	}
}

// shut drops all that waits.
func (c *conn) shut(err error) {
	c.mu.Lock()
	c.closed = true
	c.queue.drop()
	c.mu.Unlock()
	c.failAsks(err)
}

// input reads from the connection, and breaks it off in silence: without bytes
// for the time-out, or with a frame that takes longer than its length excuses.
type input struct {
	conn    *conn
	timeout time.Duration
	until   time.Time // for the frame being read; zero between frames
}

// slowestBytes is what a peer must send of a frame each second.
const slowestBytes = 1 << 20

func (i *input) Read(p []byte) (int, error) {
	now := time.Now()
	until := i.until
	if until.IsZero() {
		until = now.Add(i.timeout)
	}
	if err := i.conn.net.SetReadDeadline(until); err != nil {
		return 0, err
	}
	n, err := i.conn.net.Read(p)
	if n > 0 {
		i.conn.heard.Store(now.UnixNano())
	}
	return n, err
}

// allow bounds the time for so many bytes more.
func (i *input) allow(bytes int) {
	i.until = time.Now().Add(i.timeout + time.Duration(bytes)*time.Second/slowestBytes)
}
