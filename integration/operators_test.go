package integration

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
)

// operators are people who ask three real nodes by the command line.
type operators struct {
	t       *testing.T
	cluster *harness.Cluster
	next    map[string]int // offset of a stream's next message, which says it
}

func newOperators(t *testing.T, args ...string) *operators {
	t.Helper()
	if os.Getenv("OPERATORS") == "" {
		t.Skip("clusters of processes take long; make operators-test has them")
	}
	return &operators{t, harness.StartCluster(t, 3, args...), map[string]int{}}
}

// said is what one command came to.
type said struct {
	out, err string
	code     int
	took     time.Duration
}

// run gives a node's address to a command of the CLI.
func (o *operators) run(at *harness.Node, args ...string) said {
	o.t.Helper()
	path, err := harness.Binary()
	if err != nil {
		o.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(o.t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "MILLRACE_ADDR="+at.HTTP)
	var out, problem strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &problem
	begin := time.Now()
	err = cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		o.t.Fatalf("millrace %v: %v", args, err)
	}
	return said{out.String(), problem.String(), cmd.ProcessState.ExitCode(), time.Since(begin)}
}

// must is run that has to succeed.
func (o *operators) must(at *harness.Node, args ...string) string {
	o.t.Helper()
	s := o.run(at, args...)
	if s.code != 0 {
		o.t.Fatalf("millrace %s at %s: exit %d: %s%s", strings.Join(args, " "), at.Name, s.code, s.out, s.err)
	}
	return s.out
}

func parsed[T any](o *operators, text string) (v T) {
	o.t.Helper()
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		o.t.Fatalf("%v in %s", err, text)
	}
	return v
}

// create makes a stream and fills it by way of its leader.
func (o *operators) create(stream string, messages int, arguments map[string]string) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), usableWithin)
	defer cancel()
	conn, err := client.Dial(ctx, client.Config{Addr: o.cluster.Nodes[0].Stream, Name: "operators"})
	if err != nil {
		o.t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.Create(ctx, stream, arguments); err != nil {
		o.t.Fatal(err)
	}
	o.publish(stream, messages)
}

func (o *operators) publish(stream string, messages int) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), usableWithin)
	defer cancel()
	conn, err := client.Dial(ctx, client.Config{Addr: o.cluster.Leader(stream).Stream, Name: "operators"})
	if err != nil {
		o.t.Fatal(err)
	}
	defer conn.Close()
	pub, err := conn.DeclarePublisher(ctx, client.PublisherConfig{Stream: stream})
	if err != nil {
		o.t.Fatal(err)
	}
	const together = 50 // or all would be in a few chunks, and segments
	for i := range messages {
		if _, err := pub.Publish(message(o.next[stream])); err != nil {
			o.t.Fatal(err)
		}
		o.next[stream]++
		if (i+1)%together == 0 || i+1 == messages {
			if err := pub.Drain(ctx); err != nil {
				o.t.Fatal(err)
			}
		}
	}
}

