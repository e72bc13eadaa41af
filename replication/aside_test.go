package replication

import (
	"bytes"
	"errors"
	"path"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/vfs"
)

// publishSealed publishes without waiting until a segment is sealed whose chunks
// are not committed, and returns its file's path.
func (f *fixture) publishSealed(p *Publisher, from uint64) string {
	f.t.Helper()
	before := len(f.replica.log.Load().Segments())
	for i := range uint64(30) {
		tail := f.replica.Stats().Log.Tail
		f.replica.Publish(batchOf(p, newCollector(), numbered(from+10*i, 10, 1000)...))
		until(f.t, "it is durable", func() bool { // so that each has its chunk
			st := f.replica.Stats().Log
			return st.Durable.LSN > tail.LSN && st.Durable == st.Tail
		})
	}
	if n := len(f.replica.log.Load().Segments()); n < before+2 {
		f.t.Fatalf("%d segments, %d before", n, before)
	}
	return f.sealedFile(before)
}

func (f *fixture) rot(file string) {
	f.t.Helper()
	f.must(f.fs.(*vfs.Mem).Edit(file, func(b []byte) []byte { b[len(b)/2] ^= 8; return b }))
	if d, err := f.replica.Check(path.Base(file)); d == nil || err != nil {
		f.t.Fatalf("check: %v, %v", d, err)
	}
}

// hearLost waits for the end of a run, and returns why.
func (f *fixture) hearLost() error {
	f.t.Helper()
	until(f.t, "the run ends", func() bool { return len(f.lost) > 0 })
	return <-f.lost
}

// publishUnsealed publishes without waiting until there are a few chunks that are
// not committed, and returns the path of the file that the log ends in and the
// position of the chunk in their middle.
func (f *fixture) publishUnsealed(p *Publisher, from uint64) (file string, middle int) {
	f.t.Helper()
	log := f.replica.log.Load()
	size := func() int { s := log.Segments(); return int(s[len(s)-1].Size) }
	for i := range uint64(6) {
		if i == 3 {
			middle = size()
		}
		tail := f.replica.Stats().Log.Tail
		f.replica.Publish(batchOf(p, newCollector(), numbered(from+i, 1, 1000)...))
		until(f.t, "it is durable", func() bool {
			st := f.replica.Stats().Log
			return st.Durable.LSN > tail.LSN && st.Durable == st.Tail
		})
	}
	segments := log.Segments()
	return f.segmentFile(segments[len(segments)-1]), middle
}

// rotAt rots the chunk at a position and perhaps the file's last, so that no
// checkpoint holds, which the log's closing writes.
func (f *fixture) rotAt(file string, at int, last bool) {
	f.t.Helper()
	f.must(f.fs.(*vfs.Mem).Edit(file, func(b []byte) []byte {
		b[at+100] ^= 8
		if last {
			b[len(b)-100] ^= 8
		}
		return b
	}))
}

func smallSegments(f *fixture) {
	f.stream.Settings.Log.SegmentBytes = 64 << 10
	f.config.Limits.UncommittedBytes = 64 << 20
}

// A leader's segment rots of which its followers have nothing yet: it says so,
// ends its reign, and is not elected before its followers have all that it had.
func TestHurt_leaderAboveCommit(t *testing.T) {
	c := newCluster(t, smallSegments)
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	l.publish(p, message{id: 1, body: "common"})
	c.agree(l, "n2", "n3")
	c.link("n1", false)
	file := l.publishSealed(p, 2)
	tail := l.replica.Stats().Log.Durable
	l.rot(file)

	err := l.hearLost()
	if !errors.Is(err, segstore.ErrDamaged) || !strings.Contains(err.Error(), "orders") || !strings.Contains(err.Error(), "chunks") {
		t.Errorf("it is lost by %v", err)
	}
	until(t, "the reign is over", func() bool { return l.replica.Stats().Role == RoleFollowing })
	reports := []protocol.Report{l.fence(2), c.nodes["n2"].fence(2), c.nodes["n3"].fence(2)}
	if r := reports[0]; !r.Damaged || !r.Aside || r.Mark != tail {
		t.Errorf("it reports %+v, durable was %v", r, tail)
	}
	if d := protocol.SelectLeader(2, reports, c.config); d.Kind != protocol.Lost || d.Mark != tail {
		t.Errorf("election: %v up to %v", d.Kind, d.Mark)
	}
	if l.replica.Stats().Log.Tail != tail {
		t.Error("something was cut")
	}
}

