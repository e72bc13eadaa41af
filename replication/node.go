package replication

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// Config says what a Node is made of. Zero fields take the defaults.
type Config struct {
	// ID names this node to the others.
	ID protocol.NodeID
	// Store holds the logs. The Node does not close it.
	Store *segstore.Store
	// Transport reaches the other nodes; without one they stay unreached.
	Transport Transport
	// Workers run the turns; as many as cores by default.
	Workers int
	// Scheduler runs the turns in place of Workers.
	Scheduler Scheduler
	// Clock is the machine's by default.
	Clock Clock
	// Duplicates decides between two sessions of one reference.
	Duplicates Duplicates
	// Limits bound what a replica queues for others.
	Limits protocol.Limits
	// RetainEvery is the time between two looks at retention: 10 s.
	RetainEvery time.Duration
	// Disk has the free space watched.
	Disk DiskConfig
	// Clocks tells what the other voters' clocks say; nil: there is nobody to
	// ask. It must not block.
	Clocks func() []time.Time
	// Neighbour tells what is known of other nodes; nil: there are none.
	// DisksChanged is to be called when that changes. It must not block.
	Neighbour func(protocol.NodeID) Neighbour
	// CompactBytesPerSecond bounds what is read for compaction: 20 MB; negative:
	// nothing is compacted.
	CompactBytesPerSecond int64
	// Propose passes a replica's wish to the metadata. It must not block.
	Propose func(chunk.Incarnation, protocol.Proposal)
	// Yield hears that a leader that is none of the stream's voters any more has
	// handed everything over to another replica, which shall be elected (D3, D4).
	// It must not block.
	Yield func(stream chunk.Incarnation, epoch chunk.Epoch, heir protocol.NodeID)
	// RunID draws the ids of runs: random numbers that never come twice. The
	// system's by default.
	RunID func() protocol.RunID
	// Lost hears that a run of a replica ended, and with it any epoch that it
	// led: the coordinator elects anew. It must not block.
	Lost func(chunk.Incarnation, error)
	// Begun hears that the next run of a replica has begun, behind one that ended.
	// It must not block.
	Begun func(chunk.Incarnation)
	// Evicted hears, once a minute of a stream at most, that the caps of tracking
	// have taken more references since the last time. It must not block.
	Evicted func(chunk.Incarnation, tracking.Stats)
}

const retainEveryDefault = 10 * time.Second

// Node runs this node's replicas.
type Node struct {
	id          protocol.NodeID
	store       *segstore.Store
	clock       Clock
	started     time.Time
	duplicates  Duplicates
	limits      protocol.Limits
	retainEvery time.Duration
	proposeFunc func(chunk.Incarnation, protocol.Proposal)
	lostFunc    func(chunk.Incarnation, error)
	begunFunc   func(chunk.Incarnation)
	evictedFunc func(chunk.Incarnation, tracking.Stats)

	transport Transport
	yieldFunc func(chunk.Incarnation, chunk.Epoch, protocol.NodeID)
	newRun    func() protocol.RunID

	queue      Scheduler
	alarms     *alarms
	compaction *compaction
	age        ageClock
	disk       *diskWatch
	neighbour  func(protocol.NodeID) Neighbour
	parked     atomic.Int64 // bytes of chunks that wait for room on the disk

	mu       sync.RWMutex // guards the fields below
	replicas map[chunk.Incarnation]*Replica
	linked   map[protocol.NodeID]bool
	closed   bool
	stop     func() bool // of the retention timer
	sweepAt  time.Time   // when it fires
}

// NewNode returns a node without replicas.
func NewNode(c Config) *Node {
	if c.Workers <= 0 {
		c.Workers = runtime.GOMAXPROCS(0)
	}
	if c.Clock == nil {
		c.Clock = systemClock{}
	}
	if c.RetainEvery <= 0 {
		c.RetainEvery = retainEveryDefault
	}
	n := &Node{
		id: c.ID, store: c.Store, clock: c.Clock, started: c.Clock.Now(), duplicates: c.Duplicates,
		limits: c.Limits, retainEvery: c.RetainEvery, proposeFunc: c.Propose, lostFunc: c.Lost, begunFunc: c.Begun, evictedFunc: c.Evicted,
		transport: c.Transport, yieldFunc: c.Yield, newRun: c.RunID,
		queue: c.Scheduler, alarms: &alarms{clock: c.Clock},
		replicas: map[chunk.Incarnation]*Replica{}, linked: map[protocol.NodeID]bool{},
	}
	if n.queue == nil {
		n.queue = newRunQueue(c.Workers)
	}
	if n.newRun == nil {
		n.newRun = randomRun
	}
	n.age.others, n.neighbour = c.Clocks, c.Neighbour
	n.sweepAt = n.started.Add(n.retainEvery)
	n.stop = n.clock.AfterFunc(n.retainEvery, n.sweep)
	n.compaction = newCompaction(n, c.CompactBytesPerSecond)
	n.disk = newDiskWatch(n, c.Disk)
	return n
}

