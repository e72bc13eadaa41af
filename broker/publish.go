package broker

import (
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/wire"
)

// publish is the way in for messages. The frame is checked as a whole, its
// entries are copied once into a pooled batch, and the batch is handed to the
// leading replica, which gives it back through Confirmed or Failed. Nothing is
// allocated, locked or passed on for each message.
func (s *session) publish(payload []byte) error {
	frame, err := wire.DecodePublish(payload)
	if err != nil {
		return violation{wire.CodeUnknownFrame, err}
	}
	s.mu.Lock()
	p := s.publishers[frame.PublisherID]
	s.mu.Unlock()
	switch {
	case p == nil:
		s.refuseEntries(&frame, 0, wire.CodePublisherDoesNotExist)
		return nil
	case p.holed.Load():
		p.errored.Add(uint64(frame.Count))
		s.refuseEntries(&frame, 0, wire.CodeStreamNotAvailable)
		return nil
	}
	if err := s.awaitRoom(); err != nil {
		return err
	}
	if frame.Accepted > 0 {
		b := takeBatch()
		fillBatch(b, &frame)
		b.Sink = p
		s.remember(b)
		p.published.Add(uint64(frame.Accepted))
		s.broker.stats.published.Add(uint64(frame.Records))
		if err := p.handle.publish(b, payload); err != nil {
			s.forget(b)
			return err
		}
	}
	if frame.Accepted < frame.Count {
		p.errored.Add(uint64(frame.Count - frame.Accepted))
		s.refuseEntries(&frame, frame.Accepted, wire.CodePreconditionFailed)
		if p.reference != "" { // as behind a refused batch
			p.holed.Store(true)
			s.endPublishers(p.tie.stream.Incarnation)
		}
	}
	return nil
}

// fillBatch copies a frame's accepted entries, as a chunk holds them.
func fillBatch(b *replication.Batch, frame *wire.Publish) {
	entries := frame.Entries()
	simple, filtered := true, false
	for range frame.Accepted {
		entry, _ := entries.Next()
		b.IDs = append(b.IDs, entry.PublishingID)
		b.Data = append(b.Data, entry.Raw...)
		b.Ends = append(b.Ends, uint32(len(b.Data)))
		simple = simple && !entry.SubBatch()
		filtered = filtered || len(entry.Filter) > 0
	}
	if !simple {
		fillRecords(b, frame)
	}
	if filtered {
		fillFilters(b, frame)
	}
}

func fillRecords(b *replication.Batch, frame *wire.Publish) {
	entries := frame.Entries()
	for range frame.Accepted {
		entry, _ := entries.Next()
		b.Records = append(b.Records, entry.Records)
	}
}

// fillFilters copies the filter values into one run of memory.
func fillFilters(b *replication.Batch, frame *wire.Publish) {
	size := 0
	for entries, i := frame.Entries(), 0; i < frame.Accepted; i++ {
		entry, _ := entries.Next()
		size += len(entry.Filter)
	}
	values := make([]byte, 0, size)
	entries := frame.Entries()
	for range frame.Accepted {
		entry, _ := entries.Next()
		from := len(values)
		values = append(values, entry.Filter...)
		b.Filters = append(b.Filters, values[from:len(values):len(values)])
	}
}

// refuseEntries answers every entry from the given one on with a code.
func (s *session) refuseEntries(frame *wire.Publish, from int, code wire.ResponseCode) {
	ids := make([]uint64, 0, frame.Count-from)
	entries := frame.Entries()
	for i := range frame.Count {
		entry, ok := entries.Next()
		if !ok {
			break
		}
		if i >= from {
			ids = append(ids, entry.PublishingID)
		}
	}
	s.broker.stats.count(code)
	s.broker.stats.errored.Add(uint64(len(ids)))
	s.out.answerRaw(func(frames []byte) []byte {
		return appendErrors(frames, frame.PublisherID, ids, code, s.frameMax)
	})
}

// appendErrors appends PublishError frames, none longer than the client agreed
// to.
func appendErrors(frames []byte, publisher uint8, ids []uint64, code wire.ResponseCode, frameMax uint32) []byte {
	most := wire.PublishErrorIDsMax(frameMax)
	for len(ids) > 0 {
		n := min(most, len(ids))
		frames = wire.AppendPublishError(frames, publisher, ids[:n], code)
		ids = ids[n:]
	}
	return frames
}

// Confirmed takes back a batch whose entries are all committed. It is called
// from a replica's turn.
func (p *publisher) Confirmed(b *replication.Batch) { p.session.out.settle(p, b, nil) }

// Failed takes back a batch of which nothing will be confirmed. It is called
// from a replica's turn, or from Publish.
func (p *publisher) Failed(b *replication.Batch, err error) {
	if p.reference != "" && leavesHole(err) {
		p.holed.Store(true) // before a later batch comes
	}
	p.session.out.settle(p, b, err)
}

// leavesHole says whether a named publisher must end with a refused batch. Were
// a later batch of its stored, the refused one would count as a duplicate when
// it is sent again: it would be confirmed, and be nowhere.
func leavesHole(err error) bool {
	return err != nil && !unknown(err) && !errors.Is(err, replication.ErrFenced)
}

