package protocol

import "github.com/millrace/millrace/segstore/chunk"

// followPhase is how far the session has come on the follower's side.
type followPhase uint8

const (
	followIdle      followPhase = iota // no session
	followPromising                    // hello is in; its epoch's promise is being synced
	followSearching                    // find is out
	followCutting                      // a truncation or reset is under way
	followStreaming                    // chunks may come
)

func (p followPhase) String() string {
	return [...]string{"idle", "promising", "searching", "cutting", "streaming"}[p]
}

// Follower is a replica's half that takes what the leader of its promised
// epoch sends. Replica.Following returns it; all its inputs go through
// Replica.Step.
type Follower struct {
	*local
	phase   followPhase
	leader  NodeID // of epoch; remembered beyond the session (I1)
	epoch   chunk.Epoch
	session SessionID

	search       search
	leaderStart  LogStart
	leaderCommit chunk.LSN // as told in this session
	first        bool      // the next frame must name the chunk before it
	acked        chunk.LSN // in this session
	welcomed     Journal   // what the leader was told of this replica

	alarm Reason
}

// endSession forgets the session, not who led the epoch.
func (f *Follower) endSession() {
	f.phase = followIdle
	f.leaderCommit = 0
}

// leave tells the leader why the session ends, so that one that is deposed and
// does not know stops at once.
func (f *Follower) leave(why Reason, out []Output) []Output {
	if f.phase == followIdle {
		return out
	}
	out = f.post(Message{Kind: MsgRefuse, Reason: why, Promised: f.journal.Promise}, out)
	f.endSession()
	return out
}

func (f *Follower) step(now Tick, in *Input, out []Output) []Output {
	switch in.Kind {
	case InMessage:
		if in.Message.Kind == MsgHello {
			return f.hello(in.Peer, in.Message, out)
		}
		return f.message(in, out)
	case InDisconnected:
		if in.Peer == f.leader {
			f.endSession()
		}
	case InPersisted:
		return f.promised(out)
	case InTruncated, InReset:
		return f.cutDone(out)
	case InDurable:
		return f.ack(out)
	case InAppend, InQuery, InTransfer:
		return append(out, Output{Kind: OutRefuse, ID: in.ID, Reason: ReasonNotLeader, Epoch: f.journal.Promise})
	}
	return out
}

// hello opens a session, once its epoch is promised and synced (A2, B1).
func (f *Follower) hello(from NodeID, m *Message, out []Output) []Output {
	switch {
	case m.Stream != f.stream:
		return append(out, f.refusal(from, m, ReasonStream))
	case m.Epoch < f.journal.Promise:
		return append(out, f.refusal(from, m, ReasonPromised))
	case f.journal.Registration == Unregistered:
		return append(out, f.refusal(from, m, ReasonAside))
	case m.Epoch == f.epoch && f.leader != "" && from != f.leader:
		f.alarm = ReasonTwoLeaders
		return out
	case m.Epoch == f.epoch && m.Session <= f.session && f.leader != "":
		return out // an old session's, late
	}
	if m.Epoch > f.journal.Promise {
		out = f.promise(m.Epoch, out)
		out = f.leave(ReasonPromised, out)
	}
	f.endSession()
	f.phase, f.leader, f.epoch, f.session = followPromising, from, m.Epoch, m.Session
	return f.promised(out)
}

// refusal tells another leader what is promised here.
func (l *local) refusal(to NodeID, m *Message, why Reason) Output {
	return Output{Kind: OutSend, Peer: to, Message: Message{
		Kind: MsgRefuse, Epoch: m.Epoch, Session: m.Session, Reason: why, Promised: l.journal.Promise}}
}

// promised welcomes the leader when the journal is synced and no cut of an
// earlier session is under way; later it tells it when the marks change.
func (f *Follower) promised(out []Output) []Output {
	if f.phase == followIdle || f.busy || f.synced != f.journal {
		return out
	}
	if f.phase > followPromising {
		if f.welcomed.Aside != f.journal.Aside || f.welcomed.Registration != f.journal.Registration {
			return f.welcome(out)
		}
		return out
	}
	out = f.welcome(out)
	f.search = search{at: f.tailOf(f.tail)}
	if !f.rules.search {
		return f.join(out)
	}
	f.phase = followSearching
	return f.post(Message{Kind: MsgFind, Tail: f.search.at}, out)
}

func (f *Follower) welcome(out []Output) []Output {
	f.welcomed = f.journal
	return f.post(Message{Kind: MsgWelcome, Run: f.run, Registration: f.journal.Registration, Aside: f.journal.Aside}, out)
}

func (f *Follower) post(m Message, out []Output) []Output {
	m.Epoch, m.Session = f.epoch, f.session
	return append(out, Output{Kind: OutSend, Peer: f.leader, Message: m})
}

