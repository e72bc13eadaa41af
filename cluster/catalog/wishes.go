package catalog

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Wishes are what the replicas of one node want of the metadata and have not
// yet got (D1, D2, D3), at most one of a kind for each replica.
type Wishes struct {
	node    protocol.NodeID
	waiting map[wishKey]protocol.Proposal
	// settled is the newest configuration that a stream's leader on this node
	// called settled, and its epoch.
	settled map[chunk.Incarnation]settlement
}

type wishKey struct {
	stream chunk.Incarnation
	kind   protocol.ProposalKind
	node   protocol.NodeID
}

type settlement struct {
	epoch   chunk.Epoch
	version protocol.ConfigVersion
}

// Wish is one of them with what its stream's leader called settled.
type Wish struct {
	Stream chunk.Incarnation
	protocol.Proposal
	settlement
}

// NewWishes has none.
func NewWishes(node protocol.NodeID) *Wishes {
	return &Wishes{node: node, waiting: make(map[wishKey]protocol.Proposal), settled: make(map[chunk.Incarnation]settlement)}
}

// Add takes a replica's proposal, or one that was taken and came to nothing: that
// one may be older than what its leader has called settled since.
func (w *Wishes) Add(stream chunk.Incarnation, p protocol.Proposal) {
	at := w.settled[stream]
	if p.Kind == protocol.ProposeSettled && (p.Epoch > at.epoch || p.Epoch == at.epoch && p.Config > at.version) {
		w.settled[stream] = settlement{p.Epoch, p.Config}
	}
	w.waiting[wishKey{stream, p.Kind, p.Node}] = p
}

// Changed looks again at streams that this node leads and that somebody is to
// leave, and reports whether there are any.
func (w *Wishes) Changed(changes []Change) bool {
	added := false
	for _, x := range changes {
		switch {
		case x.Kind != StreamChanged:
		case x.Stream == nil:
			delete(w.settled, x.Before.Incarnation)
		case x.Stream.Leader.Node == w.node && slices.ContainsFunc(x.Stream.Replicas, leavingVoter):
			at := w.settled[x.Stream.Incarnation]
			w.Add(x.Stream.Incarnation, protocol.Proposal{Kind: protocol.ProposeSettled, Node: w.node, Epoch: at.epoch, Config: at.version})
			added = true
		}
	}
	return added
}

func leavingVoter(r Replica) bool { return r.Voter && r.Leaving }

// Empty says whether nothing waits.
func (w *Wishes) Empty() bool { return len(w.waiting) == 0 }

// Take empties the queue, in the order of streams.
func (w *Wishes) Take() []Wish {
	list := make([]Wish, 0, len(w.waiting))
	for key, p := range w.waiting { // order-free: sorted below
		list = append(list, Wish{key.stream, p, w.settled[key.stream]})
	}
	clear(w.waiting)
	slices.SortFunc(list, func(a, b Wish) int {
		return cmp.Or(cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Node, b.Node))
	})
	return list
}

// Registrations enters emptied and damaged replicas of a node anew (D1); asked
// are the wishes behind the command's parts, in their order.
func Registrations(view *State, node protocol.NodeID, list []Wish) (body *RegisterReplicas, asked []Wish) {
	body = &RegisterReplicas{Node: node}
	for _, x := range list {
		if x.Kind != protocol.ProposeRegister {
			continue
		}
		s, ok := view.Incarnation(x.Stream)
		if !ok {
			continue
		}
		if r, ok := s.Replica(node); ok {
			body.Streams = append(body.Streams, Registered{Stream: x.Stream, From: r.Registration})
			asked = append(asked, x)
		}
	}
	return body, asked
}

// Clearings lets replicas count again that have caught up (D2). What is refused,
// the leader wishes again if it is still true.
func Clearings(list []Wish) *ClearReplicas {
	body := &ClearReplicas{}
	for _, x := range list {
		if x.Kind == protocol.ProposeClear {
			body.Replicas = append(body.Replicas, Cleared{Stream: x.Stream, Node: x.Node, Registration: x.Registration, Epoch: x.Epoch})
		}
	}
	return body
}

// VoterChanges takes in who has caught up and lets go who is to go, one voter of
// a stream at a time and only where the leader on node has settled (D3), and where
// a majority of those that are up is left. What is refused, something newer stands
// against, and Changed looks at that. Nobody says again that voters are settled:
// settled are the wishes that are to be put back if the command is not heard,
// later those that must come again in any case. Their streams have too few voters
// that are up, or another change came first, which may come to nothing.
func VoterChanges(view *State, node protocol.NodeID, list []Wish, up func(protocol.NodeID) bool) (body *ChangeVoters, settled, later []Wish) {
	body = &ChangeVoters{}
	changing := make(map[chunk.Incarnation]bool)
	for _, x := range list {
		s, ok := view.Incarnation(x.Stream)
		if !ok || x.epoch != s.Epoch {
			continue
		}
		if changing[x.Stream] {
			if x.Kind == protocol.ProposeSettled {
				later = append(later, x)
			}
			continue
		}
		var change *VoterChange
		switch x.Kind {
		case protocol.ProposePromote:
			change = &VoterChange{Stream: x.Stream, Epoch: x.epoch, Version: x.version, Node: x.Node, Registration: x.Registration, Voter: true}
			if !s.bears(change, up) {
				continue // the leader wishes it again
			}
		case protocol.ProposeSettled:
			var blocked bool
			if change, blocked = NextChange(s, node, x.version, up); blocked {
				later = append(later, x)
			}
			if change == nil {
				continue
			}
			settled = append(settled, x)
		default:
			continue
		}
		changing[x.Stream] = true
		body.Changes = append(body.Changes, *change)
	}
	return body, settled, later
}
