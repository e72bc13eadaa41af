package protocol

import (
	"fmt"

	"github.com/millrace/millrace/segstore/chunk"
)

// Role is what a replica does now.
type Role uint8

const (
	// Following: it takes what the leader of its promised epoch sends, if any.
	Following Role = iota
	// Leading: it appends.
	Leading
	// Stopped: this run is over, by an alarm or a storage failure.
	Stopped
)

func (r Role) String() string { return [...]string{"following", "leading", "stopped"}[r] }

// Replica is one copy of a stream: the part that both roles share, and the
// role. One goroutine at a time may call it.
type Replica struct {
	local
	role     Role
	leader   Leader
	follower Follower

	fence    fence
	reported Report // the last one of this run; Epoch 0: none that may still be used
}

// fence is a promise on its way to its report.
type fence struct {
	open  bool
	epoch chunk.Epoch
	id    uint64
}

// New makes a replica that has just started. The run id must be new.
func New(self NodeID, run RunID, limits Limits, from Recovered) (*Replica, error) {
	return newReplica(self, run, limits, from, allRules())
}

func newReplica(self NodeID, run RunID, limits Limits, from Recovered, rules rules) (*Replica, error) {
	table, err := NewEpochTable(from.Lines)
	if err != nil {
		return nil, err
	}
	if from.Start.LSN == 0 {
		from.Start.LSN = 1
	}
	if from.Tail < from.Start.LSN-1 || table.At(from.Tail) != table.Last() {
		return nil, fmt.Errorf("tail %d under log start %d and epoch lines to %d: %w", from.Tail, from.Start.LSN, table.Last(), ErrRecovered)
	}
	r := &Replica{local: local{
		self: self, run: run, stream: from.Stream, limits: limits.withDefaults(), rules: rules,
		journal: from.Journal, synced: from.Journal,
		table: table, start: from.Start, startWanted: from.Start.LSN,
		tail: from.Tail, durable: from.Tail, next: from.Next, digest: from.Digest,
		commit: from.Commit, ends: from.CommitOffset,
	}}
	if rules.gapCommit {
		r.commit = max(r.commit, from.Proof, from.Start.LSN-1)
	}
	if r.commit > r.tail {
		// What was known to be committed is not there: damage (A7).
		mark := chunk.Tail{Epoch: table.Last(), LSN: r.commit}
		r.commit = r.tail
		r.setAside(mark)
		r.synced = r.journal
	}
	if r.commit == r.tail {
		r.ends = r.next
	}
	r.leader.local, r.follower.local = &r.local, &r.local
	return r, nil
}

// Step takes one input and appends what is to be done to out. now must not go
// back.
func (r *Replica) Step(now Tick, in Input, out []Output) []Output {
	if r.role == Stopped {
		return r.stoppedStep(&in, out)
	}
	switch in.Kind {
	case InFence:
		return r.fenced(&in, out)
	case InAssign:
		return r.assigned(now, &in, out)
	case InConfig:
		out = r.configured(in.Config, out)
	case InRegistered:
		return r.registered(&in, out)
	case InPersisted:
		if in.ID == r.persistID {
			r.synced = r.journal
		}
		out = r.report(out)
	case InDurable:
		out = r.synchronised(&in, out)
	case InTruncated:
		r.cut(in.LSN, in.Offset, in.Digest)
		out = r.report(out)
	case InReset:
		out = r.report(r.restarted(out))
	case InLogStart:
		out = r.moved(*in.Start, out)
	case InDamaged:
		return r.damaged(in.Tail, out)
	case InFailed:
		return r.stop(ReasonStorage, out)
	case InMessage:
		if in.Message.Kind == MsgHello && r.role == Leading {
			return r.challenged(now, &in, out)
		}
	}
	return r.roleStep(now, &in, out)
}

