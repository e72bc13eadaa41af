package replication

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// change carries changes out and waits for their commit.
func (f *fixture) change(changes ...TrackingChange) ([]string, error) {
	f.t.Helper()
	type answer struct {
		changed []string
		err     error
	}
	answered := make(chan answer, 1)
	f.replica.BeginChangeTracking(changes, func(changed []string, err error) { answered <- answer{changed, err} })
	select {
	case a := <-answered:
		return a.changed, a.err
	case <-time.After(20 * time.Second):
		f.t.Fatal("no answer to a change")
	}
	panic("unreachable")
}

func (f *fixture) wantChanged(want []string, changes ...TrackingChange) {
	f.t.Helper()
	got, err := f.change(changes...)
	f.must(err)
	if fmt.Sprint(got) != fmt.Sprint(want) {
		f.t.Fatalf("changed %v, want %v", got, want)
	}
}

func (f *fixture) tracked() *Tracked {
	f.t.Helper()
	answered := make(chan *Tracked, 1)
	f.replica.BeginTracked(func(list *Tracked, err error) {
		if err != nil {
			f.t.Error(err)
		}
		answered <- list
	})
	return <-answered
}

func (f *fixture) wantNoOffset(reference string) {
	f.t.Helper()
	if got, ok, err := f.replica.QueryOffset(reference); ok || err != nil {
		f.t.Fatalf("offset of %q is %d, %v; want none", reference, got, err)
	}
}

func forget(reference string) TrackingChange {
	return TrackingChange{Reference: reference, Forget: true}
}

func set(reference string, offset chunk.Offset) TrackingChange {
	return TrackingChange{Reference: reference, Offset: offset}
}

// What is answered has a majority on disk: it is there after the power fails at
// that very moment.
func TestChangeTracking_isDurableWhenAnswered(t *testing.T) {
	m := vfs.NewMem()
	f := newFixture(t, m, "/data")
	f.lead(1)
	f.publish(f.declare("p"), numbered(1, 10, 10)...)
	for _, ref := range []string{"gone", "back", "kept"} {
		f.must(f.replica.StoreOffset(ref, 8))
	}
	f.wantChanged([]string{"gone", "back", "new"}, forget("gone"), set("back", 2), set("new", 5), forget("never"))
	f.wantNoOffset("gone")
	f.wantOffset("back", 2)
	f.must(f.replica.StoreOffset("kept", 9)) // not waited for
	g := f.on(m.Crash(vfs.Policy{}, vfs.Seeded(1)))
	g.lead(2)
	g.wantNoOffset("gone")
	g.wantOffset("back", 2)
	g.wantOffset("new", 5)
	g.wantOffset("kept", 8)
	g.wantSequence("p", 10)
	if _, err := f.change(set("", 1)); !errors.Is(err, ErrReferenceLength) {
		t.Errorf("no reference: %v", err)
	}
}

// A deletion outlives rolls, the epoch's end, and a start of the node; a store
// after it counts.
func TestChangeTracking_forgottenStaysForgotten(t *testing.T) {
	m := vfs.NewMem()
	f := newFixture(t, m, "/data", func(f *fixture) { f.stream.Settings.Log.SegmentBytes = 64 << 10 })
	f.lead(1)
	p := f.declare("")
	f.must(f.replica.StoreOffset("a", 3))
	f.must(f.replica.StoreOffset("b", 4))
	f.wantChanged([]string{"a", "b"}, forget("a"), forget("b"))
	f.must(f.replica.StoreOffset("b", 1))
	for range 3 { // rolls, each with a snapshot
		f.publish(p, numbered(1, 70, 1000)...)
	}
	if st := f.replica.Stats(); st.Rolls < 2 {
		t.Fatalf("%d rolls", st.Rolls)
	}
	for epoch := range chunk.Epoch(3) {
		f.wantNoOffset("a")
		f.wantOffset("b", 1)
		if list := f.tracked(); len(list.Offsets) != 1 || list.Offsets[0].Ref != "b" {
			t.Fatalf("epoch %d lists %+v", epoch, list.Offsets)
		}
		f.lead(epoch + 2)
	}
	f.must(f.node.Close(f.context()))
	g := f.on(m.Crash(vfs.Policy{}, vfs.Seeded(1)))
	g.lead(9)
	g.wantNoOffset("a")
	g.wantOffset("b", 1)
}

