package replication

import (
	"context"
	"errors"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// peerSource is another node's replica, reached by a call.
type peerSource struct{ replica *Replica }

func (p peerSource) ReadRange(_ context.Context, _ chunk.Incarnation, from, last chunk.LSN, max int) ([]byte, chunk.LSN, error) {
	return p.replica.ReadRange(from, last, max)
}

// badSource is a peer that has it damaged too.
type badSource struct{}

func (badSource) ReadRange(context.Context, chunk.Incarnation, chunk.LSN, chunk.LSN, int) ([]byte, chunk.LSN, error) {
	return nil, 0, segstore.ErrDamaged
}

// sealedFile returns the path of one of the stream's segment files, the oldest
// being 0.
func (f *fixture) sealedFile(i int) string {
	f.t.Helper()
	log := f.replica.log.Load()
	info := log.Segments()[i]
	if !info.Sealed {
		f.t.Fatalf("segment %d is not sealed", i)
	}
	return f.segmentFile(info)
}

func (f *fixture) segmentFile(info segstore.SegmentInfo) string {
	dirs := f.store.List()
	dir := dirs[0].Hash + "-" + dirs[0].Incarnation.String()
	return path.Join(f.store.Dir(), "streams", dir, info.Name().String()+".seg")
}

// A follower's segment rots while it runs: a reader is told the range, the
// stream goes on everywhere, and what the leader has mends it.
func TestRepair_fromTheLeader(t *testing.T) {
	c := newCluster(t, func(f *fixture) { f.stream.Settings.Log.SegmentBytes = 64 << 10 })
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	for i := range uint64(30) {
		l.publish(p, numbered(1+10*i, 10, 1000)...)
	}
	n2 := c.nodes["n2"]
	c.agree(l, "n1", "n2", "n3")
	want := l.records()
	file := n2.sealedFile(1)
	n2.must(n2.fs.(*vfs.Mem).Edit(file, func(b []byte) []byte { b[len(b)/2] ^= 8; return b }))

	d, err := n2.replica.Check(path.Base(file))
	if err != nil || d == nil || !strings.HasSuffix(d.File, path.Base(file)) || d.Next <= d.Offset {
		t.Fatalf("check: %v, %v", d, err)
	}
	if damage := n2.replica.Damage(); len(damage) != 1 || n2.replica.Stats().Log.Damaged != 1 {
		t.Fatalf("damage %v", damage)
	}
	l.publish(p, numbered(301, 10, 1000)...)
	want = append(want, l.records()[len(want):]...)

	repaired, err := n2.replica.Repair(context.Background(), peerSource{l.replica})
	if err != nil || !slices.Equal(repaired, []string{path.Base(file)}) {
		t.Fatalf("repaired %v, %v", repaired, err)
	}
	if damage := n2.replica.Damage(); len(damage) != 0 {
		t.Errorf("still damaged: %v", damage)
	}
	c.agree(l, "n1", "n2", "n3")
	if got := n2.records(); !slices.Equal(got, want) {
		t.Errorf("%d records, want %d", len(got), len(want))
	}
	if again, err := n2.replica.Repair(context.Background(), nil); len(again) != 0 || err != nil {
		t.Errorf("a sound log: %v, %v", again, err)
	}
}

// A peer that does not have it either leaves all as it is; a stream that is gone
// is no harm.
func TestRepair_failures(t *testing.T) {
	c := newCluster(t, func(f *fixture) { f.stream.Settings.Log.SegmentBytes = 64 << 10 })
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	for i := range uint64(20) {
		l.publish(p, numbered(1+10*i, 10, 1000)...)
	}
	c.agree(l, "n1", "n2", "n3")
	n2 := c.nodes["n2"]
	n2.must(n2.fs.(*vfs.Mem).Remove(n2.sealedFile(0)))
	if d, err := n2.replica.Check(path.Base(n2.sealedFile(0))); d == nil || err != nil {
		t.Fatalf("check: %v, %v", d, err)
	}
	if files, err := n2.replica.Repair(context.Background(), badSource{}); len(files) != 0 || !errors.Is(err, segstore.ErrDamaged) {
		t.Errorf("from a damaged peer: %v, %v", files, err)
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	if files, err := n2.replica.Repair(ended, peerSource{l.replica}); len(files) != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that has ended: %v, %v", files, err)
	}
	if n := len(n2.replica.Damage()); n != 1 {
		t.Errorf("%d places are damaged", n)
	}
	if _, err := n2.replica.Check("none"); !errors.Is(err, segstore.ErrMissing) {
		t.Errorf("check of no file: %v", err)
	}
	n2.stop()
	if _, err := n2.replica.Repair(context.Background(), peerSource{l.replica}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("of a closed replica: %v", err)
	}
}
