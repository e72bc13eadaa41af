package catalog

import (
	"slices"
	"strings"

	"github.com/millrace/millrace/replication/protocol"
)

// What operators may do with replicas. The rules of replication keep data safe
// whatever is asked for (D2, D3); these say beforehand, and in words, what would
// come to nothing or cost a stream its majority. up tells which nodes answer.

// CanAdd says why a stream can't get a replica on a node now, or nil.
func (s *State) CanAdd(stream *Stream, node protocol.NodeID, up func(protocol.NodeID) bool) error {
	n, ok := s.Node(node)
	switch {
	case !ok:
		return refuse(ErrNodeMissing, "%q", node)
	case stream.replica(node) >= 0:
		return refuse(ErrReplicaExists, "stream %q on %q", stream.Name, node)
	case n.Leaving || n.Draining:
		return refuse(ErrUnsafe, "node %q is being drained; millrace node undrain %s first, or take another node", node, node)
	case !up(node):
		return refuse(ErrUnsafe, "node %q does not answer; start it, or take another node", node)
	}
	if r := stream.moving(); r != nil {
		return r
	}
	if r := stream.majority(up); r != nil {
		return r
	}
	return nil
}

// CanRemove says why a stream can't do without its replica on a node, or nil.
func (s *State) CanRemove(stream *Stream, node protocol.NodeID, up func(protocol.NodeID) bool) error {
	at := stream.replica(node)
	switch {
	case at < 0:
		return refuse(ErrReplicaMissing, "stream %q has none on %q", stream.Name, node)
	case stream.Replicas[at].Leaving:
		return nil // once more
	case !stream.Replicas[at].Voter:
		return nil // it counts for nothing
	}
	if r := stream.majority(up); r != nil {
		return r
	}
	voters, missing := 0, []string{}
	for _, r := range stream.Replicas {
		if !r.Voter || r.Node == node || r.Leaving {
			continue
		}
		voters++
		switch {
		case r.Aside:
			missing = append(missing, string(r.Node)+" (catching up)")
		case !up(r.Node):
			missing = append(missing, string(r.Node)+" (does not answer)")
		}
	}
	switch {
	case voters == 0:
		return refuse(ErrUnsafe, "stream %q would be left without a replica; add one on another node first", stream.Name)
	case 2*(voters-len(missing)) <= voters:
		return refuse(ErrUnsafe, "without %q stream %q would have %d replicas, too few of which count: %s; bring these back, or remove them first",
			node, stream.Name, voters, strings.Join(missing, ", "))
	}
	return nil
}

// CanMove says why a replica can't go from one node to another, or nil.
func (s *State) CanMove(stream *Stream, from, to protocol.NodeID, up func(protocol.NodeID) bool) error {
	switch at := stream.replica(from); {
	case at < 0:
		return refuse(ErrReplicaMissing, "stream %q has none on %q", stream.Name, from)
	case stream.Replicas[at].Leaving:
		return refuse(ErrUnsafe, "the replica of %q on %q is on its way out already", stream.Name, from)
	}
	return s.CanAdd(stream, to, up)
}

// moving refuses while somebody comes or goes: one change at a time.
func (s *Stream) moving() error {
	for _, r := range s.Replicas {
		switch {
		case r.Leaving:
			return refuse(ErrUnsafe, "the replica of %q on %q is on its way out; ask again once it is gone (millrace replica list %s)", s.Name, r.Node, s.Name)
		case r.Aside || !r.Voter:
			return refuse(ErrUnsafe, "the replica of %q on %q is still catching up; ask again once it counts (millrace replica list %s), or remove it", s.Name, r.Node, s.Name)
		}
	}
	return nil
}

// majority refuses where a stream has none at present: nothing can change then.
func (s *Stream) majority(up func(protocol.NodeID) bool) error {
	voters, clean := 0, 0
	var missing []string
	for _, r := range s.Replicas {
		if !r.Voter {
			continue
		}
		voters++
		if r.Aside || !up(r.Node) {
			missing = append(missing, string(r.Node))
			continue
		}
		clean++
	}
	if 2*clean <= voters {
		return refuse(ErrUnsafe, "of the %d replicas of %q that count, %d answer; bring %s back first", voters, s.Name, clean, strings.Join(missing, ", "))
	}
	return nil
}

// Room keeps of moves those that their targets can take on now: learners that
// catch up on one node are bounded. The rest is for later.
func (s *State) Room(moves []Move) (now, later []Move) {
	taken := map[protocol.NodeID]int{}
	for _, m := range moves {
		if s.Load(m.To).Learners+taken[m.To] >= learnersMax {
			later = append(later, m)
			continue
		}
		taken[m.To]++
		now = append(now, m)
	}
	return slices.Clip(now), later
}
