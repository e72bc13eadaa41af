package link

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/millrace/millrace/replication/protocol"
)

// Layer is raft's share of the port: a listener that only hands out connections
// of nodes that have proven who they are, and a way to dial.
type Layer struct {
	mux    *Mux
	conns  chan net.Conn
	closed chan struct{}
	once   sync.Once

	mu   sync.Mutex // guards open
	open map[*layerConn]struct{}
}

// layerConn is a connection of raft, which is over with its layer: raft itself
// leaves some open when it is shut down.
type layerConn struct {
	net.Conn
	layer *Layer
}

func (c *layerConn) Close() error {
	c.layer.mu.Lock()
	delete(c.layer.open, c)
	c.layer.mu.Unlock()
	return c.Conn.Close()
}

// hold wraps a connection, or closes it if the layer is over.
func (l *Layer) hold(c net.Conn) (net.Conn, error) {
	held := &layerConn{c, l}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case <-l.closed:
		_ = c.Close()
		return nil, net.ErrClosed
	default:
		l.open[held] = struct{}{}
		return held, nil
	}
}

// layerWaiting bounds the connections that wait for Accept.
const layerWaiting = 64

func newLayer(m *Mux) *Layer {
	return &Layer{mux: m, conns: make(chan net.Conn, layerWaiting), closed: make(chan struct{}), open: make(map[*layerConn]struct{})}
}

// Accept waits for the next connection.
func (l *Layer) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return l.hold(c)
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and all connections that were made or accepted. The port stays open for the links, and
// raft's new connections are refused.
func (l *Layer) Close() error {
	l.shut()
	return nil
}

// Addr is the port's address.
func (l *Layer) Addr() net.Addr { return l.mux.config.Listener.Addr() }

// Dial makes a connection to a node.
func (l *Layer) Dial(node protocol.NodeID, timeout time.Duration) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(l.mux.ctx, timeout)
	defer cancel()
	c, err := l.mux.dial(ctx, hello{purpose: PurposeRaft, slots: 1, to: node}, func() {})
	if err != nil {
		return nil, err
	}
	return l.hold(c)
}

func (l *Layer) put(c net.Conn) {
	if l == nil {
		_ = c.Close()
		return
	}
	select {
	case <-l.closed:
	default:
		select {
		case l.conns <- c:
			return
		case <-l.closed:
		default: // raft does not accept; it dials again
		}
	}
	_ = c.Close()
}

func (l *Layer) shut() {
	l.once.Do(func() { close(l.closed) })
	l.mu.Lock()
	open := l.open
	l.open = make(map[*layerConn]struct{})
	l.mu.Unlock()
	for c := range open {
		_ = c.Conn.Close()
	}
	for {
		select {
		case c := <-l.conns:
			_ = c.Close()
		default:
			return
		}
	}
}
