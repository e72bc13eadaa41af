package replication

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// run is a replica from one start to the next. What was reported, asked and
// answered in one run says nothing in another (A5).
type run struct {
	log      *segstore.Log
	protocol *protocol.Replica
	// syncing: a sync of the log is in flight, asked for under syncID.
	syncing bool
	syncID  uint64
	synced  func(chunk.Tail, error) // its answer, bound once
}

// startRun opens the log and begins a run under a new id. The replica follows
// until it is assigned an epoch.
func (r *Replica) startRun() error {
	t := &r.turns
	log, found, err := r.node.store.Open(r.stream.Incarnation, r.stream.Settings.Log)
	if err != nil {
		return err
	}
	from := recovered(r.stream.Incarnation, log, r.node.store.Journal())
	id := r.node.newRun()
	p, err := protocol.New(r.node.id, id, r.node.limits, from)
	if err != nil {
		return fmt.Errorf("start %s: %w", r.stream.Name, errors.Join(err, log.Close()))
	}
	u := &run{log: log, protocol: p}
	u.synced = func(tail chunk.Tail, err error) {
		r.post(event{kind: eventSynced, run: u, id: u.syncID, tail: tail, err: err})
	}
	t.run, t.failed, t.stopped, t.dropWant = u, nil, 0, false
	log.OnDamage(func() { r.post(event{kind: eventHurt, run: u}) })
	r.standing.run.Store(uint64(id))
	r.standing.note(p)
	t.startedAt = r.node.clock.Now()
	t.stamp = max(t.stamp, log.LastTimestamp())
	t.marked = found.Mark
	if t.pending == nil {
		t.pending = tracking.NewPending(r.stream.Settings.Log.Caps)
	}
	r.log.Store(log)
	r.progress.set(p.Commit())
	r.counters.begin(found)
	if found.Aside == segstore.AsideDamaged {
		t.dropWant = true
		t.unproven = later(t.unproven, chunk.Tail{Epoch: found.Tail.Epoch, LSN: found.Mark})
		r.step(protocol.Input{Kind: protocol.InDamaged, Tail: t.unproven})
	} else if log.DamagedAbove(log.Commit()) != nil {
		r.distrust() // a sealed file is missing, or of another length
	}
	return nil
}

// recovered tells the protocol what was found on the disk.
func recovered(inc chunk.Incarnation, log *segstore.Log, journal *segstore.Journal) protocol.Recovered {
	kept, _ := journal.State(inc)
	from := protocol.Recovered{
		Stream: inc,
		Journal: protocol.Journal{
			Promise: kept.Promise, Registration: protocol.Registration(kept.Registration),
			Aside: kept.Aside != segstore.NotAside,
		},
		Start: logStart(log),
		Tail:  log.Tail().LSN, Next: log.Next(), Digest: log.Digest(),
		Commit: log.Commit(),
	}
	if kept.Aside == segstore.AsideJournalLost {
		// What it promised is not known: it must be entered anew first (D1).
		from.Journal.Registration = protocol.Unregistered
	}
	if from.Commit < from.Tail {
		if next, err := log.OffsetAfter(from.Commit); err == nil { // else a lower one will do
			from.CommitOffset = next
		}
	}
	for _, l := range log.Epochs() {
		from.Lines = append(from.Lines, protocol.EpochLine{Epoch: l.Epoch, LSN: l.LSN, Offset: l.Offset})
	}
	return from
}

func logStart(log *segstore.Log) protocol.LogStart {
	start := log.LogStart()
	return protocol.LogStart{
		LSN: start.LSN, Offset: start.Offset, Digest: start.Digest,
		Line: protocol.EpochLine{Epoch: start.Line.Epoch, LSN: start.Line.LSN, Offset: start.Line.Offset},
	}
}

// fail notes that a write or sync failed; the run ends with this turn.
func (r *Replica) fail(err error) {
	if r.turns.failed == nil {
		r.turns.failed = err
	}
}

