package integration

import (
	"context"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
)

// What becomes of a company of nodes whose network fails while they found a
// cluster, come back, or change who has what. As namespaces_linux_test.go.

// needNamespaces skips where they can't be had, or were not asked for.
func needNamespaces(t *testing.T) {
	t.Helper()
	if number(t, "NAMESPACES", 0) == 0 {
		t.Skip("network namespaces take long; make namespaces-long has them")
	}
	if why := harness.NoNamespaces(); why != "" {
		t.Skip(why)
	}
}

// apart is how long nodes must be apart to show that they do nothing rash: several
// times what raft, links and the search for others wait for.
const apart = 5 * time.Second

// TestNamespaces_founding cuts nodes off before there is a cluster, behind a
// restart, and with an emptied disk (EL-04): no second cluster ever begins, and a
// node alone takes nothing.
func TestNamespaces_founding(t *testing.T) {
	needNamespaces(t)
	cluster, wires := harness.PrepareInNamespaces(t, 3, true)
	c := &clusterTest{t: t, cluster: cluster}
	alone, others := cluster.Nodes[0], cluster.Nodes[1:]
	isolate := func() {
		for _, n := range others {
			wires.CutBoth(alone, n)
		}
	}
	launch := func(nodes ...*harness.Node) (ready []func() error) {
		for _, n := range nodes {
			r, err := n.Launch()
			if err != nil {
				t.Fatal(err)
			}
			ready = append(ready, r)
		}
		return ready
	}
	await := func(ready []func() error) {
		t.Helper()
		for _, r := range ready {
			if err := r(); err != nil {
				t.Fatal(err)
			}
		}
	}
	sound := func(want int) {
		t.Helper()
		if ids := clusterIDs(t, cluster.Nodes); len(ids) > want {
			t.Fatalf("clusters %v", ids)
		}
	}

	// Empty nodes, one apart from two, and all three expected.
	isolate()
	ready := launch(cluster.Nodes...)
	pass(apart) // that nothing happens takes time to see
	sound(0)
	wires.Heal()
	await(ready)
	sound(1)
	c.create()

	// A member that comes back and finds nobody.
	alone.Kill()
	isolate()
	ready = launch(alone)
	pass(apart)
	c.takesNothing(alone)
	wires.Heal()
	await(ready)

	// The same with an empty disk.
	alone.Kill()
	if err := os.RemoveAll(alone.DataDir); err != nil {
		t.Fatal(err)
	}
	isolate()
	ready = launch(alone)
	pass(apart)
	c.takesNothing(alone)
	if ids := clusterIDs(t, []*harness.Node{alone}); len(ids) > 0 {
		t.Errorf("the emptied node is in %v", ids)
	}
	wires.Heal()
	await(ready)
	sound(1)
	c.start()
	c.finish()
}

// takesNothing is what clients of a node without the others must find.
func (c *clusterTest) takesNothing(n *harness.Node) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), 2*time.Second)
	defer cancel()
	conn, err := client.Dial(ctx, client.Config{Addr: n.Stream, Name: "nobody", Timeout: 2 * time.Second})
	if err != nil {
		return // not even clients
	}
	defer conn.Abort()
	if err := conn.Create(ctx, "rash", nil); err == nil {
		c.t.Errorf("node %s alone has made a stream", n.Name)
	}
	if addr, err := conn.Leader(ctx, c.streams[0].name); err == nil && addr == n.Stream {
		c.t.Errorf("node %s alone says that it leads %s", n.Name, c.streams[0].name)
	}
}

// TestNamespaces_longCut cuts one node off for longer than gossip remembers the
// dead (EL-08).
func TestNamespaces_longCut(t *testing.T) {
	needNamespaces(t)
	cluster, wires := harness.StartInNamespaces(t, 3, false)
	c := &clusterTest{t: t, cluster: cluster}
	c.create()
	for _, n := range cluster.Nodes[1:] {
		wires.CutBoth(cluster.Nodes[0], n)
	}
	// Gossip forgets the dead after 30 s; the time is the fault.
	lasted := time.Duration(number(t, "LONG_CUT_SECONDS", 100)) * time.Second
	pass(lasted)
	wires.Heal()
	took := c.gathered()
	t.Logf("FIGURE %s: cut off for %v, all see each other %d ms after healing, goal %d ms", t.Name(), lasted, took.Milliseconds(), togetherWithin.Milliseconds())
	c.start()
	c.finish()
}

// nemesis breaks five nodes in quick succession: cuts, kills, and changes of
// replicas at the same time (RP-15).
type nemesis struct {
	*clusterTest
	wires  *harness.Wires
	random *rand.Rand
	asked  map[int]int // changes of replicas by the status of their answer
}

func (n *nemesis) node() *harness.Node { return n.cluster.Nodes[n.random.IntN(len(n.cluster.Nodes))] }

// cutOff takes a node away from the others, or only one direction.
func (n *nemesis) cutOff() {
	victim, way := n.node(), n.random.IntN(3)
	for _, other := range n.cluster.Others(victim) {
		if way != 0 {
			n.wires.Cut(victim, other)
		}
		if way != 1 {
			n.wires.Cut(other, victim)
		}
	}
}

