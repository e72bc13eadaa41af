package replication

import (
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// request is an answer that the protocol owes to the coordinator: a report to a
// fence, or whether an assignment was taken.
type request struct {
	report func(*protocol.Report, error)
	done   func(error)
	// waits: done is called when the protocol says so, not when it has not
	// refused.
	waits bool
}

func (q request) refused(err error) {
	if q.report != nil {
		q.report(nil, err)
	} else {
		q.done(err)
	}
}

// query is a sequence query on its way (F3); the answer is what was applied when
// it came in.
type query struct {
	sequence uint64
	ok       bool
	answer   func(uint64, bool, error)
}

// hearEvents takes what is neither a batch nor the end of a sync.
func (r *Replica) hearEvents() {
	t := &r.turns
	for i := range t.events {
		switch e := &t.events[i]; e.kind {
		case eventPersisted:
			if e.run != t.run {
				continue
			}
			if e.err != nil {
				r.fail(e.err)
				continue
			}
			r.step(protocol.Input{Kind: protocol.InPersisted, ID: e.id})
		case eventStep:
			r.request(e)
		case eventForget:
			t.unused = append(t.unused, e.reference)
		case eventSequence:
			r.sequence(e)
		case eventOffset:
			r.storedOffset(e)
		case eventOperate:
			e.operate(nil)
		case eventSettings:
			r.configure(*e.settings)
		case eventCompact:
			e.call() // of a log that is closed meanwhile it does nothing
		case eventHurt:
			r.hurt(e.run)
		case eventRetain:
			t.retainWant, t.ageWant = true, true
		case eventClose:
			t.closing = append(t.closing, e.done)
		case eventRemove:
			t.removing = append(t.removing, e.done)
		}
	}
}

// request passes an input of the coordinator's to the protocol.
func (r *Replica) request(e *event) {
	t := &r.turns
	q := request{e.report, e.done, e.input.Kind == protocol.InTransfer}
	if t.run == nil {
		q.refused(ErrUnavailable)
		return
	}
	t.lastID++
	e.input.ID = t.lastID
	t.requests[t.lastID] = q
	if e.input.Kind == protocol.InFence {
		r.takeStores() // what a QueryOffset may have answered belongs into the report
	}
	if e.input.Kind == protocol.InAssign {
		e.input.Known = t.run.log.Tracking().Known()
	}
	r.step(*e.input)
	if t.lead {
		// Only now: an assignment that comes once more must not bring back what
		// has been stored over since.
		r.inherit(e.input.Inheritance)
		r.beginReign() // who hears of it may publish at once
	}
	if q, owed := t.requests[t.lastID]; owed && q.done != nil && !q.waits {
		delete(t.requests, t.lastID) // it was not refused
		q.done(nil)
	}
}

// inherit merges the pending updates that the election's reports brought into
// the own ones (F5).
func (r *Replica) inherit(left *protocol.Inheritance) {
	t := &r.turns
	if left == nil {
		return
	}
	for _, encoded := range left.Pending {
		updates, err := tracking.DecodeUpdates(nil, encoded, r.stream.Settings.offsetsMax())
		if err != nil {
			r.counters.malformed.Add(1) // one loss window of stored offsets, no more
			continue
		}
		t.pending.Merge(updates)
	}
}

// sequence asks the protocol whether the sequence that is applied now may be
// answered.
func (r *Replica) sequence(e *event) {
	t := &r.turns
	if t.run == nil || t.epoch == 0 {
		e.sequence(0, false, ErrNotLeader)
		return
	}
	var q query
	var lsn chunk.LSN
	if ref := r.publishers.find(e.name); ref != nil {
		ref.load(t.run.log.Tracking())
		if ref.building && !r.finishChunk() {
			e.sequence(0, false, ErrUnavailable)
			return
		}
		q.sequence, q.ok, lsn = ref.last, ref.seen, ref.lsn
	} else {
		s, ok := t.run.log.Tracking().Sequence([]byte(e.name))
		q.sequence, q.ok, lsn = s.Last, ok, s.LSN
	}
	if log := t.run.log; !q.ok && log.Tracking().Stats().PublishersEvicted > 0 {
		lsn = log.Tail().LSN // what has made tracking forget it may not be committed
	}
	q.answer = e.sequence
	t.lastID++
	t.queries[t.lastID] = q
	r.step(protocol.Input{Kind: protocol.InQuery, ID: t.lastID, LSN: lsn})
}

// answer tells a client its sequence.
func (r *Replica) answer(id uint64) {
	if q, ok := r.turns.queries[id]; ok {
		delete(r.turns.queries, id)
		q.answer(q.sequence, q.ok, nil)
	}
}

// storedOffset answers from the log's tracking and what waits to be written.
func (r *Replica) storedOffset(e *event) {
	t := &r.turns
	if t.run == nil {
		e.offset(0, false, ErrUnavailable)
		return
	}
	state := t.run.log.Tracking()
	offset, ok := t.pending.Current(state, []byte(e.name))
	if !ok && !state.Known() {
		e.offset(0, false, ErrTrackingUnknown)
		return
	}
	e.offset(offset, ok, nil)
}

// takeStores hands the offsets that clients have stored to the pacer.
func (r *Replica) takeStores() {
	t := &r.turns
	if t.epoch == 0 || t.pacer == nil || t.failed != nil {
		return
	}
	t.stored = r.stores.take(t.stored[:0], t.now, 2*r.stream.Settings.offsetsMax())
	state := t.run.log.Tracking()
	before := t.pending.Version()
	for i := range t.stored {
		o := t.pacer.Store(state, t.stored[i].reference, t.stored[i].offset, t.stamp, t.even)
		t.urgent = t.urgent || o == tracking.Back
	}
	if v := t.pending.Version(); v != before {
		r.step(protocol.Input{Kind: protocol.InStored, ID: v})
	}
}
