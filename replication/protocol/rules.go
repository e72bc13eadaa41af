package protocol

// rules are switches for the negative controls among the scenario scripts:
// each names a rule of PROTOCOL.md and is on. Only tests turn one off.
type rules struct {
	barrier       bool // A6, B4: commit only at a chunk of the own epoch
	durable       bool // A3, B3: acks and reports carry the durable tail
	epochFirst    bool // A4: tails compare epoch first
	promise       bool // A2: a promise is synced before it is answered
	noResume      bool // A5: a restart ends an epoch
	startCheck    bool // A5: the winner must still be what it reported
	session       bool // B1, B2: chunks only after the search
	ackEpoch      bool // B3: an ack counts in its own epoch only
	ackSession    bool // B3: an ack counts in its own session only
	search        bool // C2: what differs is cut
	ownTable      bool // C2: each step is bounded by the follower's table too
	gapEpochs     bool // C5: a gap brings its epoch lines
	gapCommit     bool // C5: what is missing proves its commit
	commitSession bool // B1: a commit only after the search
	commitDurable bool // B5: what is persisted is at most the durable tail
	keepCommitted bool // B6: nothing committed is cut
	emptiedAside  bool // A4, B3: who is set aside counts for nothing
	joinPromise   bool // D1: registering promises the metadata's epoch
	clearBarrier  bool // D2: counting again needs the barrier's commit
	clearCaughtUp bool // D2: counting again needs all that is committed
	oneChange     bool // D3: one change of the voters at a time
	dupCommitted  bool // F2: a duplicate waits for its original
	queryApplied  bool // F3: the query waits for the applied sequence
	queryBarrier  bool // F3: the query waits for the barrier
	queryMajority bool // F3: the query asks a majority
}

func allRules() rules {
	return rules{
		barrier: true, durable: true, epochFirst: true, promise: true, noResume: true, startCheck: true,
		session: true, ackEpoch: true, ackSession: true, search: true, ownTable: true, gapEpochs: true,
		gapCommit: true, commitSession: true, commitDurable: true, keepCommitted: true,
		emptiedAside: true, joinPromise: true, clearBarrier: true, clearCaughtUp: true, oneChange: true,
		dupCommitted: true, queryApplied: true, queryBarrier: true, queryMajority: true,
	}
}
