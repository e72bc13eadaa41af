package replication

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// onEach runs a test on a stream in memory and on one on the disk.
func onEach(t *testing.T, test func(t *testing.T, f *fixture), change ...func(*fixture)) {
	t.Run("Mem", func(t *testing.T) { test(t, newFixture(t, vfs.NewMem(), "/data", change...)) })
	t.Run("OS", func(t *testing.T) { test(t, newFixture(t, vfs.OS{}, t.TempDir(), change...)) })
}

func bodies(messages []message) []string {
	var list []string
	for _, m := range messages {
		list = append(list, m.body)
	}
	return list
}

func TestPublish_isConfirmedAndReadable(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.lead(1)
		p := f.declare("")
		all := numbered(1, 1000, 50)
		sink := newCollector()
		for i := 0; i < len(all); i += 100 {
			f.replica.Publish(batchOf(p, sink, all[i:i+100]...))
		}
		f.must(sink.wait(t, 10))
		if got := sink.ids(); len(got) != 1000 || !slices.IsSorted(got) {
			t.Fatalf("confirmed %d ids, sorted %v", len(got), slices.IsSorted(got))
		}
		f.wantRecords(bodies(all)...)
		if _, next := f.replica.Committed(); next != 1000 {
			t.Fatalf("committed up to offset %d", next)
		}
		st := f.replica.Stats()
		if st.Role != RoleLeading || st.Epoch != 1 || st.Published != 1000 || st.Confirmed != 1000 || st.QueuedBytes != 0 {
			t.Fatalf("stats %+v", st)
		}
	})
}

func TestPublish_splitsIntoChunks(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "/data")
	f.lead(1)
	p := f.declare("p")
	messages := []message{
		{id: 1, body: strings.Repeat("a", 700<<10)},
		{id: 2, body: strings.Repeat("b", 700<<10)}, // not with the first in one chunk
		{id: 3, body: "small"},
		{id: 4, body: "sub-batch", batch: 7}, // alone
		{id: 5, body: strings.Repeat("c", 3<<20)},
		{id: 6, body: "last"},
	}
	f.publish(p, messages...)
	f.wantRecords(bodies(messages)...)
	if st := f.replica.Stats(); st.Chunks != 5 {
		t.Fatalf("%d chunks, want 5", st.Chunks)
	}
	if _, next := f.replica.Committed(); next != 12 {
		t.Fatalf("next offset %d, want 12", next)
	}
	f.wantSequence("p", 6)
}

func TestPublish_storesFilters(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) { f.stream.Settings.FilterLength = 24 })
	f.lead(1)
	f.publish(f.declare(""), message{id: 1, body: "x", filter: "eu"}, message{id: 2, body: "y"})
	reader, err := f.replica.Attach(segstore.Spec{Kind: segstore.First})
	f.must(err)
	defer reader.Close()
	commit, _ := f.replica.Committed()
	view, ok, err := reader.Next(commit)
	if err != nil || !ok {
		t.Fatalf("no chunk: %v, %v", ok, err)
	}
	defer view.Release()
	var want chunk.Filter
	want.Reset(24)
	want.Add([]byte("eu"))
	want.Add(nil)
	if !slices.Equal(view.Filter(), want.Bytes()) {
		t.Fatalf("filter %x, want %x", view.Filter(), want.Bytes())
	}
}

