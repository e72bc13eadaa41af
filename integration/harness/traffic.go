package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/wire"
)

// Traffic is clients of one stream that go on whatever happens to the nodes:
// named publishers, which send again what was not confirmed, and a consumer that
// stores its offset. What must not happen is collected in Problems.
//
// Each publisher connects to the stream's leader by way of any node, and looks
// for it anew when its connection ends, a message is refused, or nothing is
// confirmed for a while.
type Traffic struct {
	stream string
	addrs  []string
	ledger *Ledger
	// anywhere: clients stay with whichever node they reach first, leader or not.
	anywhere bool
	cancel   context.CancelFunc
	work     sync.WaitGroup
	// stopping: publishers send nothing new, and end when all is confirmed.
	stopping chan struct{}

	publishers []*persistent
	stores     storer

	mu       sync.Mutex // guards all below
	problems []error
}

// The pace of a publisher.
const (
	trafficTick  = 2 * time.Millisecond
	trafficBurst = 10
	trafficBytes = 100
	// stalled is how long a publisher waits for a confirm before it looks for
	// the leader anew; dialPatience bounds one attempt to reach it.
	stalled      = 700 * time.Millisecond
	dialPatience = 700 * time.Millisecond
	redial       = 20 * time.Millisecond
)

// TrafficReference is the consumer whose offset is stored.
const TrafficReference = "traffic"

// StartTraffic begins with so many publishers, which the ledger knows by the
// numbers from first on.
func StartTraffic(addrs []string, stream string, ledger *Ledger, first uint32, publishers int) *Traffic {
	return startTraffic(addrs, stream, ledger, first, publishers, false)
}

// StartTrafficAnywhere is StartTraffic with clients that do not look for the
// leader: any node must do.
func StartTrafficAnywhere(addrs []string, stream string, ledger *Ledger, first uint32, publishers int) *Traffic {
	return startTraffic(addrs, stream, ledger, first, publishers, true)
}

func startTraffic(addrs []string, stream string, ledger *Ledger, first uint32, publishers int, anywhere bool) *Traffic {
	ctx, cancel := context.WithCancel(context.Background())
	f := &Traffic{anywhere: anywhere, stream: stream, addrs: addrs, ledger: ledger, cancel: cancel, stopping: make(chan struct{})}
	for i := range publishers {
		p := &persistent{Traffic: f, producer: first + uint32(i), unconfirmed: map[uint64][]byte{}}
		p.last = time.Now()
		f.publishers = append(f.publishers, p)
		f.work.Go(func() { p.run(ctx) })
	}
	f.work.Go(func() { f.stores.run(ctx, f) })
	return f
}

// Stop has the publishers finish: all that was sent is confirmed when it
// returns, or it is a problem.
func (f *Traffic) Stop() error {
	close(f.stopping)
	ended := make(chan struct{})
	go func() {
		f.work.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(readyWithin):
		f.problem(fmt.Errorf("stream %s: publishers have unconfirmed messages %v after the end", f.stream, readyWithin))
	}
	f.cancel()
	<-ended
	return f.Problems()
}

func (f *Traffic) problem(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.problems) < problemsMax {
		f.problems = append(f.problems, err)
	}
}

// Problems tells what must not have happened so far, nil if nothing did.
func (f *Traffic) Problems() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return errors.Join(f.problems...)
}

// Killed notes when a node was killed: offsets stored within StoreWindow before
// may be lost.
func (f *Traffic) Killed(at time.Time) { f.stores.killed(at, StoreWindow, false) }

// Cut notes when nodes were cut off from others, and Healed that the cut is over:
// what leaders without a majority answer in between may be lost.
func (f *Traffic) Cut(at time.Time) { f.stores.killed(at, StoreWindow, true) }

// Healed is to be called once all nodes follow again.
func (f *Traffic) Healed() {
	f.stores.mu.Lock()
	defer f.stores.mu.Unlock()
	f.stores.lasting = false
}

