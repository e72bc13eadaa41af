package integration

import (
	"context"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// Three real processes whose talk can be cut, each direction for itself: here by
// gates that hold what is said, in namespaces_linux_test.go by a network that
// loses it. While a direction is cut, clients reach every node.

const (
	// cutFor is longer than links, gossip and raft are patient.
	cutFor = 3 * time.Second
	// cutGapMax is how long publishers may be without a confirm while a majority
	// is connected. It holds the time that clients lose with a leader that has
	// been cut off and does not know.
	cutGapMax = 10 * time.Second
	// cutsDefault is for `go test ./...`; make partition-test has all.
	cutsDefault = 1
	// uncommittedMax is what a leader without a majority accepts (B7), and
	// uncommittedSlack what may be on its way when it begins to refuse.
	uncommittedMax   = 64 << 20
	uncommittedSlack = 8 << 20
)

// breakable is a network that can be cut.
type breakable interface {
	Cut(from, to *harness.Node)
	CutBoth(a, b *harness.Node)
	Heal()
}

// cutTest is a cluster test with readers on every node.
type cutTest struct {
	*clusterTest
	network  breakable
	watchers map[*clusterStream][]*harness.Watcher
	seed     maphash.Seed
}

// strayAllowance lets one connection have more unconfirmed than a leader without
// a majority accepts.
var strayAllowance = []string{"--stream-unconfirmed-bytes", "134217728"}

func newCutTest(t *testing.T, cluster *harness.Cluster, network breakable) *cutTest {
	t.Helper()
	c := &cutTest{
		clusterTest: &clusterTest{t: t, cluster: cluster}, network: network,
		watchers: map[*clusterStream][]*harness.Watcher{}, seed: maphash.MakeSeed(),
	}
	c.create()
	c.spread()
	for _, s := range c.streams {
		for _, n := range cluster.Nodes {
			w := harness.Watch(n, s.name, c.seed)
			c.watchers[s] = append(c.watchers[s], w)
			t.Cleanup(w.Stop)
		}
	}
	c.start()
	return c
}

// spread has each stream led by a node of its own.
func (c *cutTest) spread() {
	c.t.Helper()
	for i, s := range c.streams {
		c.move(s, c.cluster.Nodes[i])
	}
}

// cut tells the traffic that leaders may be lost from now on, and cuts.
func (c *cutTest) cut(how func()) (at time.Time) {
	c.gap()
	at = time.Now()
	for _, s := range c.streams {
		s.traffic.Cut(at)
	}
	how()
	return at
}

// heal ends the cut, and returns how soon all replicas follow again.
func (c *cutTest) heal() time.Duration {
	c.t.Helper()
	c.network.Heal()
	begin := time.Now()
	for _, s := range c.streams {
		c.level(s)
	}
	took := time.Since(begin)
	for _, s := range c.streams {
		s.traffic.Healed()
	}
	return took
}

// judge is finish, and holds what readers have seen against what is there.
func (c *cutTest) judge() {
	c.t.Helper()
	c.stop()
	saw := uint64(0)
	for _, s := range c.streams {
		final := harness.Watch(c.cluster.Nodes[0], s.name, c.seed)
		c.awaitRead(s, append(slices.Clone(c.watchers[s]), final))
		final.Stop()
		for _, w := range c.watchers[s] {
			w.Stop()
			if err := w.Against(final); err != nil {
				c.t.Error(err)
			}
			saw += w.Next()
		}
	}
	c.t.Logf("FIGURE %s: nine readers, three on each node, saw %d records; none vanished, none changed", c.t.Name(), saw)
	c.finish()
}

// awaitRead waits until readers are at the end of a stream.
func (c *cutTest) awaitRead(s *clusterStream, watchers []*harness.Watcher) {
	c.t.Helper()
	if err := c.cluster.AwaitLevel(s.name); err != nil {
		c.t.Fatal(err)
	}
	conn := c.dial(c.cluster.Nodes[0])
	defer conn.Close()
	stats, err := conn.Stats(c.t.Context(), s.name)
	if err != nil {
		c.t.Fatal(err)
	}
	end := uint64(stats["committed_offset"] + 1)
	ctx, cancel := context.WithTimeout(c.t.Context(), usableWithin)
	defer cancel()
	for _, w := range watchers {
		if err := w.Await(ctx, end); err != nil {
			c.t.Fatal(err)
		}
	}
}

// stray is a client that stays with the leader that is cut off, and sends
// messages that nobody must ever find.
type stray struct {
	conn    *client.Conn
	pub     *client.Publisher
	declare func() error // pub anew
	next    uint64

	mu        sync.Mutex // guards all below
	confirmed uint64     // the highest id
	all       []uint64   // every id confirmed
	refused   []wire.PublishingError
	changed   chan struct{} // capacity 1
}

const (
	strayProducer = 99
	strayName     = "stray"
	strayBytes    = 64 << 10
)

func (c *cutTest) stray(s *clusterStream, leader *harness.Node) *stray {
	c.t.Helper()
	y := &stray{conn: c.dial(leader), changed: make(chan struct{}, 1)}
	c.t.Cleanup(y.conn.Abort)
	note := func() {
		select {
		case y.changed <- struct{}{}:
		default:
		}
	}
	y.declare = func() (err error) {
		y.pub, err = y.conn.DeclarePublisher(c.t.Context(), client.PublisherConfig{
			Stream: s.name, Reference: strayName, FrameMessages: 4,
			Confirmed: func(ids []uint64) {
				y.mu.Lock()
				defer y.mu.Unlock()
				y.confirmed = max(y.confirmed, slices.Max(ids))
				y.all = append(y.all, ids...)
				note()
			},
			Refused: func(refused []wire.PublishingError) {
				y.mu.Lock()
				defer y.mu.Unlock()
				y.refused = append(y.refused, refused...)
				note()
			},
		})
		return err
	}
	if err := y.declare(); err != nil {
		c.t.Fatal(err)
	}
	return y
}

// send publishes so many bytes more.
func (y *stray) send(c *cutTest, s *clusterStream, bytes int) {
	c.t.Helper()
	for range bytes / strayBytes {
		y.next++
		s.ledger.Sent(strayProducer, y.next)
		if err := y.pub.Send(y.next, harness.AppendMessage(nil, strayProducer, y.next, strayBytes)); err != nil {
			y.ended(c, err)
			return
		}
	}
	if err := y.pub.Flush(); err != nil {
		y.ended(c, err)
	}
}

// ended: a publisher with a name ends with the first message that is refused.
func (y *stray) ended(c *cutTest, err error) {
	c.t.Helper()
	y.mu.Lock()
	defer y.mu.Unlock()
	if len(y.refused) == 0 {
		c.t.Fatal(err)
	}
}

// await waits for an answer that is as wanted.
func (y *stray) await(c *cutTest, what string, wanted func() bool) {
	c.t.Helper()
	deadline := time.After(usableWithin)
	for {
		y.mu.Lock()
		done := wanted()
		y.mu.Unlock()
		if done {
			return
		}
		select {
		case <-y.changed:
		case <-deadline:
			c.t.Fatalf("%s: not within %v", what, usableWithin)
		}
	}
}

const strayOffset = 7

// settled publishes what stays: a few messages that are confirmed, and an offset.
func (y *stray) settled(c *cutTest, s *clusterStream) {
	c.t.Helper()
	y.send(c, s, 4*strayBytes)
	y.await(c, "confirm of a stray's first messages", func() bool { return y.confirmed == y.next })
	for id := range y.next {
		s.ledger.Confirmed(strayProducer, id+1)
	}
	if err := y.conn.StoreOffset(strayName, s.name, strayOffset); err != nil {
		c.t.Fatal(err)
	}
	if got, err := y.conn.QueryOffset(c.t.Context(), strayName, s.name); err != nil || got != strayOffset {
		c.t.Fatalf("the stray's offset is %d, %v", got, err)
	}
	// The promise is one of time: what was stored so long ago outlives its leader.
	pass(harness.StoreWindow)
}

// pass lets time pass where time itself is what a promise or a fault is about, and
// no condition could stand for it.
func pass(d time.Duration) { <-time.After(d) }

// lasts keeps a cut until it has been there for cutFor. How long it lasts is the
// fault itself: a cut that ended once its effects are seen would be a shorter one.
func lasts(at time.Time) { pass(time.Until(at.Add(cutFor))) }

// minority cuts a stream's leader off. It goes on accepting, up to its bound,
// confirms nothing, and what it has written is taken back.
func (c *cutTest) minority() {
	s := c.streams[0]
	leader := c.cluster.Leader(s.name)
	y := c.stray(s, leader)
	y.settled(c, s)
	kept := y.next
	at := c.cut(func() {
		for _, n := range c.cluster.Others(leader) {
			c.network.CutBoth(leader, n)
		}
	})
	y.send(c, s, uncommittedMax+uncommittedSlack)
	if err := y.conn.StoreOffset(strayName, s.name, kept+1_000); err != nil {
		c.t.Fatal(err)
	}
	y.await(c, "refusal of what is beyond the bound", func() bool { return len(y.refused) > 0 })
	refusedAfter := time.Since(at)
	c.flows()
	gap := c.gap()
	lasts(at)
	y.mu.Lock()
	if y.confirmed != kept {
		c.t.Errorf("a leader without a majority confirmed %d messages", y.confirmed-kept)
	}
	first := y.refused[0]
	if first.Code != wire.CodeStreamNotAvailable {
		c.t.Errorf("it refuses with code %d, not %d", first.Code, wire.CodeStreamNotAvailable)
	}
	accepted := (first.ID - kept - 1) * strayBytes
	y.mu.Unlock()
	if accepted > uncommittedMax+uncommittedSlack/2 {
		c.t.Errorf("it accepted %d bytes that nobody else had", accepted)
	}
	back := c.heal()
	y.conn.Abort()
	conn := c.dial(c.cluster.Leader(s.name))
	defer conn.Close()
	if got, err := conn.QuerySequence(c.t.Context(), strayName, s.name); err != nil || got != kept {
		c.t.Errorf("the stray's sequence is %d (%v), not %d, the last confirmed", got, err, kept)
	}
	if got, err := conn.QueryOffset(c.t.Context(), strayName, s.name); err != nil || got != strayOffset {
		c.t.Errorf("the stray's offset is %d (%v), not %d as before the cut", got, err, strayOffset)
	}
	c.t.Logf("FIGURE %s: a stream's leader in the minority took %d MiB in %d ms, refused the rest and confirmed nothing; %d ms after healing it had taken all back, tracking too; others' longest gap %d ms",
		c.t.Name(), accepted>>20, refusedAfter.Milliseconds(), back.Milliseconds(), gap.Milliseconds())
}

// apart cuts all nodes from each other, so that nobody is elected and the leader
// goes on when they meet again. A publisher that it refused messages goes on where
// it was, and then sends them again: what is confirmed to it must be there.
func (c *cutTest) apart() {
	s := c.streams[0]
	leader := c.cluster.Leader(s.name)
	y := c.stray(s, leader)
	y.settled(c, s)
	at := c.cut(func() {
		for i, n := range c.cluster.Nodes {
			for _, other := range c.cluster.Nodes[i+1:] {
				c.network.CutBoth(n, other)
			}
		}
	})
	y.send(c, s, uncommittedMax+uncommittedSlack)
	y.await(c, "refusal of what is beyond the bound", func() bool { return len(y.refused) > 0 })
	back := c.heal()
	y.mu.Lock()
	from := y.refused[0].ID
	y.mu.Unlock()
	y.send(c, s, strayBytes)
	if y.pub.Flush() != nil {
		if err := y.declare(); err != nil {
			c.t.Fatal(err)
		}
		from = y.pub.Last() + 1
	}
	for id := from; id <= y.next; id++ {
		if err := y.pub.Send(id, harness.AppendMessage(nil, strayProducer, id, strayBytes)); err != nil {
			c.t.Fatal(err)
		}
	}
	if err := y.pub.Flush(); err != nil {
		c.t.Fatal(err)
	}
	y.await(c, "confirms of what was sent again", func() bool { return slices.Contains(y.all, y.next) && slices.Contains(y.all, from) })
	y.mu.Lock()
	for _, id := range y.all {
		s.ledger.Confirmed(strayProducer, id)
	}
	y.mu.Unlock()
	c.t.Logf("all apart for %d ms, level %d ms after; sent again from %d of %d", time.Since(at).Milliseconds(), back.Milliseconds(), from, y.next)
}

// late holds what one node says to a stream's leader for as long as links are
// patient. Meanwhile leadership goes elsewhere and comes back; a store that was on
// its way to the first reign must not undo in the third what its client has stored
// in the second.
func (c *cutTest) late() {
	s := c.streams[0]
	meta := c.cluster.MetaLeader()
	others := c.cluster.Others(meta)
	leader, asked := others[0], others[1]
	c.move(s, leader)
	conn := c.dial(asked)
	defer conn.Close()
	store := func(offset uint64) {
		if err := conn.StoreOffset(strayName, s.name, offset); err != nil {
			c.t.Fatal(err)
		}
	}
	wantStored := func(at *client.Conn, want uint64) {
		if got, err := at.QueryOffset(c.t.Context(), strayName, s.name); err != nil || got != want {
			c.t.Errorf("the offset is %d (%v), and %d was stored last", got, err, want)
		}
	}
	follow := func(n *harness.Node) {
		c.move(s, n)
		c.until("the asked node knows its leader", func() bool {
			addr, err := conn.Leader(c.t.Context(), s.name)
			return err == nil && addr == n.Stream
		})
	}
	follow(leader)
	store(100)
	wantStored(conn, 100)
	at := c.cut(func() { c.network.Cut(asked, leader) })
	store(500)
	follow(meta)
	store(50)
	wantStored(conn, 50)
	follow(leader)
	held := time.Since(at)
	back := c.heal()
	wantStored(conn, 50) // behind what was held, on the same link
	other := c.dial(meta)
	defer other.Close()
	wantStored(other, 50)
	c.report(fmt.Sprintf("a store held for %d ms while leadership went there and back", held.Milliseconds()), c.gap(), back)
}

// fromMetadata cuts a stream's leader from the metadata's, and from none
// of the others.
func (c *cutTest) fromMetadata() {
	meta := c.cluster.MetaLeader()
	leader := c.cluster.Others(meta)[0] // each leads a stream
	c.through("a stream's leader cut from the metadata's", func() { c.network.CutBoth(meta, leader) })
}

// mute has nobody hear the leader of a stream.
func (c *cutTest) mute() {
	leader := c.cluster.Leader(c.streams[0].name)
	c.through("a leader that is not heard", func() {
		for _, n := range c.cluster.Others(leader) {
			c.network.Cut(leader, n)
		}
	})
}

// deaf has the leader of a stream hear nobody: others write what it says, and it
// never knows.
func (c *cutTest) deaf() {
	leader := c.cluster.Leader(c.streams[0].name)
	c.through("a leader that hears nothing", func() {
		for _, n := range c.cluster.Others(leader) {
			c.network.Cut(n, leader)
		}
	})
}

// muteMetadata and deafMetadata are the same for the node that leads the
// metadata.
func (c *cutTest) muteMetadata() {
	meta := c.cluster.MetaLeader()
	c.through("the metadata's leader is not heard", func() {
		for _, n := range c.cluster.Others(meta) {
			c.network.Cut(meta, n)
		}
	})
}

func (c *cutTest) deafMetadata() {
	meta := c.cluster.MetaLeader()
	c.through("the metadata's leader hears nothing", func() {
		for _, n := range c.cluster.Others(meta) {
			c.network.Cut(n, meta)
		}
	})
}

// flicker cuts and heals one leader so quickly that links live on, and what was
// held arrives late. The pauses are the fault: each another length, all shorter
// than links are patient.
func (c *cutTest) flicker() {
	leader := c.cluster.Leader(c.streams[0].name)
	begin := c.cut(func() {})
	for i := 0; time.Since(begin) < cutFor; i++ {
		for _, n := range c.cluster.Others(leader) {
			if i%2 == 0 {
				c.network.Cut(leader, n)
			} else {
				c.network.Cut(n, leader)
			}
		}
		pass(time.Duration(100+50*(i%8)) * time.Millisecond)
		c.network.Heal()
		pass(20 * time.Millisecond)
	}
	c.flows()
	gap := c.gap()
	back := c.heal()
	c.report("a leader cut and healed time and again", gap, back)
}

// through cuts for a while, in which every publisher must get confirms.
func (c *cutTest) through(what string, how func()) {
	c.t.Helper()
	at := c.cut(how)
	c.flows()
	lasts(at)
	c.flows()
	gap := c.gap()
	c.report(what, gap, c.heal())
}

func (c *cutTest) report(what string, gap, back time.Duration) {
	c.t.Helper()
	c.t.Logf("FIGURE %s: %s: longest gap %d ms, all follow %d ms after healing", c.t.Name(), what, gap.Milliseconds(), back.Milliseconds())
	if gap > cutGapMax {
		c.t.Errorf("the longest gap is %v", gap)
	}
}

// cuts are the ways in which a network breaks.
var cuts = []struct {
	name string
	cut  func(*cutTest)
}{
	{"minority", (*cutTest).minority},
	{"late", (*cutTest).late},
	{"fromMetadata", (*cutTest).fromMetadata},
	{"mute", (*cutTest).mute},
	{"deaf", (*cutTest).deaf},
	{"muteMetadata", (*cutTest).muteMetadata},
	{"deafMetadata", (*cutTest).deafMetadata},
	{"flicker", (*cutTest).flicker},
	{"apart", (*cutTest).apart},
}

func TestPartition(t *testing.T) {
	for i, row := range cuts {
		if i >= number(t, "PARTITIONS", cutsDefault) {
			return
		}
		t.Run(row.name, func(t *testing.T) {
			cluster, network := harness.StartPartitionable(t, 3, strayAllowance...)
			c := newCutTest(t, cluster, network)
			row.cut(c)
			c.judge()
		})
	}
}
