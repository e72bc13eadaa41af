package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// entering is a node that comes, for the first time or back after a start.
type entering struct {
	Node    catalog.PutNode `json:"node"`
	Boot    string          `json:"boot"`
	Cluster string          `json:"cluster,omitempty"` // "": it never was a member
}

// entered answers it.
type entered struct{}

// enter makes this node a member, or known again, with all of the past applied.
// A cluster that is being founded gets its first virtual host and users.
func (c *Cluster) enter(ctx context.Context) error {
	id := c.identity()
	if id.Founding {
		if err := c.begin(ctx); err != nil {
			return err
		}
	}
	if id.Recovered {
		if err := c.beginAgain(ctx); err != nil {
			return err
		}
	}
	stop := c.sayWhatLacks(ctx)
	err := c.comeIn(ctx, entering{*c.self(), c.boot, id.Cluster})
	stop()
	if err != nil {
		return fmt.Errorf("enter cluster: %w", err)
	}
	c.entered.Store(true)
	err = c.changeIdentity(func(id *identity) { id.Founding, id.Joining, id.Recovered = false, false, false })
	if err == nil && id.Founding {
		c.log.Info("cluster founded", "cluster", id.Cluster, "node", c.config.Node)
	}
	return err
}

// comeIn has the leader take this node in, or know it again. It knocks for that:
// who was removed gets no link any more, and is told here.
func (c *Cluster) comeIn(ctx context.Context, e entering) error {
	for {
		err := errElsewhere
		here := c.config.Network == nil || c.leads()
		if here {
			_, err = c.enterHere(ctx, e)
		} else {
			known := c.knownAddresses()
			if len(known) == 0 {
				err = fmt.Errorf("%w, and no other node is known", errElsewhere)
			}
			for _, addr := range known {
				var w welcome
				if w, err = c.knock(ctx, addr, question{Ask: askJoin, Join: &e.Node}); err == nil {
					return c.seeUpTo(ctx, w.Index)
				}
				if e.Cluster == "" && final(err) || errors.Is(err, ErrTwin) || errors.Is(err, ErrRemoved) {
					return err
				}
			}
		}
		// What a stranger said at an address before this node led is no refusal.
		if err == nil || here && final(err) && c.leads() || c.config.Network == nil && !retryable(err) {
			return err
		}
		if err := c.pauseFor(ctx, comePause, err); err != nil {
			return err
		}
	}
}

// comePause is between two attempts of a node to come in.
const comePause = 50 * time.Millisecond

// sayWhatLacks logs a start that waits for the others; stop ends it.
func (c *Cluster) sayWhatLacks(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	c.tasks.Go(func() {
		tick := time.NewTicker(gatherReport)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				line, figures := c.whatLacks()
				c.log.Warn(line, figures...)
			case <-ctx.Done():
				return
			}
		}
	})
	return cancel
}

// whatLacks is what a node that can't come in waits for: room on its own disk,
// or others.
func (c *Cluster) whatLacks() (line string, figures []any) {
	if full := c.meta.store.latched.reason(); full != nil {
		return "waiting for space on this node's disk", []any{"error", full}
	}
	leader, _ := c.Leader()
	return "waiting for the cluster's other nodes", []any{
		"metadata leader", leader, "linked", c.presence.names(true), "not linked", c.presence.names(false),
	}
}

// begin gives a new cluster what it begins with. A founding that was cut short
// is done again: what is there already is refused and left as it is.
func (c *Cluster) begin(ctx context.Context) error {
	if err := c.barrier(ctx); err != nil {
		return err
	}
	results, err := c.proposeAll(ctx, append(c.first(), c.self()))
	if err != nil {
		return err
	}
	for i, r := range results {
		err := r.Err()
		if err != nil && !errors.Is(err, catalog.ErrVHostExists) && !errors.Is(err, catalog.ErrUserExists) {
			return fmt.Errorf("found cluster: command %d of %d: %w", i+1, len(results), err)
		}
	}
	return nil
}

// first is what a new cluster begins with.
func (c *Cluster) first() []catalog.Body {
	bodies := []catalog.Body{&catalog.CreateVHost{Name: defaultVHost}}
	for _, u := range c.config.Users {
		bodies = append(bodies,
			&catalog.PutUser{Name: u.Name, Hash: u.Hash, Tags: u.Tags, New: true},
			&catalog.SetPermission{VHost: defaultVHost, User: u.Name, Configure: ".*", Write: ".*", Read: ".*"})
	}
	return bodies
}

