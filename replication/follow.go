package replication

import (
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// follow appends the chunk that came from the leader and that the protocol has
// just taken.
func (r *Replica) follow() {
	t := &r.turns
	c := t.arrived.Chunk
	t.run.log.Stamp(c)
	if !r.writes(c) {
		return
	}
	t.pending.Observe(&c.Header, c.Header.TrailerOf(c.Head))
}

// writes appends to the log; false if that failed, now or before.
func (r *Replica) writes(c *segstore.Chunk) bool {
	t := &r.turns
	if t.failed == nil {
		if err := t.run.log.Append(c); err != nil {
			r.fail(err)
		} else {
			r.node.disk.wrote(c.Header.Length())
		}
	}
	return t.failed == nil
}

// skip passes chunks that compaction has dropped at the leader (C5).
func (r *Replica) skip(out *protocol.Output) {
	t := &r.turns
	if t.failed != nil {
		return
	}
	gap := segstore.Gap{Last: out.LSN}
	for _, l := range out.Gap.Lines {
		if l.LSN <= out.LSN {
			gap.Lines = append(gap.Lines, segstore.EpochLine{Epoch: l.Epoch, LSN: l.LSN, Offset: l.Offset})
		}
	}
	for _, s := range out.Gap.Segments {
		gap.Segments = append(gap.Segments, segstore.GapSegment{FirstLSN: s.LSN, UnitStart: s.Unit})
	}
	if err := t.run.log.Skip(gap); err != nil {
		r.fail(err)
	}
}

// truncate cuts what the leader lacks (C3).
func (r *Replica) truncate(n chunk.LSN) {
	t := &r.turns
	if t.failed != nil {
		return
	}
	if _, err := t.run.log.Truncate(n); err != nil {
		r.fail(err)
		return
	}
	log := t.run.log
	t.answers = append(t.answers, protocol.Input{
		Kind: protocol.InTruncated, LSN: n, Offset: log.Next(), Digest: log.Digest(),
	})
}

// reset drops the log and begins at the leader's log start (C4). What lies at or
// above that start was never committed and is cut first.
func (r *Replica) reset(start protocol.LogStart) {
	t := &r.turns
	if t.failed != nil {
		return
	}
	log := t.run.log
	if log.Tail().LSN >= start.LSN {
		if _, err := log.Truncate(start.LSN - 1); err != nil {
			r.fail(err)
			return
		}
	}
	_, err := log.Reset(segstore.Start{
		LSN: start.LSN, Offset: start.Offset, Digest: start.Digest,
		Line: segstore.EpochLine{Epoch: start.Line.Epoch, LSN: start.Line.LSN, Offset: start.Line.Offset},
	})
	if err != nil {
		r.fail(err)
		return
	}
	t.answers = append(t.answers, protocol.Input{Kind: protocol.InReset})
}

// hold keeps the leader's pending updates in memory (F5). An update of another
// epoch than the session's is none of this leader's.
func (r *Replica) hold(out *protocol.Output) {
	t := &r.turns
	if out.First {
		t.pending.Clear()
	}
	updates, err := tracking.DecodeUpdates(t.updates[:0], t.arrived.Pending, r.stream.Settings.offsetsMax())
	t.updates = updates
	if err != nil {
		r.counters.malformed.Add(1) // one loss window of stored offsets, no more
		return
	}
	for i := range updates {
		if updates[i].Epoch == out.Epoch {
			t.pending.Add(updates[i])
		}
	}
}
