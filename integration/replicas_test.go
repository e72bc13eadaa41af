package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
)

// Four real processes, three replicas of each stream, and operators who change
// where these are while the streams are written.

const (
	// fillDefault is what a stream holds before a replica is added, in
	// `go test ./...`; make replicas-long has 1 GB.
	fillDefault  = 8 << 20
	fillProducer = 98
	fillBytes    = 16 << 10
	// followWithin bounds how long a replica may take to catch up.
	followWithin = 5 * time.Minute
)

// fill puts so many bytes into a stream.
func (c *clusterTest) fill(s *clusterStream, bytes int) {
	c.t.Helper()
	conn := c.dial(c.cluster.Leader(s.name))
	defer conn.Close()
	pub, err := conn.DeclarePublisher(c.t.Context(), client.PublisherConfig{
		Stream: s.name, Window: 1024, Confirmed: func(ids []uint64) {
			for _, id := range ids {
				s.ledger.Confirmed(fillProducer, id)
			}
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	for id := range uint64(bytes / fillBytes) {
		s.ledger.Sent(fillProducer, id+1)
		if err := pub.Send(id+1, harness.AppendMessage(nil, fillProducer, id+1, fillBytes)); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := pub.Drain(c.t.Context()); err != nil {
		c.t.Fatal(err)
	}
}

// replicas asks any node for a stream's replicas.
func (c *clusterTest) replicas(asked *harness.Node, s *clusterStream) []admin.Replica {
	c.t.Helper()
	body, err := asked.Get("/api/v1/streams/%2F/" + s.name + "/replicas")
	if err != nil {
		c.t.Fatal(err)
	}
	var list []admin.Replica
	if err := json.Unmarshal(body, &list); err != nil {
		c.t.Fatal(err)
	}
	return list
}

// change asks for a change of replicas and returns the answer.
func (c *clusterTest) change(asked *harness.Node, method string, s *clusterStream, path string) (int, string) {
	c.t.Helper()
	status, body, err := asked.Ask(method, "/api/v1/streams/%2F/"+s.name+"/replicas/"+path)
	if err != nil {
		c.t.Fatal(err)
	}
	return status, string(body)
}

// must is change that has to begin.
func (c *clusterTest) must(asked *harness.Node, method string, s *clusterStream, path string) {
	c.t.Helper()
	if status, body := c.change(asked, method, s, path); status != http.StatusAccepted {
		c.t.Fatalf("%s %s of %s: %d: %s", method, path, s.name, status, body)
	}
}

// await waits until replicas are as wanted, and returns how long that took.
func (c *clusterTest) await(what string, s *clusterStream, ok func([]admin.Replica) bool) time.Duration {
	c.t.Helper()
	begin := time.Now()
	for {
		list := c.replicas(c.cluster.Nodes[0], s)
		if ok(list) {
			return time.Since(begin)
		}
		if time.Since(begin) > followWithin {
			c.t.Fatalf("%s: not within %v: %+v", what, followWithin, list)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func counts(node *harness.Node) func([]admin.Replica) bool {
	return func(list []admin.Replica) bool {
		return slices.ContainsFunc(list, func(r admin.Replica) bool { return r.Node == node.Name && r.Voter })
	}
}

func isGone(node *harness.Node) func([]admin.Replica) bool {
	return func(list []admin.Replica) bool {
		return !slices.ContainsFunc(list, func(r admin.Replica) bool { return r.Node == node.Name })
	}
}

// TestReplicas_comeAndGo adds a replica to a stream while that is written, moves
// its leader's, and removes others: nothing is lost, and publishers hardly notice.
func TestReplicas_comeAndGo(t *testing.T) {
	c := &clusterTest{t: t, cluster: harness.StartCluster(t, 4)}
	c.createWith(map[string]string{"initial-cluster-size": "3"})
	fill := number(t, "REPLICA_FILL", fillDefault)
	s := c.streams[0]
	c.fill(s, fill)
	c.start()
	c.gap()

	var fourth *harness.Node // has none yet
	for _, n := range c.cluster.Nodes {
		if isGone(n)(c.replicas(n, s)) {
			fourth = n
		}
	}
	begin := time.Now()
	c.must(c.cluster.Nodes[0], "PUT", s, fourth.Name)
	c.await("the fourth replica counts", s, counts(fourth))
	added := time.Since(begin)
	for _, r := range c.replicas(fourth, s) {
		if r.State == "down" || r.NextOffset == nil {
			t.Errorf("replica on %s: %+v", r.Node, r)
		}
	}

	// The leader's own replica goes: it hands over before it does (D3).
	leader := c.cluster.Leader(s.name)
	if leader == fourth {
		t.Errorf("%s leads already", fourth.Name)
	}
	begin = time.Now()
	c.must(fourth, "DELETE", s, leader.Name)
	c.await("the leader's replica is gone", s, isGone(leader))
	removed := time.Since(begin)
	if now := c.cluster.Leader(s.name); now == leader {
		t.Errorf("%s leads without a replica", now.Name)
	}

	// And another one moves to where that was.
	var from *harness.Node
	for _, n := range c.cluster.Others(leader) {
		if n != fourth && n != c.cluster.Leader(s.name) {
			from = n
		}
	}
	begin = time.Now()
	c.must(leader, "PUT", s, leader.Name+"?instead="+from.Name)
	c.await("the moved replica counts", s, counts(leader))
	c.await("where it was, none is", s, isGone(from))
	moved := time.Since(begin)
	c.flows()
	gap := c.gap()
	t.Logf("FIGURE replicas of a stream of %d MB under load: one added in %d ms, the leader's removed in %d ms, one moved in %d ms; longest gap %d ms, goal %d ms",
		fill/1_000_000, added.Milliseconds(), removed.Milliseconds(), moved.Milliseconds(), gap.Milliseconds(), replicasGapMax.Milliseconds())
	if gap > replicasGapMax {
		t.Errorf("the longest gap is %v", gap)
	}
	if list := c.replicas(from, s); len(list) != 3 {
		t.Errorf("%d replicas are left: %+v", len(list), list)
	}
	c.finish()
}

// replicasGapMax is the longest time that publishers may be without a confirm
// while replicas come and go; a leader goes among them.
const replicasGapMax = 3 * time.Second

// TestReplicas_nodeThatIsLost removes the replicas of a node that is down, which
// deletes them when it comes back; what would cost a majority is refused in words.
func TestReplicas_nodeThatIsLost(t *testing.T) {
	c := &clusterTest{t: t, cluster: harness.StartCluster(t, 3)}
	c.create()
	c.start()
	s := c.streams[0]
	lost := c.cluster.Others(c.cluster.Leader(s.name))[0]
	here := c.cluster.Others(lost)
	for _, s := range c.streams {
		s.traffic.Killed(time.Now())
	}
	lost.Kill()
	c.flows()
	c.await("the node counts as down", s, func(list []admin.Replica) bool {
		return slices.ContainsFunc(list, func(r admin.Replica) bool { return r.Node == lost.Name && r.State == "down" })
	})
	status, body := c.change(here[0], "DELETE", s, here[1].Name)
	if status != http.StatusPreconditionFailed || !strings.Contains(body, lost.Name+" (does not answer)") {
		t.Errorf("remove a second one: %d: %s", status, body)
	}
	c.must(here[0], "DELETE", s, lost.Name)
	c.await("the lost node's replica is gone", s, isGone(lost))
	c.flows()
	status, body = c.change(here[0], "PUT", s, lost.Name)
	if status != http.StatusPreconditionFailed || !strings.Contains(body, "does not answer") {
		t.Errorf("add one on a node that is down: %d: %s", status, body)
	}
	c.cluster.Restart(lost)
	begin := time.Now()
	for c.holds(lost, s) {
		if time.Since(begin) > usableWithin {
			t.Fatalf("the files of %s are still on %s", s.name, lost.Name)
		}
		time.Sleep(20 * time.Millisecond)
	}
	cleaned := time.Since(begin)
	for _, other := range c.streams[1:] {
		if !c.holds(lost, other) {
			t.Errorf("the files of %s are gone from %s too", other.name, lost.Name)
		}
	}
	c.must(lost, "PUT", s, lost.Name)
	c.await("it has one again", s, counts(lost))
	t.Logf("FIGURE replicas: a node whose replica was removed while it was down deleted the files %d ms after it was ready", cleaned.Milliseconds())
	for _, s := range c.streams {
		c.level(s)
	}
	c.finish()
}

// holds tells whether a node has a stream's files.
func (c *clusterTest) holds(n *harness.Node, s *clusterStream) bool {
	c.t.Helper()
	body, err := c.cluster.Nodes[0].Get("/api/v1/streams/%2F/" + s.name)
	if err != nil {
		c.t.Fatal(err)
	}
	var figures admin.Stream
	if err := json.Unmarshal(body, &figures); err != nil {
		c.t.Fatal(err)
	}
	folders, err := harness.Folders(n.DataDir, fmt.Sprintf("*-%s", figures.Incarnation))
	if err != nil {
		c.t.Fatal(err)
	}
	return len(folders) > 0
}

// TestReplicas_balance evens out leaders that a client's node has all of.
func TestReplicas_balance(t *testing.T) {
	c := &clusterTest{t: t, cluster: harness.StartCluster(t, 3)}
	c.createWith(map[string]string{"queue-leader-locator": "client-local"})
	c.start()
	first := c.cluster.Nodes[0]
	for _, s := range c.streams {
		c.move(s, first)
	}
	ask := func(query string) (b admin.Balance) {
		status, body, err := c.cluster.Nodes[1].Ask("POST", "/api/v1/cluster/balance"+query)
		if err != nil || status != http.StatusOK {
			t.Fatalf("balance: %d, %v: %s", status, err, body)
		}
		if err := json.Unmarshal(body, &b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	if plan := ask("?dry_run=true"); len(plan.Leaders) != 2 || !plan.DryRun {
		t.Errorf("the plan is %+v, not of two leaders", plan)
	}
	for _, s := range c.streams {
		if at := c.cluster.Leader(s.name); at != first {
			t.Errorf("a plan moved the leader of %s to %s", s.name, at.Name)
		}
	}
	ask("")
	led := func() map[string]int {
		led := map[string]int{}
		for _, s := range c.streams {
			led[c.cluster.Leader(s.name).Name]++
		}
		return led
	}
	for deadline := time.Now().Add(usableWithin); len(led()) < 3; {
		if time.Now().After(deadline) {
			t.Fatalf("leaders are not even: %v", led())
		}
		time.Sleep(20 * time.Millisecond)
	}
	c.finish()
}

// TestReplicas_ofATrimmedStream adds a replica to a stream that has lost its
// first messages, and kills its node at once: it begins where the others do, and
// has not forgotten that.
func TestReplicas_ofATrimmedStream(t *testing.T) {
	c := &clusterTest{t: t, cluster: harness.StartCluster(t, 4, "--retention-interval", "100ms")}
	c.createWith(map[string]string{"initial-cluster-size": "3", "max-length-bytes": "1000000"})
	s := c.streams[0]
	c.fill(s, fillDefault)
	var fourth *harness.Node
	for _, n := range c.cluster.Nodes {
		if isGone(n)(c.replicas(n, s)) {
			fourth = n
		}
	}
	for round := range 3 {
		c.must(c.cluster.Others(fourth)[0], "PUT", s, fourth.Name)
		time.Sleep(time.Duration(round*40) * time.Millisecond) // somewhere in its start
		fourth.Kill()
		c.cluster.Restart(fourth)
		c.await("the killed replica counts", s, counts(fourth))
		if err := c.cluster.AwaitLevel(s.name); err != nil {
			t.Fatal(err)
		}
		first, leads := c.first(fourth, s), c.first(c.cluster.Leader(s.name), s)
		if first == 0 || first > leads {
			t.Errorf("round %d: the new replica begins at %d, its leader at %d", round, first, leads)
		}
		if round < 2 {
			c.must(fourth, "DELETE", s, fourth.Name)
			c.await("it is gone again", s, isGone(fourth))
		}
	}
	if err := c.cluster.SameReplicas(); err != nil {
		t.Error(err)
	}
}

// first is where a node's replica begins.
func (c *clusterTest) first(n *harness.Node, s *clusterStream) uint64 {
	c.t.Helper()
	body, err := n.Get("/api/v1/streams/%2F/" + s.name + "?node=" + n.Name)
	if err != nil {
		c.t.Fatal(err)
	}
	var figures admin.Stream
	if err := json.Unmarshal(body, &figures); err != nil {
		c.t.Fatal(err)
	}
	return figures.FirstOffset
}