// What followers hold in memory of a reference does not bring it back after its
// deletion, whoever leads next (F5).
func TestChangeTracking_heldUpdatesBringNothingBack(t *testing.T) {
	c := newCluster(t)
	l := c.lead(1, "n1", "n2", "n3")
	l.publish(l.declare(""), message{id: 1, body: "m"})
	l.must(l.replica.StoreOffset("c", 2))
	until(t, "it is written", func() bool { return l.replica.Stats().PendingOffsets == 0 })
	l.must(l.replica.StoreOffset("c", 3)) // within the interval: in memory alone
	for _, id := range []protocol.NodeID{"n2", "n3"} {
		until(t, "a follower has heard", func() bool {
			o, ok, err := c.nodes[id].replica.QueryOffset("c")
			return err == nil && ok && o == 3
		})
	}
	c.link("n3", false) // keeps what it holds
	l.wantChanged([]string{"c"}, forget("c"))
	c.link("n1", false)
	c.link("n3", true)
	n2 := c.lead(2, "n2", "n3")
	n2.wantNoOffset("c")
	c.link("n1", true)
	c.agree(n2, "n1", "n3")
	for _, id := range []protocol.NodeID{"n1", "n3"} {
		c.nodes[id].wantNoOffset("c")
	}
}

// A deletion that no majority has is not answered, and the next leader has the
// value from before.
func TestChangeTracking_needsAMajority(t *testing.T) {
	c := newCluster(t)
	l := c.lead(1, "n1", "n2", "n3")
	l.must(l.replica.StoreOffset("c", 2))
	l.wantChanged([]string{"d"}, set("d", 4))
	c.agree(l, "n2", "n3")
	c.link("n1", false)
	answered := make(chan error, 1)
	l.replica.BeginChangeTracking([]TrackingChange{forget("c")}, func(_ []string, err error) { answered <- err })
	until(t, "the leader itself has forgotten", func() bool { return len(l.tracked().Offsets) == 1 })
	select {
	case err := <-answered:
		t.Fatalf("answered alone: %v", err)
	default:
	}
	n2 := c.lead(2, "n2", "n3")
	n2.wantOffset("c", 2)
	c.link("n1", true)
	if err := <-answered; !errors.Is(err, ErrNotLeader) {
		t.Fatalf("the deposed leader answers %v", err)
	}
	c.agree(n2, "n1", "n3")
	c.nodes["n1"].wantOffset("c", 2)
	if _, err := l.change(forget("c")); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("a follower answers %v", err)
	}
}

func TestChangeTracking_conditions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vfs.NewMem(), "/data")
		f.lead(1)
		f.must(f.replica.StoreOffset("old", 1))
		f.must(f.replica.StoreOffset("refreshed", 1))
		time.Sleep(time.Hour)
		f.must(f.replica.StoreOffset("young", 1))
		f.must(f.replica.StoreOffset("refreshed", 1)) // the same value: only its time moves
		cut := chunk.Timestamp(time.Now().Add(-time.Minute).UnixMilli())
		var expire []TrackingChange
		for _, ref := range []string{"old", "refreshed", "young", "none"} {
			expire = append(expire, TrackingChange{Reference: ref, Forget: true, Before: cut})
		}
		f.wantChanged([]string{"old"}, expire...)
		f.wantOffset("refreshed", 1)
		f.wantChanged([]string{"fresh"}, TrackingChange{Reference: "young", Offset: 9, New: true},
			TrackingChange{Reference: "fresh", Offset: 9, New: true})
		f.wantOffset("young", 1)
		f.wantOffset("fresh", 9)
		f.wantChanged(nil, forget("old")) // nothing to be written is answered too
	})
}

