package replication

import (
	"errors"
	"slices"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// Transport carries frames between nodes. Frames for one node arrive in the
// order sent, or the link breaks and the node is told; that is all the replicas
// rely on, beside sessions (B3).
//
// The way back is LinkUp, LinkDown, StreamUp, StreamDown and Deliver of the Node.
type Transport interface {
	// Connect asks for a link to a node, if there is none yet.
	Connect(to protocol.NodeID)
	// Send takes a frame. It must not block; what can't be queued is dropped,
	// and LinkDown or StreamDown tells. The frame is the caller's again after the call: who keeps its chunk
	// takes a count, and copies Pending.
	Send(to protocol.NodeID, f *Frame)
}

// Frame is one message between two replicas of a stream, with what rides beside.
type Frame struct {
	Stream  chunk.Incarnation
	Message protocol.Message
	// Chunk goes with MsgChunk. The sender's bytes never change; those that are
	// delivered belong to the receiver alone, which writes its own synced LSN
	// into them.
	Chunk *segstore.Chunk
	// Pending are encoded pending updates, with MsgPending.
	Pending []byte
	// Taken, if not nil, is called once with Credit when a delivered frame has
	// been dealt with: the sender may send so many bytes more of the stream.
	Taken  func(credit int)
	Credit int
}

// arrival is what comes from a link, in its order.
type arrival struct {
	kind arrivalKind
	peer protocol.NodeID
	Frame
}

type arrivalKind uint8

const (
	arrivalFrame arrivalKind = iota
	arrivalUp                // the link to peer came
	arrivalDown              // it broke
)

// Deliver takes a frame from another node, with the caller's count of its chunk
// and the memory of Pending. A frame of a stream that is not here says nothing.
func (n *Node) Deliver(from protocol.NodeID, f *Frame) {
	r, ok := n.Replica(f.Stream)
	if !ok || !r.arrive(arrival{arrivalFrame, from, *f}) {
		f.release()
	}
}

func (f *Frame) release() {
	if f.Chunk != nil {
		f.Chunk.Release()
		f.Chunk = nil
	}
	if f.Taken != nil {
		f.Taken(f.Credit)
		f.Taken = nil
	}
}

// LinkUp tells that frames to and from a node will pass from now on.
func (n *Node) LinkUp(peer protocol.NodeID) { n.link(peer, true) }

// LinkDown tells that the link to a node broke. Frames of it that were not
// delivered will never be.
func (n *Node) LinkDown(peer protocol.NodeID) { n.link(peer, false) }

// StreamDown tells that frames of one stream to a node were dropped, as it takes
// them too slowly, and more will be: its sessions with that node are over.
func (n *Node) StreamDown(peer protocol.NodeID, stream chunk.Incarnation) {
	n.streamLink(peer, stream, arrivalDown)
}

// StreamUp tells that frames of the stream pass again.
func (n *Node) StreamUp(peer protocol.NodeID, stream chunk.Incarnation) {
	n.streamLink(peer, stream, arrivalUp)
}

func (n *Node) streamLink(peer protocol.NodeID, stream chunk.Incarnation, kind arrivalKind) {
	if r, ok := n.Replica(stream); ok {
		r.arrive(arrival{kind: kind, peer: peer})
	}
}

// link tells every replica: a link comes or goes seldom, and who has nothing to
// do with the node hears and forgets.
func (n *Node) link(peer protocol.NodeID, up bool) {
	kind := arrivalDown
	n.mu.Lock()
	if up {
		kind = arrivalUp
		n.linked[peer] = true
	} else {
		delete(n.linked, peer)
	}
	n.mu.Unlock()
	n.Replicas(func(r *Replica) { r.arrive(arrival{kind: kind, peer: peer}) })
}

// connect has a replica told of the link to a node, now or when it comes.
func (n *Node) connect(peer protocol.NodeID, r *Replica) {
	n.mu.RLock()
	up := n.linked[peer]
	n.mu.RUnlock()
	switch {
	case up:
		r.arrive(arrival{kind: arrivalUp, peer: peer})
	case n.transport != nil:
		n.transport.Connect(peer)
	}
}

// arrive puts what came from a link into the inbox; false as post.
func (r *Replica) arrive(a arrival) bool {
	in := &r.inbox
	in.mu.Lock()
	if in.closed {
		in.mu.Unlock()
		return false
	}
	in.arrivals = append(in.arrivals, a)
	r.schedule()
	return true
}

// hearLinks takes what came over links, in its order.
func (r *Replica) hearLinks() {
	t := &r.turns
	if len(t.parked) > 0 {
		r.hearParked()
	}
	for i := range t.arrivals {
		switch a := &t.arrivals[i]; a.kind {
		case arrivalUp:
			r.step(protocol.Input{Kind: protocol.InConnected, Peer: a.peer})
		case arrivalDown:
			r.dropParked(a.peer)
			r.step(protocol.Input{Kind: protocol.InDisconnected, Peer: a.peer})
		default:
			if a.Message.Kind == protocol.MsgHello {
				r.dropParked(a.peer)
			}
			if r.parks(a) {
				r.park(a)
				continue
			}
			r.hearFrame(a)
			a.release()
		}
	}
}

// hearFrame passes a message on. The protocol is told of a chunk what its
// checked bytes say; one whose bytes are not good continues no log.
func (r *Replica) hearFrame(a *arrival) {
	t := &r.turns
	if t.failed != nil {
		return // the run is over, and its disk takes nothing
	}
	if a.Message.Kind == protocol.MsgChunk {
		a.Message.Chunk = r.check(a.Chunk)
	}
	t.arrived = &a.Frame
	r.step(protocol.Input{Kind: protocol.InMessage, Peer: a.peer, Message: &a.Message})
	t.arrived = nil
	if a.Message.Kind == protocol.MsgHello && r.opened() {
		r.dropDamage()
		r.dropUnproven()
	}
}

// check verifies a chunk before anything is believed of it, or written: what is
// no tracking, or goes back in time, would end the run once it was in the file.
func (r *Replica) check(c *segstore.Chunk) protocol.Chunk {
	if c == nil {
		return protocol.Chunk{}
	}
	h, err := chunk.Verify(r.stream.Incarnation, c.Head, c.Data)
	if run := r.turns.run; err == nil && run != nil {
		if err = run.log.Tracking().Check(&h, h.TrailerOf(c.Head)); err == nil && h.Timestamp < run.log.LastTimestamp() {
			err = errTimeGoesBack
		}
	}
	if err != nil {
		r.counters.malformed.Add(1)
		return protocol.Chunk{}
	}
	c.Header = h
	return protocol.ChunkOf(&h)
}

var errTimeGoesBack = errors.New("a chunk is older than the one before")

// send gives a message to the transport, with what belongs to it.
func (r *Replica) send(out *protocol.Output) {
	t := &r.turns
	if r.node.transport == nil {
		return
	}
	f := &t.frame
	*f = Frame{Stream: r.stream.Incarnation, Message: out.Message}
	if out.Message.Kind == protocol.MsgPending {
		r.sendPending(out.Peer, f)
		return
	}
	if out.Message.Kind == protocol.MsgChunk {
		f.Chunk = t.current
	}
	r.node.transport.Send(out.Peer, f)
	f.Chunk = nil
}

// pendingBytesMax bounds one frame of pending updates.
const pendingBytesMax = 1 << 20

// sendPending tells a follower of the updates above the message's version, in as
// many frames as that takes: what no follower holds is lost to a leader's crash,
// and there may be far more than the loss window of it.
func (r *Replica) sendPending(to protocol.NodeID, f *Frame) {
	t := &r.turns
	since := f.Message.ID
	if f.Message.First {
		since = 0
	}
	t.updates = t.pending.AppendSince(t.updates[:0], since)
	for rest := t.updates; ; f.Message.First = false {
		n := tracking.UpdatesWithin(rest, pendingBytesMax)
		t.encoded = tracking.EncodeUpdates(t.encoded[:0], rest[:n], pendingBytesMax)
		f.Pending = t.encoded
		r.node.transport.Send(to, f)
		if rest = rest[n:]; len(rest) == 0 {
			return
		}
	}
}

// reading is chunks to be read for a follower.
type reading struct {
	peer  protocol.NodeID
	id    uint64
	lsn   chunk.LSN
	limit chunk.LSN
	bytes int64
}

// A turn reads so much for one follower; what is left comes in the next one, so
// that who catches up does not hold up those who publish.
const (
	readingBytesMax  = 1 << 20
	readingChunksMax = 256
)

// serveReads reads what followers lack, from memory or from the files.
func (r *Replica) serveReads() {
	t := &r.turns
	if t.run == nil || t.failed != nil {
		t.reads = t.reads[:0]
		return
	}
	// Serving one may add readings, for later, and the end of a reign drops all.
	for n := len(t.reads); n > 0 && len(t.reads) > 0; n-- {
		want := t.reads[0]
		t.reads = slices.Delete(t.reads, 0, 1)
		r.serveRead(want)
	}
	if len(t.reads) > 0 {
		r.wake()
	}
}

func (r *Replica) serveRead(want reading) {
	t := &r.turns
	reader := t.run.log.AttachLSN(want.lsn)
	defer reader.Close()
	last, bytes := want.lsn-1, int64(0)
	for range readingChunksMax {
		view, ok, err := reader.Next(want.limit)
		if err != nil {
			r.counters.fail(err) // the session ends, and is tried again
		}
		if !ok || err != nil {
			break
		}
		t.current = view.Chunk()
		in := protocol.Input{
			Kind: protocol.InRead, Peer: want.peer, ID: want.id, Chunk: protocol.ChunkOf(&view.Header),
		}
		if view.Header.LSN > last+1 {
			in.Segments = r.boundaries(last, view.Header.LSN)
		}
		last = view.Header.LSN
		bytes += int64(view.Header.Length())
		view.Release()
		r.step(in)
		t.current.Release()
		t.current = nil
		if bytes >= min(want.bytes, readingBytesMax) || t.run == nil {
			break
		}
	}
	r.step(protocol.Input{Kind: protocol.InReadEnd, Peer: want.peer, ID: want.id})
}

// boundaries are the segments that begin between two chunks (C5).
func (r *Replica) boundaries(after, before chunk.LSN) (marks []protocol.SegmentMark) {
	for _, s := range r.turns.run.log.Segments() {
		if s.FirstLSN > after && s.FirstLSN < before {
			marks = append(marks, protocol.SegmentMark{LSN: s.FirstLSN, Unit: s.UnitStart})
		}
	}
	return marks
}
