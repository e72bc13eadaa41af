package harness

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// replica writes a replica as a leader would, with one difference that the
// checker must find, or none.
type replica struct {
	t     *testing.T
	store *segstore.Store
	log   *segstore.Log
	stamp chunk.Timestamp
}

const sameIncarnation chunk.Incarnation = 0xabcdef

// planted is where a replica differs from others.
type planted struct {
	message  string // of message 7
	sequence uint64 // the last one
	offset   chunk.Offset
	chunks   int
}

func asOthers() planted {
	return planted{message: "message", sequence: 11, offset: 100, chunks: 12}
}

// writeReplica returns the data directory.
func writeReplica(t *testing.T, p planted) string {
	t.Helper()
	dir := t.TempDir()
	r := &replica{t: t, stamp: 1_700_000_000_000}
	var err error
	if r.store, err = segstore.NewStore(segstore.Options{Dir: dir}); err != nil {
		t.Fatal(err)
	}
	if err := r.store.Create("/orders", sameIncarnation); err != nil {
		t.Fatal(err)
	}
	if r.log, _, err = r.store.Open(sameIncarnation, segstore.Config{}); err != nil {
		t.Fatal(err)
	}
	r.control(chunk.Delta, chunk.FlagEpochStart|chunk.FlagSegmentStart|chunk.FlagUnitStart, tracking.EncodeBarrier(nil, nil))
	for i := range p.chunks {
		if i > 0 && i%4 == 0 {
			parts := r.log.Tracking().EncodeSnapshot(tracking.SnapshotOptions{Now: r.stamp}, nil)
			r.control(chunk.Snapshot, chunk.FlagSegmentStart|chunk.FlagUnitStart|chunk.FlagSnapshotFirst|chunk.FlagSnapshotLast, parts[0])
		}
		message, sequence, offset := "message", uint64(i), chunk.Offset(i)
		if i == 7 {
			message = p.message
		}
		if i == p.chunks-1 {
			sequence, offset = p.sequence, p.offset
		}
		r.user(message, sequence, offset, i%3)
	}
	synced := make(chan error, 1)
	r.log.Sync(func(_ chunk.Tail, err error) { synced <- err })
	if err := <-synced; err != nil {
		t.Fatal(err)
	}
	r.log.SetCommit(r.log.Tail().LSN)
	if err := r.store.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func (r *replica) meta(flags chunk.Flags, trailer []byte) *chunk.Meta {
	r.stamp += 10
	return &chunk.Meta{
		Incarnation: sameIncarnation, Flags: flags, LSN: r.log.Tail().LSN + 1, DigestBefore: r.log.Digest(),
		Timestamp: r.stamp, Epoch: 1, BaseOffset: r.log.Next(), Trailer: trailer,
	}
}

func (r *replica) append(c *segstore.Chunk) {
	r.t.Helper()
	if err := r.log.Append(c); err != nil {
		r.t.Fatal(err)
	}
	c.Release()
}

func (r *replica) control(kind chunk.Type, flags chunk.Flags, payload []byte) {
	r.t.Helper()
	c := segstore.NewChunk(0)
	c.Head, c.Header = chunk.BuildControl(kind, r.meta(flags, payload), c.Head)
	r.append(c)
}

func (r *replica) user(message string, sequence uint64, stored chunk.Offset, reader int) {
	r.t.Helper()
	trailer := r.log.Tracking().EncodeTrailer(nil, false, []tracking.SequenceUpdate{{Ref: "publisher", Sequence: sequence}},
		[]tracking.Update{{Ref: fmt.Sprint("reader ", reader), Offset: stored, Epoch: 1, Version: uint64(r.log.Tail().LSN), Time: r.stamp}})
	entries := chunk.AppendSimple(nil, []byte(message))
	c := segstore.NewChunk(len(entries))
	var b chunk.Builder
	b.Reset(c.Head, c.Data)
	b.AppendRun(entries, 1, 1)
	c.Head, c.Data, c.Header = b.Finish(r.meta(0, trailer))
	r.append(c)
}

// disk reads the one replica in a data directory.
func disk(t *testing.T, dir string) *Disk {
	t.Helper()
	all, err := ReadDisk(t, dir)
	if err != nil {
		t.Fatal(err)
	}
	d := all[sameIncarnation.String()]
	if d == nil {
		t.Fatalf("found %v", all)
	}
	return d
}

// TestSame_findsWhatIsPlanted: the checker that ends every test of a cluster
// finds each difference between replicas, and none where there is none.
func TestSame_findsWhatIsPlanted(t *testing.T) {
	rows := []struct {
		name   string
		change func(*planted)
		damage func(segments []string) error
		want   string // "": nothing
	}{
		{name: "nothing"},
		{name: "another message", change: func(p *planted) { p.message = "massage" }, want: "differ in a chunk"},
		{name: "the same, stored twice", change: func(p *planted) { p.chunks++ }, want: "differ in their ends"},
		{name: "a chunk less", change: func(p *planted) { p.chunks-- }, want: "differ in their ends"},
		{name: "a sequence", change: func(p *planted) { p.sequence = 12 }, want: "publishers' sequences"},
		{name: "a stored offset", change: func(p *planted) { p.offset = 99 }, want: "stored offsets"},
		{name: "a bit of a sealed segment", damage: func(s []string) error { return Flip(s[1], 8*400) }, want: "damaged"},
		{name: "a segment lost", damage: func(s []string) error { return os.Remove(s[1]) }, want: "damaged"},
		{name: "the end cut", damage: func(s []string) error { return Cut(s[len(s)-1], 10) }, want: "differ"},
		{name: "the newest segment lost", damage: func(s []string) error { return os.Remove(s[len(s)-1]) }, want: "differ"},
	}
	good := disk(t, writeReplica(t, asOthers()))
	if good.Problem != nil || good.Next != 12 || len(good.Chunks) != 12 || len(good.Offsets) != 3 {
		t.Fatalf("read %+v", good)
	}
	for _, r := range rows {
		p := asOthers()
		if r.change != nil {
			r.change(&p)
		}
		dir := writeReplica(t, p)
		if r.damage != nil {
			segments, err := filepath.Glob(filepath.Join(dir, "streams", "*", "*.seg"))
			if err == nil && len(segments) > 2 {
				err = r.damage(segments)
			}
			if err != nil || len(segments) < 3 {
				t.Fatalf("%s: %v, %v", r.name, segments, err)
			}
		}
		err := judgeReplicas([]*Disk{good, disk(t, dir)}, nil)
		if (err == nil) != (r.want == "") || err != nil && !strings.Contains(err.Error(), r.want) {
			t.Errorf("%s: %v, want %q", r.name, err, r.want)
		}
	}
}

// TestSame_asReadersSee: what a node's readers get is held against the disks.
func TestSame_asReadersSee(t *testing.T) {
	good := disk(t, writeReplica(t, asOthers()))
	seen := func(change func([]Line) []Line) Copy {
		c := newCopy("seen", 0)
		for _, l := range change(append([]Line(nil), good.Chunks...)) {
			c.add(&chunk.Header{BaseOffset: l.Base, Records: l.Records, Timestamp: l.Time, Epoch: l.Epoch, DataCRC: l.CRC})
		}
		return c
	}
	for name, r := range map[string]struct {
		change func([]Line) []Line
		want   string
	}{
		"all":            {func(l []Line) []Line { return l }, ""},
		"offsets jump":   {func(l []Line) []Line { return append(l[:3:3], l[4:]...) }, "K2"},
		"an end too few": {func(l []Line) []Line { return l[:11] }, "differ in their ends"},
		"another time":   {func(l []Line) []Line { l[5].Time++; return l }, "differ in a chunk"},
		"another CRC":    {func(l []Line) []Line { l[5].CRC++; return l }, "differ in a chunk"},
		"another epoch":  {func(l []Line) []Line { l[5].Epoch++; return l }, "differ in a chunk"},
		"other borders":  {func(l []Line) []Line { l[5].Records = 2; return append(l[:6:6], l[7:]...) }, "differ"},
	} {
		err := judgeReplicas([]*Disk{good}, []Copy{seen(r.change)})
		if (err == nil) != (r.want == "") || err != nil && !strings.Contains(err.Error(), r.want) {
			t.Errorf("%s: %v, want %q", name, err, r.want)
		}
	}
	late := seen(func(l []Line) []Line { return l })
	late.First, late.Chunks = 4, late.Chunks[4:] // retention went on
	if err := judgeReplicas([]*Disk{good}, []Copy{late}); err != nil {
		t.Errorf("a later log start: %v", err)
	}
}
