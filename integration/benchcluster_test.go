package integration

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/millrace/bench"
	"github.com/millrace/millrace/integration/harness"
)

// TestBenchCluster measures a cluster of three nodes on this machine beside one
// node and beside a cluster with TLS between its nodes: each load on each of them
// in turn, so that what else the machine does weighs on all alike. make
// bench-cluster runs it.
func TestBenchCluster(t *testing.T) {
	text := os.Getenv("BENCH_CLUSTER")
	if text == "" {
		t.Skip("measures for minutes; make bench-cluster runs it")
	}
	span, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	b := &clusterBench{t: t, span: span, profiles: os.Getenv("BENCH_PROFILE"), base: map[string]bench.Result{}}
	b.disk()
	three, safe := harness.StartCluster(t, 3), harness.StartTLSCluster(t, 3)
	b.subjects = []benchSubject{
		{"1 node", []*harness.Node{harness.Start(t)}, nil},
		{"3 nodes", three.Nodes, three},
		{"3 nodes with TLS", safe.Nodes, safe},
	}
	b.warm()
	for _, l := range benchLoads {
		for _, s := range b.subjects {
			b.measure(s, l)
		}
	}
}

// clusterBench is one run.
type clusterBench struct {
	t        *testing.T
	span     time.Duration // of each load
	profiles string        // folder for CPU profiles of the cluster's nodes; "" is none
	subjects []benchSubject
	base     map[string]bench.Result // what one node made of each load
	streams  int                     // made so far, for their names
}

// benchSubject is a broker that is measured.
type benchSubject struct {
	name    string
	nodes   []*harness.Node
	cluster *harness.Cluster // nil for a single node
}

// benchLoad is what is asked of each subject. What a load publishes as fast as
// it can is then read again, from the leader and from a follower.
type benchLoad struct {
	name string
	bench.Load
	goal string // of three nodes, on the machine that the peers were measured on
}

func publishing(size, streams int) bench.Load {
	return bench.Load{Producers: streams, Streams: streams, Size: size, Frame: 100, Window: 10_000}
}

func atRate(size, streams, frame, rate int) bench.Load {
	l := publishing(size, streams)
	l.Consumers, l.Frame, l.Rate = streams, frame, rate
	return l
}

var benchLoads = []benchLoad{
	{"publish 100 B", publishing(100, 1), "1,180,000 msg/s, 1.5 µs/msg of all nodes"},
	{"publish 1 KiB", publishing(1024, 1), "246,000 msg/s"},
	{"publish 100 B to 8 streams", publishing(100, 8), ""},
	{"publish 1 KiB to 8 streams", publishing(1024, 8), ""},
	{"1,000/s of 100 B", atRate(100, 1, 1, 1000), "end to end p50 2.9 ms, p99 9.4 ms"},
	{"20,000/s of 100 B", atRate(100, 1, 20, 20_000), ""},
	{"2,000/s of 1 KiB", atRate(1024, 1, 1, 2000), ""},
	{"8,000/s of 100 B to 8 streams", atRate(100, 8, 1, 8000), ""},
}

// disk tells what this disk does by itself.
func (b *clusterBench) disk() {
	b.t.Helper()
	dir := b.t.TempDir()
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		r, err := bench.Disk(dir, size, time.Second)
		if err != nil {
			b.t.Fatal(err)
		}
		b.t.Logf("FIGURE bench-cluster: this disk, append of %d KiB + fdatasync: %.1f MB/s, p50 %.2f ms, p99 %.2f ms",
			size>>10, r.MBPerSec, r.Latency.P50, r.Latency.P99)
	}
}

// warm has each subject work a little before anything counts.
func (b *clusterBench) warm() {
	b.t.Helper()
	for _, s := range b.subjects {
		streams := b.create(s, 1)
		load := publishing(100, 1)
		load.Time = b.span / 4
		if _, err := runnerAt(s.nodes[0], streams).Produce(b.t.Context(), load); err != nil {
			b.t.Fatal(err)
		}
		b.remove(s, streams)
	}
}

