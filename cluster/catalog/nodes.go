package catalog

import (
	"github.com/millrace/millrace/replication/protocol"
)

// PutNode makes a node a member, or tells its new addresses and properties.
type PutNode struct {
	ID        protocol.NodeID `json:"id"`
	Disk      string          `json:"disk"`
	Endpoints Endpoints       `json:"endpoints"`
	Rack      string          `json:"rack,omitempty"`
	Version   string          `json:"version,omitempty"`
	// Replace accepts that the member comes back with another disk: all its
	// replicas are set aside (D1). Without it such a node is refused, since it
	// may be a second one under the same name.
	Replace bool `json:"replace,omitempty"`
}

func (*PutNode) kind() string { return "node.put" }

func (c *PutNode) apply(e *edit) []Outcome {
	if r := checkName("node id", string(c.ID)); r != nil {
		return one(r)
	}
	node := Node{
		ID: c.ID, Disk: c.Disk, Endpoints: c.Endpoints, Rack: c.Rack, Version: c.Version, Joined: e.at,
	}
	old, ok := e.nodes.get(c.ID)
	if ok {
		if old.Disk != c.Disk && !c.Replace {
			return one(refuse(ErrNodeExists, "%q is a member with another data directory", c.ID))
		}
		node.Joined, node.Draining, node.Leaving = old.Joined, old.Draining, old.Leaving
		if node == *old {
			return one(nil)
		}
	}
	e.nodes = e.nodes.put(c.ID, &node)
	e.nodeChanged(c.ID)
	if ok && old.Disk != c.Disk {
		e.emptied(c.ID)
	}
	return one(nil)
}

// emptied sets all replicas of a node aside.
func (e *edit) emptied(id protocol.NodeID) {
	before := e.State
	for old := range before.Streams() {
		if at := old.replica(id); at >= 0 {
			s, _ := e.modify(old.Incarnation)
			s.setAside(at)
			e.putStream(s)
		}
	}
}

// MarkNode says what a member is on its way to.
type MarkNode struct {
	ID protocol.NodeID `json:"id"`
	// Draining: leaders move away and no new replica comes.
	Draining bool `json:"draining"`
	// Leaving: replicas move away too. It implies Draining.
	Leaving bool `json:"leaving"`
}

func (*MarkNode) kind() string { return "node.mark" }

func (c *MarkNode) apply(e *edit) []Outcome {
	old, ok := e.nodes.get(c.ID)
	if !ok {
		return one(refuse(ErrNodeMissing, "%q", c.ID))
	}
	node := *old
	node.Draining, node.Leaving = c.Draining || c.Leaving, c.Leaving
	if node != *old {
		e.nodes = e.nodes.put(c.ID, &node)
		e.nodeChanged(c.ID)
	}
	return one(nil)
}

// RemoveNode ends a membership. The node must hold no replica any more.
type RemoveNode struct {
	ID protocol.NodeID `json:"id"`
}

func (*RemoveNode) kind() string { return "node.remove" }

func (c *RemoveNode) apply(e *edit) []Outcome {
	if !e.member(c.ID) {
		return one(refuse(ErrNodeMissing, "%q", c.ID))
	}
	if l := e.Load(c.ID); l.Replicas > 0 {
		return one(refuse(ErrNodeInUse, "%q holds %d replicas; let it leave first", c.ID, l.Replicas))
	}
	e.nodes = e.nodes.remove(c.ID)
	e.nodeChanged(c.ID)
	return one(nil)
}

// Load is what a node carries.
type Load struct {
	Replicas int // voters and learners
	Leaders  int // streams whose newest epoch it leads, or is wanted to
	Learners int // replicas that are to become voters
}

// Load returns what a node carries.
func (s *State) Load(id protocol.NodeID) Load {
	l, _ := s.loads.get(id)
	return l
}

// shift adds (or, with sign −1, takes away) what a stream puts on its nodes.
func (e *edit) shift(s *Stream, sign int) {
	for _, r := range s.Replicas {
		l := e.Load(r.Node)
		l.Replicas += sign
		if r.Node == s.place() {
			l.Leaders += sign
		}
		if !r.Voter && !r.Leaving {
			l.Learners += sign
		}
		e.loads = e.loads.put(r.Node, l)
	}
}

// place is the node that leads, or that is wanted to while nobody does.
func (s *Stream) place() protocol.NodeID {
	if s.Led() {
		return s.Leader.Node
	}
	return s.Preferred
}

// GiveUpNodes goes on with one node alone, after the others were lost for good
// and with them the majority. It forgets them, and every stream of which the
// node has no replica; of the others its replica is the only one and counts,
// whatever it was. What was confirmed by the lost ones alone is lost.
type GiveUpNodes struct {
	Keep protocol.NodeID `json:"keep"`
}

func (*GiveUpNodes) kind() string { return "nodes.give-up" }

func (c *GiveUpNodes) apply(e *edit) []Outcome {
	if !e.member(c.Keep) {
		return one(refuse(ErrNodeMissing, "%q", c.Keep))
	}
	before := e.State
	for old := range before.Streams() {
		kept, ok := old.Replica(c.Keep)
		if !ok {
			e.dropStream(old)
			continue
		}
		if len(old.Replicas) == 1 && kept.Voter && !kept.Aside {
			continue
		}
		s, _ := e.modify(old.Incarnation)
		kept.Voter, kept.Leaving, kept.Aside = true, false, false
		s.Replicas = []Replica{kept}
		s.ConfigVersion++
		s.Epoch++
		s.Leader, s.Preferred, s.Target = Leader{}, c.Keep, ""
		e.putStream(s)
	}
	for n := range before.Nodes() {
		if n.ID != c.Keep {
			e.nodes = e.nodes.remove(n.ID)
			e.nodeChanged(n.ID)
		}
	}
	return one(nil)
}
