package replication

import (
	"time"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// sync asks the Syncer, once a turn, for what the protocol wants durable.
func (r *Replica) sync() {
	t := &r.turns
	if !t.syncWant || t.failed != nil || t.run == nil {
		return
	}
	t.syncWant = false
	t.run.syncing, t.run.syncID = true, t.syncID
	t.run.log.Sync(t.run.synced)
}

// settle does what the rest of the turn has led to.
func (r *Replica) settle() {
	r.settleRun()
	if u := r.turns.run; u != nil {
		// What was committed first is durable here only now, perhaps (B5).
		u.log.SetCommit(u.protocol.Persistable())
	}
	r.forgetUnused()
	r.retain()
	r.settleClosing()
}

// forgetUnused drops references without sessions, once the log holds all of
// their batches.
func (r *Replica) forgetUnused() {
	t := &r.turns
	if t.held.len() > 0 {
		return
	}
	kept := t.unused[:0]
	for _, ref := range t.unused {
		if ref.building {
			kept = append(kept, ref)
		} else {
			r.publishers.forget(ref)
		}
	}
	clear(t.unused[len(kept):])
	t.unused = kept
}

// settleClosing closes or removes the replica once nothing is on its way.
func (r *Replica) settleClosing() {
	t := &r.turns
	switch {
	case len(t.removing) > 0:
		r.shut(r.node.store.Remove(r.stream.Incarnation))
	case len(t.closing) == 0:
	case t.run == nil:
		r.shut(nil)
	case t.epoch != 0 && !r.quiet():
		// The flush's sync is still to come.
	default:
		r.shut(t.run.log.Close())
	}
}

// quiet tells whether everything that was accepted is committed.
func (r *Replica) quiet() bool {
	t := &r.turns
	commit, _ := t.run.protocol.Commit()
	return !t.run.syncing && !t.syncWant && !t.lead && !t.assembler.open && t.held.len() == 0 &&
		(t.epoch == 0 || t.pending.Len() == 0) && len(t.reads) == 0 && commit == t.run.protocol.Tail().LSN
}

// shut ends the replica: nothing comes in any more, and what did is answered.
func (r *Replica) shut(err error) {
	t := &r.turns
	r.endReign()
	batches, events, arrivals := r.inbox.close()
	for _, b := range batches {
		r.giveBack(b, ErrClosed)
	}
	r.node.alarms.clear(&r.alarm)
	r.log.Store(nil)
	t.run = nil
	for _, id := range sortedKeys(t.requests) {
		q := t.requests[id]
		delete(t.requests, id)
		q.refused(ErrClosed)
	}
	for _, id := range sortedKeys(t.queries) {
		q := t.queries[id]
		delete(t.queries, id)
		q.answer(0, false, ErrClosed)
	}
	for i := range events {
		events[i].refuse(ErrClosed)
	}
	for i := range arrivals {
		arrivals[i].release()
	}
	r.dropParked("")
	for _, done := range append(t.closing, t.removing...) {
		done(err)
	}
	t.closing, t.removing = nil, nil
}

// refuse answers an event that no turn will take.
func (e *event) refuse(err error) {
	switch {
	case e.sequence != nil:
		e.sequence(0, false, err)
	case e.offset != nil:
		e.offset(0, false, err)
	case e.operate != nil:
		e.operate(err)
	case e.report != nil:
		e.report(nil, err)
	case e.done != nil:
		e.done(err)
	}
}

// idleAfter is how long nothing may have been committed until the journal is
// told how far the log is durable and committed, and buffers are given back.
const idleAfter = time.Second

// rest sets the alarm for the next time at which there is something to do
// without an event. A replica with nothing in sight has none.
func (r *Replica) rest() {
	t := &r.turns
	if t.run == nil {
		if !r.inbox.isClosed() {
			r.node.alarms.set(&r.alarm, t.retryAt)
		}
		return
	}
	r.counters.look(t.run.log.Tracking(), t.pending, t.pacer, &r.stores)
	r.counters.follow(t.run.protocol)
	r.tellEvictions()
	if t.epoch != 0 && t.pacer != nil {
		if d := t.pacer.Decide(t.even, false); d.Until != tracking.Never {
			at := max(d.Until, t.lastUser+rideWithin, t.even+1)
			r.node.alarms.set(&r.alarm, t.now.Add(time.Duration(at-t.even)*time.Millisecond))
		}
	}
	if at, ok := t.run.protocol.Deadline(); ok {
		r.node.alarms.set(&r.alarm, r.node.timeOf(at))
	}
	// What is not quiet becomes so by an event, which brings another turn.
	if durable := t.run.protocol.Durable().LSN; durable != t.marked && r.quiet() {
		if due := t.active.Add(idleAfter); t.now.Before(due) {
			r.node.alarms.set(&r.alarm, due)
		} else {
			r.goIdle(durable)
		}
	}
}

// evictionsEvery is how often operators hear of one stream's evictions.
const evictionsEvery = time.Minute

// tellEvictions says that the caps of tracking have bitten.
func (r *Replica) tellEvictions() {
	t, c := &r.turns, &r.counters
	c.mu.Lock()
	now := c.tracking
	c.mu.Unlock()
	evicted := now.OffsetsEvicted + now.PublishersEvicted
	if evicted < t.evictedTold {
		t.evictedTold = 0 // a new run counts from 0
	}
	if evicted == t.evictedTold || r.node.evictedFunc == nil || t.now.Sub(t.evictedAt) < evictionsEvery {
		return
	}
	t.evictedTold, t.evictedAt = evicted, t.now
	r.node.evictedFunc(r.stream.Incarnation, now)
}

// goIdle remembers how far the log is safe (design 3.7), and gives memory back.
func (r *Replica) goIdle(durable chunk.LSN) {
	t := &r.turns
	t.marked = durable
	t.run.log.SaveProgress(nil)
	t.held.release()
	t.waiting.release()
	t.batches, t.outputs, t.stored, t.updates, t.sequences = nil, nil, nil, nil, nil
	t.trailer, t.dataGuess = nil, 0
}
