package goclient

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
)

const (
	// goesOnWithin is how soon the official client's reliable producers and
	// consumers shall go on by themselves; they wait for up to 22 s of it on
	// purpose. goesOnMax is what fails a test.
	goesOnWithin = 30 * time.Second
	goesOnMax    = 10 * goesOnWithin
)

// A role is what a killed node was to a stream.
type role string

const (
	streamLeader role = "stream leader"
	metaLeader   role = "raft leader"
	bothLeaders  role = "leader of both"
	neither      role = "follower"
	everyNode    role = "nodes all at once, from their start on"
)

// flow is a stream with all who publish to it and read it.
type flow struct {
	name      string
	ledger    *harness.Ledger
	steady    *steady
	producers []*producer
	consumers []*consumer
}

// town is three nodes with the official client's reliable producers and consumers:
// given the addresses of all nodes, of one, or of a load balancer before them.
type town struct {
	t       *testing.T
	cluster *harness.Cluster
	seed    *harness.Node // the one that some know alone
	front   *balancer
	flows   []*flow
	app     *tracked

	stop    chan struct{}
	working sync.WaitGroup
	worst   map[string]time.Duration

	mu       sync.Mutex // guards problems
	problems []error
}

func newTown(t *testing.T) *town {
	t.Helper()
	c := harness.StartCluster(t, 3)
	town := &town{t: t, cluster: c, seed: c.Nodes[2], stop: make(chan struct{}), worst: map[string]time.Duration{}}
	town.front = startBalancer(t, c.Addrs())
	all, one := environmentOf(t, c.Addrs(), nil), environmentOf(t, []string{town.seed.Stream}, nil)
	balanced := environmentOf(t, nil, town.front)
	for i, name := range []string{"alpha", "beta"} {
		town.create(c.Nodes[i], name)
		f := &flow{name: name, ledger: harness.NewLedger()}
		f.steady = &steady{addrs: c.Addrs(), stream: name, ledger: f.ledger, number: 1}
		f.producers = []*producer{
			startProducer(t, all, name, name+": named producer, all addresses", 2, f.ledger, true),
			startProducer(t, all, name, name+": producer without a name, all addresses", 3, f.ledger, false),
		}
		f.consumers = []*consumer{startConsumer(t, all, name, name+": consumer, all addresses", 1, f.ledger)}
		town.flows = append(town.flows, f)
	}
	a, b := town.flows[0], town.flows[1]
	a.producers = append(a.producers, startProducer(t, balanced, a.name, "alpha: named producer, balanced", 4, a.ledger, true))
	a.consumers = append(a.consumers, startConsumer(t, balanced, a.name, "alpha: consumer, balanced", 1, a.ledger))
	b.producers = append(b.producers, startProducer(t, one, b.name, "beta: named producer, one address", 4, b.ledger, true))
	b.consumers = append(b.consumers, startConsumer(t, one, b.name, "beta: consumer, one address", 1, b.ledger))
	// An environment of its own: one whose consumer is closed while its node dies
	// lends the dead connection to others for 10 s.
	town.app = &tracked{env: environmentOf(t, c.Addrs(), nil), stream: b.name, ledger: b.ledger, again: make(chan struct{}, 1), handled: -1}
	for _, f := range town.flows {
		town.working.Go(func() { f.steady.run(town.stop) })
		for _, p := range f.producers {
			town.working.Go(func() {
				if err := p.run(town.stop); err != nil {
					town.problem(err)
				}
			})
		}
	}
	town.working.Go(func() { town.app.run(town.stop) })
	return town
}

// create makes a stream that a node leads.
func (w *town) create(leader *harness.Node, name string) {
	w.t.Helper()
	conn := w.dial(leader)
	defer conn.Close()
	if err := conn.Create(w.t.Context(), name, map[string]string{"queue-leader-locator": "client-local"}); err != nil {
		w.t.Fatalf("create %s: %v", name, err)
	}
}

func (w *town) dial(n *harness.Node) *client.Conn {
	w.t.Helper()
	conn, err := client.Dial(w.t.Context(), client.Config{Addr: n.Stream, Name: "test"})
	if err != nil {
		w.t.Fatalf("dial node %s: %v", n.Name, err)
	}
	return conn
}

func (w *town) problem(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.problems = append(w.problems, err)
}