func runnerAt(n *harness.Node, streams []string) *bench.Runner {
	return &bench.Runner{Config: client.Config{Addr: n.Stream, Name: "bench", Timeout: usableWithin}, Streams: streams}
}

func (b *clusterBench) create(s benchSubject, count int) (streams []string) {
	b.t.Helper()
	conn := b.dial(s.nodes[0])
	defer conn.Close()
	for range count {
		b.streams++
		name := fmt.Sprintf("bench-%d", b.streams)
		if err := conn.Create(b.t.Context(), name, map[string]string{"queue-leader-locator": "balanced"}); err != nil {
			b.t.Fatal(err)
		}
		streams = append(streams, name)
	}
	return streams
}

func (b *clusterBench) remove(s benchSubject, streams []string) {
	b.t.Helper()
	conn := b.dial(s.nodes[0])
	defer conn.Close()
	for _, name := range streams {
		if err := conn.Delete(b.t.Context(), name); err != nil {
			b.t.Fatal(err)
		}
	}
}

func (b *clusterBench) dial(n *harness.Node) *client.Conn {
	b.t.Helper()
	conn, err := client.Dial(b.t.Context(), client.Config{Addr: n.Stream, Name: "bench", Timeout: usableWithin})
	if err != nil {
		b.t.Fatal(err)
	}
	return conn
}

// measure runs one load on one subject.
func (b *clusterBench) measure(s benchSubject, l benchLoad) {
	b.t.Helper()
	streams := b.create(s, l.Streams)
	defer b.remove(s, streams)
	l.Time = b.span
	leader := s.nodes[0]
	if s.cluster != nil {
		leader = s.cluster.Leader(streams[0])
	}
	run := func(ctx context.Context) (bench.Result, error) { return runnerAt(leader, streams).Produce(ctx, l.Load) }
	if l.Rate > 0 {
		run = func(ctx context.Context) (bench.Result, error) {
			return runnerAt(leader, streams).EndToEnd(ctx, l.Load)
		}
	}
	published := b.figure(s, l.name, leader, l, run)
	if l.Rate > 0 {
		return
	}
	load := bench.Load{Consumers: l.Streams, Streams: l.Streams, Size: l.Size, Messages: published.Messages}
	if l.Streams > 1 {
		load.Messages = b.fewest(leader, streams)
	}
	name := strings.NewReplacer("publish", "consume", " to ", " of ").Replace(l.name)
	of := benchLoad{name: name, Load: load}
	read := func(from *harness.Node, here bool) func(context.Context) (bench.Result, error) {
		return func(ctx context.Context) (bench.Result, error) {
			r := runnerAt(from, streams)
			r.Here = here
			return r.Consume(ctx, load)
		}
	}
	if l.Streams > 1 {
		b.figure(s, name+" from their leaders", leader, of, read(leader, false))
		return
	}
	b.figure(s, name+" from the leader", leader, of, read(leader, false))
	if s.cluster != nil {
		b.figure(s, name+" from a follower", leader, of, read(s.cluster.Others(leader)[0], true))
	}
}

// fewest is how many messages each of the streams has at least.
func (b *clusterBench) fewest(at *harness.Node, streams []string) uint64 {
	b.t.Helper()
	conn := b.dial(at)
	defer conn.Close()
	least := uint64(math.MaxUint64)
	for _, name := range streams {
		stats, err := conn.Stats(b.t.Context(), name)
		if err != nil {
			b.t.Fatal(err)
		}
		least = min(least, uint64(stats["committed_offset"]+1))
	}
	return least
}

