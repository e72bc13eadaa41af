package protocol

import "github.com/millrace/millrace/segstore/chunk"

// stored: there are pending updates to share, up to a version.
func (l *Leader) stored(now Tick, version uint64, out []Output) []Output {
	l.version = max(l.version, version)
	for i := range l.peers {
		out = l.share(&l.peers[i], now, out)
	}
	return out
}

// share sends the pending updates (F5) to a follower that has the barrier on
// its way: before that it keeps those of the epoch before, which the barrier
// holds. They go in the chunks' lane and in their order.
func (l *Leader) share(p *Progress, now Tick, out []Output) []Output {
	if !l.shareable(p) || p.pendingSet && now-p.pendingAt < l.limits.PendingEvery {
		return out
	}
	m := Message{Kind: MsgPending, First: !p.pendingSet, ID: p.pendingTo}
	p.pendingSet, p.pendingAt, p.pendingTo = true, now, l.version
	return l.post(p, m, out)
}

func (l *Leader) shareable(p *Progress) bool {
	return p.phase == phaseStreaming && l.count.First > 0 && p.next > l.count.First &&
		(!p.pendingSet || p.pendingTo < l.version)
}

// query is a sequence query on its way (F3).
type query struct {
	id    uint64
	lsn   chunk.LSN // chunk that applied the sequence
	round uint64    // check that began after the query came
}

// query holds a sequence query until a majority confirms, after it came in,
// that the epoch stands, and until what it answers is committed.
func (l *Leader) query(in *Input, out []Output) []Output {
	if len(l.queries) >= l.limits.Queries {
		return append(out, Output{Kind: OutRefuse, ID: in.ID, Reason: ReasonBusy, Epoch: l.epoch})
	}
	q := query{id: in.ID, lsn: in.LSN, round: l.round + 1}
	l.queries = append(l.queries, q)
	if !l.asking {
		out = l.ask(out)
	}
	return l.answer(out)
}

// ask begins a round; one at a time, so that many queries share it.
func (l *Leader) ask(out []Output) []Output {
	l.round++
	l.asking = true
	for i := range l.peers {
		if p := &l.peers[i]; p.phase == phaseStreaming {
			out = l.post(p, Message{Kind: MsgCheck, ID: l.round}, out)
		}
	}
	return out
}

// answer closes a round that a majority confirmed and answers what may be.
func (l *Leader) answer(out []Output) []Output {
	if l.asking && l.confirmed() {
		l.asking, l.checked = false, l.round
	}
	kept := l.queries[:0]
	for _, q := range l.queries {
		if l.answerable(q) {
			out = append(out, Output{Kind: OutAnswer, ID: q.id, LSN: q.lsn})
		} else {
			kept = append(kept, q)
		}
	}
	l.queries = kept
	if !l.asking && len(kept) > 0 && kept[len(kept)-1].round > l.round {
		out = l.ask(out)
		if l.confirmed() {
			return l.answer(out)
		}
	}
	return out
}

func (l *Leader) answerable(q query) bool {
	return (q.round <= l.checked || !l.rules.queryMajority) &&
		(l.ready || !l.rules.queryBarrier) &&
		(q.lsn <= l.commit || !l.rules.queryApplied)
}

// confirmed tells whether a majority of the voters has confirmed the round.
func (l *Leader) confirmed() bool {
	n := 0
	if l.countsItself() {
		n++
	}
	for i := range l.peers {
		p := &l.peers[i]
		if p.phase == phaseStreaming && p.checked >= l.round && l.counts(p.Member, p.aside, p.registration) {
			n++
		}
	}
	return n >= l.count.Quorum
}
