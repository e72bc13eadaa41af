package integration

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// What replicas of other systems got wrong (CASES.md), shown on three real
// processes.

// replicaCases is how many rounds such a test has; none in `go test ./...`, which
// has no time for it.
func replicaCases(t *testing.T) int {
	t.Helper()
	n := number(t, "REPLICA_CASES", 0)
	if n == 0 {
		t.Skip("cases of replicas take long; make cluster-test has them")
	}
	return n
}

// TestReplicaCases_restartSendsLittle restarts replicas under a leader that stays:
// what they have is right, and is not sent again (RP-03).
func TestReplicaCases_restartSendsLittle(t *testing.T) {
	replicaCases(t)
	cluster, network := harness.StartPartitionable(t, 3)
	c := &clusterTest{t: t, cluster: cluster}
	c.create()
	c.streams = c.streams[:1]
	s := c.streams[0]
	const bytes = 16 << 20
	c.fill(s, bytes)
	c.level(s)
	leader := c.cluster.Leader(s.name)
	for _, how := range []string{"SIGTERM", "kill -9"} {
		replica := c.cluster.Others(leader)[0]
		if how == "SIGTERM" {
			replica.Stop()
		} else {
			replica.Kill()
		}
		before := network.Passed(leader, replica)
		c.cluster.Restart(replica)
		c.fill(s, 1<<17) // 8 messages: it follows once it has them
		c.level(s)
		sent := network.Passed(leader, replica) - before
		t.Logf("FIGURE replica restarted by %s: %d KiB were sent to it, of a stream of %d MiB", how, sent>>10, bytes>>20)
		if sent > bytes/20 {
			t.Errorf("%s: %d bytes were sent to a replica that had all but %d", how, sent, 1<<17)
		}
	}
	if err := c.cluster.SameReplicas(); err != nil {
		t.Error(err)
	}
}

// TestReplicaCases_registersFollowTheLeader publishes a message and stores an
// offset, and then the leader goes: by a move, or by kill -9. Wherever it is, the
// commit that clients are told has not gone back, and both queries answer the last
// value on every node (RP-05, TR-09).
func TestReplicaCases_registersFollowTheLeader(t *testing.T) {
	rounds := replicaCases(t)
	c := newClusterTest(t)
	c.streams = c.streams[:1]
	s := c.streams[0]
	random := rand.New(rand.NewPCG(1, 2))
	committed := int64(-1)
	for round := range uint64(rounds) {
		leader := c.cluster.Leader(s.name)
		conn := c.dial(leader)
		confirmed := make(chan uint64, 10)
		p, err := conn.DeclarePublisher(t.Context(), client.PublisherConfig{
			Stream: s.name, Reference: "p", Confirmed: func(ids []uint64) { confirmed <- ids[len(ids)-1] },
		})
		if err != nil {
			t.Fatal(err)
		}
		if last := p.Last(); last != round {
			t.Fatalf("round %d: the sequence is %d on %s", round, last, leader.Name)
		}
		s.ledger.Sent(1, round+1)
		if err := p.Send(round+1, harness.AppendMessage(nil, 1, round+1, 100)); err != nil {
			t.Fatal(err)
		}
		if err := p.Flush(); err != nil {
			t.Fatal(err)
		}
		select {
		case <-confirmed:
			s.ledger.Confirmed(1, round+1)
		case <-time.After(usableWithin):
			t.Fatalf("round %d: no confirm", round)
		}
		value := 100 * (round + 1)
		if err := conn.StoreOffset("r", s.name, value); err != nil {
			t.Fatal(err)
		}
		if got, err := conn.QueryOffset(t.Context(), "r", s.name); err != nil || got != value {
			t.Fatalf("round %d: stored %d, answered %d (%v)", round, value, got, err)
		}
		stats, err := conn.Stats(t.Context(), s.name)
		if err != nil || stats["committed_offset"] < int64(round) || stats["committed_offset"] < committed {
			t.Fatalf("round %d: message %d is confirmed, stats say %v (%v), and said %d", round, round, stats, err, committed)
		}
		committed = stats["committed_offset"]
		conn.Abort()

		to := c.cluster.Others(leader)[random.IntN(2)]
		if random.IntN(3) == 0 {
			time.Sleep(2 * harness.StoreWindow) // within it a kill may cost the offset
			leader.Kill()
			to = c.cluster.Leader(s.name)
			c.checkRegisters(round, to, s, committed, value)
			c.cluster.Restart(leader)
			c.level(s)
		} else {
			c.moveBy(leader, s, to)
		}
		for _, n := range c.cluster.Nodes {
			if n == c.cluster.Leader(s.name) {
				c.checkRegisters(round, n, s, committed, value)
			} else {
				c.checkRegisters(round, n, s, -1, value)
			}
		}
	}
	c.judgeRead(s)
}