// enterHere takes a node in, or back, on the leader.
func (c *Cluster) enterHere(ctx context.Context, e entering) (entered, error) {
	if _, err := c.barrierHere(ctx, nothing{}); err != nil {
		return entered{}, err // a leader that knows the past is needed
	}
	if err := c.Err(); err != nil {
		return entered{}, err // the past was not understood
	}
	put := e.Node
	switch old, ok := c.View().Node(put.ID); {
	case e.Cluster != "" && e.Cluster != c.ID():
		return entered{}, fmt.Errorf("%w: node %q is of cluster %s, this is %s", ErrOtherCluster, put.ID, e.Cluster, c.ID())
	case !ok && e.Cluster != "" && !c.unfinished(put.ID):
		return entered{}, fmt.Errorf("%w: %q; to join anew, move its data directory away and start it with --join", ErrRemoved, put.ID)
	case ok && old.Disk != put.Disk:
		if err := c.replace(ctx, &put, e.Boot); err != nil {
			return entered{}, err
		}
	}
	if err := c.untwinned(ctx, put.ID, e.Boot); err != nil {
		return entered{}, err
	}
	if err := c.putNode(ctx, put); err != nil {
		return entered{}, err
	}
	if put.ID != c.config.Node { // its own reign began by asking all
		c.coord.restarted(put.ID)
	}
	c.voters.nudge()
	return entered{}, nil
}

// unfinished tells whether a node may be in raft though the catalog does not
// know it: the founder before its first command.
func (c *Cluster) unfinished(node protocol.NodeID) bool {
	return node == c.config.Node && c.identity().Founding
}

// replace makes way for a member that comes back with another disk. Its voice in
// raft went with the old one, so it leaves raft and is added anew, behind all
// entries; its replicas are set aside by the command that follows (D1).
func (c *Cluster) replace(ctx context.Context, put *catalog.PutNode, boot string) error {
	if put.ID == c.config.Node {
		return fmt.Errorf("%w: %q leads the metadata with another data directory", ErrTwin, put.ID)
	}
	if err := c.untwinned(ctx, put.ID, boot); err != nil {
		return err
	}
	if c.presence.linked(put.ID) {
		return fmt.Errorf("%w: %q is linked with another data directory; try again once it is gone", ErrUnavailable, put.ID)
	}
	up := func(n protocol.NodeID) bool { return n != put.ID && (n == c.config.Node || c.coord.isUp(n)) }
	servers, err := c.servers(ctx)
	if err != nil {
		return err
	}
	if err := catalog.MajorityWithout(votersOf(servers), put.ID, up); err != nil {
		return fmt.Errorf("%w: %q comes with an empty disk: %w", catalog.ErrUnsafe, put.ID, err)
	}
	if streams := c.View().LostWithout(put.ID, up); len(streams) > 0 {
		return fmt.Errorf("%w: %q comes with an empty disk, and without what it had these streams have too few replicas that answer: %s; "+
			"bring its old data directory back, or delete them", catalog.ErrUnsafe, put.ID, some(streams))
	}
	c.log.Warn("a member comes back with another data directory: its replicas begin anew", "node", put.ID)
	put.Replace = true
	return c.withRaft(ctx, func(r *instance) error {
		return r.RemoveServer(raft.ServerID(put.ID), 0, raftChangeTimeout).Error()
	})
}

// raftChangeTimeout bounds the wait for a place in raft's queue.
const raftChangeTimeout = 5 * time.Second

// putNode enters a node in the catalog if it stands there otherwise.
func (c *Cluster) putNode(ctx context.Context, put catalog.PutNode) error {
	old, ok := c.View().Node(put.ID)
	if ok && old.Disk == put.Disk && old.Endpoints == put.Endpoints && old.Rack == put.Rack && old.Version == put.Version {
		return nil
	}
	c.book.put(put.ID, entry{put.Endpoints.Node, put.Disk})
	return c.do(ctx, &put)
}

// beginAgain tells the catalog that this node goes on alone (Recover).
func (c *Cluster) beginAgain(ctx context.Context) error {
	if err := c.barrier(ctx); err != nil {
		return err
	}
	before := c.View()
	if err := c.do(ctx, &catalog.GiveUpNodes{Keep: c.config.Node}); err != nil {
		return err
	}
	for s := range before.Streams() {
		if _, kept := c.View().Incarnation(s.Incarnation); !kept {
			c.log.Error("a stream is lost: no replica of it was on this node", "stream", s.Name, "vhost", s.VHost)
		}
	}
	return nil
}

// nodesChanged keeps what follows from the catalog's nodes: addresses and links. It
// runs on the applying goroutine.
func (c *Cluster) nodesChanged(changes []catalog.Change) {
	view := c.View()
	any := false
	for _, change := range changes {
		if change.Kind != catalog.NodeChanged || change.Node == c.config.Node {
			continue
		}
		any = true
		n, ok := view.Node(change.Node)
		if !ok {
			c.book.drop(change.Node)
			if c.presence.forget(change.Node) {
				c.coord.see(change.Node, catalog.Up) // whoever comes under that name begins anew
			}
			if c.config.Network != nil {
				c.config.Network.Forget(change.Node)
			}
			continue
		}
		c.book.put(n.ID, entry{n.Endpoints.Node, n.Disk})
		c.expect(n.ID)
	}
	if any {
		c.voters.nudge()
	}
}

// expect has a node linked, and missed if it is not there.
func (c *Cluster) expect(node protocol.NodeID) {
	if c.config.Network != nil && node != c.config.Node {
		c.presence.expect(node)
		c.config.Network.Connect(node)
	}
}
