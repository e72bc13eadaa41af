package protocol

// found takes one answer of the divergence search (C2), and when it was the
// last, cuts what the leader lacks.
func (f *Follower) found(m *Message, out []Output) []Output {
	if f.phase != followSearching {
		return out
	}
	f.leaderStart = m.Start
	f.search.step(&f.table, m.Tail.Epoch, m.Tail.LSN, f.rules.ownTable)
	if !f.search.done {
		return f.post(Message{Kind: MsgFind, Tail: f.search.at}, out)
	}
	n := f.search.at.LSN
	switch {
	case n+1 < f.leaderStart.LSN:
		return f.startOver(out)
	case n < f.commit && f.rules.keepCommitted:
		f.alarm = ReasonCutCommitted // B6: keep the data, stop
		return out
	case n < f.tail:
		f.phase, f.busy = followCutting, true
		return append(out, Output{Kind: OutTruncate, LSN: n})
	}
	return f.join(out)
}

// startOver: the two logs share nothing that the leader still has (C4).
func (f *Follower) startOver(out []Output) []Output {
	if f.commit >= f.leaderStart.LSN && f.rules.keepCommitted {
		f.alarm = ReasonResetCommitted
		return out
	}
	f.phase, f.busy, f.resetTo = followCutting, true, f.leaderStart
	return append(out, Output{Kind: OutReset, LSN: f.leaderStart.LSN, Start: f.leaderStart})
}

// cutDone goes on after a truncation or reset; if the session it was for is
// over, a newer one may have waited for it.
func (f *Follower) cutDone(out []Output) []Output {
	if f.phase == followCutting {
		return f.join(out)
	}
	return f.promised(out)
}

// join ends the search: from here chunks may come.
func (f *Follower) join(out []Output) []Output {
	f.phase, f.first, f.acked = followStreaming, true, 0
	out = f.post(Message{Kind: MsgJoined, LSN: f.tail}, out)
	out = f.sync(out)
	return f.ack(out)
}