// checkRegisters asks one node.
func (c *clusterTest) checkRegisters(round uint64, n *harness.Node, s *clusterStream, committed int64, stored uint64) {
	c.t.Helper()
	conn := c.dial(n)
	defer conn.Abort()
	stats, err := conn.Stats(c.t.Context(), s.name)
	if err != nil || stats["committed_offset"] < committed {
		c.t.Fatalf("round %d: %s says of the commit %v (%v); clients were told %d", round, n.Name, stats, err, committed)
	}
	var got uint64
	c.until("the query is answered", func() bool { // while an epoch begins it is not
		got, err = conn.QueryOffset(c.t.Context(), "r", s.name)
		return err == nil || client.Code(err) == wire.CodeNoOffset
	})
	if err != nil || got != stored {
		c.t.Fatalf("round %d: %s answers offset %d (%v), and %d was stored last", round, n.Name, got, err, stored)
	}
}

// judgeRead reads a stream everywhere and compares the disks.
func (c *clusterTest) judgeRead(s *clusterStream) {
	c.t.Helper()
	if err := c.cluster.AwaitLevel(s.name); err != nil {
		c.t.Fatal(err)
	}
	for _, n := range c.cluster.Nodes {
		c.read(n, s)
	}
	if err := c.cluster.SameReplicas(); err != nil {
		c.t.Error(err)
	}
}