// Whoever is set aside like that gives up what is damaged when a leader comes,
// and no earlier, and is filled again. Registered it is a second time: the run
// that has cut its log is over.
func TestHurt_filledAgain(t *testing.T) {
	c := newCluster(t, smallSegments)
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	l.publish(p, message{id: 1, body: "common"})
	c.agree(l, "n2", "n3")
	c.link("n1", false)
	l.rot(l.publishSealed(p, 2))
	_ = l.hearLost()
	tail := l.replica.Stats().Log.Tail
	n2 := c.lead(2, "n2", "n3") // as if an operator had given n1 up
	q := n2.declare("p")
	n2.publish(q, numbered(2, 5, 10)...)
	registered := make(chan error, 1)
	register := func(as protocol.Registration) {
		l.node.BeginRegistered(streamUnderTest, 2, as, func(err error) { registered <- err })
		l.must(<-registered)
	}
	register(5)
	if l.replica.Stats().Log.Tail != tail {
		t.Error("something was cut while no leader had come")
	}
	c.link("n1", true)
	if err := l.hearLost(); !errors.Is(err, segstore.ErrDamaged) {
		t.Errorf("the second run ends by %v", err)
	}
	until(t, "the next run is on", func() bool { return l.replica.Stats().Role == RoleFollowing })
	register(6)
	c.link("n1", false)
	c.link("n1", true)
	c.agree(n2, "n1", "n3")
	if damage := l.replica.Damage(); len(damage) != 0 {
		t.Errorf("still damaged: %v", damage)
	}
	if files, err := l.fs.(*vfs.Mem).List("data/quarantine"); err != nil || len(files) == 0 {
		t.Errorf("no copy of the damaged file is kept: %v", err)
	}
}

// What rots in the unsealed file above the commit is as unproven as in a sealed
// one. Whether the next start meets the damage or begins to read behind it, at a
// checkpoint: nothing is cut before a leader comes, and then the log is filled.
func TestHurt_unsealed(t *testing.T) {
	for name, last := range map[string]bool{"met by the next start": true, "behind a checkpoint": false} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			l := c.lead(1, "n1", "n2", "n3")
			p := l.declare("p")
			l.publish(p, message{id: 1, body: "common"})
			c.agree(l, "n2", "n3")
			c.link("n1", false)
			file, middle := l.publishUnsealed(p, 2)
			tail := l.replica.Stats().Log.Durable
			l.rotAt(file, middle, last)
			rotten, err := vfs.ReadFile(l.fs, file)
			l.must(err)
			if d, err := l.replica.Check(path.Base(file)); d == nil || err != nil {
				t.Fatalf("check: %v, %v", d, err)
			}
			if err := l.hearLost(); !errors.Is(err, segstore.ErrDamaged) || !strings.Contains(err.Error(), "orders") {
				t.Errorf("it is lost by %v", err)
			}
			until(t, "the next run is on", func() bool { return l.replica.Stats().Role == RoleFollowing && l.replica.log.Load() != nil })
			reports := []protocol.Report{l.fence(2), c.nodes["n2"].fence(2), c.nodes["n3"].fence(2)}
			if r := reports[0]; !r.Damaged || !r.Aside || r.Mark != tail {
				t.Errorf("it reports %+v, durable was %v", r, tail)
			}
			if d := protocol.SelectLeader(2, reports, c.config); d.Kind != protocol.Lost || d.Mark != tail {
				t.Errorf("election: %v up to %v", d.Kind, d.Mark)
			}
			register := func(as protocol.Registration) {
				t.Helper()
				until(t, "it is entered anew", func() bool { // a run that ends soon is not followed by the next at once
					return l.node.Registered(l.context(), streamUnderTest, 2, as) == nil
				})
			}
			register(5)
			l.must(l.node.Configure(l.context(), streamUnderTest, c.config))
			if b, err := vfs.ReadFile(l.fs, file); err != nil || !bytes.Equal(b, rotten) {
				t.Errorf("the file was changed before a leader came: %v", err)
			}
			n2 := c.lead(3, "n2", "n3") // as if an operator had given n1 up
			q := n2.declare("p")
			n2.publish(q, numbered(2, 5, 10)...)
			c.link("n1", true)
			until(t, "what is damaged is gone", func() bool {
				select {
				case err := <-l.lost: // a run that has cut its log is over
					if !errors.Is(err, segstore.ErrDamaged) {
						t.Fatalf("a run ends by %v", err)
					}
					register(6)
					c.link("n1", false)
					c.link("n1", true)
				default:
				}
				return len(l.replica.Damage()) == 0 && l.replica.Stats().Log.Tail == n2.replica.Stats().Log.Tail
			})
			c.agree(n2, "n1", "n3")
			if files, err := l.fs.(*vfs.Mem).List("data/quarantine"); err != nil || len(files) == 0 {
				t.Errorf("no copy of the damaged file is kept: %v", err)
			}
		})
	}
}

