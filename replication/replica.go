package replication

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// Replica is this node's copy of one stream. Its methods may be called from
// anywhere and, QueryOffset apart, do not wait for the disk or for others: what
// takes time ends in a callback from a turn.
type Replica struct {
	node   *Node
	stream Stream

	inbox      inbox
	publishers publishers
	stores     stores
	progress   progress
	watchers   watchers
	log        atomic.Pointer[segstore.Log] // of the present run
	queued     atomic.Int64                 // bytes published and not yet in the log
	retains    atomic.Bool                  // there is a bound for what is kept
	counters   counters
	alarm      alarm
	standing   standing
	starved    atomic.Bool // others' disks stop the publishers (lookAround)

	// turns is owned by whoever runs a turn: one worker at a time.
	turns turns
}

// Stream names a stream and says how it is kept.
type Stream struct {
	Incarnation chunk.Incarnation
	Name        string // for errors and operators
	Settings    Settings
}

// Incarnation names the stream.
func (r *Replica) Incarnation() chunk.Incarnation { return r.stream.Incarnation }

// queuedBytesMax bounds what a stream's publishers may have sent that is not in
// its log yet, while the log is slow; without a majority the protocol refuses
// much earlier (B7). It is what a node's connections may have unconfirmed.
const queuedBytesMax = 256 << 20

// Publish takes a batch and answers its Sink later. Batches of one caller are
// stored in the order of its calls.
func (r *Replica) Publish(b *Batch) {
	size := int64(len(b.Data))
	switch {
	case size > chunk.DataLengthMax:
		b.Sink.Failed(b, ErrEntry)
	case b.Publisher.state.Load() != publisherOpen:
		b.Sink.Failed(b, ErrFenced)
	case r.queued.Add(size) > queuedBytesMax:
		r.queued.Add(-size)
		r.counters.refused.Add(uint64(len(b.IDs)))
		b.Publisher.refused()
		b.Sink.Failed(b, ErrBacklog)
	default:
		if !r.enqueue(b) {
			r.queued.Add(-size)
			b.Sink.Failed(b, ErrClosed)
		}
	}
}

// Declare opens a session that publishes under a reference, or without one
// under "". An older session of the reference is fenced, unless the node is
// told to refuse the newcomer or to share (F4).
//
// Errors: ErrNotLeader, ErrReferenceLength, ErrReferenceInUse.
func (r *Replica) Declare(reference string) (*Publisher, error) {
	if r.starved.Load() {
		return nil, ErrStarved
	}
	return r.publishers.declare(reference)
}

// Sequence answers, from a turn or at once, the highest publishing id that is
// stored under a reference, and whether there is one. The answer waits until
// that is committed and a majority has confirmed that this replica still leads
// (F3).
func (r *Replica) Sequence(reference string, answer func(sequence uint64, ok bool, err error)) {
	if err := checkReference(reference); err != nil {
		answer(0, false, err)
		return
	}
	if !r.post(event{kind: eventSequence, name: reference, sequence: answer}) {
		answer(0, false, ErrClosed)
	}
}

// StoreOffset stores an offset under a reference: it is answered by QueryOffset
// at once and reaches the log within the window that Stats tells. The string is
// not kept.
//
// Errors: ErrNotLeader, ErrReferenceLength.
func (r *Replica) StoreOffset(reference string, offset chunk.Offset) error {
	_, err := r.StoreOffsetFrom(Origin{}, reference, offset)
	return err
}

// StoreOffsetFrom is StoreOffset for another node, and returns the store's place in
// the reign's order. Errors: ErrOvertaken, as StoreOffset's.
func (r *Replica) StoreOffsetFrom(from Origin, reference string, offset chunk.Offset) (place uint64, err error) {
	if err := checkReference(reference); err != nil {
		return 0, err
	}
	place, due, ask, err := r.stores.put(from, reference, offset)
	switch {
	case err != nil || !ask:
		return place, err
	case due.After(r.node.clock.Now()):
		r.node.alarms.set(&r.alarm, due)
	default:
		r.wake()
	}
	return place, nil
}

// QueryOffset returns the offset stored under a reference and whether there is
// one. It may wait for a turn.
//
// Errors: ErrReferenceLength, ErrTrackingUnknown, ErrClosed.
func (r *Replica) QueryOffset(reference string) (chunk.Offset, bool, error) {
	type answer struct {
		offset chunk.Offset
		ok     bool
		err    error
	}
	answered := make(chan answer, 1)
	r.BeginQueryOffset(reference, func(offset chunk.Offset, ok bool, err error) {
		answered <- answer{offset, ok, err}
	})
	a := <-answered
	return a.offset, a.ok, a.err
}

// BeginQueryOffset is QueryOffset that answers from a turn, or at once.
func (r *Replica) BeginQueryOffset(reference string, answer func(offset chunk.Offset, ok bool, err error)) {
	if err := checkReference(reference); err != nil {
		answer(0, false, err)
		return
	}
	if offset, ok := r.stores.lookup(reference); ok {
		answer(offset, true, nil)
		return
	}
	if !r.post(event{kind: eventOffset, name: reference, offset: answer}) {
		answer(0, false, ErrClosed)
	}
}

// Inspect returns the log and the protocol of the present run, nil between
// runs. It is for simulators, which look between turns.
func (r *Replica) Inspect() (*segstore.Log, *protocol.Replica) {
	if u := r.turns.run; u != nil {
		return u.log, u.protocol
	}
	return nil, nil
}

func checkReference(reference string) error {
	if len(reference) == 0 || len(reference) > tracking.ReferenceLengthMax {
		return fmt.Errorf("reference of %d bytes: %w", len(reference), ErrReferenceLength)
	}
	return nil
}

// Committed returns the known commit and the offset behind its last record.
func (r *Replica) Committed() (chunk.LSN, chunk.Offset) { return r.progress.get() }

// Watch has call called, from turns, whenever there are new committed records,
// until cancel. It must not block; it may be called once more while cancel runs.
func (r *Replica) Watch(call func()) (cancel func()) { return r.watchers.add(call) }

// Attach opens a reader of the log. What it may give, its callers bound by
// Committed at each step.
func (r *Replica) Attach(spec segstore.Spec) (*segstore.Reader, error) {
	log := r.log.Load()
	if log == nil {
		return nil, ErrUnavailable
	}
	commit, _ := r.progress.get()
	reader, err := log.Attach(spec, commit)
	if errors.Is(err, segstore.ErrClosed) {
		return nil, errors.Join(ErrClosed, err)
	}
	return reader, err
}

// SetSettings changes how the stream is kept, from the next turn on.
func (r *Replica) SetSettings(s Settings) {
	r.post(event{kind: eventSettings, settings: &s})
}