// KilledAll notes when all nodes were: offsets stored within the window that the
// leader announced may be lost.
func (f *Traffic) KilledAll(at time.Time, window time.Duration) {
	f.stores.killed(at, window, false)
}

// Stalest is how old a stored offset was at worst at a kill, and how many kills
// that was measured at.
func (f *Traffic) Stalest() (worst time.Duration, of int) {
	f.stores.mu.Lock()
	defer f.stores.mu.Unlock()
	return f.stores.stalest, f.stores.judged
}

// Gap returns the longest time without a confirm that any publisher has met
// since the last call, the time since its last one included.
func (f *Traffic) Gap() time.Duration {
	var worst time.Duration
	for _, p := range f.publishers {
		worst = max(worst, p.takeGap())
	}
	return worst
}

// Outage is what a publisher went through in its longest time without a confirm.
// Told, Reached and Declared are zero if it stayed with its connection.
type Outage struct {
	Last     time.Time // confirm before
	Told     time.Time // that its leader leads no more
	Reached  time.Time // the next leader
	Declared time.Time // itself there
	First    time.Time // confirm after
}

// Length is how long it was.
func (o Outage) Length() time.Duration { return o.First.Sub(o.Last) }

// Outage returns the longest of any publisher that has ended since the last call
// of Gap or Outage.
func (f *Traffic) Outage() (worst Outage) {
	for _, p := range f.publishers {
		p.mu.Lock()
		if p.outage.Length() > worst.Length() {
			worst = p.outage
		}
		p.mu.Unlock()
	}
	f.Gap()
	return worst
}

// AwaitConfirms waits until each publisher has had something confirmed that it
// sent from now on.
func (f *Traffic) AwaitConfirms(ctx context.Context) error {
	for _, p := range f.publishers {
		p.mu.Lock()
		from := p.next
		p.mu.Unlock()
		for p.confirmedUpTo() <= from {
			select {
			case <-ctx.Done():
				return fmt.Errorf("stream %s: publisher %d gets nothing confirmed: %w", f.stream, p.producer, ctx.Err())
			case <-time.After(time.Millisecond):
			}
		}
	}
	return nil
}

// reach connects to the stream's leader by way of some node, or to that node.
func (f *Traffic) reach(ctx context.Context) *client.Conn {
	for at := rand.N(len(f.addrs)); ctx.Err() == nil; at++ {
		attempt, cancel := context.WithTimeout(ctx, dialPatience)
		config := client.Config{Addr: f.addrs[at%len(f.addrs)], Name: "traffic", Timeout: dialPatience}
		var conn *client.Conn
		var err error
		if f.anywhere {
			conn, err = client.Dial(attempt, config)
		} else {
			conn, err = client.DialLeader(attempt, config, f.stream)
		}
		cancel()
		if err == nil {
			return conn
		}
		select {
		case <-time.After(redial):
		case <-ctx.Done():
		}
	}
	return nil
}

// persistent is a publisher under a reference: publishing id n is message n.
type persistent struct {
	*Traffic
	producer uint32

	mu          sync.Mutex        // guards all below
	next        uint64            // the last id sent
	highest     uint64            // the highest id confirmed
	unconfirmed map[uint64][]byte // bodies by id
	last        time.Time         // of the last confirm
	outage      Outage            // the longest time between two
	change      Outage            // of the connection, the last
	refused     bool              // since the last connection
}

func (p *persistent) run(ctx context.Context) {
	for ctx.Err() == nil && !p.finished() {
		conn := p.reach(ctx)
		if conn == nil {
			return
		}
		p.note(&p.change.Reached)
		p.publish(ctx, conn)
		p.told()
		conn.Abort()
	}
}

// note sets one of the times of the last change of the connection.
func (p *persistent) note(of *time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	*of = time.Now()
}

// told notes that a connection has led nowhere, the first since a confirm.
func (p *persistent) told() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.change.Told.After(p.last) {
		p.change.Told = time.Now()
	}
}

