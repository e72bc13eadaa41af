package link

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/millrace/millrace/replication/protocol"
)

// MuxConfig is what a node shows and asks of the others.
type MuxConfig struct {
	// Listener is the port between nodes; the mux closes it.
	Listener net.Listener
	// Cluster is the id of the cluster that the node belongs to; "" until Belong
	// tells it, and until then every connection is refused.
	Cluster  string
	Node     protocol.NodeID
	Security Security
	// Address says where a node listens, host:port.
	Address func(protocol.NodeID) (string, error)
	// Resolve returns the addresses of a host; nil asks the system.
	Resolve func(ctx context.Context, host string) ([]string, error)
	// Member says what is wrong with a node that has proven who it is; nil takes
	// all that have. It is asked for each connection.
	Member func(Purpose, protocol.NodeID) error
	// Knocked answers a knock; nil answers nothing. It may block as long as ctx.
	Knocked func(ctx context.Context, from protocol.NodeID, question []byte) []byte
	// Refused hears of each incoming connection that was refused, and must not
	// block. Who logs it limits the rate.
	Refused func(from net.Addr, err error)

	// TLSTimeout and HandshakeTimeout bound the TLS handshake, and that and all
	// else before the first frame. They are absolute: who drips does not extend
	// them. 0: 3 s and 10 s.
	TLSTimeout, HandshakeTimeout time.Duration
	// Handshakes and HandshakesPerAddress bound how many go on at once; the
	// oldest has to go. 0: 256 and 16. Loopback counts for the first alone.
	Handshakes, HandshakesPerAddress int

	near func(net.Conn) bool // a connection may be plain; another one for tests
}

func (c *MuxConfig) setDefaults() {
	def(&c.TLSTimeout, 3*time.Second)
	def(&c.HandshakeTimeout, 10*time.Second)
	def(&c.Handshakes, 256)
	def(&c.HandshakesPerAddress, 16)
	if c.near == nil {
		c.near = near
	}
	if c.Resolve == nil {
		c.Resolve = net.DefaultResolver.LookupHost
	}
	if c.Member == nil {
		c.Member = func(Purpose, protocol.NodeID) error { return nil }
	}
	if c.Knocked == nil {
		c.Knocked = func(context.Context, protocol.NodeID, []byte) []byte { return nil }
	}
	if c.Refused == nil {
		c.Refused = func(net.Addr, error) {}
	}
}

func def[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// Mux is the one port between nodes. It finds out who is there and what for,
// and hands the connection on: to raft's layer, or to the links.
type Mux struct {
	config MuxConfig
	ctx    context.Context
	stop   context.CancelFunc
	wg     sync.WaitGroup
	knocks chan struct{}    // one for each that is being answered
	moment *tls.Certificate // TLS's, where a secret is what proves this node

	mu    sync.Mutex // guards config.Cluster and the fields below
	raft  *Layer     // nil: raft takes no connections
	links *Links
	open  []*greeting // handshakes under way, the oldest first
}

// greeting is an incoming connection whose handshake is not done.
type greeting struct {
	conn net.Conn
	host string // "" for loopback
}

// NewMux begins to listen. Close ends it.
func NewMux(config MuxConfig) (*Mux, error) {
	config.setDefaults()
	if n := len(config.Node); n == 0 || n > nameBytesMax || len(config.Cluster) > nameBytesMax {
		return nil, fmt.Errorf("link: names of node %q and cluster %q must have 1 to %d bytes", config.Node, config.Cluster, nameBytesMax)
	}
	m := &Mux{config: config, knocks: make(chan struct{}, knocksMax)}
	m.ctx, m.stop = context.WithCancel(context.Background())
	if _, err := m.credentials(); err != nil {
		return nil, err
	}
	var err error
	if m.moment, err = newMoment(time.Now()); err != nil {
		return nil, err
	}
	m.wg.Go(m.accept)
	return m, nil
}

// Raft returns a new layer for raft's transport and closes the one before: raft
// is shut down and opened again where a second voter joins.
func (m *Mux) Raft() *Layer {
	l := newLayer(m)
	m.mu.Lock()
	before := m.raft
	m.raft = l
	m.mu.Unlock()
	if before != nil {
		before.shut()
	}
	return l
}

// Belong tells the cluster that the node belongs to from now on.
func (m *Mux) Belong(cluster string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.config.Cluster = cluster
}

// belongs returns the cluster that the node belongs to, "" if none yet.
func (m *Mux) belongs() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.config.Cluster
}

