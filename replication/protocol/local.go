package protocol

import "github.com/millrace/millrace/segstore/chunk"

// Limits bound what a replica queues. Zero fields take the defaults.
type Limits struct {
	// UncommittedBytes is what a leader accepts beyond its commit (B7).
	UncommittedBytes int64
	// WindowBytes and WindowChunks bound what is sent to one follower and not
	// acked by it.
	WindowBytes  int64
	WindowChunks int
	// Queries bounds the sequence queries that wait.
	Queries int
	// RetryAfter is when an unanswered hello or proposal is repeated.
	RetryAfter Tick
	// TransferAfter is when a transfer that does not come about is given up.
	TransferAfter Tick
	// HoldAfter is the same for one whose target does not reach the tail once
	// publishers are held for it.
	HoldAfter Tick
	// PendingEvery is the shortest time between two frames of pending updates
	// to one follower.
	PendingEvery Tick
}

func (l Limits) withDefaults() Limits {
	def(&l.UncommittedBytes, 64<<20)
	def(&l.WindowBytes, 8<<20)
	def(&l.WindowChunks, 4096)
	def(&l.Queries, 10_000)
	def(&l.RetryAfter, 1000)
	def(&l.TransferAfter, 5000)
	def(&l.HoldAfter, 1000)
	def(&l.PendingEvery, 20)
	return l
}

func def[T comparable](v *T, to T) {
	var zero T
	if *v == zero {
		*v = to
	}
}

// Recovered is what a replica finds on its disk at a start. All of it is
// durable: recovery syncs before it reports (design 3.7).
type Recovered struct {
	Stream  chunk.Incarnation
	Journal Journal
	Lines   []EpochLine
	Start   LogStart
	Tail    chunk.LSN
	Next    chunk.Offset
	Digest  chunk.Digest
	// Commit as persisted, and where the records at or below it end; a lower
	// offset will do.
	Commit       chunk.LSN
	CommitOffset chunk.Offset
	// Proof is the highest LSN that is missing or stripped: proof that it was
	// committed (C5).
	Proof chunk.LSN
}

// local is the replica itself, whatever its role.
type local struct {
	self   NodeID
	run    RunID
	stream chunk.Incarnation
	limits Limits
	rules  rules

	// journal is in force at once; synced is what a restart would find.
	// Invariant (I2): whatever rests on a promise waits for synced.
	journal   Journal
	synced    Journal
	persistID uint64

	config Configuration // the newest known

	// The log. Invariant: start.LSN − 1 <= commit <= tail, durable <= tail.
	table   EpochTable
	start   LogStart
	tail    chunk.LSN
	next    chunk.Offset
	digest  chunk.Digest
	durable chunk.LSN
	commit  chunk.LSN
	ends    chunk.Offset // where the records at or below commit end, as far as known
	backlog backlog

	// Syncs asked for before a cut say nothing about what came after it, so
	// each cut begins a new generation.
	generation uint64
	syncing    bool
	busy       bool     // a truncation or reset is under way
	resetTo    LogStart // of that reset

	startWanted  chunk.LSN // log start that the leader has, or that was inherited
	lastSnapshot chunk.LSN // last part of the newest complete snapshot seen in this run
}

// tailOf is the tail at an LSN of the log.
func (l *local) tailOf(n chunk.LSN) chunk.Tail {
	return chunk.Tail{Epoch: l.table.At(n), LSN: n}
}

// reach is the LSN that acks and reports may speak of (A3, B3).
func (l *local) reach() chunk.LSN {
	if !l.rules.durable {
		return l.tail
	}
	return l.durable
}

// persist asks for the journal as it now is.
func (l *local) persist(out []Output) []Output {
	l.persistID++
	return append(out, Output{Kind: OutPersist, ID: l.persistID, Journal: l.journal})
}

// promise raises the promise to e (A2).
func (l *local) promise(e chunk.Epoch, out []Output) []Output {
	l.journal.Promise = e
	if !l.rules.promise {
		l.synced.Promise = e
		return out
	}
	return l.persist(out)
}