// finished: the end was asked for, and everything is confirmed.
func (p *persistent) finished() bool {
	select {
	case <-p.stopping:
	default:
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.unconfirmed) == 0
}

// publish sends over one connection for as long as that goes well.
func (p *persistent) publish(ctx context.Context, conn *client.Conn) {
	p.mu.Lock()
	p.refused = false
	p.mu.Unlock()
	declare, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	pub, err := conn.DeclarePublisher(declare, client.PublisherConfig{
		Stream: p.stream, Reference: fmt.Sprintf("publisher-%d", p.producer), FrameMessages: trafficBurst,
		Confirmed: p.confirmed, Refused: func([]wire.PublishingError) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.refused = true
		},
	})
	if err != nil {
		select {
		case <-time.After(redial):
		case <-ctx.Done():
		}
		return
	}
	p.note(&p.change.Declared)
	if p.resend(pub) != nil {
		return
	}
	tick := time.NewTicker(trafficTick)
	defer tick.Stop()
	begun := time.Now()
	for {
		select {
		case <-tick.C:
		case <-conn.Done():
			return
		case <-ctx.Done():
			return
		}
		if p.finished() || p.lost(begun) {
			return
		}
		select {
		case <-p.stopping:
			continue // only wait for what is on its way
		default:
		}
		for range trafficBurst {
			if p.sendNew(pub) != nil {
				return
			}
		}
		if pub.Flush() != nil {
			return
		}
	}
}

// lost: this connection leads nowhere any more.
func (p *persistent) lost(begun time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	since := p.last
	if begun.After(since) {
		since = begun
	}
	return p.refused || len(p.unconfirmed) > 0 && time.Since(since) > stalled
}

// resend sends in order what earlier connections left unconfirmed. What was
// confirmed the node must know.
func (p *persistent) resend(pub *client.Publisher) error {
	p.mu.Lock()
	known := pub.Last()
	if known < p.highest {
		p.problem(fmt.Errorf("stream %s: publisher %d: sequence %d was confirmed, and the leader knows %d", p.stream, p.producer, p.highest, known))
	}
	again := maps.Clone(p.unconfirmed)
	p.mu.Unlock()
	for _, id := range slices.Sorted(maps.Keys(again)) {
		if err := pub.Send(id, again[id]); err != nil {
			return err
		}
	}
	return pub.Flush()
}

func (p *persistent) sendNew(pub *client.Publisher) error {
	p.mu.Lock()
	p.next++
	id := p.next
	body := AppendMessage(nil, p.producer, id, trafficBytes)
	p.unconfirmed[id] = body
	p.mu.Unlock()
	p.ledger.Sent(p.producer, id)
	return pub.Send(id, body)
}

func (p *persistent) confirmed(ids []uint64) {
	p.mu.Lock()
	now := time.Now()
	if now.Sub(p.last) > p.outage.Length() {
		p.outage = Outage{Last: p.last, First: now}
		if p.change.Reached.After(p.last) {
			p.outage.Told, p.outage.Reached, p.outage.Declared = p.change.Told, p.change.Reached, p.change.Declared
		}
	}
	p.last = now
	for _, id := range ids {
		delete(p.unconfirmed, id)
		p.highest = max(p.highest, id)
	}
	p.mu.Unlock()
	for _, id := range ids {
		p.ledger.Confirmed(p.producer, id)
	}
}

func (p *persistent) confirmedUpTo() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.highest
}

func (p *persistent) takeGap() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	gap := p.outage.Length()
	if len(p.unconfirmed) > 0 {
		gap = max(gap, time.Since(p.last))
	}
	p.outage = Outage{}
	return gap
}

// storer stores a growing offset, and judges after each change of the leader
// what is left of it.
type storer struct {
	mu      sync.Mutex // guards all below
	sent    uint64
	taken   []taken       // in the order of time and value
	kill    time.Time     // the last; zero once it is judged
	window  time.Duration // what it may cost
	lasting bool          // more may be lost since: a cut is not healed
	stalest time.Duration
	judged  int
}