// message takes what the leader says in its session.
func (f *Follower) message(in *Input, out []Output) []Output {
	m := in.Message
	if !f.inSession(in.Peer, m) {
		return f.outside(in, out)
	}
	switch m.Kind {
	case MsgFound:
		return f.found(m, out)
	case MsgChunk:
		return f.chunk(m, out)
	case MsgPending:
		return f.hold(m, out)
	case MsgCommit:
		return f.committed(m, out)
	case MsgCheck:
		return f.post(Message{Kind: MsgChecked, ID: m.ID}, out)
	}
	return out
}

// inSession: of the promised epoch, the present session, and from its leader.
func (f *Follower) inSession(from NodeID, m *Message) bool {
	return f.phase != followIdle && from == f.leader && m.Epoch == f.epoch && m.Session == f.session && m.Epoch == f.journal.Promise
}

// outside: such a message says nothing. A lower epoch's leader is told.
func (f *Follower) outside(in *Input, out []Output) []Output {
	m := in.Message
	switch {
	case m.Kind == MsgChunk && !f.rules.session && m.Epoch >= f.journal.Promise:
		f.phase, f.leader, f.epoch, f.session, f.first = followStreaming, in.Peer, m.Epoch, m.Session, false
		return f.chunk(m, out)
	case m.Kind == MsgCommit && !f.rules.commitSession && m.Epoch >= f.journal.Promise:
		return f.committed(m, out)
	case m.Epoch < f.journal.Promise && m.Kind == MsgCheck:
		return append(out, f.refusal(in.Peer, m, ReasonPromised))
	}
	return out
}

// chunk takes the next chunk if it continues the log (B2).
func (f *Follower) chunk(m *Message, out []Output) []Output {
	if f.phase != followStreaming && f.rules.session {
		return out
	}
	c := &m.Chunk
	gap := c.LSN > f.tail+1
	if !f.continues(m, gap) {
		return f.leave(ReasonOrder, out)
	}
	f.first = false
	if gap {
		out = f.skip(m, out)
		if f.alarm != 0 {
			return out
		}
	}
	out = f.sync(f.write(c, out))
	f.leaderCommit = max(f.leaderCommit, m.Commit)
	out = f.advance(f.leaderCommit, out)
	if !f.rules.durable {
		out = f.ack(out)
	}
	return out
}

func (f *Follower) continues(m *Message, gap bool) bool {
	c := &m.Chunk
	switch {
	case c.LSN <= f.tail, c.Offset != f.next, c.Before != f.digest:
		return false
	case (gap || f.first) && (!m.First || m.Tail != f.tailOf(f.tail)):
		return false
	case gap != (m.Gap != nil):
		return false
	}
	return c.Epoch >= f.table.Last() && c.Epoch <= m.Epoch
}

// skip passes a gap: what is missing was committed, and its epoch lines and
// segment boundaries come with it (C5).
func (f *Follower) skip(m *Message, out []Output) []Output {
	end := m.Chunk.LSN - 1
	if m.Commit < end {
		f.alarm = ReasonGapUncommitted
		return out
	}
	if f.rules.gapEpochs {
		for _, l := range m.Gap.Lines {
			f.table.add(l)
		}
	}
	f.backlog.release(f.tail)
	f.ends = f.next // a gap holds no records
	return append(out, Output{Kind: OutGap, LSN: end, Chunk: m.Chunk, Gap: m.Gap})
}

// committed takes the leader's commit and log start (B5).
func (f *Follower) committed(m *Message, out []Output) []Output {
	if f.phase != followStreaming && f.rules.commitSession {
		return out
	}
	f.leaderCommit = max(f.leaderCommit, m.Commit)
	out = f.advance(f.leaderCommit, out)
	if m.Start.LSN > f.startWanted {
		out = f.wantStart(m.Start.LSN, out)
	}
	return out
}

// ack tells the leader what is durable here, by epoch and session (B3).
func (f *Follower) ack(out []Output) []Output {
	if f.phase != followStreaming || f.reach() <= f.acked {
		return out
	}
	f.acked = f.reach()
	return f.post(Message{Kind: MsgAck, LSN: f.reach()}, out)
}

// hold has the leader's pending updates kept in memory (F5). They are of its
// epoch, or the message would not be of this session.
func (f *Follower) hold(m *Message, out []Output) []Output {
	if f.phase != followStreaming {
		return out
	}
	return append(out, Output{Kind: OutHold, First: m.First, Epoch: m.Epoch})
}

// Session is who leads this replica, in which epoch and session; ok while
// chunks may come.
func (f *Follower) Session() (leader NodeID, e chunk.Epoch, s SessionID, ok bool) {
	return f.leader, f.epoch, f.session, f.phase == followStreaming
}

// Opened tells whether the leader of the promised epoch has opened a session,
// perhaps without a chunk yet.
func (f *Follower) Opened() bool { return f.phase != followIdle }

// LeaderCommit is the commit that the leader told last; the distance to the
// own tail is what is missing here.
func (f *Follower) LeaderCommit() chunk.LSN { return f.leaderCommit }
