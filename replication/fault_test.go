package replication

import (
	"errors"
	"fmt"
	"path"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// TestDisk_failingForLong: every write fails for a minute. The replica tries
// again, but ever more slowly; then it leads as if nothing had been.
func TestDisk_failingForLong(t *testing.T) {
	for _, c := range []struct {
		name string
		rule vfs.Rule
	}{
		{"full", vfs.Rule{Ops: vfs.OpWrite | vfs.OpCreate, Fault: vfs.Fault{Err: syscall.ENOSPC}}},
		{"no descriptors", vfs.Rule{Ops: vfs.OpOpen, Fault: vfs.Fault{Err: syscall.EMFILE}}},
		{"syncs that fail", vfs.Rule{Ops: vfs.OpSync, Fault: vfs.Fault{Err: syscall.EIO}}},
		{"a segment that does not take writes", vfs.Rule{Ops: vfs.OpWrite, Path: "*.seg", Fault: vfs.Fault{Err: syscall.EIO}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				faulty := vfs.NewFaulty(vfs.NewMem())
				f := newFixture(t, faulty, "/data", func(f *fixture) { f.stream.Settings.Log.SegmentBytes = 64 << 10 })
				f.lead(1)
				defer f.stop()
				p := f.declare("p")
				f.publish(p, message{id: 1, body: "safe"})
				rule := faulty.Add(c.rule)
				sink := newCollector()
				f.replica.Publish(batchOf(p, sink, numbered(2, 100, 1000)...)) // rolls
				f.replica.Publish(batchOf(p, sink, numbered(102, 100, 1000)...))
				time.Sleep(50 * time.Millisecond)
				epoch, lost := chunk.Epoch(2), 0
				for range 600 { // as a coordinator that does not wait
					time.Sleep(100 * time.Millisecond)
					for len(f.lost) > 0 {
						<-f.lost
						lost++
					}
					if f.replica.Stats().Role == RoleLeading {
						continue
					}
					result := f.node.Fence(f.context(), []FenceRequest{{streamUnderTest, epoch}})[0]
					if result.Err == nil {
						_ = f.node.Assign(f.context(), protocol.Assignment{
							Stream: streamUnderTest, Epoch: epoch, Node: "n1", Run: result.Report.Run, Replicas: alone,
						}, nil)
					}
					epoch++
				}
				if lost > 30 {
					t.Fatalf("the run ended %d times in a minute", lost)
				}
				faulty.Lift(rule)
				time.Sleep(10 * time.Second)
				if f.replica.Stats().Role != RoleLeading {
					f.lead(epoch)
				}
				p = f.declare("p")
				sequence, _, err := f.sequence("p")
				f.must(err)
				if n := uint64(len(f.records())); n != sequence {
					t.Fatalf("%d records, the sequence is %d", n, sequence)
				}
				f.publish(p, numbered(2, 300, 10)...)
				if n := len(f.records()); n != 301 {
					t.Fatalf("%d records after sending all again", n)
				}
			})
		})
	}
}

// TestRun_begunIsTold: whoever looks at a replica when its next run is told of finds
// the new run's id: an epoch that the old one led is over then, however late that
// is heard.
func TestRun_begunIsTold(t *testing.T) {
	faulty := vfs.NewFaulty(vfs.NewMem())
	begun := make(chan protocol.RunID, 1)
	var f *fixture
	f = newFixture(t, faulty, "/data", func(g *fixture) {
		g.config.Begun = func(chunk.Incarnation) { begun <- f.replica.Standing().Run }
	})
	f.lead(1)
	led := f.replica.Standing().Run
	faulty.Add(vfs.Rule{Ops: vfs.OpSync, Path: "*.seg", Times: 1, Fault: vfs.Fault{Err: syscall.EIO}})
	sink := newCollector()
	f.replica.Publish(batchOf(f.declare("p"), sink, message{id: 1, body: "lost"}))
	f.must(nonNil(sink.wait(t, 1)))
	select {
	case run := <-begun:
		if run == led {
			t.Error("told before the run is another one")
		}
	case <-time.After(20 * time.Second):
		t.Fatal("nobody is told of the next run")
	}
}

