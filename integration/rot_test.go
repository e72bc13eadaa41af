package integration

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// tail is a stream whose only file is harmed from a position on.
type tail struct {
	*rotten
	name string
	left uint64 // messages that stay
	torn bool   // what was harmed was above the mark
}

// harm harms the file behind a kill, once it is clear what a mark covers: the
// journal's, or that of a chunk that stays.
func (r *tail) harm(where func(end []int64) int64, do func(file string, at int64) error) {
	r.t.Helper()
	file := r.files(".seg")[0]
	list, mark := r.chunks(file), r.mark()
	var end []int64
	for _, c := range list {
		end = append(end, c.end)
	}
	from := where(end)
	var last chunk.LSN // that stays
	for _, c := range list {
		if c.end <= from {
			last, mark, r.left = c.lsn, max(mark, c.synced), uint64(c.next)
		}
	}
	r.torn = mark <= last
	r.must(do(file, from))
}

// wantTorn checks that exactly what was harmed is gone, and goes on.
func (r *tail) wantTorn() (lost []uint64) {
	r.t.Helper()
	for m := r.left + 1; m <= r.sent; m++ {
		lost = append(lost, m)
	}
	r.wantAll(lost...)
	r.publish(2, 100)
	r.wantAll(lost...)
	return lost
}

// tailMessages is how many chunks of messages a tail has behind its barrier.
const tailMessages = 6

// harmTails publishes to a stream for each name and kills the node: at once, or
// once marks cover everything. Some must then be above their mark, or none.
func harmTails(t *testing.T, marked bool, cuts map[string]func(end []int64) int64, do func(file string, at int64) error) (n *harness.Node, other *rotten, all []*tail) {
	t.Helper()
	n = harness.Start(t)
	other = rot(t, n, "other")
	other.publish(1, 100)
	for name := range cuts {
		all = append(all, &tail{rotten: rot(t, n, "tail "+name), name: name})
	}
	for _, r := range all {
		r.publish(tailMessages, 100)
	}
	if marked {
		for _, r := range all {
			r.waitForMark()
		}
	}
	n.Kill()
	torn := 0
	for _, r := range all {
		r.harm(cuts[r.name], do)
		if r.torn {
			torn++
		}
	}
	t.Logf("%d of %d are above their mark", torn, len(all))
	if marked && torn > 0 || !marked && torn == 0 {
		t.Fatal("the marks are not what this test needs")
	}
	return n, other, all
}

// wantTails starts the node two or three times: torn tails are cut and go on; what
// a mark covers is damage, named by each start, and nothing of it is cut.
func wantTails(n *harness.Node, other *rotten, all []*tail) {
	t := other.t
	t.Helper()
	size := map[*tail]int64{}
	for _, r := range all {
		info, err := os.Stat(r.files(".seg")[0])
		r.must(err)
		size[r] = info.Size()
	}
	var lostMu sync.Mutex // guards lost
	lost := map[*tail][]uint64{}
	starts := 2
	if slices.ContainsFunc(all, func(r *tail) bool { return r.torn }) {
		starts = 3
	}
	for start := range starts {
		n.Restart()
		t.Run(fmt.Sprint("start ", start+1), func(t *testing.T) {
			for _, r := range all {
				t.Run(r.name, func(t *testing.T) {
					t.Parallel() // a refusal takes a while
					now := &tail{r.with(t), r.name, r.left, r.torn}
					switch {
					case !r.torn:
						now.wantRefused(nil)
					case start == 0:
						l := now.wantTorn()
						r.sent = now.sent
						lostMu.Lock()
						lost[r] = l
						lostMu.Unlock()
					default:
						lostMu.Lock()
						l := lost[r]
						lostMu.Unlock()
						now.wantAll(l...)
					}
				})
			}
		})
		other.publish(1, 100)
		other.wantAll()
		other.stop()
		for _, r := range all {
			if info, err := os.Stat(r.files(".seg")[0]); !r.torn && (err != nil || info.Size() != size[r]) {
				t.Errorf("%s: start %d changed a damaged file: %v", r.name, start+1, err)
			}
		}
	}
}

