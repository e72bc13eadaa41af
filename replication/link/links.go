package link

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Handler is who the links work for. None of its methods may block: each is
// called by a reader, a writer, or whoever calls Send.
type Handler interface {
	// Up: frames to and from the node pass from now on.
	Up(peer protocol.NodeID)
	// Down: the link broke, and why. Frames that were not delivered will never
	// be.
	Down(peer protocol.NodeID, why error)
	// StreamDown: frames of one stream to the node were dropped, as it takes
	// them too slowly; more are dropped until StreamUp.
	StreamDown(peer protocol.NodeID, stream chunk.Incarnation)
	StreamUp(peer protocol.NodeID, stream chunk.Incarnation)
	// Admit says what is wrong with a frame before its chunk is read; such a
	// frame is skipped. Judge does it from what the metadata knows.
	Admit(peer protocol.NodeID, f *Frame) error
	// Buffer gives memory for a chunk, of exactly these lengths, with one count.
	Buffer(headBytes, dataBytes int) (head, data []byte, held Held)
	// Deliver brings a frame, valid during the call but for what Frame says is
	// the receiver's.
	Deliver(peer protocol.NodeID, f *Frame)
	// Serve brings a request. Those of one node come in the order asked.
	Serve(peer protocol.NodeID, r *Request)
}

// Config is about bundles; zero values mean the defaults.
type Config struct {
	// Connections carry streams; one more carries requests. 0: 2.
	Connections int
	// HeartbeatEvery is how often a connection without frames says that it is
	// there; 0: 250 ms. Silence for HeartbeatTimeout breaks the link; 0: five
	// times as long.
	HeartbeatEvery, HeartbeatTimeout time.Duration
	// WindowBytes is what a stream may have under way to one node and not taken
	// by it; 0: 8 MiB. It is the same on all nodes.
	WindowBytes int
	// StreamQueueBytes and StreamQueueFrames bound what one stream may have
	// queued for a node, QueueBytes what all streams of a connection have. A
	// stream beyond is dropped and told. 0: 16 MiB, 16,384 and 64 MiB.
	StreamQueueBytes, StreamQueueFrames, QueueBytes int
	// Requests and RequestBytes bound the unanswered requests to one node. They
	// are the same on all nodes. 0: 1024 and 64 MiB.
	Requests, RequestBytes int
	// BackoffMin and BackoffMax bound the rest between two tries to connect; 0:
	// 50 ms and 2 s.
	BackoffMin, BackoffMax time.Duration
}

func (c *Config) setDefaults() {
	def(&c.Connections, 2)
	c.Connections = min(c.Connections, slotsMax-1)
	def(&c.HeartbeatEvery, 250*time.Millisecond)
	def(&c.HeartbeatTimeout, 5*c.HeartbeatEvery)
	def(&c.WindowBytes, 8<<20)
	def(&c.StreamQueueBytes, 16<<20)
	def(&c.StreamQueueFrames, 16384)
	def(&c.QueueBytes, 64<<20)
	def(&c.Requests, 1024)
	def(&c.RequestBytes, 64<<20)
	def(&c.BackoffMin, 50*time.Millisecond)
	def(&c.BackoffMax, 2*time.Second)
}

// slotsMax bounds the connections of a bundle.
const slotsMax = 16

// Links are this node's links to all others.
type Links struct {
	mux     *Mux
	config  Config
	handler Handler
	ctx     context.Context
	stop    context.CancelFunc
	wg      sync.WaitGroup
	sent    atomic.Int64 // bytes
	refused atomic.Int64 // frames that Admit did not let in

	mu     sync.RWMutex // guards the fields below
	peers  map[protocol.NodeID]*peer
	closed bool
}

// New makes the links of a mux; other nodes can connect from now on.
func New(mux *Mux, config Config, handler Handler) *Links {
	config.setDefaults()
	l := &Links{mux: mux, config: config, handler: handler, peers: map[protocol.NodeID]*peer{}}
	l.ctx, l.stop = context.WithCancel(context.Background())
	mux.mu.Lock()
	mux.links = l
	mux.mu.Unlock()
	return l
}

// Close breaks all links and returns when the handler will not be called again.
func (l *Links) Close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.stop()
	l.wg.Wait()
}

// Connect has a node connected, and connected again whenever that breaks.
func (l *Links) Connect(to protocol.NodeID) {
	if p := l.peer(to); p != nil {
		p.want(true)
	}
}

// Forget breaks the link to a node that is no member any more.
func (l *Links) Forget(node protocol.NodeID) {
	if p := l.find(node); p != nil {
		p.want(false)
		p.breakLink(ErrStranger)
	}
}

// Send takes a frame, without blocking, and a count of its chunk for as long as
// it needs it. Without a link it does nothing: Down has been called, or Up has
// not.
func (l *Links) Send(to protocol.NodeID, f *Frame) {
	p := l.find(to)
	if p == nil {
		return
	}
	if b := p.up.Load(); b != nil {
		b.connOf(f.Stream).send(f)
	}
}

// Connected tells whether frames to a node pass now.
func (l *Links) Connected(node protocol.NodeID) bool {
	p := l.find(node)
	return p != nil && p.up.Load() != nil
}

// Stats counts since the start, but for what is now.
type Stats struct {
	SentBytes     int64
	RefusedFrames int64 // that Admit did not let in
	// Connected is the number of nodes that frames pass to, WaitingBytes what is
	// queued for all.
	Connected    int
	WaitingBytes int64
}

// Stats tells how the links are.
func (l *Links) Stats() Stats {
	s := Stats{SentBytes: l.sent.Load(), RefusedFrames: l.refused.Load()}
	l.mu.RLock()
	defer l.mu.RUnlock()
	for _, p := range l.peers {
		b := p.up.Load()
		if b == nil {
			continue
		}
		s.Connected++
		for _, c := range b.conns {
			c.mu.Lock()
			s.WaitingBytes += int64(c.queue.bytes)
			c.mu.Unlock()
		}
	}
	return s
}

func (l *Links) find(node protocol.NodeID) *peer {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.peers[node]
}

// peer finds or makes one; nil once closed, and for this node itself.
func (l *Links) peer(node protocol.NodeID) *peer {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || node == l.mux.config.Node {
		return nil
	}
	p := l.peers[node]
	if p == nil {
		p = &peer{links: l, node: node, kick: make(chan struct{}, 1)}
		l.peers[node] = p
		l.wg.Go(p.run)
	}
	return p
}

// admit takes a connection of a node that has proven who it is, or says why
// not; join brings it once the welcome is sent.
func (l *Links) admit(h *hello) (bundle uint64, join func(*peerConn), err error) {
	if l == nil {
		return 0, nil, ErrClosed
	}
	p := l.peer(h.from)
	if p == nil {
		return 0, nil, ErrClosed
	}
	b, err := p.admit(h)
	if err != nil {
		return 0, nil, err
	}
	return b.id, b.join, nil
}
