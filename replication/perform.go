package replication

import (
	"fmt"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// perform does what the protocol has put out. It never steps the protocol: what
// follows from an output is noted and done later in the turn.
func (r *Replica) perform(out *protocol.Output) {
	t := &r.turns
	switch out.Kind {
	case protocol.OutWrite:
		r.writeChunk()
	case protocol.OutSync:
		t.syncWant, t.syncID = true, out.ID
	case protocol.OutCommit:
		r.commit(out.LSN, out.Offset)
	case protocol.OutLead:
		t.epoch, t.lead = out.Epoch, true
		r.counters.setRole(RoleElected, out.Epoch)
	case protocol.OutReady:
		r.counters.setRole(RoleLeading, out.Epoch)
	case protocol.OutDeposed:
		r.endReign()
	case protocol.OutStopped:
		t.stopped = out.Reason
	case protocol.OutPersist:
		r.persist(out)
	case protocol.OutReport:
		r.report(out)
	case protocol.OutRefuse:
		r.refuse(out)
	case protocol.OutAnswer:
		r.answer(out.ID)
	case protocol.OutFlush:
		t.flushWant = true
	case protocol.OutLogStart:
		t.startWant = out.LSN
	case protocol.OutPropose:
		r.node.propose(r.stream.Incarnation, out.Proposal)
	case protocol.OutConnect:
		r.node.connect(out.Peer, r)
	case protocol.OutSend:
		r.send(out)
	case protocol.OutRead:
		t.reads = append(t.reads, reading{out.Peer, out.ID, out.LSN, out.Limit, out.Bytes})
	case protocol.OutGap:
		r.skip(out)
	case protocol.OutTruncate:
		r.truncate(out.LSN)
	case protocol.OutReset:
		r.reset(out.Start)
	case protocol.OutHold:
		r.hold(out)
	case protocol.OutTransfer:
		r.handedOver(out, nil)
	case protocol.OutTransferFailed:
		r.handedOver(out, ErrHandover)
		r.wake() // for the batches that were held
	default:
		panic(fmt.Sprintf("replication: output %v is not known", out.Kind))
	}
}

// writeChunk appends the chunk that the protocol has just taken: the one that
// was built here, or the one that came.
func (r *Replica) writeChunk() {
	t := &r.turns
	if t.writing == nil {
		r.follow()
		return
	}
	t.current = t.writing // goes to the followers in the same step
	r.writes(t.writing)
	t.writing = nil // append releases it
}

// handedOver tells who asked for it, or the metadata if this leader leaves, that
// the leader may be elected elsewhere now (D4).
func (r *Replica) handedOver(out *protocol.Output, err error) {
	t := &r.turns
	q, ok := t.requests[out.ID]
	delete(t.requests, out.ID)
	switch {
	case ok:
		q.done(err)
	case err == nil && r.node.yieldFunc != nil:
		r.node.yieldFunc(r.stream.Incarnation, out.Epoch, out.Peer)
	}
}

// commit confirms what is committed now.
func (r *Replica) commit(lsn chunk.LSN, next chunk.Offset) {
	t := &r.turns
	t.run.log.SetCommit(t.run.protocol.Persistable())
	if r.progress.set(lsn, next) {
		r.watchers.tell()
	}
	for t.waiting.len() > 0 && t.waiting.first().lsn <= lsn {
		r.give(t.waiting.pop().batch, nil)
	}
	r.answerOwed(lsn)
	if t.rolled != 0 && t.rolled <= lsn {
		t.rolled, t.retainWant = 0, true // E3 may allow more now
	}
	t.active = t.now
}

// persist has the journal remember what the protocol asks for (A2).
func (r *Replica) persist(out *protocol.Output) {
	run, id, keep := r.turns.run, out.ID, out.Journal
	r.node.store.Journal().Change(r.stream.Incarnation, func(s *segstore.StreamState) {
		s.Promise = max(s.Promise, keep.Promise)
		s.Registration = uint64(keep.Registration)
		s.Aside = asideOf(keep, s.Aside)
	}, func(err error) {
		r.post(event{kind: eventPersisted, run: run, id: id, err: err})
	})
}

// asideOf is what the journal calls a replica that counts for nothing.
func asideOf(keep protocol.Journal, was segstore.Aside) segstore.Aside {
	switch {
	case !keep.Aside:
		return segstore.NotAside
	case keep.Mark != chunk.Tail{}:
		return segstore.AsideDamaged
	case was == segstore.NotAside:
		return segstore.AsideLearner
	}
	return was
}

// report answers a fence (A3).
func (r *Replica) report(out *protocol.Output) {
	t := &r.turns
	out.Report.Pending = tracking.EncodeUpdates(nil, t.pending.Append(nil), reportBytesMax)
	if q, ok := t.requests[out.ID]; ok {
		delete(t.requests, out.ID)
		q.report(out.Report, nil)
	}
}

// reportBytesMax bounds the pending updates of one report.
const reportBytesMax = 1 << 20

// refuse passes a refusal to who asked.
func (r *Replica) refuse(out *protocol.Output) {
	t := &r.turns
	err := &RefusedError{Reason: out.Reason, Promise: out.Epoch}
	if q, ok := t.queries[out.ID]; ok {
		delete(t.queries, out.ID)
		q.answer(0, false, err)
	}
	if q, ok := t.requests[out.ID]; ok {
		delete(t.requests, out.ID)
		q.refused(err)
	}
}
