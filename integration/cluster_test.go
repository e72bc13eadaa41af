package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/segstore"
)

// Three real processes. After every test here the replicas must be the same on
// all nodes (harness.Cluster.SameReplicas).

const (
	// gapMax is the longest time that publishers may be without a confirm when
	// any node dies.
	gapMax = 3 * time.Second
	// startMax is how long three nodes may take to found a cluster.
	startMax = 5 * time.Second
	// clusterKillsDefault is for `go test ./...`; make cluster-test has more.
	clusterKillsDefault = 2
)

// clusterTest is three nodes and a stream for each, led by different ones as far
// as placement goes, with traffic on all.
type clusterTest struct {
	t       *testing.T
	cluster *harness.Cluster
	streams []*clusterStream
	stopped bool
}

type clusterStream struct {
	name    string
	ledger  *harness.Ledger
	traffic *harness.Traffic
}

const (
	clusterStreams    = 3
	clusterPublishers = 2
)

func newClusterTest(t *testing.T, args ...string) *clusterTest {
	t.Helper()
	c := &clusterTest{t: t, cluster: harness.StartCluster(t, 3, args...)}
	t.Logf("FIGURE cluster: three nodes are ready %d ms after their start; goal %d ms", c.cluster.Ready.Milliseconds(), startMax.Milliseconds())
	if c.cluster.Ready > startMax {
		t.Errorf("the cluster took %v to start", c.cluster.Ready)
	}
	c.create()
	return c
}

// create makes the streams.
func (c *clusterTest) create() {
	c.t.Helper()
	c.createWith(nil)
}

func (c *clusterTest) createWith(more map[string]string) {
	c.t.Helper()
	arguments := map[string]string{"stream-max-segment-size-bytes": "200000"}
	maps.Copy(arguments, more)
	conn := c.dial(c.cluster.Nodes[0])
	defer conn.Close()
	for i := range clusterStreams {
		s := &clusterStream{name: fmt.Sprintf("stream-%d", i+1), ledger: harness.NewLedger()}
		if err := conn.Create(c.t.Context(), s.name, arguments); err != nil {
			c.t.Fatalf("create %s: %v", s.name, err)
		}
		c.streams = append(c.streams, s)
	}
}

func (c *clusterTest) dial(n *harness.Node) *client.Conn {
	c.t.Helper()
	conn, err := c.dialWithin(n, usableWithin)
	if err != nil {
		c.t.Fatalf("dial node %s: %v", n.Name, err)
	}
	return conn
}

// dialWithin is dial to a node that may not serve.
func (c *clusterTest) dialWithin(n *harness.Node, patience time.Duration) (*client.Conn, error) {
	ctx, cancel := context.WithTimeout(c.t.Context(), patience)
	defer cancel()
	return client.Dial(ctx, client.Config{Addr: n.Stream, Name: "cluster test", Timeout: patience})
}

// start begins the traffic, and returns once it flows.
func (c *clusterTest) start() {
	c.t.Helper()
	for _, s := range c.streams {
		s.traffic = harness.StartTraffic(c.cluster.Addrs(), s.name, s.ledger, 1, clusterPublishers)
	}
	c.flows()
}

// flows waits until every publisher gets confirms.
func (c *clusterTest) flows() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), usableWithin)
	defer cancel()
	for _, s := range c.streams {
		if err := s.traffic.AwaitConfirms(ctx); err != nil {
			c.t.Fatal(err)
		}
	}
}

// gap is the longest of any publisher since the last call.
func (c *clusterTest) gap() (worst time.Duration) {
	for _, s := range c.streams {
		worst = max(worst, s.traffic.Gap())
	}
	return worst
}

// stop ends the traffic, once.
func (c *clusterTest) stop() {
	c.t.Helper()
	if c.stopped {
		return
	}
	c.stopped = true
	for _, s := range c.streams {
		if err := s.traffic.Stop(); err != nil {
			c.t.Error(err)
		}
	}
}

