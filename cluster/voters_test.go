package cluster

import (
	"slices"
	"testing"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// Who is no member any more leaves raft, unless the voters that are left could
// decide nothing then.
func TestNextVoterChange_dismissesNobodyWhoIsNeeded(t *testing.T) {
	view := catalog.New()
	for _, n := range []protocol.NodeID{"n1", "n2"} {
		command := catalog.Command{Request: string(n), Body: &catalog.PutNode{ID: n, Disk: "d"}}
		next, result, _, err := view.Apply(command.Encode())
		if err != nil || result.Err() != nil {
			t.Fatal(err, result.Err())
		}
		view = next
	}
	for _, row := range []struct {
		name   string
		third  raft.ServerSuffrage
		linked []protocol.NodeID
		want   voterChange
	}{
		{"all are there", raft.Voter, []protocol.NodeID{"n2", "n3"}, voterChange{dismiss, "n3"}},
		{"it is gone itself", raft.Voter, []protocol.NodeID{"n2"}, voterChange{dismiss, "n3"}},
		{"another is gone", raft.Voter, []protocol.NodeID{"n3"}, voterChange{}},
		{"it has no vote", raft.Nonvoter, nil, voterChange{dismiss, "n3"}},
	} {
		servers := []raft.Server{{ID: "n1"}, {ID: "n2"}, {ID: "n3", Suffrage: row.third}}
		up := func(n protocol.NodeID) bool { return slices.Contains(row.linked, n) }
		if got := nextVoterChange(servers, view, "n1", up); got != row.want {
			t.Errorf("%s: %v %s, want %v %s", row.name, got.kind, got.node, row.want.kind, row.want.node)
		}
	}
}

// A removal that is under way does not end while it would cost the metadata its
// majority.
func TestRemoveDeparted_keepsTheMajority(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	leader := leaderOf(t, sites)
	rest := others(sites, leader)
	down, leaving := rest[0], rest[1]
	down.stop()
	until(t, "the node is missed", func() bool { return !leader.coord.isUp(down.name) })
	// As after a removal that was asked for while all were there.
	if err := leader.do(within(t), &catalog.MarkNode{ID: leaving.name, Draining: true, Leaving: true}); err != nil {
		t.Fatal(err)
	}
	leader.removeDeparted(within(t))
	if _, member := leader.View().Node(leaving.name); !member {
		t.Fatalf("%s was removed while %s was down", leaving.name, down.name)
	}
	down.start(Joins{})
	eventually(t, leader.Cluster, "the node is removed", func(v *catalog.State) bool {
		_, member := v.Node(leaving.name)
		return !member
	})
}
