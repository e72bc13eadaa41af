package cluster

import (
	"context"
	"fmt"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Up tells whether a node answers, as this one sees it.
func (c *Cluster) Up(node protocol.NodeID) bool {
	return node == c.config.Node || c.coord.isUp(node)
}

// AddReplica has a stream get a replica on one more node. It returns once that is
// entered; the replica counts once it has caught up (D2, D3).
func (c *Cluster) AddReplica(ctx context.Context, stream chunk.Incarnation, node protocol.NodeID) error {
	return c.withStream(stream, func(view *catalog.State, s *catalog.Stream) error {
		if err := view.CanAdd(s, node, c.Up); err != nil {
			return err
		}
		return c.do(ctx, &catalog.AddReplicas{Replicas: []catalog.Added{{Stream: stream, Node: node}}})
	})
}

// RemoveReplica has a stream do without its replica on a node, be the node there
// or not. It returns once that is entered; a leader hands over before it goes.
func (c *Cluster) RemoveReplica(ctx context.Context, stream chunk.Incarnation, node protocol.NodeID) error {
	return c.withStream(stream, func(view *catalog.State, s *catalog.Stream) error {
		if err := view.CanRemove(s, node, c.Up); err != nil {
			return err
		}
		return c.do(ctx, &catalog.RetireReplicas{Replicas: []catalog.Retired{{Stream: stream, Node: node}}})
	})
}

// MoveReplica has a replica on one node take the place of that on another, which
// goes once the new one counts.
func (c *Cluster) MoveReplica(ctx context.Context, stream chunk.Incarnation, from, to protocol.NodeID) error {
	return c.withStream(stream, func(view *catalog.State, s *catalog.Stream) error {
		if err := view.CanMove(s, from, to, c.Up); err != nil {
			return err
		}
		return c.do(ctx, &catalog.AddReplicas{Replicas: []catalog.Added{{Stream: stream, Node: to, Instead: from}}})
	})
}

func (c *Cluster) withStream(i chunk.Incarnation, do func(*catalog.State, *catalog.Stream) error) error {
	view := c.View()
	s, ok := view.Incarnation(i)
	if !ok {
		return fmt.Errorf("%w: incarnation %s", catalog.ErrStreamMissing, i)
	}
	return do(view, s)
}

// Balance is what evens out leaders or replicas over the nodes.
type Balance struct {
	Leaders  []catalog.Move // from and to is who leads
	Replicas []catalog.Move
	// Later are moves of replicas for which the nodes have no room at once.
	Later int
}

// Balance plans, and unless it is to be dry asks for, what evens out: leaders, or
// with all replicas too. It returns once that is entered; streams go on.
func (c *Cluster) Balance(ctx context.Context, all, dry bool) (Balance, error) {
	view := c.View()
	var b Balance
	leaders := catalog.BalanceLeaders(view, c.Up)
	for _, t := range leaders {
		s, _ := view.Incarnation(t.Stream)
		b.Leaders = append(b.Leaders, catalog.Move{Stream: t.Stream, From: s.Leader.Node, To: t.To})
	}
	if all {
		var later []catalog.Move
		b.Replicas, later = view.Room(catalog.BalanceReplicas(view, c.Up))
		b.Later = len(later)
	}
	if dry {
		return b, nil
	}
	if len(b.Replicas) > 0 {
		body := &catalog.AddReplicas{}
		for _, m := range b.Replicas {
			body.Replicas = append(body.Replicas, catalog.Added{Stream: m.Stream, Node: m.To, Instead: m.From})
		}
		if _, err := c.Propose(ctx, body); err != nil { // what is refused, something newer stands against
			return b, err
		}
	}
	if len(leaders) > 0 {
		if _, err := c.Propose(ctx, &catalog.TransferLeaders{Transfers: leaders}); err != nil {
			return b, err
		}
	}
	return b, nil
}
