package cluster

import (
	"context"
	"sync"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// groups are changes of this node's members of consumer groups, on their way to
// the metadata: what comes while a command is under way goes into the next one,
// so that thousands that come or go at once take few. Order is kept, since a
// member that leaves may come again.
type groups struct {
	mu      sync.Mutex // guards waiting
	waiting []groupChange
	wake    chan struct{} // capacity 1: something waits
	// reach wakes who looks which nodes are in contact; capacity 1.
	reach chan struct{}
}

// groupChange is one change and who hears of its end.
type groupChange struct {
	catalog.GroupChange
	answered func(error)
}

// groupChangesMax bounds one command.
const groupChangesMax = 4_096

func newGroups() *groups {
	return &groups{wake: make(chan struct{}, 1), reach: make(chan struct{}, 1)}
}

// ChangeGroups hands on what members on this node do. It does not block; answered
// hears of each change once View shows it, or of its refusal. A join that can't be
// brought to an end is answered with the reason; all else is tried until it is
// done or the node stops.
func (c *Cluster) ChangeGroups(changes []catalog.GroupChange, answered func(change int, err error)) {
	g := c.groups
	g.mu.Lock()
	// Bounded by the connections' subscriptions: each waits for its answer before
	// it has another change, but for its end.
	for i, change := range changes {
		g.waiting = append(g.waiting, groupChange{change, func(err error) { answered(i, err) }})
	}
	g.mu.Unlock()
	g.nudge()
}

func (g *groups) nudge() {
	select {
	case g.wake <- struct{}{}:
	default:
	}
}

func (g *groups) nudgeReach() {
	select {
	case g.reach <- struct{}{}:
	default:
	}
}

func (g *groups) take() []groupChange {
	g.mu.Lock()
	defer g.mu.Unlock()
	n := min(len(g.waiting), groupChangesMax)
	batch := g.waiting[:n:n]
	g.waiting = g.waiting[n:]
	if len(g.waiting) == 0 {
		g.waiting = nil
	}
	return batch
}

// again puts changes back before those that came meanwhile.
func (g *groups) again(batch []groupChange) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.waiting = append(batch[:len(batch):len(batch)], g.waiting...)
}

// carryGroups hands changes to the metadata until the node stops.
func (c *Cluster) carryGroups() {
	for {
		select {
		case <-c.groups.wake:
		case <-c.done.Done():
			return
		}
		for batch := c.groups.take(); len(batch) > 0; batch = c.groups.take() {
			if !c.changeGroups(batch) {
				return
			}
		}
	}
}

// changeGroups carries a batch out; false is the stop.
func (c *Cluster) changeGroups(batch []groupChange) bool {
	body := &catalog.ChangeGroups{Changes: make([]catalog.GroupChange, len(batch))}
	for i := range batch {
		body.Changes[i] = batch[i].GroupChange
	}
	// Without a deadline: one proposal is repeated under one request id for as long
	// as nobody knows whether it was carried out, so that it is so once, and in its
	// place.
	result, err := c.Propose(c.done, body)
	switch {
	case err == nil:
		for i := range batch {
			batch[i].answered(result.Outcomes[i].Err())
		}
		return true
	case c.done.Err() != nil || c.Err() != nil:
		return false
	}
	// As when the leader is of an older version, which does not know groups yet.
	c.log.Warn("changes of consumer groups were not taken", "changes", len(batch), "error", err)
	var later []groupChange
	for _, change := range batch {
		if change.Do == catalog.Join {
			change.answered(err)
			continue
		}
		later = append(later, change)
	}
	c.groups.again(later)
	return c.pauseFor(c.done, wishPause, err) == nil
}

// ActivateGroup has a group decided anew, without those who were told to stop and
// have not answered.
func (c *Cluster) ActivateGroup(ctx context.Context, group catalog.GroupRef) error {
	return c.do(ctx, &catalog.ActivateGroup{Group: group})
}

// Contact returns how long ago this node heard last from the metadata's leader; 0
// where it leads itself. For a leader that is cut off that holds until its lease
// is over.
func (c *Cluster) Contact() time.Duration {
	r := c.meta.instance()
	if r.State() == raft.Leader {
		return 0
	}
	return time.Since(r.LastContact())
}

// reachTick is how often the contact of members' nodes is looked at though
// nothing is known to have happened.
const reachTick = time.Second

// tendGroups has the members of nodes that are out of contact passed over, while
// this node leads the metadata. A new leader counts the time anew, but takes
// nobody back whom another passed over, before their node is there.
func (c *Cluster) tendGroups(ctx context.Context) {
	if c.config.Network == nil || c.barrier(ctx) != nil {
		return
	}
	since := map[protocol.NodeID]time.Time{}
	tick := time.NewTicker(reachTick)
	defer tick.Stop()
	for {
		steps := catalog.GroupSteps(c.View(), c.away(since, time.Now()), c.config.GroupPatience.Milliseconds())
		for _, body := range steps {
			if err := c.do(ctx, body); err != nil && ctx.Err() == nil {
				c.log.Warn("consumer groups could not be told of a node", "error", err)
			}
		}
		select {
		case <-c.groups.reach:
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// away returns how long nodes have been gone; since is when each was first seen
// to be, by whoever asks. One that has not been linked since this process began
// counts as gone only once its patience is over, and as in contact not before it
// is linked.
func (c *Cluster) away(since map[protocol.NodeID]time.Time, now time.Time) catalog.Away {
	away := catalog.Away{}
	for _, node := range c.presence.unseen() { // first: who is found gone meanwhile is so below
		away[node] = catalog.Unseen
	}
	c.coord.away(since, now, away)
	return away
}

func (k *coordinator) away(since map[protocol.NodeID]time.Time, now time.Time, away catalog.Away) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for node := range since {
		if !k.gone[node] {
			delete(since, node)
		}
	}
	for node := range k.gone {
		if _, known := since[node]; !known {
			since[node] = now
		}
		away[node] = now.Sub(since[node]).Milliseconds()
	}
}
