package integration

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// storeReference is the consumer whose offset the load stores.
const storeReference = "reader"

// load is what runs while a node is killed: named and unnamed publishers, and
// a consumer that stores its offset. It goes on over many starts and stops.
type load struct {
	k        *killTest
	named    []*namedPublisher
	unnamed  []*unnamedPublisher
	stores   *stores
	progress chan struct{} // one place: something was confirmed
	failed   chan error    // what must not happen while the node lives

	cancel context.CancelFunc
	work   sync.WaitGroup
	// foundBefore is how many records the last reading of the stream found.
	foundBefore uint64
}

func newLoad(k *killTest) *load {
	l := &load{k: k, stores: &stores{}, progress: make(chan struct{}, 1), failed: make(chan error, 8)}
	for i := range uint32(2) {
		l.named = append(l.named, &namedPublisher{load: l, producer: i + 1, unconfirmed: map[uint64][]byte{}})
		l.unnamed = append(l.unnamed, &unnamedPublisher{load: l, producer: i + 101})
	}
	return l
}

// start connects everybody and lets them run.
func (l *load) start() {
	ctx, cancel := context.WithCancel(l.k.t.Context())
	l.cancel = cancel
	for _, p := range l.named {
		l.work.Go(func() { l.check(ctx, "named publisher", p.run(ctx)) })
	}
	for _, p := range l.unnamed {
		l.work.Go(func() { l.check(ctx, "unnamed publisher", p.run(ctx)) })
	}
	l.work.Go(func() { l.check(ctx, "consumer", l.stores.run(ctx, l.k)) })
}

// check tells an end that the load did not ask for. A killed node ends every
// connection; whoever killed it does not listen any more then.
func (l *load) check(ctx context.Context, who string, err error) {
	if err == nil || ctx.Err() != nil {
		return
	}
	select {
	case l.failed <- fmt.Errorf("%s: %w", who, err):
	default:
	}
}

// stop ends everybody and waits for it.
func (l *load) stop() {
	l.cancel()
	l.work.Wait()
	for len(l.failed) > 0 { // of connections that the kill broke
		err := <-l.failed
		if errors.Is(err, errSequence) {
			l.k.t.Error(err)
		}
	}
}

// settled reports whether named publishers have nothing unconfirmed and have
// sent something new.
func (l *load) settled() bool {
	for _, p := range l.named {
		if !p.settled() {
			return false
		}
	}
	return true
}

func (l *load) nudge() {
	select {
	case l.progress <- struct{}{}:
	default:
	}
}

// The pace of a publisher: a burst at each tick.
const (
	paceTick  = time.Millisecond
	paceBurst = 20
	bodyBytes = 100
)

// errSequence: the node forgot a publishing id that it had confirmed.
var errSequence = errors.New("the publisher's sequence fell back")

// namedPublisher sends under a reference: publishing id n is message n. After a
// reconnect it sends everything again that was not confirmed, and the node
// must store each message once.
type namedPublisher struct {
	load     *load
	producer uint32

	mu          sync.Mutex        // guards what follows; confirms come on another goroutine
	next        uint64            // the last id that was sent
	unconfirmed map[uint64][]byte // bodies by id
	highest     uint64            // the highest id that was confirmed
}

func (p *namedPublisher) run(ctx context.Context) error {
	conn, err := client.Dial(ctx, p.load.k.config())
	if err != nil {
		return err
	}
	defer conn.Abort()
	pub, err := conn.DeclarePublisher(ctx, client.PublisherConfig{
		Stream: p.load.k.stream, Reference: fmt.Sprintf("publisher-%d", p.producer), FrameMessages: paceBurst,
		Confirmed: p.confirmed,
	})
	if err != nil {
		return err
	}
	if err := p.resend(pub); err != nil {
		return err
	}
	return paced(ctx, conn, func() error {
		for range paceBurst {
			if err := p.sendNew(pub); err != nil {
				return err
			}
		}
		return pub.Flush()
	})
}

// resend sends what the last connection left unconfirmed, in order. What the
// node stored, it must know: it has confirmed up to highest.
func (p *namedPublisher) resend(pub *client.Publisher) error {
	p.mu.Lock()
	known := pub.Last()
	if known < p.highest {
		defer p.mu.Unlock()
		return fmt.Errorf("%w: producer %d: the node knows %d, and confirmed %d", errSequence, p.producer, known, p.highest)
	}
	var again [][]byte
	first := p.highest + 1
	for id := first; id <= p.next; id++ {
		again = append(again, p.unconfirmed[id])
	}
	p.mu.Unlock()
	for i, body := range again {
		if body == nil {
			continue // confirmed out of turn
		}
		if err := pub.Send(first+uint64(i), body); err != nil {
			return err
		}
	}
	return pub.Flush()
}

