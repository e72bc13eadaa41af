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
}

// layerWaiting bounds the connections that wait for Accept.
const layerWaiting = 64

func newLayer(m *Mux) *Layer {
	return &Layer{mux: m, conns: make(chan net.Conn, layerWaiting), closed: make(chan struct{})}
}

// Accept waits for the next connection.
func (l *Layer) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close ends Accept and drops what waits. The port stays open for the links, and
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
	return c, nil
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
	for {
		select {
		case c := <-l.conns:
			_ = c.Close()
		default:
			return
		}
	}
}
