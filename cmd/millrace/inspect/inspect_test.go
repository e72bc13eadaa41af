package inspect

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

const incarnation chunk.Incarnation = 0x0123456789abcdef

// writer plays a stream's leader on a real folder.
type writer struct {
	t       *testing.T
	dataDir string
	store   *segstore.Store
	log     *segstore.Log
	now     chunk.Timestamp
}

// written is a stopped node's folder of a stream named "orders": a sealed
// segment of ten user chunks and an active one of three, two records each.
func written(t *testing.T) string {
	t.Helper()
	w := &writer{t: t, dataDir: t.TempDir(), now: 1_700_000_000_000}
	var err error
	w.store, err = segstore.NewStore(segstore.Options{Dir: w.dataDir})
	w.must(err)
	w.must(w.store.Create("orders", incarnation))
	w.log, _, err = w.store.Open(incarnation, segstore.Config{})
	w.must(err)
	w.control(chunk.Delta, chunk.FlagEpochStart|chunk.FlagSegmentStart|chunk.FlagUnitStart, tracking.EncodeBarrier(nil, nil))
	for range 10 {
		w.user()
	}
	w.sync()
	snapshot := w.log.Tracking().EncodeSnapshot(tracking.SnapshotOptions{Now: w.now}, nil)
	w.control(chunk.Snapshot, chunk.FlagSegmentStart|chunk.FlagSnapshotFirst|chunk.FlagSnapshotLast, snapshot[0])
	for range 3 {
		w.user()
	}
	w.sync()
	w.must(w.store.Close())
	return w.dataDir
}

func (w *writer) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *writer) meta(flags chunk.Flags, trailer []byte) chunk.Meta {
	w.now += 10
	return chunk.Meta{
		Incarnation: incarnation, Flags: flags, LSN: w.log.Tail().LSN + 1, SyncedLSN: w.log.Durable().LSN,
		DigestBefore: w.log.Digest(), Timestamp: w.now, Epoch: 1, BaseOffset: w.log.Next(), Trailer: trailer,
	}
}

func (w *writer) control(kind chunk.Type, flags chunk.Flags, payload []byte) {
	w.t.Helper()
	c, m := segstore.NewChunk(0), w.meta(flags, payload)
	c.Head, c.Header = chunk.BuildControl(kind, &m, c.Head)
	w.must(w.log.Append(c))
}

func (w *writer) user() {
	w.t.Helper()
	entries := chunk.AppendSimple(nil, fmt.Appendf(nil, "record %d", w.log.Next()))
	entries = chunk.AppendSimple(entries, []byte(strings.Repeat("x", 200)))
	c, m := segstore.NewChunk(len(entries)), w.meta(0, nil)
	var b chunk.Builder
	b.Reset(c.Head, c.Data)
	b.AppendRun(entries, 2, 2)
	c.Head, c.Data, c.Header = b.Finish(&m)
	w.must(w.log.Append(c))
}

func (w *writer) sync() {
	w.t.Helper()
	done := make(chan error, 1)
	w.log.Sync(func(_ chunk.Tail, err error) { done <- err })
	w.must(<-done)
	w.log.SetCommit(w.log.Durable().LSN)
}

func folder(t *testing.T, dataDir string) Folder {
	t.Helper()
	found, err := Find(dataDir, "orders")
	if err != nil || len(found) != 1 {
		t.Fatalf("find the stream: %d folders, %v", len(found), err)
	}
	return found[0]
}

func TestSegments_sumUp(t *testing.T) {
	list, err := folder(t, written(t)).Segments()
	if err != nil || len(list) != 2 {
		t.Fatalf("%d segments, %v", len(list), err)
	}
	sealed, active := list[0], list[1]
	if sealed.State != "sealed" || active.State != "active" {
		t.Errorf("states %s and %s", sealed.State, active.State)
	}
	if sealed.Chunks != 10 || sealed.Records != 20 || sealed.FirstOffset != 0 || sealed.NextOffset != 20 || sealed.FirstLSN != 1 {
		t.Errorf("sealed: %+v", sealed)
	}
	if active.Chunks != 3 || active.Records != 6 || active.FirstOffset != 20 || active.NextOffset != 26 || active.Bytes.Snapshot == 0 {
		t.Errorf("active: %+v", active)
	}
	// Ten client headers, twenty entry headers, "record N" in eight or nine
	// bytes, and the filling.
	if want := uint64(10*48 + 20*4 + 5*8 + 5*9 + 10*200); sealed.Bytes.User != want {
		t.Errorf("user bytes %d, want %d", sealed.Bytes.User, want)
	}
}