// TestMinority: without a majority a bounded amount is accepted, then refused
// (B7), and nothing is confirmed.
func TestMinority(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) { f.config.Limits.UncommittedBytes = 1 << 20 })
	report := f.fence(1)
	three := protocol.Configuration{Version: 1, Members: []protocol.Member{{Node: "n1"}, {Node: "n2"}, {Node: "n3"}}}
	f.must(f.node.Assign(f.context(), protocol.Assignment{
		Stream: streamUnderTest, Epoch: 1, Node: "n1", Run: report.Run, Replicas: three,
	}, nil))
	p := f.declare("p")
	sink := newCollector()
	for i := range uint64(100) {
		f.replica.Publish(batchOf(p, sink, numbered(1+100*i, 100, 1000)...))
	}
	until(t, "some are refused", func() bool { return f.replica.Stats().Refused > 0 })
	sink.mu.Lock()
	refused, confirmed := len(sink.errs), len(sink.confirmed)
	err := errors.Join(sink.errs...)
	sink.mu.Unlock()
	if confirmed != 0 || refused < 50 || refused > 95 || !errors.Is(err, ErrBacklog) {
		t.Fatalf("%d of 100 batches refused, %d messages confirmed, %v", refused, confirmed, err)
	}
	if st := f.replica.Stats(); st.Role != RoleElected || st.Commit != 0 {
		t.Fatalf("leads without a majority: %+v", st)
	}
	if _, _, ok := f.answered("p"); ok {
		t.Fatal("a sequence was answered without a majority")
	}
	// A fence by a higher epoch frees everything that waits.
	f.fence(2)
	f.must(nonNil(sink.wait(t, 100)))
}

// What was refused for want of a majority is not a duplicate when it is sent
// again: nothing behind it was taken, though the majority came back between two
// turns (B7, F2).
func TestMinority_refusedIsNotOvertaken(t *testing.T) {
	c := newCluster(t, func(f *fixture) { f.config.Limits.UncommittedBytes = 1 << 20 })
	leader := c.lead(1, "n1", "n2", "n3")
	var others []protocol.NodeID
	for id, f := range c.nodes {
		if f != leader {
			others = append(others, id)
		}
	}
	for _, id := range others {
		c.link(id, false)
	}
	p := leader.declare("p")
	filled := newCollector()
	for i := range uint64(100) {
		leader.replica.Publish(batchOf(p, filled, numbered(1+100*i, 100, 1000)...))
	}
	until(t, "some are refused", func() bool { return leader.replica.Stats().Refused > 0 })
	refused, later := newCollector(), newCollector()
	leader.replica.Publish(batchOf(p, refused, numbered(10001, 1, 10)...))
	if err := refused.wait(t, 1); !errors.Is(err, ErrBacklog) {
		t.Fatalf("refused with %v", err)
	}
	for _, id := range others {
		c.link(id, true)
	}
	until(t, "the majority is back", func() bool {
		commit, _ := leader.replica.Committed()
		return commit == leader.replica.Stats().Log.Tail.LSN
	})
	leader.replica.Publish(batchOf(p, later, numbered(10002, 1, 10)...)) // as one that was on its way
	if err := later.wait(t, 1); !errors.Is(err, ErrBacklog) {
		t.Errorf("what was sent behind is answered %v", err)
	}
	before := len(leader.records())
	p = leader.declare("p")
	leader.publish(p, numbered(10001, 2, 10)...)
	if n := len(leader.records()) - before; n != 2 {
		t.Errorf("%d of two messages that were sent again are stored", n)
	}
}