func TestPublish_refusals(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "/data")
	if _, err := f.replica.Declare("p"); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("declared without a leader: %v", err)
	}
	f.lead(1)
	older := f.declare("p")
	f.publish(older, message{id: 1, body: "one"})
	newer := f.declare("p")
	refused := func(p *Publisher, want error, messages ...message) {
		t.Helper()
		sink := newCollector()
		f.replica.Publish(batchOf(p, sink, messages...))
		if err := sink.wait(t, 1); !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
		if len(sink.failed) != len(messages) || len(sink.confirmed) != 0 {
			t.Fatalf("failed %v, confirmed %v", sink.failed, sink.confirmed)
		}
	}
	refused(older, ErrFenced, message{id: 2, body: "late"}, message{id: 3, body: "later"})
	f.publish(newer, message{id: 2, body: "two"})
	newer.Close()
	refused(newer, ErrFenced, message{id: 3, body: "closed"})
	refused(f.declare(""), ErrEntry, message{id: 1, body: strings.Repeat("x", chunk.DataLengthMax)})
	last := f.declare("p")
	f.fence(2) // deposes
	refused(last, ErrNotLeader, message{id: 3, body: "deposed"})
	if _, err := f.replica.Declare("p"); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("declared on a deposed leader: %v", err)
	}
	f.wantRecords("one", "two")
}

func TestDuplicates_areConfirmedAndNotStored(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.lead(1)
		p := f.declare("p")
		f.publish(p, numbered(1, 10, 0)...)
		// 5 to 10 again, 11 and 12 new, 11 twice in one frame.
		again := append(numbered(5, 8, 0), message{id: 11, body: "twice"}, message{id: 13, body: "message 13 "})
		f.publish(p, again...)
		f.publish(p, numbered(1, 3, 0)...) // nothing new at all
		f.wantRecords(bodies(numbered(1, 13, 0))...)
		f.wantSequence("p", 13)
		if st := f.replica.Stats(); st.Duplicate != 10 || st.Published != 13 || st.Confirmed != 23 {
			t.Fatalf("duplicates %d, published %d, confirmed %d", st.Duplicate, st.Published, st.Confirmed)
		}
		// Another reference has its own sequence, and none has none.
		f.publish(f.declare("q"), message{id: 1, body: "q"})
		nameless := f.declare("")
		f.publish(nameless, message{id: 1, body: "n"}, message{id: 1, body: "n"})
		if _, next := f.replica.Committed(); next != 16 {
			t.Fatalf("next offset %d, want 16", next)
		}
	})
}

func TestDuplicates_waitForTheirOriginal(t *testing.T) {
	release := make(chan struct{})
	faulty := vfs.NewFaulty(vfs.NewMem())
	f := newFixture(t, faulty, "/data")
	f.lead(1)
	p := f.declare("p")
	f.publish(p, message{id: 1, body: "one"})
	faulty.Add(vfs.Rule{Ops: vfs.OpSync, Path: "*.seg", Times: 1, Fault: vfs.Fault{Hang: release}})
	sink := newCollector()
	f.replica.Publish(batchOf(p, sink, message{id: 2, body: "two"}))
	f.replica.Publish(batchOf(p, sink, message{id: 2, body: "two"}))
	f.wantSequence("other", 0) // answered behind the two
	if got := sink.ids(); len(got) != 0 {
		t.Fatalf("confirmed %v while the original's sync hangs", got)
	}
	close(release)
	f.must(sink.wait(t, 2))
	f.wantRecords("one", "two")
}

func TestPublish_collectsWhileASyncIsInFlight(t *testing.T) {
	release := make(chan struct{})
	faulty := vfs.NewFaulty(vfs.NewMem())
	f := newFixture(t, faulty, "/data")
	f.lead(1)
	p := f.declare("p")
	hang := faulty.Add(vfs.Rule{Ops: vfs.OpSync, Path: "*.seg", Times: 1, Fault: vfs.Fault{Hang: release}})
	sink := newCollector()
	var want []string
	for i := range uint64(100) { // 600 KB, by turns that each see a few of them
		messages := numbered(1+10*i, 10, 600)
		f.replica.Publish(batchOf(p, sink, messages...))
		want = append(want, bodies(messages)...)
		if i == 0 {
			until(t, "a sync hangs", func() bool { return faulty.Hits(hang) == 1 })
		} else if i%3 == 0 {
			_, _, _ = f.replica.QueryOffset("behind what came so far")
		}
	}
	_, _, _ = f.replica.QueryOffset("behind all")
	// What is worth a write is written meanwhile, the rest waits for the disk.
	if st := f.replica.Stats(); st.Chunks < 2 || st.Chunks > 4 || len(sink.ids()) != 0 {
		t.Fatalf("%d chunks while the first's sync hangs, %d messages confirmed", st.Chunks, len(sink.ids()))
	}
	close(release)
	f.must(sink.wait(t, 100))
	f.wantRecords(want...)
}

