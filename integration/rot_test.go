package integration

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/wire"
)

// rotten is a stream whose files are treated badly while its node is down. All
// messages are of one producer, numbered from 1.
type rotten struct {
	t      *testing.T
	node   *harness.Node
	stream string
	sent   uint64
}

// rot makes a stream of small segments.
func rot(t *testing.T, n *harness.Node, stream string) *rotten {
	t.Helper()
	conn := dialNode(t, n)
	defer conn.Close()
	if err := conn.Create(t.Context(), stream, map[string]string{"stream-max-segment-size-bytes": "65536"}); err != nil {
		t.Fatal(err)
	}
	return &rotten{t: t, node: n, stream: stream}
}

// publish has so many chunks of ten messages confirmed, one after another.
func (r *rotten) publish(chunks, bytes int) {
	r.t.Helper()
	conn := dialNode(r.t, r.node)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(r.t.Context(), usableWithin)
	defer cancel()
	pub, err := r.declare(ctx, conn)
	if err != nil {
		r.t.Fatal(err)
	}
	for range chunks {
		for range 10 {
			r.sent++
			if err := pub.Send(r.sent, harness.AppendMessage(nil, 1, r.sent, bytes)); err != nil {
				r.t.Fatal(err)
			}
		}
		if err := pub.Drain(ctx); err != nil {
			r.t.Fatalf("publish to %s: %v", r.stream, err)
		}
	}
}

func (r *rotten) declare(ctx context.Context, conn *client.Conn) (*client.Publisher, error) {
	return conn.DeclarePublisher(ctx, client.PublisherConfig{Stream: r.stream, Confirmed: func([]uint64) {}})
}

// read reads from a place to the stream's end, or to where it breaks off, and
// checks what comes: no bytes but those that were sent, in their order, with
// dense offsets.
func (r *rotten) read(from wire.OffsetSpec) (messages []uint64, next uint64, err error) {
	r.t.Helper()
	conn := dialNode(r.t, r.node)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(r.t.Context(), usableWithin)
	defer cancel()
	stats, err := conn.Stats(ctx, r.stream)
	if err != nil {
		return nil, 0, err
	}
	end := uint64(stats["committed_offset"] + 1)
	if end == 0 {
		return nil, 0, nil
	}
	done := make(chan error, 2)
	_, err = conn.Subscribe(ctx, client.ConsumerConfig{
		Stream: r.stream, Offset: from, Ended: func(err error) { done <- err },
		Deliver: func(d *client.Delivery) {
			for record, err := range d.Records() {
				if err != nil {
					done <- err
					return
				}
				producer, counter, err := harness.ParseMessage(record.Message)
				offset := uint64(record.Offset)
				n := len(messages)
				if err != nil || producer != 1 || counter == 0 || n > 0 && (counter <= messages[n-1] || offset != next) {
					r.t.Errorf("offset %d holds message %d behind offset %d: %v", offset, counter, next, err)
				}
				messages, next = append(messages, counter), offset+1
			}
			if next >= end {
				done <- nil
			}
		},
	})
	if err != nil {
		return nil, 0, err
	}
	select {
	case err = <-done:
	case <-ctx.Done():
		err = fmt.Errorf("at offset %d of %d: %w", next, end, ctx.Err())
	}
	conn.Close() // Deliver runs no more
	return messages, next, err
}

// wantAll reads everything, and wants the messages from 1 on but for those that
// are lost for good.
func (r *rotten) wantAll(lost ...uint64) {
	r.t.Helper()
	messages, _, err := r.read(wire.OffsetSpec{Type: wire.OffsetFirst})
	if err != nil {
		r.t.Fatalf("read %s: %v", r.stream, err)
	}
	var want []uint64
	for n := uint64(1); n <= r.sent; n++ {
		if !slices.Contains(lost, n) {
			want = append(want, n)
		}
	}
	if !slices.Equal(messages, want) {
		r.t.Fatalf("%s holds %d messages, want %d", r.stream, len(messages), len(want))
	}
}

// dir is the stream's folder.
func (r *rotten) dir() string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(r.node.DataDir, "streams", segstore.Hash(r.stream)+"-*"))
	if err != nil || len(found) != 1 {
		r.t.Fatalf("folders of %s: %v, %v", r.stream, found, err)
	}
	return found[0]
}

// files are the stream's files of a kind, oldest first.
func (r *rotten) files(suffix string) []string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(r.dir(), "*"+suffix))
	if err != nil || len(found) == 0 {
		r.t.Fatalf("no %s files: %v", suffix, err)
	}
	slices.Sort(found)
	return found
}

func (r *rotten) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// stop ends the node in order.
func (r *rotten) stop() {
	r.t.Helper()
	if code := r.node.Stop(); code != 0 {
		r.t.Errorf("the node ended with %d", code)
	}
}

// wantRefused checks that a stream whose end is damaged takes nothing and says
// so, and that another stream is as well as ever.
func (r *rotten) wantRefused(other *rotten) {
	r.t.Helper()
	conn := dialNode(r.t, r.node)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(r.t.Context(), usableWithin)
	defer cancel()
	if _, err := r.declare(ctx, conn); client.Code(err) != wire.CodeStreamNotAvailable {
		r.t.Errorf("declare: %v, want stream not available", err)
	}
	if log := r.node.Log(); !strings.Contains(log, "a log is damaged") || !strings.Contains(log, filepath.Base(r.dir())) {
		r.t.Error("the log does not name the damage")
	}
	if other != nil {
		other.publish(1, 100)
		other.wantAll()
	}
}

