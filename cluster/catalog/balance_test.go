package catalog

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
)

// lopsided makes streams on three of the nodes, all led from the first.
func lopsided(w *world, streams int, nodes ...protocol.NodeID) {
	r := rand.New(rand.NewPCG(3, 4))
	for i := range streams {
		others := r.Perm(len(nodes) - 1)
		w.led(fmt.Sprintf("s%d", i), nodes[0], nodes[1+others[0]], nodes[1+others[1]])
	}
}

func TestBalanceLeaders(t *testing.T) {
	w, up := cluster(t, "n1", "n2", "n3", "n4~drain", "n5!down")
	lopsided(w, 120, "n1", "n2", "n3", "n4", "n5")
	leaders := map[protocol.NodeID]int{"n1": 120}
	for _, x := range BalanceLeaders(w.state, up) {
		s, _ := w.state.Incarnation(x.Stream)
		if _, ok := s.Replica(x.To); !ok || x.To == "n4" || x.To == "n5" {
			t.Fatalf("%s is given to %s", shape(s), x.To)
		}
		leaders[s.Leader.Node]--
		leaders[x.To]++
	}
	// A sixth of the streams has both others on n4 and n5 and must stay.
	for n, want := range map[protocol.NodeID]int{"n1": 40, "n2": 40, "n3": 40} {
		if leaders[n] < want-1 || leaders[n] > want+1 {
			t.Errorf("%s leads %d, want about %d", n, leaders[n], want)
		}
	}
}

func TestBalanceLeaders_leavesTheDrainingNode(t *testing.T) {
	w, up := cluster(t, "n1~drain", "n2", "n3")
	lopsided(w, 30, "n1", "n2", "n3")
	if got := BalanceLeaders(w.state, up); len(got) != 30 {
		t.Errorf("%d of 30 leaders leave", len(got))
	}
}

func TestBalanceReplicas(t *testing.T) {
	w, up := cluster(t, "n1/a", "n2/b", "n3/c", "n4/a", "n5/b")
	for i := range 100 {
		w.led(fmt.Sprintf("s%d", i), "n1", "n2", "n3")
	}
	w.ok(register(w.get("s0"), "n2")) // somebody comes or goes: left alone
	for _, m := range BalanceReplicas(w.state, up) {
		s, _ := w.state.Incarnation(m.Stream)
		if s.Name == "s0" {
			t.Error("a stream that is not still is moved")
		}
		to, _ := w.state.Node(m.To)
		from, _ := w.state.Node(m.From)
		if to.Rack != from.Rack {
			t.Errorf("from rack %s to %s, where the stream is already", from.Rack, to.Rack)
		}
		w.ok(&AddReplicas{Replicas: []Added{{Stream: m.Stream, Node: m.To}}})
		s, _ = w.state.Incarnation(m.Stream)
		w.ok(w.change(s.Name, m.To, true))
		w.ok(w.change(s.Name, m.From, false))
	}
	for id, want := range map[protocol.NodeID][2]int{"n1": {50, 51}, "n4": {49, 50}, "n2": {50, 51}, "n5": {49, 50}, "n3": {100, 100}} {
		n := 0
		for s := range w.state.Streams() {
			if r, ok := s.Replica(id); ok && r.Voter {
				n++
			}
		}
		if n < want[0] || n > want[1] {
			t.Errorf("%s holds %d, want %v", id, n, want)
		}
	}
}

func TestBalanceReplicas_evenIsLeftAlone(t *testing.T) {
	w, up := cluster(t, "n1", "n2", "n3", "n4!down")
	lopsided(w, 30, "n1", "n2", "n3")
	if got := BalanceReplicas(w.state, up); len(got) != 0 {
		t.Errorf("moves %v", got)
	}
}
