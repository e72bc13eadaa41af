package replication

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// cluster is a stream with a replica on each of three nodes, joined by links
// that lose nothing until they are cut.
type cluster struct {
	t      testing.TB
	config protocol.Configuration
	nodes  map[protocol.NodeID]*fixture
	wishes chan protocol.Proposal

	mu  sync.Mutex // guards cut
	cut map[protocol.NodeID]bool
}

// wire is one node's way to the others.
type wire struct {
	*cluster
	from protocol.NodeID
}

func (w wire) Connect(protocol.NodeID) {}

func (w wire) Send(to protocol.NodeID, f *Frame) {
	w.mu.Lock()
	defer w.mu.Unlock() // until it is delivered, so that a cut is one
	if w.cut[to] || w.cut[w.from] {
		return
	}
	g := *f
	g.Pending = slices.Clone(f.Pending)
	if f.Chunk != nil {
		g.Chunk = segstore.NewChunk(len(f.Chunk.Data))
		g.Chunk.Head = append(g.Chunk.Head, f.Chunk.Head...)
		g.Chunk.Data = append(g.Chunk.Data, f.Chunk.Data...)
	}
	w.nodes[to].node.Deliver(w.from, &g)
}

// newCluster starts three nodes; nobody leads.
func newCluster(t testing.TB, change ...func(*fixture)) *cluster {
	t.Helper()
	return newClusterOn(t, map[protocol.NodeID]*vfs.Mem{"n1": vfs.NewMem(), "n2": vfs.NewMem(), "n3": vfs.NewMem()}, change...)
}

// newClusterOn has the nodes on disks of the test's choice.
func newClusterOn(t testing.TB, disks map[protocol.NodeID]*vfs.Mem, change ...func(*fixture)) *cluster {
	t.Helper()
	c := &cluster{t: t, nodes: map[protocol.NodeID]*fixture{}, cut: map[protocol.NodeID]bool{}, wishes: make(chan protocol.Proposal, 1000)}
	c.config.Version = 1
	for _, id := range []protocol.NodeID{"n1", "n2", "n3"} {
		c.config.Members = append(c.config.Members, protocol.Member{Node: id})
		c.nodes[id] = newFixture(t, disks[id], "data", append(change, func(f *fixture) {
			f.config.ID, f.config.Transport = id, wire{c, id}
			f.config.Propose = func(_ chunk.Incarnation, p protocol.Proposal) { c.wishes <- p }
		})...)
	}
	for from := range c.nodes {
		c.link(from, true)
	}
	t.Cleanup(func() { // before the nodes stop: those that go on send to nobody
		c.mu.Lock()
		defer c.mu.Unlock()
		for id := range c.nodes {
			c.cut[id] = true
		}
	})
	return c
}

// link joins a node to the others, or cuts it off.
func (c *cluster) link(id protocol.NodeID, up bool) {
	c.mu.Lock()
	c.cut[id] = !up
	c.mu.Unlock()
	for _, other := range c.config.Members {
		if other.Node == id {
			continue
		}
		if up {
			c.nodes[id].node.LinkUp(other.Node)
			c.nodes[other.Node].node.LinkUp(id)
		} else {
			c.nodes[id].node.LinkDown(other.Node)
			c.nodes[other.Node].node.LinkDown(id)
		}
	}
}

// lead elects a leader from the reports of some nodes, as the coordinator does,
// and waits for its barrier.
func (c *cluster) lead(epoch chunk.Epoch, of ...protocol.NodeID) *fixture {
	c.t.Helper()
	var reports []protocol.Report
	for _, id := range of {
		reports = append(reports, c.nodes[id].fence(epoch))
	}
	d := protocol.SelectLeader(epoch, reports, c.config, of...)
	if d.Kind != protocol.Elected {
		c.t.Fatalf("election of epoch %d: %v", epoch, d.Kind)
	}
	f := c.nodes[d.Node]
	f.must(f.node.Assign(f.context(), protocol.Assignment{
		Stream: streamUnderTest, Epoch: epoch, Node: d.Node, Run: d.Run, Replicas: c.config,
	}, &d.Inheritance))
	until(c.t, "the barrier is committed", func() bool { return f.replica.Stats().Role == RoleLeading })
	return f
}

