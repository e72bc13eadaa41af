package node

import (
	"slices"
	"sync"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// transport joins the replicas with the links: frames go both ways, a chunk's
// bytes by their count alone. Replicas run before there are links; whom they
// ask for is connected once there are.
//
// It is all of link.Handler but Serve.
type transport struct {
	// replicas and standing are set before anything is called.
	replicas *replication.Node
	// standing tells what this node knows of a stream and a node.
	standing func(stream chunk.Incarnation, from protocol.NodeID) link.Standing

	mu     sync.RWMutex // guards all below
	links  *link.Links
	wanted []protocol.NodeID
}

// open has frames pass from now on.
func (t *transport) open(links *link.Links) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.links = links
	for _, node := range t.wanted {
		links.Connect(node)
	}
	t.wanted = nil
}

func (t *transport) opened() *link.Links {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.links
}

// Connect is replication.Transport's.
func (t *transport) Connect(to protocol.NodeID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.links != nil:
		t.links.Connect(to)
	case !slices.Contains(t.wanted, to):
		t.wanted = append(t.wanted, to)
	}
}

// Send is replication.Transport's. The link takes its own count of the chunk
// and copies Pending.
func (t *transport) Send(to protocol.NodeID, f *replication.Frame) {
	links := t.opened()
	if links == nil {
		return
	}
	out := link.Frame{Stream: f.Stream, Message: f.Message, Pending: f.Pending}
	if f.Chunk != nil {
		out.Head, out.Data, out.Held = f.Chunk.Head, f.Chunk.Data, f.Chunk
	}
	links.Send(to, &out)
}

// Up, Down, StreamUp and StreamDown are link.Handler's.
func (t *transport) Up(peer protocol.NodeID) { t.replicas.LinkUp(peer) }

func (t *transport) Down(peer protocol.NodeID, _ error) { t.replicas.LinkDown(peer) }

func (t *transport) StreamUp(peer protocol.NodeID, stream chunk.Incarnation) {
	t.replicas.StreamUp(peer, stream)
}

func (t *transport) StreamDown(peer protocol.NodeID, stream chunk.Incarnation) {
	t.replicas.StreamDown(peer, stream)
}

// Admit lets in what the metadata and this node's promises allow.
func (t *transport) Admit(peer protocol.NodeID, f *link.Frame) error {
	return link.Judge(t.standing(f.Stream, peer), peer, f)
}

// Buffer gives a chunk of the store's pools, where it stays: a follower appends
// it and its readers deliver it.
func (t *transport) Buffer(headBytes, dataBytes int) (head, data []byte, held link.Held) {
	c := segstore.NewChunk(dataBytes)
	c.Head = slices.Grow(c.Head[:0], headBytes)[:headBytes]
	c.Data = slices.Grow(c.Data[:0], dataBytes)[:dataBytes]
	return c.Head, c.Data, c
}

// Deliver hands a frame to its replica, with the count of its chunk.
func (t *transport) Deliver(peer protocol.NodeID, f *link.Frame) {
	in := replication.Frame{
		Stream: f.Stream, Message: f.Message, Pending: f.Pending, Taken: f.Taken, Credit: f.Credit(),
	}
	if f.Held != nil {
		in.Chunk = f.Held.(*segstore.Chunk) // Buffer's
	}
	t.replicas.Deliver(peer, &in)
}