// TestOperators_anyNode has operators ask each node of three about streams that
// another one leads, or that have no replica there: all give the leader's answer,
// and what one is told, all know.
func TestOperators_anyNode(t *testing.T) {
	o := newOperators(t)
	const messages = 500
	one := map[string]string{"initial-cluster-size": "1", "stream-max-segment-size-bytes": "100000"}
	for _, stream := range []string{"everywhere", "once-1", "once-2", "once-3"} {
		arguments := one
		if stream == "everywhere" {
			arguments = map[string]string{"stream-max-segment-size-bytes": "100000"}
		}
		o.create(stream, messages, arguments)
	}
	for _, stream := range []string{"everywhere", "once-1", "once-2", "once-3"} {
		leader := o.cluster.Leader(stream)
		if stream == "everywhere" {
			if err := o.cluster.AwaitLevel(stream); err != nil {
				t.Fatal(err)
			}
		}
		o.must(leader, "tracking", "set", stream, "app", "100", "--yes")
		asLed := map[string]string{}
		ask := [][]string{
			{"stream", "describe", stream}, {"segment", "list", stream}, {"segment", "dump", stream, "00000000000000000001.0"},
			{"tracking", "list", stream, "--kind", "writer"}, {"segment", "verify", stream}, {"replica", "repair", stream},
			{"stream", "retention", stream, "--set", "max-bytes=1B", "--dry-run"},
		}
		for _, args := range ask {
			asLed[strings.Join(args, " ")] = stable(o.must(leader, append(args, "-o", "json")...))
		}
		for _, at := range o.cluster.Nodes {
			for _, args := range ask {
				if got := stable(o.must(at, append(args, "-o", "json")...)); got != asLed[strings.Join(args, " ")] {
					t.Errorf("%s at %s:\n%s\nat the leader %s:\n%s", strings.Join(args, " "), at.Name, got, leader.Name, asLed[strings.Join(args, " ")])
				}
			}
			list := parsed[[]admin.Stream](o, o.must(at, "stream", "list", "-o", "json"))
			for _, s := range list {
				if s.Messages != messages || s.FiguresOf != s.Leader {
					t.Errorf("stream list at %s: %s has %d messages by %q", at.Name, s.Name, s.Messages, s.FiguresOf)
				}
			}
		}
		for i, at := range o.cluster.Nodes {
			o.readers(stream, at, i)
		}
	}
	o.trims("everywhere")
	for _, at := range o.cluster.Nodes { // a replica by name
		for _, of := range o.cluster.Nodes {
			s := parsed[admin.Stream](o, o.must(at, "stream", "describe", "everywhere", "--node", of.Name, "-o", "json"))
			if s.FiguresOf != of.Name {
				t.Errorf("asked %s for the replica of %s: %q answers", at.Name, of.Name, s.FiguresOf)
			}
		}
	}
}

// readers changes and reads what a stream remembers, each at another node.
func (o *operators) readers(stream string, at *harness.Node, i int) {
	o.t.Helper()
	other := o.cluster.Nodes[(i+1)%len(o.cluster.Nodes)]
	value := uint64(200 + i)
	o.must(at, "tracking", "set", stream, "app", fmt.Sprint(value), "--yes")
	o.must(at, "tracking", "copy", stream, "app", "copied", "--yes")
	for _, reference := range []string{"app", "copied"} {
		if r := parsed[admin.Reference](o, o.must(other, "tracking", "get", stream, reference, "-o", "json")); r.Value != value {
			o.t.Errorf("%s of %s: %d was set at %s, %s says %d", reference, stream, value, at.Name, other.Name, r.Value)
		}
	}
	o.must(other, "tracking", "delete", stream, "copied", "--yes")
	if s := o.run(at, "tracking", "get", stream, "copied"); s.code != 3 {
		o.t.Errorf("copied of %s was deleted at %s; at %s: exit %d: %s", stream, other.Name, at.Name, s.code, s.out)
	}
	if list := parsed[[]admin.Reference](o, o.must(at, "tracking", "expire", stream, "--older-than", "1h", "--dry-run", "-o", "json")); len(list) != 0 {
		o.t.Errorf("expire at %s: %+v", at.Name, list)
	}
}

// trims has limits set and run at a node that does not lead.
func (o *operators) trims(stream string) {
	o.t.Helper()
	follower := o.cluster.Others(o.cluster.Leader(stream))[0]
	before := parsed[admin.Retention](o, o.must(follower, "stream", "retention", stream, "-o", "json"))
	r := parsed[admin.Retention](o, o.must(follower, "stream", "retention", stream, "--set", "max-bytes=100KB", "-o", "json"))
	if r.MaxBytes != 100_000 || !r.Leads || r.Unknown != "" {
		o.t.Errorf("limits set at %s: %+v", follower.Name, r)
	}
	r = parsed[admin.Retention](o, o.must(follower, "stream", "retention", stream, "--run", "-o", "json"))
	if len(before.Units) < 3 || r.FirstOffset <= before.FirstOffset {
		o.t.Errorf("a run at %s: first offset %d, it was %d", follower.Name, r.FirstOffset, before.FirstOffset)
	}
}