func TestSequence_surviveClosedSessionsAndRestarts(t *testing.T) {
	onEach(t, func(t *testing.T, f *fixture) {
		f.lead(1)
		f.wantSequence("p", 0)
		p := f.declare("p")
		f.publish(p, numbered(7, 3, 0)...)
		p.Close()
		f.wantSequence("p", 9)
		f.must(f.node.Close(f.context()))
		f.must(f.store.Close())
		f.start(false)
		if _, _, err := f.sequence("p"); !errors.Is(err, ErrNotLeader) {
			t.Fatalf("query without a leader: %v", err)
		}
		f.lead(2)
		f.wantSequence("p", 9)
		p = f.declare("p")
		f.publish(p, numbered(8, 3, 0)...) // 8 and 9 are known
		f.wantSequence("p", 10)
		f.wantRecords(bodies(numbered(7, 4, 0))...)
		if _, _, err := f.sequence(""); !errors.Is(err, ErrReferenceLength) {
			t.Fatalf("query of no reference: %v", err)
		}
	})
}

func TestSequence_countsWhatIsStillBeingBuilt(t *testing.T) {
	release := make(chan struct{})
	faulty := vfs.NewFaulty(vfs.NewMem())
	f := newFixture(t, faulty, "/data")
	f.lead(1)
	p := f.declare("p")
	f.publish(p, message{id: 1, body: "one"})
	hang := faulty.Add(vfs.Rule{Ops: vfs.OpSync, Path: "*.seg", Times: 1, Fault: vfs.Fault{Hang: release}})
	sink := newCollector()
	f.replica.Publish(batchOf(p, sink, message{id: 2, body: "two"}))
	until(t, "a sync hangs", func() bool { return faulty.Hits(hang) == 1 })
	f.replica.Publish(batchOf(p, sink, message{id: 3, body: "three"}))
	answered := make(chan uint64, 1)
	f.replica.Sequence("p", func(sequence uint64, _ bool, _ error) { answered <- sequence })
	// A query about another reference needs no commit, and is answered behind.
	f.wantSequence("other", 0)
	select {
	case got := <-answered:
		t.Fatalf("sequence %d was answered before its chunk was committed", got)
	default:
	}
	close(release)
	if got := <-answered; got != 3 {
		t.Fatalf("sequence %d, want 3", got)
	}
	f.must(sink.wait(t, 2))
}

// TestTurns_comeOnlyForAReason: what waits for time to pass does not spin.
func TestTurns_comeOnlyForAReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) { f.config.RetainEvery = time.Hour })
		f.lead(1)
		defer f.stop()
		for i := range 2000 { // more than the tokens of a minute cover
			f.must(f.replica.StoreOffset(fmt.Sprint("a reference with a long name ", i), 1))
		}
		synctest.Wait()
		before := f.replica.Stats().Turns
		time.Sleep(4 * time.Second)
		synctest.Wait()
		st := f.replica.Stats()
		if st.PendingOffsets != 2000 {
			t.Fatalf("%d offsets wait to be written, the test needs them to", st.PendingOffsets)
		}
		if n := st.Turns - before; n > 10 {
			t.Fatalf("%d turns in 4 s of waiting", n)
		}
		time.Sleep(4 * time.Second)
		synctest.Wait()
		if st := f.replica.Stats(); st.PendingOffsets != 0 {
			t.Fatalf("%d offsets still wait behind the window", st.PendingOffsets)
		}
	})
}