// roleStep passes an input on and acts on what the role came to.
func (r *Replica) roleStep(now Tick, in *Input, out []Output) []Output {
	var why Reason
	if r.role == Leading {
		out = r.leader.step(now, in, out)
		if r.leader.superseded {
			return r.stepDown(out)
		}
		why = r.leader.alarm
	} else {
		out = r.follower.step(now, in, out)
		why = r.follower.alarm
	}
	if why != 0 {
		return r.stop(why, out)
	}
	return out
}

// stepDown ends a reign; the replica follows whoever comes.
func (r *Replica) stepDown(out []Output) []Output {
	if r.role != Leading {
		return out
	}
	r.role = Following
	out = r.leader.end(out)
	return append(out, Output{Kind: OutDeposed, Epoch: r.leader.epoch})
}

// stop ends this run. Nothing is cut, nothing is dropped.
func (r *Replica) stop(why Reason, out []Output) []Output {
	out = r.follower.leave(why, r.stepDown(out))
	r.role = Stopped
	return append(out, Output{Kind: OutStopped, Reason: why})
}

func (r *Replica) stoppedStep(in *Input, out []Output) []Output {
	switch in.Kind {
	case InFence, InAssign, InAppend, InQuery, InTransfer:
		return append(out, Output{Kind: OutRefuse, ID: in.ID, Reason: ReasonStoppedRun, Epoch: r.journal.Promise})
	}
	return out
}

// challenged: another replica says that it leads too.
func (r *Replica) challenged(now Tick, in *Input, out []Output) []Output {
	switch m := in.Message; {
	case m.Stream != r.stream:
		return append(out, r.refusal(in.Peer, m, ReasonStream))
	case m.Epoch < r.leader.epoch:
		return append(out, r.refusal(in.Peer, m, ReasonPromised))
	case m.Epoch == r.leader.epoch:
		return r.stop(ReasonTwoLeaders, out)
	}
	return r.roleStep(now, in, r.stepDown(out))
}

// Role tells what the replica does now.
func (r *Replica) Role() Role { return r.role }

// Leading returns the leader's half and true while this replica leads.
func (r *Replica) Leading() (*Leader, bool) { return &r.leader, r.role == Leading }

// Following returns the follower's half and true while this replica follows.
func (r *Replica) Following() (*Follower, bool) { return &r.follower, r.role == Following }

// Tail is the last chunk written.
func (r *Replica) Tail() chunk.Tail { return r.tailOf(r.tail) }

// Durable is the last chunk that would survive power loss.
func (r *Replica) Durable() chunk.Tail { return r.tailOf(r.durable) }

// Next is the LSN, the base offset and the digest that the next chunk must
// have.
func (r *Replica) Next() (chunk.LSN, chunk.Offset, chunk.Digest) { return r.tail + 1, r.next, r.digest }

// Commit is the known commit and where its records end; the offset may lag
// behind what an earlier run knew.
func (r *Replica) Commit() (chunk.LSN, chunk.Offset) { return r.commit, r.ends }

// Persistable is the commit that may be written to the journal, and by which
// chunks may be compacted or retired (B5).
func (r *Replica) Persistable() chunk.LSN { return r.persistable() }

// Promise is the epoch below which this replica takes nothing.
func (r *Replica) Promise() chunk.Epoch { return r.journal.Promise }

// Aside tells whether the replica counts for nothing by its own account.
func (r *Replica) Aside() bool { return r.journal.Aside }

// Epochs are the log's epoch lines; the caller must not change them.
func (r *Replica) Epochs() []EpochLine { return r.table.Lines() }

// Confirmable tells whether a publish that the chunk at n carries, or carried
// when it was sent the first time, may be confirmed (F2).
func (r *Replica) Confirmable(n chunk.LSN) bool { return n <= r.commit || !r.rules.dupCommitted }

// Deadline is when Step wants an InTick at the latest; false: not at all.
func (r *Replica) Deadline() (Tick, bool) {
	if r.role == Leading {
		return r.leader.deadline()
	}
	return 0, false
}
