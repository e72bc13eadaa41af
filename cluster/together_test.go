package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// Three empty nodes that start at the same moment are one cluster; each takes
// every call and sees what it did. The leader is killed, another leads, and the
// first comes back.
func TestTogether_threeNodes(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	for _, s := range sites {
		if s.ID() == "" || s.ID() != sites[0].ID() {
			t.Errorf("%s is of cluster %q, %s of %q", s.name, s.ID(), sites[0].name, sites[0].ID())
		}
	}
	voting(t, sites, 3, 0)
	for _, s := range sites {
		name := "by-" + string(s.name)
		create(t, s.Cluster, name)
		if _, ok := s.View().Stream("/", name); !ok {
			t.Errorf("%s does not see the stream that it created", s.name)
		}
		if err := s.CreateStream(within(t), CreateStream{VHost: "/", Name: name}); !errors.Is(err, catalog.ErrStreamExists) {
			t.Errorf("%s creates a stream twice: %v", s.name, err)
		}
	}
	first := leaderOf(t, sites)
	first.stop()
	rest := others(sites, first)
	begin := time.Now()
	create(t, rest[0].Cluster, "without-the-first")
	t.Logf("FIGURE a create right after the metadata leader's end took %d ms", time.Since(begin).Milliseconds())
	made, _ := rest[0].View().Stream("/", "without-the-first")
	for _, s := range rest { // those that are there hold it, whoever else does
		if _, ok := made.Replica(s.name); !ok {
			t.Errorf("the stream made while %s is down is on %v, not on %s", first.name, made.Voters(), s.name)
		}
	}
	single, err := catalog.ParseArguments(map[string]string{"initial-cluster-size": "1", "queue-leader-locator": "balanced"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 6 {
		name := fmt.Sprint("single-", i)
		if err := rest[0].CreateStream(within(t), CreateStream{VHost: "/", Name: name, Arguments: single}); err != nil {
			t.Fatal(err)
		}
		if made, _ := rest[0].View().Stream("/", name); made == nil || len(made.Voters()) != 1 || made.Voters()[0] == first.name {
			t.Errorf("the stream %s of one replica, made while %s is down: %+v", name, first.name, made)
		}
	}
	if err := rest[1].DeleteStream(within(t), "/", "by-n1"); err != nil {
		t.Fatal(err)
	}
	eventually(t, rest[0].Cluster, "the deletion is seen", func(v *catalog.State) bool { _, there := v.Stream("/", "by-n1"); return !there })
	if err := rest[0].DeleteStream(within(t), "/", "by-n1"); !errors.Is(err, catalog.ErrStreamMissing) {
		t.Errorf("deleted twice: %v", err)
	}
	create(t, rest[0].Cluster, "by-n1")
	first.start(Joins{}) // another port, and nobody to ask but those it knows
	if _, ok := first.View().Stream("/", "without-the-first"); !ok {
		t.Error("back, the first does not see what it missed")
	}
	create(t, first.Cluster, "back")
	for _, s := range sites {
		eventually(t, s.Cluster, "all see the new address", func(v *catalog.State) bool {
			n, _ := v.Node(first.name)
			_, back := v.Stream("/", "back")
			return n.Endpoints.Node == first.addr && back
		})
	}
}

// The founder is the one that nobody told of the others: it can find them again
// from the moment on in which it needs them to start.
func TestTogether_founderStopsAtOnce(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	first := sites[slices.IndexFunc(sites, func(s *site) bool { return s.lines.has("cluster founded") })]
	b, err := openBook(first.dir) // what a crash here would leave
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(others(sites, first), func(s *site) bool { return b.find(s.name) == s.addr }) {
		t.Errorf("three nodes vote, and %s has written down where none of the others is: %v", first.name, b.all())
	}
	first.stop()
	first.start(Joins{}) // another port, and nobody to ask but those it knows
	create(t, first.Cluster, "back")
}

// What is known of the others at a clean stop is known at the next start,
// however new it is.
func TestClose_keepsAddresses(t *testing.T) {
	t.Parallel()
	s := newTown(t).site("n1")
	s.start(Joins{})
	s.book.put("n2", entry{"there:1", "disk"})
	s.stop()
	b, err := openBook(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.find("n2"); got != "there:1" {
		t.Errorf("after the stop n2 is at %q", got)
	}
}

// All nodes stop, and come back one after the other, each under another address
// than the others remember but for the first (EL-07, EL-09).
func TestTogether_allComeBack(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	create(t, sites[1].Cluster, "kept")
	id := sites[0].ID()
	for _, s := range sites {
		s.stop()
	}
	var work sync.WaitGroup
	meet := sites[0].bind() // what the others are configured with
	for i, s := range sites {
		l := meet
		if i > 0 {
			l = s.bind()
		}
		work.Go(func() {
			if err := s.open(within(t), l, Joins{Addresses: []string{sites[0].addr}, Expect: 3}); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		})
	}
	work.Wait()
	for _, s := range sites {
		if s.Cluster == nil {
			t.FailNow()
		}
		if _, ok := s.View().Stream("/", "kept"); !ok || s.ID() != id {
			t.Errorf("%s came back to cluster %s without its stream", s.name, s.ID())
		}
	}
	create(t, sites[2].Cluster, "more")
}

// Nodes that are started one after the other form one cluster too; as long as
// one is missing there is none, and a node that gives up waiting can come again.
func TestFound_staggered(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	sites := []*site{w.site("a"), w.site("b"), w.site("c")}
	listeners := []net.Listener{sites[0].bind(), sites[1].bind(), sites[2].bind()}
	joins := Joins{Expect: 3}
	for _, s := range sites {
		joins.Addresses = append(joins.Addresses, s.addr)
	}
	_ = listeners[2].Close() // the third never comes yet
	short, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	var work sync.WaitGroup
	for i, s := range sites[:2] {
		work.Go(func() {
			err := s.open(short, listeners[i], joins)
			if !errors.Is(err, ErrUnavailable) || !strings.Contains(err.Error(), "2 of 3 expected nodes are here (") {
				t.Errorf("%s, with one missing: %v", s.name, err)
			}
		})
	}
	work.Wait()
	ctx := within(t)
	for i, s := range sites {
		l, err := net.Listen("tcp", joins.Addresses[i])
		if err != nil {
			t.Fatal(err)
		}
		work.Go(func() {
			if err := s.open(ctx, l, joins); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		})
		select { // some time between them
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
		}
	}
	work.Wait()
	for _, s := range sites {
		if s.Cluster == nil || s.ID() != sites[0].ID() {
			t.Fatalf("%s is not of the cluster", s.name)
		}
	}
}

// A cluster is founded with the word of all, and a word is given once: whatever
// subsets see each other, there is one cluster at most (EL-04).
func TestFound_oneAtMostInEveryHalf(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	sites := []*site{w.site("a"), w.site("b"), w.site("c"), w.site("d")}
	var listeners []net.Listener
	for _, s := range sites {
		listeners = append(listeners, s.bind())
	}
	// a knows all; b and c each other alone; d knows c: four nodes that expect
	// three.
	know := [][]int{{0, 1, 2, 3}, {1, 2}, {1, 2}, {2, 3}}
	ctx := within(t)
	var work sync.WaitGroup
	for i, s := range sites {
		joins := Joins{Expect: 3}
		for _, k := range know[i] {
			joins.Addresses = append(joins.Addresses, sites[k].addr)
		}
		work.Go(func() {
			if err := s.open(ctx, listeners[i], joins); err != nil {
				t.Errorf("%s: %v", s.name, err)
			}
		})
	}
	work.Wait()
	for _, s := range sites {
		if s.Cluster != nil && s.ID() != sites[0].ID() {
			t.Errorf("%s is of cluster %s, a of %s", s.name, s.ID(), sites[0].ID())
		}
	}
}

// A pledge survives a restart, is given to one founder alone, and is free again
// once that founder says that it founds nothing.
func TestFound_pledges(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	s := w.site("p")
	c, err := prepare(Config{Dir: s.dir, Node: "p", Fencer: faraway{w}, Network: unwired{}, Log: nullLog, Joins: Joins{Addresses: []string{"x:1"}, Expect: 3}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.stop()
	for i, row := range []struct {
		to   introduction
		want bool
	}{
		{introduction{Node: "f", Disk: "1"}, true},
		{introduction{Node: "f", Disk: "1"}, true},
		{introduction{Node: "f", Disk: "2"}, false}, // that founder was emptied: it does not know of the word
		{introduction{Node: "g", Disk: "1"}, false},
	} {
		if got, err := c.givePledge(row.to); got != row.want || err != nil {
			t.Errorf("%d: %v, %v", i, got, err)
		}
	}
	id, err := openIdentity(s.dir, "p", true)
	if err != nil || id.Pledge == nil || id.Pledge.Founder != "f" {
		t.Fatalf("after a restart: %+v, %v", id.Pledge, err)
	}
	g := gathering{c: c}
	still := introduction{Node: "f", Disk: "1", Pledge: &pledge{"f", "1"}}
	for _, row := range []struct {
		name string
		seen []introduction
		free bool
	}{
		{"nobody is there", nil, false},
		{"it still founds", []introduction{still}, false},
		{"another of its name", []introduction{{Node: "f", Disk: "2"}}, false},
		{"it gave up", []introduction{{Node: "f", Disk: "1"}}, true},
	} {
		if err := g.await(c.introduce(), row.seen); err != nil {
			t.Fatal(err)
		}
		if free := c.identity().Pledge == nil; free != row.free {
			t.Errorf("%s: free %v", row.name, free)
		}
	}
}

// A member's restart behind a cut founds nothing and changes nothing; an emptied
// one neither (EL-04).
func TestTogether_cutOffNodeIsNoCluster(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	for _, s := range sites {
		s.stop()
	}
	for _, empty := range []bool{false, true} {
		s := sites[2]
		if empty {
			s.wipe()
		}
		ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
		err := s.open(ctx, s.bind(), Joins{Addresses: []string{sites[0].addr, sites[1].addr}, Expect: 3})
		cancel()
		if !errors.Is(err, ErrUnavailable) {
			t.Errorf("emptied %v: a node alone opened: %v", empty, err)
		}
	}
}

// More than five nodes: five vote, the others have everything all the same; a
// voter that is removed makes room for another.
func TestTogether_sevenNodes(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	sites := w.gather("n1", "n2", "n3")
	for _, name := range []protocol.NodeID{"n4", "n5", "n6", "n7"} {
		s := w.site(name)
		s.start(Joins{Addresses: []string{sites[1].addr}})
		sites = append(sites, s)
	}
	voting(t, sites, 5, 2)
	create(t, sites[6].Cluster, "by-a-non-voter")
	for _, s := range sites {
		eventually(t, s.Cluster, "all see the stream", func(v *catalog.State) bool {
			_, ok := v.Stream("/", "by-a-non-voter")
			return ok
		})
	}
	// The replicas of these tests don't move.
	if err := sites[5].DeleteStream(within(t), "/", "by-a-non-voter"); err != nil {
		t.Fatal(err)
	}
	leader := leaderOf(t, sites)
	gone := others(sites[:5], leader)[0]
	gone.stop()
	until(t, "the node is missed", func() bool { return !leader.coord.isUp(gone.name) })
	if err := sites[6].Remove(within(t), gone.name); err != nil {
		t.Fatal(err)
	}
	rest := others(sites, gone)
	voting(t, rest, 5, 1)
}

// Reads go on without a majority; what would change the metadata ends with its
// deadline, and says why.
func TestTogether_readsWithoutAMajority(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	create(t, sites[0].Cluster, "s")
	last := sites[2]
	eventually(t, last.Cluster, "the stream is seen", func(v *catalog.State) bool { _, ok := v.Stream("/", "s"); return ok })
	sites[0].stop()
	sites[1].stop()
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	if err := last.CreateVHost(ctx, "", "v"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a change without a majority: %v", err)
	}
	late, end := context.WithTimeout(t.Context(), time.Second)
	defer end()
	if err := last.CreateStream(late, CreateStream{VHost: "/", Name: "late"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("a create without a majority: %v", err)
	}
	if _, ok := last.View().Stream("/", "s"); !ok {
		t.Error("the stream can't be read any more")
	}
	if o := last.Overview(ctx); o.Seen || len(o.Members) != 3 {
		t.Errorf("overview: %+v", o)
	}
}

// Of three nodes two are lost for good: the third goes on alone with what it
// has. Nobody else may run meanwhile, and the lost ones are strangers afterwards.
func TestRecover_oneGoesOnAlone(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	create(t, sites[0].Cluster, "everywhere")
	left := sites[2]
	if err := Recover(left.dir); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("beside the running node: %v", err)
	}
	eventually(t, left.Cluster, "the last sees the stream", func(v *catalog.State) bool { _, ok := v.Stream("/", "everywhere"); return ok })
	id := left.ID()
	for _, s := range sites {
		s.stop()
	}
	plan, err := PlanRecovery(left.dir)
	if err != nil || plan.Node != "n3" || plan.Kept != 1 || len(plan.GivenUp) != 2 || len(plan.Lost) != 0 {
		t.Fatalf("plan %+v, %v", plan, err)
	}
	for range 2 { // it may be cut short and repeated
		if err := Recover(left.dir); err != nil {
			t.Fatal(err)
		}
	}
	left.start(Joins{Addresses: []string{sites[0].addr}, Expect: 3})
	s, ok := left.View().Stream("/", "everywhere")
	if !ok || left.ID() != id || len(s.Replicas) != 1 || s.Replicas[0].Node != "n3" {
		t.Fatalf("cluster %s, stream %+v", left.ID(), s)
	}
	create(t, left.Cluster, "goes-on")
	voting(t, sites[2:], 1, 0)

	// One that comes back with what it had is turned away.
	if err := sites[0].refused(Joins{Addresses: []string{left.addr}}, func(err error) bool {
		return errors.Is(err, ErrRemoved)
	}); err != nil {
		t.Errorf("a lost node comes back: %v", err)
	}
	sites[1].wipe()
	sites[1].start(Joins{Addresses: []string{left.addr}})
	voting(t, sites[1:], 2, 0)
}

// A create by way of a follower does not wait for raft's idle round.
func TestTogether_followersSeeAtOnce(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	leader := leaderOf(t, sites)
	follower := others(sites, leader)[0]
	const creates = 20
	begin := time.Now()
	for i := range creates {
		create(t, follower.Cluster, fmt.Sprintf("s%d", i))
	}
	t.Logf("FIGURE a create by way of a follower took %d ms", (time.Since(begin) / creates).Milliseconds())
	told := func() (wanted, done uint64) {
		leader.spread.mu.Lock()
		defer leader.spread.mu.Unlock()
		return leader.spread.wanted, leader.spread.done
	}
	if wanted, _ := told(); wanted < creates {
		t.Errorf("followers were to hear of index %d", wanted)
	}
	until(t, "they have heard", func() bool { wanted, done := told(); return wanted == done })
}

// Halves that don't see each other found nothing: each lacks somebody's word.
func TestFound_noneInAHalf(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	sites := []*site{w.site("a"), w.site("b"), w.site("c"), w.site("d")}
	var listeners []net.Listener
	for _, s := range sites {
		listeners = append(listeners, s.bind())
	}
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	var work sync.WaitGroup
	for i, s := range sites {
		joins := Joins{Addresses: []string{sites[i/2*2].addr, sites[i/2*2+1].addr}, Expect: 3}
		work.Go(func() {
			if err := s.open(ctx, listeners[i], joins); !errors.Is(err, ErrUnavailable) {
				t.Errorf("%s: %v", s.name, err)
			}
		})
	}
	work.Wait()
}