// agree waits until nodes hold and know to be committed what the leader does.
func (c *cluster) agree(leader *fixture, of ...protocol.NodeID) {
	c.t.Helper()
	for _, id := range of {
		until(c.t, fmt.Sprintf("%s is level", id), func() bool {
			want, _ := leader.replica.Committed()
			got, _ := c.nodes[id].replica.Committed()
			st := c.nodes[id].replica.Stats()
			return got == want && st.Log.Tail == leader.replica.Stats().Log.Tail
		})
		if want, got := leader.records(), c.nodes[id].records(); !slices.Equal(want, got) {
			c.t.Fatalf("%s holds %d records %.300q, the leader %d %.300q", id, len(got), got, len(want), want)
		}
	}
}

func TestCluster_copies(t *testing.T) {
	c := newCluster(t)
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	for i := range 50 {
		l.publish(p, message{id: uint64(i + 1), body: fmt.Sprint("m", i)})
	}
	c.agree(l, "n1", "n2", "n3")
}

// A follower that was away is brought up from the leader's files.
func TestCluster_catchesUp(t *testing.T) {
	c := newCluster(t)
	l := c.lead(1, "n1", "n2", "n3")
	c.link("n3", false)
	p := l.declare("p")
	for i := range 700 { // more than one reading
		l.publish(p, message{id: uint64(i + 1), body: fmt.Sprint("m", i)})
	}
	c.link("n3", true)
	c.agree(l, "n2", "n3")
	l.wantSequence("p", 700)
}

// What a deposed leader wrote and nobody has is cut; a new leader's goes on.
func TestCluster_divergence(t *testing.T) {
	c := newCluster(t)
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	l.publish(p, message{id: 1, body: "common"})
	c.agree(l, "n2", "n3")
	c.link("n1", false)
	sink := newCollector()
	l.replica.Publish(batchOf(p, sink, message{id: 2, body: "lost"}))
	until(t, "it is durable on the old leader", func() bool { return l.replica.Stats().Log.Durable.LSN == 3 })
	n2 := c.lead(2, "n2", "n3")
	q := n2.declare("p")
	n2.publish(q, message{id: 2, body: "kept"})
	c.link("n1", true)
	c.agree(n2, "n1", "n3")
	n2.wantRecords("common", "kept")
	if err := sink.wait(t, 1); !errors.Is(err, ErrNotLeader) {
		t.Errorf("the deposed leader's batch: %v", err)
	}
	if got := l.replica.Stats().Role; got != RoleFollowing {
		t.Errorf("the deposed leader is %v", got)
	}
}

// Without a majority nothing is confirmed; with it again all is.
func TestCluster_needsAMajority(t *testing.T) {
	c := newCluster(t)
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	l.publish(p, message{id: 1, body: "a"})
	c.link("n2", false)
	c.link("n3", false)
	sink := newCollector()
	l.replica.Publish(batchOf(p, sink, message{id: 2, body: "b"}))
	until(t, "the leader has it", func() bool { return l.replica.Stats().Log.Durable.LSN == 3 })
	if got := sink.ids(); len(got) != 0 {
		t.Fatalf("confirmed %v alone", got)
	}
	c.link("n2", true)
	l.must(sink.wait(t, 1))
	c.agree(l, "n2")
}

// A stored offset that no chunk holds yet survives its leader in the followers'
// memory (F5).
func TestCluster_pendingOffsetsSurvive(t *testing.T) {
	c := newCluster(t)
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("")
	for i := range 5 {
		l.publish(p, message{id: uint64(i), body: "m"})
	}
	l.must(l.replica.StoreOffset("c", 2))
	until(t, "it is written", func() bool { return l.replica.Stats().PendingOffsets == 0 })
	l.must(l.replica.StoreOffset("c", 3)) // within the interval: not written
	for _, id := range []protocol.NodeID{"n2", "n3"} {
		until(t, "a follower has heard", func() bool {
			o, ok, err := c.nodes[id].replica.QueryOffset("c")
			return err == nil && ok && o == 3
		})
	}
	c.link("n1", false)
	n2 := c.lead(2, "n2", "n3")
	n2.wantOffset("c", 3)
}

