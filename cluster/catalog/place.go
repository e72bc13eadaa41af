package catalog

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/replication/protocol"
)

// replicasDefault is the number of voters of a stream whose creator asked for
// none: with three, one node may fail.
const replicasDefault = 3

// Wanted is what a new stream asks of its place.
type Wanted struct {
	Arguments Arguments
	// Local is the node that the creating client is connected to.
	Local protocol.NodeID
	// Salt spreads ties; any number that differs between streams.
	Salt uint64
}

// Placement is the nodes for a new stream's voters and, among them, the one
// where its leader should be.
type Placement struct {
	Replicas []protocol.NodeID
	Leader   protocol.NodeID
}

// Placer chooses nodes for new streams. It adds what it has placed to the
// loads, so that one Placer spreads a whole batch.
type Placer struct {
	nodes []*Node // that may hold something new, in order
	up    func(protocol.NodeID) bool
	loads map[protocol.NodeID]Load
}

// NewPlacer starts from a state's loads; up says which nodes are running.
func NewPlacer(s *State, up func(protocol.NodeID) bool) *Placer {
	p := &Placer{up: up, loads: make(map[protocol.NodeID]Load, s.NodeCount())}
	for n := range s.Nodes() {
		if !n.Leaving {
			p.nodes = append(p.nodes, n)
			p.loads[n.ID] = s.Load(n.ID)
		}
	}
	return p
}

// Place chooses as many nodes as the arguments ask for, at most all. Nodes that
// run go first, then racks that the stream is not yet in, then nodes that hold
// few replicas; the client's node is among them if the leader should be local.
// Without a majority that runs it is ErrNotEnoughNodes.
func (p *Placer) Place(w Wanted) (Placement, error) {
	want := replicasDefault
	if n := w.Arguments.InitialClusterSize; n.Given {
		want = int(min(n.Value, int64(len(p.nodes))))
	}
	want = min(want, len(p.nodes))
	local := protocol.NodeID("")
	if w.Arguments.Locator() == ClientLocal {
		local = w.Local
	}
	var chosen []*Node
	running := 0
	for len(chosen) < want {
		n := p.best(chosen, local, w.Salt)
		chosen = append(chosen, n)
		if p.up(n.ID) {
			running++
		}
	}
	if 2*running <= want || want == 0 {
		return Placement{}, refuse(ErrNotEnoughNodes, "%d of the %d nodes for the stream run, which is no majority", running, want)
	}
	placement := Placement{Leader: p.leader(chosen, local, w.Salt)}
	for _, n := range chosen {
		placement.Replicas = append(placement.Replicas, n.ID)
		l := p.loads[n.ID]
		l.Replicas++
		if n.ID == placement.Leader {
			l.Leaders++
		}
		p.loads[n.ID] = l
	}
	slices.Sort(placement.Replicas)
	return placement, nil
}

// best returns the next node for a stream that has some already.
func (p *Placer) best(chosen []*Node, local protocol.NodeID, salt uint64) *Node {
	var best *Node
	for _, n := range p.nodes {
		if slices.Contains(chosen, n) {
			continue
		}
		if best == nil || cmp.Or(
			cmp.Compare(p.health(n), p.health(best)),
			cmp.Compare(distance(n, local), distance(best, local)),
			cmp.Compare(sharing(n, chosen), sharing(best, chosen)),
			cmp.Compare(p.loads[n.ID].Replicas, p.loads[best.ID].Replicas),
			cmp.Compare(mix(salt, n.ID), mix(salt, best.ID)),
		) < 0 {
			best = n
		}
	}
	return best
}

// leader returns the node among the chosen for the leader.
func (p *Placer) leader(chosen []*Node, local protocol.NodeID, salt uint64) protocol.NodeID {
	return slices.MinFunc(chosen, func(a, b *Node) int {
		return cmp.Or(
			cmp.Compare(p.health(a), p.health(b)),
			cmp.Compare(distance(a, local), distance(b, local)),
			cmp.Compare(p.loads[a.ID].Leaders, p.loads[b.ID].Leaders),
			cmp.Compare(mix(salt, a.ID), mix(salt, b.ID)),
		)
	}).ID
}

// health orders nodes by how fit they are for something new.
func (p *Placer) health(n *Node) int {
	switch {
	case !p.up(n.ID):
		return 2
	case n.Draining:
		return 1
	}
	return 0
}

// distance is 0 for the wanted node and 1 for all others.
func distance(n *Node, local protocol.NodeID) int {
	if n.ID == local {
		return 0
	}
	return 1
}

// sharing counts the chosen nodes in the same rack; a node without a rack
// shares none.
func sharing(n *Node, chosen []*Node) int {
	shared := 0
	for _, c := range chosen {
		if n.Rack != "" && c.Rack == n.Rack {
			shared++
		}
	}
	return shared
}

// mix hashes a stream's salt with a node, so that ties fall evenly.
func mix(salt uint64, id protocol.NodeID) uint64 {
	h := uint64(14695981039346656037) ^ salt
	for _, b := range []byte(id) {
		h = (h ^ uint64(b)) * 1099511628211
	}
	h ^= h >> 30 // the finaliser of splitmix64: FNV alone leaves the top bits of short ids alike
	h *= 0xbf58476d1ce4e5b9
	h ^= h >> 27
	h *= 0x94d049bb133111eb
	return h ^ h>>31
}
