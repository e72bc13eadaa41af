package cluster

import (
	"fmt"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

func memberOf(node protocol.NodeID, n int) catalog.MemberID {
	return catalog.MemberID{Node: node, Connection: fmt.Sprint("c", n), Subscription: 1}
}

// change hands changes over and waits for their answers.
func (s *site) change(changes ...catalog.GroupChange) []error {
	s.town.t.Helper()
	errs := make([]error, len(changes))
	var work sync.WaitGroup
	work.Add(len(changes))
	s.ChangeGroups(changes, func(i int, err error) {
		errs[i] = err
		work.Done()
	})
	work.Wait()
	return errs
}

func joins(group string, m catalog.MemberID) catalog.GroupChange {
	return catalog.GroupChange{
		Do: catalog.Join, Group: catalog.GroupRef{VHost: "/", Stream: "s", Name: group}, Partition: catalog.Plain, Member: m,
	}
}

// whoIsActive returns a group's active member that is in contact.
func whoIsActive(v *catalog.State, group string) catalog.MemberID {
	g, ok := v.Group("/", "s", group)
	if !ok {
		return catalog.MemberID{}
	}
	for _, m := range g.Members {
		if m.Role == catalog.Active && m.Reach == catalog.Connected {
			return m.MemberID
		}
	}
	return catalog.MemberID{}
}

// A thousand members that come at once, and go at once, take few commands, and
// each is seen by the one that hears of it.
func TestChangeGroups_fewCommands(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	create(t, sites[0].Cluster, "s")
	from := others(sites, leaderOf(t, sites))[0]
	const members = 1000
	before := from.View().Version()
	var work sync.WaitGroup
	for _, do := range []catalog.GroupAct{catalog.Join, catalog.Leave} {
		for i := range members {
			c := joins("app", memberOf(from.name, i))
			c.Do = do
			work.Add(1)
			from.ChangeGroups([]catalog.GroupChange{c}, func(_ int, err error) {
				defer work.Done()
				if err != nil {
					t.Errorf("%s %d: %v", do, i, err)
				}
				g, ok := from.View().Group("/", "s", "app")
				if ok {
					_, ok = g.Member(c.Member)
				}
				if ok != (do == catalog.Join) {
					t.Errorf("%s %d is answered before it is seen", do, i)
				}
			})
		}
		work.Wait()
	}
	if n := from.View().Version() - before; n > 40 {
		t.Errorf("%d members came and went in %d commands", members, n)
	}
}

// The node of the active member goes: the next one is active once it has been
// away for the time agreed, whoever leads the metadata then; and when the node is
// back it is told what it missed.
func TestGroups_nodeGoes(t *testing.T) {
	t.Parallel()
	w := newTown(t)
	w.groupPatience = 700 * time.Millisecond
	sites := w.gather("n1", "n2", "n3")
	create(t, sites[0].Cluster, "s")
	victim := leaderOf(t, sites) // the metadata gets another leader too
	rest := others(sites, victim)
	for i, s := range append([]*site{victim}, rest...) {
		if err := s.change(joins("app", memberOf(s.name, i)))[0]; err != nil {
			t.Fatal(err)
		}
	}
	if got := whoIsActive(victim.View(), "app"); got.Node != victim.name {
		t.Fatalf("active is %+v", got)
	}
	victim.stop()
	for _, s := range rest {
		eventually(t, s.Cluster, "the next is active", func(v *catalog.State) bool {
			return whoIsActive(v, "app").Node == rest[0].name
		})
	}
	victim.start(Joins{})
	eventually(t, victim.Cluster, "both are asked to stop", func(v *catalog.State) bool {
		g, _ := v.Group("/", "s", "app")
		return g.Members[0].Role == catalog.Stopping && g.Members[1].Role == catalog.Stopping
	})
	ref := catalog.GroupRef{VHost: "/", Stream: "s", Name: "app"}
	victim.change(catalog.GroupChange{Do: catalog.Leave, Group: ref, Member: memberOf(victim.name, 0)})
	rest[0].change(catalog.GroupChange{Do: catalog.Stopped, Group: ref, Member: memberOf(rest[0].name, 1)})
	eventually(t, rest[1].Cluster, "one is active again", func(v *catalog.State) bool {
		return whoIsActive(v, "app").Node == rest[0].name
	})
}

// A process that has just begun does not take a node that it has not seen for one
// that is there: the node's members may be presumed down.
func TestAway_unseen(t *testing.T) {
	c := &Cluster{coord: &coordinator{gone: map[protocol.NodeID]bool{}}}
	c.presence = newPresence(func(node protocol.NodeID, is catalog.Presence) {
		if delete(c.coord.gone, node); is == catalog.Gone {
			c.coord.gone[node] = true
		}
	})
	c.presence.expect("n2")
	since, now := map[protocol.NodeID]time.Time{}, time.Now()
	want := func(when string, want catalog.Away) {
		t.Helper()
		c.presence.look(now)
		if got := c.away(since, now); !maps.Equal(got, want) {
			t.Errorf("%s: %v, want %v", when, got, want)
		}
	}
	want("at first", catalog.Away{"n2": catalog.Unseen})
	now = now.Add(firstPatience)
	want("missed", catalog.Away{"n2": 0})
	now = now.Add(time.Second)
	want("for a second", catalog.Away{"n2": 1000})
	c.presence.set("n2", true)
	want("linked", catalog.Away{})
	c.presence.set("n2", false)
	now = time.Now()
	want("its link broken just now", catalog.Away{})
}

// A node that hears of no leader knows since when.
func TestContact(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	for _, s := range sites {
		if c := s.Contact(); c > 5*time.Second {
			t.Errorf("%s heard of the leader %s ago", s.name, c)
		}
	}
	alone := others(sites, leaderOf(t, sites))[0]
	for _, s := range others(sites, alone) {
		s.stop()
	}
	until(t, "the time without contact grows", func() bool { return alone.Contact() > time.Second })
}
