package integration

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/integration/harness"
)

// TestOperators_refusals: each command that would lose data or a majority, or
// come to nothing, is refused with its exit code and a word why; with all nodes
// there, and with one that is lost.
func TestOperators_refusals(t *testing.T) {
	o := newOperators(t)
	o.create("all", 10, nil)
	o.create("one", 10, map[string]string{"initial-cluster-size": "1"})
	at := o.cluster.Nodes[0]
	home := parsed[admin.Stream](o, o.must(at, "stream", "describe", "one", "-o", "json")).Leader
	away := o.cluster.Others(o.cluster.Named(home))
	lost, other := away[0], away[1]
	asked := o.cluster.Named(home)
	type row struct {
		args []string
		code int
		says string
	}
	refused := func(rows []row) {
		t.Helper()
		for _, r := range rows {
			s := o.run(asked, r.args...)
			if s.code != r.code || !strings.Contains(s.err, r.says) {
				t.Errorf("millrace %s: exit %d, want %d, saying %q: %s%s", strings.Join(r.args, " "), s.code, r.code, r.says, s.out, s.err)
			}
		}
	}
	refused([]row{
		{[]string{"replica", "remove", "one", home, "--yes"}, 7, "add one on another node first"},
		{[]string{"replica", "remove", "one", other.Name, "--yes"}, 4, "has none on"},
		{[]string{"replica", "add", "all", home}, 4, "replica exists"},
		{[]string{"replica", "add", "one", "nobody"}, 3, "nobody"},
		{[]string{"replica", "move", "all", home, other.Name}, 4, "replica exists"},
		{[]string{"replica", "move", "one", other.Name, lost.Name}, 4, "has none on"},
		{[]string{"replica", "transfer", "one", other.Name}, 4, other.Name},
		{[]string{"replica", "transfer", "all", "nobody"}, 4, "nobody"},
		{[]string{"replica", "repair", "none"}, 3, "none"},
		{[]string{"cluster", "remove", "nobody", "--yes"}, 3, "its members are"},
		{[]string{"cluster", "remove", home}, 2, "nobody is there to confirm"},
		{[]string{"cluster", "transfer", "nobody"}, 3, "nobody"},
		{[]string{"cluster", "recover", "--data-dir", asked.DataDir, "--i-understand-data-loss"}, 1, "stop the node first"},
		{[]string{"node", "drain", "nobody"}, 3, "nobody"},
		{[]string{"node", "undrain", "nobody"}, 3, "nobody"},
	})

	lost.Kill()
	o.eventually("the lost node is missed", func() bool { return o.down(asked, lost) })
	refused([]row{
		{[]string{"cluster", "remove", other.Name, "--yes"}, 7, "without"},
		{[]string{"replica", "remove", "all", other.Name, "--yes"}, 7, lost.Name},
		{[]string{"replica", "add", "one", lost.Name}, 7, "does not answer"},
		{[]string{"replica", "transfer", "all", lost.Name}, 7, "does not answer"},
		{[]string{"cluster", "transfer", lost.Name}, 7, "does not answer"},
	})
	// Nothing of it was done.
	for _, stream := range []string{"all", "one"} {
		s := parsed[admin.Stream](o, o.must(asked, "stream", "describe", stream, "-o", "json"))
		if want := map[string]int{"all": 3, "one": 1}[stream]; len(s.Replicas) != want || s.Messages != 10 {
			t.Errorf("%s has %d messages on %v", stream, s.Messages, s.Replicas)
		}
	}
}

// down tells whether a node counts as down where another is asked.
func (o *operators) down(asked, node *harness.Node) bool {
	o.t.Helper()
	for _, m := range parsed[[]admin.Member](o, o.must(asked, "cluster", "members", "-o", "json")) {
		if m.Node == node.Name {
			return m.State == "down"
		}
	}
	return false
}

// TestOperators_retentionEverywhere: what the leader's limits take goes on every
// replica, also after each node has led in turn; all begin at the same message.
// (RT-04)
func TestOperators_retentionEverywhere(t *testing.T) {
	o := newOperators(t, retainOften...)
	o.create("s", 0, map[string]string{"stream-max-segment-size-bytes": "100000", "max-length-bytes": "300000"})
	first := uint64(0)
	for _, leader := range o.cluster.Nodes {
		o.must(o.cluster.Nodes[0], "replica", "transfer", "s", leader.Name)
		o.publish("s", 2000) // 2 MB: twenty segments
		var figures []admin.Stream
		o.eventually("all replicas begin at the same message, behind the last round's", func() bool {
			figures = figures[:0]
			for _, n := range o.cluster.Nodes {
				var f admin.Stream
				body, err := n.Get("/api/v1/streams/%2F/s?node=" + n.Name)
				if err != nil || json.Unmarshal(body, &f) != nil {
					t.Fatalf("%v: %s", err, body)
				}
				figures = append(figures, f)
			}
			for _, f := range figures {
				if f.FirstOffset != figures[0].FirstOffset || f.FirstOffset <= first || f.NextOffset != figures[0].NextOffset {
					return false
				}
			}
			return figures[0].Bytes.User < 600_000
		})
		for i, f := range figures {
			if d := max(f.Bytes.Disk, figures[0].Bytes.Disk) - min(f.Bytes.Disk, figures[0].Bytes.Disk); d > 200_000 {
				t.Errorf("led by %s: %s takes %d bytes of disk, %s %d", leader.Name, o.cluster.Nodes[i].Name, f.Bytes.Disk, o.cluster.Nodes[0].Name, figures[0].Bytes.Disk)
			}
		}
		t.Logf("FIGURE retention on three nodes, led by %s: all begin at message %d of %d", leader.Name, figures[0].FirstOffset, figures[0].NextOffset)
		first = figures[0].FirstOffset
	}
	if err := o.cluster.SameReplicas(); err != nil {
		t.Error(err)
	}
}
