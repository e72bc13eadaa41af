package cluster

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
)

const (
	// snapshotKillsDefault is for `go test ./...`; SNAPSHOT_KILLS says otherwise.
	snapshotKillsDefault = 3
	// snapshotKillWithin is how long a node changes its metadata before its end.
	snapshotKillWithin = 60 * time.Millisecond
	// changesKept is how many of the changes stay to be looked for.
	changesKept = 50
)

// TestSnapshots_killed ends a process by kill -9 that does nothing but change its
// metadata and take snapshots, with a log that begins behind each: the next one
// starts, and has every change that was answered (EL-19).
func TestSnapshots_killed(t *testing.T) {
	if dir := os.Getenv("SNAPSHOT_KILLS_IN"); dir != "" {
		changeUntilKilled(t, dir)
	}
	kills := snapshotKillsDefault
	if text := os.Getenv("SNAPSHOT_KILLS"); text != "" {
		var err error
		if kills, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	dir, answered, halves := t.TempDir(), 0, map[string]bool{}
	for round := range kills + 1 {
		child := exec.Command(os.Args[0], "-test.run", "^TestSnapshots_killed$", "-test.v")
		child.Env = append(os.Environ(), "SNAPSHOT_KILLS_IN="+dir)
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		hung := time.AfterFunc(patience, func() { _ = child.Process.Kill() })
		var said []string
		started := false
		for lines := bufio.NewScanner(out); lines.Scan(); {
			said = append(said, lines.Text())
			var n int
			if _, err := fmt.Sscanf(lines.Text(), "has %d", &n); err == nil {
				if started = true; n < answered {
					t.Errorf("after %d kills change %d is there, %d was answered", round, n, answered)
				}
				time.AfterFunc(rand.N(snapshotKillWithin), func() { _ = child.Process.Kill() })
			}
			if _, err := fmt.Sscanf(lines.Text(), "changed %d", &n); err == nil {
				answered = n
			}
		}
		_ = child.Wait() // killed
		hung.Stop()
		if !started {
			t.Fatalf("after %d kills the node does not start:\n%s", round, strings.Join(said, "\n"))
		}
		left, _ := filepath.Glob(filepath.Join(dir, raftFolder, snapshotsFolder, "*"+halfSuffix))
		for _, half := range left {
			halves[half] = true
		}
		if len(left) > 1 {
			t.Errorf("%d halves of snapshots are left", len(left))
		}
	}
	t.Logf("FIGURE snapshots: %d kills of kill -9 among changes and snapshots, %d of them within a snapshot; %d changes answered, all there", kills, len(halves), answered)
}

// changeUntilKilled is the process that is killed.
func changeUntilKilled(t *testing.T, dir string) {
	c := open(t, dir, newReplicas(newDisk(), 1))
	last := 0
	for n := range c.View().VHosts() {
		var i int
		if _, err := fmt.Sscanf(n.Name, "v%d", &i); err == nil {
			last = max(last, i)
		}
	}
	for i := max(1, last-changesKept+1); i <= last; i++ {
		if _, ok := c.View().VHost(fmt.Sprint("v", i)); !ok {
			t.Fatalf("change %d of %d is not there", i, last)
		}
	}
	r := c.meta.instance()
	now := r.ReloadableConfig()
	now.TrailingLogs = 1
	if err := r.ReloadConfig(now); err != nil {
		t.Fatal(err)
	}
	fmt.Println("has", last)
	go func() {
		for {
			_ = r.Snapshot().Error() // there may be nothing new
		}
	}()
	for i := last + 1; ; i++ {
		if err := c.do(within(t), &catalog.CreateVHost{Name: fmt.Sprint("v", i)}); err != nil {
			t.Fatal(err)
		}
		fmt.Println("changed", i)
		if i > changesKept {
			if err := c.do(within(t), &catalog.DeleteVHost{Name: fmt.Sprint("v", i-changesKept)}); err != nil {
				t.Fatal(err)
			}
		}
	}
}
