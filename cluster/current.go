package cluster

import "context"

// Entered tells whether View shows this node as a member with this very data
// directory.
func (c *Cluster) Entered() bool {
	n, ok := c.View().Node(c.config.Node)
	return ok && n.Disk == c.identity().Disk
}

// Current waits until View shows all that was committed before the call.
func (c *Cluster) Current(ctx context.Context) error {
	_, err := atLeader(ctx, c, methodBarrier, nothing{}, c.barrierHere)
	return err
}

// barrierHere waits on the leader until all entries before are applied.
func (c *Cluster) barrierHere(ctx context.Context, _ nothing) (nothing, error) {
	return nothing{}, c.withRaft(ctx, func(r *instance) error { return r.Barrier(0).Error() })
}