// Of more than fits one frame none is left out.
func TestCluster_manyPendingOffsetsSurvive(t *testing.T) {
	c := newCluster(t, func(f *fixture) { f.stream.Settings.Pacing = tracking.Pacing{IntervalMax: 3_600_000} }) // none is written
	l := c.lead(1, "n1", "n2", "n3")
	c.link("n3", false)
	const references = 9000
	reference := func(i int) string { return fmt.Sprintf("%05d%s", i, strings.Repeat("r", 195)) }
	for i := range references {
		l.must(l.replica.StoreOffset(reference(i), chunk.Offset(i)))
	}
	c.link("n3", true) // is told all at once
	for _, id := range []protocol.NodeID{"n2", "n3"} {
		for _, i := range []int{references - 1, 0} {
			until(t, "a follower has heard", func() bool {
				o, ok, err := c.nodes[id].replica.QueryOffset(reference(i))
				return err == nil && ok && o == chunk.Offset(i)
			})
		}
	}
	if n := l.replica.Stats().PendingOffsets; n != references {
		t.Errorf("%d are pending, want %d: the rest was written", n, references)
	}
}

// A sequence is not answered by a leader whom nobody follows any more (F3).
func TestCluster_sequenceAsksAMajority(t *testing.T) {
	c := newCluster(t)
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	l.publish(p, message{id: 7, body: "a"})
	l.wantSequence("p", 7)
	c.link("n2", false)
	c.link("n3", false)
	answered := make(chan error, 1)
	l.replica.Sequence("p", func(_ uint64, _ bool, err error) { answered <- err })
	l.wantRecords("a") // a round through the turn
	select {
	case err := <-answered:
		t.Fatalf("answered alone: %v", err)
	default:
	}
	c.link("n2", true)
	l.must(<-answered)
}

// A handover leaves nothing behind (D4).
func TestCluster_handsOver(t *testing.T) {
	c := newCluster(t)
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	l.publish(p, message{id: 1, body: "a"})
	l.must(l.replica.StoreOffset("c", 1))
	c.agree(l, "n3") // who has not caught up is refused as a target
	l.must(l.node.Handover(l.context(), streamUnderTest, "n3"))
	n3 := c.lead(2, "n3", "n2")
	if n3.config.ID != "n3" {
		t.Fatalf("%s leads", n3.config.ID)
	}
	n3.wantRecords("a")
	n3.wantOffset("c", 1)
	n3.wantSequence("p", 1)
	c.agree(n3, "n1", "n2")
}

// A handover after which nobody is elected ends, and what publishers sent
// meanwhile is stored though nothing else happens.
func TestCluster_handsOverForNothing(t *testing.T) {
	c := newCluster(t, func(f *fixture) { f.config.Limits.TransferAfter = 100 })
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	l.publish(p, message{id: 1, body: "a"})
	c.agree(l, "n2", "n3")
	l.must(l.node.Handover(l.context(), streamUnderTest, "n3"))
	l.publish(p, message{id: 2, body: "b"}) // held, until the patience is over
	c.agree(l, "n2", "n3")
	l.wantRecords("a", "b")
}

// A damaged chunk on the way ends the session, is not stored, and is sent again.
func TestCluster_damagedOnTheWay(t *testing.T) {
	c := newCluster(t)
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	l.publish(p, message{id: 1, body: "a"})
	c.agree(l, "n2", "n3")
	leader, _ := l.replica.turns.run.protocol.Leading()
	session := leader.Peers()[1].Session()
	bad := segstore.NewChunk(0)
	bad.Head = append(bad.Head, make([]byte, chunk.StorageHeaderLength+chunk.ClientHeaderLength)...)
	c.nodes["n3"].node.Deliver("n1", &Frame{
		Stream: streamUnderTest, Chunk: bad,
		Message: protocol.Message{Kind: protocol.MsgChunk, Epoch: 1, Session: session, Chunk: protocol.Chunk{LSN: 3}},
	})
	l.publish(p, message{id: 2, body: "b"})
	c.agree(l, "n2", "n3")
}

