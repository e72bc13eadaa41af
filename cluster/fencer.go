package cluster

import (
	"context"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// Fencer reaches the replicas of a node: by a call on this one, by the link on
// others. Its methods return soon after ctx ends and may be called many at
// once. Those for many requests answer one result for each, in their order, or
// an error for all if the node could not be reached.
type Fencer interface {
	// Fence has replicas promise their streams' newest epochs and report (A2,
	// A3). A replica of a stream that the node has never seen is made.
	Fence(ctx context.Context, node protocol.NodeID, requests []catalog.FenceRequest) ([]FenceAnswer, error)
	// Install tells replicas that they lead (A5). An answer is nil if the
	// replica leads the epoch, now or already; ErrVoid if it does not and will
	// not; another error if it may be tried again.
	Install(ctx context.Context, node protocol.NodeID, installations []catalog.Installation) ([]error, error)
	// HandOver has a leader stop accepting and commit all that it has (D4). It
	// answers nil once the heir holds it durably; the leader then takes nothing
	// any more until it hears of the next epoch, or has waited for that too
	// long. With an error it leads on.
	HandOver(ctx context.Context, handover catalog.Handover) error
}

// FenceAnswer is a replica's report, or why there is none.
type FenceAnswer struct {
	Report protocol.Report
	Err    error
}

const (
	// fenceTimeout bounds a fence with all that it may have to open and sync.
	fenceTimeout = 10 * time.Second
	// installTimeout bounds the start of leaders.
	installTimeout = 10 * time.Second
	// handoverTimeout bounds how long a leader that was asked to make way takes
	// nothing from publishers.
	handoverTimeout = 5 * time.Second
)
