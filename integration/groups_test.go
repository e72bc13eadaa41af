package integration

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// groupPatience is that of the nodes here, after which others go on.
const groupPatience = 3 * time.Second

// groupTest is a stream that somebody publishes numbers to, one after the other,
// and the members of one group on it.
type groupTest struct {
	t       *testing.T
	cluster *harness.Cluster
	stream  string
	super   string // that the stream is a partition of; empty: none

	mu       sync.Mutex // guards the fields below
	turns    []*turn    // in the order in which they began
	problems []string
	next     int // the number that is published next
}

// groupMember is one consumer of a group.
type groupMember struct {
	name     string
	conn     *client.Conn
	consumer *client.Consumer
}

// turn is a member's time of being active, by what it was told.
type turn struct {
	member   string
	begun    time.Time
	over     time.Time // zero: it has not answered to be told otherwise
	from     uint64
	messages []int
}

func (g *groupTest) problem(format string, args ...any) {
	g.problems = append(g.problems, fmt.Sprintf(format, args...))
}

// join has a member on a node; it goes on behind what the group has stored, and
// stores each message.
func (g *groupTest) join(name string, at *harness.Node) *groupMember {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), usableWithin)
	defer cancel()
	conn, err := client.Dial(ctx, client.Config{Addr: at.Stream})
	if err != nil {
		g.t.Fatal(err)
	}
	g.t.Cleanup(conn.Abort)
	m := &groupMember{name: name, conn: conn}
	properties := map[string]string{"single-active-consumer": "true", "name": "app"}
	if g.super != "" {
		properties["super-stream"] = g.super
	}
	m.consumer, err = conn.Subscribe(ctx, client.ConsumerConfig{
		Stream: g.stream, Offset: wire.OffsetSpec{Type: wire.OffsetFirst}, Properties: properties,
		Update:  func(active bool) wire.OffsetSpec { return g.update(m, active) },
		Deliver: func(d *client.Delivery) { g.deliver(m, d) },
	})
	if err != nil {
		g.t.Fatalf("%s joins on %s: %v", name, at.Name, err)
	}
	return m
}

// update is a member's answer to ConsumerUpdate. It is called by the connection's
// reader, which can't ask for the stored offset: what the group has handled is
// known here as well.
func (g *groupTest) update(m *groupMember, active bool) wire.OffsetSpec {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !active {
		g.end(m.name)
		return wire.OffsetSpec{}
	}
	g.end(m.name)
	from := uint64(g.handled())
	g.turns = append(g.turns, &turn{member: m.name, begun: time.Now(), from: from})
	return wire.OffsetSpec{Type: wire.OffsetAt, Offset: from}
}

// end notes that a member's turn is over.
func (g *groupTest) end(name string) {
	for _, u := range g.turns {
		if u.member == name && u.over.IsZero() {
			u.over = time.Now()
		}
	}
}

// gone notes that a member's connection has ended: nothing reaches it any more.
func (g *groupTest) gone(m *groupMember) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.end(m.name)
}

// handled is the number behind the last message that any member got.
func (g *groupTest) handled() int {
	last := -1
	for _, u := range g.turns {
		for _, n := range u.messages {
			last = max(last, n)
		}
	}
	return last + 1
}

// deliver holds that a message comes to the newest turn alone, and that turn to
// messages in order.
func (g *groupTest) deliver(m *groupMember, d *client.Delivery) {
	g.mu.Lock()
	defer g.mu.Unlock()
	var mine *turn
	for _, u := range g.turns {
		if u.member == m.name && u.over.IsZero() {
			mine = u
		}
	}
	if mine == nil {
		g.problem("%s is delivered to and not active", m.name)
		return
	}
	if newest := g.turns[len(g.turns)-1]; newest != mine {
		g.problem("%s is delivered to, and %s has its turn", m.name, newest.member)
	}
	for r, err := range d.Records() {
		if err != nil {
			g.problem("%v", err)
			return
		}
		body, _ := client.UnwrapData(r.Message)
		n, err := strconv.Atoi(string(body))
		want := int(mine.from) + len(mine.messages)
		if err != nil || n != want {
			g.problem("%s gets %q, want %d", m.name, body, want)
			return
		}
		mine.messages = append(mine.messages, n)
	}
}

