package replication

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

func TestStores_wakeTurnsNoOftenerThanNeeded(t *testing.T) {
	var s stores
	now := time.Unix(1000, 0)
	put := func(reference string, offset uint64) string {
		t.Helper()
		_, due, ask, err := s.put(Origin{}, reference, chunkOffset(offset))
		switch {
		case err != nil:
			t.Fatal(err)
		case !ask:
			return "no"
		case due.After(now):
			return "later"
		}
		return "now"
	}
	if _, _, _, err := s.put(Origin{}, "a", 1); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("on a follower: %v", err)
	}
	s.lead(1)
	steps := []struct {
		reference string
		offset    uint64
		after     time.Duration
		take      bool // a turn comes before the store
		want      string
	}{
		{"a", 5, 0, false, "now"}, // unknown: it may go back
		{"a", 6, 0, false, "no"},  // a turn comes anyway
		{"a", 7, 0, true, "later"},
		{"a", 8, time.Millisecond, false, "no"},
		{"a", 3, 0, false, "now"}, // back
		{"a", 9, storesEvery + 1, true, "now"},
		{"b", 1, 0, true, "now"},
	}
	for i, c := range steps {
		if c.take {
			s.take(nil, now, 100)
		}
		now = now.Add(c.after)
		if c.take && c.after > 0 {
			// the turn was before the pause
			s.taken = now.Add(-c.after)
		}
		if got := put(c.reference, c.offset); got != c.want {
			t.Fatalf("step %d: turn %s, want %s", i, got, c.want)
		}
	}
	if offset, ok := s.lookup("a"); !ok || offset != 9 {
		t.Fatalf("a is %d, %v", offset, ok)
	}
}

func TestStores_collapseToTheLastValue(t *testing.T) {
	var s stores
	s.lead(1)
	now := time.Unix(1000, 0)
	for i := range 100 {
		if _, _, _, err := s.put(Origin{}, []string{"a", "b"}[i%2], chunkOffset(uint64(i))); err != nil {
			t.Fatal(err)
		}
	}
	got := s.take(nil, now, 100)
	if len(got) != 2 || string(got[0].reference) != "a" || got[0].offset != 98 ||
		string(got[1].reference) != "b" || got[1].offset != 99 {
		t.Fatalf("took %+v", got)
	}
	if got := s.take(nil, now, 100); len(got) != 0 {
		t.Fatalf("took %v again", got)
	}
	if _, _, _, err := s.put(Origin{}, "b", 100); err != nil {
		t.Fatal(err)
	}
	s.forget()
	if _, ok := s.lookup("a"); ok {
		t.Fatal("a value that was taken over is kept")
	}
	if _, ok := s.lookup("b"); !ok {
		t.Fatal("a value that was not taken over is lost")
	}
}

func TestStores_keepNoStringOfTheCaller(t *testing.T) {
	var s stores
	s.lead(1)
	frame := []byte("abc")
	if _, _, _, err := s.put(Origin{}, unsafeString(frame), 1); err != nil {
		t.Fatal(err)
	}
	frame[0] = 'x'
	if _, ok := s.lookup("abc"); !ok {
		t.Fatal("the reference changed with the caller's buffer")
	}
}

func TestStores_allocateNothingForKnownReferences(t *testing.T) {
	var s stores
	s.lead(1)
	offset := uint64(0)
	if allocs := testing.AllocsPerRun(1000, func() {
		offset++
		_, _, _, _ = s.put(Origin{}, "a", chunkOffset(offset))
	}); allocs != 0 {
		t.Fatalf("%v allocations a store", allocs)
	}
}

// TestStores_clockSetBack: a store waits no longer for that than the window.
func TestStores_clockSetBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := newJumpingClock()
		f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) { f.config.Clock = clock })
		defer f.stop()
		f.lead(1)
		f.publish(f.declare(""), numbered(1, 10, 100)...)
		clock.set(-3 * time.Hour)
		if err := f.replica.StoreOffset("reader", 7); err != nil {
			t.Fatal(err)
		}
		time.Sleep(50 * time.Millisecond) // until a turn has taken it over
		window := f.replica.Stats().WindowMilliseconds
		time.Sleep(time.Duration(window) * time.Millisecond)
		synctest.Wait()
		if n := f.replica.Stats().PendingOffsets; n != 0 {
			t.Errorf("after a window of %d ms it is not written", window)
		}
	})
}