// finish ends the traffic and judges: by what readers find on every node, and by
// what the disks hold.
func (c *clusterTest) finish() {
	c.t.Helper()
	c.stop()
	var sent, confirmed uint64
	var stalest time.Duration
	judged := 0
	for _, s := range c.streams {
		n, m := s.ledger.Counts()
		sent, confirmed = sent+n, confirmed+m
		worst, of := s.traffic.Stalest()
		stalest, judged = max(stalest, worst), judged+of
	}
	for _, s := range c.streams {
		if err := c.cluster.AwaitLevel(s.name); err != nil {
			c.t.Fatal(err)
		}
		for _, n := range c.cluster.Nodes {
			if !isGone(n)(c.replicas(n, s)) {
				c.read(n, s)
			}
		}
	}
	if err := c.cluster.SameReplicas(); err != nil {
		c.t.Error(err)
	}
	c.t.Logf("FIGURE %s: %d messages sent, %d confirmed, each once and in order on every node that has a replica; replicas equal on all disks; stored offset at worst %d ms old at a kill (%d checks), goal %d ms",
		c.t.Name(), sent, confirmed, stalest.Milliseconds(), judged, harness.StoreWindow.Milliseconds())
}

// read reads a stream from one node, whoever leads it, and holds it against the
// ledger.
func (c *clusterTest) read(n *harness.Node, s *clusterStream) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), time.Minute)
	defer cancel()
	conn := c.dial(n)
	defer conn.Close()
	stats, err := conn.Stats(ctx, s.name)
	if err != nil {
		c.t.Fatalf("stats of %s on %s: %v", s.name, n.Name, err)
	}
	reading, err := readAll(ctx, conn, s.name, uint64(stats["committed_offset"]+1), s.ledger)
	if err != nil {
		c.t.Fatalf("read %s on %s: %v", s.name, n.Name, err)
	}
	if err := reading.End(); err != nil {
		c.t.Errorf("%s on %s: %v", s.name, n.Name, err)
	}
}

