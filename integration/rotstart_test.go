package integration

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
)

// exitFailed is the exit code of a node that does not start (README).
const exitFailed = 1

// No space when the node starts (5.5): it serves what it has, or it says that it
// waits for space and begins once there is some; what was confirmed is left as it
// is either way.
func TestRot_noSpaceAtStart(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "24m")
	n := harness.StartIn(t, filepath.Join(disk, "data"), "--disk-free-min", "0")
	f := &fullDisk{t: t, node: n, disk: disk}
	r := rot(t, n, "orders")
	r.publish(20, 1000)
	for _, how := range []string{"stopped", "killed"} {
		if how == "killed" {
			n.Kill()
		} else {
			r.stop()
		}
		before := contents(t, r.files(".seg"))
		f.fill()
		waits := n.Log()
		done := make(chan error, 1)
		go func() { done <- n.TryRestart() }()
		untilItStarts(t, func() bool { return len(done) == 1 || strings.Contains(n.Log()[len(waits):], "waits for space") })
		if len(done) == 0 {
			f.release()
		}
		if err := <-done; err != nil {
			t.Fatalf("%s: start: %v", how, err)
		}
		r.wantAll()
		n.Kill()
		for file, was := range before {
			if now, err := os.ReadFile(file); err != nil || !bytes.HasPrefix(now, was) && !bytes.HasPrefix(was, now) {
				t.Errorf("%s: %s was changed: %v", how, filepath.Base(file), err)
			}
		}
		_ = os.Remove(f.ballast()) // unless that is done
		n.Restart()
		r.wantAll()
		r.publish(2, 100)
	}
	r.wantAll()
}

// A directory that a new node is to begin in has no space (5.5): no partial start,
// and with room it begins as if nothing had been.
func TestRot_noSpaceToBegin(t *testing.T) {
	t.Parallel()
	disk := smallDisk(t, "24m")
	f := &fullDisk{t: t, disk: disk}
	n := harness.StartIn(t, filepath.Join(t.TempDir(), "data"), "--disk-free-min", "0")
	n.Kill()
	n.DataDir = filepath.Join(disk, "data")
	f.fill()
	if err := n.TryRestart(); err == nil || n.ExitCode() != exitFailed || !strings.Contains(n.LogSinceStart(), "no space left on device") {
		t.Errorf("start: %v", err)
	}
	f.release()
	n.Restart()
	r := rot(t, n, "orders")
	r.publish(2, 100)
	r.wantAll()
}

func contents(t *testing.T, files []string) map[string][]byte {
	t.Helper()
	all := map[string][]byte{}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(fmt.Errorf("keep what is there: %w", err))
		}
		all[file] = b
	}
	return all
}

func untilItStarts(t *testing.T, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(usableWithin)
	for tick := time.NewTicker(10 * time.Millisecond); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("the node neither starts nor waits")
		}
	}
}
