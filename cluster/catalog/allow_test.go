package catalog

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
)

// TestCanAddRemoveMove: what operators ask for is refused in words before it
// comes to nothing, or costs a majority.
func TestCanAddRemoveMove(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3", "n4", "n5")
	g.settle("s", "n1", "n2", "n3")
	g.settle("one", "n1")
	stream := g.get("s")
	g.ok(&MarkNode{ID: "n5", Draining: true})
	without := func(down ...protocol.NodeID) func(protocol.NodeID) bool {
		return func(n protocol.NodeID) bool {
			for _, d := range down {
				if d == n {
					return false
				}
			}
			return true
		}
	}
	all := without()
	for _, row := range []struct {
		what string
		err  error
		want error
		says string
	}{
		{"add", g.state.CanAdd(stream, "n4", all), nil, ""},
		{"add where one is", g.state.CanAdd(stream, "n2", all), ErrReplicaExists, ""},
		{"add to a stranger", g.state.CanAdd(stream, "n9", all), ErrNodeMissing, ""},
		{"add to a drained node", g.state.CanAdd(stream, "n5", all), ErrUnsafe, "undrain"},
		{"add to a node that is down", g.state.CanAdd(stream, "n4", without("n4")), ErrUnsafe, "does not answer"},
		{"add while one is down", g.state.CanAdd(stream, "n4", without("n3")), nil, ""},
		{"add without a majority", g.state.CanAdd(stream, "n4", without("n2", "n3")), ErrUnsafe, "bring n2, n3 back"},
		{"remove", g.state.CanRemove(stream, "n3", all), nil, ""},
		{"remove one that is down", g.state.CanRemove(stream, "n3", without("n3")), nil, ""},
		{"remove beside one that is down", g.state.CanRemove(stream, "n2", without("n3")), ErrUnsafe, "n3 (does not answer)"},
		{"remove without a majority", g.state.CanRemove(stream, "n3", without("n2", "n3")), ErrUnsafe, "bring n2, n3 back"},
		{"remove where none is", g.state.CanRemove(stream, "n4", all), ErrReplicaMissing, ""},
		{"remove the only one", g.state.CanRemove(g.get("one"), "n1", all), ErrUnsafe, "add one on another node first"},
		{"move", g.state.CanMove(stream, "n3", "n4", all), nil, ""},
		{"move from where none is", g.state.CanMove(stream, "n4", "n5", all), ErrReplicaMissing, ""},
		{"move to where one is", g.state.CanMove(stream, "n3", "n2", all), ErrReplicaExists, ""},
	} {
		if !errors.Is(row.err, row.want) || row.err != nil && !strings.Contains(row.err.Error(), row.says) {
			t.Errorf("%s: %v, want %v that says %q", row.what, row.err, row.want, row.says)
		}
	}
	// One after the other: the second has to wait, and is told for whom (RP-12).
	g.ok(&AddReplicas{Replicas: []Added{{Stream: stream.Incarnation, Node: "n4"}}})
	g.ok(&MarkNode{ID: "n5"})
	err := g.state.CanAdd(g.get("s"), "n5", all)
	if !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), `on "n4" is still catching up`) {
		t.Errorf("add while another catches up: %v", err)
	}
	if err := g.state.CanRemove(g.get("s"), "n4", all); err != nil {
		t.Errorf("remove the one that catches up: %v", err)
	}
	g.ok(&RetireReplicas{Replicas: []Retired{{Stream: stream.Incarnation, Node: "n4"}}})
	err = g.state.CanAdd(g.get("s"), "n5", all)
	if !errors.Is(err, ErrUnsafe) || !strings.Contains(err.Error(), "on its way out") {
		t.Errorf("add while another goes: %v", err)
	}
}

func TestRoom(t *testing.T) {
	g := newStage(t, "n1", "n2")
	var moves []Move
	for i := range 2*learnersMax + 1 {
		to := protocol.NodeID("n1")
		if i >= learnersMax+1 {
			to = "n2"
		}
		moves = append(moves, Move{To: to})
	}
	now, later := g.state.Room(moves)
	if len(now) != 2*learnersMax || len(later) != 1 {
		t.Errorf("%d now, %d later", len(now), len(later))
	}
}