// A follower that has just started does not know how far its log is committed. Its
// end rots: it gives up what is behind, and gets it back from the leader, though
// nothing parts their logs.
func TestHurt_unsealedFollower(t *testing.T) {
	for name, last := range map[string]bool{"met by the next start": true, "behind a checkpoint": false} {
		t.Run(name, func(t *testing.T) {
			before := newCluster(t)
			l := before.lead(1, "n1", "n2", "n3")
			p := l.declare("p")
			l.publish(p, message{id: 1, body: "common"})
			file, middle := l.publishUnsealed(p, 2)
			before.agree(l, "n2", "n3")
			forgotten := make(chan error, 1) // as if what was committed had not been noted yet
			before.nodes["n3"].store.Journal().Change(streamUnderTest, func(s *segstore.StreamState) { s.Commit = 1 }, func(err error) { forgotten <- err })
			l.must(<-forgotten)
			disks := map[protocol.NodeID]*vfs.Mem{}
			for id, f := range before.nodes {
				disks[id] = f.fs.(*vfs.Mem).Crash(vfs.Policy{Writes: vfs.KeepAll, Names: vfs.KeepAll}, vfs.Seeded(1))
			}
			c := newClusterOn(t, disks)
			n3 := c.nodes["n3"]
			n3.rotAt(file, middle, last)
			if d, err := n3.replica.Check(path.Base(file)); d == nil || err != nil {
				t.Fatalf("check: %v, %v", d, err)
			}
			if err := n3.hearLost(); !errors.Is(err, segstore.ErrDamaged) {
				t.Errorf("it is lost by %v", err)
			}
			l = c.lead(2, "n1", "n2")
			for as := protocol.Registration(5); n3.replica.Stats().Log.Tail != l.replica.Stats().Log.Tail || len(n3.replica.Damage()) > 0; as++ {
				if as > 8 {
					t.Fatalf("n3 is at %+v", n3.replica.Stats().Log)
				}
				until(t, "it is entered anew", func() bool { return n3.node.Registered(n3.context(), streamUnderTest, 2, as) == nil })
				c.link("n3", false)
				c.link("n3", true)
				until(t, "it is level, or its run over", func() bool {
					return len(n3.lost) > 0 || n3.replica.Stats().Log.Tail == l.replica.Stats().Log.Tail
				})
				for len(n3.lost) > 0 {
					<-n3.lost
				}
			}
			c.agree(l, "n2", "n3")
			if files, err := disks["n3"].List("data/quarantine"); err != nil || len(files) == 0 {
				t.Errorf("no copy of the damaged file is kept: %v", err)
			}
		})
	}
}

