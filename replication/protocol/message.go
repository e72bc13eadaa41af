package protocol

import "github.com/millrace/millrace/segstore/chunk"

// MessageKind says what one replica tells another.
type MessageKind uint8

// Each message carries Epoch and Session; the fields named here come on top.
// Order within a session is kept, as on one connection.
const (
	_ MessageKind = iota

	// From the leader.

	// MsgHello opens a session: Stream, Config.
	MsgHello
	// MsgFound answers MsgFind: Tail is the leader's largest epoch at or below
	// the one asked for and its last LSN; Start is where its log begins.
	MsgFound
	// MsgChunk brings one chunk: Chunk, Commit, First and Tail (the chunk
	// before) where it is the first or follows a gap, and Gap. The bytes ride
	// beside.
	MsgChunk
	// MsgPending brings pending updates of the leader's epoch, which ride
	// beside: those of a version above ID. First: they replace all others.
	MsgPending
	// MsgCommit moves commit and log start: Commit, Start.LSN.
	MsgCommit
	// MsgCheck asks whether the epoch still stands: ID.
	MsgCheck

	// From a follower.

	// MsgWelcome: the epoch is promised and synced: Run, Registration, Aside.
	MsgWelcome
	// MsgFind asks for the next search step: Tail.
	MsgFind
	// MsgJoined ends the search: LSN is the last chunk that both share.
	MsgJoined
	// MsgAck: everything up to LSN is durable here.
	MsgAck
	// MsgChecked: the epoch stood when ID was asked.
	MsgChecked
	// MsgRefuse ends the session: Promised, Reason.
	MsgRefuse
)

func (k MessageKind) String() string {
	return [...]string{"none", "hello", "found", "chunk", "pending", "commit", "check",
		"welcome", "find", "joined", "ack", "checked", "refuse"}[k]
}

// Message is one message between replicas, flat so that none is allocated.
type Message struct {
	Kind    MessageKind
	First   bool
	Aside   bool
	Reason  Reason
	Epoch   chunk.Epoch
	Session SessionID
	LSN     chunk.LSN
	Commit  chunk.LSN
	Tail    chunk.Tail
	ID      uint64
	Chunk   Chunk
	Gap     *Gap

	Start        LogStart
	Stream       chunk.Incarnation
	Run          RunID
	Registration Registration
	Config       ConfigVersion
	Promised     chunk.Epoch
}