// A reference that tracking had to forget because of chunks that are not committed
// is not called unknown before these are (F3, I15).
func TestSequence_forgottenByUncommitted(t *testing.T) {
	faulty := vfs.NewFaulty(vfs.NewMem())
	f := newFixture(t, faulty, "/data", func(f *fixture) { f.stream.Settings.Log.Caps.Publishers = 1 })
	f.lead(1)
	p := f.declare("p")
	f.publish(p, message{id: 7, body: "kept"})
	p.Close()
	release := make(chan struct{})
	faulty.Add(vfs.Rule{Ops: vfs.OpSync, Path: "*.seg", Times: 1, Fault: vfs.Fault{Hang: release}})
	sink := newCollector()
	f.replica.Publish(batchOf(f.declare("q"), sink, message{id: 1, body: "in the way"}))
	until(t, "it is in the log", func() bool { return f.replica.Stats().Log.Tail.LSN == 3 })
	sequence, err, ok := f.answered("p")
	if ok {
		t.Errorf("told %d, %v of %q while nothing that took its place is committed", sequence, err, "p")
	}
	close(release)
	f.must(sink.wait(t, 1))
	f.wantSequence("p", 0) // it is gone by now
}

// answered tells whether a sequence query was answered by the time that a later
// event was.
func (f *fixture) answered(reference string) (uint64, error, bool) {
	var sequence uint64
	var err error
	var done atomic.Bool
	f.replica.Sequence(reference, func(s uint64, _ bool, e error) { sequence, err = s, e; done.Store(true) })
	_, _, _ = f.replica.QueryOffset("behind it")
	return sequence, err, done.Load()
}

func nonNil(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return nil
}

// TestReigns: epochs come and go while publishers publish; each sends again
// what was not confirmed. Nothing is lost, doubled or out of order.
func TestReigns(t *testing.T) {
	const publishers, reigns = 4, 20
	f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) { f.stream.Settings.Log.SegmentBytes = 64 << 10 })
	f.lead(1)
	var work sync.WaitGroup
	var stop atomic.Bool
	var confirmed [publishers]int
	for i := range publishers {
		work.Go(func() { confirmed[i] = publishUntil(t, f.replica, fmt.Sprint("p", i), &stop) })
	}
	for epoch := range chunk.Epoch(reigns) {
		_, before := f.replica.Committed()
		until(t, "something is committed", func() bool { _, next := f.replica.Committed(); return next > before+50 })
		f.assign(epoch + 2)
	}
	stop.Store(true)
	work.Wait()
	next := map[string]int{}
	for _, record := range f.records() {
		var name string
		var id int
		if _, err := fmt.Sscanf(record, "%s %d", &name, &id); err != nil || id != next[name]+1 {
			t.Fatalf("record %q behind %d of %s", record, next[name], name)
		}
		next[name] = id
	}
	for i := range publishers {
		name := fmt.Sprint("p", i)
		if next[name] != confirmed[i] || confirmed[i] == 0 {
			t.Fatalf("%d messages of %s were confirmed, %d are there", confirmed[i], name, next[name])
		}
		f.wantSequence(name, uint64(confirmed[i]))
	}
}

// publishUntil publishes ids from 1 on under a reference until told to stop. As
// clients do, it declares the reference anew whenever something fails, and sends
// again what was not confirmed. It returns the last id; all are confirmed.
func publishUntil(t *testing.T, r *Replica, name string, stop *atomic.Bool) (last int) {
	const window, frame = 200, 10
	for confirmed := 0; ; {
		if confirmed == last {
			if stop.Load() {
				return last
			}
			last += window
		}
		p, err := r.Declare(name)
		if err != nil {
			runtime.Gosched()
			continue
		}
		sink := newCollector()
		batches := 0
		for id := confirmed + 1; id <= last; id += frame {
			var list []message
			for k := id; k < min(id+frame, last+1); k++ {
				list = append(list, message{id: uint64(k), body: fmt.Sprint(name, " ", k, " ", string(make([]byte, 50)))})
			}
			r.Publish(batchOf(p, sink, list...))
			batches++
		}
		_ = sink.wait(t, batches)
		ids := sink.ids()
		slices.Sort(ids)
		for _, id := range ids { // what is confirmed without a gap
			if int(id) == confirmed+1 {
				confirmed++
			}
		}
		p.Close()
	}
}

// TestShare: two sessions of one reference publish under one sequence.
func TestShare(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) { f.config.Duplicates = Share })
	f.lead(1)
	a, b := f.declare("p"), f.declare("p")
	f.publish(a, message{id: 1, body: "one"}, message{id: 3, body: "three"})
	f.publish(b, message{id: 2, body: "two"}, message{id: 4, body: "four"}) // 2 is below 3
	f.publish(a, message{id: 4, body: "four again"}, message{id: 5, body: "five"})
	f.wantRecords("one", "three", "four", "five")
	f.wantSequence("p", 5)
}

