package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// Member is a node of the cluster as its leader sees it.
type Member struct {
	catalog.Node
	Up     bool `json:"up"`
	Voter  bool `json:"voter"` // on metadata
	Leader bool `json:"leader"`
	Load   catalog.Load
}

// Overview is the cluster as its leader sees it.
type Overview struct {
	Cluster string          `json:"cluster"`
	Leader  protocol.NodeID `json:"leader"` // "" while there is none
	Term    uint64          `json:"term"`
	Members []Member        `json:"members"`
	// Seen is false where this is what the node knows by itself, since no leader
	// answers.
	Seen bool `json:"seen"`
	// Removed: the node that was asked is no member any more.
	Removed bool `json:"-"`
}

// Overview asks the leader, and says what this node knows if there is none.
func (c *Cluster) Overview(ctx context.Context) Overview {
	o, err := atLeader(ctx, c, methodMembers, nothing{}, c.overviewHere)
	if err != nil {
		o = c.overview()
	}
	o.Removed = c.Removed()
	return o
}

// Removed tells whether this node knows that it is no member any more. What it
// has of the catalog then stays as it was when that happened.
func (c *Cluster) Removed() bool {
	if !c.entered.Load() {
		return false // it was not taken in so far
	}
	_, member := c.View().Node(c.config.Node)
	return !member
}

func (c *Cluster) overviewHere(context.Context, nothing) (Overview, error) {
	if !c.leads() {
		return Overview{}, errElsewhere
	}
	o := c.overview()
	o.Seen = true
	return o, nil
}

func (c *Cluster) overview() Overview {
	r := c.meta.instance()
	leader, _ := c.Leader()
	o := Overview{Cluster: c.ID(), Leader: leader, Term: r.CurrentTerm()}
	voting := map[protocol.NodeID]bool{}
	if f := r.GetConfiguration(); f.Error() == nil {
		for _, s := range f.Configuration().Servers {
			voting[protocol.NodeID(s.ID)] = s.Suffrage == raft.Voter
		}
	}
	view := c.View()
	for n := range view.Nodes() {
		o.Members = append(o.Members, Member{
			Node: *n, Up: n.ID == c.config.Node || c.coord.isUp(n.ID), Voter: voting[n.ID], Leader: n.ID == leader, Load: view.Load(n.ID),
		})
	}
	return o
}

// Transfer moves the leadership of the metadata to a node, or anywhere else.
func (c *Cluster) Transfer(ctx context.Context, to protocol.NodeID) error {
	_, err := atLeader(ctx, c, methodTransfer, to, c.transferHere)
	return err
}

func (c *Cluster) transferHere(ctx context.Context, to protocol.NodeID) (nothing, error) {
	if to == c.config.Node {
		return nothing{}, nil
	}
	servers, err := c.servers(ctx)
	if err != nil {
		return nothing{}, err
	}
	for _, s := range servers {
		id := protocol.NodeID(s.ID)
		switch {
		case s.Suffrage != raft.Voter || id == c.config.Node || to != "" && id != to:
			continue
		case !c.coord.isUp(id):
			if to != "" {
				return nothing{}, fmt.Errorf("%w: node %q does not answer", catalog.ErrUnsafe, to)
			}
			continue
		}
		return nothing{}, c.withRaft(ctx, func(r *instance) error {
			return r.LeadershipTransferToServer(s.ID, s.Address).Error()
		})
	}
	if _, member := c.View().Node(to); to != "" && !member {
		return nothing{}, nodeMissing(to)
	}
	if to != "" {
		return nothing{}, fmt.Errorf("%w: node %q has no vote on metadata", catalog.ErrUnsafe, to)
	}
	return nothing{}, fmt.Errorf("%w: no other voter on metadata answers", catalog.ErrUnsafe)
}

func nodeMissing(node protocol.NodeID) error {
	return fmt.Errorf("%w: %q", catalog.ErrNodeMissing, node)
}

// Meet makes the node at an address known to this one, and this one to it. Two
// members that have lost each other's addresses so find each other again.
func (c *Cluster) Meet(ctx context.Context, addr string) (protocol.NodeID, error) {
	if c.config.Network == nil {
		return "", fmt.Errorf("%w: this node has no way to talk to others; give it cluster.secret_file or node.tls.cert", catalog.ErrBadArgument)
	}
	w, err := c.knock(ctx, addr, question{Ask: askHello})
	switch {
	case err != nil && !final(err):
		return "", fmt.Errorf("%w: %s: %w", ErrUnavailable, addr, err)
	case err != nil:
		return "", err
	case w.Me.Cluster != c.ID():
		return "", fmt.Errorf("%w: node %q at %s is of cluster %q, this one of %q", ErrOtherCluster, w.Me.Node, addr, w.Me.Cluster, c.ID())
	}
	return w.Me.Node, nil
}

