package protocol

import "github.com/millrace/millrace/segstore/chunk"

// InputKind says what happened.
type InputKind uint8

const (
	_ InputKind = iota

	// From the coordinator and the metadata.

	// InFence asks for a promise of Epoch and a report; ID returns with it.
	InFence
	// InAssign brings an Assignment, perhaps with an Inheritance; Known tells
	// whether the log's tracking is known by F9.
	InAssign
	// InConfig brings the newest Config, to leader and followers alike.
	InConfig
	// InRegistered ends a registration (D1): Epoch and Registration.
	InRegistered
	// InTransfer asks the leader to hand over to Peer, "" for whom it likes.
	InTransfer
	// InCancel ends a transfer that did not come about.
	InCancel

	// From the own disk.

	// InPersisted: the journal holds what OutPersist ID asked for, synced.
	InPersisted
	// InDurable: the sync of OutSync ID ended; all up to LSN is durable.
	InDurable
	// InTruncated: the log was cut to LSN, durably; Offset is the next one and
	// Digest the running digest.
	InTruncated
	// InReset: the log now begins, empty, at the Start that OutReset named.
	InReset
	// InLogStart: retention moved the log start to Start.
	InLogStart
	// InDamaged: the log is proven only below what Tail says was durable (A7).
	InDamaged
	// InFailed: a write or sync failed; this run of the replica is over.
	InFailed

	// From clients, to the leader.

	// InAppend proposes Chunk as the next one.
	InAppend
	// InFlushed: what OutFlush asked for is appended.
	InFlushed
	// InStored: tracking holds pending updates of this epoch, up to version ID.
	InStored
	// InQuery asks whether a publisher's sequence, applied by the chunk LSN,
	// may be answered; ID returns with the answer.
	InQuery

	// From other replicas.

	// InConnected and InDisconnected: the link to Peer came or went.
	InConnected
	InDisconnected
	// InMessage brings Message from Peer.
	InMessage
	// InRead brings Chunk, read for OutRead ID to Peer, and Segments if chunks
	// are missing before it. InReadEnd ends that reading; one that brought no
	// chunk counts as failed.
	InRead
	InReadEnd

	// InTick lets time pass; see Replica.Deadline.
	InTick
)

var inputNames = [...]string{"none", "fence", "assign", "config", "registered", "transfer", "cancel",
	"persisted", "durable", "truncated", "reset", "log-start", "damaged", "failed", "append", "flushed",
	"stored", "query", "connected", "disconnected", "message", "read", "read-end", "tick"}

func (k InputKind) String() string { return inputNames[k] }

// Input is one event; Kind says which fields count.
type Input struct {
	Kind   InputKind
	Known  bool
	Peer   NodeID
	Epoch  chunk.Epoch
	LSN    chunk.LSN
	Offset chunk.Offset
	Digest chunk.Digest
	ID     uint64
	Tail   chunk.Tail
	Chunk  Chunk

	Registration Registration
	Assignment   *Assignment
	Inheritance  *Inheritance
	Config       *Configuration
	Start        *LogStart
	Message      *Message
	Segments     []SegmentMark
}