// TestJournalLost: a sole voter whose node lost its journal is taken back by a
// new epoch.
func TestJournalLost(t *testing.T) {
	m := vfs.NewMem()
	f := newFixture(t, m, "/data")
	f.lead(5)
	f.publish(f.declare("p"), message{id: 1, body: "x"})
	f.stop()
	entries, err := m.List("/data/journal")
	f.must(err)
	for _, e := range entries {
		f.must(m.Remove(path.Join("/data/journal", e.Name)))
	}
	f.start(false)
	report := f.fence(6)
	if !report.Aside || report.Tail.Epoch != 5 {
		t.Fatalf("report %+v", report)
	}
	f.lead(7)
	f.wantRecords("x")
	f.wantSequence("p", 1)
	if state, _ := f.store.Journal().State(streamUnderTest); state.Aside != segstore.NotAside || state.Promise != 7 {
		t.Fatalf("journal %+v", state)
	}
}

// TestDamage: damage at the end of the log, below the durable mark, sets the
// replica aside; it says so in its report, and is not elected.
func TestDamage(t *testing.T) {
	m := vfs.NewMem()
	f := newFixture(t, m, "/data")
	f.lead(1)
	p := f.declare("")
	f.publish(p, message{id: 1, body: "safe"})
	f.publish(p, message{id: 2, body: "rotten"})
	f.stop() // notes the mark
	dir, err := m.List("/data/streams")
	f.must(err)
	segment := path.Join("/data/streams", dir[0].Name, "00000000000000000001.0.seg")
	f.must(m.Edit(segment, func(b []byte) []byte { b[len(b)-3] ^= 1; return b }))
	f.start(false)
	result := f.node.Fence(f.context(), []FenceRequest{{streamUnderTest, 2}})[0]
	f.must(result.Err)
	report := result.Report
	if !report.Damaged || !report.Aside || report.Mark.LSN <= report.Tail.LSN {
		t.Fatalf("report %+v", report)
	}
	if d := protocol.SelectLeader(2, []protocol.Report{report}, alone); d.Kind != protocol.Lost {
		t.Fatalf("election: %v", d.Kind)
	}
	if st := f.replica.Stats(); !errors.Is(st.Err, segstore.ErrDamaged) {
		t.Fatalf("stats do not tell of the damage: %v", st.Err)
	}
}

// TestClock_mayGoBack: timestamps of chunks do not.
func TestClock_mayGoBack(t *testing.T) {
	clock := &settableClock{}
	clock.now.Store(time.Now().UnixMilli())
	f := newFixture(t, vfs.NewMem(), "/data", func(f *fixture) { f.config.Clock = clock })
	f.lead(1)
	p := f.declare("")
	last := chunk.Timestamp(0)
	for i := range uint64(5) {
		clock.now.Add(-1000)
		f.publish(p, message{id: i, body: "x"})
	}
	f.stop()
	clock.now.Add(-1_000_000)
	f.start(false)
	f.lead(2)
	f.publish(f.declare(""), message{id: 9, body: "x"})
	reader, err := f.replica.Attach(segstore.Spec{Kind: segstore.First})
	f.must(err)
	defer reader.Close()
	commit, _ := f.replica.Committed()
	for {
		view, ok, err := reader.Next(commit)
		f.must(err)
		if !ok {
			break
		}
		if view.Header.Timestamp < last {
			t.Fatalf("chunk %d is of %d, after one of %d", view.Header.LSN, view.Header.Timestamp, last)
		}
		last = view.Header.Timestamp
		view.Release()
	}
	if last == 0 {
		t.Fatal("no chunk was read")
	}
}

// settableClock tells the time that a test sets.
type settableClock struct {
	systemClock
	now atomic.Int64 // milliseconds
}

func (c *settableClock) Now() time.Time { return time.UnixMilli(c.now.Load()) }
