package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// A node that was removed and comes back with its old data is told so and
// disturbs nobody; emptied, it may join again (EL-06).
func TestRemove_comesBack(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	gone := others(sites, leaderOf(t, sites))[0]
	rest := others(sites, gone)
	gone.stop()
	until(t, "the node is missed", func() bool { return !leaderOf(t, rest).coord.isUp(gone.name) })
	if err := rest[0].Remove(within(t), gone.name); err != nil {
		t.Fatal(err)
	}
	voting(t, rest, 2, 0)
	term := leaderOf(t, rest).meta.instance().CurrentTerm()
	joins := Joins{Addresses: []string{rest[0].addr}}
	err := gone.open(within(t), gone.bind(), joins)
	if !errors.Is(err, ErrRemoved) || !strings.Contains(err.Error(), "move its data directory away") {
		t.Fatalf("back with old data: %v", err)
	}
	if now := leaderOf(t, rest).meta.instance().CurrentTerm(); now != term {
		t.Errorf("the removed node moved the term from %d to %d", term, now)
	}
	gone.wipe()
	gone.start(joins)
	voting(t, sites, 3, 0)
	for _, s := range rest {
		until(t, "the new node counts as up on "+string(s.name), func() bool { return s.Up(gone.name) })
	}
}

// What would leave the metadata without a majority is refused, and says who is
// missing.
func TestRemove_keepsTheMajority(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	leader := leaderOf(t, sites)
	rest := others(sites, leader)
	down, healthy := rest[0], rest[1]
	down.stop()
	until(t, "the node is missed", func() bool { return !leader.coord.isUp(down.name) })
	err := leader.Remove(within(t), healthy.name)
	if !errors.Is(err, catalog.ErrUnsafe) || !strings.Contains(err.Error(), string(down.name)) {
		t.Errorf("remove a healthy node while another is down: %v", err)
	}
	if err := leader.Remove(within(t), "n9"); !errors.Is(err, catalog.ErrNodeMissing) {
		t.Errorf("remove a stranger: %v", err)
	}
	if err := healthy.Remove(within(t), down.name); err != nil {
		t.Errorf("remove the dead one: %v", err)
	}
}

// A member that comes back with an empty disk is taken in again once the old one
// is gone, and its replicas count for nothing (D1). While the old one runs, it
// is refused.
func TestJoin_emptiedMember(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	create(t, sites[0].Cluster, "s")
	emptied := others(sites, leaderOf(t, sites))[0]
	rest := others(sites, emptied)
	joins := Joins{Addresses: []string{rest[0].addr, rest[1].addr}}

	twin := &site{town: emptied.town, name: emptied.name, dir: t.TempDir(), disk: newDisk(), lines: &lines{}, log: emptied.log}
	if err := twin.open(within(t), twin.bind(), joins); !errors.Is(err, ErrTwin) {
		t.Fatalf("a second node of the name: %v", err)
	}
	before, _ := rest[0].View().Stream("/", "s")
	lonely := CreateStream{VHost: "/", Name: "lonely", Arguments: catalog.Arguments{InitialClusterSize: catalog.Given(1)}}
	if err := emptied.CreateStream(within(t), lonely); err != nil {
		t.Fatal(err)
	}
	emptied.stop()
	emptied.wipe()
	// Its disk held the only replica of a stream: an empty one in its place would
	// end the hope for the old one.
	if err := emptied.refused(joins, func(err error) bool {
		return strings.Contains(err.Error(), "too few replicas that answer: lonely")
	}); err != nil {
		t.Fatalf("an empty disk for a stream's only replica: %v", err)
	}
	if err := rest[0].DeleteStream(within(t), "/", "lonely"); err != nil {
		t.Fatal(err)
	}
	emptied.start(joins)
	voting(t, sites, 3, 0)
	after, _ := rest[0].View().Stream("/", "s")
	was, _ := before.Replica(emptied.name)
	is, ok := after.Replica(emptied.name)
	if !ok || !is.Aside || is.Registration <= was.Registration {
		t.Errorf("the replica was %+v, is %+v", was, is)
	}
	create(t, emptied.Cluster, "after")
}

