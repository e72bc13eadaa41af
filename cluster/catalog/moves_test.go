package catalog

import (
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

func (g *stage) transfer(name string, to protocol.NodeID) {
	g.t.Helper()
	g.ok(&TransferLeaders{Transfers: []Transfer{{g.get(name).Incarnation, to}}})
}

func TestNextSteps_transfer(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.settle("s", "n1", "n2", "n3")
	s := g.get("s")
	g.transfer("s", "n3")
	g.expect("s", "n1 hands over to n3")
	g.expect("s", "") // asked already
	g.sight.HandoverFailed(s.Incarnation, 1, g.tick)
	g.expect("s", "wake 51")
	g.tick = 51
	g.expect("s", "n1 hands over to n3")
	g.sight.HandedOver(s, 1, "n3")
	g.expect("s", "grant 2")
	steps := NextSteps(g.state, g.sight, []chunk.Incarnation{s.Incarnation}, g.tick)
	if steps.Grants[0].Prefer != "n3" {
		t.Errorf("the heir is not preferred: %+v", steps.Grants[0])
	}
	g.ok(&GrantEpochs{Streams: steps.Grants})
	g.expect("s", "fence n1, fence n2, fence n3")
	for _, n := range []protocol.NodeID{"n1", "n2", "n3"} {
		g.report("s", n, 1, 9)
	}
	g.expect("s", "elect n3")
	g.elect(g.get("s"), "n3")
	g.expect("s", "install n3")
	if g.get("s").Target != "" {
		t.Error("the wish is not fulfilled")
	}
}

// A transfer does not wait for a voter that has nothing to add; but for the old
// leader, which may hold offsets that were stored while it handed over.
func TestNextSteps_transferWaitsForNoThird(t *testing.T) {
	for _, x := range []struct {
		reports []protocol.NodeID
		want    string
	}{
		{[]protocol.NodeID{"n1", "n3"}, "elect n3"},
		{[]protocol.NodeID{"n2", "n3"}, "wake 101"},
		{[]protocol.NodeID{"n1", "n2"}, "wake 101"},
	} {
		g := newStage(t, "n1", "n2", "n3")
		g.settle("s", "n1", "n2", "n3")
		s := g.get("s")
		g.transfer("s", "n3")
		g.expect("s", "n1 hands over to n3")
		g.sight.HandedOver(s, 1, "n3")
		grants := NextSteps(g.state, g.sight, []chunk.Incarnation{s.Incarnation}, g.tick).Grants
		g.ok(&GrantEpochs{Streams: grants})
		g.expect("s", "fence n1, fence n2, fence n3")
		for _, n := range x.reports {
			g.report("s", n, 1, 9)
		}
		g.expect("s", x.want)
		// The next election is one like any other.
		g.elect(g.get("s"), "n3")
		g.ok(&GrantEpochs{Streams: []Grant{{Stream: s.Incarnation, Epoch: 3}}})
		g.expect("s", "fence n1, fence n2, fence n3")
		g.report("s", "n1", 2, 10)
		g.report("s", "n3", 2, 10)
		g.expect("s", "wake 101")
	}
}

func TestNextSteps_transferWaitsForItsTarget(t *testing.T) {
	g := newStage(t, "n1", "n2")
	g.settle("s", "n1", "n2")
	g.transfer("s", "n2")
	g.sight.See("n2", Gone)
	g.expect("s", "")
	g.sight.See("n2", Up)
	g.ok(register(g.get("s"), "n2")) // emptied since
	g.expect("s", "")
}

// A wish for a place that can't lead now does not keep a leader where it must go
// from; and it ends with the replica there, which another one may follow some day.
func TestNextSteps_drainDespiteAWish(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.settle("s", "n1", "n2", "n3")
	g.transfer("s", "n2")
	g.sight.See("n2", Gone)
	g.ok(&MarkNode{ID: "n1", Draining: true})
	g.expect("s", "n1 hands over to n3")
}

// A leader that votes no more yields by itself; where the coordinator that heard
// it is gone, the next one asks.
func TestNextSteps_leaderThatVotesNoMore(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.settle("s", "n1", "n2", "n3")
	s := g.get("s")
	g.ok(&RetireReplicas{Replicas: []Retired{{Stream: s.Incarnation, Node: "n1"}}})
	g.ok(&ChangeVoters{Changes: []VoterChange{{Stream: s.Incarnation, Epoch: 1, Version: 1, Node: "n1"}}})
	if got := g.next("s"); got != "n1 hands over to n2" && got != "n1 hands over to n3" {
		t.Errorf("the steps are %q, want a handing over", got)
	}
}

func TestTransferLeaders_endsWithTheReplica(t *testing.T) {
	for _, leave := range []func(*Stream) Body{
		func(s *Stream) Body {
			return &RetireReplicas{Replicas: []Retired{{Stream: s.Incarnation, Node: "n2"}}}
		},
		func(s *Stream) Body {
			return &AddReplicas{Replicas: []Added{{Stream: s.Incarnation, Node: "n4", Instead: "n2"}}}
		},
	} {
		g := newStage(t, "n1", "n2", "n3", "n4")
		g.settle("s", "n1", "n2", "n3")
		g.transfer("s", "n2")
		g.ok(leave(g.get("s")))
		if to := g.get("s").Target; to != "" {
			t.Errorf("the leader is still wanted at %s, whose replica is on its way out", to)
		}
	}
}

func TestNextSteps_drain(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.settle("s", "n1", "n2", "n3")
	g.settle("alone", "n1")
	g.ok(&MarkNode{ID: "n1", Draining: true})
	g.ok(&MarkNode{ID: "n3", Draining: true})
	g.expect("s", "n1 hands over to n2") // n3 drains too
	g.expect("alone", "")                // nobody else could lead
	g.sight.See("n2", Gone)
	g.settle("t", "n1", "n2", "n3")
}

// A drain of many streams asks few leaders at a time; what is put off is not
// forgotten.
func TestNextSteps_drainIsBounded(t *testing.T) {
	const streams = 100
	g := newStage(t, "n1", "n2")
	var all []chunk.Incarnation
	for i := range streams {
		name := fmt.Sprintf("s%d", i)
		g.settle(name, "n1", "n2")
		all = append(all, g.get(name).Incarnation)
	}
	g.ok(&MarkNode{ID: "n1", Draining: true})
	seen := map[chunk.Incarnation]bool{}
	look := all
	for range streams {
		steps := NextSteps(g.state, g.sight, look, g.tick)
		if len(steps.Handovers) == 0 {
			break
		}
		if len(g.sight.handing) > handoversMax {
			t.Fatalf("%d leaders hand over at once", len(g.sight.handing))
		}
		for _, h := range steps.Handovers {
			if seen[h.Stream] {
				t.Fatalf("stream %s was asked twice", h.Stream)
			}
			seen[h.Stream] = true
			s, _ := g.state.Incarnation(h.Stream)
			g.sight.HandedOver(s, 1, h.To)
		}
		look = steps.Waiting
		g.tick = max(g.tick, steps.Wake)
	}
	if len(seen) != streams {
		t.Errorf("%d of %d leaders were asked", len(seen), streams)
	}
}

func TestNextSteps_leavingNode(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3", "n4")
	g.settle("s", "n2", "n1", "n3")
	g.ok(&MarkNode{ID: "n1", Leaving: true})
	g.expect("s", "add n4 for n1")
	instead := &AddReplicas{Replicas: []Added{{Stream: g.get("s").Incarnation, Node: "n4", Instead: "n1"}}}
	g.ok(instead)
	g.shape("s", "e1 v2 n1! *n2 n3 n4l-")
	g.refused(instead, ErrReplicaExists)
	instead.Replicas[0].Node = "n5"
	g.ok(&PutNode{ID: "n5", Disk: "d"})
	g.refused(instead, ErrReplicaMissing) // replaced already
	g.expect("s", "")                     // n4 catches up
	if c, _ := NextChange(g.get("s"), "n2", g.get("s").ConfigVersion, everyone); c != nil {
		t.Errorf("the newcomer is not awaited: %+v", c)
	}
	g.ok(g.change("s", "n4", true))
	c, _ := NextChange(g.get("s"), "n2", g.get("s").ConfigVersion, everyone)
	if c == nil || c.Node != "n1" || c.Voter {
		t.Fatalf("change %+v", c)
	}
	g.ok(&ChangeVoters{Changes: []VoterChange{*c}})
	g.expect("s", "remove n1")
	g.ok(g.remove("s", "n1"))
	g.expect("s", "")
	g.shape("s", "e1 v5 *n2 n3 n4")
	if got := Departed(g.state); !slices.Equal(got, []protocol.NodeID{"n1"}) {
		t.Errorf("departed: %v", got)
	}
}

// Without a further node the stream shrinks; the last replica stays and says why.
func TestNextSteps_leavingNodeWithoutAReplacement(t *testing.T) {
	g := newStage(t, "n1", "n2")
	g.settle("s", "n2", "n1")
	g.settle("alone", "n1")
	g.ok(&MarkNode{ID: "n1", Leaving: true})
	g.expect("s", "retire n1")
	g.expect("alone", "add n2 for n1")
	g.sight.See("n2", Gone)
	g.expect("alone", "stuck the only replica is on node n1, which is to leave, and no other node can hold it")
	if got := Departed(g.state); len(got) != 0 {
		t.Errorf("departed: %v", got)
	}
}

func TestNextSteps_fewLearnersAtATime(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3", "n4")
	var all []chunk.Incarnation
	for i := range 3 * learnersMax {
		name := fmt.Sprintf("s%d", i)
		g.settle(name, "n2", "n1", "n3")
		all = append(all, g.get(name).Incarnation)
	}
	g.ok(&MarkNode{ID: "n1", Leaving: true})
	steps := NextSteps(g.state, g.sight, all, g.tick)
	if len(steps.Added) != learnersMax || len(steps.Waiting) != 2*learnersMax || len(steps.Retired) != 0 {
		t.Errorf("%d added, %d put off, %d retired", len(steps.Added), len(steps.Waiting), len(steps.Retired))
	}
	g.ok(&AddReplicas{Replicas: steps.Added})
	steps = NextSteps(g.state, g.sight, steps.Waiting, g.tick)
	if len(steps.Added) != 0 || len(steps.Waiting) != 2*learnersMax {
		t.Errorf("%d added though all that may catch up do", len(steps.Added))
	}
}

func everyone(protocol.NodeID) bool { return true }

func TestNextChange(t *testing.T) {
	for _, row := range []struct {
		name    string
		build   func(w *world)
		by      protocol.NodeID
		down    []protocol.NodeID
		want    protocol.NodeID // the node that becomes a learner, "" for none
		blocked bool
	}{
		{"nothing to do", func(w *world) {}, "n1", nil, "", false},
		{"one is to go", func(w *world) { w.retire("n2") }, "n1", nil, "n2", false},
		{"not by a follower", func(w *world) { w.retire("n2") }, "n2", nil, "", false},
		{"the leader goes last", func(w *world) { w.retire("n1"); w.retire("n3") }, "n1", nil, "n3", false},
		{"the leader goes", func(w *world) { w.retire("n1") }, "n1", nil, "n1", false},
		{"not while one comes", func(w *world) { w.retire("n2"); w.add("n4") }, "n1", nil, "", false},
		{"not if too few would count", func(w *world) { w.retire("n2"); w.ok(register(w.get("s"), "n3")) }, "n1", nil, "", false},
		{"one that does not count first", func(w *world) { w.retire("n3"); w.ok(register(w.get("s"), "n3")) }, "n1", nil, "n3", false},
		{"not if too few would be there", func(w *world) { w.retire("n2") }, "n1", []protocol.NodeID{"n3"}, "", true},
		{"not the leader either", func(w *world) { w.retire("n1") }, "n1", []protocol.NodeID{"n3"}, "", true},
		{"one that is not there", func(w *world) { w.retire("n3") }, "n1", []protocol.NodeID{"n3"}, "n3", false},
		{"one that is not there first", func(w *world) { w.retire("n2"); w.retire("n3") }, "n1", []protocol.NodeID{"n3"}, "n3", false},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, "n1", "n2", "n3", "n4")
			w.led("s", "n1", "n2", "n3")
			row.build(w)
			s := w.get("s")
			up := func(n protocol.NodeID) bool { return !slices.Contains(row.down, n) }
			c, blocked := NextChange(s, row.by, s.ConfigVersion, up)
			if c == nil && row.want != "" || c != nil && c.Node != row.want || blocked != row.blocked {
				t.Fatalf("change %+v, blocked %v, want %q, %v", c, blocked, row.want, row.blocked)
			}
			if unsettled, _ := NextChange(s, row.by, s.ConfigVersion-1, up); unsettled != nil {
				t.Error("a change on a version that is not settled")
			}
			if c != nil {
				w.ok(&ChangeVoters{Changes: []VoterChange{*c}})
			}
		})
	}
}