// The unsealed file is cut after a kill -9 (ST-01, ST-05): in the data of the
// last chunk, in its head, at its start, and over three chunks. Above the mark
// what is left is exactly the chunks before the cut, and the stream goes on behind
// them, over more starts. Below it, that is damage: named, and nothing is cut.
func TestRot_tailCut(t *testing.T) {
	t.Parallel()
	cuts := map[string]func(end []int64) int64{ // where the file then ends
		"data":         func(end []int64) int64 { return end[len(end)-1] - 5 },
		"head":         func(end []int64) int64 { return end[len(end)-2] + 60 },
		"header":       func(end []int64) int64 { return end[len(end)-2] + 20 },
		"start":        func(end []int64) int64 { return end[len(end)-2] },
		"three chunks": func(end []int64) int64 { return end[len(end)-4] + 30 },
		"all but one":  func(end []int64) int64 { return end[0] },
	}
	for _, marked := range []bool{false, true} {
		t.Run(map[bool]string{false: "above the mark", true: "below the mark"}[marked], func(t *testing.T) {
			t.Parallel()
			wantTails(harmTails(t, marked, cuts, os.Truncate))
		})
	}
}

// Zeros over the unsealed file's end (ST-07), and behind it: the same, and the
// fault that this is about showed at the second start.
func TestRot_zeros(t *testing.T) {
	t.Parallel()
	over := map[string]func(end []int64) int64{
		"behind":     func(end []int64) int64 { return end[len(end)-1] },
		"last chunk": func(end []int64) int64 { return end[len(end)-2] },
	}
	zero := func(file string, at int64) error {
		if err := os.Truncate(file, at); err != nil {
			return err
		}
		return harness.Extend(file, make([]byte, 8192))
	}
	t.Run("above the mark", func(t *testing.T) {
		t.Parallel()
		wantTails(harmTails(t, false, over, zero))
	})
	covered := maps.Clone(over)
	delete(covered, "behind") // no mark covers that
	t.Run("below the mark", func(t *testing.T) {
		t.Parallel()
		wantTails(harmTails(t, true, covered, zero))
	})
}

// Indexes are removed, cut, emptied, flipped and swapped (ST-02, ST-04, ST-10):
// everything can be read from anywhere, and is in place again.
func TestRot_indexes(t *testing.T) {
	t.Parallel()
	n := harness.Start(t)
	r := rot(t, n, "orders")
	r.publish(40, 1000)
	r.stop()
	clean := n.Ready
	index := r.files(".idx")
	if len(index) < 4 {
		t.Fatalf("%d indexes", len(index))
	}
	r.must(os.Remove(index[0]))
	r.must(harness.Cut(index[1], 5))
	r.must(os.Truncate(index[2], 0))
	r.must(harness.Flip(index[3], 8*20))
	r.must(os.WriteFile(filepath.Join(r.dir(), "00000000000000000002.0.idx"), []byte("stray"), 0o600))
	n.Restart()
	t.Logf("ready after %v, clean %v", n.Ready, clean)
	r.wantAll()
	for offset := uint64(0); offset < r.sent; offset += 37 {
		messages, _, err := r.read(wire.FromOffset(offset))
		if err != nil || !slices.Contains(messages[:10], offset+1) {
			t.Fatalf("from offset %d: %.40v, %v", offset, messages, err)
		}
	}
	for _, file := range index[:4] {
		if _, err := os.Stat(file); err != nil {
			t.Errorf("not in place again: %v", err)
		}
	}
	if _, err := os.Stat(filepath.Join(r.dir(), "00000000000000000002.0.idx")); err == nil {
		t.Error("the stray index is still there")
	}
	r.stop()
	n.Restart()
	r.wantAll()
}

// Segment files are missing (ST-03, ST-04): one in the middle costs that range
// and no more, the newest is missed although nothing names it, and other streams
// are as well as ever, over several starts.
func TestRot_missingFiles(t *testing.T) {
	t.Parallel()
	n := harness.Start(t)
	middle, newest, only, other := rot(t, n, "middle"), rot(t, n, "newest"), rot(t, n, "only"), rot(t, n, "other")
	middle.publish(20, 1000)
	newest.publish(20, 1000)
	only.publish(2, 100)
	other.publish(2, 100)
	middle.stop()
	r := middle.files(".seg")
	middle.must(os.Remove(r[1]))
	all := newest.files(".seg")
	middle.must(os.Remove(all[len(all)-1]))
	middle.must(os.Remove(only.files(".seg")[0]))
	for _, refused := range []*rotten{newest, only} { // each takes a while to be refused
		n.Restart()
		refused.wantRefused(other)
		messages, next, err := middle.read(wire.OffsetSpec{Type: wire.OffsetFirst})
		if err == nil || len(messages) == 0 || next != uint64(len(messages)) {
			t.Fatalf("read up to %d over the missing file: %v", next, err)
		}
		middle.publish(1, 100)
		behind, _, err := middle.read(wire.FromOffset(middle.sent - 5))
		if err != nil || len(behind) == 0 || behind[len(behind)-1] != middle.sent {
			t.Fatalf("behind the missing file: %d messages, %v", len(behind), err)
		}
		if got := strings.Count(n.Log(), "a log is damaged"); got > 20 {
			t.Errorf("the damage is told %d times", got)
		}
		middle.stop()
	}
	n.Restart()
}