// goneOn waits until everybody has something new of what was sent since the
// mark, and notes how long that took.
func (w *town) goneOn(since time.Time, roles map[string]role, who func(label string) bool) {
	w.t.Helper()
	for _, f := range w.flows {
		note := func(kind, label string, n *news) {
			w.t.Helper()
			if !who(label) {
				return
			}
			eventually(w.t, label+" goes on", goesOnMax, func() bool { _, ok := n.came(); return ok })
			at, _ := n.came()
			took := at.Sub(since)
			key := fmt.Sprintf("%s: %s", roles[f.name], kind)
			w.worst[key] = max(w.worst[key], took)
			w.t.Logf("%s goes on after %d ms", label, took.Milliseconds())
		}
		note("our own producer", f.name+": our own producer", &f.steady.news)
		for _, c := range f.consumers {
			note("reliable consumers", c.label, &c.news)
		}
		for _, p := range f.producers {
			note("reliable producers", p.label, &p.news)
		}
	}
}

// mark has what is sent from now on count.
func (w *town) mark() {
	for _, f := range w.flows {
		sent := f.steady.mark()
		for _, c := range f.consumers {
			c.markAt(sent)
		}
		for _, p := range f.producers {
			p.mark()
		}
	}
}

// victim picks whom to kill so that a stream loses what is asked for: leadership
// of the metadata is moved where it has to be.
func (w *town) victim(f *flow, wanted role) *harness.Node {
	w.t.Helper()
	leader := w.cluster.Leader(f.name)
	to := leader
	if wanted != bothLeaders {
		to = w.cluster.Others(leader)[0]
	}
	if w.cluster.MetaLeader() != to {
		if status, body, err := leader.Post("/api/v1/cluster/transfer?to=" + to.Name); err != nil || status >= 300 {
			w.t.Fatalf("transfer the metadata to %s: %d, %v: %s", to.Name, status, err, body)
		}
		eventually(w.t, "the metadata is led by "+to.Name, time.Minute, func() bool { return w.cluster.MetaLeader() == to })
	}
	if wanted == metaLeader {
		return to
	}
	return leader
}

// roles tells what a node is to each stream.
func (w *town) roles(n *harness.Node) map[string]role {
	meta := w.cluster.MetaLeader() == n
	found := map[string]role{}
	for _, f := range w.flows {
		switch leads := w.cluster.Leader(f.name) == n; {
		case leads && meta:
			found[f.name] = bothLeaders
		case leads:
			found[f.name] = streamLeader
		case meta:
			found[f.name] = metaLeader
		default:
			found[f.name] = neither
		}
	}
	return found
}

func everybody(string) bool { return true }

// soonAfter is when a supervisor starts a process again that was killed.
const soonAfter = time.Second

// kill kills a node, and waits until all go on: without it, or while it is started
// again soon. Who knows that node alone needs it to find another: such go on after
// its start.
func (w *town) kill(n *harness.Node, soon bool, meanwhile func()) {
	w.t.Helper()
	roles := w.roles(n)
	others := everybody
	if n == w.seed && !soon {
		others = func(label string) bool { return !knowsOne(label) }
	}
	killed := time.Now()
	w.app.killedAt(killed)
	n.Kill()
	w.mark() // what is sent from now on does not come of the dead node
	w.t.Logf("node %s is killed: %v", n.Name, roles)
	restarted := make(chan error, 1)
	if soon {
		time.AfterFunc(soonAfter, func() { restarted <- n.TryRestart() })
	}
	meanwhile()
	w.goneOn(killed, roles, others)
	w.app.restart()
	if !soon {
		killed = time.Now()
		restarted <- n.TryRestart()
		w.goneOn(killed, roles, func(label string) bool { return n == w.seed && knowsOne(label) })
	}
	if err := <-restarted; err != nil {
		w.t.Fatalf("start node %s: %v", n.Name, err)
	}
	for _, f := range w.flows {
		if err := w.cluster.AwaitFollowed(f.name); err != nil {
			w.t.Fatal(err)
		}
	}
}

// killAll kills all nodes at once, and starts them again.
func (w *town) killAll() {
	w.t.Helper()
	w.app.killedAt(time.Now().Add(-time.Second)) // what was stored within the window may be lost
	var all sync.WaitGroup
	for _, n := range w.cluster.Nodes {
		all.Go(n.Kill)
	}
	all.Wait()
	w.mark()
	w.cluster.Restart(w.cluster.Nodes...)
	w.goneOn(time.Now(), map[string]role{"alpha": everyNode, "beta": everyNode}, everybody)
	w.app.restart()
}

func knowsOne(label string) bool {
	return label == "beta: named producer, one address" || label == "beta: consumer, one address"
}

