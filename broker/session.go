package broker

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// session is one client's connection: a reader goroutine, which runs serve and
// owns what is not marked otherwise, and a writer goroutine (writer.go). Others
// reach it through out, dying and what mu guards.
type session struct {
	broker *Broker
	limits *Config
	// conn is what is read and written: socket, or tls over it.
	conn   net.Conn
	socket net.Conn
	tls    *tls.Conn // nil on the plain port
	cork   *cork     // under tls
	ticket *ticket
	since  time.Time
	// name tells operators which connection it is: peer -> local.
	name  string
	peer  netip.AddrPort
	local netip.AddrPort

	frames   *frameReader
	state    state
	storing  storing
	frameMax uint32 // agreed by Tune, in force from Open on

	out       outbox
	deliverV2 atomic.Bool // the client understands Deliver 2
	// unconfirmed counts the bytes that are published and not yet settled.
	unconfirmed atomic.Int64
	isOpen      atomic.Bool   // Open has succeeded
	blocked     atomic.Bool   // reading has stopped for a limit or an alarm
	room        chan struct{} // holds a token when a batch was settled meanwhile

	// leaving is closed when the broker closes, by leave; dying when the socket
	// is, by kill.
	leaving   chan struct{}
	leaveOnce sync.Once
	dying     chan struct{}
	once      sync.Once
	// written is closed when the writer goroutine has ended.
	written chan struct{}

	// mu guards what the reader goroutine writes and others look at, or take
	// away when a stream goes: held for look-ups only, never over I/O or a call
	// out. out.mu may be taken inside of it, not the other way round.
	mu               sync.Mutex
	user             string
	vhost            string
	mechanism        string
	properties       map[string]string
	heartbeatSeconds uint32
	publishers       map[uint8]*publisher
	subscriptions    map[uint8]*subscription
	ties             map[chunk.Incarnation]*tie
	// updates are the ConsumerUpdates that wait for an answer, by correlation id.
	updates    map[uint32]*subscription
	nextUpdate uint32
}

// newSession makes a connection's; settings are nil on the plain port.
func newSession(b *Broker, conn net.Conn, settings *tls.Config, t *ticket) *session {
	s := &session{
		broker: b, limits: &b.config, conn: conn, socket: conn, ticket: t, since: time.Now(),
		peer: addrPort(conn.RemoteAddr()), local: addrPort(conn.LocalAddr()),
		room:          make(chan struct{}, 1),
		leaving:       make(chan struct{}),
		dying:         make(chan struct{}),
		written:       make(chan struct{}),
		publishers:    map[uint8]*publisher{},
		subscriptions: map[uint8]*subscription{},
		ties:          map[chunk.Incarnation]*tie{},
		updates:       map[uint32]*subscription{},
	}
	if settings != nil {
		s.secure(settings)
	}
	s.frames = newFrameReader(s.conn, b.config.InitialFrameMax)
	s.name = s.peer.String() + " -> " + s.local.String()
	s.frames.tally = &b.stats.receivedBytes
	s.frames.until = s.since.Add(b.config.HandshakeTimeout)
	s.out.init()
	return s
}

func addrPort(a net.Addr) netip.AddrPort {
	if tcp, ok := a.(*net.TCPAddr); ok {
		port := tcp.AddrPort()
		return netip.AddrPortFrom(port.Addr().Unmap(), port.Port())
	}
	return netip.AddrPort{}
}

// run serves the connection until it ends, and leaves nothing behind.
func (s *session) run() {
	if err := s.shakeHands(); err != nil {
		s.kill()
		s.broker.note(s, err)
		return
	}
	go s.write()
	err := s.serve()
	if errors.Is(err, errLeaving) {
		s.awaitConfirms()
	}
	s.giveUp()
	var kind ending
	switch {
	case errors.As(err, &kind):
		kind.end(s)
	case errors.Is(err, io.EOF), errors.Is(err, errLeaving):
		s.part() // the client may still read
	}
	s.kill()
	<-s.written
	s.frames.release()
	s.broker.note(s, err)
}

