package broker

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/wire"
)

// Broker serves the stream port of one node.
type Broker struct {
	config     Config
	directory  Directory
	replicas   Replicas
	peers      Peers // nil: this node is alone
	lanes      lanes
	guests     guests
	admission  *admission
	logins     *loginGuard
	properties wire.Properties
	stats      counters
	ties       tieIndex
	groups     groupIndex
	changes    changeQueue
	complaints complaints

	// unconfirmed counts the bytes that all connections have published and
	// that are not settled; room announces that it fell below its limit or that
	// an alarm ended.
	unconfirmed atomic.Int64
	room        broadcast
	alarms      alarms
	// aloof is kept by standsAloof; looked is when tendGroups looked last, in
	// nanoseconds since began.
	aloof  atomic.Bool
	looked atomic.Int64
	began  time.Time
	// news announces that the catalog changed.
	news broadcast

	context context.Context // ends when the broker closes
	cancel  context.CancelFunc
	working sync.WaitGroup // sessions, and the follower of changes

	mu        sync.Mutex // guards the fields below
	listeners map[net.Listener]struct{}
	sessions  map[*session]struct{}
	port      int // of the first listener
	portTLS   int // of the first under TLS
	closed    bool
}

// ErrClosed is what Serve returns after Close.
var ErrClosed = errors.New("broker: closed")

// New makes a broker that serves nobody yet. Peers may be nil: then streams that
// other nodes lead are not available to publishers. The error lists every problem
// of the configuration.
func New(config Config, directory Directory, replicas Replicas, peers Peers) (*Broker, error) {
	if err := config.Validate(); err != nil {
		return nil, err
	}
	config = config.withDefaults()
	b := &Broker{
		config: config, directory: directory, replicas: replicas, peers: peers,
		admission:  newAdmission(config),
		logins:     newLoginGuard(config),
		properties: serverProperties(config),
		began:      time.Now(),
		listeners:  map[net.Listener]struct{}{},
		sessions:   map[*session]struct{}{},
	}
	b.context, b.cancel = context.WithCancel(context.Background())
	b.ties.init()
	b.groups.init()
	b.changes.init()
	unsubscribe := directory.Subscribe(b.changes.put)
	b.working.Go(func() {
		defer unsubscribe()
		b.follow()
	})
	b.working.Go(b.tendGroups)
	return b, nil
}

// Serve accepts connections until the listener fails or the broker is closed;
// then it returns ErrClosed.
func (b *Broker) Serve(listener net.Listener) error { return b.serve(listener, nil) }

// ServeTLS is Serve for connections that begin with TLS. Records leave many at a
// time, so that DynamicRecordSizingDisabled does well in the settings.
func (b *Broker) ServeTLS(listener net.Listener, settings *tls.Config) error {
	return b.serve(listener, settings)
}

func (b *Broker) serve(listener net.Listener, settings *tls.Config) error {
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		listener.Close()
		return ErrClosed
	}
	b.listeners[listener] = struct{}{}
	port := &b.port
	if settings != nil {
		port = &b.portTLS
	}
	if tcp, ok := listener.Addr().(*net.TCPAddr); ok && *port == 0 {
		*port = tcp.Port
	}
	b.mu.Unlock()
	for {
		conn, err := listener.Accept()
		switch {
		case err == nil:
			b.accept(conn, settings)
		case b.context.Err() != nil:
			return ErrClosed
		case temporary(err):
			// Out of descriptors, or a connection that went before it was taken:
			// waiting lets others end.
			select {
			case <-time.After(acceptPause):
			case <-b.context.Done():
			}
		default:
			return err
		}
	}
}

const acceptPause = 20 * time.Millisecond

func temporary(err error) bool {
	var netErr interface{ Temporary() bool }
	return errors.As(err, &netErr) && netErr.Temporary()
}

// accept lets a connection in, or closes it.
func (b *Broker) accept(conn net.Conn, settings *tls.Config) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetNoDelay(true)
	}
	var s *session
	ready := make(chan struct{})
	t, err := b.admission.admit(addrPort(conn.RemoteAddr()).Addr(), time.Now(), func() {
		<-ready
		s.kill()
	})
	if err != nil {
		conn.Close()
		b.stats.refused.Add(1)
		b.complain(addrPort(conn.RemoteAddr()), err)
		return
	}
	s = newSession(b, conn, settings, t)
	close(ready)
	b.stats.accepted.Add(1)
	b.mu.Lock()
	if b.closed {
		b.mu.Unlock()
		b.admission.ended(t)
		conn.Close()
		return
	}
	b.sessions[s] = struct{}{}
	b.working.Add(1)
	b.mu.Unlock()
	go func() {
		defer b.working.Done()
		s.run()
		b.admission.ended(t)
		b.mu.Lock()
		delete(b.sessions, s)
		b.mu.Unlock()
	}()
}