// finish ends all that goes on and judges it.
func (w *town) finish() {
	w.t.Helper()
	close(w.stop)
	ended := make(chan struct{})
	go func() { w.working.Wait(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(hangs):
		w.t.Fatal("the clients do not end")
	}
	for _, f := range w.flows {
		w.judge(f)
	}
	if err := w.cluster.SameReplicas(); err != nil {
		w.t.Error(err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if err := errors.Join(append(w.problems, w.app.problems...)...); err != nil {
		w.t.Error(err)
	}
	if w.app.resumed == 0 {
		w.t.Error("no consumer resumed from its stored offset")
	}
	w.t.Logf("FIGURE official Go client, cluster: a consumer resumed %d times from its stored offset, in order and without a gap; it was at worst %d ms old, goal %d ms",
		w.app.resumed, w.app.stalest.Milliseconds(), storeWindow.Milliseconds())
}

// judge has each consumer come to the end, and holds what it saw against what was
// confirmed.
func (w *town) judge(f *flow) {
	w.t.Helper()
	if err := w.cluster.AwaitLevel(f.name); err != nil {
		w.t.Fatal(err)
	}
	conn := w.dial(w.cluster.Nodes[0])
	defer conn.Close()
	stats, err := conn.Stats(w.t.Context(), f.name)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, c := range f.consumers {
		eventually(w.t, c.label+" comes to the end", hangs, func() bool { return c.next() > uint64(stats["committed_offset"]) })
		c.judged.Lock()
		err := c.reading.End()
		c.judged.Unlock()
		if err != nil {
			w.t.Errorf("%s: %v", c.label, err)
		}
		_ = c.reliable.Close() // the environment ends what this leaves
	}
	for _, p := range f.producers {
		_ = p.reliable.Close()
	}
	sent, confirmed := f.ledger.Counts()
	if sent < 100 {
		w.t.Errorf("%s: only %d messages were sent", f.name, sent)
	}
	w.t.Logf("FIGURE official Go client, cluster: stream %s: %d messages sent, %d confirmed; each consumer saw all of these once and in order",
		f.name, sent, confirmed)
}

// TestReliable_kills kills nodes of three by kill -9 under reliable producers and
// consumers, GOCLIENT_KILLS times. The first kill takes one stream's leader, which
// leads the metadata too, so that the other stream loses the raft leader alone;
// the second takes that one's leader. Behind three kills and more all nodes die at
// once.
func TestReliable_kills(t *testing.T) {
	kills := 2
	if text := os.Getenv("GOCLIENT_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	w := newTown(t)
	w.mark()
	w.goneOn(time.Now(), map[string]role{"alpha": "start", "beta": "start"}, everybody)
	clear(w.worst)
	wanted := []role{bothLeaders, streamLeader, metaLeader}
	for i := range kills {
		victim := w.victim(w.flows[i%2], wanted[i%3])
		before := w.front.taken.Load()
		var doomed *doomed
		meanwhile := func() {}
		if i == 0 {
			doomed = w.doom(victim)
			meanwhile = doomed.remove
		}
		w.kill(victim, i%2 == 0, meanwhile)
		if doomed != nil {
			doomed.end()
		}
		t.Logf("kill %d: node %s; clients made %d connections to the load balancer", i+1, victim.Name, w.front.taken.Load()-before)
	}
	if kills >= len(wanted) {
		w.killAll()
	}
	for key, took := range w.worst {
		t.Logf("FIGURE official Go client, cluster: kill -9 of the %s, on again after %d ms at most, goal %d ms", key, took.Milliseconds(), goesOnWithin.Milliseconds())
	}
	w.whereConnected()
	w.finish()
}

// whereConnected looks whether the producer behind the load balancer has ended on
// the leader, whichever nodes it was led to before.
func (w *town) whereConnected() {
	w.t.Helper()
	leader := w.cluster.Leader("alpha")
	found := 0
	for _, n := range w.cluster.Nodes {
		var list admin.Across[admin.Connection]
		if err := n.Call("GET", "/api/v1/connections?node="+n.Name, nil, &list); err != nil {
			w.t.Fatal(err)
		}
		for _, c := range list.Items {
			if c.Properties["connection_name"] != "alpha: named producer, balanced" || c.Publishers == 0 {
				continue
			}
			found++
			if n != leader {
				w.t.Errorf("the producer behind the load balancer is on %s, the leader is %s", n.Name, leader.Name)
			}
		}
	}
	if found != 1 {
		w.t.Errorf("the producer behind the load balancer is on %d nodes", found)
	}
}
