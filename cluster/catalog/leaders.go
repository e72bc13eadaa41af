package catalog

import (
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Grant asks for a stream's next epoch, which ends the present one.
type Grant struct {
	Stream chunk.Incarnation `json:"stream"`
	// Epoch is the wanted one: it must follow the stream's newest, so that two
	// proposers with the same view get one epoch between them.
	Epoch chunk.Epoch `json:"epoch"`
	// Prefer, if given, breaks ties in elections from now on: the target of a
	// transfer.
	Prefer protocol.NodeID `json:"prefer,omitempty"`
}

// GrantEpochs gives out epochs for many streams, each for itself (A1).
type GrantEpochs struct {
	Streams []Grant `json:"streams"`
}

func (*GrantEpochs) kind() string { return "epochs.grant" }

func (c *GrantEpochs) apply(e *edit) []Outcome {
	out := make([]Outcome, len(c.Streams))
	for i, g := range c.Streams {
		s, r := e.modify(g.Stream)
		if r == nil && g.Epoch != s.Epoch+1 {
			r = refuse(ErrStaleEpoch, "stream %q is at epoch %d, the next is not %d", s.Name, s.Epoch, g.Epoch)
		}
		if r != nil {
			out[i].Refusal = r
			continue
		}
		s.Epoch, s.Leader = g.Epoch, Leader{}
		if g.Prefer != "" {
			s.Preferred = g.Prefer
		}
		e.putStream(s)
		out[i].Epoch = s.Epoch
	}
	return out
}

// Assign records the outcome of one election.
type Assign struct {
	Stream        chunk.Incarnation      `json:"stream"`
	Epoch         chunk.Epoch            `json:"epoch"`
	Node          protocol.NodeID        `json:"node"`
	Run           protocol.RunID         `json:"run"`
	ConfigVersion protocol.ConfigVersion `json:"config-version"`
}

// AssignLeaders records the outcomes of many elections, each for itself. The
// first for an epoch wins (A1), and only if it was held by the newest
// configuration (A4) and won by a replica that may win.
type AssignLeaders struct {
	Leaders []Assign `json:"leaders"`
}

func (*AssignLeaders) kind() string { return "leaders.assign" }

func (c *AssignLeaders) apply(e *edit) []Outcome {
	out := make([]Outcome, len(c.Leaders))
	for i, a := range c.Leaders {
		s, r := e.modify(a.Stream)
		if r == nil {
			r = s.electable(a)
		}
		if r != nil {
			out[i].Refusal = r
			continue
		}
		out[i].Epoch = s.Epoch
		leader := Leader{Node: a.Node, Run: a.Run, ConfigVersion: a.ConfigVersion}
		if s.Leader == leader {
			continue // the same outcome once more
		}
		s.Leader, s.Target = leader, ""
		e.putStream(s)
	}
	return out
}

// electable says why an election's outcome can't be recorded, or nil.
func (s *Stream) electable(a Assign) *Refusal {
	leader := Leader{Node: a.Node, Run: a.Run, ConfigVersion: a.ConfigVersion}
	switch {
	case a.Epoch != s.Epoch:
		return refuse(ErrStaleEpoch, "stream %q is at epoch %d, not %d", s.Name, s.Epoch, a.Epoch)
	case s.Led() && s.Leader != leader:
		return refuse(ErrStaleEpoch, "epoch %d of stream %q has its leader on %q", s.Epoch, s.Name, s.Leader.Node)
	case s.Led():
		return nil
	case a.ConfigVersion != s.ConfigVersion:
		return refuse(ErrStaleVersion, "stream %q is at version %d, not %d", s.Name, s.ConfigVersion, a.ConfigVersion)
	}
	r, ok := s.Replica(a.Node)
	switch {
	case !ok:
		return refuse(ErrReplicaMissing, "stream %q has none on %q", s.Name, a.Node)
	case !r.Voter || r.Aside && len(s.Voters()) > 1: // a sole voter is taken back
		return refuse(ErrUnsafe, "the replica of %q on %q counts for nothing and can't lead", s.Name, a.Node)
	}
	return nil
}

// Transfer says where a stream's leader is wanted; To "" ends the wish.
type Transfer struct {
	Stream chunk.Incarnation `json:"stream"`
	To     protocol.NodeID   `json:"to"`
}

// TransferLeaders says where leaders are wanted, each stream for itself. The
// coordinator asks the present leader to hand over (D4).
type TransferLeaders struct {
	Transfers []Transfer `json:"transfers"`
}

func (*TransferLeaders) kind() string { return "leaders.transfer" }

func (c *TransferLeaders) apply(e *edit) []Outcome {
	out := make([]Outcome, len(c.Transfers))
	for i, x := range c.Transfers {
		s, r := e.modify(x.Stream)
		if r == nil {
			r = s.transferable(x.To)
		}
		if r != nil {
			out[i].Refusal = r
			continue
		}
		if s.Leader.Node == x.To {
			x.To = "" // there already
		}
		if s.Target != x.To {
			s.Target = x.To
			e.putStream(s)
		}
	}
	return out
}

// transferable says why a stream can't be led from a node, or nil.
func (s *Stream) transferable(to protocol.NodeID) *Refusal {
	if to == "" {
		return nil
	}
	r, ok := s.Replica(to)
	switch {
	case !ok:
		return refuse(ErrReplicaMissing, "stream %q has none on %q", s.Name, to)
	case !r.Voter || r.Aside || r.Leaving:
		return refuse(ErrUnsafe, "the replica of %q on %q can't lead: it is a learner, set aside or on its way out", s.Name, to)
	}
	return nil
}
