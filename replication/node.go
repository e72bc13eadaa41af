package replication

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// Config says what a Node is made of. Zero fields take the defaults.
type Config struct {
	// ID names this node to the others.
	ID protocol.NodeID
	// Store holds the logs. The Node does not close it.
	Store *segstore.Store
	// Workers run the turns; as many as cores by default.
	Workers int
	// Clock is the machine's by default.
	Clock Clock
	// Duplicates decides between two sessions of one reference.
	Duplicates Duplicates
	// Limits bound what a replica queues for others.
	Limits protocol.Limits
	// RetainEvery is the time between two looks at retention: 10 s.
	RetainEvery time.Duration
	// Propose passes a replica's wish to the metadata. It must not block.
	Propose func(chunk.Incarnation, protocol.Proposal)
	// Lost hears that a run of a replica ended, and with it any epoch that it
	// led: the coordinator elects anew. It must not block.
	Lost func(chunk.Incarnation, error)
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

	queue  *runQueue
	alarms *alarms

	mu       sync.RWMutex // guards the fields below
	replicas map[chunk.Incarnation]*Replica
	closed   bool
	stop     func() bool // of the retention timer
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
		limits: c.Limits, retainEvery: c.RetainEvery, proposeFunc: c.Propose, lostFunc: c.Lost,
		queue: newRunQueue(c.Workers), alarms: &alarms{clock: c.Clock},
		replicas: map[chunk.Incarnation]*Replica{},
	}
	n.stop = n.clock.AfterFunc(n.retainEvery, n.sweep)
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

// Replicas calls f for each replica of the node, in no order.
func (n *Node) Replicas(f func(*Replica)) {
	n.mu.RLock()
	list := make([]*Replica, 0, len(n.replicas))
	for _, r := range n.replicas {
		list = append(list, r)
	}
	n.mu.RUnlock()
	for _, r := range list {
		f(r)
	}
}

// FenceRequest asks for one stream's promise of an epoch (A2).
type FenceRequest struct {
	Stream chunk.Incarnation
	Epoch  chunk.Epoch
}

// FenceResult is a replica's report, or why there is none.
type FenceResult struct {
	Report protocol.Report
	Err    error
}

// Fence has replicas promise epochs and report what they have. All promises of
// one call share the journal's sync. The results are in the order of requests.
//
// Errors, one for each request: ErrMissing, *RefusedError, what the journal
// says, the context's.
func (n *Node) Fence(ctx context.Context, requests []FenceRequest) []FenceResult {
	results := make([]FenceResult, len(requests))
	type answer struct {
		request int
		report  *protocol.Report
		err     error
	}
	answers := make(chan answer, len(requests))
	for i, q := range requests {
		r, ok := n.Replica(q.Stream)
		if !ok {
			answers <- answer{request: i, err: fmt.Errorf("fence %s: %w", q.Stream, ErrMissing)}
			continue
		}
		e := event{
			kind: eventStep, input: &protocol.Input{Kind: protocol.InFence, Epoch: q.Epoch},
			report: func(report *protocol.Report, err error) { answers <- answer{i, report, err} },
		}
		if !r.post(e) {
			e.refuse(ErrClosed)
		}
	}
	for i := range results {
		results[i].Err = context.Cause(ctx)
	}
	for range requests {
		select {
		case a := <-answers:
			results[a.request] = FenceResult{Err: a.err}
			if a.report != nil {
				results[a.request].Report = *a.report
			}
		case <-ctx.Done():
			for i := range results {
				if results[i].Err == nil && results[i].Report.Epoch == 0 {
					results[i].Err = context.Cause(ctx)
				}
			}
			return results
		}
	}
	return results
}

// Assign makes this node's replica lead an epoch, if it still is what it
// reported (A5); left is what the election's reports leave to it, and may be
// nil. It returns when the replica leads or has refused; the barrier's commit
// comes later.
//
// Errors: ErrMissing, *RefusedError, ErrClosed, the context's.
func (n *Node) Assign(ctx context.Context, a protocol.Assignment, left *protocol.Inheritance) error {
	return n.ask(ctx, a.Stream, event{
		kind:  eventStep,
		input: &protocol.Input{Kind: protocol.InAssign, Assignment: &a, Inheritance: left},
	})
}

// Configure tells a replica the newest configuration of its stream's replicas.
func (n *Node) Configure(ctx context.Context, stream chunk.Incarnation, c protocol.Configuration) error {
	return n.ask(ctx, stream, event{
		kind:  eventStep,
		input: &protocol.Input{Kind: protocol.InConfig, Config: &c},
	})
}

// Remove deletes a replica with its log. It may be repeated until it succeeds;
// a stream that is not here is no error.
func (n *Node) Remove(ctx context.Context, stream chunk.Incarnation) error {
	err := n.ask(ctx, stream, event{kind: eventRemove})
	if errors.Is(err, ErrMissing) || errors.Is(err, ErrClosed) {
		return n.store.Remove(stream)
	}
	if err == nil {
		n.mu.Lock()
		delete(n.replicas, stream)
		n.mu.Unlock()
	}
	return err
}

// ask posts an event and waits for its done.
func (n *Node) ask(ctx context.Context, stream chunk.Incarnation, e event) error {
	r, ok := n.Replica(stream)
	if !ok {
		return fmt.Errorf("stream %s: %w", stream, ErrMissing)
	}
	done := make(chan error, 1)
	e.done = func(err error) { done <- err }
	if !r.post(e) {
		return ErrClosed
	}
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
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
	err := n.closeReplicas(ctx)
	n.alarms.close()
	ended := make(chan struct{})
	go func() {
		n.queue.close()
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
			errs = append(errs, err)
		case <-ctx.Done():
			return errors.Join(append(errs, context.Cause(ctx))...)
		}
	}
	return errors.Join(errs...)
}

// sweep has retention looked at, for streams that have any.
func (n *Node) sweep() {
	n.Replicas(func(r *Replica) {
		if r.retains.Load() {
			r.post(event{kind: eventRetain})
		}
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.closed {
		n.stop = n.clock.AfterFunc(n.retainEvery, n.sweep)
	}
}

// tick is the protocol's clock; timeOf its inverse.
func (n *Node) tick(now time.Time) protocol.Tick {
	return protocol.Tick(now.Sub(n.started).Milliseconds())
}

func (n *Node) timeOf(t protocol.Tick) time.Time {
	return n.started.Add(time.Duration(t) * time.Millisecond)
}

func (n *Node) newRun() protocol.RunID {
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