func TestChunks_list(t *testing.T) {
	f := folder(t, written(t))
	list, err := f.Chunks("00000000000000000001.0.seg")
	if err != nil || len(list) != 11 {
		t.Fatalf("%d chunks, %v", len(list), err)
	}
	if list[0].Type != "delta" || list[0].Flags != "segment-start unit-start epoch-start" || list[1].Type != "user" || list[1].Records != 2 {
		t.Errorf("the first two: %+v %+v", list[0], list[1])
	}
	for _, name := range []string{"00000000000000000007.0.seg", "../MANIFEST", "MANIFEST"} {
		if _, err := f.Chunks(name); !errors.Is(err, admin.ErrNoSegment) {
			t.Errorf("%s: %v, want ErrNoSegment", name, err)
		}
	}
}

// TestVerify_findsEachDamage damages a good folder in one way for each row.
func TestVerify_findsEachDamage(t *testing.T) {
	const sealed, active = "00000000000000000001.0.seg", "00000000000000000012.0.seg"
	rows := []struct {
		name, file string
		damage     func(path string) error
		says       string // "" is good
	}{
		{"none", sealed, func(string) error { return nil }, ""},
		{"a bit of a chunk's data", sealed, func(p string) error { return harness.Flip(p, 8*700) }, "bad CRC"},
		{"the first chunk's magic", sealed, func(p string) error { return harness.Flip(p, 0) }, "bad magic"},
		{"the active file cut inside its last chunk", active, func(p string) error { return harness.Cut(p, 3) }, "cut short"},
		{"zeros behind the active file", active, func(p string) error { return harness.Extend(p, make([]byte, 4096)) }, "bad magic"},
		{"the footer", sealed, func(p string) error { return harness.Cut(p, 1) }, "bad magic"},
	}
	for _, row := range rows {
		f := folder(t, written(t))
		if err := row.damage(filepath.Join(f.Path(), row.file)); err != nil {
			t.Fatal(err)
		}
		verdicts, err := f.Verify(context.Background())
		if err != nil || len(verdicts) < 2 {
			t.Fatalf("%s: %d verdicts, %v", row.name, len(verdicts), err)
		}
		found := ""
		for _, v := range verdicts {
			for _, p := range v.Problems {
				found += v.File + ": " + p + "\n"
			}
		}
		if (found == "") != (row.says == "") || !strings.Contains(found, row.says) {
			t.Errorf("%s: problems %q, want %q", row.name, found, row.says)
		}
		if found != "" && !strings.Contains(found, row.file) {
			t.Errorf("%s: the wrong file is named: %q", row.name, found)
		}
	}
}

// TestVerify_everyFlipIsFound flips each byte of the sealed file once.
func TestVerify_everyFlipIsFound(t *testing.T) {
	f := folder(t, written(t))
	path := filepath.Join(f.Path(), "00000000000000000001.0.seg")
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	for at := range info.Size() {
		if err := harness.Flip(path, 8*at+3); err != nil {
			t.Fatal(err)
		}
		v, err := f.VerifyFile("00000000000000000001.0.seg")
		if err == nil && len(v.Problems) == 0 {
			t.Fatalf("a flip in byte %d is not found", at)
		}
		if err := harness.Flip(path, 8*at+3); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("FIGURE segment verify: one flip in each of %d bytes of a sealed segment, all found", info.Size())
}

func TestUntil_leavesTheRunningTailAlone(t *testing.T) {
	dataDir := written(t)
	f := folder(t, dataDir)
	if err := harness.Extend(filepath.Join(f.Path(), "00000000000000000012.0.seg"), []byte("half a chunk")); err != nil {
		t.Fatal(err)
	}
	v, err := f.Until(15).VerifyFile("00000000000000000012.0.seg")
	if err != nil || len(v.Problems) != 0 || v.Chunks != 4 {
		t.Errorf("up to the last whole chunk: %+v, %v", v, err)
	}
}

func TestOpen_needsTheIncarnation(t *testing.T) {
	dataDir := written(t)
	named := folder(t, dataDir).Path()
	elsewhere := filepath.Join(t.TempDir(), "copy")
	if err := os.CopyFS(elsewhere, os.DirFS(named)); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(elsewhere, 0); !errors.Is(err, ErrUnknownIncarnation) {
		t.Errorf("a folder of another name: %v", err)
	}
	for _, row := range []struct {
		path string
		inc  chunk.Incarnation
		good bool
	}{{named, 0, true}, {elsewhere, incarnation, true}, {elsewhere, incarnation + 1, false}} {
		f, err := Open(row.path, row.inc)
		if err != nil {
			t.Fatal(err)
		}
		v, err := f.VerifyFile("00000000000000000001.0.seg")
		if err != nil || (len(v.Problems) == 0) != row.good {
			t.Errorf("%s as %s: %d problems, %v", row.path, row.inc, len(v.Problems), err)
		}
	}
}
