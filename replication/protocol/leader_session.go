package protocol

import "github.com/millrace/millrace/segstore/chunk"

// connected opens a session with a follower that the link reaches.
func (l *Leader) connected(now Tick, n NodeID, out []Output) []Output {
	if p := l.peer(n); p != nil {
		return l.hello(p, now, out)
	}
	return out
}

// hello begins a new session; what the old one taught is void (B3).
func (l *Leader) hello(p *Progress, now Tick, out []Output) []Output {
	l.drop(p, phaseHello, now)
	l.sessions++
	p.session = l.sessions
	return l.post(p, Message{Kind: MsgHello, Stream: l.stream, Config: l.adopted.Version}, out)
}

// drop forgets a session.
func (l *Leader) drop(p *Progress, to phase, now Tick) {
	flight := p.flight
	flight.reset()
	acked := p.acked
	*p = Progress{Member: p.Member, session: p.session, phase: to, since: now, flight: flight}
	if !l.rules.ackSession {
		p.acked = acked
	}
}

// message takes what a follower says. Whatever is not of this epoch and of
// the present session says nothing.
func (l *Leader) message(now Tick, in *Input, out []Output) []Output {
	m, p := in.Message, l.peer(in.Peer)
	switch {
	case m.Epoch < l.epoch && m.Kind == MsgCheck:
		return append(out, l.refusal(in.Peer, m, ReasonPromised)) // it does not know yet
	case p == nil:
		return out
	case m.Epoch != l.epoch || m.Session != p.session:
		if m.Kind == MsgAck && (m.Epoch == l.epoch && !l.rules.ackSession || m.Epoch != l.epoch && !l.rules.ackEpoch) {
			return l.acknowledged(p, m.LSN, now, out)
		}
		return out
	}
	switch m.Kind {
	case MsgWelcome:
		return l.welcomed(p, m, now, out)
	case MsgFind:
		if p.phase == phaseSearching {
			le, end := l.table.End(m.Tail.Epoch, l.tail)
			return l.post(p, Message{Kind: MsgFound, Tail: chunk.Tail{Epoch: le, LSN: end}, Start: l.start}, out)
		}
	case MsgJoined:
		return l.joined(p, m.LSN, now, out)
	case MsgAck:
		if p.phase == phaseStreaming || !l.rules.session {
			return l.acknowledged(p, m.LSN, now, out)
		}
	case MsgChecked:
		p.checked = max(p.checked, m.ID)
		return l.answer(out)
	case MsgRefuse:
		l.superseded = m.Promised > l.epoch
		l.drop(p, phaseRefused, now)
		return l.recount(now, out)
	}
	return out
}

// welcomed: the follower has promised the epoch, or its marks changed. One that
// restarted since is no party to this session.
func (l *Leader) welcomed(p *Progress, m *Message, now Tick, out []Output) []Output {
	switch {
	case p.phase == phaseHello:
		p.phase, p.since = phaseSearching, now
	case p.phase < phaseHello || p.run != m.Run:
		return out
	}
	p.run, p.registration, p.aside = m.Run, m.Registration, m.Aside
	return l.recount(now, out)
}

// joined: the search is done, both logs are equal up to n.
func (l *Leader) joined(p *Progress, n chunk.LSN, now Tick, out []Output) []Output {
	if p.phase != phaseSearching {
		return out
	}
	if n > l.tail || n+1 < l.start.LSN {
		return l.hello(p, now, out) // retention moved meanwhile
	}
	p.phase, p.since = phaseStreaming, now
	p.next, p.first = n+1, true
	out = l.sendCommit(p, out)
	out = l.pump(p, now, out)
	out = l.share(p, now, out)
	if l.asking {
		out = l.post(p, Message{Kind: MsgCheck, ID: l.round}, out)
	}
	return l.recount(now, out)
}

// acknowledged: all up to n is durable there.
func (l *Leader) acknowledged(p *Progress, n chunk.LSN, now Tick, out []Output) []Output {
	if n <= p.acked || p.phase == phaseStreaming && n >= p.next {
		return out
	}
	p.acked = n
	p.flight.release(n)
	out = l.recount(now, out)
	return l.pump(p, now, out)
}