// endReign fails what waits for a commit that will not come from here, and
// shuts the doors.
func (r *Replica) endReign() {
	t := &r.turns
	r.publishers.end()
	r.stores.lead(0)
	r.refuseOwed(ErrNotLeader)
	t.epoch, t.lead, t.pacer, t.flushWant = 0, false, nil, false
	err := ErrNotLeader
	r.dropAssembly(err)
	for t.held.len() > 0 {
		r.giveBack(t.held.pop(), err)
	}
	for t.waiting.len() > 0 {
		r.give(t.waiting.pop().batch, err)
	}
	for _, id := range sortedKeys(t.requests) {
		if q := t.requests[id]; q.waits {
			delete(t.requests, id)
			q.refused(ErrHandover)
		}
	}
	t.reads = t.reads[:0]
	r.counters.setRole(RoleFollowing, 0)
}

// sortedKeys puts answers in the order of their requests, so that a run can be
// replayed.
func sortedKeys[V any](m map[uint64]V) []uint64 { return slices.Sorted(maps.Keys(m)) }

// settleRun ends a run that has failed or that the protocol has stopped. After
// a failure of the disk the log is cut to what was durable and opened again,
// as after a power loss (design 3.7); the rest waits for an operator.
func (r *Replica) settleRun() {
	t := &r.turns
	if t.run == nil {
		r.retry()
		return
	}
	if t.failed != nil && t.stopped == 0 {
		r.step(protocol.Input{Kind: protocol.InFailed})
	}
	if t.stopped == 0 {
		return
	}
	cause := t.failed
	if cause == nil {
		cause = fmt.Errorf("%w: %s", ErrUnavailable, t.stopped)
	}
	reason := t.stopped
	t.stopped = 0
	r.counters.fail(cause)
	for _, id := range sortedKeys(t.requests) {
		q := t.requests[id]
		delete(t.requests, id)
		q.refused(cause)
	}
	if reason != protocol.ReasonStorage {
		r.counters.setRole(RoleStopped, 0)
		r.node.lost(r.stream.Incarnation, cause)
		return
	}
	r.endRun(cause)
	r.node.lost(r.stream.Incarnation, cause)
}

// A replica whose disk fails again soon after a start waits longer and longer
// before it starts anew, so that a full disk does not keep the metadata busy
// with elections.
const (
	retryAfterMin = 100 * time.Millisecond
	retryAfterMax = 5 * time.Second
	// healthyAfter is how long a run must last to start from the least again.
	healthyAfter = 10 * time.Second
)

// endRun closes the log of a run whose disk failed, and starts the next.
func (r *Replica) endRun(cause error) {
	t := &r.turns
	log := t.run.log
	t.run, t.failed, t.syncWant = nil, nil, false
	r.log.Store(nil)
	poisoned := errors.Is(log.Err(), segstore.ErrPoisoned)
	if err := log.Close(); err != nil && poisoned {
		// Where the log must be cut is not noted: what the disk shows at another
		// start now might be taken for durable. So that comes first.
		t.condemned = log
		r.counters.stop(fmt.Errorf("%w: %w", cause, err))
		r.retryLater()
		return
	}
	if t.now.Sub(t.startedAt) >= healthyAfter {
		t.retryIn = 0
	}
	if t.retryIn > 0 {
		r.counters.stop(cause)
		r.retryLater()
		return
	}
	t.retryIn = retryAfterMin
	r.restart()
}

func (r *Replica) retryLater() {
	t := &r.turns
	t.retryIn = min(max(2*t.retryIn, retryAfterMin), retryAfterMax)
	t.retryAt = t.now.Add(t.retryIn)
}

func (r *Replica) retry() {
	t := &r.turns
	if len(t.closing)+len(t.removing) > 0 || t.now.Before(t.retryAt) {
		return
	}
	if t.condemned != nil {
		if err := t.condemned.Close(); err != nil {
			r.counters.stop(err)
			r.retryLater()
			return
		}
		t.condemned = nil
	}
	r.restart()
}

func (r *Replica) restart() {
	if err := r.startRun(); err != nil {
		r.counters.stop(err)
		r.retryLater()
		return
	}
	r.node.begun(r.stream.Incarnation)
}