// stable leaves out of a JSON answer what changes from call to call.
func stable(text string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool {
		return slices.ContainsFunc([]string{`"now"`, `"next_check"`, `"window_ms"`}, func(key string) bool { return strings.Contains(line, key) })
	}), "\n")
}

// TestOperators_whileNodesAreDown: with one node stopped and another hung, every
// command that looks ends in bounded time, tells what it knows and says what it
// does not. (OP-02)
func TestOperators_whileNodesAreDown(t *testing.T) {
	o := newOperators(t)
	o.create("everywhere", 10, nil)
	for i := range 3 {
		o.create(fmt.Sprint("once-", i+1), 10, map[string]string{"initial-cluster-size": "1"})
	}
	if err := o.cluster.AwaitLevel("everywhere"); err != nil {
		t.Fatal(err)
	}
	hung := o.cluster.Leader("everywhere")
	others := o.cluster.Others(hung)
	left, gone := others[0], others[1]
	before := parsed[[]admin.Stream](o, o.must(left, "stream", "list", "-o", "json"))
	gone.Kill()
	hung.Pause()
	defer hung.Continue()
	const bound = 5 * time.Second
	slowest := time.Duration(0)
	for _, row := range []struct {
		args []string
		code []int // one of these
	}{
		{[]string{"status"}, []int{8}},
		{[]string{"cluster", "info"}, []int{0}},
		{[]string{"cluster", "members"}, []int{0}},
		{[]string{"cluster", "leader"}, []int{8}},
		{[]string{"node", "info", gone.Name}, []int{0}},
		{[]string{"stream", "list"}, []int{0}},
		{[]string{"stream", "describe", "everywhere"}, []int{0}},
		{[]string{"replica", "list", "everywhere"}, []int{0}},
		{[]string{"segment", "list", "everywhere"}, []int{6}},
		{[]string{"segment", "list", "everywhere", "--node", left.Name}, []int{0}},
		{[]string{"segment", "list", "everywhere", "--node", gone.Name}, []int{6}},
		{[]string{"segment", "verify", "everywhere"}, []int{8}},
		{[]string{"segment", "verify", "--all"}, []int{8}},
		{[]string{"tracking", "list", "everywhere"}, []int{6}},
		{[]string{"stream", "retention", "everywhere"}, []int{6}},
	} {
		s := o.run(left, row.args...)
		slowest = max(slowest, s.took)
		if s.took > bound || !slices.Contains(row.code, s.code) {
			t.Errorf("millrace %s: exit %d (want %v) after %v: %s%s", strings.Join(row.args, " "), s.code, row.code, s.took, s.out, s.err)
		}
	}
	for _, path := range []string{"/metrics", "/metrics/streams", "/api/v1/status", "/readyz"} {
		begin := time.Now()
		if _, _, err := left.Ask("GET", path); err != nil || time.Since(begin) > bound {
			t.Errorf("%s: %v after %v", path, err, time.Since(begin))
		}
	}
	t.Logf("FIGURE operators: with one node killed and one hung the slowest answer took %d ms, bound %d ms", slowest.Milliseconds(), bound.Milliseconds())

	s := o.run(left, "segment", "verify", "everywhere")
	for _, silent := range []*harness.Node{gone, hung} {
		if !strings.Contains(s.out, "is down") || !strings.Contains(s.err, "2 replicas (") || !strings.Contains(s.err, "everywhere on "+silent.Name) {
			t.Errorf("segment verify does not say that %s was not asked: %s%s", silent.Name, s.out, s.err)
		}
	}

	list := parsed[[]admin.Stream](o, o.must(left, "stream", "list", "-o", "json"))
	if len(list) != len(before) {
		t.Fatalf("%d streams are listed, there were %d", len(list), len(before))
	}
	for i, s := range list {
		here := slices.Contains(s.Replicas, left.Name)
		if here && (s.FiguresOf != left.Name || s.Messages != before[i].Messages) || !here && (s.FiguresOf != "" || s.Unknown == "") {
			t.Errorf("%s on %v: %d messages by %q, unknown %q", s.Name, s.Replicas, s.Messages, s.FiguresOf, s.Unknown)
		}
	}
	replicas := parsed[[]admin.Replica](o, o.must(left, "replica", "list", "everywhere", "-o", "json"))
	for _, r := range replicas {
		if (r.NextOffset != nil) != (r.Node == left.Name) {
			t.Errorf("replica of %s: %+v", r.Node, r)
		}
	}
}

