package cluster

import (
	"errors"
	"testing"

	"github.com/millrace/millrace/cluster/catalog"
)

// TestMoveLeader_refused: a leader goes only where it can. That it goes, a real
// cluster shows (integration).
func TestMoveLeader_refused(t *testing.T) {
	c := open(t, t.TempDir(), newReplicas(newDisk(), 1))
	if err := c.CreateStream(within(t), CreateStream{VHost: "/", Name: "orders", Creator: "guest"}); err != nil {
		t.Fatal(err)
	}
	s, _ := c.View().Stream("/", "orders")
	for _, row := range []struct {
		what string
		err  error
		want error
	}{
		{"where it is", c.MoveLeader(within(t), s.Incarnation, c.Node()), nil},
		{"a node without a replica", c.MoveLeader(within(t), s.Incarnation, "n9"), catalog.ErrReplicaMissing},
		{"a stream that is not there", c.MoveLeader(within(t), s.Incarnation+1, c.Node()), catalog.ErrStreamMissing},
	} {
		if !errors.Is(row.err, row.want) {
			t.Errorf("%s: %v, want %v", row.what, row.err, row.want)
		}
	}
	if s, _ = c.View().Stream("/", "orders"); s.Target != "" {
		t.Errorf("a wish is left: %s", s.Target)
	}
}

// TestDrain_ofALeavingNode: draining a node that is being removed does not bring
// it back; undraining does.
func TestDrain_ofALeavingNode(t *testing.T) {
	c := openThree(t, nil)
	ctx := within(t)
	if err := c.do(ctx, &catalog.MarkNode{ID: "n2", Leaving: true}); err != nil {
		t.Fatal(err)
	}
	for _, drain := range []bool{true, false} {
		if err := c.Drain(ctx, "n2", drain); err != nil {
			t.Fatal(err)
		}
		if n, _ := c.View().Node("n2"); n.Leaving != drain || n.Draining != drain {
			t.Errorf("drain %t: leaving %t, draining %t", drain, n.Leaving, n.Draining)
		}
	}
}
