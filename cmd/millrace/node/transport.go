package node

import (
	"errors"

	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// transport carries replicas' frames over the links.
type transport struct{ n *Node }

var errNoReplicas = errors.New("this node takes no frames of streams")

// Up is one of link.Handler's.
func (t *transport) Up(protocol.NodeID) {}

// Down is one of link.Handler's.
func (t *transport) Down(protocol.NodeID, error) {}

// StreamDown is one of link.Handler's.
func (t *transport) StreamDown(protocol.NodeID, chunk.Incarnation) {}

// StreamUp is one of link.Handler's.
func (t *transport) StreamUp(protocol.NodeID, chunk.Incarnation) {}

// Admit is one of link.Handler's.
func (t *transport) Admit(protocol.NodeID, *link.Frame) error { return errNoReplicas }

// Buffer is one of link.Handler's.
func (t *transport) Buffer(head, data int) ([]byte, []byte, link.Held) {
	return make([]byte, head), make([]byte, data), uncounted{}
}

// uncounted is the count of memory that the collector frees.
type uncounted struct{}

func (uncounted) Retain()  {}
func (uncounted) Release() {}

// Deliver is one of link.Handler's.
func (t *transport) Deliver(_ protocol.NodeID, f *link.Frame) {
	if f.Taken != nil {
		f.Taken(f.Credit())
	}
}