// Open starts the replica of a stream, or returns the one that runs. Its log is
// made if isNew, which only the metadata can know: a log that should be here and
// is not is an error. Open may be called for many streams at once, but not for
// one that is being opened or removed.
//
// Errors: segstore.ErrMissing, segstore.ErrVersion, ErrClosed, what the disk
// says.
func (n *Node) Open(s Stream, isNew bool) (*Replica, error) {
	if isNew {
		if err := n.store.Create(s.Name, s.Incarnation); err != nil && !errors.Is(err, segstore.ErrExists) {
			return nil, err
		}
	}
	n.mu.Lock()
	switch {
	case n.closed:
		n.mu.Unlock()
		return nil, ErrClosed
	case n.replicas[s.Incarnation] != nil:
		defer n.mu.Unlock()
		return n.replicas[s.Incarnation], nil
	}
	n.mu.Unlock()
	// The store opens a log once; of two that open at a time one is refused.
	r := newReplica(n, s)
	if err := r.startRun(); err != nil {
		return nil, err
	}
	n.age.found(r.turns.run.log.LastTimestamp())
	n.mu.Lock()
	n.replicas[s.Incarnation] = r
	closed := n.closed
	n.mu.Unlock()
	r.inbox.open()
	if closed {
		return nil, errors.Join(ErrClosed, n.closeReplicas(context.Background()))
	}
	r.wake()
	return r, nil
}

func newReplica(n *Node, s Stream) *Replica {
	r := &Replica{node: n, stream: s}
	r.inbox.scheduled = true // no turn before Open is through
	r.publishers.duplicates = n.duplicates
	r.publishers.unused = func(ref *reference) { r.post(event{kind: eventForget, reference: ref}) }
	r.alarm.ring = r.wake
	r.turns.requests = map[uint64]request{}
	r.turns.queries = map[uint64]query{}
	r.turns.assembler.filterLength = s.Settings.FilterLength
	r.turns.assembler.reset()
	r.retains.Store(s.Settings.retains())
	return r
}

// Replica returns the replica of a stream on this node.
func (n *Node) Replica(inc chunk.Incarnation) (*Replica, bool) {
	n.mu.RLock()
	defer n.mu.RUnlock()
	r := n.replicas[inc]
	return r, r != nil
}

func (n *Node) hasReplicas() bool {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return len(n.replicas) > 0
}

// Replicas calls f for each replica of the node, in the order of incarnations.
func (n *Node) Replicas(f func(*Replica)) {
	n.mu.RLock()
	list := make([]*Replica, 0, len(n.replicas))
	for _, r := range n.replicas {
		list = append(list, r)
	}
	n.mu.RUnlock()
	slices.SortFunc(list, func(a, b *Replica) int { return cmp.Compare(a.Incarnation(), b.Incarnation()) })
	for _, r := range list {
		f(r)
	}
}

// Close flushes and closes all replicas and ends the workers. What was accepted
// is committed first, as far as the context allows.
func (n *Node) Close(ctx context.Context) error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	n.mu.Unlock()
	n.stop()
	n.disk.close()
	err := n.compaction.close(ctx)
	err = errors.Join(err, n.closeReplicas(ctx))
	n.alarms.close()
	ended := make(chan struct{})
	go func() {
		n.queue.Close()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done(): // a disk that hangs keeps a worker
		err = errors.Join(err, context.Cause(ctx))
	}
	return err
}

func (n *Node) closeReplicas(ctx context.Context) error {
	var waiting []chan error
	n.Replicas(func(r *Replica) {
		done := make(chan error, 1)
		if r.post(event{kind: eventClose, done: func(err error) { done <- err }}) {
			waiting = append(waiting, done)
		}
	})
	var errs []error
	for _, done := range waiting {
		select {
		case err := <-done:
			if !errors.Is(err, ErrClosed) { // it was being removed
				errs = append(errs, err)
			}
		case <-ctx.Done():
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
	}
	return errors.Join(errs...)
}

// sweep has retention looked at, for streams that have any, and takes from idle
// streams their open files.
func (n *Node) sweep() {
	n.store.CloseUnused()
	n.Replicas(func(r *Replica) {
		if r.retains.Load() {
			r.post(event{kind: eventRetain})
		}
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.sweepAt = n.clock.Now().Add(n.retainEvery)
		n.stop = n.clock.AfterFunc(n.retainEvery, n.sweep)
	}
}

// nextSweep is when retention is looked at next without another reason.
func (n *Node) nextSweep() time.Time {
	n.mu.RLock()
	defer n.mu.RUnlock()
	return n.sweepAt
}

// tick is the protocol's clock; timeOf its inverse.
func (n *Node) tick(now time.Time) protocol.Tick {
	return protocol.Tick(now.Sub(n.started).Milliseconds())
}

func (n *Node) timeOf(t protocol.Tick) time.Time {
	return n.started.Add(time.Duration(t) * time.Millisecond)
}

func randomRun() protocol.RunID {
	var id [8]byte
	_, _ = rand.Read(id[:]) // never fails
	return protocol.RunID(binary.BigEndian.Uint64(id[:]))
}

func (n *Node) propose(inc chunk.Incarnation, p protocol.Proposal) {
	if n.proposeFunc != nil {
		n.proposeFunc(inc, p)
	}
}

func (n *Node) lost(inc chunk.Incarnation, err error) {
	if n.lostFunc != nil {
		n.lostFunc(inc, err)
	}
}

func (n *Node) begun(inc chunk.Incarnation) {
	if n.begunFunc != nil {
		n.begunFunc(inc)
	}
}
