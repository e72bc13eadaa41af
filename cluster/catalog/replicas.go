package catalog

import (
	"slices"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Registered is one replica to be registered anew.
type Registered struct {
	Stream chunk.Incarnation `json:"stream"`
	// From is the replica's registration as its node saw it in the catalog, so
	// that a repetition does not count twice.
	From protocol.Registration `json:"from"`
}

// RegisterReplicas sets replicas of one node aside because they were emptied
// or damaged (D1, A7). Each outcome holds the stream's newest epoch, which the
// replica syncs as its promise before anything else. If the replica led, its
// reign is over and the epoch is a new one: a second leader of the same epoch
// must never be (A1).
type RegisterReplicas struct {
	Node    protocol.NodeID `json:"node"`
	Streams []Registered    `json:"streams"`
}

func (*RegisterReplicas) kind() string { return "replicas.register" }

func (c *RegisterReplicas) apply(e *edit) []Outcome {
	out := make([]Outcome, len(c.Streams))
	for i, g := range c.Streams {
		s, at, r := e.modifyReplica(g.Stream, c.Node)
		if r == nil && s.Replicas[at].Registration != g.From {
			r = refuse(ErrStaleVersion, "the replica of %q on %q is at registration %d, not %d",
				s.Name, c.Node, s.Replicas[at].Registration, g.From)
		}
		if r != nil {
			out[i].Refusal = r
			continue
		}
		s.setAside(at)
		e.putStream(s)
		out[i].Epoch, out[i].Registration = s.Epoch, s.Replicas[at].Registration
	}
	return out
}

// setAside makes a replica count for nothing, under a new registration. The
// configuration version serves as its number, since it never comes twice.
func (s *Stream) setAside(at int) {
	s.ConfigVersion++
	s.Replicas[at].Aside = true
	s.Replicas[at].Registration = protocol.Registration(s.ConfigVersion)
	if s.Leader.Node == s.Replicas[at].Node {
		s.Epoch++
		s.Leader = Leader{}
	}
}

// Cleared is one replica that may count again.
type Cleared struct {
	Stream       chunk.Incarnation     `json:"stream"`
	Node         protocol.NodeID       `json:"node"`
	Registration protocol.Registration `json:"registration"` // the one that caught up
	Epoch        chunk.Epoch           `json:"epoch"`        // of the leader that says so
}

// ClearReplicas lets set-aside replicas count again (D2). Only the leader of a
// stream's newest epoch proposes it, after its barrier has committed and the
// replica has all that is.
type ClearReplicas struct {
	Replicas []Cleared `json:"replicas"`
}

func (*ClearReplicas) kind() string { return "replicas.clear" }

func (c *ClearReplicas) apply(e *edit) []Outcome {
	out := make([]Outcome, len(c.Replicas))
	for i, g := range c.Replicas {
		s, at, r := e.modifyReplica(g.Stream, g.Node)
		switch {
		case r != nil:
		case g.Epoch != s.Epoch || !s.Led():
			r = refuse(ErrStaleEpoch, "stream %q is at epoch %d; %d leads no more", s.Name, s.Epoch, g.Epoch)
		case g.Registration != s.Replicas[at].Registration:
			r = refuse(ErrStaleVersion, "the replica of %q on %q is at registration %d, not %d",
				s.Name, g.Node, s.Replicas[at].Registration, g.Registration)
		}
		if r != nil {
			out[i].Refusal = r
			continue
		}
		if s.Replicas[at].Aside {
			s.Replicas[at].Aside = false
			s.ConfigVersion++
			e.putStream(s)
		}
	}
	return out
}

// Added is one replica to be made.
type Added struct {
	Stream chunk.Incarnation `json:"stream"`
	Node   protocol.NodeID   `json:"node"`
	// Instead, if given, is the node whose replica is to go for it.
	Instead protocol.NodeID `json:"instead,omitempty"`
}

// AddReplicas makes learners: replicas that receive and count for nothing until
// they have caught up and the leader makes them voters. It is their
// registration too (D1): a learner's node syncs the epoch that it sees in the
// catalog as the promise, which is at least the one of this command.
type AddReplicas struct {
	Replicas []Added `json:"replicas"`
}

func (*AddReplicas) kind() string { return "replicas.add" }

func (c *AddReplicas) apply(e *edit) []Outcome {
	out := make([]Outcome, len(c.Replicas))
	for i, a := range c.Replicas {
		s, r := e.modify(a.Stream)
		switch {
		case r != nil:
		case s.replica(a.Node) >= 0:
			r = refuse(ErrReplicaExists, "stream %q on %q", s.Name, a.Node)
		case !e.member(a.Node):
			r = refuse(ErrNodeMissing, "%q", a.Node)
		case a.Instead != "":
			r = s.makeWay(a.Instead)
		}
		if r != nil {
			out[i].Refusal = r
			continue
		}
		s.ConfigVersion++
		s.Replicas = append(s.Replicas, Replica{
			Node: a.Node, Aside: true, Registration: protocol.Registration(s.ConfigVersion),
		})
		sortReplicas(s.Replicas)
		e.putStream(s)
		out[i].Epoch, out[i].Registration = s.Epoch, protocol.Registration(s.ConfigVersion)
	}
	return out
}

// makeWay marks a replica that another one is to replace.
func (s *Stream) makeWay(node protocol.NodeID) *Refusal {
	at := s.replica(node)
	switch {
	case at < 0:
		return refuse(ErrReplicaMissing, "stream %q has none on %q", s.Name, node)
	case s.Replicas[at].Leaving:
		return refuse(ErrReplicaMissing, "the replica of %q on %q is on its way out already", s.Name, node)
	}
	s.leave(at)
	return nil
}

// leave marks a replica as on its way out. A wish to be led from there ends: it
// would come true if the node got another replica one day.
func (s *Stream) leave(at int) {
	s.Replicas[at].Leaving = true
	if s.Target == s.Replicas[at].Node {
		s.Target = ""
	}
}

func (e *edit) member(id protocol.NodeID) bool {
	_, ok := e.nodes.get(id)
	return ok
}

// VoterChange makes a learner a voter or a voter a learner.
type VoterChange struct {
	Stream       chunk.Incarnation      `json:"stream"`
	Epoch        chunk.Epoch            `json:"epoch"`
	Version      protocol.ConfigVersion `json:"version"` // the settled one
	Node         protocol.NodeID        `json:"node"`
	Registration protocol.Registration  `json:"registration"`
	Voter        bool                   `json:"voter"` // what it is to be
}

// ChangeVoters changes the voters of many streams, each for itself and by one
// voter (D3). Only the leader of the newest epoch proposes it for a stream, and
// by doing so says that Version is settled: its barrier is committed, it has
// adopted Version, and a majority of Version durably holds everything up to its
// commit. Of a learner it says that it has caught up (D2).
type ChangeVoters struct {
	Changes []VoterChange `json:"changes"`
}

func (*ChangeVoters) kind() string { return "voters.change" }

func (c *ChangeVoters) apply(e *edit) []Outcome {
	out := make([]Outcome, len(c.Changes))
	for i := range c.Changes {
		out[i].Refusal = e.changeVoter(&c.Changes[i])
	}
	return out
}

func (e *edit) changeVoter(c *VoterChange) *Refusal {
	s, at, r := e.modifyReplica(c.Stream, c.Node)
	if r == nil && s.Replicas[at].Voter == c.Voter && s.Replicas[at].Registration == c.Registration {
		return nil // the same change once more
	}
	if r == nil {
		r = s.voterChangeable(c, at)
	}
	if r != nil {
		return r
	}
	s.Replicas[at].Voter = c.Voter
	if c.Voter {
		s.Replicas[at].Aside = false
	}
	s.ConfigVersion++
	e.putStream(s)
	return nil
}

// voterChangeable says why the voters can't be changed so, or nil.
func (s *Stream) voterChangeable(c *VoterChange, at int) *Refusal {
	switch {
	case !s.Led():
		return refuse(ErrUnsettled, "stream %q is in an election", s.Name)
	case c.Epoch != s.Epoch:
		return refuse(ErrStaleEpoch, "stream %q is at epoch %d, not %d", s.Name, s.Epoch, c.Epoch)
	case c.Version != s.ConfigVersion:
		return refuse(ErrUnsettled, "version %d of stream %q is not yet settled", s.ConfigVersion, s.Name)
	case c.Registration != s.Replicas[at].Registration:
		return refuse(ErrStaleVersion, "the replica of %q on %q is at registration %d, not %d",
			s.Name, c.Node, s.Replicas[at].Registration, c.Registration)
	case c.Voter && s.Replicas[at].Leaving:
		return refuse(ErrUnsafe, "the replica of %q on %q is on its way out", s.Name, c.Node)
	}
	if after := slices.Clone(s.Replicas); !c.Voter {
		after[at].Voter = false
		if voters, clean := count(after); 2*clean <= voters {
			return refuse(ErrUnsafe, "without %q stream %q has %d voters of which %d count", c.Node, s.Name, voters, clean)
		}
	}
	return nil
}

// count returns how many replicas are voters, and how many of these count.
func count(replicas []Replica) (voters, clean int) {
	for _, r := range replicas {
		if r.Voter {
			voters++
			if !r.Aside {
				clean++
			}
		}
	}
	return voters, clean
}

// Retired is one replica that is to go, or with Stay to stay after all.
type Retired struct {
	Stream chunk.Incarnation `json:"stream"`
	Node   protocol.NodeID   `json:"node"`
	Stay   bool              `json:"stay,omitempty"`
}

// RetireReplicas says which replicas are to go. How they go is up to the
// leaders and the coordinator: first those that come in their place catch up
// and become voters, then a voter becomes a learner, then it is removed.
type RetireReplicas struct {
	Replicas []Retired `json:"replicas"`
}

func (*RetireReplicas) kind() string { return "replicas.retire" }

func (c *RetireReplicas) apply(e *edit) []Outcome {
	out := make([]Outcome, len(c.Replicas))
	for i, x := range c.Replicas {
		s, at, r := e.modifyReplica(x.Stream, x.Node)
		if r != nil {
			out[i].Refusal = r
			continue
		}
		if s.Replicas[at].Leaving == !x.Stay {
			continue
		}
		if s.Replicas[at].Leaving = false; !x.Stay {
			s.leave(at)
		}
		if !slices.ContainsFunc(s.Replicas, func(r Replica) bool { return !r.Leaving }) {
			out[i].Refusal = refuse(ErrUnsafe, "stream %q would be left without a replica; add one on another node first", s.Name)
			continue
		}
		e.putStream(s)
	}
	return out
}

// Removed is one replica to be taken away.
type Removed struct {
	Stream chunk.Incarnation `json:"stream"`
	Node   protocol.NodeID   `json:"node"`
	// Registration is the one that the proposer saw, so that a repetition does
	// not remove a replica that was added since.
	Registration protocol.Registration `json:"registration"`
}

// RemoveReplicas takes learners away; their nodes delete what they hold. A
// voter is made a learner first, a leader moved first.
type RemoveReplicas struct {
	Replicas []Removed `json:"replicas"`
}

func (*RemoveReplicas) kind() string { return "replicas.remove" }

func (c *RemoveReplicas) apply(e *edit) []Outcome {
	out := make([]Outcome, len(c.Replicas))
	for i, x := range c.Replicas {
		s, at, r := e.modifyReplica(x.Stream, x.Node)
		switch {
		case r != nil:
		case s.Replicas[at].Registration != x.Registration:
			r = refuse(ErrReplicaMissing, "registration %d of stream %q on %q", x.Registration, s.Name, x.Node)
		case s.Replicas[at].Voter:
			r = refuse(ErrUnsafe, "the replica of %q on %q is a voter", s.Name, x.Node)
		case s.Leader.Node == x.Node:
			r = refuse(ErrLeader, "stream %q on %q", s.Name, x.Node)
		}
		if r != nil {
			out[i].Refusal = r
			continue
		}
		s.Replicas = slices.Delete(s.Replicas, at, at+1)
		s.ConfigVersion++
		e.putStream(s)
	}
	return out
}

// modifyReplica is modify that also finds a node's replica.
func (e *edit) modifyReplica(i chunk.Incarnation, node protocol.NodeID) (*Stream, int, *Refusal) {
	s, r := e.modify(i)
	if r != nil {
		return nil, 0, r
	}
	at := s.replica(node)
	if at < 0 {
		return nil, 0, refuse(ErrReplicaMissing, "stream %q has none on %q", s.Name, node)
	}
	return s, at, nil
}