// What rots in the leader's unsealed file below the commit is a majority's: the
// leader seals the file, idle as it is, and has it from a peer; the reign goes on.
func TestHurt_unsealedBelowCommit(t *testing.T) {
	c := newCluster(t)
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	l.publish(p, message{id: 1, body: "common"})
	file, middle := l.publishUnsealed(p, 2)
	c.agree(l, "n2", "n3")
	want := l.records()
	l.rotAt(file, middle, false)
	if d, err := l.replica.Check(path.Base(file)); d == nil || err != nil {
		t.Fatalf("check: %v, %v", d, err)
	}
	until(t, "it is sealed", func() bool { return len(l.replica.log.Load().Segments()) == 2 })
	c.agree(l, "n2", "n3")
	repaired, err := l.replica.Repair(t.Context(), peerSource{c.nodes["n2"].replica})
	if err != nil || !slices.Equal(repaired, []string{path.Base(file)}) {
		t.Fatalf("repaired %v, %v", repaired, err)
	}
	if damage := l.replica.Damage(); len(damage) != 0 || l.replica.Stats().Role != RoleLeading || len(l.lost) != 0 {
		t.Errorf("damaged: %v; %v", damage, l.replica.Stats().Role)
	}
	if got := l.records(); !slices.Equal(got, want) {
		t.Errorf("%d records, want %d", len(got), len(want))
	}
}

// Where the unsealed file is gone, what is appended to it goes with it: that is no
// matter of one chunk, above the commit or below.
func TestHurt_unsealedGone(t *testing.T) {
	c := newCluster(t)
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	l.publish(p, numbered(1, 10, 100)...)
	c.agree(l, "n2", "n3")
	n3 := c.nodes["n3"]
	segments := n3.replica.log.Load().Segments()
	file := n3.segmentFile(segments[len(segments)-1])
	n3.must(n3.fs.(*vfs.Mem).Remove(file))
	if d, err := n3.replica.Check(path.Base(file)); d == nil || err != nil {
		t.Fatalf("check: %v, %v", d, err)
	}
	if err := n3.hearLost(); !errors.Is(err, segstore.ErrDamaged) {
		t.Errorf("it is lost by %v", err)
	}
	l.publish(p, numbered(11, 10, 100)...)
	until(t, "it is entered anew", func() bool {
		return n3.node.Registered(n3.context(), streamUnderTest, 1, 5) == nil
	})
	c.link("n3", false)
	c.link("n3", true)
	c.agree(l, "n3")
}

// A sealed file is missing at a start, which reaches above what the replica knows
// to be committed: others may not have it, so it counts for nothing and is filled.
func TestHurt_sealedMissingAtStart(t *testing.T) {
	m := vfs.NewMem()
	before := newFixture(t, m, "/data", smallSegments)
	before.lead(1)
	p := before.declare("p")
	for i := range uint64(20) {
		before.publish(p, numbered(1+10*i, 10, 1000)...)
	}
	tail := before.replica.Stats().Log.Tail
	segments := before.replica.log.Load().Segments()
	last := segments[len(segments)-2]
	kept := make(chan error, 1)
	before.store.Journal().Change(streamUnderTest, func(s *segstore.StreamState) { s.Commit = last.FirstLSN }, func(err error) { kept <- err })
	before.must(<-kept)
	crashed := m.Crash(vfs.Policy{Writes: vfs.KeepAll, Names: vfs.KeepAll}, vfs.Seeded(1))
	before.must(crashed.Remove(before.segmentFile(last)))
	f := before.on(crashed)
	if r := f.fence(2); !r.Aside || !r.Damaged || r.Mark != tail {
		t.Errorf("it reports %+v, durable was %v", r, tail)
	}
	if st := f.replica.Stats(); st.Log.Tail != tail {
		t.Errorf("the tail is %v, and was %v", st.Log.Tail, tail)
	}
}