// TestReplicaCases_readersOfWholeChunks has twenty readers at the tail of the
// replicas while chunks of nearly a megabyte come: each reader gets each chunk
// whole, in order, over the one connection that it has (ST-12).
func TestReplicaCases_readersOfWholeChunks(t *testing.T) {
	replicaCases(t)
	c := newClusterTest(t)
	c.streams = c.streams[:1]
	s := c.streams[0]
	const readers, messages, size = 20, 60, 900_000
	followers := c.cluster.Others(c.cluster.Leader(s.name))
	copies := make([]harness.Copy, readers)
	var reading sync.WaitGroup
	for i := range copies {
		reading.Go(func() { copies[i] = followers[i%2].ReadCopy(s.name, 0, messages) })
	}
	conn := c.dial(c.cluster.Leader(s.name))
	defer conn.Close()
	p, err := conn.DeclarePublisher(t.Context(), client.PublisherConfig{Stream: s.name, Window: 4})
	if err != nil {
		t.Fatal(err)
	}
	for id := range uint64(messages) {
		if err := p.Send(id+1, bytes.Repeat([]byte{byte(id)}, size)); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	reading.Wait()
	for i := range copies {
		if copies[i].Problem != nil || len(copies[i].Chunks) != messages {
			t.Errorf("reader %d got %d chunks: %v", i, len(copies[i].Chunks), copies[i].Problem)
		} else if err := copies[0].SameMessages(&copies[i]); err != nil {
			t.Error(err)
		}
	}
	if err := c.cluster.SameReplicas(); err != nil {
		t.Error(err)
	}
}

// TestReplicaCases_damagedReplicaLeads flips bits in the data, the header's length
// and the trailer of a stopped replica, starts it, and has it lead at once: its
// readers get what was published or an error, and in the end all is whole (ST-09).
func TestReplicaCases_damagedReplicaLeads(t *testing.T) {
	replicaCases(t)
	c := newClusterTest(t)
	c.streams = c.streams[:1]
	s := c.streams[0]
	c.start()
	victim := c.cluster.Others(c.cluster.Leader(s.name))[0]
	c.until("segments are sealed", func() bool { return c.figures(victim, s).Segments > 4 })
	victim.Stop()
	files, err := filepath.Glob(filepath.Join(victim.DataDir, "streams", "*-"+c.figures(c.cluster.Others(victim)[0], s).Incarnation, "*.seg"))
	if err != nil || len(files) < 5 {
		t.Fatalf("segments %v, %v", files, err)
	}
	slices.Sort(files)
	// The first chunk's head: 33 bytes in is the length of its data, 50 its
	// trailer or payload; far behind is data.
	for i, at := range []int64{100_000, 33, 50} {
		if err := harness.Flip(files[i+1], 8*at); err != nil {
			t.Fatal(err)
		}
	}
	c.cluster.Restart(victim)
	c.level(s)
	c.until("the damaged replica leads", func() bool {
		status, _, err := victim.Put("/api/v1/streams/%2F/"+s.name+"/leader", admin.LeaderRequest{Node: victim.Name})
		return err == nil && status == 200
	})
	c.readDamaged(victim, s)
	if status, body, err := victim.Post("/api/v1/streams/%2F/" + s.name + "/verify"); err != nil || status != 200 {
		t.Fatalf("verify: %d, %v: %s", status, err, body)
	}
	c.until("all three are fetched", func() bool {
		return strings.Count(victim.Log(), mendedLine) == 3 && c.figures(victim, s).DamagedSegments == 0
	})
	c.flows()
	c.finish()
}

// TestReplicaCases_journal damages what a replica must remember, its promise, mark
// and commit, in every way in which a small file can be broken: it counts for
// nothing until it has entered anew, and the others go on (RP-06).
func TestReplicaCases_journal(t *testing.T) {
	replicaCases(t)
	c := newClusterTest(t)
	all := c.streams
	c.streams = c.streams[:1]
	s := c.streams[0]
	c.start()
	damaged := map[*harness.Node]int{}
	for i, damage := range []struct {
		name string
		do   func(path string) error
	}{
		{"removed", os.Remove},
		{"emptied", func(p string) error { return os.Truncate(p, 0) }},
		{"a bit flipped", func(p string) error { return harness.Flip(p, 8*20) }},
		{"garbage", func(p string) error { return os.WriteFile(p, bytes.Repeat([]byte("x"), 500), 0o600) }},
	} {
		victim := c.cluster.Nodes[i%3]
		damaged[victim]++
		c.killed(victim)
		files, err := filepath.Glob(filepath.Join(victim.DataDir, "journal", "*"))
		if err != nil || len(files) == 0 {
			t.Fatalf("journal %v, %v", files, err)
		}
		for _, f := range files {
			if err := damage.do(f); err != nil {
				t.Fatal(err)
			}
		}
		c.flows()
		c.cluster.Restart(victim)
		c.level(s)
		// That it counts the catalog says before it has heard of the damage; to lead
		// it must have entered anew.
		c.until("journal "+damage.name+": the replica leads", func() bool {
			status, _, err := victim.Put("/api/v1/streams/%2F/"+s.name+"/leader", admin.LeaderRequest{Node: victim.Name})
			return err == nil && status == 200 && c.cluster.Leader(s.name) == victim
		})
		for _, idle := range all[1:] { // it has lost what these promised too
			c.level(idle)
		}
	}
	c.finish()
	for _, n := range c.cluster.Nodes { // which have ended
		disks, err := harness.ReadDisk(t, n.DataDir)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range disks {
			if d.Registration < uint64(damaged[n]) {
				t.Errorf("node %s has lost its journal %d times, and its replica is entered as number %d", n.Name, damaged[n], d.Registration)
			}
		}
	}
}

// TestReplicaCases_lastOneServes has a replica begin anew where its leader does,
// and then be the only one left: readers find all that it says it has (RP-09).
func TestReplicaCases_lastOneServes(t *testing.T) {
	replicaCases(t)
	c := newClusterTest(t)
	s := &clusterStream{name: "short", ledger: harness.NewLedger()}
	conn := c.dial(c.cluster.Nodes[0])
	err := conn.Create(t.Context(), s.name, map[string]string{"stream-max-segment-size-bytes": "100000", "max-length-bytes": "300000"})
	conn.Close()
	if err != nil {
		t.Fatal(err)
	}
	c.streams = []*clusterStream{s}
	c.start()
	leader := c.cluster.Leader(s.name)
	away := c.cluster.Others(leader)[0]
	c.until("the replica has something", func() bool { return c.figures(away, s).NextOffset > 100 })
	had := c.figures(away, s).NextOffset
	c.killed(away)
	leader = c.cluster.Leader(s.name)
	c.until("the leader has given up all that it had", func() bool { return c.figures(leader, s).FirstOffset > had+1000 })
	c.stop()
	c.cluster.Restart(away)
	c.level(s)
	for _, n := range c.cluster.Others(away) {
		n.Kill()
	}
	f := c.figures(away, s)
	if f.FirstOffset <= had || f.NextOffset < f.FirstOffset {
		t.Errorf("it had up to %d, and says that it has %d to %d", had, f.FirstOffset, f.NextOffset)
	}
	for _, from := range []uint64{f.FirstOffset, (f.FirstOffset + f.NextOffset) / 2, f.NextOffset - 1} {
		if got := away.ReadCopyWithin(s.name, from, f.NextOffset, usableWithin); got.Problem != nil {
			t.Errorf("from %d: %v", from, got.Problem)
		}
	}
	c.cluster.Restart(c.cluster.Others(away)...)
	if err := c.cluster.SameReplicas(); err != nil {
		t.Error(err)
	}
}
