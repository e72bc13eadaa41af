// Package protocol answers: how do replicas of one stream agree?
//
// It holds the rules A1–F9 of PROTOCOL.md as step functions: one input in,
// what is to be done out. It knows chunks by their place (LSN, epoch, offset,
// digest), never by their bytes; it has no clock, no disk, no network and no
// goroutine, so that a simulator can replay any run of it. Files are segstore's,
// bytes between nodes the link's, publishers and sequences the turn's in
// replication.
//
// Read first: Replica (what both roles share), Leader, Follower; then
// EpochTable and Commitment, the two ideas that everything rests on. An
// election is SelectLeader over Reports. A group of one works through the very
// same code: its majority is itself.
//
// # How a driver uses it
//
// One goroutine at a time steps a Replica. A turn drains the stream's events,
// steps each, and does what came out, in order:
//
//	out = out[:0]
//	for each event {                      // a slice kept by the replica
//		out = r.Step(now, input, out)
//	}
//	for i := 0; i < len(out); i++ {
//		switch o := &out[i]; o.Kind {
//		case OutWrite:    append the chunk's bytes to the log
//		case OutSync:     sync = o.ID       // done once, below
//		case OutSend:     hand o.Message, for MsgChunk with the bytes, to the link
//		case OutPersist:  journal o.Journal; when synced, event InPersisted{ID: o.ID}
//		case OutCommit:   publish (o.LSN, o.Offset) to readers; confirm what waits
//		...
//		}
//	}
//	if sync was asked for: log.Sync(func(durable) { event InDurable{ID: sync, LSN: durable.LSN} })
//	arm the wheel for r.Deadline()
//
// Steps may also be taken while outputs are done (i < len(out) sees them).
//
// Its life, shown for a group of one; with more, only the messages come on top:
//
//	New(self, run, limits, recovered)
//	InFence{Epoch, ID}            → OutPersist → InPersisted{ID} → OutReport{ID, Report}
//	InAssign{Assignment, Known}   → OutLead{Epoch, LSN}
//	    the driver builds the barrier: a delta, flag epoch-start, with the
//	    merged pending updates (version 0) or an empty payload, at r.Next()
//	InAppend{Chunk}               → OutWrite, OutSync → InDurable{ID, LSN}
//	                              → OutCommit{LSN, Offset}, OutReady
//	InAppend{Chunk} …             → OutWrite … → InDurable → OutCommit
//
// Publishing. Before it builds chunks the driver asks Leader.Accept: Take
// (append), Hold (keep the batch queued), Refuse (fail it). A built chunk is at
// r.Next(); InAppend takes it, and OutWrite has it written. Confirm a batch
// when OutCommit reaches the LSN of its last chunk; a duplicate when
// r.Confirmable(LSN of the original), at once or after a later OutCommit. On
// OutDeposed fail or drop everything that waits.
//
// Roles. Leading and Following give the half that is in charge; every input
// goes through Replica.Step, whatever the role. InFence, InAssign, InConfig
// and InRegistered come from the metadata's side, OutReport, OutRefuse and
// OutPropose go there. InConfig is given to every replica, leader or not.
//
// Disk. OutWrite, OutGap, OutTruncate, OutReset, OutLogStart are done in the
// order given. A write may be still on its way when Step goes on; InDurable
// says that it and its sync are done. OutTruncate and OutReset are answered
// once durable; until then no chunk is taken. Any error: InFailed, and a new
// Replica with a new run id after recovery (A5). Replica.Persistable is what
// may go to the journal as commit, and by what retention and compaction go.
//
// Links. OutConnect asks for InConnected now, if there is a link to that node,
// and whenever a new one is made; InDisconnected when it breaks. OutRead asks
// for chunks that a follower lacks: read them in order, InRead for each (which
// gives OutSend), InReadEnd after them. Where chunks were dropped, InRead
// carries the boundaries of the missing segments.
//
// Pending stored offsets (F5) are tracking's: it gives versions, drops what a
// chunk covers and merges. The protocol says when they travel. InStored tells
// the leader of new ones; OutSend of MsgPending takes along those above version
// Message.ID; OutHold has the ones that came with a message kept. The driver
// adds its set to OutReport's Report, and at OutLead merges its own with those
// of the Inheritance into the barrier.
//
// Programmer errors panic (a chunk that does not continue the log). Whatever
// another replica or a disk may cause ends in OutStopped with a Reason: nothing
// is cut and nothing is dropped.
package protocol