// publish adds messages until the member of the newest turn has got them all.
func (g *groupTest) publish(n int, reaches string) {
	g.t.Helper()
	ctx, cancel := context.WithTimeout(g.t.Context(), usableWithin)
	defer cancel()
	conn, err := client.DialLeader(ctx, client.Config{Addr: g.up().Stream}, g.stream)
	if err != nil {
		g.t.Fatal(err)
	}
	defer conn.Close()
	pub, err := conn.DeclarePublisher(ctx, client.PublisherConfig{Stream: g.stream})
	if err != nil {
		g.t.Fatal(err)
	}
	for range n {
		if _, err := pub.Publish(client.WrapData(nil, []byte(strconv.Itoa(g.next)))); err != nil {
			g.t.Fatal(err)
		}
		g.next++
	}
	if err := pub.Drain(ctx); err != nil {
		g.t.Fatal(err)
	}
	g.await(reaches+" has all", func() bool {
		return g.handled() == g.next && g.turns[len(g.turns)-1].member == reaches
	})
}

// up is a node that runs.
func (g *groupTest) up() *harness.Node {
	return g.cluster.Nodes[slices.IndexFunc(g.cluster.Nodes, (*harness.Node).Running)]
}

func (g *groupTest) await(what string, ok func() bool) {
	g.t.Helper()
	deadline := time.Now().Add(usableWithin)
	for {
		g.mu.Lock()
		done, turns := ok(), len(g.turns)
		problems := slices.Clone(g.problems)
		g.mu.Unlock()
		switch {
		case len(problems) > 0:
			g.t.Fatalf("%q", problems)
		case done:
			return
		case time.Now().After(deadline):
			g.t.Fatalf("not within %s: %s (%d turns)", usableWithin, what, turns)
		}
		<-time.After(10 * time.Millisecond)
	}
}