// A stream whose frames were dropped begins a new session when they pass again,
// and what was dropped comes after all.
func TestCluster_framesOfAStreamDropped(t *testing.T) {
	c := newCluster(t)
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	l.publish(p, message{id: 1, body: "a"})
	c.agree(l, "n2", "n3")
	leader, _ := l.replica.turns.run.protocol.Leading()
	before := leader.Peers()[1].Session()
	c.mu.Lock()
	c.cut["n3"] = true
	c.mu.Unlock()
	l.node.StreamDown("n3", streamUnderTest)
	l.publish(p, message{id: 2, body: "b"}) // n2 is a majority with the leader
	c.mu.Lock()
	c.cut["n3"] = false
	c.mu.Unlock()
	l.node.StreamUp("n3", streamUnderTest)
	c.agree(l, "n2", "n3")
	if after := leader.Peers()[1].Session(); after == before {
		t.Errorf("still session %d", after)
	}
}

// Every delivered frame gives its credit back, once, whether it says anything or
// not.
func TestCluster_creditGoesBack(t *testing.T) {
	c := newCluster(t)
	c.lead(1, "n1", "n2", "n3")
	for _, stream := range []chunk.Incarnation{streamUnderTest, streamUnderTest + 1} {
		taken := make(chan int, 2)
		c.nodes["n3"].node.Deliver("n1", &Frame{
			Stream: stream, Message: protocol.Message{Kind: protocol.MsgPending, Epoch: 1, Session: 99},
			Taken: func(n int) { taken <- n }, Credit: 7,
		})
		if n := <-taken; n != 7 || len(taken) > 0 {
			t.Errorf("stream %v: %d taken", stream, n)
		}
	}
}

// An assignment that comes twice brings nothing back that the election left and
// that was stored over since (F5).
func TestCluster_assignedTwice(t *testing.T) {
	c := newCluster(t)
	l := c.lead(1, "n1", "n2", "n3")
	old := tracking.EncodeUpdates(nil, []tracking.Update{{Ref: "c", Offset: 3, Epoch: 1, Version: 7}}, 1000)
	err := l.node.Assign(l.context(), protocol.Assignment{
		Stream: streamUnderTest, Epoch: 1, Node: "n1", Run: 1, Replicas: c.config,
	}, &protocol.Inheritance{Pending: [][]byte{old}})
	var refused *RefusedError
	if !errors.As(err, &refused) || refused.Reason != protocol.ReasonLeads {
		t.Fatalf("assigned again: %v", err)
	}
	if offset, ok, err := l.replica.QueryOffset("c"); ok || err != nil {
		t.Errorf("the second assignment has brought %d, %v", offset, err)
	}
}

// A reading that ends the reign takes those behind it with it.
func TestCluster_readingEndsTheReign(t *testing.T) {
	c := newCluster(t, func(f *fixture) { f.config.Limits.WindowChunks = 1 })
	l := c.lead(1, "n1", "n2", "n3")
	p := l.declare("p")
	c.agree(l, "n2", "n3")
	c.mu.Lock()
	c.cut["n2"], c.cut["n3"] = true, true // what is sent from here on is never acked
	c.mu.Unlock()
	sink := newCollector()
	for i := range uint64(3) { // LSN 2 is on its way, 3 and 4 wait for the window
		l.replica.Publish(batchOf(p, sink, message{id: i + 1, body: "m"}))
		until(t, "it is durable", func() bool { return l.replica.Stats().Log.Durable.LSN == chunk.LSN(i+2) })
	}
	readings := make(chan int, 1)
	l.replica.post(event{kind: eventCompact, call: func() { // in a turn
		leader, _ := l.replica.turns.run.protocol.Leading()
		for _, peer := range leader.Peers() {
			ack := protocol.Message{Kind: protocol.MsgAck, Epoch: 1, Session: peer.Session(), LSN: 2}
			l.replica.step(protocol.Input{Kind: protocol.InMessage, Peer: peer.Node(), Message: &ack})
		}
		reads := l.replica.turns.reads
		for i := range reads {
			reads[i].lsn++ // as if chunk 3 were missing, which is not committed (C5)
		}
		readings <- len(reads)
	}})
	if n := <-readings; n != 2 {
		t.Fatalf("%d readings at a time, want 2", n)
	}
	until(t, "the leader has stopped", func() bool { return l.replica.Stats().Role == RoleStopped })
	if err := sink.wait(t, 3); !errors.Is(err, ErrNotLeader) {
		t.Errorf("what waited: %v", err)
	}
}
