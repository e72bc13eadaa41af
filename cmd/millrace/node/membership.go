package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/replication/protocol"
)

// membership is the cluster as operators see it.
type membership struct{ *cluster.Cluster }

// overviewPatience bounds the wait for the metadata's leader: a person looks at
// a cluster that has none most of all.
const overviewPatience = 2 * time.Second

func (c membership) Overview(ctx context.Context) admin.Cluster {
	ctx, cancel := context.WithTimeout(ctx, overviewPatience)
	defer cancel()
	o := c.Cluster.Overview(ctx)
	out := admin.Cluster{
		ID: o.Cluster, Node: string(c.Node()), Leader: string(o.Leader), Term: o.Term, Seen: o.Seen, Removed: o.Removed, Members: []admin.Member{},
	}
	low := c.Low()
	for _, m := range o.Members {
		member := admin.Member{
			Node: string(m.ID), State: admin.StateOf(m.Up), Leader: m.Leader, Voter: m.Voter, Draining: m.Draining, Leaving: m.Leaving, DiskAlarm: low[m.ID],
			Leaders: m.Load.Leaders, Replicas: m.Load.Replicas, Rack: m.Rack, Version: m.Version,
			Joined: time.UnixMilli(int64(m.Joined)).UTC(), Addresses: map[string]string{},
		}
		for name, addr := range map[string]string{
			"stream": m.Endpoints.Stream, "http": m.Endpoints.HTTP, "node": m.Endpoints.Node, "gossip": m.Endpoints.Gossip,
		} {
			if addr != "" {
				member.Addresses[name] = addr
			}
		}
		out.Members = append(out.Members, member)
	}
	return out
}

func (c membership) Transfer(ctx context.Context, node string) error {
	return answered(c.Cluster.Transfer(ctx, protocol.NodeID(node)))
}

func (c membership) Meet(ctx context.Context, address string) (string, error) {
	node, err := c.Cluster.Meet(ctx, address)
	return string(node), answered(err)
}

func (c membership) Remove(ctx context.Context, node string) error {
	return answered(c.Cluster.Remove(ctx, protocol.NodeID(node)))
}

func (c membership) Drain(ctx context.Context, node string, drain bool) error {
	return answered(c.Cluster.Drain(ctx, protocol.NodeID(node), drain))
}

// answered gives the metadata's conditions their names for operators.
func answered(err error) error {
	for _, x := range []struct{ is, named error }{
		{cluster.ErrUnavailable, admin.ErrUnavailable}, {cluster.ErrNoLeader, admin.ErrNotLed},
		{cluster.ErrOtherCluster, admin.ErrOtherCluster}, {cluster.ErrTwin, admin.ErrOtherCluster},
	} {
		if errors.Is(err, x.is) {
			return fmt.Errorf("%w: %w", x.named, err)
		}
	}
	return err
}