// taken is a value that the leader answered to a query, and when.
type taken struct {
	at    time.Time
	value uint64
}

// StoreWindow is how far a stored offset may fall back when a leader dies
// whose followers live.
const StoreWindow = 50 * time.Millisecond

// takenKept bounds what is remembered.
const takenKept = 4096

func (s *storer) killed(at time.Time, window time.Duration, lasting bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill, s.window, s.lasting = at, window, lasting
}

func (s *storer) run(ctx context.Context, f *Traffic) {
	for ctx.Err() == nil {
		select {
		case <-f.stopping:
			return
		default:
		}
		conn := f.reach(ctx)
		if conn == nil {
			return
		}
		s.store(ctx, conn, f)
		conn.Abort()
	}
}

// store goes on over one connection.
func (s *storer) store(ctx context.Context, conn *client.Conn, f *Traffic) {
	got, err := query(ctx, conn, f.stream)
	if err != nil {
		return
	}
	s.judge(got, f)
	tick := time.NewTicker(trafficTick)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-conn.Done():
			return
		case <-f.stopping:
			return
		case <-ctx.Done():
			return
		}
		s.mu.Lock()
		s.sent++
		value := s.sent
		s.mu.Unlock()
		if conn.StoreOffset(TrafficReference, f.stream, value) != nil {
			return
		}
		if value%3 != 0 {
			continue
		}
		got, err := query(ctx, conn, f.stream)
		if err != nil || got < value {
			return // it leads no more; whoever does is judged
		}
		s.note(value)
	}
}

func query(ctx context.Context, conn *client.Conn, stream string) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, stalled)
	defer cancel()
	got, err := conn.QueryOffset(ctx, TrafficReference, stream)
	if client.Code(err) == wire.CodeNoOffset {
		return 0, nil
	}
	return got, err
}

func (s *storer) note(value uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.taken = append(s.taken, taken{time.Now(), value})
	if len(s.taken) > takenKept {
		s.taken = s.taken[len(s.taken)/2:]
	}
}

// judge holds what a leader answers first against what was stored before: what
// is newer than the window before a kill may be lost, and nothing else.
func (s *storer) judge(got uint64, f *Traffic) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if got > s.sent {
		f.problem(fmt.Errorf("stream %s: offset %d is answered, and %d was the last stored", f.stream, got, s.sent))
	}
	if len(s.taken) == 0 {
		return
	}
	moment, window := s.taken[len(s.taken)-1].at, StoreWindow
	if !s.kill.IsZero() {
		moment, window = s.kill, s.window
		if since, ok := s.overtaken(got); ok {
			s.stalest = max(s.stalest, moment.Sub(since))
		}
		s.judged++
		if !s.lasting {
			s.kill = time.Time{}
		}
		defer s.forget(got)
	}
	if least := s.takenBy(moment.Add(-window)); got < least {
		f.problem(fmt.Errorf("stream %s: offset %d is answered, and %d was stored more than %v before", f.stream, got, least, window))
	}
	// What is lost is judged; from here on this value counts.
	s.taken = append(slices.DeleteFunc(s.taken, func(t taken) bool { return t.value > got }), taken{time.Now(), got})
}

// forget drops what is lost: a leader that was cut off may have answered with
// it for long. It expects mu to be held.
func (s *storer) forget(above uint64) {
	for i, t := range s.taken {
		if t.value > above {
			s.taken = s.taken[:i]
			return
		}
	}
}

// takenBy is the newest value taken at the moment; it expects mu to be held.
func (s *storer) takenBy(moment time.Time) (value uint64) {
	for _, t := range s.taken {
		if t.at.After(moment) {
			break
		}
		value = t.value
	}
	return value
}

// overtaken is when the first value above the given one was taken; it expects
// mu to be held.
func (s *storer) overtaken(value uint64) (time.Time, bool) {
	for _, t := range s.taken {
		if t.value > value {
			return t.at, true
		}
	}
	return time.Time{}, false
}
