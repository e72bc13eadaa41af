package catalog

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Move takes one replica of a stream from a node to another.
type Move struct {
	Stream   chunk.Incarnation
	From, To protocol.NodeID
}

// BalanceLeaders returns transfers after which no node leads two streams more
// than another one that could lead one of them. Nodes that are not up or that
// drain get none.
func BalanceLeaders(s *State, up func(protocol.NodeID) bool) []Transfer {
	leaders := make(map[protocol.NodeID]int)
	fit := make(map[protocol.NodeID]bool)
	for n := range s.Nodes() {
		fit[n.ID] = up(n.ID) && !n.Draining
	}
	streams := spread(s, (*Stream).Led)
	at := make([]protocol.NodeID, len(streams)) // where each leader is, or is to be
	for i, stream := range streams {
		at[i] = stream.Leader.Node
		leaders[at[i]]++
	}
	for moved := true; moved; {
		moved = false
		for i, stream := range streams {
			to := least(stream, at[i], leaders, fit)
			if leaders[to]+1 >= leaders[at[i]] && fit[at[i]] || to == at[i] {
				continue
			}
			leaders[at[i]]--
			leaders[to]++
			at[i], moved = to, true
		}
	}
	var transfers []Transfer
	for i, stream := range streams {
		if at[i] != stream.Leader.Node {
			transfers = append(transfers, Transfer{stream.Incarnation, at[i]})
		}
	}
	return transfers
}

// least returns the node with the fewest leaders that could lead a stream, or
// where it is.
func least(s *Stream, at protocol.NodeID, leaders map[protocol.NodeID]int, fit map[protocol.NodeID]bool) protocol.NodeID {
	best := at
	for _, r := range s.Replicas {
		if !fit[r.Node] || s.transferable(r.Node) != nil || r.Node == at {
			continue
		}
		if best == at && !fit[at] || leaders[r.Node] < leaders[best] {
			best = r.Node
		}
	}
	return best
}

// BalanceReplicas returns moves, at most one for each stream, from nodes that
// hold many replicas to nodes that hold few. A move never brings two replicas
// of a stream into one rack that were in two. Streams in which somebody comes
// or goes already are left alone.
func BalanceReplicas(s *State, up func(protocol.NodeID) bool) []Move {
	held := make(map[protocol.NodeID]int)
	nodes := make(map[protocol.NodeID]*Node)
	var fit []*Node
	for n := range s.Nodes() {
		nodes[n.ID] = n
		held[n.ID] = s.Load(n.ID).Replicas
		if up(n.ID) && !n.Draining {
			fit = append(fit, n)
		}
	}
	var moves []Move
	for _, stream := range spread(s, (*Stream).still) {
		if m, ok := bestMove(stream, nodes, fit, held); ok {
			held[m.From]--
			held[m.To]++
			moves = append(moves, m)
		}
	}
	return moves
}

// still says whether nobody comes or goes in a stream.
func (s *Stream) still() bool {
	return !slices.ContainsFunc(s.Replicas, func(r Replica) bool { return !r.Voter || r.Leaving || r.Aside })
}

// bestMove returns the move of one stream that evens out most, if one does.
func bestMove(s *Stream, nodes map[protocol.NodeID]*Node, fit []*Node, held map[protocol.NodeID]int) (Move, bool) {
	best, gain := Move{}, 1
	for _, r := range s.Replicas {
		var others []*Node
		for _, o := range s.Replicas {
			if n := nodes[o.Node]; o.Node != r.Node && n != nil {
				others = append(others, n)
			}
		}
		from := nodes[r.Node]
		for _, to := range fit {
			if from == nil || s.replica(to.ID) >= 0 || sharing(to, others) > sharing(from, others) {
				continue
			}
			if g := held[r.Node] - held[to.ID]; g > gain {
				best, gain = Move{s.Incarnation, r.Node, to.ID}, g
			}
		}
	}
	return best, gain > 1
}

// spread returns the streams that pass, in an order that neither names nor ages
// have to do with, so that what is moved is a fair sample.
func spread(s *State, pass func(*Stream) bool) []*Stream {
	var streams []*Stream
	for stream := range s.Streams() {
		if pass(stream) {
			streams = append(streams, stream)
		}
	}
	slices.SortFunc(streams, func(a, b *Stream) int {
		return cmp.Or(cmp.Compare(mix(uint64(a.Incarnation), ""), mix(uint64(b.Incarnation), "")), cmp.Compare(a.Incarnation, b.Incarnation))
	})
	return streams
}
