package catalog

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
)

// cluster makes a state of nodes written as "n1/rackA", "n2!down", "n3~drain",
// "n4^leave".
func cluster(t *testing.T, nodes ...string) (*world, func(protocol.NodeID) bool) {
	w := newWorld(t)
	down := map[protocol.NodeID]bool{}
	for _, text := range nodes {
		id, rack, _ := strings.Cut(text, "/")
		id, isDown := strings.CutSuffix(id, "!down")
		id, drains := strings.CutSuffix(id, "~drain")
		id, leaves := strings.CutSuffix(id, "^leave")
		node := protocol.NodeID(id)
		w.ok(&PutNode{ID: node, Disk: "d", Rack: rack})
		if drains || leaves {
			w.ok(&MarkNode{ID: node, Draining: drains, Leaving: leaves})
		}
		down[node] = isDown
	}
	return w, func(id protocol.NodeID) bool { return !down[id] }
}

func TestPlace(t *testing.T) {
	for _, row := range []struct {
		name  string
		nodes string
		given given
		local protocol.NodeID
		want  string // replicas, "" for none; * leads, - must not; ? any
	}{
		{"one node", "n1", nil, "n1", "*n1"},
		{"two nodes, three wanted", "n1 n2", nil, "n2", "n1 *n2"},
		{"three nodes", "n1 n2 n3", nil, "n2", "n1 *n2 n3"},
		{"local is among three of five", "n1 n2 n3 n4 n5", nil, "n4", "? ? *n4"},
		{"one replica", "n1 n2 n3", given{"initial-cluster-size": "1"}, "n3", "*n3"},
		{"more than there are", "n1 n2 n3", given{"initial-cluster-size": "7"}, "n1", "*n1 n2 n3"},
		{"five of five", "n1 n2 n3 n4 n5", given{"initial-cluster-size": "5"}, "n1", "*n1 n2 n3 n4 n5"},
		{"running nodes first", "n1!down n2 n3 n4", nil, "n2", "*n2 n3 n4"},
		{"a node that is down is taken if need be", "n1 n2 n3!down", nil, "n1", "*n1 n2 n3"},
		{"no majority runs", "n1 n2!down n3!down", nil, "n1", ""},
		{"one of two is no majority", "n1 n2!down", nil, "n1", ""},
		{"no node", "", nil, "n1", ""},
		{"a draining node comes last", "n1~drain n2 n3 n4", nil, "n2", "*n2 n3 n4"},
		{"and does not lead, though local", "n1~drain n2 n3", given{"initial-cluster-size": "3"}, "n1", "-n1 ? ?"},
		{"a leaving node gets nothing", "n1^leave n2 n3", nil, "n2", "*n2 n3"},
		{"one in each rack", "n1/a n2/a n3/b n4/b n5/c", nil, "n1", "*n1 ? n5"},
		{"nodes without a rack share none", "n1 n2 n3", nil, "n1", "*n1 n2 n3"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w, up := cluster(t, strings.Fields(row.nodes)...)
			args, err := ParseArguments(row.given)
			if err != nil {
				t.Fatal(err)
			}
			for salt := range uint64(20) {
				got, err := NewPlacer(w.state, up).Place(Wanted{Arguments: args, Local: row.local, Salt: salt})
				if row.want == "" {
					if !errors.Is(err, ErrNotEnoughNodes) {
						t.Fatalf("placed on %v, %v", got, err)
					}
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				matchPlacement(t, got, strings.Fields(row.want))
			}
		})
	}
}

func matchPlacement(t *testing.T, got Placement, want []string) {
	t.Helper()
	if len(got.Replicas) != len(want) || !slices.Contains(got.Replicas, got.Leader) || !slices.IsSorted(got.Replicas) {
		t.Fatalf("placed on %v led by %s, want %v", got.Replicas, got.Leader, want)
	}
	named := map[protocol.NodeID]bool{}
	for _, id := range got.Replicas {
		named[id] = true
	}
	if len(named) != len(want) {
		t.Fatalf("placed twice: %v", got.Replicas)
	}
	for _, text := range want {
		id := protocol.NodeID(strings.TrimLeft(text, "*-"))
		if text != "?" && !named[id] || text[0] == '*' && got.Leader != id || text[0] == '-' && got.Leader == id {
			t.Fatalf("placed on %v led by %s, want %v", got.Replicas, got.Leader, want)
		}
	}
}

// 1,000 streams of three replicas on five nodes: replicas and leaders within
// ten per cent of even, in one batch and one by one, whoever creates them.
func TestPlace_isEven(t *testing.T) {
	const streams, replicas, nodes = 1000, 3, 5
	for _, batch := range []int{1, 16, streams} {
		for _, locator := range []string{"balanced", "client-local"} {
			t.Run(fmt.Sprintf("%s by %d", locator, batch), func(t *testing.T) {
				w, up := cluster(t, "n0", "n1", "n2", "n3", "n4")
				args, _ := ParseArguments(given{"queue-leader-locator": locator})
				for first := 0; first < streams; first += batch {
					c := &CreateStreams{}
					p := NewPlacer(w.state, up)
					for i := first; i < min(first+batch, streams); i++ {
						n := newStream(fmt.Sprintf("s%d", i), "n0")
						local := protocol.NodeID(fmt.Sprintf("n%d", i%nodes)) // clients on all nodes
						place, err := p.Place(Wanted{Arguments: args, Local: local, Salt: uint64(n.Incarnation)})
						if err != nil {
							t.Fatal(err)
						}
						n.Replicas, n.Preferred = place.Replicas, place.Leader
						c.Streams = append(c.Streams, n)
					}
					w.ok(c)
				}
				for n := range w.state.Nodes() {
					l := w.state.Load(n.ID)
					even(t, string(n.ID)+" replicas", l.Replicas, streams*replicas/nodes)
					even(t, string(n.ID)+" leaders", l.Leaders, streams/nodes)
				}
			})
		}
	}
}

func even(t *testing.T, what string, got, want int) {
	t.Helper()
	if got*10 < want*9 || got*10 > want*11 {
		t.Errorf("%s: %d, even is %d", what, got, want)
	}
}

// Racks of unequal size: no stream has two replicas in one of three racks.
func TestPlace_racksBeforeLoads(t *testing.T) {
	w, up := cluster(t, "n0/a", "n1/a", "n2/a", "n3/b", "n4/c")
	p := NewPlacer(w.state, up)
	for salt := range uint64(300) {
		got, err := p.Place(Wanted{Arguments: Arguments{LeaderLocator: "balanced"}, Salt: salt})
		if err != nil {
			t.Fatal(err)
		}
		racks := map[string]bool{}
		for _, id := range got.Replicas {
			n, _ := w.state.Node(id)
			racks[n.Rack] = true
		}
		if len(racks) != 3 {
			t.Fatalf("%v is in %d racks", got.Replicas, len(racks))
		}
	}
	for _, id := range []protocol.NodeID{"n0", "n1", "n2"} {
		if n := p.loads[id].Replicas; n < 99 || n > 101 {
			t.Errorf("%s of the big rack holds %d of 300", id, n)
		}
	}
}
