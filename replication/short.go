package replication

import (
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
)

// Disks of several nodes. A follower whose disk is at its floor takes no user
// chunk: the stream's majority goes on without it, and it catches up when there
// is room. Where so many voters' disks are low that no majority could take what
// is published, the leader stops its publishers as it would for its own disk,
// before the followers reach their floors.

// Neighbour is what is known of another node.
type Neighbour uint8

const (
	NeighbourWell Neighbour = iota
	// NeighbourLow: its disk is so low that its publishers are stopped.
	NeighbourLow
	// NeighbourGone: it is not there.
	NeighbourGone
)

// DisksChanged tells that what Config.Neighbour says is another than before.
func (n *Node) DisksChanged() { n.Replicas((*Replica).wake) }

// lookAround finds out whether so many of the voters' disks are low that no
// majority is left. That a voter is gone alone is no reason: then the leader
// takes what it may without a majority (B7).
func (r *Replica) lookAround() {
	t := &r.turns
	if r.node.neighbour == nil {
		return
	}
	now := false
	if t.run != nil {
		if leader, leads := t.run.protocol.Leading(); leads {
			now = short(leader.Adopted().Members, r.node.id, r.node.neighbour)
		}
	}
	if r.starved.Load() != now {
		r.starved.Store(now)
	}
}

// short is the decision of lookAround.
func short(members []protocol.Member, self protocol.NodeID, is func(protocol.NodeID) Neighbour) bool {
	voters, well, low := 0, 0, 0
	for i := range members {
		if members[i].Learner {
			continue
		}
		voters++
		switch {
		case members[i].Node == self: // its own disk stops the whole node's publishers
			well++
		case is(members[i].Node) == NeighbourLow:
			low++
		case is(members[i].Node) == NeighbourWell:
			well++
		}
	}
	return low > 0 && well < voters/2+1
}

// parks tells whether a frame must wait until the disk has room: a user chunk on
// a full one, and chunks behind that. The leader sends no more than its window
// meanwhile. What else it says is heard: a log start that moves makes room.
func (r *Replica) parks(a *arrival) bool {
	if a.kind != arrivalFrame || a.Message.Kind != protocol.MsgChunk || a.Chunk == nil {
		return false
	}
	return len(r.turns.parked) > 0 || len(a.Chunk.Data) > 0 && r.node.disk.full()
}

// parkedBytesMax bounds what waits so on a node. What is beyond is lost: the
// session ends with the next chunk that is taken, and begins again.
const parkedBytesMax = 64 << 20

// park keeps a frame and its chunk. Its credit goes back, or it would hold up
// what the leader says beside chunks; the leader's own window bounds these.
func (r *Replica) park(a *arrival) {
	if a.Taken != nil {
		a.Taken(a.Credit)
		a.Taken = nil
	}
	bytes := bytesOf(a.Chunk)
	if r.node.parked.Add(bytes) > parkedBytesMax {
		r.node.parked.Add(-bytes)
		a.release()
		return
	}
	r.turns.parked = append(r.turns.parked, *a)
	a.Frame = Frame{} // it is not released with the turn's arrivals
}

// unparked gives a frame back that has waited.
func (r *Replica) unparked(a *arrival) {
	r.node.parked.Add(-bytesOf(a.Chunk))
	a.release()
}

// hearParked takes chunks that have waited, in their order, as far as there is
// room.
func (r *Replica) hearParked() {
	t := &r.turns
	n := 0
	for ; n < len(t.parked) && !r.node.disk.full(); n++ {
		r.hearFrame(&t.parked[n])
		r.unparked(&t.parked[n])
	}
	r.unpark(n)
}

// unpark forgets the first n.
func (r *Replica) unpark(n int) {
	t := &r.turns
	rest := copy(t.parked, t.parked[n:])
	clear(t.parked[rest:])
	if t.parked = t.parked[:rest]; rest == 0 {
		t.parked = nil // a full disk is rare
	}
}

// dropParked gives back what waits, of one node or of all (""), whose session is
// over.
func (r *Replica) dropParked(peer protocol.NodeID) {
	t := &r.turns
	kept := t.parked[:0]
	for i := range t.parked {
		if peer != "" && t.parked[i].peer != peer {
			kept = append(kept, t.parked[i])
			continue
		}
		r.unparked(&t.parked[i])
	}
	clear(t.parked[len(kept):])
	if t.parked = kept; len(kept) == 0 {
		t.parked = nil
	}
}

func bytesOf(c *segstore.Chunk) int64 { return int64(len(c.Head) + len(c.Data)) }