// figure runs something and prints what came of it.
func (b *clusterBench) figure(s benchSubject, name string, leader *harness.Node, l benchLoad, run func(context.Context) (bench.Result, error)) bench.Result {
	b.t.Helper()
	ctx, cancel := context.WithTimeout(b.t.Context(), b.span+time.Minute)
	defer cancel()
	if s.name == "3 nodes" && b.profiles != "" {
		defer b.profile(s, name, leader)()
	}
	var watched []*bench.Process
	for _, n := range s.nodes {
		p, err := bench.Watch(n.PID())
		if err != nil {
			b.t.Fatal(err)
		}
		watched = append(watched, p)
	}
	r, err := run(ctx)
	switch {
	case err != nil:
		b.t.Fatalf("%s, %s: %v", name, s.name, err)
	case r.Refused > 0 || r.OutOfOrder > 0:
		b.t.Errorf("%s, %s: %d messages refused, %d chunks out of order", name, s.name, r.Refused, r.OutOfOrder)
	}
	parts := []string{b.speed(s, name, r), b.cpu(s, leader, watched, r)}
	if s.cluster != nil && l.goal != "" {
		parts = append(parts, "goal "+l.goal)
	}
	b.t.Logf("FIGURE bench-cluster: %s, %s: %s", name, s.name, strings.Join(parts, "; "))
	return r
}

// speed says how fast it went, beside one node.
func (b *clusterBench) speed(s benchSubject, name string, r bench.Result) string {
	same := strings.NewReplacer("a follower", "the leader").Replace(name)
	if s.cluster == nil {
		b.base[same] = r
	}
	one := b.base[same]
	beside := func(now, then float64) string {
		if s.cluster == nil {
			return ""
		}
		return fmt.Sprintf(" (%.2f × 1 node)", now/then)
	}
	var parts []string
	if r.Load.Rate == 0 {
		parts = append(parts, fmt.Sprintf("%.0f msg/s, %.1f MB/s%s", r.PerSecond, r.MBPerSec, beside(r.PerSecond, one.PerSecond)))
	}
	for _, x := range []struct {
		of       string
		now, one bench.Latency
	}{{"confirm", r.Confirm, one.Confirm}, {"end to end", r.EndToEnd, one.EndToEnd}} {
		if x.now.P99 > 0 {
			parts = append(parts, fmt.Sprintf("%s p50 %.2f ms%s, p99 %.2f ms%s", x.of, x.now.P50, beside(x.now.P50, x.one.P50), x.now.P99, beside(x.now.P99, x.one.P99)))
		}
	}
	return strings.Join(parts, "; ")
}

// cpu says what a message cost the nodes.
func (b *clusterBench) cpu(s benchSubject, leader *harness.Node, watched []*bench.Process, r bench.Result) string {
	b.t.Helper()
	var all, led float64 // microseconds
	for i, p := range watched {
		used, err := p.Used()
		if err != nil {
			b.t.Fatal(err)
		}
		each := float64(used.Microseconds()) / float64(r.Messages)
		if all += each; s.nodes[i] == leader {
			led = each
		}
	}
	text := fmt.Sprintf("CPU %.2f µs/msg", all)
	if len(watched) > 1 && r.Load.Streams == 1 {
		text += fmt.Sprintf(" (leader %.2f, each follower %.2f)", led, (all-led)/float64(len(watched)-1))
	}
	return text
}

// profile takes CPU profiles of all nodes while a load runs; what it returns
// waits for them.
func (b *clusterBench) profile(s benchSubject, name string, leader *harness.Node) (wait func()) {
	b.t.Helper()
	if err := os.MkdirAll(b.profiles, 0o755); err != nil {
		b.t.Fatal(err)
	}
	seconds := max(int(b.span.Seconds()), 1)
	taken := make(chan error, len(s.nodes))
	for _, n := range s.nodes {
		role := "follower-" + n.Name
		if n == leader {
			role = "leader"
		}
		file := filepath.Join(b.profiles, strings.NewReplacer(" ", "-", "/", "-").Replace(name)+"."+role+".pprof")
		go func() {
			profile, err := n.Get(fmt.Sprintf("/debug/pprof/profile?seconds=%d", seconds))
			if err == nil {
				err = os.WriteFile(file, profile, 0o644)
			}
			taken <- err
		}()
	}
	return func() {
		for range s.nodes {
			if err := <-taken; err != nil {
				b.t.Error(err)
			}
		}
	}
}
