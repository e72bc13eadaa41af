package replication

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

func TestRoll_snapshotsCarryEverything(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.lead(1)
		p := f.declare("p")
		var want []string
		for i := range uint64(40) {
			messages := numbered(1+10*i, 10, 1000)
			f.publish(p, messages...)
			want = append(want, bodies(messages)...)
			f.must(f.replica.StoreOffset(fmt.Sprint("c", i%7), chunk.Offset(i)))
		}
		st := f.replica.Stats()
		if st.Rolls < 3 || st.Log.Segments != int(st.Rolls)+1 {
			t.Fatalf("%d rolls, %d segments", st.Rolls, st.Log.Segments)
		}
		f.wantRecords(want...)
		f.must(f.node.Close(f.context()))
		f.must(f.store.Close())
		f.start(false)
		f.lead(2)
		f.wantRecords(want...)
		f.wantSequence("p", 400)
		for i := range uint64(7) {
			f.wantOffset(fmt.Sprint("c", i), chunk.Offset(i+(39-i)/7*7))
		}
	}, func(f *fixture) { f.stream.Settings.Log.SegmentBytes = 64 << 10 })
}

func TestRetention_keepsTheNewestUnits(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.lead(1)
		p := f.declare("p")
		var all []string
		for i := range uint64(60) {
			messages := numbered(1+10*i, 10, 1000)
			f.publish(p, messages...)
			all = append(all, bodies(messages)...)
		}
		until(t, "retention has given up what it may", func() bool {
			first := f.replica.Stats().Log.First
			return first > 0
		})
		got := f.records()
		if len(got) == len(all) || len(got)*1000 < 100<<10 || !slices.Equal(got, all[len(all)-len(got):]) {
			t.Fatalf("%d of %d records are left, and are they the last? %v", len(got), len(all), slices.Equal(got, all[len(all)-len(got):]))
		}
		f.wantSequence("p", 600)
	}, func(f *fixture) {
		f.stream.Settings.Log.SegmentBytes = 64 << 10
		f.stream.Settings.RetainBytes = 200 << 10
	})
}

func TestSetSettings_retainsAtOnce(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) { f.stream.Settings.Log.SegmentBytes = 64 << 10 })
	f.lead(1)
	p := f.declare("")
	for i := range uint64(60) {
		f.publish(p, numbered(1+10*i, 10, 1000)...)
	}
	if first := f.replica.Stats().Log.First; first != 0 {
		t.Fatalf("retained without a bound: the first offset is %d", first)
	}
	settings := f.stream.Settings
	settings.RetainBytes = 200 << 10
	f.replica.SetSettings(settings)
	until(t, "the new bound is kept", func() bool { return f.replica.Stats().Log.First > 0 })
	if n := len(f.records()); n < 130 || n > 210 {
		t.Fatalf("%d records of 1 KB are left", n)
	}
}

func TestRetention_byAgeNeedsNoAppend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) {
			f.stream.Settings.RetainAge = time.Hour
			f.stream.Settings.Log.MaxAge = time.Hour
		})
		f.lead(1)
		defer f.stop()
		f.publish(f.declare(""), numbered(1, 10, 100)...)
		time.Sleep(50 * time.Minute)
		synctest.Wait()
		if n := len(f.records()); n != 10 {
			t.Fatalf("%d records after 50 minutes", n)
		}
		time.Sleep(20 * time.Minute)
		synctest.Wait()
		if n := len(f.records()); n != 0 {
			t.Fatalf("%d records after 70 minutes", n)
		}
	})
}

func TestRemove_deletesTheFilesAndRefusesTheRest(t *testing.T) {
	m := vfs.NewMem()
	f := newFixture(t, m, "/data")
	f.lead(1)
	p := f.declare("")
	f.publish(p, message{id: 1, body: "x"})
	f.must(f.node.Remove(f.context(), streamUnderTest))
	if _, ok := f.node.Replica(streamUnderTest); ok {
		t.Fatal("the replica is still there")
	}
	sink := newCollector()
	f.replica.Publish(batchOf(p, sink, message{id: 2, body: "y"}))
	if err := sink.wait(t, 1); err == nil {
		t.Fatal("published to a removed stream")
	}
	if _, err := f.replica.Attach(segstore.Spec{Kind: segstore.First}); err == nil {
		t.Fatal("attached to a removed stream")
	}
	if _, _, err := f.replica.QueryOffset("c"); !errors.Is(err, ErrClosed) {
		t.Fatalf("query on a removed stream: %v", err)
	}
	if list := f.store.List(); len(list) != 0 {
		t.Fatalf("the store still lists %v", list)
	}
	f.must(f.node.Remove(f.context(), streamUnderTest))
}