// TestOperators_safeToStop: the check says no where exactly one stream, or the
// metadata alone, would lose its majority, and yes otherwise. (OP-07)
func TestOperators_safeToStop(t *testing.T) {
	o := newOperators(t)
	n1, n2, n3 := o.cluster.Nodes[0], o.cluster.Nodes[1], o.cluster.Nodes[2]
	check := func(of *harness.Node, want int, says string) {
		t.Helper()
		var s said
		for end := time.Now().Add(usableWithin); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
			if s = o.run(n1, "check", "quorum", of.Name); s.code == want && strings.Contains(s.out, says) {
				break
			}
		}
		if s.code != want || !strings.Contains(s.out, says) {
			t.Errorf("may %s stop? exit %d, want %d: %s%s", of.Name, s.code, want, s.out, s.err)
		}
	}
	for i := range 5 {
		o.create(fmt.Sprint("s", i), 10, nil)
	}
	for _, n := range o.cluster.Nodes {
		check(n, 0, n.Name+" may be stopped: metadata and 5 streams")
	}

	// One stream of two replicas, on n2 and another: each is needed.
	o.create("critical", 10, map[string]string{"initial-cluster-size": "2"})
	replicas := parsed[admin.Stream](o, o.must(n1, "stream", "describe", "critical", "-o", "json")).Replicas
	for _, n := range o.cluster.Nodes {
		if slices.Contains(replicas, n.Name) {
			check(n, 2, "stream critical: 2 of 2 replicas must be in sync")
		} else {
			check(n, 0, "may be stopped")
		}
	}
	o.must(n1, "stream", "delete", "critical", "--yes")

	// One node down: all three-fold streams need both others, and so do metadata.
	n3.Kill()
	check(n2, 2, "metadata: 2 of 3 voters must be up")
	check(n3, 0, "may be stopped")
	for i := range 5 {
		o.must(n1, "stream", "delete", fmt.Sprint("s", i), "--yes")
	}
	check(n2, 2, "metadata: 2 of 3 voters must be up")
	o.cluster.Restart(n3)
	check(n2, 0, "may be stopped")
	n2.Kill()
	n3.Kill()
	check(n2, 2, "nobody leads the metadata")
	if s := o.run(n2, "check", "quorum", "n1"); s.code != 3 {
		t.Errorf("a node that does not answer: exit %d: %s%s", s.code, s.out, s.err)
	}
}

// TestOperators_publishWithoutAMajority: the command says what it waits for, and
// ends in bounded time, whether the node that is left led the stream or not.
func TestOperators_publishWithoutAMajority(t *testing.T) {
	o := newOperators(t)
	o.create("orders", 10, nil)
	lines := filepath.Join(t.TempDir(), "lines.txt")
	if err := os.WriteFile(lines, []byte("one\ntwo\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, leads := range []bool{true, false} {
		leader := o.cluster.Leader("orders")
		if err := o.cluster.AwaitLevel("orders"); err != nil {
			t.Fatal(err)
		}
		gone := o.cluster.Others(leader)
		left := leader
		if !leads {
			left, gone = gone[0], []*harness.Node{leader, gone[1]}
		}
		for _, n := range gone {
			n.Kill()
		}
		s := o.run(left, "publish", "orders", lines, "--stream", left.Stream, "--timeout", "6s")
		if s.code != 6 || !strings.Contains(s.err, "waiting for ") || s.took > 20*time.Second {
			t.Errorf("the leader is left: %v: exit %d after %v: %s%s", leads, s.code, s.took, s.out, s.err)
		}
		t.Logf("the leader is left: %v: after %v: %s", leads, s.took, s.err)
		o.cluster.Restart(gone...)
		o.must(left, "publish", "orders", lines, "--stream", left.Stream)
	}
}
