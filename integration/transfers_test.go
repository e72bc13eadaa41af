package integration

import (
	"cmp"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
)

const (
	// transferGapGoal is the longest time that publishers may be without a confirm
	// when a leader moves; make transfers-long holds a quiet machine to it.
	transferGapGoal = 200 * time.Millisecond
	// transferGapMax is the same for a machine that others use too.
	transferGapMax = time.Second
)

// TestCluster_transfers moves leaders from node to node under load, and tells
// where the time goes: as the coordinator sees it, and as publishers do.
func TestCluster_transfers(t *testing.T) {
	c := newClusterTest(t)
	c.start()
	transfers := number(t, "CLUSTER_TRANSFERS", 6)
	var outages []harness.Outage
	for i := range transfers {
		s := c.streams[i%len(c.streams)]
		from := c.cluster.Leader(s.name)
		to := c.cluster.Others(from)[i%2]
		s.traffic.Gap()
		c.moveBy(c.cluster.Nodes[i%3], s, to)
		c.flows()
		outages = append(outages, s.traffic.Outage())
		if now := c.cluster.Leader(s.name); now != to {
			t.Errorf("%s went from %s to %s, not to %s", s.name, from.Name, now.Name, to.Name)
		}
		if err := c.cluster.AwaitFollowed(s.name); err != nil {
			t.Fatal(err)
		}
	}
	gaps := spans(outages, harness.Outage.Length)
	t.Logf("FIGURE cluster transfers: %d leaders moved under load: gap %s, goal %d ms", transfers, spread(gaps), transferGapGoal.Milliseconds())
	most := transferGapMax
	if os.Getenv("CLUSTER_QUIET") != "" {
		most = transferGapGoal
	}
	if longest := slices.Max(gaps); longest > most {
		t.Errorf("the longest gap is %v", longest)
	}
	c.tellPassages(transfers)
	tellOutages(t, outages)
	c.finish()
}

// passageStage finds what a stage took in the line that the coordinator logs.
var passageStage = regexp.MustCompile(`(handover|grant|reports|assign|install)="?([0-9.]+(?:ms|s|µs))`)

// tellPassages prints the stages that the coordinators have logged.
func (c *clusterTest) tellPassages(transfers int) {
	c.t.Helper()
	stages, told := map[string][]time.Duration{}, 0
	for _, n := range c.cluster.Nodes {
		for line := range strings.Lines(n.Log()) {
			if !strings.Contains(line, "a stream's leader has moved") {
				continue
			}
			told++
			for _, m := range passageStage.FindAllStringSubmatch(line, -1) {
				d, err := time.ParseDuration(m[2])
				if err != nil {
					c.t.Fatalf("%v in %s", err, line)
				}
				stages[m[1]] = append(stages[m[1]], d)
			}
		}
	}
	if told == 0 { // a coordinator that is replaced in between leaves some out
		c.t.Fatalf("none of %d transfers is in the coordinators' logs", transfers)
	}
	for _, stage := range []string{"handover", "grant", "reports", "assign", "install"} {
		if len(stages[stage]) != told {
			c.t.Fatalf("stage %s of %d of %d transfers", stage, len(stages[stage]), told)
		}
		c.t.Logf("FIGURE cluster transfers: coordinator, %s: %s", stage, spread(stages[stage]))
	}
}

// tellOutages prints what the publishers have gone through, and all of the
// longest.
func tellOutages(t *testing.T, outages []harness.Outage) {
	t.Helper()
	type stage struct {
		name string
		of   func(harness.Outage) time.Duration
	}
	stages := []stage{
		{"told of it", func(o harness.Outage) time.Duration { return o.Told.Sub(o.Last) }},
		{"at the new leader", func(o harness.Outage) time.Duration { return o.Reached.Sub(o.Told) }},
		{"declared there", func(o harness.Outage) time.Duration { return o.Declared.Sub(o.Reached) }},
		{"first confirm", func(o harness.Outage) time.Duration { return o.First.Sub(o.Declared) }},
	}
	outages = slices.DeleteFunc(slices.Clone(outages), func(o harness.Outage) bool { return o.Told.IsZero() })
	if len(outages) == 0 {
		t.Error("no publisher has looked for another leader")
		return
	}
	longest := slices.MaxFunc(outages, func(a, b harness.Outage) int { return cmp.Compare(a.Length(), b.Length()) })
	var split []string
	for _, s := range stages {
		t.Logf("FIGURE cluster transfers: publisher, %s: %s", s.name, spread(spans(outages, s.of)))
		split = append(split, fmt.Sprintf("%s %d ms", s.name, s.of(longest).Milliseconds()))
	}
	t.Logf("FIGURE cluster transfers: the longest gap, %d ms: %s", longest.Length().Milliseconds(), strings.Join(split, ", "))
}

func spans(outages []harness.Outage, of func(harness.Outage) time.Duration) []time.Duration {
	list := make([]time.Duration, len(outages))
	for i, o := range outages {
		list[i] = of(o)
	}
	return list
}

// spread says how times lie, in milliseconds.
func spread(times []time.Duration) string {
	sorted := slices.Sorted(slices.Values(times))
	at := func(share float64) float64 {
		d := sorted[int(share*float64(len(sorted)-1)+0.5)]
		return float64(d.Microseconds()) / 1000
	}
	return fmt.Sprintf("median %.1f ms, p99 %.1f ms, longest %.1f ms", at(0.5), at(0.99), at(1))
}