// number reads a count from the environment.
func number(t *testing.T, key string, otherwise int) int {
	t.Helper()
	text := os.Getenv(key)
	if text == "" {
		return otherwise
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestCluster_kills kills nodes under load by kill -9: in turn the one that leads
// the metadata and a stream too, another leader of a stream, and the one that
// leads the metadata alone.
func TestCluster_kills(t *testing.T) {
	c := newClusterTest(t)
	c.start()
	kills := number(t, "CLUSTER_KILLS", clusterKillsDefault)
	worst := map[string]time.Duration{}
	for i := range kills {
		victim, who := c.cluster.MetaLeader(), "metadata leader"
		switch i % 3 {
		case 1:
			for _, s := range c.streams {
				if leader := c.cluster.Leader(s.name); leader != victim {
					victim, who = leader, "stream leader"
					break
				}
			}
		case 2:
			for _, s := range c.streams {
				if c.cluster.Leader(s.name) == victim {
					c.move(s, c.cluster.Others(victim)[0])
				}
			}
			c.flows()
		}
		led := 0
		for _, s := range c.streams {
			if c.cluster.Leader(s.name) == victim {
				led++
			}
		}
		if who == "metadata leader" && led > 0 {
			who = "leader of metadata and stream"
		}
		c.gap()
		killed := time.Now()
		for _, s := range c.streams {
			s.traffic.Killed(killed)
		}
		victim.Kill()
		c.flows()
		gap := c.gap()
		worst[who] = max(worst[who], gap)
		t.Logf("kill %d: %s, the %s of %d streams: longest gap %d ms", i+1, victim.Name, who, led, gap.Milliseconds())
		if gap > gapMax {
			t.Errorf("the longest gap is %v", gap)
		}
		c.cluster.Restart(victim)
		for _, s := range c.streams {
			c.level(s)
		}
	}
	for who, gap := range worst {
		t.Logf("FIGURE cluster kills: %s killed by kill -9: longest gap %d ms, goal %d ms", who, gap.Milliseconds(), gapMax.Milliseconds())
	}
	c.finish()
}

// level waits until all nodes have a replica again that follows: two of three
// must never be enough twice in a row.
func (c *clusterTest) level(s *clusterStream) {
	c.t.Helper()
	if err := c.cluster.AwaitFollowed(s.name); err != nil {
		c.t.Fatal(err)
	}
}

// TestCluster_pause stops nodes by SIGSTOP for ten seconds, as a machine that
// hangs would, and lets them go on: they must notice that they lead no more.
func TestCluster_pause(t *testing.T) {
	pauses := number(t, "CLUSTER_PAUSES", 0)
	if pauses == 0 {
		t.Skip("pauses take long; make cluster-long has them")
	}
	c := newClusterTest(t)
	c.start()
	worst := time.Duration(0)
	for i := range pauses {
		victim := c.cluster.MetaLeader()
		if i%2 == 1 {
			victim = c.cluster.Leader(c.streams[i%len(c.streams)].name)
		}
		c.gap()
		paused := time.Now()
		for _, s := range c.streams {
			s.traffic.Killed(paused)
		}
		victim.Pause()
		c.flows()
		gap := c.gap()
		worst = max(worst, gap)
		t.Logf("pause %d: %s: longest gap %d ms", i+1, victim.Name, gap.Milliseconds())
		if gap > gapMax {
			t.Errorf("the longest gap is %v", gap)
		}
		time.Sleep(time.Until(paused.Add(10 * time.Second)))
		victim.Continue()
		for _, s := range c.streams {
			c.level(s)
		}
	}
	t.Logf("FIGURE cluster pauses: %d nodes stopped by SIGSTOP for 10 s: longest gap %d ms, goal %d ms", pauses, worst.Milliseconds(), gapMax.Milliseconds())
	c.finish()
}

// TestCluster_killAll kills all nodes at once, and starts them again.
func TestCluster_killAll(t *testing.T) {
	rounds := number(t, "CLUSTER_KILL_ALL", 1)
	c := newClusterTest(t)
	c.start()
	slowest := time.Duration(0)
	for range rounds {
		c.flows()
		window := c.window()
		killed := time.Now()
		for _, s := range c.streams {
			s.traffic.KilledAll(killed, window)
		}
		var all sync.WaitGroup
		for _, n := range c.cluster.Nodes {
			all.Go(n.Kill)
		}
		all.Wait()
		begin := time.Now()
		c.cluster.Restart(c.cluster.Nodes...)
		slowest = max(slowest, time.Since(begin))
		c.flows()
		for _, s := range c.streams {
			c.level(s)
		}
	}
	t.Logf("FIGURE cluster kill -9 of all nodes at once: %d times; all are ready again after %d ms at most", rounds, slowest.Milliseconds())
	c.finish()
}

// window is how far stored offsets may fall back when all nodes die.
func (c *clusterTest) window() (widest time.Duration) {
	c.t.Helper()
	for _, s := range c.streams {
		body, err := c.cluster.Leader(s.name).Get("/api/v1/streams/%2F/" + s.name)
		if err != nil {
			c.t.Fatal(err)
		}
		var figures admin.Stream
		if err := json.Unmarshal(body, &figures); err != nil {
			c.t.Fatal(err)
		}
		if figures.WindowMS <= 0 {
			c.t.Errorf("%s announces a window of %d ms", s.name, figures.WindowMS)
		}
		widest = max(widest, time.Duration(figures.WindowMS)*time.Millisecond)
	}
	return widest
}

// move has a stream led by a node; moveBy asks another one for it.
func (c *clusterTest) move(s *clusterStream, to *harness.Node) {
	c.t.Helper()
	c.moveBy(to, s, to)
}

func (c *clusterTest) moveBy(asked *harness.Node, s *clusterStream, to *harness.Node) {
	c.t.Helper()
	if status, body, err := asked.Put("/api/v1/streams/%2F/"+s.name+"/leader", admin.LeaderRequest{Node: to.Name}); err != nil || status != 200 {
		c.t.Fatalf("move %s to %s: %d, %v: %s", s.name, to.Name, status, err, body)
	}
}

// TestCluster_refills takes from one node what it holds: a bit flips in a sealed
// segment of one stream, and the folder of another is lost. The segment is
// fetched from a peer, the replica is entered anew and filled, and both count
// again: another node dies, and all goes on.
func TestCluster_refills(t *testing.T) {
	c := newClusterTest(t)
	c.start()
	victim := c.cluster.Others(c.cluster.MetaLeader())[0]
	flipped, emptied := c.streams[0], c.streams[1]
	folder := func(s *clusterStream) string {
		return filepath.Join(victim.DataDir, "streams", segstore.Hash(s.name)+"-"+c.figures(victim, s).Incarnation)
	}
	flip, empty := folder(flipped), folder(emptied)
	c.until("a segment is sealed", func() bool { return c.figures(victim, flipped).Segments > 1 })
	victim.Stop()
	files, err := filepath.Glob(filepath.Join(flip, "*.seg"))
	if err != nil || len(files) < 2 {
		t.Fatalf("segments %v, %v", files, err)
	}
	slices.Sort(files)
	if err := errors.Join(harness.Flip(files[0], 8*200), os.RemoveAll(empty)); err != nil {
		t.Fatal(err)
	}
	c.cluster.Restart(victim)
	if status, body, err := victim.Post("/api/v1/streams/%2F/" + flipped.name + "/verify?node=" + victim.Name); err != nil || status != 200 {
		t.Fatalf("verify: %d, %v: %s", status, err, body)
	}
	c.until("the damaged segment is fetched", func() bool {
		return strings.Contains(victim.Log(), "a damaged segment was fetched") && c.figures(victim, flipped).DamagedSegments == 0
	})
	for _, s := range c.streams {
		c.level(s)
	}
	c.until("all replicas count again", func() bool {
		body, err := victim.Get("/api/v1/cluster")
		var now admin.Cluster
		return err == nil && json.Unmarshal(body, &now) == nil && now.Seen && now.UnderReplicated == 0
	})
	// With it another node is a majority.
	dead := c.cluster.Others(victim)[0]
	c.gap()
	now := time.Now()
	for _, s := range c.streams {
		s.traffic.Killed(now)
	}
	dead.Kill()
	c.flows()
	t.Logf("FIGURE cluster refill: a flipped bit repaired, a lost folder refilled, then %s killed: longest gap %d ms", dead.Name, c.gap().Milliseconds())
	c.cluster.Restart(dead)
	for _, s := range c.streams {
		c.level(s)
	}
	c.finish()
}

// figures are a node's of a stream.
func (c *clusterTest) figures(n *harness.Node, s *clusterStream) (f admin.Stream) {
	c.t.Helper()
	body, err := n.Get("/api/v1/streams/%2F/" + s.name + "?node=" + n.Name)
	if err == nil {
		err = json.Unmarshal(body, &f)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}

func (c *clusterTest) until(what string, ok func() bool) {
	c.t.Helper()
	for end := time.Now().Add(usableWithin); !ok(); {
		if time.Now().After(end) {
			c.t.Fatalf("never: %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestCluster_behindRetention has a replica away for longer than the others keep
// what it has: it drops its log and begins where its leader's does (RP-01).
func TestCluster_behindRetention(t *testing.T) {
	c := newClusterTest(t)
	conn := c.dial(c.cluster.Nodes[0])
	s := &clusterStream{name: "short", ledger: harness.NewLedger()}
	err := conn.Create(t.Context(), s.name, map[string]string{"stream-max-segment-size-bytes": "100000", "max-length-bytes": "300000"})
	conn.Close()
	if err != nil {
		t.Fatal(err)
	}
	c.streams = []*clusterStream{s}
	c.start()
	away := c.cluster.Others(c.cluster.Leader(s.name))[0]
	c.until("the replica has something", func() bool { return c.figures(away, s).NextOffset > 100 })
	had := c.figures(away, s).NextOffset
	away.Kill()
	leader := c.cluster.Leader(s.name)
	c.until("the leader has given up all that it had", func() bool { return c.figures(leader, s).FirstOffset > had+1000 })
	c.cluster.Restart(away)
	c.level(s)
	if first := c.figures(away, s).FirstOffset; first <= had {
		t.Errorf("it begins at %d still, and had up to %d", first, had)
	}
	if err := s.traffic.Stop(); err != nil {
		t.Error(err)
	}
	if err := c.cluster.SameReplicas(); err != nil {
		t.Error(err)
	}
}

// TestCluster_movesWithoutData moves the leader of an idle stream around, with
// restarts between: epochs without messages must not keep replicas apart
// (RP-07).
func TestCluster_movesWithoutData(t *testing.T) {
	c := newClusterTest(t)
	s := c.streams[0]
	c.streams = c.streams[:1]
	for i := range number(t, "CLUSTER_IDLE_MOVES", 6) {
		from := c.cluster.Leader(s.name)
		to := c.cluster.Others(from)[i%2]
		c.until("the leader moves", func() bool {
			status, _, err := c.cluster.Nodes[i%3].Put("/api/v1/streams/%2F/"+s.name+"/leader", admin.LeaderRequest{Node: to.Name})
			return err == nil && status == 200
		})
		if i%3 == 2 {
			from.Kill()
			c.cluster.Restart(from)
		}
		c.level(s)
	}
	begin := time.Now()
	c.start()
	c.level(s)
	t.Logf("FIGURE cluster idle moves: all replicas follow %d ms after the first message", time.Since(begin).Milliseconds())
	c.finish()
}
