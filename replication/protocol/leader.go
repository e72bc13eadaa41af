package protocol

import (
	"fmt"

	"github.com/millrace/millrace/segstore/chunk"
)

// Leader is a replica's half that appends, in one epoch. Replica.Leading
// returns it; all its inputs go through Replica.Step.
type Leader struct {
	*local
	epoch   chunk.Epoch
	adopted Configuration // the one it counts with (D3)
	me      Member        // its own entry there
	member  bool          // it is still one of the replicas
	peers   []Progress
	// sessions counts the sessions of the reign with whomever, so that one
	// that was removed and added again meets no number twice.
	sessions SessionID
	count    Commitment

	ready   bool // the barrier is committed
	settled bool // adopted is settled (D3)

	version  uint64   // of the newest pending update
	transfer transfer // D4
	queries  []query  // F3
	round    uint64   // last check round begun
	asking   bool     // that round is open
	checked  uint64   // last round that a majority confirmed

	superseded bool   // a higher epoch was promised by a follower
	alarm      Reason // this run must stop
}

// begin starts the reign: a merged barrier first, everything else after it
// (A6).
func (l *Leader) begin(now Tick, a *Assignment, left Inheritance, out []Output) []Output {
	*l = Leader{local: l.local, epoch: a.Epoch, peers: l.peers[:0], queries: l.queries[:0], count: l.count}
	l.count.First = 0
	out = append(out, Output{Kind: OutLead, Epoch: a.Epoch, LSN: l.tail + 1})
	out = l.wantStart(left.LogStart, out)
	return l.adopt(now, a.Replicas, out)
}

// end leaves the reign.
func (l *Leader) end(out []Output) []Output {
	for _, q := range l.queries {
		out = append(out, Output{Kind: OutRefuse, ID: q.id, Reason: ReasonNotLeader, Epoch: l.journal.Promise})
	}
	l.queries = l.queries[:0]
	l.peers = l.peers[:0]
	return out
}

func (l *Leader) step(now Tick, in *Input, out []Output) []Output {
	switch in.Kind {
	case InAppend:
		return l.appended(now, in, out)
	case InDurable, InLogStart:
		out = l.recount(now, out)
		return l.tell(out)
	case InConfig:
		return l.adopt(now, *in.Config, out)
	case InConnected:
		return l.connected(now, in.Peer, out)
	case InDisconnected:
		if p := l.peer(in.Peer); p != nil {
			l.drop(p, phaseDown, now)
			out = l.recount(now, out)
		}
	case InMessage:
		return l.message(now, in, out)
	case InRead:
		return l.read(now, in, out)
	case InReadEnd:
		return l.readEnd(now, in, out)
	case InStored:
		return l.stored(now, in.ID, out)
	case InQuery:
		return l.query(in, out)
	case InTransfer:
		return l.handOver(now, in, out)
	case InFlushed:
		return l.flushed(now, out)
	case InCancel:
		l.transfer = transfer{}
	case InTick:
		return l.tick(now, out)
	}
	return out
}

// appended takes the next chunk: have it written, send it at once to who is
// at the tail, and only then sync (design 3.7).
func (l *Leader) appended(now Tick, in *Input, out []Output) []Output {
	c := &in.Chunk
	l.check(c)
	if l.count.First == 0 && (c.has(chunk.FlagEpochStart) || !l.rules.barrier) {
		l.count.First = c.LSN
	}
	out = l.write(c, out)
	for i := range l.peers {
		p := &l.peers[i]
		if p.phase != phaseStreaming || p.reading {
			continue
		}
		if p.next == c.LSN && !p.flight.full(l.limits) {
			out = l.send(p, c, nil, now, out)
		} else {
			out = l.pump(p, now, out)
		}
	}
	out = l.sync(out)
	if !l.rules.durable {
		out = l.recount(now, out)
	}
	return out
}

// check: a chunk that does not continue the log is a bug of the driver.
func (l *Leader) check(c *Chunk) {
	barrier := c.has(chunk.FlagEpochStart)
	switch {
	case c.LSN != l.tail+1 || c.Epoch != l.epoch:
		panic(fmt.Sprintf("protocol: chunk %v appended at tail %v in epoch %d", c.Tail(), l.tailOf(l.tail), l.epoch))
	case c.Offset != l.next || c.Before != l.digest:
		panic(fmt.Sprintf("protocol: chunk %v at offset %d, digest %v; the log is at %d, %v", c.Tail(), c.Offset, c.Before, l.next, l.digest))
	case barrier != (l.count.First == 0) && l.rules.barrier:
		panic(fmt.Sprintf("protocol: chunk %v: the barrier comes first, and once (A6)", c.Tail()))
	case barrier && (c.Type != chunk.Delta || c.has(chunk.FlagSegmentStart)):
		panic(fmt.Sprintf("protocol: barrier %v: a delta that starts no segment (A6)", c.Tail()))
	}
}

