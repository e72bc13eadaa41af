package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// TestOperators_lowDisks has the disks of followers run low, one and then the
// other: with one the stream goes on, and everybody sees whose replica is behind;
// with two publishers are stopped and told, readers go on; with room again all
// goes on and the replicas are the same.
func TestOperators_lowDisks(t *testing.T) {
	if os.Getenv("OPERATORS") == "" {
		t.Skip("clusters of processes take long; make operators-test has them")
	}
	var disks, dirs []string
	for range 3 {
		disk := smallDisk(t, "64m")
		disks, dirs = append(disks, disk), append(dirs, filepath.Join(disk, "data"))
	}
	o := &operators{t, harness.StartClusterIn(t, dirs, "--disk-free-min", fmt.Sprint(16*mib), "--disk-free-min-percent", "0"), map[string]int{}}
	o.create("s", 500, nil)
	leader := o.cluster.Leader("s")
	var followers []*lowDisk
	for i, n := range o.cluster.Nodes {
		if n != leader {
			followers = append(followers, &lowDisk{&retained{t: t, node: n}, disks[i]})
		}
	}
	first, second := followers[0], followers[1]
	replicaOf := func(n *harness.Node) admin.Replica {
		for _, r := range parsed[[]admin.Replica](o, o.must(second.node, "replica", "list", "s", "-o", "json")) {
			if r.Node == n.Name {
				return r
			}
		}
		t.Fatalf("%s has no replica", n.Name)
		return admin.Replica{}
	}
	behind := func(n *harness.Node) float64 {
		v, err := leader.Metric("/metrics/streams", fmt.Sprintf(`millrace_stream_replica_behind_chunks{vhost="/",stream="s",node=%q}`, n.Name))
		if err != nil {
			t.Fatal(err)
		}
		return v
	}

	first.leave(2 * mib) // below the floor
	o.eventually("n's alarm is known", func() bool { return replicaOf(first.node).DiskAlarm })
	o.publish("s", 2000)
	if r := replicaOf(first.node); r.Behind == nil || *r.Behind == 0 {
		t.Errorf("the replica on the full disk is not behind: %+v", r)
	}
	if behind(first.node) == 0 || behind(second.node) > 5 {
		t.Errorf("metrics have the full one %v chunks behind, the other %v", behind(first.node), behind(second.node))
	}
	if s := o.run(second.node, "status"); s.code != 8 || !strings.Contains(s.err, "disk alarm: "+first.node.Name) {
		t.Errorf("status: exit %d: %s", s.code, s.err)
	}

	second.leave(14 * mib) // an alarm, far from the floor
	o.eventually("publishers are stopped", func() bool { return o.refused(leader) })
	if !strings.Contains(leader.Log(), "disks of other nodes are low") {
		t.Error("the leader's log does not say why")
	}
	s := parsed[admin.Stream](o, o.must(first.node, "stream", "describe", "s", "-o", "json"))
	if !s.PublishersStopped || s.Messages != 2500 {
		t.Errorf("described as %+v", s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), usableWithin)
	defer cancel()
	conn := dialNode(t, leader)
	defer conn.Close()
	if _, _, err := readDense(ctx, conn, "s", fromFirst, 2500); err != nil {
		t.Errorf("readers: %v", err)
	}

	for _, f := range followers {
		f.must(os.Remove(filepath.Join(f.disk, "ballast")))
	}
	o.eventually("publishers go on", func() bool { return !o.refused(leader) })
	o.publish("s", 500)
	o.eventually("the full one has caught up", func() bool { return behind(first.node) == 0 })
	if err := o.cluster.SameReplicas(); err != nil {
		t.Error(err)
	}
}

// refused tells whether a node lets no new publisher in for its disks.
func (o *operators) refused(at *harness.Node) bool {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), usableWithin)
	defer cancel()
	conn := dialNode(o.t, at)
	defer conn.Close()
	pub, err := conn.DeclarePublisher(ctx, client.PublisherConfig{Stream: "s"})
	if err != nil && client.Code(err) != wire.CodePreconditionFailed {
		o.t.Fatal(err)
	}
	if err == nil {
		_ = pub.Close(ctx) // the connection ends with it
	}
	return err != nil
}

// eventually waits for what comes by gossip.
func (o *operators) eventually(what string, ok func() bool) {
	o.t.Helper()
	for end := time.Now().Add(usableWithin); !ok(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(end) {
			o.t.Fatalf("never: %s", what)
		}
	}
}