// More changes at once than may be pending lose nothing that clients stored.
func TestChangeTracking_inBulk(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) { f.stream.Settings.Log.Caps.Offsets = 3000 })
	f.lead(1)
	var store, drop []TrackingChange
	for i := range 2900 {
		store = append(store, set(fmt.Sprint("ref", i), chunk.Offset(i)))
		drop = append(drop, forget(fmt.Sprint("ref", i)))
	}
	_, err := f.change(store...)
	f.must(err)
	for i := range 100 {
		f.must(f.replica.StoreOffset(fmt.Sprint("client", i), 7))
	}
	changed, err := f.change(drop...)
	f.must(err)
	if len(changed) != len(drop) {
		t.Fatalf("%d of %d forgotten", len(changed), len(drop))
	}
	if list := f.tracked(); len(list.Offsets) != 100 {
		t.Fatalf("%d references are left, want 100", len(list.Offsets))
	}
}

// Nor do changes that come on top of as many stores as may be pending.
func TestChangeTracking_besideFullPending(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) { f.stream.Settings.Log.Caps.Offsets = 50 })
	f.lead(1)
	var drop []TrackingChange
	for i := range 45 {
		ref := fmt.Sprint("old", i)
		f.must(f.replica.StoreOffset(ref, 1))
		drop = append(drop, forget(ref))
	}
	_, err := f.change() // writes them
	f.must(err)
	for i := range 45 { // 40 of the old ones go for these
		f.must(f.replica.StoreOffset(fmt.Sprint("new", i), 2))
	}
	changed, err := f.change(drop...)
	f.must(err)
	if len(changed) != 5 {
		t.Fatalf("%d of 5 forgotten", len(changed))
	}
	if list := f.tracked(); len(list.Offsets) != 45 {
		t.Fatalf("%d references are left, want 45", len(list.Offsets))
	}
}

// A publisher can be forgotten when it is gone; its ids then count anew, also
// after a start.
func TestChangeTracking_forgetsPublishers(t *testing.T) {
	m := vfs.NewMem()
	f := newFixture(t, m, "/data")
	f.lead(1)
	p, q := f.declare("p"), f.declare("a-reference-long-enough-for-a-short-id")
	f.publish(p, numbered(1, 5, 10)...)
	f.publish(q, numbered(1, 5, 10)...)
	writer := func(ref string) TrackingChange { return TrackingChange{Reference: ref, Publisher: true, Forget: true} }
	if _, err := f.change(writer("p")); !errors.Is(err, ErrReferenceInUse) {
		t.Fatalf("of one that is connected: %v", err)
	}
	list := f.tracked()
	if len(list.Sequences) != 2 || list.Sequences[1].Sequence != 5 || list.Sequences[1].Sessions != 1 {
		t.Fatalf("listed %+v", list.Sequences)
	}
	p.Close()
	q.Close()
	until(t, "nobody has it", func() bool { return f.replica.Stats().Publishers == 0 && f.replica.publishers.find("p") == nil })
	until(t, "nor the other", func() bool { return f.replica.publishers.find(q.Reference()) == nil })
	f.wantChanged([]string{"p", q.Reference(), "p"}, writer("p"), writer(q.Reference()), writer("none"), writer("p"))
	f.wantSequence("p", 0)
	f.publish(f.declare("p"), message{id: 3, body: "again"})
	f.wantSequence("p", 3)
	g := f.on(m.Crash(vfs.Policy{}, vfs.Seeded(1)))
	g.lead(2)
	g.wantSequence("p", 3)
	g.wantSequence(q.Reference(), 0)
	if n := len(g.records()); n != 11 {
		t.Fatalf("%d records, want 11", n)
	}
}

