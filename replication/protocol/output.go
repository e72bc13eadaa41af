package protocol

import "github.com/millrace/millrace/segstore/chunk"

// OutputKind says what the driver must do.
type OutputKind uint8

const (
	_ OutputKind = iota

	// To the coordinator and the metadata.

	// OutReport answers InFence ID: Report, to which the driver adds Pending.
	OutReport
	// OutRefuse answers InFence, InAssign, InAppend, InTransfer or InQuery ID
	// with Reason; Epoch is the promise.
	OutRefuse
	// OutPropose asks for a metadata command: Proposal.
	OutPropose
	// OutTransfer: hand over to Peer now; all is committed and durable there.
	OutTransfer
	// OutTransferFailed: the transfer to Peer took too long; appends go on.
	OutTransferFailed

	// Of the own role.

	// OutLead: this replica leads Epoch. Append the barrier at LSN, a delta with
	// the flag epoch-start that holds the merged pending updates or nothing.
	OutLead
	// OutReady: the barrier of Epoch is committed.
	OutReady
	// OutDeposed: this replica no longer leads Epoch. Fail what waits.
	OutDeposed
	// OutStopped: Reason; this run of the replica is over. Alarm it.
	OutStopped

	// To the own disk. Writes are done in the order given.

	// OutPersist: sync Journal to the node journal, then InPersisted ID.
	OutPersist
	// OutGap: before the next write the LSNs up to Chunk.LSN − 1 are missing;
	// Gap holds what must be remembered of them.
	OutGap
	// OutWrite: append Chunk.
	OutWrite
	// OutSync: sync the log, then InDurable ID with what is durable. Do it
	// once, after all writes of the turn.
	OutSync
	// OutTruncate: cut the log to LSN durably, then InTruncated.
	OutTruncate
	// OutReset: drop the log and begin at Start, durably, then InReset.
	OutReset
	// OutLogStart: move the log start up to LSN, as far as E3 allows now, then
	// InLogStart if it moved.
	OutLogStart

	// OutHold: hold the pending updates of the message just stepped; First:
	// instead of all that are held.
	OutHold

	// To clients.

	// OutCommit: all up to LSN is committed. Offset is the next one of the
	// newest chunk at or below LSN that this run has seen.
	OutCommit
	// OutAnswer: the query ID may be answered now.
	OutAnswer
	// OutFlush: append all pending tracking, then InFlushed.
	OutFlush

	// To other replicas.

	// OutConnect: say InConnected when there is a link to Peer, now or later.
	OutConnect
	// OutRead: read chunks from LSN on for Peer, up to the LSN
	// Limit and about Bytes bytes: InRead for each, then InReadEnd, all with ID.
	OutRead
	// OutSend: send Message to Peer; the bytes of a chunk, or the pending
	// updates, go with it.
	OutSend
)

var outputNames = [...]string{"none", "report", "refuse", "propose", "transfer", "transfer-failed",
	"lead", "ready", "deposed", "stopped", "persist", "gap", "write", "sync", "truncate", "reset",
	"log-start", "hold", "commit", "answer", "flush", "connect", "read", "send"}

func (k OutputKind) String() string { return outputNames[k] }

// Output is one thing to do; Kind says which fields count.
type Output struct {
	Kind    OutputKind
	First   bool
	Reason  Reason
	Peer    NodeID
	Epoch   chunk.Epoch
	LSN     chunk.LSN
	Limit   chunk.LSN
	Offset  chunk.Offset
	Bytes   int64
	ID      uint64
	Chunk   Chunk
	Message Message

	Gap      *Gap
	Start    LogStart
	Report   *Report
	Journal  Journal
	Proposal Proposal
}

// Journal is what a replica must remember apart from its log (design 3.7).
type Journal struct {
	// Promise is the epoch below which the replica takes nothing (A2).
	Promise chunk.Epoch
	// Registration is the metadata's entry that the replica knows itself by.
	Registration Registration
	// Aside: the replica counts for nothing until the metadata clears that
	// entry.
	Aside bool
	// Mark is not zero if the log is damaged: up to here it was durable (A7).
	Mark chunk.Tail
}

// ProposalKind names a metadata command that a replica asks for.
type ProposalKind uint8

const (
	_ ProposalKind = iota
	// ProposeRegister: Node is emptied or damaged, enter it anew as set aside
	// and tell it Epoch and Registration (D1).
	ProposeRegister
	// ProposeClear: the set-aside Node has caught up; count it again (D2).
	ProposeClear
	// ProposePromote: the learner Node has caught up; make it a voter (D2, D3).
	ProposePromote
	// ProposeSettled: Config is settled under the leader of Epoch (D3).
	ProposeSettled
)

func (k ProposalKind) String() string {
	return [...]string{"none", "register", "clear", "promote", "settled"}[k]
}

// Proposal is a metadata command. The metadata takes it only while Epoch is
// the stream's current one and Config its newest.
type Proposal struct {
	Kind         ProposalKind
	Node         NodeID
	Epoch        chunk.Epoch
	Config       ConfigVersion
	Registration Registration
}

// Reason tells why something was refused or why a replica stopped.
type Reason uint8

const (
	_ Reason = iota

	// Refusals.

	ReasonPromised    // a higher epoch is promised
	ReasonLeads       // this replica already leads that epoch
	ReasonNotLeader   // this replica does not lead (any more)
	ReasonNoReport    // no report for this epoch in this run (A5)
	ReasonOtherRun    // the report is another run's (A5)
	ReasonAside       // this replica counts for nothing
	ReasonLostTail    // the durable tail is below the report (A5)
	ReasonStaleConfig // a newer configuration is known here
	ReasonTarget      // the target can't take over
	ReasonBusy        // another transfer is on
	ReasonStream      // another incarnation
	ReasonOrder       // a frame does not continue the log (B2)
	ReasonStoppedRun  // this run is over

	// Stops.

	ReasonTwoLeaders      // two leaders in one epoch (I1)
	ReasonCutCommitted    // a truncation would cut committed chunks (B6)
	ReasonResetCommitted  // a reset would drop committed chunks (C4)
	ReasonGapUncommitted  // a gap ends above the commit (C5)
	ReasonTrackingUnknown // the winner's tracking is unknown (A6)
	ReasonStorage         // a write or sync failed
)

var reasonNames = [...]string{"", "a higher epoch is promised", "already leads", "not the leader",
	"no report in this run", "another run", "set aside", "durable tail below the report",
	"stale configuration", "target can't take over", "busy", "another incarnation", "out of order",
	"run is over", "two leaders in one epoch", "would cut committed chunks", "would drop committed chunks",
	"gap above the commit", "tracking unknown", "storage failed"}

func (r Reason) String() string { return reasonNames[r] }