// Whoever is there lets those go that are not, one after the other, as long as
// it has a majority: that is how a stream gets one that bears more again.
func TestNextChange_lostNodesGo(t *testing.T) {
	w := newWorld(t, "n1", "n2", "n3", "n4", "n5")
	w.led("s", "n1", "n2", "n3", "n4", "n5")
	up := func(n protocol.NodeID) bool { return n <= "n3" }
	var gone []protocol.NodeID
	for _, n := range []protocol.NodeID{"n2", "n4", "n5"} { // n2 waits for one of the others
		w.retire(n)
	}
	for {
		c, blocked := NextChange(w.get("s"), "n1", w.get("s").ConfigVersion, up)
		if blocked {
			t.Fatalf("behind %v the next one waits", gone)
		}
		if c == nil {
			break
		}
		w.ok(&ChangeVoters{Changes: []VoterChange{*c}})
		gone = append(gone, c.Node)
	}
	if want := []protocol.NodeID{"n4", "n2", "n5"}; !slices.Equal(gone, want) {
		t.Errorf("%v went, want %v", gone, want)
	}
}

// A leader that votes no more stays where no election could follow it.
func TestNextSteps_handsOverNothingWithoutAMajority(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.settle("s", "n1", "n2", "n3")
	s := g.get("s")
	g.retire("n1")
	g.ok(&ChangeVoters{Changes: []VoterChange{{Stream: s.Incarnation, Epoch: 1, Version: 1, Node: "n1"}}})
	g.sight.See("n3", Gone)
	g.expect("s", "")
	g.sight.See("n3", Up)
	if got := g.next("s"); got != "n1 hands over to n2" && got != "n1 hands over to n3" {
		t.Errorf("the steps are %q, want a handing over", got)
	}
}

func (w *world) retire(node protocol.NodeID) {
	w.ok(&RetireReplicas{Replicas: []Retired{{Stream: w.get("s").Incarnation, Node: node}}})
}

func (w *world) add(node protocol.NodeID) {
	w.ok(&AddReplicas{Replicas: []Added{{Stream: w.get("s").Incarnation, Node: node}}})
}