// What is not ours in a stream's folder (ST-08) is kept, and stops nothing.
func TestRot_foreignFiles(t *testing.T) {
	t.Parallel()
	n := harness.Start(t)
	r := rot(t, n, "orders")
	r.publish(20, 1000)
	r.stop()
	outside := filepath.Join(t.TempDir(), "outside")
	r.must(os.WriteFile(outside, []byte("not ours"), 0o600))
	put := map[string]func(path string) error{
		".nfs0000000001":             func(p string) error { return os.WriteFile(p, []byte("nfs"), 0) },
		"lost+found":                 func(p string) error { return os.Mkdir(p, 0o700) },
		"x.segment.bak":              func(p string) error { return os.WriteFile(p, []byte("bak"), 0o600) },
		"00000000000000000000.0.seg": func(p string) error { return os.WriteFile(p, []byte("zero"), 0o600) },
		"00000000000000000005.7.seg": func(p string) error { return os.Symlink(outside, p) },
		"00000000000000000099.0.seg": func(p string) error { return os.Mkdir(p, 0o700) },
		"MANIFEST.bak":               func(p string) error { return os.WriteFile(p, []byte("editor"), 0o600) },
		"MANIFEST.tmp":               func(p string) error { return os.WriteFile(p, []byte("crash"), 0o600) },
	}
	for name, make := range put {
		r.must(make(filepath.Join(r.dir(), name)))
	}
	n.Restart()
	r.wantAll()
	r.publish(2, 100)
	r.wantAll()
	kept, err := os.ReadDir(filepath.Join(n.DataDir, "quarantine"))
	r.must(err)
	if len(kept) != len(put)-1 { // all but what a crash of ours leaves
		t.Errorf("quarantine holds %d of %d: %v", len(kept), len(put)-1, kept)
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "not ours" {
		t.Errorf("a link was followed: %q, %v", b, err)
	}
	r.stop()
	n.Restart()
	r.wantAll()
}

// Bits of a sealed file flip, while the node is down and while it is up (ST-09):
// a reader gets right bytes or an error, never wrong bytes and never a silent
// end; the stream goes on; verify, figures and the log tell of it; there is
// nobody to repair it from, and that is said.
func TestRot_flips(t *testing.T) {
	t.Parallel()
	n := harness.Start(t)
	data, length, trailer, live := rot(t, n, "data"), rot(t, n, "length"), rot(t, n, "trailer"), rot(t, n, "live")
	all := []*rotten{data, length, trailer, live}
	for _, r := range all {
		r.publish(20, 1000)
	}
	data.stop()
	flip := func(r *rotten, bit int64) {
		t.Helper()
		r.must(harness.Flip(r.files(".seg")[1], bit))
	}
	first := func(r *rotten) int64 { return 8 * r.chunks(r.files(".seg")[1])[0].end } // behind the snapshot
	flip(data, first(data)+8*3000)
	flip(length, first(length)+8*33)
	flip(trailer, first(trailer)+8*50)
	n.Restart()
	flip(live, first(live)+8*3000) // in use
	for _, r := range all {
		messages, next, err := r.read(wire.OffsetSpec{Type: wire.OffsetFirst})
		if err == nil || len(messages) == 0 || next >= r.sent {
			t.Fatalf("%s: read up to %d of %d: %v", r.stream, next, r.sent, err)
		}
		r.publish(1, 100)
		behind, _, err := r.read(wire.FromOffset(r.sent - 5))
		if err != nil || len(behind) == 0 {
			t.Errorf("%s: behind the damage: %v", r.stream, err)
		}
		body, err := n.Get("/api/v1/streams/%2F/" + r.stream)
		if err != nil || !bytes.Contains(body, []byte(`"damaged_segments":1`)) {
			t.Errorf("%s: figures do not tell: %v, %s", r.stream, err, body)
		}
		body, err = n.Get("/api/v1/streams/%2F/" + r.stream + "/replicas")
		if err != nil || !bytes.Contains(body, []byte(`"damaged_segments":1`)) {
			t.Errorf("%s: the list of replicas does not tell: %v, %s", r.stream, err, body)
		}
		err = n.Call("POST", "/api/v1/streams/%2F/"+r.stream+"/repair", nil, nil)
		if err == nil || !strings.Contains(err.Error(), "412") || !strings.Contains(err.Error(), "no other replica") || !strings.Contains(err.Error(), "(offsets ") {
			t.Errorf("%s: repair: %v", r.stream, err)
		}
	}
	metrics, err := n.Get("/metrics")
	if err != nil || !bytes.Contains(metrics, []byte("millrace_damaged_segments 4\n")) {
		t.Errorf("metrics do not tell: %v", err)
	}
	if told := strings.Count(n.Log(), "a log is damaged"); told != len(all) {
		t.Errorf("the damage is told %d times", told)
	}
}

// The metadata's files are damaged while the node is down: it does not start,
// says which file, and no stream's data is touched (5.5).
func TestRot_metadata(t *testing.T) {
	t.Parallel()
	n := harness.Start(t)
	r := rot(t, n, "orders")
	r.publish(4, 100)
	r.stop()
	var raft string
	r.must(filepath.WalkDir(filepath.Join(n.DataDir, "raft"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() && strings.HasSuffix(path, ".db") {
			raft = path
		}
		return err
	}))
	if raft == "" {
		t.Fatal("no metadata file")
	}
	good, err := os.ReadFile(raft)
	r.must(err)
	streams := filepath.Join(n.DataDir, "streams")
	before := hashed(t, streams)
	for _, damage := range []struct {
		name string
		do   func() error
	}{
		{"zeros", func() error { return os.WriteFile(raft, make([]byte, len(good)), 0o600) }},
		{"cut", func() error { return os.WriteFile(raft, good[:3*4096], 0o600) }},
		{"garbage", func() error { return os.WriteFile(raft, bytes.Repeat([]byte("x"), len(good)), 0o600) }},
	} {
		r.must(damage.do())
		said := strings.Count(n.Log(), "does not start")
		err := n.TryRestart()
		if err == nil {
			t.Errorf("%s: the node starts", damage.name)
			r.stop()
		} else if log := n.Log(); strings.Count(log, "does not start") != said+1 || !strings.Contains(n.LogSinceStart(), "raft.db") || n.ExitCode() != exitFailed {
			t.Errorf("%s: not said why: %v", damage.name, err)
		}
		if hashed(t, streams) != before {
			t.Errorf("%s: the stream's data was touched", damage.name)
		}
	}
	r.must(os.WriteFile(raft, good, 0o600))
	n.Restart()
	r.wantAll()
}

// A data directory that can't be written: the node ends at once, says why with an
// exit code, and has changed nothing (5.5).
func TestRot_readOnly(t *testing.T) {
	t.Parallel()
	n := harness.Start(t)
	r := rot(t, n, "orders")
	r.publish(2, 100)
	r.stop()
	before := listed(t, n.DataDir)
	for _, args := range [][]string{{"--bind", n.DataDir, n.DataDir}, {"-o", "remount,bind,ro", n.DataDir}} {
		if out, err := exec.Command("mount", args...).CombinedOutput(); err != nil {
			t.Skipf("mounting takes root: %v: %s", err, out)
		}
		if args[0] == "--bind" {
			t.Cleanup(func() { _ = exec.Command("umount", "-l", n.DataDir).Run() }) // done already as a rule
		}
	}
	err := n.TryRestart()
	if err == nil || n.ExitCode() != exitFailed || !strings.Contains(n.Log(), "does not start") || !strings.Contains(n.Log(), "read-only file system") {
		t.Errorf("start: %v", err)
	}
	if after := listed(t, n.DataDir); after != before {
		t.Errorf("files were\n%s\nand are\n%s", before, after)
	}
	if out, err := exec.Command("umount", n.DataDir).CombinedOutput(); err != nil {
		t.Fatalf("unmount: %v: %s", err, out)
	}
	n.Restart()
	r.wantAll()
}

// listed names all files below a folder, with their lengths.
func listed(t *testing.T, dir string) (all string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		all += fmt.Sprintln(path, info.Size())
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
