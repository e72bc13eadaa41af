package broker

import (
	"context"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// Directory is what sessions ask of the cluster's metadata: what streams there
// are, where, and who may use them. It is joined in cmd.
type Directory interface {
	// View is the catalog as this node knows it now. It must not be changed.
	View() *catalog.State
	// Up tells whether a node is there, as far as this one sees. It may be wrong
	// for a moment, and for as long as nodes are cut off from each other alone.
	Up(node string) bool
	// Subscribe has changes told, in order, as soon as View shows them. The
	// function must not block.
	Subscribe(told func([]catalog.Change)) (cancel func())
	// Authenticate proves a password. What is wrong nobody learns: an unknown
	// user takes the same work as a wrong password. It bounds how many proofs
	// run at once, and remembers what it has proven.
	Authenticate(ctx context.Context, user string, password []byte) error
	// CreateStream makes a stream that this node's client asked for. Its errors, as
	// those of the three below, are the catalog's, and ErrMetadata.
	CreateStream(ctx context.Context, request CreateStream) error
	// DeleteStream removes a stream everywhere.
	DeleteStream(ctx context.Context, vhost, name string) error
	// CreateSuperStream makes a super stream with all its partitions, or nothing.
	CreateSuperStream(ctx context.Context, request CreateSuperStream) error
	// DeleteSuperStream removes a super stream and its partitions.
	DeleteSuperStream(ctx context.Context, vhost, name string) error
	// ChangeGroups has members of this node join and leave groups, and say that
	// they have stopped, in the order of the calls and without blocking. answered
	// hears of each once View shows it, from any goroutine and with nothing held:
	// the catalog's refusal, or another error where a join could not be brought
	// to an end. What is no join is seen through.
	ChangeGroups(changes []catalog.GroupChange, answered func(change int, err error))
	// Current waits until View shows all that was decided before the call.
	Current(ctx context.Context) error
	// Contact is how long ago this node heard last from the metadata's leader.
	Contact() time.Duration
}

// CreateStream is what a client wants created.
type CreateStream struct {
	VHost     string
	Name      string
	Arguments catalog.Arguments
	Creator   string // user name
}

// CreateSuperStream is what a client wants created: partitions in their order,
// all with the same arguments.
type CreateSuperStream struct {
	VHost      string
	Name       string
	Partitions []catalog.Partition
	Arguments  catalog.Arguments
	Creator    string // user name
}

// Replicas finds the replicas that this node holds.
type Replicas interface {
	Replica(chunk.Incarnation) (Replica, bool)
}

// Replica is what sessions use of a stream's replica on this node.
type Replica interface {
	// Declare opens a publisher on the leading replica.
	Declare(reference string) (*replication.Publisher, error)
	// Publish hands a batch over; its Sink has it back, perhaps at once.
	Publish(*replication.Batch)
	// Sequence asks for the last publishing id of a reference (F3). It is
	// answered once, from any goroutine.
	Sequence(reference string, answer func(sequence uint64, known bool, err error))
	// StoreOffset and QueryOffset keep how far a reference has read. StoreOffset
	// must not keep the reference's string; StoreOffsetFrom is for another node, and
	// returns the store's place in the reign's order.
	StoreOffset(reference string, offset chunk.Offset) error
	StoreOffsetFrom(from replication.Origin, reference string, offset chunk.Offset) (place uint64, err error)
	QueryOffset(reference string) (offset chunk.Offset, known bool, err error)
	// Committed is the last committed chunk and the offset behind its records.
	Committed() (chunk.LSN, chunk.Offset)
	// Watch calls wake, which must not block, when the commit has advanced.
	Watch(wake func()) (cancel func())
	// Attach opens a reader at a place.
	Attach(segstore.Spec) (*segstore.Reader, error)
}

// ReplicasOf lets sessions find the replicas of a node.
func ReplicasOf(node *replication.Node) Replicas { return nodeReplicas{node} }

type nodeReplicas struct{ node *replication.Node }

func (n nodeReplicas) Replica(stream chunk.Incarnation) (Replica, bool) {
	replica, ok := n.node.Replica(stream)
	return replica, ok
}
