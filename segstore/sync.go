package segstore

import (
	"fmt"
	"sync"

	"github.com/millrace/millrace/segstore/chunk"
)

// syncRequest is one call of Sync on its way. It is pooled with its callback,
// so that syncing allocates nothing.
type syncRequest struct {
	log     *Log
	handle  *handle
	segment *segment
	tail    chunk.Tail
	end     int64
	run     uint64
	done    func(chunk.Tail, error)
	answer  func(error) // r.finish, bound once
}

var syncRequests sync.Pool

func newSyncRequest() *syncRequest {
	if r, ok := syncRequests.Get().(*syncRequest); ok {
		return r
	}
	r := &syncRequest{}
	r.answer = r.finish
	return r
}

// Sync asks for everything appended so far to become durable and calls done,
// once, with the durable tail: later on another goroutine, or at once when
// nothing is to be done. Appends may go on meanwhile. done must be short and
// must not wait for another sync. Mutator.
//
// Errors: ErrPoisoned with the cause; the durable tail is then final, and the
// log must be closed and opened again.
func (l *Log) Sync(done func(durable chunk.Tail, err error)) {
	l.mu.Lock()
	durable, tail, run, err := l.durable, l.tail, l.run, l.err()
	l.mu.Unlock()
	s := l.active
	if err != nil || s == nil || durable == tail {
		done(durable, err)
		return
	}
	h, err := l.store.handles.acquire(s)
	if err != nil {
		done(durable, l.condemn(l.wrap("sync", err), err))
		return
	}
	r := newSyncRequest()
	r.log, r.handle, r.segment, r.tail, r.end, r.run, r.done = l, h, s, tail, l.summary.Size, run, done
	l.store.syncer.Submit(h.File, r.answer)
}

func (r *syncRequest) finish(err error) {
	l, done := r.log, r.done
	durable, err := l.synced(r.segment, r.tail, r.end, r.run, err)
	if err == nil {
		l.markFirst(r.segment)
	}
	l.store.handles.release(r.handle)
	answer := r.answer
	*r = syncRequest{answer: answer}
	syncRequests.Put(r)
	done(durable, err)
}

// synced takes the outcome of a sync into account that covered the chunks up to
// tail, if nothing was cut since it was asked for.
func (l *Log) synced(s *segment, tail chunk.Tail, end int64, run uint64, err error) (chunk.Tail, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if run != l.run {
		return l.durable, l.err()
	}
	if err != nil && l.poison == nil {
		l.poison = fmt.Errorf("%w: log %s, durable up to %s: %w", ErrPoisoned, l.inc, l.durable, err)
	}
	if l.poison != nil {
		return l.durable, l.poison
	}
	if tail.Compare(l.durable) > 0 {
		l.durable = tail
	}
	if end > s.synced.Load() {
		s.synced.Store(end)
	}
	return l.durable, nil
}

// markFirst writes the durable mark to the journal when the first chunks of a
// segment have become durable: from then on its file is missed if it is lost as
// a whole, with all that its chunks say of what was synced. Nobody waits for
// that.
//
// A cut must not be overtaken by the mark of what it takes. It forgets the durable
// tail under mu first, and lowers the journal's mark behind that: what is marked
// under mu was so before, or is what the cut has left.
func (l *Log) markFirst(s *segment) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.marked < s.name.FirstLSN && l.durable.LSN >= s.name.FirstLSN {
		l.marked = l.durable.LSN
		l.store.journal.Progress(l.inc, l.durable.LSN, l.Commit(), nil)
	}
}

// syncNow waits for everything appended so far.
func (l *Log) syncNow() error {
	return await(l.store.syncer, func(done func(error)) { l.Sync(func(_ chunk.Tail, err error) { done(err) }) })
}
