package protocol

import (
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
)

// NodeID names a broker process; it is the same for all its streams.
type NodeID string

// RunID is a random number drawn at each start of a replica. It tells a
// replica that restarted since its report from one that did not (A5).
type RunID uint64

// SessionID numbers the talks of one leader about one stream; it grows with
// each within the leader's epoch, whoever the peer is.
type SessionID uint64

// ConfigVersion counts the changes of a stream's voters and their marks (D3).
type ConfigVersion uint64

// Registration names the metadata's entry of a replica. It grows each time that
// the replica is entered anew, being new, emptied or damaged (D1); 0 came with
// the stream.
type Registration uint64

// Unregistered is the registration of a replica that lost its disk, or found
// damage, and has not been entered anew. It equals no entry of the metadata.
const Unregistered = ^Registration(0)

// Tick is the caller's monotonic clock in milliseconds. Only differences
// count, and only for time-outs; no rule depends on it.
type Tick uint64

// Member is one replica as the metadata sees it.
type Member struct {
	Node NodeID
	// Learner receives but is not a voter; it counts for nothing.
	Learner bool
	// Aside is a voter that receives but counts for nothing until the leader
	// has it cleared (D2). It stays in the denominator.
	Aside bool
	// Registration is the entry that these marks are about.
	Registration Registration
}

// Counts tells whether the metadata lets this member count.
func (m Member) Counts() bool { return !m.Learner && !m.Aside }

// Configuration is a stream's replicas. Values are shared and never changed
// in place.
type Configuration struct {
	Version ConfigVersion
	Members []Member
}

// Find returns the member of a node.
func (c Configuration) Find(n NodeID) (Member, bool) {
	if i := slices.IndexFunc(c.Members, func(m Member) bool { return m.Node == n }); i >= 0 {
		return c.Members[i], true
	}
	return Member{}, false
}

// Voters is the number of members that are not learners, set aside or not.
func (c Configuration) Voters() int {
	n := 0
	for _, m := range c.Members {
		if !m.Learner {
			n++
		}
	}
	return n
}

// Quorum is the size of a majority of the voters.
func (c Configuration) Quorum() int { return c.Voters()/2 + 1 }

// Assignment makes one replica the leader of one epoch. The metadata raft
// holds at most one for each epoch (A1, A5).
type Assignment struct {
	Stream   chunk.Incarnation
	Epoch    chunk.Epoch
	Node     NodeID
	Run      RunID
	Replicas Configuration
}

// Inheritance is what the reports of an election leave to its winner beside
// the log (A6, F5). It travels with the assignment but never through raft;
// losing it costs one loss window of stored offsets and nothing else.
type Inheritance struct {
	// LogStart is the highest first LSN that a reporting replica still holds.
	LogStart chunk.LSN
	// Pending are the reported pending updates, one encoding for each report
	// that has any; the winner's tracking merges them with its own.
	Pending [][]byte
}

// Report is a replica's answer to a fence: what it has, after it has promised
// never to follow a lower epoch again (A2, A3).
type Report struct {
	Stream       chunk.Incarnation
	Epoch        chunk.Epoch // the one promised
	Node         NodeID
	Run          RunID
	Registration Registration
	Tail         chunk.Tail // durable
	Commit       chunk.LSN  // known to be committed
	LogStart     chunk.LSN  // first LSN held
	// Aside: the replica counts for nothing, whatever the metadata says.
	Aside bool
	// Damaged: the log is proven only below Mark, which was durable here.
	Damaged bool
	Mark    chunk.Tail
	// Pending are the pending updates held in memory, as tracking encodes
	// them, at most 1 MiB; the driver adds them. They mean nothing here.
	Pending []byte
}

// LogStart is the place where a log begins, with all that a replica needs to
// begin there too (C4).
type LogStart struct {
	LSN    chunk.LSN    // of the first chunk held; 1 for a whole log
	Offset chunk.Offset // of the first record at or after LSN
	Line   EpochLine    // of the epoch of LSN − 1; zero for a whole log
	Digest chunk.Digest // running digest before LSN
}

// Tail is the position just below the start: that of a log reset to it.
func (s LogStart) Tail() chunk.Tail {
	if s.LSN <= 1 {
		return chunk.Tail{}
	}
	return chunk.Tail{Epoch: s.Line.Epoch, LSN: s.LSN - 1}
}
