package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// What was deleted is gone after a stop in order, however soon it comes: the
// node ends well, and finds no folder that it does not know when it starts.
func TestStop_whileDeletedStreamsAreRemoved(t *testing.T) {
	n := harness.Start(t)
	conn, err := client.Dial(t.Context(), client.Config{Addr: n.Stream})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Abort()
	const streams = 50
	for i := range streams {
		if err := conn.Create(t.Context(), fmt.Sprint(i), nil); err != nil {
			t.Fatal(err)
		}
	}
	for i := range streams {
		if err := conn.SendCommand(&wire.Delete{Correlation: 1_000_000, Stream: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	// The answer proves that all of the deletions before it were answered.
	if _, err := conn.Metadata(t.Context(), "0"); err != nil {
		t.Fatal(err)
	}
	if code := n.Stop(); code != 0 {
		t.Errorf("the node ended with %d", code)
	}
	for _, folder := range []string{"streams", "quarantine"} {
		left, err := os.ReadDir(filepath.Join(n.DataDir, folder))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		if len(left) > 0 {
			t.Errorf("%d folders are left in %s", len(left), folder)
		}
	}
}

// The same behind kill -9: a start knows from raft's log what was deleted, and does
// not take a folder for one of a catalog that was rolled back.
func TestKill_whileDeletedStreamsAreRemoved(t *testing.T) {
	n := harness.Start(t)
	conn, err := client.Dial(t.Context(), client.Config{Addr: n.Stream})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Abort()
	const streams = 50
	for i := range streams {
		if err := conn.Create(t.Context(), fmt.Sprint(i), nil); err != nil {
			t.Fatal(err)
		}
	}
	for i := range streams {
		if err := conn.SendCommand(&wire.Delete{Correlation: 1_000_000, Stream: fmt.Sprint(i)}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := conn.Metadata(t.Context(), "0"); err != nil {
		t.Fatal(err)
	}
	n.Kill()
	left := func(folder string) int {
		entries, err := os.ReadDir(filepath.Join(n.DataDir, folder))
		if err != nil && !os.IsNotExist(err) {
			t.Fatal(err)
		}
		return len(entries)
	}
	t.Logf("%d folders were left by the kill", left("streams"))
	n.Restart()
	for end := time.Now().Add(usableWithin); left("streams") > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d folders are left", left("streams"))
		}
	}
	if count := left("quarantine"); count > 0 {
		t.Errorf("%d folders are in quarantine", count)
	}
}