func TestIdle_ownsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		clock := &countingClock{}
		f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) {
			f.config.Clock = clock
			f.config.RetainEvery = 24 * time.Hour
		})
		f.lead(1)
		defer f.stop()
		f.publish(f.declare("p"), numbered(1, 1000, 100)...)
		f.must(f.replica.StoreOffset("c", 1))
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := clock.running.Load(); n != 1 { // the node's retention timer
			t.Fatalf("%d timers while nothing happens", n)
		}
		r := &f.replica.turns
		if r.held.ring != nil || r.waiting.ring != nil || r.growing != nil || r.batches != nil || r.outputs != nil {
			t.Fatal("an idle replica keeps buffers")
		}
		state, _ := f.store.Journal().State(streamUnderTest)
		if tail := f.replica.log.Load().Tail().LSN; state.Mark != tail || state.Commit != tail {
			t.Fatalf("the journal has mark %d and commit %d, the tail is %d", state.Mark, state.Commit, tail)
		}
		turns := f.replica.Stats()
		time.Sleep(time.Hour)
		synctest.Wait()
		if got := f.replica.Stats(); got.Syncs != turns.Syncs {
			t.Fatal("an idle replica syncs")
		}
	})
}

func TestFence_rules(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "/data")
	refusal := func(err error) protocol.Reason {
		t.Helper()
		var refused *RefusedError
		if !errors.As(err, &refused) {
			t.Fatalf("not refused: %v", err)
		}
		return refused.Reason
	}
	assign := func(epoch chunk.Epoch, run protocol.RunID) error {
		return f.node.Assign(f.context(), protocol.Assignment{
			Stream: streamUnderTest, Epoch: epoch, Node: "n1", Run: run, Replicas: alone,
		}, nil)
	}
	first := f.fence(3)
	if first.Tail != (chunk.Tail{}) || first.Node != "n1" || first.Stream != streamUnderTest {
		t.Fatalf("report of an empty log: %+v", first)
	}
	if state, _ := f.store.Journal().State(streamUnderTest); state.Promise != 3 {
		t.Fatalf("the journal has promise %d", state.Promise)
	}
	if got := f.node.Fence(f.context(), []FenceRequest{{streamUnderTest, 2}})[0]; refusal(got.Err) != protocol.ReasonPromised {
		t.Fatalf("fence below the promise: %v", got.Err)
	}
	if got := refusal(assign(2, first.Run)); got != protocol.ReasonPromised {
		t.Fatalf("assignment below the promise: %v", got)
	}
	if got := refusal(assign(3, first.Run+1)); got != protocol.ReasonOtherRun {
		t.Fatalf("assignment of another run: %v", got)
	}
	f.must(assign(3, first.Run))
	f.publish(f.declare(""), message{id: 1, body: "x"})

	// A restart ends the epoch (A5): the promise stays, the run is another one.
	f.must(f.node.Close(f.context()))
	f.must(f.store.Close())
	f.start(false)
	if got := refusal(assign(3, first.Run)); got != protocol.ReasonNoReport && got != protocol.ReasonOtherRun {
		t.Fatalf("went on in an epoch after a restart: %v", got)
	}
	second := f.fence(4)
	if second.Run == first.Run || second.Tail.LSN < 2 || second.Commit != second.Tail.LSN {
		t.Fatalf("report after a restart: %+v", second)
	}
	missing := f.node.Fence(f.context(), []FenceRequest{{streamUnderTest + 1, 1}, {streamUnderTest, 5}})
	if !errors.Is(missing[0].Err, ErrMissing) || missing[1].Err != nil {
		t.Fatalf("fence of two streams, one of them missing: %v", missing)
	}
}

func TestFence_manyStreamsShareOneSync(t *testing.T) {
	const streams = 50
	f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) { f.config.Workers = 2 })
	var requests []FenceRequest
	for i := range chunk.Incarnation(streams) {
		_, err := f.node.Open(Stream{Incarnation: 100 + i, Name: fmt.Sprint("s", i)}, true)
		f.must(err)
		requests = append(requests, FenceRequest{100 + i, 1})
	}
	before := f.store.Stats().Syncs.Syncs
	for _, result := range f.node.Fence(f.context(), requests) {
		f.must(result.Err)
	}
	if n := f.store.Stats().Syncs.Syncs - before; n > streams/2 {
		t.Fatalf("%d syncs for %d promises", n, streams)
	}
}