// TestChangeTracking_crashes crashes the node at any change of its disk while an
// operator sets and deletes, and wants of each reference what was answered last,
// or what was on its way.
func TestChangeTracking_crashes(t *testing.T) {
	total := 0
	for seed := range uint64(6) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 1))
			m := vfs.NewMem()
			f := newFixture(t, m, "/data", func(f *fixture) { f.stream.Settings.Log.SegmentBytes = 64 << 10 })
			f.lead(1)
			p := f.declare("")
			// values[ref] are those that a crash now may leave: −1 is none.
			values := map[string][]int{}
			type crash struct {
				fs   *vfs.Mem
				want map[string][]int
			}
			var crashes []crash
			var mu sync.Mutex // turns and syncs change the disk
			note := func(ref string, may ...int) {
				mu.Lock()
				defer mu.Unlock()
				values[ref] = may
			}
			m.Observe(func(vfs.Op, string) {
				mu.Lock()
				defer mu.Unlock()
				if random.IntN(6) > 0 || len(crashes) == 20 {
					return
				}
				want := map[string][]int{}
				for ref, v := range values {
					want[ref] = append([]int(nil), v...)
				}
				loss := losses[random.IntN(len(losses))]
				crashes = append(crashes, crash{m.Crash(loss.policy, vfs.Seeded(random.Uint64())), want})
			})
			for i := range 60 {
				ref := fmt.Sprint("r", random.IntN(4))
				now := []int{-1}
				if v := values[ref]; len(v) > 0 {
					now = v
				}
				c, value := set(ref, chunk.Offset(i)), i
				if random.IntN(2) == 0 {
					c, value = forget(ref), -1
				}
				note(ref, append(now, value)...)
				if _, err := f.change(c); err != nil {
					t.Fatal(err)
				}
				note(ref, value)
				if random.IntN(3) == 0 {
					f.publish(p, numbered(1, 20, 1000)...)
				}
			}
			m.Observe(nil)
			for i, c := range crashes {
				g := f.on(c.fs)
				g.lead(2)
				for ref, may := range c.want {
					got := -1
					if o, ok, err := g.replica.QueryOffset(ref); err != nil {
						t.Fatal(err)
					} else if ok {
						got = int(o)
					}
					found := false
					for _, v := range may {
						found = found || v == got
					}
					if !found {
						t.Errorf("seed %d, crash %d: %s is %d, want one of %v", seed, i, ref, got, may)
					}
				}
				g.stop()
				total++
			}
		})
	}
	if total < 60 {
		t.Fatalf("only %d crashes", total)
	}
	t.Logf("%d crash states", total)
}

// The window that is shown falls again on a stream where nothing happens, and
// there are no turns.
func TestStats_windowOfAnIdleStream(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vfs.NewMem(), "/data")
		f.lead(1)
		for i := range 300 {
			for k := range 100 {
				f.must(f.replica.StoreOffset(fmt.Sprint("reader", k), chunk.Offset(i)))
			}
			time.Sleep(time.Second)
		}
		if got := f.replica.Stats().WindowMilliseconds; got != 60_000 {
			t.Fatalf("with tracking alone the window is %d ms", got)
		}
		time.Sleep(2 * time.Minute)
		turns := f.replica.Stats().Turns
		time.Sleep(11 * time.Minute)
		if st := f.replica.Stats(); st.WindowMilliseconds != 5000 || st.Turns != turns {
			t.Errorf("idle it is %d ms, after %d turns", st.WindowMilliseconds, st.Turns-turns)
		}
	})
}

// When the caps bite, operators are told, once a minute at most.
func TestEvictions_areTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told := make(chan tracking.Stats, 100)
		f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) {
			f.stream.Settings.Log.Caps = tracking.Caps{Offsets: 10, Publishers: 5}
			f.config.Evicted = func(_ chunk.Incarnation, s tracking.Stats) { told <- s }
		})
		f.lead(1)
		var changes []TrackingChange
		for i := range 13 {
			changes = append(changes, set(fmt.Sprint("reader", i), 1))
		}
		f.wantChanged(nil)
		if len(told) != 0 {
			t.Fatal("told of nothing")
		}
		for _, c := range changes {
			if _, err := f.change(c); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(2 * evictionsEvery)
		for i := range 7 {
			f.publish(f.declare(fmt.Sprint("p", i)), message{id: 1, body: "m"})
		}
		time.Sleep(2 * evictionsEvery)
		f.wantChanged(nil) // a turn
		close(told)
		var last tracking.Stats
		n := 0
		for last = range told {
			n++
		}
		if n < 2 || n > 4 || last.OffsetsEvicted != 3 || last.PublishersEvicted != 2 {
			t.Fatalf("told %d times, at last %+v", n, last)
		}
	})
}
