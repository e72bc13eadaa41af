package replication

import (
	"errors"
	"path"
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