// settle appends the confirms and errors that settled batches ask for, those of
// one publisher together. It runs in the writer goroutine.
func (w *writer) settle(settled []settlement) {
	for i := range settled {
		p, b := settled[i].publisher, settled[i].batch
		if b == nil {
			continue // joined an earlier one
		}
		if settled[i].err != nil {
			w.failed(p, b, settled[i].err)
			continue
		}
		ids := append(w.ids[:0], b.IDs...)
		w.session.forget(b)
		for j := i + 1; j < len(settled); j++ {
			if settled[j].publisher == p && settled[j].err == nil && settled[j].batch != nil {
				ids = append(ids, settled[j].batch.IDs...)
				w.session.forget(settled[j].batch)
				settled[j].batch = nil
			}
		}
		w.ids = ids
		w.confirmed(p, ids)
	}
}

func (w *writer) confirmed(p *publisher, ids []uint64) {
	w.session.broker.stats.confirmed.Add(uint64(len(ids)))
	p.confirmed.Add(uint64(len(ids)))
	if !p.hears() {
		return
	}
	most := wire.ConfirmIDsMax(w.session.frameMax)
	for len(ids) > 0 {
		n := min(most, len(ids))
		w.run = wire.AppendPublishConfirm(w.run, p.id, ids[:n])
		ids = ids[n:]
	}
}

// unknown says that a failed batch may well be stored: its leader went away.
// The client hears of that by MetadataUpdate, and not by errors.
func unknown(err error) bool {
	return errors.Is(err, replication.ErrNotLeader) || errors.Is(err, replication.ErrUnavailable) ||
		errors.Is(err, replication.ErrClosed) || errors.Is(err, errPublisherUnknown)
}

// failed tells of a batch that was refused.
func (w *writer) failed(p *publisher, b *replication.Batch, err error) {
	ids := append(w.ids[:0], b.IDs...)
	w.ids = ids
	w.session.forget(b)
	p.errored.Add(uint64(len(ids)))
	if errors.Is(err, replication.ErrFenced) && !p.gone.Load() { // else the client has closed it
		w.session.fence(p)
	}
	if !p.hears() || unknown(err) {
		return
	}
	code := codeOf(err)
	w.session.broker.stats.count(code)
	w.session.broker.stats.errored.Add(uint64(len(ids)))
	w.run = appendErrors(w.run, p.id, ids, code, w.session.frameMax)
	if p.holed.Load() {
		w.session.endPublishers(p.tie.stream.Incarnation) // told behind the errors
	}
}

var batches = sync.Pool{New: func() any { return new(replication.Batch) }}

// batchBytesKept is the largest batch that is kept for reuse.
const batchBytesKept = 4 << 20

func takeBatch() *replication.Batch { return batches.Get().(*replication.Batch) }

func giveBatch(b *replication.Batch) {
	if cap(b.Data) > batchBytesKept {
		return
	}
	*b = replication.Batch{IDs: b.IDs[:0], Data: b.Data[:0], Ends: b.Ends[:0]}
	batches.Put(b)
}

// batchBytes is what a batch counts as while its client waits for the confirm:
// its bytes and what is kept beside them.
func batchBytes(b *replication.Batch) int64 {
	const beside = 8 + 4 // id and end
	return int64(len(b.Data) + beside*len(b.IDs))
}

// remember counts a batch that goes out; forget counts it back and reuses it.
func (s *session) remember(b *replication.Batch) {
	size := batchBytes(b)
	s.unconfirmed.Add(size)
	s.broker.unconfirmed.Add(size)
}

func (s *session) forget(b *replication.Batch) {
	size := batchBytes(b)
	giveBatch(b)
	s.unconfirmed.Add(-size)
	if s.blocked.Load() {
		signal(s.room)
	}
	most := s.limits.UnconfirmedBytesNode
	if left := s.broker.unconfirmed.Add(-size); left < most && left+size >= most {
		s.broker.room.announce()
	}
}

// awaitRoom stops reading while too much is unconfirmed, here or on the node,
// or while an alarm holds publishers. Nobody is told but by TCP.
func (s *session) awaitRoom() error {
	if s.hasRoom() {
		return nil
	}
	s.blocked.Store(true)
	s.broker.stats.blocked.Add(1)
	defer func() {
		s.blocked.Store(false)
		s.broker.stats.blocked.Add(-1)
	}()
	for {
		changed := s.broker.room.next()
		if s.hasRoom() {
			return nil
		}
		select {
		case <-s.room:
		case <-changed:
		case <-s.leaving:
			return errLeaving
		case <-s.dying:
			return errEnded
		}
	}
}

// awaitConfirms waits a moment for what is published to be settled, so that the
// client need not send it again.
func (s *session) awaitConfirms() {
	s.blocked.Store(true) // so that each settled batch signals room
	late := time.NewTimer(lastWordsTime)
	defer late.Stop()
	for s.unconfirmed.Load() > 0 {
		select {
		case <-s.room:
		case <-late.C:
			return
		case <-s.dying:
			return
		}
	}
}

func (s *session) hasRoom() bool {
	return s.unconfirmed.Load() < s.limits.UnconfirmedBytes &&
		s.broker.unconfirmed.Load() < s.limits.UnconfirmedBytesNode &&
		!s.broker.alarms.on()
}