// active waits until a member has its turn.
func (g *groupTest) active(name string) time.Time {
	g.t.Helper()
	g.await(name+" is active", func() bool {
		return len(g.turns) > 0 && g.turns[len(g.turns)-1].member == name && g.turns[len(g.turns)-1].over.IsZero()
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.turns[len(g.turns)-1].begun
}

// needsGroups leaves tests of clusters of processes to those who have the time.
func needsGroups(t *testing.T) {
	t.Helper()
	if os.Getenv("GROUP_TESTS") == "" {
		t.Skip("clusters of processes take long; make group-test has them")
	}
}

// newGroupTest makes a stream with a replica on every node: a partition of a super
// stream, the last of so many, if that has a name.
func newGroupTest(t *testing.T, c *harness.Cluster, super string, partitions int) *groupTest {
	t.Helper()
	g := &groupTest{t: t, cluster: c, stream: "numbers", super: super}
	conn, err := client.Dial(t.Context(), client.Config{Addr: c.Nodes[0].Stream})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if super == "" {
		if err := conn.Create(t.Context(), g.stream, nil); err != nil {
			t.Fatal(err)
		}
		return g
	}
	var names, keys []string
	for i := range partitions {
		names, keys = append(names, fmt.Sprintf("%s-%d", super, i)), append(keys, strconv.Itoa(i))
	}
	if err := conn.CreateSuperStream(t.Context(), super, names, keys, nil); err != nil {
		t.Fatal(err)
	}
	g.stream = names[partitions-1]
	return g
}

// TestGroups_promotion has a group over three nodes lose its active member in
// every way: each time the next one goes on, without a gap and without a moment
// in which two are delivered to.
func TestGroups_promotion(t *testing.T) {
	needsGroups(t)
	c := harness.StartCluster(t, 3, "--stream-group-patience", groupPatience.String())
	g := newGroupTest(t, c, "", 0)
	n1, n2, n3 := c.Nodes[0], c.Nodes[1], c.Nodes[2]
	a, b := g.join("a", n1), g.join("b", n2)
	d, e := g.join("d", n3), g.join("e", n1)
	g.join("f", n2)
	g.active("a")
	g.publish(100, "a")

	// Every node tells of all members, and why each is what it is.
	for _, n := range c.Nodes {
		var groups []admin.Group
		if err := n.Call("GET", "/api/v1/groups?stream="+g.stream, nil, &groups); err != nil {
			t.Fatal(err)
		}
		if len(groups) != 1 || len(groups[0].Members) != 5 {
			t.Fatalf("%s tells of %+v", n.Name, groups)
		}
		first, last := groups[0].Members[0], groups[0].Members[4]
		if first.Role != "active" || first.Node != n1.Name || last.Role != "waiting" || last.Why != first.Connection+" on node "+n1.Name+" is active" {
			t.Errorf("%s tells of %+v and %+v", n.Name, first, last)
		}
	}

	var all admin.Across[admin.Consumer]
	if err := n3.Call("GET", "/api/v1/consumers", nil, &all); err != nil {
		t.Fatal(err)
	}
	activities := map[string]int{}
	for _, k := range all.Items {
		activities[k.Activity]++
		if k.Why == "" {
			t.Errorf("nobody says why: %+v", k)
		}
	}
	if activities["single_active"] != 1 || activities["waiting"] != 4 {
		t.Errorf("consumers are %v", activities)
	}

	ctx, cancel := context.WithTimeout(t.Context(), usableWithin)
	defer cancel()
	if err := a.consumer.Close(ctx); err != nil { // it unsubscribes
		t.Fatal(err)
	}
	g.gone(a)
	g.active("b")
	g.publish(100, "b")

	killed := time.Now()
	b.conn.Abort() // its connection ends without a word
	g.gone(b)
	took := g.active("d").Sub(killed)
	t.Logf("FIGURE single active consumer: the next one is active %d ms after a consumer was killed", took.Milliseconds())
	g.publish(100, "d")

	killed = time.Now()
	n3.Kill()
	g.gone(d)
	took = g.active("e").Sub(killed)
	t.Logf("FIGURE single active consumer: the next one is active %d ms after its node was killed by kill -9 (group_patience %s)", took.Milliseconds(), groupPatience)
	g.publish(100, "e")

	// What the killed node knew of its own members is nothing any more.
	c.Restart(n3)
	g.publish(100, "e")
	if err := e.consumer.Close(ctx); err != nil {
		t.Fatal(err)
	}
	g.gone(e)
	g.active("f")
	g.publish(100, "f")
}

// TestGroups_partition cuts the node of the active member off: it gets nothing
// more before another goes on, and is told to stop when its node is back.
func TestGroups_partition(t *testing.T) {
	needsGroups(t)
	c, network := harness.StartPartitionable(t, 3, "--stream-group-patience", groupPatience.String())
	g := newGroupTest(t, c, "", 0)
	meta := c.MetaLeader()
	cut := c.Others(meta)[0]
	g.join("a", cut)
	g.join("b", meta)
	g.active("a")
	g.publish(50, "a")
	for _, n := range c.Others(cut) {
		network.CutBoth(cut, n)
	}
	g.active("b")
	g.mu.Lock()
	g.end("a") // it does not know, and is delivered nothing
	g.mu.Unlock()
	g.publish(50, "b")
	network.Heal()
	// Both are asked to stop, and one goes on.
	g.await("one goes on", func() bool {
		last := g.turns[len(g.turns)-1]
		return len(g.turns) > 2 && last.over.IsZero()
	})
	g.mu.Lock()
	last := g.turns[len(g.turns)-1].member
	g.mu.Unlock()
	g.publish(50, last)
}

// TestGroups_partitionsOfASuperStream: partition 1 of two goes to the second
// member when that comes, whatever node it is on, and back when that is killed.
func TestGroups_partitionsOfASuperStream(t *testing.T) {
	needsGroups(t)
	c := harness.StartCluster(t, 3, "--stream-group-patience", groupPatience.String())
	g := newGroupTest(t, c, "super", 2)
	g.join("a", c.Nodes[0])
	g.active("a")
	g.publish(50, "a")
	b := g.join("b", c.Nodes[1])
	g.active("b")
	g.publish(50, "b")
	c.Nodes[1].Kill()
	g.gone(b)
	g.active("a")
	g.publish(50, "a")
	c.Restart(c.Nodes[1])
	g.join("c", c.Nodes[1])
	g.active("c")
	g.publish(50, "c")
}