// Damage above what a sole voter knows to be committed stops the stream: nobody
// guesses, nothing is cut, and the error names what is lost.
func TestHurt_soleVoter(t *testing.T) {
	m := vfs.NewMem()
	before := newFixture(t, m, "/data", smallSegments)
	before.lead(1)
	p := before.declare("p")
	for i := range uint64(20) {
		before.publish(p, numbered(1+10*i, 10, 1000)...)
	}
	kept := make(chan error, 1) // as if what was committed had not been noted yet
	before.store.Journal().Change(streamUnderTest, func(s *segstore.StreamState) { s.Commit = 1 }, func(err error) { kept <- err })
	before.must(<-kept)
	f := before.on(m.Crash(vfs.Policy{Writes: vfs.KeepAll, Names: vfs.KeepAll}, vfs.Seeded(1)))
	segments := f.replica.log.Load().Segments()
	last := segments[len(segments)-2]
	if commit, _ := f.replica.Committed(); commit >= last.LastLSN {
		t.Fatalf("all up to %d is known to be committed, the segment ends at %d", commit, last.LastLSN)
	}
	tail := f.replica.Stats().Log.Tail
	f.rot(f.sealedFile(len(segments) - 2))
	if err := f.hearLost(); !errors.Is(err, segstore.ErrDamaged) || !strings.Contains(err.Error(), "offsets") {
		t.Errorf("it is lost by %v", err)
	}
	until(t, "the next run is on", func() bool { return f.replica.Stats().Role == RoleFollowing })
	report := f.fence(2)
	if d := protocol.SelectLeader(2, []protocol.Report{report}, alone); d.Kind != protocol.Lost || d.Mark != tail {
		t.Errorf("election: %v up to %v, the tail was %v; %+v", d.Kind, d.Mark, tail, report)
	}
	if f.replica.Stats().Log.Tail != tail {
		t.Error("something was cut")
	}
}

// A node that starts may hear of its replica's new entry before it hears who
// else holds the stream. The damaged end of the only replica stays all the same.
func TestHurt_soleVotersEnd(t *testing.T) {
	m := vfs.NewMem()
	before := newFixture(t, m, "/data")
	before.lead(1)
	p := before.declare("p")
	for i := range uint64(20) {
		before.publish(p, numbered(1+10*i, 10, 1000)...)
	}
	file := before.segmentFile(before.replica.log.Load().Segments()[0])
	crashed := m.Crash(vfs.Policy{Writes: vfs.KeepAll, Names: vfs.KeepAll}, vfs.Seeded(1))
	before.must(crashed.Edit(file, func(b []byte) []byte { b[len(b)/2] ^= 8; return b }))
	f := before.on(crashed)
	size := func() int {
		b, err := vfs.ReadFile(crashed, file)
		f.must(err)
		return len(b)
	}
	whole := size()
	registered := make(chan error, 1)
	f.node.BeginRegistered(streamUnderTest, 1, 5, func(err error) { registered <- err })
	f.must(<-registered)
	f.must(f.node.Configure(t.Context(), streamUnderTest, alone))
	if err := f.replica.log.Load().Err(); !errors.Is(err, segstore.ErrDamaged) {
		t.Errorf("the end is damaged, the log says %v", err)
	}
	if n := size(); n != whole {
		t.Errorf("its file was cut from %d bytes to %d", whole, n)
	}
}

// Wholly below the known commit it is the segment's alone.
func TestHurt_belowCommit(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "/data", smallSegments)
	f.lead(1)
	p := f.declare("p")
	for i := range uint64(20) {
		f.publish(p, numbered(1+10*i, 10, 1000)...)
	}
	f.rot(f.sealedFile(1))
	f.publish(p, numbered(201, 10, 10)...)
	if st := f.replica.Stats(); st.Role != RoleLeading || st.Log.Damaged != 1 || len(f.lost) != 0 {
		t.Errorf("%v with %d damaged", st.Role, st.Log.Damaged)
	}
}