// pump has chunks read for a follower that is behind and has room.
func (l *Leader) pump(p *Progress, now Tick, out []Output) []Output {
	switch {
	case p.phase != phaseStreaming || p.reading || p.next > l.tail || p.flight.full(l.limits):
		return out
	case p.next < l.start.LSN:
		return l.hello(p, now, out) // what it needs next is gone (C4)
	}
	p.reading, p.readFrom = true, p.next
	return append(out, Output{Kind: OutRead, Peer: p.Member.Node, ID: uint64(p.session), LSN: p.next, Limit: l.tail,
		Bytes: l.limits.WindowBytes - p.flight.bytes})
}

// read sends one chunk that was read. LSNs missing before it make a gap.
func (l *Leader) read(now Tick, in *Input, out []Output) []Output {
	p := l.peer(in.Peer)
	c := &in.Chunk
	if p == nil || !p.reading || in.ID != uint64(p.session) || c.LSN < p.next {
		return out
	}
	var gap *Gap
	if c.LSN > p.next {
		if c.LSN-1 > l.commit {
			l.alarm = ReasonGapUncommitted
			return out
		}
		gap = &Gap{Lines: l.table.Between(p.next-1, c.LSN), Segments: in.Segments}
	}
	return l.send(p, c, gap, now, out)
}

// readEnd ends a reading; one that brought nothing failed, and the session
// with it.
func (l *Leader) readEnd(now Tick, in *Input, out []Output) []Output {
	p := l.peer(in.Peer)
	if p == nil || !p.reading || in.ID != uint64(p.session) {
		return out
	}
	p.reading = false
	if p.next == p.readFrom {
		l.drop(p, phaseRefused, now)
		return l.recount(now, out)
	}
	return l.pump(p, now, out)
}

// send sends one chunk. The first of a session and each after a gap names the
// chunk before it (B2).
func (l *Leader) send(p *Progress, c *Chunk, gap *Gap, now Tick, out []Output) []Output {
	out = append(out, Output{Kind: OutSend, Peer: p.Member.Node, LSN: c.LSN})
	m := &out[len(out)-1].Message
	m.Kind, m.Epoch, m.Session, m.Chunk, m.Gap, m.Commit = MsgChunk, l.epoch, p.session, *c, gap, l.commit
	if p.first || gap != nil {
		m.First, m.Tail = true, l.tailOf(p.next-1)
		p.first = false
	}
	p.commitSent = l.commit
	p.next = c.LSN + 1
	p.flight.add(c.LSN, c.Bytes)
	if !p.pendingSet {
		return l.share(p, now, out)
	}
	return out
}

// tick repeats what was not answered.
func (l *Leader) tick(now Tick, out []Output) []Output {
	for i := range l.peers {
		p := &l.peers[i]
		switch {
		case p.phase == phaseDown:
		case p.phase != phaseStreaming:
			if now-p.since >= l.limits.RetryAfter {
				out = l.hello(p, now, out)
			}
		default:
			out = l.share(p, now, out)
			out = l.pump(p, now, out)
			if p.proposed && now-p.proposedAt >= l.limits.RetryAfter {
				p.proposed = false
			}
		}
	}
	return l.recount(now, out)
}

// deadline is the next moment at which tick has something to do.
func (l *Leader) deadline() (Tick, bool) {
	var at Tick
	any := false
	note := func(t Tick) {
		if !any || t < at {
			at, any = t, true
		}
	}
	for i := range l.peers {
		p := &l.peers[i]
		switch {
		case p.phase == phaseDown:
		case p.phase != phaseStreaming:
			note(p.since + l.limits.RetryAfter)
		default:
			if l.shareable(p) {
				note(p.pendingAt + l.limits.PendingEvery)
			}
			if p.proposed {
				note(p.proposedAt + l.limits.RetryAfter)
			}
		}
	}
	if l.transfer.on {
		note(l.transfer.since + l.limits.TransferAfter)
		if l.transfer.held && !l.transfer.told {
			note(l.transfer.heldSince + l.limits.HoldAfter)
		}
	}
	return at, any
}