// write takes a chunk that was checked, and has it written.
func (l *local) write(c *Chunk, out []Output) []Output {
	l.table.add(EpochLine{c.Epoch, c.LSN, c.Offset})
	l.tail, l.next, l.digest = c.LSN, c.Next(), c.After
	l.backlog.push(c)
	if c.Type == chunk.Snapshot && c.has(chunk.FlagSnapshotLast) {
		l.lastSnapshot = c.LSN
	}
	return append(out, Output{Kind: OutWrite, LSN: c.LSN, Chunk: *c})
}

// sync asks for a sync if one is due and none is out: what is written while
// one runs is covered by the next.
func (l *local) sync(out []Output) []Output {
	if l.syncing || l.durable >= l.tail {
		return out
	}
	l.syncing = true
	return append(out, Output{Kind: OutSync, ID: l.generation})
}

// synchronised takes the end of a sync.
func (l *local) synchronised(in *Input, out []Output) []Output {
	if in.ID != l.generation {
		return out
	}
	before := l.persistable()
	l.syncing = false
	l.durable = max(l.durable, min(in.LSN, l.tail))
	return l.sync(l.passed(before, out))
}

// advance moves the known commit up to n; it never moves down (I8).
func (l *local) advance(n chunk.LSN, out []Output) []Output {
	if n = min(n, l.tail); n <= l.commit {
		return out
	}
	before := l.persistable()
	l.commit = n
	if end, ok := l.backlog.release(n); ok {
		l.ends = end
	}
	if n == l.tail {
		l.ends = l.next
	}
	out = append(out, Output{Kind: OutCommit, LSN: n, Offset: l.ends})
	return l.passed(before, out)
}

// passed asks again for a wanted log start once a newer snapshot is committed
// and durable, since E3 may allow it then.
func (l *local) passed(before chunk.LSN, out []Output) []Output {
	if before < l.lastSnapshot && l.lastSnapshot <= l.persistable() {
		return l.wantStart(l.startWanted, out)
	}
	return out
}

// wantStart notes a log start to move to and asks for it.
func (l *local) wantStart(n chunk.LSN, out []Output) []Output {
	l.startWanted = max(l.startWanted, n)
	if l.startWanted <= l.start.LSN {
		return out
	}
	return append(out, Output{Kind: OutLogStart, LSN: l.startWanted})
}

// moved takes a log start that the disk has moved to.
func (l *local) moved(s LogStart, out []Output) []Output {
	if s.LSN <= l.start.LSN {
		return out
	}
	l.start = s
	l.table.retain(s.LSN)
	return l.advance(s.LSN-1, out)
}

// cut takes a truncation that is durable.
func (l *local) cut(n chunk.LSN, next chunk.Offset, d chunk.Digest) {
	l.table.truncate(n)
	l.backlog.truncate(n)
	l.tail, l.next, l.digest = n, next, d
	l.durable = min(l.durable, n)
	l.commit = min(l.commit, n)
	if l.lastSnapshot > n {
		l.lastSnapshot = 0
	}
	l.generation++
	l.syncing, l.busy = false, false
}

// restarted takes a reset that is durable (C4).
func (l *local) restarted(out []Output) []Output {
	s := l.resetTo
	l.cut(0, 0, 0)
	l.table.reset(s)
	l.start, l.startWanted = s, s.LSN
	l.tail, l.durable = s.LSN-1, s.LSN-1
	l.next, l.digest, l.ends = s.Offset, s.Digest, s.Offset
	if l.rules.gapCommit {
		l.commit = l.tail
	}
	return append(out, Output{Kind: OutCommit, LSN: l.commit, Offset: l.ends})
}

// persistable is the commit that may be remembered, and by which chunks may be
// compacted or retired (B5).
func (l *local) persistable() chunk.LSN {
	if !l.rules.commitDurable {
		return l.commit
	}
	return min(l.commit, l.durable)
}