func TestWatch_tellsOfRecordsOnly(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "/data")
	told := make(chan struct{}, 100)
	cancel := f.replica.Watch(func() { told <- struct{}{} })
	f.lead(1)
	f.must(f.replica.StoreOffset("c", 7))
	f.wantSequence("c", 0) // the barrier is committed
	if len(told) != 0 {
		t.Fatal("a control chunk woke readers")
	}
	p := f.declare("")
	f.publish(p, message{id: 1, body: "x"})
	if len(told) != 1 {
		t.Fatalf("told %d times of one chunk", len(told))
	}
	cancel()
	f.publish(p, message{id: 2, body: "x"})
	if len(told) != 1 {
		t.Fatal("told after cancel")
	}
}

func TestFailedSync_endsTheRun(t *testing.T) {
	for _, c := range []struct {
		name string
		how  vfs.SyncFailure
	}{
		{"bytes stay dirty", vfs.BytesStayDirty},
		{"bytes are lost at a crash", vfs.BytesLostAtCrash},
		{"bytes are dropped", vfs.BytesDropped},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := vfs.NewMem()
			faulty := vfs.NewFaulty(m)
			f := newFixture(t, faulty, "/data")
			f.lead(1)
			p := f.declare("p")
			f.publish(p, message{id: 1, body: "safe"})
			report := f.replica.Stats()
			faulty.Add(vfs.Rule{Ops: vfs.OpSync, Path: "*.seg", Times: 1, Fault: vfs.Fault{Err: syscall.EIO, Sync: c.how}})
			sink := newCollector()
			f.replica.Publish(batchOf(p, sink, message{id: 2, body: "lost"}))
			if err := sink.wait(t, 1); err == nil {
				t.Fatal("confirmed although the sync failed")
			}
			if err := <-f.lost; !errors.Is(err, syscall.EIO) {
				t.Fatalf("the run was lost to %v", err)
			}
			if _, err := f.replica.Declare("p"); !errors.Is(err, ErrNotLeader) {
				t.Fatalf("the epoch went on: %v", err)
			}
			if st := f.replica.Stats(); st.Runs != report.Runs+1 || !errors.Is(st.Err, syscall.EIO) {
				t.Fatalf("stats %+v", st)
			}
			f.lead(2)
			f.wantSequence("p", 1)
			f.publish(f.declare("p"), message{id: 2, body: "again"})
			f.wantRecords("safe", "again")
			// What is confirmed now is durable, whatever the failed sync left.
			g := f.on(m.Crash(vfs.Policy{}, nil))
			g.lead(3)
			g.wantRecords("safe", "again")
		})
	}
}

func TestFailedWrite_endsTheRun(t *testing.T) {
	faulty := vfs.NewFaulty(vfs.NewMem())
	f := newFixture(t, faulty, "/data")
	other, err := f.node.Open(Stream{Incarnation: 77, Name: "other"}, true)
	f.must(err)
	f.lead(1)
	p := f.declare("")
	f.publish(p, message{id: 1, body: "safe"})
	full := faulty.Add(vfs.Rule{Ops: vfs.OpWrite, Path: "*.seg", Fault: vfs.Fault{Err: syscall.ENOSPC, Short: 10}})
	sink := newCollector()
	f.replica.Publish(batchOf(p, sink, message{id: 2, body: "lost"}))
	if err := sink.wait(t, 1); err == nil {
		t.Fatal("confirmed although the write failed")
	}
	<-f.lost
	faulty.Lift(full)
	f.lead(2)
	f.publish(f.declare(""), message{id: 2, body: "again"})
	f.wantRecords("safe", "again")
	if st := other.Stats(); st.Err != nil || st.Runs != 1 {
		t.Fatalf("another stream has suffered: %+v", st)
	}
}
