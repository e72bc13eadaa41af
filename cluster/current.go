package cluster

import "context"

// Entered tells whether View shows this node as a member with this very data
// directory.
func (c *Cluster) Entered() bool {
	n, ok := c.View().Node(c.config.Node)
	return ok && n.Disk == c.id.Disk
}

// Current waits until View shows all that was committed before the call.
func (c *Cluster) Current(ctx context.Context) error { return c.barrier(ctx) }