// node.json copied to a second node is refused while the first runs; the first
// goes on undisturbed.
func TestJoin_copiedIdentity(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	first := others(sites, leaderOf(t, sites))[0]
	twin := &site{town: first.town, name: first.name, dir: t.TempDir(), disk: newDisk(), lines: &lines{}, log: first.log}
	if err := os.CopyFS(twin.dir, os.DirFS(first.dir)); err != nil {
		t.Fatal(err)
	}
	err := twin.open(within(t), twin.bind(), Joins{Addresses: []string{sites[0].addr}})
	if !errors.Is(err, ErrTwin) || !strings.Contains(err.Error(), "give one of the two another name") {
		t.Fatalf("a copy of the data directory: %v", err)
	}
	create(t, first.Cluster, "undisturbed")
}

// A node of one cluster that is given an address of another one stays in its
// own, and a node half way into one is not taken into the other (EL-17).
func TestJoin_anotherCluster(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	a, b := w.site("a"), w.site("b")
	a.start(Joins{Expect: 1})
	b.start(Joins{Expect: 1})
	if a.ID() == b.ID() {
		t.Fatal("two clusters of one id")
	}
	id := b.ID()
	b.stop()
	b.start(Joins{Addresses: []string{a.addr}})
	if b.ID() != id || !b.lines.has("another cluster's node is at an address") {
		t.Errorf("b is of cluster %s, was of %s", b.ID(), id)
	}
	if _, stranger := a.View().Node("b"); stranger {
		t.Error("a knows b")
	}
	half := w.site("half")
	text, _ := json.Marshal(identity{Format: 1, Node: "half", Disk: "d", Cluster: id, Joining: true, Together: true})
	if err := os.WriteFile(filepath.Join(half.dir, identityFile), text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := half.open(within(t), half.bind(), Joins{Addresses: []string{a.addr}}); !errors.Is(err, ErrOtherCluster) {
		t.Errorf("half way into %s, asked to join %s: %v", id, a.ID(), err)
	}
}

// A single node that was alone for long takes a second and a third one in.
func TestJoin_growsFromOne(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	one := w.site("n1")
	one.start(Joins{Expect: 1})
	for i := range 5 {
		create(t, one.Cluster, fmt.Sprintf("s%d", i))
	}
	sites := []*site{one}
	for _, name := range []protocol.NodeID{"n2", "n3"} {
		s := w.site(name)
		s.start(Joins{Addresses: []string{one.addr}})
		sites = append(sites, s)
		if n := s.View().StreamCount(); n != 5 {
			t.Errorf("%s sees %d streams", name, n)
		}
	}
	voting(t, sites, 3, 0)
	until(t, "the same catalog everywhere", func() bool {
		return string(sites[1].View().Encode()) == string(one.View().Encode()) && string(sites[2].View().Encode()) == string(one.View().Encode())
	})
	if err := one.Close(); err != nil {
		t.Fatal(err)
	}
	create(t, sites[2].Cluster, "without-the-founder")
}

// The leader that drains makes another one lead the metadata.
func TestDrain_movesTheMetadata(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	leader := leaderOf(t, sites)
	if err := leader.Drain(within(t), leader.name, true); err != nil {
		t.Fatal(err)
	}
	until(t, "another node leads", func() bool { return !leader.leads() && leaderOf(t, others(sites, leader)) != nil })
	other := others(sites, leader)[0]
	if err := other.Drain(within(t), leader.name, false); err != nil {
		t.Fatal(err)
	}
	if err := other.Transfer(within(t), leader.name); err != nil {
		t.Fatal(err)
	}
	until(t, "it leads again where it was asked to", func() bool { return leader.leads() })
	until(t, "only who leads is as slow as a leader", func() bool {
		return !slices.ContainsFunc(sites, func(s *site) bool {
			pace := togetherTiming.heartbeat
			if s.leads() {
				pace = leadingHeartbeat
			}
			return s.meta.instance().ReloadableConfig().HeartbeatTimeout != pace
		})
	})
}