// TestStores_countAtOnce: a stored offset counts as pending from the store on,
// not only once a turn has taken it over.
func TestStores_countAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vfs.NewMem(), "/data")
		defer f.stop()
		f.lead(1)
		f.must(f.replica.StoreOffset("reader", 1))
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := f.replica.Stats().PendingOffsets; n != 0 {
			t.Fatalf("%d wait after a minute", n)
		}
		for i := range chunkOffset(5) {
			f.must(f.replica.StoreOffset("reader", 2+i))
			if n := f.replica.Stats().PendingOffsets; n == 0 {
				t.Errorf("offset %d was stored and waits, none is counted", 2+i)
			}
			time.Sleep(2 * storesEvery) // a turn takes it over
			synctest.Wait()
			if n := f.replica.Stats().PendingOffsets; n != min(int(i), 1) { // the first is written at once
				t.Errorf("%d are counted behind the turn, after %d", n, 2+i)
			}
		}
	})
}

// A store that was on its way to a leader counts in no later reign, not even of
// the same replica: its client has stored elsewhere since.
func TestStores_ofAnotherReign(t *testing.T) {
	var s stores
	s.lead(5)
	if _, _, _, err := s.put(Origin{Epoch: 5}, "r", 50); err != nil {
		t.Fatal(err)
	}
	for _, epoch := range []chunk.Epoch{3, 6} {
		if _, _, _, err := s.put(Origin{Epoch: epoch}, "r", 500); !errors.Is(err, ErrNotLeader) {
			t.Errorf("meant for epoch %d, in epoch 5: %v", epoch, err)
		}
	}
	if offset, _ := s.lookup("r"); offset != 50 {
		t.Errorf("the offset is %d", offset)
	}
	s.lead(0)
	if _, _, _, err := s.put(Origin{}, "r", 500); !errors.Is(err, ErrNotLeader) {
		t.Errorf("without a reign: %v", err)
	}
}

// A store that is sent once more is taken only if nobody stored by way of another
// node since its client did, as far as its own node had heard then.
func TestStores_sentOnceMore(t *testing.T) {
	put := func(s *stores, node string, since, offset uint64) uint64 {
		t.Helper()
		place, _, _, err := s.put(Origin{Node: node, Epoch: 1, Since: since}, "r", chunkOffset(offset))
		if err != nil {
			t.Fatal(err)
		}
		return place
	}
	for name, c := range map[string]struct {
		between func(*stores)
		taken   bool
	}{
		"nothing since":                   {func(*stores) {}, true},
		"its own node's":                  {func(s *stores) { put(s, "a", 0, 6) }, true},
		"another reference":               {func(s *stores) { _, _, _, _ = s.put(Origin{Node: "b"}, "other", 1) }, true},
		"another node's":                  {func(s *stores) { put(s, "b", 0, 6) }, false},
		"the leader's":                    {func(s *stores) { put(s, "", 0, 6) }, false},
		"another's and then its own":      {func(s *stores) { put(s, "b", 0, 6); put(s, "a", 0, 7) }, false},
		"its own between others' and now": {func(s *stores) { put(s, "a", 0, 6); put(s, "b", 0, 6); put(s, "c", 0, 6) }, false},
		"an operator's":                   {func(s *stores) { s.take(nil, time.Time{}, 9); s.drop("r") }, false},
		"what a roll forgot":              {func(s *stores) { put(s, "b", 0, 6); s.take(nil, time.Time{}, 9); s.forget() }, false},
		"what was too much":               {func(s *stores) { put(s, "b", 0, 6); s.take(nil, time.Time{}, 0) }, false},
	} {
		t.Run(name, func(t *testing.T) {
			var s stores
			s.lead(1)
			put(&s, "b", 0, 4)
			heard := put(&s, "a", 0, 5)
			c.between(&s)
			_, _, _, err := s.put(Origin{Node: "a", Epoch: 1, Since: heard + 1}, "r", 99)
			if taken := err == nil; taken != c.taken || err != nil && !errors.Is(err, ErrOvertaken) {
				t.Errorf("taken: %v, %v", taken, err)
			}
			if offset, ok := s.lookup("r"); ok && (offset == 99) != c.taken {
				t.Errorf("stored is %d", offset)
			}
		})
	}
}
