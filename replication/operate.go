package replication

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// What operators ask of a stream's tracking, and change in it. Both go through
// the leader's turn, so that they have their place among clients' stores; a
// change is answered once the chunk that carries it is committed.

// Tracked is a stream's tracking at one moment of its leader.
type Tracked struct {
	Time      chunk.Timestamp      // of the moment
	Offsets   []tracking.Reference // the least recently stored first
	Sequences []TrackedSequence    // the least recently written first
}

// TrackedSequence is what a stream knows of a publisher.
type TrackedSequence struct {
	Reference string
	Sequence  uint64
	LSN       chunk.LSN // of the chunk that carries it
	Sessions  int       // that publish under it now
}

// BeginTracked answers, from a turn, all that the stream's leader knows of its
// readers and writers. Errors: ErrNotLeader, ErrTrackingUnknown, ErrClosed.
func (r *Replica) BeginTracked(answer func(*Tracked, error)) {
	e := event{kind: eventOperate, operate: func(err error) {
		if err != nil {
			answer(nil, err)
			return
		}
		answer(r.tracked())
	}}
	if !r.post(e) {
		answer(nil, ErrClosed)
	}
}

func (r *Replica) tracked() (*Tracked, error) {
	t := &r.turns
	if !r.accepts() {
		return nil, ErrNotLeader
	}
	state := t.run.log.Tracking()
	if !state.Known() {
		return nil, ErrTrackingUnknown
	}
	r.takeStores()
	list := &Tracked{Time: t.stamp, Offsets: t.pending.References(state)} // sorting is for others than the turn
	sessions := r.publishers.sessions()
	for ref, s := range state.Publishers() {
		list.Sequences = append(list.Sequences, TrackedSequence{ref, s.Last, s.LSN, sessions[ref]})
	}
	return list, nil
}

// accepts tells whether the turn may change the stream's tracking.
func (r *Replica) accepts() bool {
	t := &r.turns
	return t.run != nil && t.epoch != 0 && t.pacer != nil && t.failed == nil && len(t.closing)+len(t.removing) == 0
}

// TrackingChange is an operator's change of one reference.
type TrackingChange struct {
	Reference string
	// Forget takes the reference's stored offset away or, with Publisher, the
	// publisher's sequence. Without it, Offset is stored.
	Forget    bool
	Publisher bool
	Offset    chunk.Offset
	// Before, if not 0, lets the change happen only if the last update of the
	// stored offset is older.
	Before chunk.Timestamp
	// New lets the change happen only if nothing is stored.
	New bool
}

// BeginChangeTracking carries out changes, all in one turn, flushes them at once
// and answers when they are committed. It answers the references that did
// change: what is not there can't be forgotten, and Before or New may not hold.
//
// Errors: ErrReferenceLength; ErrReferenceInUse, if a publisher that is to be
// forgotten is connected, then nothing has changed; ErrNotLeader, ErrUnavailable
// and ErrClosed, then what was changed may or may not stay.
func (r *Replica) BeginChangeTracking(changes []TrackingChange, done func(changed []string, err error)) {
	for i := range changes {
		if err := checkReference(changes[i].Reference); err != nil {
			done(nil, err)
			return
		}
	}
	e := event{kind: eventOperate, operate: func(err error) {
		if err == nil {
			err = r.changeTracking(changes, done)
		}
		if err != nil {
			done(nil, err)
		}
	}}
	if !r.post(e) {
		done(nil, ErrClosed)
	}
}

// changesAtOnce is how many changes are pending together at most, and no more
// than Pending holds: beyond that the oldest would be dropped.
const changesAtOnce = 1000

// changeTracking makes the changes; commit answers them.
func (r *Replica) changeTracking(changes []TrackingChange, done func([]string, error)) error {
	if !r.accepts() {
		return ErrNotLeader
	}
	for i := range changes {
		if c := &changes[i]; c.Publisher && r.publishers.find(c.Reference) != nil {
			return ErrReferenceInUse
		}
	}
	t := &r.turns
	r.takeStores() // they came first
	r.flushTracking()
	atOnce := min(changesAtOnce, r.stream.Settings.offsetsMax())
	var changed []string
	var writers []tracking.SequenceUpdate
	for i := range changes {
		c := &changes[i]
		switch {
		case c.Publisher:
			if _, ok := t.run.log.Tracking().Sequence([]byte(c.Reference)); !ok {
				continue
			}
			writers = append(writers, tracking.SequenceUpdate{Ref: c.Reference, Forget: true})
		case !r.changeOffset(c):
			continue
		}
		changed = append(changed, c.Reference)
		if len(changed)%atOnce == 0 {
			r.flushTracking()
		}
	}
	r.flushTracking()
	r.forgetSequences(writers)
	if t.failed != nil {
		return ErrUnavailable
	}
	t.owed = append(t.owed, owedChange{t.run.protocol.Tail().LSN, changed, done})
	commit, _ := t.run.protocol.Commit()
	r.answerOwed(commit) // what did not change anything, perhaps
	return nil
}

// changeOffset makes one change of a stored offset; false if it does not apply.
func (r *Replica) changeOffset(c *TrackingChange) bool {
	t := &r.turns
	state, ref := t.run.log.Tracking(), []byte(c.Reference)
	now, has := t.pending.Reference(state, ref)
	switch {
	case has && c.New, !has && c.Forget, c.Before != 0 && (!has || now.Updated >= c.Before):
		return false
	case c.Forget:
		t.pacer.Forget(state, ref, t.stamp, t.even)
	default:
		t.pacer.Store(state, ref, c.Offset, t.stamp, t.even)
	}
	r.stores.drop(c.Reference)
	return true
}

// flushTracking writes what is pending, outside of the pacing.
func (r *Replica) flushTracking() {
	t := &r.turns
	t.pacer.Flush()
	t.urgent = true
	r.writeDelta()
}

// forgetSequences writes that publishers are forgotten. Sequences are no part of
// what is paced (F7).
func (r *Replica) forgetSequences(writers []tracking.SequenceUpdate) {
	slices.SortFunc(writers, func(a, b tracking.SequenceUpdate) int { return strings.Compare(a.Ref, b.Ref) })
	writers = slices.Compact(writers) // a chunk names each once
	for n := 0; len(writers) > 0; writers = writers[n:] {
		size := 0
		for n = 0; n < len(writers) && size < chunk.TrailerLengthMax; n++ {
			size += tracking.SequenceLengthMax(len(writers[n].Ref))
		}
		if size > chunk.TrailerLengthMax {
			n--
		}
		if !r.roll(segstore.AppendingDelta) {
			return
		}
		payload := r.turns.run.log.Tracking().EncodeTrailer(nil, false, writers[:n], nil)
		if _, ok := r.appendControl(chunk.Delta, 0, payload); !ok {
			return
		}
	}
}

// owedChange is a change whose commit is waited for.
type owedChange struct {
	lsn     chunk.LSN // that must be committed
	changed []string
	done    func([]string, error)
}

// answerOwed answers the changes that are committed.
func (r *Replica) answerOwed(commit chunk.LSN) {
	t := &r.turns
	for len(t.owed) > 0 && t.owed[0].lsn <= commit {
		t.owed[0].done(t.owed[0].changed, nil)
		t.owed[0] = owedChange{}
		t.owed = t.owed[1:]
	}
	if len(t.owed) == 0 {
		t.owed = nil
	}
}

// refuseOwed answers the changes of a reign that has ended: what the log has of
// them may stay or not.
func (r *Replica) refuseOwed(err error) {
	for _, o := range r.turns.owed {
		o.done(nil, err)
	}
	r.turns.owed = nil
}