// leave lets the connection end in order: nothing more is read, what was
// published is confirmed as far as that comes soon. It may be called from
// anywhere, and more than once.
func (s *session) leave() {
	s.leaveOnce.Do(func() {
		close(s.leaving)
		s.frames.interrupt()
	})
}

// kill closes the socket and ends both goroutines. It may be called from
// anywhere, and more than once.
func (s *session) kill() {
	s.once.Do(func() {
		close(s.dying)
		s.socket.Close()
		s.out.die()
	})
}

// end closes without a word before Open. After it, the client is asked to
// close: what it sends meanwhile is not looked at.
func (v violation) end(s *session) {
	if s.state != open {
		return
	}
	s.broker.stats.count(v.code)
	s.out.answer(&wire.Close{Correlation: 1, Code: v.code, Reason: v.code.String()})
	s.awaitCloseResponse(time.Now().Add(s.limits.CloseTimeout))
	s.part()
}

func (a answered) end(s *session) { s.part() }

// end waits with the answer. The time is spent in reading, so that a client
// that goes away frees its place at once.
func (w withheld) end(s *session) {
	if err := s.frames.discard(w.until); !timedOut(err) {
		return
	}
	s.answer(w.answer)
	s.part()
}

// closeResponse is how a client's Close response begins: size, key, version.
var closeResponse = wire.Append(nil, &wire.Response{To: wire.KeyClose})[:8]

// awaitCloseResponse reads until the client agrees to close, goes away, or the
// time is over. It looks for the response wherever it is, since behind a frame
// that broke the protocol nobody knows where the next begins.
func (s *session) awaitCloseResponse(until time.Time) {
	_ = s.frames.find(closeResponse, until)
}

const (
	// lastWordsTime is how long the last answers may take to be written.
	lastWordsTime = 500 * time.Millisecond
	// partingTime is how long a client may take to close its side after them.
	// Without it, bytes still under way would reset the connection and destroy
	// the answers.
	partingTime = 250 * time.Millisecond
)

// part lets the writer finish, says that nothing follows, and waits a moment
// for the client to have read it.
func (s *session) part() {
	s.out.finish()
	late := time.NewTimer(lastWordsTime)
	defer late.Stop()
	select {
	case <-s.written:
	case <-s.dying:
		return
	case <-late.C:
		return
	}
	if s.cork != nil {
		s.cork.put(false)
	}
	if half, ok := s.conn.(interface{ CloseWrite() error }); ok {
		if half.CloseWrite() == nil {
			s.frames.discard(time.Now().Add(partingTime))
		}
	}
}

// answer queues a command for the client.
func (s *session) answer(command wire.Command) { s.out.answer(command) }

// respond queues the plain answer to a request.
func (s *session) respond(to wire.Key, correlation uint32, code wire.ResponseCode) {
	s.broker.stats.count(code)
	s.out.answer(&wire.Response{To: to, Correlation: correlation, Code: code})
}

// refuse queues the answer that a request gets for an error.
func (s *session) refuse(request wire.Command, err error) {
	code := codeOf(err)
	s.broker.stats.count(code)
	if answer := wire.Refusal(request, code); answer != nil {
		s.out.answer(answer)
	}
}

// leaderPause is between two looks whether a leader that the catalog knows has
// begun to lead: nobody tells.
const leaderPause = 10 * time.Millisecond

// awaitLeader tries something that needs the stream's leader here. While there
// is none, as after a start, it tries again for a moment: clients take "not
// available" badly.
func (s *session) awaitLeader(try func() error) error {
	until := time.Now().Add(s.limits.MetadataWait)
	for {
		err := try()
		waiting := errors.Is(err, errUnavailable) || errors.Is(err, replication.ErrNotLeader)
		if !waiting || time.Now().After(until) {
			return err
		}
		select {
		case <-time.After(leaderPause):
		case <-s.leaving:
			return err
		case <-s.dying:
			return err
		}
	}
}

// request bounds what one command may wait for.
func (s *session) request() (context.Context, context.CancelFunc) {
	return context.WithTimeout(s.broker.context, s.limits.RequestTimeout)
}

func timedOut(err error) bool {
	var netErr net.Error
	return errors.As(err, &netErr) && netErr.Timeout()
}
