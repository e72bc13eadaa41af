package broker

import (
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
)

// lane is the way to one other node's broker. Frames of publishers go in the
// order given, each a request that is answered when its messages are committed;
// a session waits, and reads no more, while too much is unanswered. For stored
// offsets see handed.
type lane struct {
	broker *Broker
	node   string
	room   broadcast // announces answers

	mu         sync.Mutex // guards all below; never held over a request
	frames     int        // unanswered, of all streams
	bytes      int
	shares     map[chunk.Incarnation]int // the same of each stream, in frames
	publishers map[uint64]*remotePublisher
	last       uint64 // publisher's number
	closed     []uint64
	sweeping   bool

	handed // stored offsets
}

// Bounds of what is unanswered on a lane: half of what the link allows, which
// carries the metadata's requests too. One stream gets a quarter of it, so that
// one that has lost its majority does not hold up the others.
const (
	laneFrames      = 512
	laneBytes       = 32 << 20
	laneShareFrames = laneFrames / 4
)

const (
	// publishPatience is how long a frame may wait for its majority. Then nobody
	// knows what became of it.
	publishPatience = time.Minute
	// lanePause is between two tries where the link itself is full.
	lanePause = 5 * time.Millisecond
	// lostPatience is how long a client whose publishers have lost their node
	// waits for the news: a new leader, most likely, who is told of at once.
	lostPatience = 3 * time.Second
)

func newLane(b *Broker, node string) *lane {
	return &lane{
		broker: b, node: node, shares: map[chunk.Incarnation]int{},
		publishers: map[uint64]*remotePublisher{}, handed: newHanded(),
	}
}

// reserve takes room for a frame.
func (l *lane) reserve(stream chunk.Incarnation, bytes int) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.frames >= laneFrames || l.frames > 0 && l.bytes+bytes > laneBytes || l.shares[stream] >= laneShareFrames {
		return false
	}
	l.frames++
	l.bytes += bytes
	l.shares[stream]++
	return true
}

func (l *lane) release(stream chunk.Incarnation, bytes int) {
	l.mu.Lock()
	l.frames--
	l.bytes -= bytes
	if l.shares[stream]--; l.shares[stream] == 0 {
		delete(l.shares, stream)
	}
	l.mu.Unlock()
	l.room.announce()
}

// publish sends a frame, and waits for room as long as the session lives. Errors:
// errLeaving and errEnded, with which done is not called.
func (l *lane) publish(s *session, stream chunk.Incarnation, body []byte, done func(Status, error)) error {
	for {
		news := l.room.next()
		if l.reserve(stream, len(body)) {
			err := l.ask(methodPublish, body, publishPatience, func(status Status, _ []byte, err error) {
				l.release(stream, len(body))
				done(status, err)
			})
			if err == nil {
				return nil
			}
			l.release(stream, len(body))
			if !errors.Is(err, ErrPeerBusy) {
				done(0, err)
				return nil
			}
			news = nil
		}
		if err := s.pause(news, lanePause); err != nil {
			return err
		}
	}
}

// pause waits for news, at most for a while where there will be none.
func (s *session) pause(news <-chan struct{}, atMost time.Duration) error {
	s.blocked.Store(true)
	s.broker.stats.blocked.Add(1)
	defer func() {
		s.blocked.Store(false)
		s.broker.stats.blocked.Add(-1)
	}()
	var late <-chan time.Time
	if news == nil {
		late = time.After(atMost)
	}
	select {
	case <-news:
	case <-late:
	case <-s.leaving:
		return errLeaving
	case <-s.dying:
		return errEnded
	}
	return nil
}

func (l *lane) ask(method Method, body []byte, patience time.Duration, done func(Status, []byte, error)) error {
	return l.broker.peers.Ask(l.node, method, body, time.Now().Add(patience), done)
}

// call asks and waits for the answer, within what a command may take.
func (l *lane) call(s *session, method Method, body []byte) ([]byte, error) {
	type result struct {
		status Status
		body   []byte
		err    error
	}
	answer := make(chan result, 1)
	patience := l.broker.config.RequestTimeout
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		err := l.ask(method, body, patience, func(status Status, body []byte, err error) {
			answer <- result{status, body, err}
		})
		if err == nil {
			break
		}
		if !errors.Is(err, ErrPeerBusy) {
			return nil, err
		}
		if err := s.pause(nil, lanePause); err != nil {
			return nil, err
		}
		select {
		case <-late.C:
			return nil, err
		default:
		}
	}
	select {
	case got := <-answer:
		if got.err == nil {
			got.err = errorOf(got.status)
		}
		return got.body, got.err
	case <-late.C:
		return nil, errPeerLate
	case <-s.dying:
		return nil, errEnded
	}
}

var errPeerLate = errors.New("the leader's node did not answer in time")

// add gives a publisher its number.
func (l *lane) add(p *remotePublisher) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.last++
	p.number = l.last
	l.publishers[p.number] = p
}

// close ends a publisher on the node; it may be called again.
func (l *lane) close(p *remotePublisher) {
	l.mu.Lock()
	if l.publishers[p.number] != p {
		l.mu.Unlock()
		return
	}
	delete(l.publishers, p.number)
	l.closed = append(l.closed, p.number)
	l.mu.Unlock()
	l.sendClosed()
}

// sendClosed tells which publishers have ended. What can't be told now is told
// later; a node that is gone has forgotten them all.
func (l *lane) sendClosed() {
	l.mu.Lock()
	closed := l.closed
	l.closed = nil
	l.mu.Unlock()
	if len(closed) == 0 {
		return
	}
	err := l.ask(methodClose, appendClosed(nil, closed), publishPatience, func(Status, []byte, error) {})
	if errors.Is(err, ErrPeerBusy) {
		l.mu.Lock()
		first := len(l.closed) == 0
		l.closed = append(l.closed, closed...)
		l.mu.Unlock()
		if first {
			time.AfterFunc(lanePause, l.sendClosed)
		}
	}
}

// broke hears that the node is gone, and with it all publishers there.
func (l *lane) broke() {
	l.mu.Lock()
	l.closed = nil
	for _, p := range l.publishers {
		p.broken.Store(true)
	}
	l.mu.Unlock()
	l.sweepLater()
	l.room.announce()
}

// sweepLater has clients told that their publishers are lost, unless a new
// leader is told of first: MetadataUpdate sends them looking for one.
func (l *lane) sweepLater() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.sweeping || len(l.publishers) == 0 {
		return
	}
	l.sweeping = true
	time.AfterFunc(lostPatience, l.sweep)
}

func (l *lane) sweep() {
	lost := map[*session]map[chunk.Incarnation]bool{}
	l.mu.Lock()
	l.sweeping = false
	for _, p := range l.publishers {
		if p.broken.Load() {
			if lost[p.session] == nil {
				lost[p.session] = map[chunk.Incarnation]bool{}
			}
			lost[p.session][p.stream] = true
		}
	}
	l.mu.Unlock()
	for s, streams := range lost {
		for stream := range streams {
			s.dropTie(stream, loss{
				publisher: func(p *publisher) bool {
					remote, ok := p.handle.(*remotePublisher)
					return ok && remote.broken.Load()
				},
				subscription: func(*subscription) bool { return false },
			})
		}
	}
}