// opened hears that a session got through Open.
func (b *Broker) opened(s *session) {
	s.isOpen.Store(true)
	b.admission.opened(s.ticket)
	b.stats.opened.Add(1)
	b.config.Log.Debug("connection opened", "connection", s.name, "user", s.user, "vhost", s.vhost)
}

// Close stops serving: listeners are closed, and connections as soon as what
// they published is confirmed, or after a moment. It returns when every session
// has ended, and cuts them off when ctx ends.
func (b *Broker) Close(ctx context.Context) error {
	b.cancel()
	b.mu.Lock()
	b.closed = true
	for listener := range b.listeners {
		listener.Close()
	}
	sessions := make([]*session, 0, len(b.sessions))
	for s := range b.sessions {
		sessions = append(sessions, s)
	}
	b.mu.Unlock()
	b.changes.close()
	for _, s := range sessions {
		s.leave()
	}
	done := make(chan struct{})
	go func() {
		b.working.Wait()
		b.awaitLeft(ctx.Done())
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		for _, s := range sessions {
			s.kill()
		}
		<-done
		return ctx.Err()
	}
}

// SetAlarm holds publishers up, or lets them go on, for a reason such as
// "disk". Consumers are served all the time.
func (b *Broker) SetAlarm(reason string, on bool) {
	b.alarms.set(reason, on)
	if !on {
		b.room.announce()
		b.takeGuests()
	}
}

// Authenticate proves a user by password, behind the same guard and limits as
// the stream port's own logins.
func (b *Broker) Authenticate(user, password string, remote netip.Addr) error {
	return b.login(remote, credentials{user: user, password: []byte(password)})
}

// advertised is where clients find this node, the same in Open and Metadata: by
// TLS where they came by it.
func (b *Broker) advertised(secure bool) (host string, port int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if secure {
		return cmp.Or(b.config.AdvertisedTLSHost, b.config.AdvertisedHost), cmp.Or(b.config.AdvertisedTLSPort, b.portTLS)
	}
	return b.config.AdvertisedHost, cmp.Or(b.config.AdvertisedPort, b.port)
}

// endpoint is where clients find a member, false if they can't.
func (b *Broker) endpoint(member *catalog.Node, secure bool) (host string, port int, ok bool) {
	if string(member.ID) == b.config.NodeName {
		host, port = b.advertised(secure)
		return host, port, true
	}
	address := member.Endpoints.Stream
	if secure {
		address = member.Endpoints.StreamTLS
	}
	host, text, err := net.SplitHostPort(address)
	if err != nil {
		return "", 0, false
	}
	port, err = strconv.Atoi(text)
	return host, port, err == nil
}

// local finds a stream's replica on this node.
func (b *Broker) local(vhost, name string) (Replica, error) {
	stream, ok := b.directory.View().Stream(vhost, name)
	if !ok {
		return nil, errStreamMissing
	}
	replica, ok := b.replicas.Replica(stream.Incarnation)
	switch {
	case ok:
		return replica, nil
	case replicaOn(stream, b.config.NodeName):
		return nil, errUnavailable // it is being opened
	}
	return nil, errNoReplica
}

// awaitLeaders waits until each of the streams that exist has a leader, or can't
// get one now, at most until a moment.
func (b *Broker) awaitLeaders(vhost string, names []string, until time.Time, leaving, dying <-chan struct{}) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for {
		news := b.news.next()
		if b.settled(vhost, names) {
			return
		}
		select {
		case <-news:
		case <-timer.C:
			return
		case <-leaving:
			return
		case <-dying:
			return
		}
	}
}

func (b *Broker) settled(vhost string, names []string) bool {
	view := b.directory.View()
	for _, name := range names {
		if stream, ok := view.Stream(vhost, name); ok && b.leaderComes(stream) {
			return false
		}
	}
	return true
}

// leaderComes says whether a stream is about to get a leader: it has none, or one
// whose node is gone while a majority of its replicas could elect another.
func (b *Broker) leaderComes(stream *catalog.Stream) bool {
	if !stream.Led() {
		return true
	}
	if b.directory.Up(string(stream.Leader.Node)) {
		return false
	}
	up, of := 0, 0
	for _, replica := range stream.Replicas {
		if !replica.Voter {
			continue
		}
		of++
		if b.directory.Up(string(replica.Node)) {
			up++
		}
	}
	return 2*up > of
}