// Close ends the listener, handshakes, and raft's layer. Connections that were
// handed on are their owner's.
func (m *Mux) Close() error {
	m.stop()
	err := m.config.Listener.Close()
	m.mu.Lock()
	for _, g := range m.open {
		_ = g.conn.Close()
	}
	raft := m.raft
	m.mu.Unlock()
	m.wg.Wait()
	if raft != nil {
		raft.shut()
	}
	return err
}

// retryAccept is how long accepting rests after an error that may pass, such as
// too many open files.
const retryAccept = 50 * time.Millisecond

func (m *Mux) accept() {
	for {
		conn, err := m.config.Listener.Accept()
		switch {
		case err == nil:
			g := m.enter(conn) // here, so that the oldest is the first that came
			m.wg.Go(func() { m.greet(g) })
		case m.ctx.Err() != nil || errors.Is(err, net.ErrClosed):
			return
		default:
			select {
			case <-m.ctx.Done():
				return
			case <-time.After(retryAccept):
			}
		}
	}
}

// greet finds out who is there, and hands the connection on.
func (m *Mux) greet(g *greeting) {
	conn := g.conn
	_ = conn.SetDeadline(time.Now().Add(m.config.HandshakeTimeout))
	c, join, err := m.acceptHandshake(conn)
	if !m.leave(g) && err == nil {
		err = ErrTooMany
	}
	if err == nil {
		err = conn.SetDeadline(time.Time{})
	}
	if err != nil {
		_ = conn.Close()
		if join != nil {
			join(nil)
		}
		if m.ctx.Err() == nil {
			m.config.Refused(conn.RemoteAddr(), err)
		}
		return
	}
	switch c.hello.purpose {
	case PurposeRaft:
		m.layer().put(c)
	case PurposeKnock:
		m.answerKnock(c)
	default:
		join(c)
	}
}

// enter counts a handshake; if there are too many, the oldest has to go.
func (m *Mux) enter(conn net.Conn) *greeting {
	g := &greeting{conn: conn, host: hostOf(conn.RemoteAddr())}
	m.mu.Lock()
	defer m.mu.Unlock()
	oldest, same := -1, 0
	for i, o := range m.open {
		if g.host != "" && o.host == g.host {
			if same++; oldest < 0 {
				oldest = i
			}
		}
	}
	switch {
	case same >= m.config.HandshakesPerAddress:
		m.evict(oldest)
	case len(m.open) >= m.config.Handshakes:
		m.evict(0)
	}
	m.open = append(m.open, g)
	if m.ctx.Err() != nil {
		_ = conn.Close()
	}
	return g
}

func (m *Mux) evict(i int) {
	_ = m.open[i].conn.Close()
	m.open = append(m.open[:i], m.open[i+1:]...)
}

// leave ends a handshake; false if it had to go, or the mux is closed.
func (m *Mux) leave(g *greeting) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, o := range m.open {
		if o == g {
			m.open = append(m.open[:i], m.open[i+1:]...)
			return m.ctx.Err() == nil
		}
	}
	return false
}

func hostOf(a net.Addr) string {
	t, ok := a.(*net.TCPAddr)
	if !ok || t.IP.IsLoopback() {
		return ""
	}
	return t.IP.String()
}

func (m *Mux) layer() *Layer {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.raft
}

func (m *Mux) linked() *Links {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.links
}
