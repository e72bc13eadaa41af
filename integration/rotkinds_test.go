package integration

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// Sizes of segments around what 32 bits hold are refused with the reference's
// code or work (ST-14).
func TestRot_segmentSizes(t *testing.T) {
	t.Parallel()
	n := harness.Start(t)
	conn := dialNode(t, n)
	defer conn.Close()
	for size, good := range map[string]bool{
		"3000000000": true, "3221225472": false, "4000000000": false, "4294967295": false, "4294967296": false, "4294967297": false,
		"1000000000000": false, "-1": false, "0": false, "abc": false, "1": true,
	} {
		err := conn.Create(t.Context(), "s"+size, map[string]string{"stream-max-segment-size-bytes": size})
		if !good {
			if client.Code(err) != wire.CodePreconditionFailed {
				t.Errorf("%s: %v", size, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", size, err)
			continue
		}
		r := &rotten{t: t, node: n, stream: "s" + size}
		r.publish(10, 2000) // more than the smallest segment
		r.wantAll()
	}
}

// A snapshot of the metadata is damaged and no log reaches behind it, or it does:
// the node ends with a reason, or has all streams; never fewer (5.5).
func TestRot_metadataSnapshot(t *testing.T) {
	t.Parallel()
	n := harness.Start(t)
	r := rot(t, n, "orders")
	r.publish(2, 100)
	for i := range 300 { // enough for a snapshot at the stop
		if status, body, err := n.Manage("PUT", fmt.Sprintf("/api/vhosts/v%d", i)); err != nil || status >= 300 {
			t.Fatalf("make a virtual host: %d %s %v", status, body, err)
		}
	}
	r.stop()
	list, err := filepath.Glob(filepath.Join(n.DataDir, "raft/snapshots/*-*-*"))
	if err != nil || len(list) != 1 {
		t.Fatalf("snapshots: %v, %v", list, err)
	}
	state, log := filepath.Join(list[0], "state.bin"), filepath.Join(n.DataDir, "raft/raft.db")
	streams, whole, entries := hashed(t, filepath.Join(n.DataDir, "streams")), read(t, state), read(t, log)
	r.must(harness.Flip(state, 8000))

	// Without the log, the snapshot was all there is.
	r.must(os.Remove(log))
	if err := n.TryRestart(); err == nil || n.ExitCode() != exitFailed || !strings.Contains(n.LogSinceStart(), list[0]) || !strings.Contains(n.LogSinceStart(), "backup") {
		t.Errorf("start with nothing that is whole: %v", err)
	}
	if hashed(t, filepath.Join(n.DataDir, "streams")) != streams {
		t.Error("streams were touched")
	}
	r.must(os.WriteFile(log, entries, 0o600))
	n.Restart()
	if !strings.Contains(n.LogSinceStart(), "damaged and not used") {
		t.Error("the damage is not told")
	}
	r.wantAll()
	r.publish(1, 100)
	r.stop()
	if slices.Equal(read(t, state), whole) {
		t.Error("the damaged snapshot was written")
	}
}

// A data directory that is a file, or has one where a folder should be or a folder
// where a file should be: a reason, an exit code, nothing changed (5.5).
func TestRot_wrongKinds(t *testing.T) {
	t.Parallel()
	n := harness.Start(t)
	r := rot(t, n, "orders")
	r.publish(2, 100)
	r.stop()
	dir := n.DataDir
	for _, name := range []string{".", "node.json", "streams", "journal", "raft", "raft/raft.db"} {
		path := filepath.Join(dir, name)
		info, err := os.Stat(path)
		r.must(err)
		kept := filepath.Join(filepath.Dir(dir), "kept")
		r.must(os.Rename(path, kept))
		if info.IsDir() {
			r.must(os.WriteFile(path, []byte("x"), 0o600))
		} else {
			r.must(os.Mkdir(path, 0o700))
		}
		before, away := hashed(t, dir), hashed(t, kept)
		err = n.TryRestart()
		if log := n.LogSinceStart(); err == nil || n.ExitCode() != exitFailed || !strings.Contains(log, path) {
			t.Errorf("%s: start: %v: %s", name, err, log)
		}
		n.Kill()
		if hashed(t, dir) != before || hashed(t, kept) != away {
			t.Errorf("%s: files were\n%s\nand are\n%s", name, before, hashed(t, dir))
		}
		r.must(os.RemoveAll(path))
		r.must(os.Rename(kept, path))
	}
	n.Restart()
	r.wantAll()
}

// hashed names all files at or below a place with what is in them; the journal
// counts starts, so that it differs after each.
func hashed(t *testing.T, at string) (all string) {
	t.Helper()
	err := filepath.WalkDir(at, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			all += fmt.Sprintln(path)
		} else if err == nil && d.Name() != "JOURNAL" {
			all += fmt.Sprintf("%s %x\n", path, sha256.Sum256(read(t, path)))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func read(t *testing.T, path string) []byte {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return b
}
