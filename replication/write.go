package replication

import (
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// earlyBytes is how big the chunk being built must be to be appended while a
// sync is in flight: from there on the write takes long enough to be worth
// overlapping with the sync, and the chunk is big enough for readers.
const earlyBytes = 256 << 10

// write appends what should be in the log by now.
func (r *Replica) write() {
	t := &r.turns
	if t.epoch == 0 || t.failed != nil {
		return
	}
	flush := t.flushWant || len(t.closing) > 0
	if flush {
		t.pacer.Flush()
		t.urgent = true
	}
	if t.assembler.open && (!t.run.syncing || flush || t.assembler.builder.DataLength() >= earlyBytes) {
		r.finishChunk()
	}
	r.writeDelta()
	if t.ageWant {
		t.ageWant = false
		if t.failed == nil {
			r.roll(segstore.AppendingNothing)
		}
	}
	if t.flushWant && t.failed == nil {
		t.flushWant = false
		r.step(protocol.Input{Kind: protocol.InFlushed})
	}
}

// makeRoom sees to it that the chunk being built has a buffer for so many more
// bytes. How big the first one is follows from what chunks were like of late,
// since a buffer too small costs a copy and one too big costs cache.
func (r *Replica) makeRoom(bytes int) {
	t := &r.turns
	if !t.assembler.open {
		t.growing = segstore.NewChunk(max(bytes, t.dataGuess))
		t.assembler.begin(t.growing.Head, t.growing.Data)
		return
	}
	total := t.assembler.builder.DataLength() + bytes
	if total <= cap(t.growing.Data) {
		return
	}
	larger := segstore.NewChunk(max(total, min(4*cap(t.growing.Data), chunk.DataLengthTarget)))
	larger.Head, t.growing.Head = t.growing.Head, larger.Head
	t.growing.Data = t.assembler.builder.Move(larger.Data)
	t.growing.Release()
	t.growing = larger
}

// finishChunk appends the chunk being built, after a snapshot where the log
// should roll. It returns false if the run is over.
func (r *Replica) finishChunk() bool {
	t := &r.turns
	if !r.roll(segstore.AppendingUser) {
		return false
	}
	c := t.growing
	t.growing = nil
	meta := r.meta(0)
	meta.Filter = t.assembler.filter.Bytes()
	t.sequences = t.assembler.sequences(t.sequences[:0])
	t.updates = t.updates[:0]
	if t.pacer.Decide(t.even, true).Action == tracking.Ride {
		t.updates = t.pending.Take(t.updates, chunk.TrailerLengthMax-t.assembler.trailerLength)
	}
	t.trailer = t.run.log.Tracking().EncodeTrailer(t.trailer[:0], false, t.sequences, nil)
	sequenceBytes := len(t.trailer)
	t.trailer = tracking.EncodeDelta(t.trailer, t.updates)
	meta.Trailer = t.trailer
	c.Head, c.Data, c.Header = t.assembler.builder.Finish(&meta)
	dataLength := len(c.Data)
	t.dataGuess = min(max(dataLength, t.dataGuess-t.dataGuess/8), chunk.DataLengthTarget)
	if !r.append(c) {
		return false // the reign's end fails what is being built
	}
	for _, b := range t.assembler.batches {
		r.queued.Add(-int64(len(b.Data)))
	}
	t.assembler.finished(meta.LSN, &t.waiting)
	t.lastUser = t.even
	t.pacer.UserBytes(t.even, int64(chunk.ClientHeaderLength+dataLength))
	if len(t.updates) > 0 {
		t.pacer.Written(t.even, int64(len(t.trailer)-sequenceBytes))
	}
	return true
}

// meta is what every chunk of this turn has.
func (r *Replica) meta(flags chunk.Flags) chunk.Meta {
	t := &r.turns
	lsn, base, digest := t.run.protocol.Next()
	return chunk.Meta{
		Incarnation: r.stream.Incarnation, Flags: flags, LSN: lsn, SyncedLSN: t.run.protocol.Durable().LSN,
		DigestBefore: digest, Timestamp: t.stamp, Epoch: t.epoch, BaseOffset: base,
	}
}

// append proposes a finished chunk to the protocol, which has it written. It
// takes the chunk's count over, and returns false if the run is over.
func (r *Replica) append(c *segstore.Chunk) bool {
	t := &r.turns
	t.writing = c
	r.step(protocol.Input{Kind: protocol.InAppend, Chunk: protocol.ChunkOf(&c.Header)})
	t.current = nil
	if t.writing != nil { // refused; only a run that is over does that
		t.writing.Release()
		t.writing = nil
		return false
	}
	r.counters.appended(&c.Header)
	c.Release()
	return t.failed == nil
}

// appendControl builds and appends a control chunk.
func (r *Replica) appendControl(kind chunk.Type, flags chunk.Flags, payload []byte) (length int, ok bool) {
	c := segstore.NewChunk(0)
	meta := r.meta(flags)
	meta.Trailer = payload
	c.Head, c.Header = chunk.BuildControl(kind, &meta, c.Head)
	length = len(c.Head)
	return length, r.append(c)
}

// roll begins a new segment if the log should have one before next is appended:
// a snapshot that carries everything (design 3.3, F1). It returns false if the
// run is over.
func (r *Replica) roll(next segstore.Appending) bool {
	t := &r.turns
	kind := t.run.log.ShouldRoll(t.now, next, r.storedNext(next))
	if kind == segstore.RollNone {
		return true
	}
	start := chunk.FlagSegmentStart
	if kind.StartsUnit() {
		start |= chunk.FlagUnitStart
	}
	parts := t.run.log.Tracking().EncodeSnapshot(tracking.SnapshotOptions{
		Now: t.stamp, Epoch: t.epoch, First: t.run.log.First(), Grace: r.stream.Settings.grace(),
	}, t.pending)
	for i, part := range parts {
		flags := chunk.Flags(0)
		if i == 0 {
			flags |= start | chunk.FlagSnapshotFirst
		}
		if i == len(parts)-1 {
			flags |= chunk.FlagSnapshotLast
		}
		if _, ok := r.appendControl(chunk.Snapshot, flags, part); !ok {
			return false
		}
	}
	t.pending.Clear()
	t.pacer.Carried(t.even)
	r.stores.forget()
	t.rolled = t.run.protocol.Tail().LSN
	r.counters.rolls.Add(1)
	return true
}

// storedNext returns how many bytes of stored offsets the next append carries.
func (r *Replica) storedNext(next segstore.Appending) int64 {
	t := &r.turns
	if next == segstore.AppendingNothing || next == segstore.AppendingUser && t.pacer.Decide(t.even, true).Action != tracking.Ride {
		return 0
	}
	return int64(t.pending.Bytes())
}

// rideWithin is how long after a user chunk stored offsets wait for the next one
// to carry them, since a trailer costs less than a chunk. Where user chunks
// flow, each asks the pacer, so no deadline passes unseen.
const rideWithin = 250 // milliseconds

// writeDelta writes pending stored offsets as a delta chunk if the pacer says
// so.
func (r *Replica) writeDelta() {
	t := &r.turns
	if !t.urgent && t.even < t.lastUser+rideWithin {
		return
	}
	t.urgent = false
	for t.failed == nil && t.pacer.Decide(t.even, false).Action == tracking.WriteDelta {
		if !r.roll(segstore.AppendingDelta) {
			return
		}
		if t.pending.Len() == 0 {
			return // the roll's snapshot has carried it
		}
		t.updates = t.pending.Take(t.updates[:0], chunk.TrailerLengthMax)
		t.trailer = tracking.EncodeDelta(t.trailer[:0], t.updates)
		length, ok := r.appendControl(chunk.Delta, 0, t.trailer)
		if !ok {
			return
		}
		t.pacer.Written(t.even, int64(length))
	}
}

// beginReign writes the barrier with what the election left (A6, F5), and opens
// the doors.
func (r *Replica) beginReign() {
	t := &r.turns
	t.lead = false
	if t.failed != nil {
		return
	}
	t.stamp = max(t.stamp, t.run.log.LastTimestamp()) // a leader before may be ahead
	state := t.run.log.Tracking()
	updates := t.pending.ForBarrier(state, t.run.protocol.Tail())
	t.pending.Lead(t.epoch)
	t.lastUser = t.even - rideWithin
	t.pacer = tracking.NewPacer(r.stream.Settings.Pacing, t.pending, t.even)
	t.trailer = tracking.EncodeBarrier(t.trailer[:0], updates)
	if _, ok := r.appendControl(chunk.Delta, chunk.FlagEpochStart, t.trailer); !ok {
		return
	}
	r.stores.lead(t.epoch)
	r.publishers.begin(t.epoch)
}

// dropAssembly fails the batches in the chunk being built.
func (r *Replica) dropAssembly(err error) {
	t := &r.turns
	for _, b := range t.assembler.batches {
		r.giveBack(b, err)
	}
	t.assembler.abandon()
	if t.growing != nil {
		t.growing.Release()
		t.growing = nil
	}
}
