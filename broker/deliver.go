package broker

import (
	"time"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

const (
	// turnBytes is how much one subscription may take before the next has its
	// turn; one chunk always fits.
	turnBytes = 64 << 10
	// skippedBytes is what a chunk without a match counts as: it was looked at.
	skippedBytes = 1 << 10
)

// deliver is the way out for messages: it lets subscriptions add chunks to the
// round, one after another, until none has more or the round is full, which is
// when there may be more.
func (w *writer) deliver() (more bool, err error) {
	most := w.session.limits.DeliverBytes
	for taken := 0; taken < most && len(w.vectors) < vectorsMax; {
		sub, credit, seen := w.session.out.next()
		if sub == nil {
			return false, nil
		}
		n, err := w.serve(sub, credit, seen)
		if err != nil {
			return false, err
		}
		taken += n
	}
	return true, nil
}

// serve gives one subscription its turn. The error is of the socket: one of the
// log takes the subscription away, and the client is told to look elsewhere.
func (w *writer) serve(sub *subscription, credit int, seen uint64) (bytes int, err error) {
	used, atEnd := 0, false
	var broken error
	reader := sub.reader // which another may follow once this turn is over
	aloof := sub.member != nil && w.session.broker.standsAloof()
	if aloof {
		credit, atEnd = 0, true
	}
	for used < credit && bytes < turnBytes && len(w.vectors) < vectorsMax {
		commit, _ := sub.replica.Committed()
		due := reader.Offset()
		view, ok, failure := reader.Next(commit)
		if jumps := reader.Jumps(); jumps != sub.jumps && ok {
			w.session.overtaken(sub, jumps, due, view.Header.BaseOffset)
		}
		if failure != nil || !ok {
			broken, atEnd = failure, true
			break
		}
		if sub.filtered && !sub.matcher.Matches(view.Header.FilterAlgorithm, view.Filter()) {
			view.Release()
			bytes += skippedBytes
			continue
		}
		used++
		bytes += wire.DeliverV2HeadSize + chunk.ClientHeaderLength + int(view.Header.DataLength)
		if err = w.add(sub, view); err != nil {
			break
		}
	}
	if used == credit {
		reader.Rest()
	}
	switch {
	case w.session.out.served(sub, used, seen, atEnd):
		reader.Close()
	case broken != nil:
		w.session.lost(sub, broken)
	case aloof && !w.session.broker.standsAloof():
		w.session.out.resume(sub) // tendGroups may have passed over it while its turn was running
	}
	return bytes, err
}

// overtakenEvery is how often the log tells that a subscription is overtaken.
const overtakenEvery = time.Minute

// overtaken notes that retention took messages before a subscription had read
// them: it goes on at the first chunk that is left. The client sees that by the
// offsets alone, as clients are used to.
func (s *session) overtaken(sub *subscription, jumps uint64, from, to chunk.Offset) {
	s.broker.stats.overtaken.Add(jumps - sub.jumps)
	sub.jumps = jumps
	if now := time.Now(); now.Sub(sub.notedAt) >= overtakenEvery {
		sub.notedAt = now
		s.broker.config.Log.Info("retention has overtaken a subscription, which goes on at the first message",
			"connection", s.name, "stream", sub.tie.stream.Name, "subscription", sub.id, "from", from, "to", to)
	}
}

// add puts a Deliver frame into the round. The chunk's bytes are not touched,
// and go out whole even where the client agreed to shorter frames: clients take
// that, and there is no other way to give them the chunk.
func (w *writer) add(sub *subscription, view segstore.View) error {
	h := &view.Header
	sub.consumed.Add(uint64(h.Records))
	sub.last.Store(int64(h.BaseOffset) + int64(h.Entries) - 1)
	w.session.broker.stats.delivered.Add(uint64(h.Records))
	w.session.broker.stats.deliveredChunks.Add(1)
	size := chunk.ClientHeaderLength + int(h.DataLength)
	if w.session.deliverV2.Load() {
		w.run = wire.AppendDeliverV2(w.run, sub.id, uint64(sub.tie.committedChunk(sub.replica, h)), size)
	} else {
		w.run = wire.AppendDeliverV1(w.run, sub.id, size)
	}
	if file, position, length, ok := view.Section(); ok {
		defer view.Release()
		if err := w.flush(); err != nil {
			return err
		}
		return w.send(file, position, length)
	}
	header, data := view.Delivery()
	w.run = append(w.run, header...)
	if len(data) <= copiedBytesMax {
		w.run = append(w.run, data...)
		view.Release()
		return nil
	}
	w.refer(data)
	w.lent = append(w.lent, view)
	return nil
}

// committedChunk returns the base offset of the last committed user chunk, as
// far as this node knows. A reader at the tail has that chunk in hand; for
// others it is looked up once an advance of the commit. Only the writer calls it.
func (t *tie) committedChunk(replica Replica, delivered *chunk.Header) chunk.Offset {
	_, next := replica.Committed()
	switch {
	case next <= delivered.Next():
		return delivered.BaseOffset
	case next != t.committedNext:
		reader, err := replica.Attach(segstore.Spec{Kind: segstore.Last})
		if err != nil {
			return delivered.BaseOffset
		}
		t.committedBase, t.committedNext = reader.Offset(), next
		reader.Close()
	}
	return t.committedBase
}

// lost takes away a subscription whose log can't be read here any more.
func (s *session) lost(sub *subscription, cause error) {
	stream := sub.tie.stream
	if _, still := s.broker.directory.View().Incarnation(stream.Incarnation); !still {
		s.dropTie(stream.Incarnation, everything) // deleted: one notice for all
		return
	}
	s.broker.config.Log.Warn("subscription lost its log", "connection", s.name, "stream", stream.Name, "error", cause)
	s.dropTie(stream.Incarnation, loss{
		publisher:    func(*publisher) bool { return false },
		subscription: func(other *subscription) bool { return other == sub },
	})
}
