package cluster

import (
	"context"
	"net"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/replication/protocol"
)

// Network is how this node reaches others and they reach it; joined in cmd with
// the link. Whoever it brings has proven to be a node, and which.
type Network interface {
	// Open begins to take what others ask. It is called once, before all else.
	Open(Host)
	// Certified returns the cluster that this node's certificate names, "" if it
	// proves itself by a secret alone.
	Certified() (string, error)
	// Belong tells this node's cluster. Only then do connections for raft and
	// links come and go.
	Belong(cluster string)
	// Raft makes the connections of a raft instance. Its addresses are node ids.
	// The one before is over.
	Raft() raft.StreamLayer
	// Knock asks the node at an address, of whatever name.
	Knock(ctx context.Context, addr string, question []byte) ([]byte, error)
	// Ask asks a node that is linked. The statuses are this package's.
	Ask(ctx context.Context, node protocol.NodeID, method uint16, body []byte) (status uint16, answer []byte, err error)
	// Connect has a node linked from now on, Forget no more.
	Connect(node protocol.NodeID)
	Forget(node protocol.NodeID)
}

// Host is what a Network asks of the node. Cluster's methods of these names.
type Host interface {
	// Knocked answers a knock; from is who asks.
	Knocked(ctx context.Context, from protocol.NodeID, question []byte) []byte
	// Asked answers a node that is linked.
	Asked(ctx context.Context, from protocol.NodeID, method uint16, body []byte) (status uint16, answer []byte)
	// Linked tells that a link came or broke. It does not block.
	Linked(node protocol.NodeID, up bool)
	// Address says where a node listens for others.
	Address(node protocol.NodeID) (string, error)
	// Member says what is wrong with a node that wants to connect.
	Member(node protocol.NodeID) error
}

// Joins is how a node comes to its cluster.
type Joins struct {
	// Addresses are where other nodes of the cluster listen, or will.
	Addresses []string
	// Expect is how many nodes found a cluster together; with 1 and no
	// addresses this node does alone.
	Expect int
}

// alone tells whether a node without data founds a cluster by itself.
func (j Joins) alone() bool { return len(j.Addresses) == 0 && j.Expect <= 1 }

// named is a StreamLayer whose own address is the node's id, as all others' are.
type named struct {
	raft.StreamLayer
	node protocol.NodeID
}

func (n named) Addr() net.Addr { return nodeAddr(n.node) }

const (
	// raftConnections are kept to each other node.
	raftConnections = 3
	// raftTimeout bounds one call of raft to another node.
	raftTimeout = 3 * time.Second
)

// raftTransport connects raft by the network.
func raftTransport(n Network, node protocol.NodeID, p *presence, log hclog.Logger) func(<-chan struct{}) (raft.Transport, error) {
	return func(quit <-chan struct{}) (raft.Transport, error) {
		return patient{raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: named{n.Raft(), node}, MaxPool: raftConnections, Timeout: raftTimeout, Logger: calm{log, true},
		}), p, quit}, nil
	}
}

// patient has a leader's calls to a node that is gone wait for its link. Raft
// would call in vain, twice as late each time up to 10 s: a node that was away for
// longer would get the entries that its start waits for as late.
type patient struct {
	*raft.NetworkTransport
	presence *presence
	quit     <-chan struct{} // closed when raft stops
}

// awayPatience bounds one wait. A leader that is none any more leaves its calls
// waiting that long.
const awayPatience = time.Minute

func (t patient) AppendEntries(
	id raft.ServerID, target raft.ServerAddress, args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse,
) error {
	t.presence.await(protocol.NodeID(id), awayPatience, t.quit)
	return t.NetworkTransport.AppendEntries(id, target, args, resp)
}

type nodeAddr protocol.NodeID

func (nodeAddr) Network() string  { return "millrace" }
func (a nodeAddr) String() string { return string(a) }

var _ Host = (*Cluster)(nil)
