package cluster

import (
	"context"
	"fmt"
	"slices"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// MoveLeader has a stream led from another node, without losing anything: its
// leader stops accepting, commits all that it has, and makes way (D4). It returns
// once the node is elected. If ctx ends first the wish is taken back, though the
// leader may be on its way by then.
//
// Errors: ErrStreamMissing, ErrReplicaMissing and ErrUnsafe of the catalog for a
// node that can't lead the stream; ErrUnavailable.
func (c *Cluster) MoveLeader(ctx context.Context, stream chunk.Incarnation, to protocol.NodeID) error {
	if s, ok := c.View().Incarnation(stream); ok && slices.Contains(s.Voters(), to) && !c.Up(to) {
		return fmt.Errorf("%w: node %q does not answer; start it, or let another lead", catalog.ErrUnsafe, to)
	}
	changed := make(chan struct{}, 1)
	defer c.Subscribe(func(changes []catalog.Change) {
		for _, x := range changes {
			if x.Stream != nil && x.Stream.Incarnation == stream || x.Before != nil && x.Before.Incarnation == stream {
				select {
				case changed <- struct{}{}:
				default:
				}
			}
		}
	})()
	result, err := c.Propose(ctx, &catalog.TransferLeaders{Transfers: []catalog.Transfer{{Stream: stream, To: to}}})
	if err == nil {
		err = result.Err()
	}
	for err == nil {
		s, ok := c.View().Incarnation(stream)
		switch {
		case !ok:
			return fmt.Errorf("%w: incarnation %s", catalog.ErrStreamMissing, stream)
		case s.Leader.Node == to:
			return nil
		case s.Target != to && s.Led():
			return fmt.Errorf("%w: stream %q is led from %s now, by an election in between", ErrUnavailable, s.Name, s.Leader.Node)
		}
		select {
		case <-changed:
		case <-ctx.Done():
			err = fmt.Errorf("%w: stream %q is still led from %s: %w", ErrUnavailable, s.Name, s.Leader.Node, ctx.Err())
		case <-c.done.Done():
			return ErrStopped
		}
	}
	if ctx.Err() != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoPatience)
		defer cancel()
		_, _ = c.Propose(undo, &catalog.TransferLeaders{Transfers: []catalog.Transfer{{Stream: stream}}}) // else it comes true later
	}
	return err
}