// Drain moves leaders away from a node and gives it nothing new; a removal that
// has begun goes on. Without drain both end.
func (c *Cluster) Drain(ctx context.Context, node protocol.NodeID, drain bool) error {
	n, member := c.View().Node(node)
	return c.do(ctx, &catalog.MarkNode{ID: node, Draining: drain, Leaving: drain && member && n.Leaving})
}

// Remove takes a node out of the cluster for good: its replicas move to others,
// then its membership ends. It returns once that has begun; a node that never
// comes back is no hindrance. It refuses what would cost the metadata or a
// stream its majority.
func (c *Cluster) Remove(ctx context.Context, node protocol.NodeID) error {
	_, err := atLeader(ctx, c, methodRemove, node, c.removeHere)
	return err
}

func (c *Cluster) removeHere(ctx context.Context, node protocol.NodeID) (nothing, error) {
	if _, ok := c.View().Node(node); !ok {
		return nothing{}, nodeMissing(node)
	}
	servers, err := c.servers(ctx)
	if err != nil {
		return nothing{}, err
	}
	up := func(n protocol.NodeID) bool { return n == c.config.Node || c.coord.isUp(n) }
	if err := catalog.MajorityWithout(votersOf(servers), node, up); err != nil {
		return nothing{}, fmt.Errorf("%w: without %q the metadata could not change any more: %w", catalog.ErrUnsafe, node, err)
	}
	if streams := c.View().LostWithout(node, up); len(streams) > 0 {
		return nothing{}, fmt.Errorf("%w: without %q these streams have too few replicas that answer: %s", catalog.ErrUnsafe, node, some(streams))
	}
	return nothing{}, c.do(ctx, &catalog.MarkNode{ID: node, Draining: true, Leaving: true})
}

// some names a few of many.
func some(names []string) string {
	const most = 5
	slices.Sort(names)
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}

// removeDeparted ends the membership of nodes that are to leave and hold nothing
// any more. It runs beside the coordinator.
func (c *Cluster) removeDeparted(ctx context.Context) {
	for _, node := range catalog.Departed(c.View()) {
		if node == c.config.Node {
			_, _ = c.transferHere(ctx, "") // the next leader removes it
			return
		}
		// Others may have gone since the removal was asked for. A node that is no
		// member any more votes no more, whatever raft has it down for.
		servers, err := c.servers(ctx)
		if err != nil || catalog.MajorityWithout(votersOf(servers), node, c.reached) != nil {
			continue
		}
		err = c.do(ctx, &catalog.RemoveNode{ID: node})
		switch {
		case err == nil:
			c.log.Info("a node was removed", "node", node)
		case ctx.Err() != nil:
			return // the next leader removes it
		case !errors.Is(err, catalog.ErrNodeMissing):
			c.log.Warn("a node could not be removed; it will be tried again", "node", node, "error", err)
			return
		}
	}
}

// Address is one of Host's.
func (c *Cluster) Address(node protocol.NodeID) (string, error) {
	if addr := c.book.find(node); addr != "" {
		return addr, nil
	}
	return "", fmt.Errorf("%w: %q, and so is its address", catalog.ErrNodeMissing, node)
}

// Member is one of Host's. A node that knows no catalog yet believes whoever has
// proven to be of its cluster.
func (c *Cluster) Member(node protocol.NodeID) error {
	if _, member := c.View().Node(node); member || c.book.knows(node) || c.book.empty() && c.View().Version() == 0 {
		return nil
	}
	return nodeMissing(node)
}

// tend does what is due from time to time: who is there, what to write down.
func (c *Cluster) tend() {
	tick := time.NewTicker(presenceTick)
	defer tick.Stop()
	for {
		select {
		case now := <-tick.C:
			c.presence.look(now)
			if err := c.book.save(); err != nil {
				c.log.Warn("the other nodes' addresses could not be written; they are tried again", "error", err)
			}
		case <-c.done.Done():
			return
		}
	}
}
