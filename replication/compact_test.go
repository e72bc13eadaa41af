package replication

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// busyTracking makes tracking pile up and be compacted within moments.
func busyTracking(f *fixture) {
	f.stream.Settings = Settings{
		Log: segstore.Config{SegmentBytes: segstore.SegmentBytesMin, ControlBytes: 4 << 10},
		Pacing: tracking.Pacing{
			IntervalMin: 1, IntervalMax: 2, IntervalLongest: 2, FloorBytesPerSecond: 1 << 28, TokensMax: 1 << 30,
		},
	}
}

// A node compacts what its replicas seal, in their turns and beside them, while
// they go on; a restart finds the same.
func TestCompaction_inTurns(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "/data", busyTracking)
	f.lead(1)
	p := f.declare("p")
	var messages []message
	for i := range 50 {
		messages = append(messages, message{id: uint64(i + 1), body: fmt.Sprintf("message %d", i)})
	}
	f.publish(p, messages...)
	stores := 0
	store := func() {
		stores++
		for i := range 100 {
			f.must(f.replica.StoreOffset(fmt.Sprintf("consumer-%d", i), chunk.Offset(stores)))
		}
	}
	until(t, "segments are dropped and merged", func() bool {
		store()
		c := f.replica.Stats().Log.Compaction
		return c.Drops >= 5 && c.Merges >= 1
	})
	st := f.replica.Stats().Log
	if st.Compaction.Failures != 0 || st.Records != 50 || st.Compaction.BytesDropped < 20<<10 {
		t.Errorf("log %+v", st)
	}
	f.stop()
	g := f.on(f.fs)
	g.lead(2)
	for i := range 100 {
		if o, ok, err := g.replica.QueryOffset(fmt.Sprintf("consumer-%d", i)); err != nil || !ok || o != chunk.Offset(stores) {
			t.Fatalf("consumer %d is at %d, %v, %v; stored %d", i, o, ok, err, stores)
		}
	}
	if got := g.replica.Stats().Log; got.Records != 50 {
		t.Errorf("log after a restart %+v", got)
	}
}

// Closing gives up what is under way and leaves no file of it.
func TestCompaction_closes(t *testing.T) {
	for range 4 {
		f := newFixture(t, vfs.NewMem(), "/data", busyTracking, func(f *fixture) { f.config.CompactBytesPerSecond = 20_000 })
		f.lead(1)
		f.publish(f.declare("p"), message{id: 1, body: "m"})
		stores := 0
		until(t, "three segments", func() bool {
			stores++
			for i := range 100 {
				f.must(f.replica.StoreOffset(fmt.Sprintf("consumer-%d", i), chunk.Offset(stores)))
			}
			return f.replica.Stats().Log.Segments >= 4
		})
		f.must(f.node.Close(f.context()))
		f.must(f.store.Close())
		store, err := segstore.NewStore(segstore.Options{FS: f.fs, Dir: f.dir})
		f.must(err)
		_, found, err := store.Open(streamUnderTest, f.stream.Settings.Log)
		f.must(err)
		if len(found.Damage) > 0 || len(found.Quarantined) > 0 {
			t.Fatalf("found %+v", found)
		}
		f.must(store.Close())
		f.node = nil
	}
}
