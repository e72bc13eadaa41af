package replication

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

func TestOffsets_areAnsweredAtOnceAndSurviveAGracefulStop(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		if err := f.replica.StoreOffset("c", 1); !errors.Is(err, ErrNotLeader) {
			t.Fatalf("stored without a leader: %v", err)
		}
		f.lead(1)
		if _, ok, err := f.replica.QueryOffset("c"); ok || err != nil {
			t.Fatalf("offset of an unknown reference: %v, %v", ok, err)
		}
		for offset := range chunk.Offset(100) {
			f.must(f.replica.StoreOffset("c", offset))
			f.must(f.replica.StoreOffset("d", 1000+offset))
			f.wantOffset("c", offset)
		}
		f.must(f.replica.StoreOffset("d", 5)) // back
		f.wantOffset("d", 5)
		f.must(f.node.Close(f.context()))
		f.must(f.store.Close())
		f.start(false)
		f.wantOffset("c", 99) // also without a leader
		f.lead(2)
		f.wantOffset("c", 99)
		f.wantOffset("d", 5)
		if err := f.replica.StoreOffset(strings.Repeat("x", 256), 1); !errors.Is(err, ErrReferenceLength) {
			t.Fatalf("a reference of 256 bytes: %v", err)
		}
	})
}

// deltas counts the control chunks that were written beside barriers.
func deltas(f *fixture, reigns uint64) uint64 { return f.replica.Stats().Controls - reigns }

func TestOffsets_arePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vfs.NewMem(), "/data")
		f.lead(1)
		defer f.stop()
		synctest.Wait()
		for offset := range chunk.Offset(3000) { // 30 s of a store each 10 ms
			f.must(f.replica.StoreOffset("c", offset))
			time.Sleep(10 * time.Millisecond)
		}
		n := deltas(f, 1)
		// The floor of 1 KiB/s covers a delta of one reference each 250 ms.
		if n < 30_000/5000 || n > 30_000/250+1 {
			t.Fatalf("%d deltas in 30 s", n)
		}
		f.must(f.replica.StoreOffset("c", 10)) // back: at once
		synctest.Wait()
		if got := deltas(f, 1); got != n+1 {
			t.Fatalf("%d deltas after a store that moves back, want %d", got, n+1)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		n = deltas(f, 1)
		for range 100 { // the same value again
			f.must(f.replica.StoreOffset("c", 10))
			time.Sleep(time.Second)
		}
		synctest.Wait()
		if got := deltas(f, 1); got != n {
			t.Fatalf("an equal value was written: %d deltas, then %d", n, got)
		}
	})
}

func TestOffsets_rideWithUserChunks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vfs.NewMem(), "/data")
		f.lead(1)
		defer f.stop()
		p := f.declare("")
		for i := range uint64(1000) {
			f.publish(p, numbered(i, 10, 500)...)
			f.must(f.replica.StoreOffset("c", chunk.Offset(i)))
			time.Sleep(10 * time.Millisecond)
		}
		if n := deltas(f, 1); n != 0 {
			t.Fatalf("%d deltas beside user chunks that could have carried them", n)
		}
		if st := f.replica.Stats(); st.Log.TrailerBytes == 0 {
			t.Fatal("no trailer carries an offset")
		}
	})
}

// What a QueryOffset has answered goes into the report of an election, though no
// turn has taken it over yet.
func TestOffsets_answeredBeforeAFence(t *testing.T) {
	for range 20 {
		f := newFixture(t, vfs.NewMem(), "/data")
		f.lead(1)
		f.must(f.replica.StoreOffset("c", 1))
		until(t, "it is taken over", func() bool {
			s := &f.replica.stores
			s.mu.Lock()
			defer s.mu.Unlock()
			return len(s.changed) == 0
		})
		f.must(f.replica.StoreOffset("c", 2))
		f.wantOffset("c", 2)
		f.assign(2)
		f.wantOffset("c", 2)
		f.stop()
	}
}
