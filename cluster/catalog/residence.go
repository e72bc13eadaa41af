package catalog

import "github.com/millrace/millrace/replication/protocol"

// Found is what a node finds on its disk of its own replica of a stream.
type Found struct {
	Files bool
	// Remembered: the node's journal knows the replica, and by which Registration
	// it knows itself.
	Remembered   bool
	Registration protocol.Registration
	// Forgotten: what it has promised went with a journal. It waits to be entered
	// anew, by its own wish alone: the entry that the catalog has may be from
	// before that.
	Forgotten bool
}

// Residence is what a node does to have its replica run.
type Residence int

const (
	OpenFiles Residence = iota // those that it has
	MakeEmpty                  // it never was here: begin under the entry that came with the stream
	JoinEmpty                  // it is entered as new: make it under that entry, with its promise (D1)
	EnterAnew                  // it has lost what it acknowledged: wish for a new entry first
	LostAlone                  // the same, and nobody else has it: an operator is needed
)

// Residence says how a node comes to a running replica. Only who never was here
// may begin empty under the entry that came with the stream: one that has lost
// what it acknowledged must not count (D1).
func (s *Stream) Residence(node protocol.NodeID, f Found) Residence {
	entry, _ := s.Replica(node)
	switch {
	case f.Files:
		return OpenFiles
	case f.Remembered && entry.Registration <= f.Registration, entry.Registration > 0 && !entry.Aside:
		if entry.Voter && len(s.Voters()) == 1 {
			return LostAlone
		}
		return EnterAnew
	case entry.Registration == 0:
		return MakeEmpty
	}
	return JoinEmpty
}

// Entry is what a running replica is to hear of its entry in the catalog.
type Entry int

const (
	EntryKnown   Entry = iota
	EntryIsNew         // it was entered anew: what registration, under which promise
	EntryOfOther       // the entry counts, and is of a replica that this one knows nothing of: wish for a new one
)

// Entry compares a replica's entry with the one by which it knows itself.
func (s *Stream) Entry(node protocol.NodeID, f Found) Entry {
	entry, _ := s.Replica(node)
	switch {
	case entry.Registration <= f.Registration, f.Forgotten:
		return EntryKnown
	case entry.Aside:
		return EntryIsNew
	}
	return EntryOfOther
}