func (p *namedPublisher) sendNew(pub *client.Publisher) error {
	p.mu.Lock()
	p.next++
	id := p.next
	body := harness.AppendMessage(nil, p.producer, id, bodyBytes)
	p.unconfirmed[id] = body
	p.mu.Unlock()
	p.load.k.ledger.Sent(p.producer, id)
	return pub.Send(id, body)
}

func (p *namedPublisher) confirmed(ids []uint64) {
	p.mu.Lock()
	for _, id := range ids {
		delete(p.unconfirmed, id)
		p.highest = max(p.highest, id)
	}
	p.mu.Unlock()
	for _, id := range ids {
		p.load.k.ledger.Confirmed(p.producer, id)
	}
	p.load.nudge()
}

// settled: all that the last round left is confirmed. What is in flight right
// now does not count.
func (p *namedPublisher) settled() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id := range p.unconfirmed {
		if id < p.highest {
			return false
		}
	}
	return p.highest > 0
}

// unnamedPublisher sends each message once, whatever becomes of it.
type unnamedPublisher struct {
	load     *load
	producer uint32
	next     uint64
}

func (p *unnamedPublisher) run(ctx context.Context) error {
	conn, err := client.Dial(ctx, p.load.k.config())
	if err != nil {
		return err
	}
	defer conn.Abort()
	pub, err := conn.DeclarePublisher(ctx, client.PublisherConfig{
		Stream: p.load.k.stream, FrameMessages: paceBurst,
		Confirmed: func(ids []uint64) {
			for _, id := range ids {
				p.load.k.ledger.Confirmed(p.producer, id)
			}
		},
	})
	if err != nil {
		return err
	}
	var body []byte
	return paced(ctx, conn, func() error {
		for range paceBurst {
			p.next++
			p.load.k.ledger.Sent(p.producer, p.next)
			body = harness.AppendMessage(body[:0], p.producer, p.next, bodyBytes)
			if err := pub.Send(p.next, body); err != nil {
				return err
			}
		}
		return pub.Flush()
	})
}

// paced calls burst at each tick until ctx or the connection ends.
func paced(ctx context.Context, conn *client.Conn, burst func() error) error {
	tick := time.NewTicker(paceTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := burst(); err != nil {
				return err
			}
		case <-conn.Done():
			return conn.Err()
		case <-ctx.Done():
			return nil
		}
	}
}

// stores is a consumer that stores a growing offset, and what is known about
// it.
type stores struct {
	sent atomic.Uint64 // the last value that was sent

	mu    sync.Mutex // guards taken
	taken []taken    // in the order of time and value
}

// taken is a value that the node has answered to a query, and when.
type taken struct {
	at    time.Time
	value uint64
}

// queryEach is how many stores go between two queries. A query on the same
// connection proves that the stores before it were taken.
const queryEach = 5

func (s *stores) run(ctx context.Context, k *killTest) error {
	conn, err := client.Dial(ctx, k.config())
	if err != nil {
		return err
	}
	defer conn.Abort()
	return paced(ctx, conn, func() error {
		value := s.sent.Add(1)
		if err := conn.StoreOffset(storeReference, k.stream, value); err != nil {
			return err
		}
		if value%queryEach != 0 {
			return nil
		}
		got, err := conn.QueryOffset(ctx, storeReference, k.stream)
		if err != nil && client.Code(err) != wire.CodeNoOffset {
			return err
		}
		if got < value {
			return fmt.Errorf("%d was stored and %d is answered", value, got)
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.taken = append(s.taken, taken{time.Now(), value})
		return nil
	})
}

// newest is the last value that was sent.
func (s *stores) newest() uint64 { return s.sent.Load() }

// takenBy is the newest value that the node had taken at the moment.
func (s *stores) takenBy(moment time.Time) (value uint64, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.taken {
		if t.at.After(moment) {
			break
		}
		value, ok = t.value, true
	}
	return value, ok
}

// overtaken is when the first value above the given one was taken: since then
// the given one was old.
func (s *stores) overtaken(value uint64) (time.Time, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, t := range s.taken {
		if t.value > value {
			return t.at, true
		}
	}
	return time.Time{}, false
}
