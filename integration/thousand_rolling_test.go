package integration

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
)

const (
	// rollingSyncMax is how soon all replicas must count again behind a restart.
	rollingSyncMax = time.Minute
	// rollingLines is what a node may log in a rolling restart whatever the number
	// of streams, and rollingLinesMinute what is added for each minute.
	rollingLines       = 50
	rollingLinesMinute = 50
)

// TestThousand_rolling restarts node after node under many streams that are
// written: replicas are in step again in time, and nodes log by what happened, not
// by streams (RP-10).
func TestThousand_rolling(t *testing.T) {
	streams := number(t, "ROLLING", 0)
	if streams == 0 {
		t.Skip("many streams take long; make rolling-long has them")
	}
	c := &thousandTest{t: t, cluster: harness.StartCluster(t, 3)}
	c.create(streams)
	c.even("after the creates")
	logged := map[*harness.Node]int{}
	for _, n := range c.cluster.Nodes {
		logged[n] = len(n.Log())
	}
	begin := time.Now()
	for _, n := range c.cluster.Nodes {
		if code := n.Stop(); code != 0 {
			t.Errorf("node %s ended with %d", n.Name, code)
		}
		d := c.open()
		c.writeAll(d, time.Now(), rollingSyncMax)
		d.close()
		back := time.Now()
		c.cluster.Restart(n)
		c.until("all replicas count again", farBeyond*rollingSyncMax, func() bool {
			now := c.status()
			return now.Seen && now.UnderReplicated == 0 && now.WithoutLeader == 0
		})
		took := time.Since(back)
		t.Logf("FIGURE rolling: %s is back: all replicas of %d streams count again after %d ms; goal %d ms", n.Name, streams, took.Milliseconds(), rollingSyncMax.Milliseconds())
		if took > rollingSyncMax {
			t.Errorf("all replicas count again %v after the start of %s", took, n.Name)
		}
	}
	minutes := time.Since(begin).Minutes()
	for _, n := range c.cluster.Nodes {
		lines := strings.Count(n.Log()[logged[n]:], "\n")
		t.Logf("FIGURE rolling: node %s has logged %d lines in %.1f min; goal %.0f", n.Name, lines, minutes, rollingLines+rollingLinesMinute*minutes)
		if float64(lines) > rollingLines+rollingLinesMinute*minutes {
			t.Errorf("node %s has logged %d lines", n.Name, lines)
		}
	}
	d := c.open()
	c.writeAll(d, time.Now(), rollingSyncMax)
	d.close()
	if err := c.cluster.SameReplicas(); err != nil {
		t.Error(err)
	}
}
