package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
)

// deletedAtOnce returns a node on which fifty streams have been deleted just now.
func deletedAtOnce(t *testing.T) *harness.Node {
	t.Helper()
	n := harness.Start(t)
	conn, err := client.Dial(t.Context(), client.Config{Addr: n.Stream})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Abort)
	// One command deletes more than are removed at a time.
	var names, keys []string
	for i := range 50 {
		names, keys = append(names, fmt.Sprintf("s-%d", i)), append(keys, fmt.Sprint(i))
	}
	if err := conn.CreateSuperStream(t.Context(), "s", names, keys, nil); err != nil {
		t.Fatal(err)
	}
	if err := conn.DeleteSuperStream(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	return n
}

// foldersIn counts what is in a folder of a node's data directory.
func foldersIn(t *testing.T, n *harness.Node, folder string) int {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(n.DataDir, folder))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	return len(entries)
}

// What was deleted is gone after a stop in order, however soon it comes: the
// node ends well, and finds no folder that it does not know when it starts.
func TestStop_whileDeletedStreamsAreRemoved(t *testing.T) {
	n := deletedAtOnce(t)
	if code := n.Stop(); code != 0 {
		t.Errorf("the node ended with %d", code)
	}
	for _, folder := range []string{"streams", "quarantine"} {
		if left := foldersIn(t, n, folder); left > 0 {
			t.Errorf("%d folders are left in %s", left, folder)
		}
	}
}

// The same behind kill -9: a start knows from raft's log what was deleted, and does
// not take a folder for one of a catalog that was rolled back.
func TestKill_whileDeletedStreamsAreRemoved(t *testing.T) {
	n := deletedAtOnce(t)
	n.Kill()
	t.Logf("%d folders were left by the kill", foldersIn(t, n, "streams"))
	n.Restart()
	for end := time.Now().Add(usableWithin); foldersIn(t, n, "streams") > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d folders are left", foldersIn(t, n, "streams"))
		}
	}
	if left := foldersIn(t, n, "quarantine"); left > 0 {
		t.Errorf("%d folders are in quarantine", left)
	}
}