// ends returns the positions behind each chunk of a file.
func ends(t *testing.T, r *rotten, file string) (at []int64) {
	t.Helper()
	_, inc, ok := segstore.ParseDirName(filepath.Base(r.dir()))
	if !ok {
		t.Fatal(r.dir())
	}
	r.must(segstore.DumpFile(vfs.OS{}, file, inc, func(d *segstore.DumpedChunk) error {
		if d.Err != nil {
			return d.Err
		}
		at = append(at, d.Position+d.Bytes)
		return nil
	}))
	return at
}

// The unsealed file is cut after a kill -9 (ST-01, ST-05): in the data of the
// last chunk, in its head, at its start, and over three chunks. What is left is
// a prefix; nothing wrong is ever served; it goes on behind, also over another
// start. Where a mark had reached the journal it is damage, and named.
func TestRot_tailCut(t *testing.T) {
	n := harness.Start(t)
	other := rot(t, n, "other")
	cuts := map[string]func(end []int64) int64{ // where the file then ends
		"data":         func(end []int64) int64 { return end[len(end)-1] - 5 },
		"head":         func(end []int64) int64 { return end[len(end)-2] + 60 },
		"header":       func(end []int64) int64 { return end[len(end)-2] + 20 },
		"start":        func(end []int64) int64 { return end[len(end)-2] },
		"three chunks": func(end []int64) int64 { return end[len(end)-4] + 30 },
		"all but one":  func(end []int64) int64 { return end[0] },
	}
	all := map[string]*rotten{}
	for name := range cuts {
		all[name] = rot(t, n, "cut "+name)
	}
	for _, r := range all { // and kill before a second without traffic writes marks
		r.publish(6, 100)
	}
	n.Kill()
	most := map[string]int{} // messages that the cut can cost
	for name, r := range all {
		file := r.files(".seg")[0]
		end := ends(t, r, file)
		at := cuts[name](end)
		r.must(os.Truncate(file, at))
		for _, e := range end {
			if e > at {
				most[name] += 10
			}
		}
	}
	n.Restart()
	lost := map[string][]uint64{}
	for name, r := range all {
		messages, _, err := r.read(wire.OffsetSpec{Type: wire.OffsetFirst})
		if err != nil {
			r.wantRefused(other)
			delete(all, name)
			continue
		}
		if len(messages) > 0 && messages[len(messages)-1] != uint64(len(messages)) {
			t.Fatalf("%s: %d messages, the last is %d", name, len(messages), messages[len(messages)-1])
		}
		for m := uint64(len(messages)) + 1; m <= r.sent; m++ {
			lost[name] = append(lost[name], m)
		}
		if len(lost[name]) > most[name] {
			t.Errorf("%s: %d messages are lost, of %d that were cut", name, len(lost[name]), most[name])
		}
		r.publish(2, 100)
		r.wantAll(lost[name]...)
	}
	other.stop()
	n.Restart()
	for name, r := range all {
		r.wantAll(lost[name]...)
	}
}

// Zeros over and behind the unsealed file's end (ST-07), started twice with more
// messages between: the fault that this is about showed at the second start.
func TestRot_zeros(t *testing.T) {
	n := harness.Start(t)
	var all []*rotten
	for range 2 {
		all = append(all, rot(t, n, fmt.Sprint("zeros ", len(all))))
		all[len(all)-1].publish(4, 100)
	}
	n.Kill()
	for i, r := range all {
		file := r.files(".seg")[0]
		if i == 0 {
			r.must(harness.Extend(file, make([]byte, 4096)))
			continue
		}
		end := ends(t, r, file)
		r.must(harness.Zero(file, end[len(end)-1]-end[len(end)-2])) // the last chunk
		r.must(harness.Extend(file, make([]byte, 4096)))
	}
	n.Restart()
	all[0].wantAll()
	all[0].publish(20, 100)
	messages, _, err := all[1].read(wire.OffsetSpec{Type: wire.OffsetFirst})
	torn := err == nil
	if torn && len(messages) < 20 {
		t.Errorf("%d messages are left of 40", len(messages))
	}
	var lost []uint64
	for m := uint64(len(messages)) + 1; m <= 40; m++ {
		lost = append(lost, m)
	}
	if torn {
		all[1].publish(20, 100)
	} else {
		all[1].wantRefused(all[0])
	}
	for range 2 {
		all[0].stop()
		n.Restart()
		all[0].wantAll()
		if torn {
			all[1].wantAll(lost...)
		}
	}
}

// Indexes are removed, cut, emptied, flipped and swapped (ST-02, ST-04, ST-10):
// everything can be read from anywhere, and is in place again.
func TestRot_indexes(t *testing.T) {
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
	first := func(r *rotten) int64 { return 8 * ends(t, r, r.files(".seg")[1])[0] } // behind the snapshot
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
	before, err := os.ReadFile(r.files(".seg")[0])
	r.must(err)
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
		} else if log := n.Log(); strings.Count(log, "does not start") != said+1 || !strings.Contains(log, "raft.db") {
			t.Errorf("%s: not said why: %v", damage.name, err)
		}
		after, err := os.ReadFile(r.files(".seg")[0])
		if err != nil || !bytes.Equal(before, after) {
			t.Errorf("%s: the stream's data was touched: %v", damage.name, err)
		}
	}
	r.must(os.WriteFile(raft, good, 0o600))
	n.Restart()
	r.wantAll()
}

// A data directory that can't be written: the node ends at once, says why with an
// exit code, and has changed nothing (5.5).
func TestRot_readOnly(t *testing.T) {
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
	if err == nil || !strings.Contains(n.Log(), "does not start") || !strings.Contains(n.Log(), "read-only file system") {
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