// changeReplica asks for a change, and takes any answer.
func (n *nemesis) changeReplica() {
	asked, s := n.node(), n.streams[n.random.IntN(len(n.streams))]
	method := []string{http.MethodPut, http.MethodDelete}[n.random.IntN(2)]
	n.asked[n.hurried(method, asked.HTTP+"/api/v1/streams/%2F/"+s.name+"/replicas/"+n.node().Name, "")]++
}

// hurried asks for a change and waits for the answer for a moment; 0 is none.
func (c *clusterTest) hurried(method, url, body string) (status int) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		c.t.Fatal(err)
	}
	req.SetBasicAuth("guest", "guest")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0
	}
	_ = res.Body.Close()
	return res.StatusCode
}

// round breaks several things at once, lets that be for a moment, and mends them.
func (n *nemesis) round() {
	n.cutOff()
	for range n.random.IntN(3) {
		n.changeReplica()
	}
	var killed *harness.Node
	if n.random.IntN(2) == 0 {
		killed = n.node()
		killed.Kill()
		n.changeReplica()
	}
	if n.random.IntN(3) == 0 {
		n.cutOff()
	}
	pass(time.Duration(200+n.random.IntN(2500)) * time.Millisecond) // how long it lasts is part of the fault
	n.changeReplica()
	n.wires.Heal()
	if killed != nil {
		n.cluster.Restart(killed)
	}
	for range n.random.IntN(3) {
		n.changeReplica()
	}
	pass(time.Duration(n.random.IntN(1500)) * time.Millisecond)
}

func TestNamespaces_changesAndCuts(t *testing.T) {
	needNamespaces(t)
	cluster, wires := harness.StartInNamespaces(t, 5, true)
	seed := rand.Uint64()
	t.Logf("the nemesis' seed is %d", seed)
	n := &nemesis{clusterTest: &clusterTest{t: t, cluster: cluster}, wires: wires, random: rand.New(rand.NewPCG(seed, 5)), asked: map[int]int{}}
	n.createWith(map[string]string{"initial-cluster-size": "3"})
	n.start()
	begin := time.Now()
	for _, s := range n.streams {
		s.traffic.Cut(begin)
	}
	rounds := 0
	for end := begin.Add(time.Duration(number(t, "NEMESIS_SECONDS", 120)) * time.Second); time.Now().Before(end); rounds++ {
		n.round()
	}
	n.flows()
	for _, s := range n.streams {
		n.level(s)
		s.traffic.Healed()
	}
	t.Logf("FIGURE %s: %d rounds of cuts and kills in %d s with five nodes; changes of replicas by status: %v; longest gap %d ms",
		t.Name(), rounds, int(time.Since(begin).Seconds()), n.asked, n.gap().Milliseconds())
	if n.asked[http.StatusAccepted] == 0 {
		t.Error("no change of replicas was carried out")
	}
	n.finish()
}

// stuckMax is how long a publisher may stay with a node that does not lead.
const stuckMax = 5 * time.Second

// TestNamespaces_lateNews moves leaders while what two of three nodes tell each
// other is late, each time by another while: nobody goes back to an old leader
// (EL-16).
func TestNamespaces_lateNews(t *testing.T) {
	needNamespaces(t)
	cluster, wires := harness.StartInNamespaces(t, 3, true)
	c := &clusterTest{t: t, cluster: cluster}
	c.create()
	c.start()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 16))
	t.Logf("the seed is %d", seed)
	c.gap()
	begin := time.Now()
	for _, s := range c.streams {
		s.traffic.Cut(begin)
	}
	moved := 0
	const rounds = 20
	for range rounds {
		late := cluster.Others(cluster.MetaLeader()) // raft goes by the third
		for i := range 2 {
			wires.Shape(late[i], late[1-i], harness.Behaviour{Delay: time.Duration(random.IntN(1000)) * time.Millisecond})
		}
		s := c.streams[random.IntN(len(c.streams))]
		to := cluster.Nodes[random.IntN(3)]
		if c.hurried(http.MethodPut, to.HTTP+"/api/v1/streams/%2F/"+s.name+"/leader", `{"node":"`+to.Name+`"}`) == http.StatusOK {
			moved++
		}
		pass(time.Duration(random.IntN(1000)) * time.Millisecond) // news is on its way
	}
	c.flows()
	gap := c.gap()
	wires.Heal()
	for _, s := range c.streams {
		c.level(s)
		s.traffic.Healed()
	}
	t.Logf("FIGURE %s: %d of %d moves of leaders while two nodes hear each other up to 1 s late: longest gap %d ms, goal %d ms",
		t.Name(), moved, rounds, gap.Milliseconds(), stuckMax.Milliseconds())
	if gap > stuckMax {
		t.Errorf("the longest gap is %v", gap)
	}
	if moved < rounds/4 {
		t.Errorf("only %d leaders moved", moved)
	}
	c.finish()
}