// recount finds what is committed now (B4), and does what waited for it.
func (l *Leader) recount(now Tick, out []Output) []Output {
	l.tally()
	n := l.count.Committed()
	if !l.rules.barrier {
		n = l.count.Held()
	}
	if n > l.commit {
		out = l.advance(n, out)
		out = l.tell(out)
	}
	if !l.ready && l.count.First > 0 && l.commit >= l.count.First {
		l.ready = true
		out = append(out, Output{Kind: OutReady, Epoch: l.epoch, LSN: l.commit})
	}
	out = l.settle(now, out)
	out = l.answer(out)
	return l.handing(now, out)
}

// tally enters what each voter that counts holds durably (B3).
func (l *Leader) tally() {
	l.count.Begin()
	if l.countsItself() {
		l.count.Count(l.reach())
	}
	for i := range l.peers {
		p := &l.peers[i]
		if l.counts(p.Member, p.aside, p.registration) && (p.phase == phaseStreaming || !l.rules.ackEpoch || !l.rules.ackSession || !l.rules.session) {
			l.count.Count(p.acked)
		}
	}
}

// counts: neither the metadata nor the replica itself sets it aside, and both
// mean the same entry.
func (l *Leader) counts(m Member, aside bool, r Registration) bool {
	if !l.rules.emptiedAside {
		return !m.Learner
	}
	return m.Counts() && !aside && r == m.Registration
}

// countsItself: by the same rule; but a sole voter that was elected has been
// taken back, whatever the metadata's mark says (design 3.7).
func (l *Leader) countsItself() bool {
	if l.member && !l.me.Learner && l.adopted.Voters() == 1 {
		return true
	}
	return l.member && l.counts(l.me, l.journal.Aside, l.journal.Registration)
}

// tell propagates commit and log start (B5).
func (l *Leader) tell(out []Output) []Output {
	for i := range l.peers {
		p := &l.peers[i]
		if p.phase == phaseStreaming && (p.commitSent < l.commit || p.startSent < l.start.LSN) {
			out = l.sendCommit(p, out)
		}
	}
	return out
}

func (l *Leader) sendCommit(p *Progress, out []Output) []Output {
	p.commitSent, p.startSent = l.commit, l.start.LSN
	return l.post(p, Message{Kind: MsgCommit, Commit: l.commit, Start: LogStart{LSN: l.start.LSN}}, out)
}

// post sends a message of p's session.
func (l *Leader) post(p *Progress, m Message, out []Output) []Output {
	m.Epoch, m.Session = l.epoch, p.session
	return append(out, Output{Kind: OutSend, Peer: p.Member.Node, Message: m})
}

func (l *Leader) peer(n NodeID) *Progress {
	for i := range l.peers {
		if l.peers[i].Member.Node == n {
			return &l.peers[i]
		}
	}
	return nil
}

// Epoch is the one led.
func (l *Leader) Epoch() chunk.Epoch { return l.epoch }

// Ready tells whether the barrier is committed.
func (l *Leader) Ready() bool { return l.ready }

// Adopted is the configuration that the leader counts with.
func (l *Leader) Adopted() Configuration { return l.adopted }

// Settled tells whether the next change of the voters may come (D3).
func (l *Leader) Settled() bool { return l.settled }

// Peers is what the leader knows of the other replicas; not to be changed.
func (l *Leader) Peers() []Progress { return l.peers }

// Uncommitted is the bytes appended in this run and not committed.
func (l *Leader) Uncommitted() int64 { return l.backlog.bytes }

// Accept says what to do with new publishes.
type Accept uint8

const (
	// Take: append them.
	Take Accept = iota
	// Hold: keep them; the barrier is not written, a transfer is on, or the
	// followers lag (F2, D4).
	Hold
	// Refuse: answer with an error; no majority is in reach and what may be
	// accepted without one has been (B7).
	Refuse
)

func (a Accept) String() string { return [...]string{"take", "hold", "refuse"}[a] }

// Accept tells what to do with new publishes now.
func (l *Leader) Accept() Accept {
	switch {
	case l.count.First == 0 || l.transfer.held:
		return Hold
	case l.backlog.bytes < l.limits.UncommittedBytes:
		return Take
	case l.inReach():
		return Hold
	}
	return Refuse
}

// inReach tells whether a majority that counts is in session.
func (l *Leader) inReach() bool {
	l.tally()
	return len(l.count.acks) >= l.count.Quorum
}
