package cluster

import (
	"context"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

const (
	// votersMax nodes vote on metadata; each more would make every change
	// slower. The others have all of it all the same.
	votersMax = 5
	// votersTick is how often the voters are looked at though nothing is known
	// to have changed.
	votersTick = time.Second
	// nearlyLevel is how many entries a node may lack to become a voter.
	nearlyLevel = 64
)

// voters keeps raft's servers equal to the catalog's nodes, beside the raft
// leader: one change at a time, each from what is the case then.
type voters struct {
	wake chan struct{} // capacity 1
}

func newVoters() *voters { return &voters{wake: make(chan struct{}, 1)} }

func (v *voters) nudge() {
	select {
	case v.wake <- struct{}{}:
	default:
	}
}

// run works while this node leads.
func (v *voters) run(ctx context.Context, c *Cluster) {
	if c.config.Network == nil {
		return
	}
	if err := c.barrier(ctx); err != nil {
		return // the reign is over before the past was known
	}
	tick := time.NewTicker(votersTick)
	defer tick.Stop()
	for {
		c.removeDeparted(ctx)
		for c.voterStep(ctx) {
			// until nothing is left to do
		}
		select {
		case <-v.wake:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// voterChange is one change of raft's servers.
type voterChange struct {
	kind voterKind
	node protocol.NodeID
}

type voterKind int

const (
	keep    voterKind = iota // nothing to do
	admit                    // as a non-voter
	promote                  // to a voter, if it has caught up
	dismiss                  // take it out
	yield                    // leadership to the node
)

// nextVoterChange says what to do next about raft's servers.
func nextVoterChange(servers []raft.Server, view *catalog.State, self protocol.NodeID, up func(protocol.NodeID) bool) voterChange {
	var voting int
	in := make(map[protocol.NodeID]raft.ServerSuffrage)
	for _, s := range servers {
		in[protocol.NodeID(s.ID)] = s.Suffrage
		if s.Suffrage == raft.Voter {
			voting++
		}
	}
	there := func(id protocol.NodeID) bool { return id == self || up(id) }
	heir := func() (protocol.NodeID, bool) {
		for n := range view.Nodes() {
			if s, ok := in[n.ID]; ok && s == raft.Voter && n.ID != self && up(n.ID) && !n.Draining {
				return n.ID, true
			}
		}
		return "", false
	}
	for _, s := range servers {
		id := protocol.NodeID(s.ID)
		if _, member := view.Node(id); member {
			continue
		}
		if id == self {
			if to, ok := heir(); ok {
				return voterChange{yield, to}
			}
			continue
		}
		if s.Suffrage == raft.Voter && catalog.MajorityWithout(votersOf(servers), id, there) != nil {
			continue // those that are left could decide nothing
		}
		return voterChange{dismiss, id}
	}
	for n := range view.Nodes() {
		if _, ok := in[n.ID]; !ok && up(n.ID) {
			return voterChange{admit, n.ID}
		}
	}
	if voting < votersMax {
		for n := range view.Nodes() {
			if s, ok := in[n.ID]; ok && s != raft.Voter && up(n.ID) && !n.Leaving {
				return voterChange{promote, n.ID}
			}
		}
	}
	if me, ok := view.Node(self); ok && me.Draining {
		if to, ok := heir(); ok {
			return voterChange{yield, to}
		}
	}
	return voterChange{}
}

// voterStep makes one change; false if there was none to make now.
func (c *Cluster) voterStep(ctx context.Context) bool {
	if ctx.Err() != nil || !c.leads() {
		return false
	}
	servers, err := c.servers(ctx)
	if err != nil || c.View().Version() == 0 {
		return false
	}
	change := nextVoterChange(servers, c.View(), c.config.Node, c.presence.linked)
	if change.kind == admit && !c.identity().Together {
		return c.stopBeingAlone() == nil // and the next reign goes on
	}
	if change.kind == promote && !c.level(ctx, change.node) {
		return false
	}
	if change.kind == admit || change.kind == promote {
		// Once others vote, this node can't start without one of them, so it must
		// find them whatever happens next.
		err = c.book.save()
	}
	if err == nil {
		err = c.withRaft(ctx, func(r *instance) error { return c.changeVoter(r, change) })
	}
	if err != nil {
		c.log.Warn("a change of the metadata's voters failed; it will be tried again", "change", change.kind.String(), "node", change.node, "error", err)
		return false
	}
	if change.kind != keep {
		c.log.Info("metadata's voters", "change", change.kind.String(), "node", change.node)
	}
	return change.kind != keep && change.kind != yield
}

func (k voterKind) String() string {
	return [...]string{"none", "a node is added", "a node becomes a voter", "a node is taken out", "leadership moves"}[k]
}

func (c *Cluster) changeVoter(r *instance, change voterChange) error {
	id, addr := raft.ServerID(change.node), raft.ServerAddress(change.node)
	switch change.kind {
	case admit:
		return r.AddNonvoter(id, addr, 0, raftChangeTimeout).Error()
	case promote:
		return r.AddVoter(id, addr, 0, raftChangeTimeout).Error()
	case dismiss:
		return r.RemoveServer(id, 0, raftChangeTimeout).Error()
	case yield:
		return r.LeadershipTransferToServer(id, addr).Error()
	}
	return nil
}

// stopBeingAlone gives raft the patience that several voters need.
func (c *Cluster) stopBeingAlone() error {
	err := c.changeIdentity(func(id *identity) { id.Together = true })
	if err == nil {
		err = c.meta.reopen(togetherTiming)
	}
	if err != nil {
		c.fail(err)
	}
	return err
}

// servers are raft's.
func (c *Cluster) servers(ctx context.Context) ([]raft.Server, error) {
	var servers []raft.Server
	err := c.withRaft(ctx, func(r *instance) error {
		f := r.GetConfiguration()
		if err := f.Error(); err != nil {
			return err
		}
		servers = f.Configuration().Servers
		return nil
	})
	if err != nil {
		return nil, err
	}
	return servers, nil
}

// level tells whether a node has caught up with the catalog.
func (c *Cluster) level(ctx context.Context, node protocol.NodeID) bool {
	w, err := c.askWho(ctx, node)
	return err == nil && w.Applied+nearlyLevel >= c.meta.shown.at()
}

// votersOf are the nodes that vote.
func votersOf(servers []raft.Server) []protocol.NodeID {
	var voters []protocol.NodeID
	for _, s := range servers {
		if s.Suffrage == raft.Voter {
			voters = append(voters, protocol.NodeID(s.ID))
		}
	}
	return voters
}
