package catalog

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/millrace/millrace/replication/protocol"
)

// handOver asks the leader to make way for the one that is wanted.
func (d *decider) handOver(s *Stream, p *progress) {
	to := d.wanted(s)
	_, asked := d.sight.handing[s.Incarnation]
	switch {
	case to == "" || asked:
	case !d.majorityUp(s): // nobody could be elected; the leader may still have a majority
	case p.retry > d.now:
		d.wake(s, p.retry)
	case len(d.sight.handing) >= handoversMax:
		d.wake(s, d.now+deferral)
	default:
		d.sight.handing[s.Incarnation] = s.Epoch
		d.steps.Handovers = append(d.steps.Handovers, Handover{s.Incarnation, s.Epoch, s.Leader.Node, to})
	}
}

// wanted returns where the leader should go, or "" if it may stay. An operator
// wants it at the target; a draining node wants to be rid of it, also while the
// target can't have it.
func (d *decider) wanted(s *Stream) protocol.NodeID {
	if s.Target != "" && s.transferable(s.Target) == nil && d.sight.Present(s.Target) == Up {
		return s.Target
	}
	if r, _ := s.Replica(s.Leader.Node); r.Voter && d.draining(s.Leader.Node) == 0 {
		return "" // one that votes no more yields by itself, but may not have been heard
	}
	for _, id := range d.preference(s) {
		if id != s.Leader.Node && d.draining(id) == 0 && s.transferable(id) == nil && d.sight.Present(id) == Up {
			return id
		}
	}
	return ""
}

// move takes replicas from where they are to go.
func (d *decider) move(s *Stream) {
	stay := 0 // replicas that neither leave nor are on a node that does
	for _, r := range s.Replicas {
		if !r.Leaving && !d.leaving(r.Node) {
			stay++
		}
	}
	for _, r := range s.Replicas {
		switch {
		case r.Leaving:
			if !r.Voter && s.Leader.Node != r.Node {
				d.steps.Removed = append(d.steps.Removed, Removed{s.Incarnation, r.Node, r.Registration})
			}
		case d.leaving(r.Node):
			d.replace(s, r.Node, stay)
			return // one after the other: each changes what the next one finds
		}
	}
}

func (d *decider) leaving(id protocol.NodeID) bool {
	n, ok := d.state.Node(id)
	return ok && n.Leaving
}

// replace finds another place for the replica on a node that leaves. If there
// is none, it goes all the same as long as others stay.
func (d *decider) replace(s *Stream, node protocol.NodeID, stay int) {
	switch to, ok := d.place(s); {
	case to != "":
		d.learners[to]++
		d.steps.Added = append(d.steps.Added, Added{Stream: s.Incarnation, Node: to, Instead: node})
	case ok:
		d.wake(s, d.now+deferral)
	case stay > 0:
		d.steps.Retired = append(d.steps.Retired, Retired{Stream: s.Incarnation, Node: node})
	default:
		d.steps.Stuck = append(d.steps.Stuck, Stuck{s, fmt.Sprintf(
			"the only replica is on node %s, which is to leave, and no other node can hold it", node)})
	}
}

// place returns a node for one more replica: "" if all that could hold it have
// enough to do now, false if there is none.
func (d *decider) place(s *Stream) (to protocol.NodeID, ok bool) {
	var best *Node
	for n := range d.state.Nodes() {
		if n.Draining || d.sight.Present(n.ID) == Gone || s.replica(n.ID) >= 0 {
			continue
		}
		ok = true
		if d.state.Load(n.ID).Learners+d.learners[n.ID] >= learnersMax {
			continue
		}
		if best == nil || cmp.Or(
			cmp.Compare(d.sharing(s, n), d.sharing(s, best)),
			cmp.Compare(d.state.Load(n.ID).Replicas+d.learners[n.ID], d.state.Load(best.ID).Replicas+d.learners[best.ID]),
			cmp.Compare(mix(uint64(s.Incarnation), n.ID), mix(uint64(s.Incarnation), best.ID)),
		) < 0 {
			best = n
		}
	}
	if best == nil {
		return "", ok
	}
	return best.ID, true
}

// sharing counts the replicas that stay in a node's rack.
func (d *decider) sharing(s *Stream, n *Node) int {
	var chosen []*Node
	for _, r := range s.Replicas {
		if other, ok := d.state.Node(r.Node); ok && !r.Leaving && !other.Leaving {
			chosen = append(chosen, other)
		}
	}
	return sharing(n, chosen)
}

// NextChange returns the change of voters that a stream's leader should propose
// when settled is the configuration version that it knows to be settled (D3), or
// nil: whoever is to go becomes a learner, the leader itself last, once none is on
// its way in. Whoever comes in is proposed by the protocol, which knows when it
// has caught up. Nobody goes who is needed for a majority of those that are up:
// blocked tells that somebody waits for that.
func NextChange(s *Stream, leader protocol.NodeID, settled protocol.ConfigVersion, up func(protocol.NodeID) bool) (next *VoterChange, blocked bool) {
	if s.Leader.Node != leader || settled != s.ConfigVersion ||
		slices.ContainsFunc(s.Replicas, func(r Replica) bool { return !r.Voter && !r.Leaving }) {
		return nil, false
	}
	order := slices.SortedFunc(slices.Values(s.Replicas), func(a, b Replica) int {
		return cmp.Compare(unlike(b.Node, leader), unlike(a.Node, leader))
	})
	for _, r := range order {
		if !r.Voter || !r.Leaving {
			continue
		}
		c := VoterChange{Stream: s.Incarnation, Epoch: s.Epoch, Version: settled, Node: r.Node, Registration: r.Registration}
		switch {
		case s.voterChangeable(&c, s.replica(r.Node)) != nil:
		case !s.bears(&c, up):
			blocked = true
		default:
			return &c, false
		}
	}
	return nil, blocked
}

// bears says whether a stream has a majority of voters that count and are up
// behind a change. That is never in the way of letting a voter go that is down:
// where the stream has a majority now, it has one without it.
func (s *Stream) bears(c *VoterChange, up func(protocol.NodeID) bool) bool {
	after := slices.Clone(s.Replicas)
	for i := range after {
		r := &after[i]
		if r.Node == c.Node {
			r.Voter, r.Aside = c.Voter, r.Aside && !c.Voter
		}
		r.Aside = r.Aside || !up(r.Node)
	}
	voters, there := count(after)
	return 2*there > voters
}

// Departed returns the members that are to leave and hold nothing any more.
func Departed(s *State) []protocol.NodeID {
	var nodes []protocol.NodeID
	for n := range s.Nodes() {
		if n.Leaving && s.Load(n.ID).Replicas == 0 {
			nodes = append(nodes, n.ID)
		}
	}
	return nodes
}
