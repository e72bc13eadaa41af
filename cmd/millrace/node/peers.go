package node

import (
	"context"
	"net"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
)

// peers is the metadata's way to other nodes: cluster.Network over the link.
type peers struct{ n *Node }

// Open is cluster.Network's: the port between nodes answers from now on.
func (p peers) Open(host cluster.Host) {
	p.n.requests.handle(groupCluster, p.n.waiting(host.Asked))
	p.n.host.Store(&host)
}

func (p peers) Certified() (string, error) { return p.n.mux.Certified() }
func (p peers) Belong(cluster string)      { p.n.mux.Belong(cluster) }
func (p peers) Raft() raft.StreamLayer     { return raftLayer{p.n.mux.Raft()} }

func (p peers) Knock(ctx context.Context, addr string, question []byte) ([]byte, error) {
	return p.n.mux.Knock(ctx, addr, question)
}

func (p peers) Ask(ctx context.Context, node protocol.NodeID, method uint16, body []byte) (uint16, []byte, error) {
	r, err := p.n.links.Request(ctx, node, method, body)
	return r.Status, r.Body, err
}

func (p peers) Connect(node protocol.NodeID) { p.n.links.Connect(node) }
func (p peers) Forget(node protocol.NodeID)  { p.n.links.Forget(node) }

// raftLayer is the link's layer as raft wants it: addresses are node ids.
type raftLayer struct{ *link.Layer }

func (l raftLayer) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return l.Layer.Dial(protocol.NodeID(to), timeout)
}

// hosted is the metadata as the link asks it. It is there from openCluster on;
// before, nobody is let in.
func (n *Node) hosted() (cluster.Host, error) {
	if h := n.host.Load(); h != nil {
		return *h, nil
	}
	return nil, errStarting
}

func (n *Node) addressOf(node protocol.NodeID) (string, error) {
	h, err := n.hosted()
	if err != nil {
		return "", err
	}
	return h.Address(node)
}

func (n *Node) member(_ link.Purpose, node protocol.NodeID) error {
	h, err := n.hosted()
	if err != nil {
		return err
	}
	return h.Member(node)
}

func (n *Node) knocked(ctx context.Context, from protocol.NodeID, question []byte) []byte {
	h, err := n.hosted()
	if err != nil {
		return nil
	}
	return h.Knocked(ctx, from, question)
}

func (n *Node) linked(node protocol.NodeID, up bool) {
	if h, err := n.hosted(); err == nil {
		h.Linked(node, up)
	}
}
