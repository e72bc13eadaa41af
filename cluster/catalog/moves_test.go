package catalog

import (
	"fmt"
	"math/rand/v2"
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
	g.expect("s", "fence n1, fence n2, fence n3, wake 151")
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
		for _, h := range steps.Handovers[0].Handovers {
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
	if c, ok := NextChange(g.get("s"), "n2", g.get("s").ConfigVersion); ok {
		t.Errorf("the newcomer is not awaited: %+v", c)
	}
	g.ok(g.change("s", "n4", true))
	c, ok := NextChange(g.get("s"), "n2", g.get("s").ConfigVersion)
	if !ok || c.Node != "n1" || c.Voter {
		t.Fatalf("change %+v", c)
	}
	g.ok(&ChangeVoters{Changes: []VoterChange{c}})
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

func TestNextChange(t *testing.T) {
	for _, row := range []struct {
		name  string
		build func(w *world)
		by    protocol.NodeID
		want  string // the node that becomes a learner, "" for none
	}{
		{"nothing to do", func(w *world) {}, "n1", ""},
		{"one is to go", func(w *world) { w.retire("n2") }, "n1", "n2"},
		{"not by a follower", func(w *world) { w.retire("n2") }, "n2", ""},
		{"the leader goes last", func(w *world) { w.retire("n1"); w.retire("n3") }, "n1", "n3"},
		{"the leader goes", func(w *world) { w.retire("n1") }, "n1", "n1"},
		{"not while one comes", func(w *world) { w.retire("n2"); w.add("n4") }, "n1", ""},
		{"not if too few would count", func(w *world) { w.retire("n2"); w.ok(register(w.get("s"), "n3")) }, "n1", ""},
		{"one that does not count first", func(w *world) { w.retire("n3"); w.ok(register(w.get("s"), "n3")) }, "n1", "n3"},
	} {
		t.Run(row.name, func(t *testing.T) {
			w := newWorld(t, "n1", "n2", "n3", "n4")
			w.led("s", "n1", "n2", "n3")
			row.build(w)
			s := w.get("s")
			c, ok := NextChange(s, row.by, s.ConfigVersion)
			if ok != (row.want != "") || string(c.Node) != row.want {
				t.Fatalf("change %+v, want %q", c, row.want)
			}
			if _, unsettled := NextChange(s, row.by, s.ConfigVersion-1); unsettled {
				t.Error("a change on a version that is not settled")
			}
			if ok {
				w.ok(&ChangeVoters{Changes: []VoterChange{c}})
			}
		})
	}
}

func (w *world) retire(node protocol.NodeID) {
	w.ok(&RetireReplicas{Replicas: []Retired{{Stream: w.get("s").Incarnation, Node: node}}})
}

func (w *world) add(node protocol.NodeID) {
	w.ok(&AddReplicas{Replicas: []Added{{Stream: w.get("s").Incarnation, Node: node}}})
}

// company plays nodes and leaders under a coordinator: what is asked of them is
// done, or with luck.
type company struct {
	*stage
	*rand.Rand
	runs map[protocol.NodeID]protocol.RunID
	lead map[chunk.Incarnation]Installation
	luck int // of 100 calls that many fail
}

// round lets the coordinator look at all streams once and carries its steps
// out; it reports whether there was anything to do.
func (c *company) round() bool {
	c.t.Helper()
	var all []chunk.Incarnation
	for s := range c.state.Streams() {
		all = append(all, s.Incarnation)
	}
	steps := NextSteps(c.state, c.sight, all, c.tick)
	for _, f := range steps.Fences {
		for _, q := range f.Requests {
			c.fence(f.Node, q.Stream)
		}
	}
	for _, n := range steps.Installs {
		for _, i := range n.Assignments {
			c.install(i)
		}
	}
	for _, h := range steps.Handovers {
		for _, x := range h.Handovers {
			s, _ := c.state.Incarnation(x.Stream)
			if c.fails(h.Node) || c.fails(x.To) {
				c.sight.HandoverFailed(x.Stream, x.Epoch, c.tick)
				continue
			}
			c.sight.HandedOver(s, x.Epoch, x.To)
		}
	}
	if len(steps.Grants) > 0 {
		c.do(&GrantEpochs{Streams: steps.Grants})
	}
	if len(steps.Elected) > 0 {
		c.do(&AssignLeaders{Leaders: steps.Elected})
	}
	if len(steps.Added) > 0 {
		c.do(&AddReplicas{Replicas: steps.Added})
	}
	if len(steps.Retired) > 0 {
		c.do(&RetireReplicas{Replicas: steps.Retired})
	}
	if len(steps.Removed) > 0 {
		c.do(&RemoveReplicas{Replicas: steps.Removed})
	}
	changed := c.leaders()
	c.tick += 20
	return changed || !steps.Empty() || len(steps.Waiting) > 0
}

func (c *company) fails(node protocol.NodeID) bool {
	return c.sight.Present(node) == Gone || c.IntN(100) < c.luck
}

func (c *company) fence(node protocol.NodeID, s *Stream) {
	if c.fails(node) {
		c.sight.FenceFailed(s.Incarnation, s.Epoch, node, "bad luck", c.tick)
		return
	}
	r, _ := s.Replica(node)
	c.sight.Reported(protocol.Report{
		Stream: s.Incarnation, Epoch: s.Epoch, Node: node, Run: c.runs[node], Registration: r.Registration, Aside: r.Aside,
		Tail: chunk.Tail{Epoch: 1, LSN: chunk.LSN(c.IntN(1 + c.luck))}, // with luck 0 all are equal
	})
}

func (c *company) install(i Installation) {
	s, ok := c.state.Incarnation(i.Stream)
	switch {
	case !ok:
	case c.fails(i.Node):
		c.sight.InstallFailed(i.Stream, i.Epoch, c.tick)
	case i.Run != c.runs[i.Node]:
		c.sight.Over(s, i.Epoch)
	default:
		c.lead[i.Stream] = i
		c.sight.Installed(i.Stream, i.Epoch)
	}
}

// leaders lets each leader that still leads do one change: clear who is aside,
// take a learner in, let one go that is to go.
func (c *company) leaders() (changed bool) {
	for s := range c.state.Streams() {
		i, ok := c.lead[s.Incarnation]
		if !ok || i.Epoch != s.Epoch || !s.Led() || c.fails(s.Leader.Node) || c.runs[s.Leader.Node] != i.Run {
			continue
		}
		var body Body
		for _, r := range s.Replicas {
			switch {
			case c.sight.Present(r.Node) == Gone || r.Leaving:
			case !r.Voter:
				body = &ChangeVoters{[]VoterChange{{s.Incarnation, s.Epoch, s.ConfigVersion, r.Node, r.Registration, true}}}
			case r.Aside:
				body = &ClearReplicas{[]Cleared{{s.Incarnation, r.Node, r.Registration, s.Epoch}}}
			}
		}
		if next, ok := NextChange(s, s.Leader.Node, s.ConfigVersion); ok && body == nil {
			body = &ChangeVoters{[]VoterChange{next}}
		}
		if r, _ := s.Replica(s.Leader.Node); !r.Voter && body == nil { // it hands over by itself
			for _, id := range s.Voters() {
				if !c.fails(id) {
					c.sight.HandedOver(s, s.Epoch, id)
					changed = true
					break
				}
			}
		}
		if body != nil {
			c.do(body)
			changed = true
		}
	}
	return changed
}

// quiet goes on until there is nothing to do.
func (c *company) quiet(rounds int) {
	c.t.Helper()
	for range rounds {
		if !c.round() {
			return
		}
	}
	var left []string
	for s := range c.state.Streams() {
		left = append(left, s.Name+" "+shape(s))
	}
	c.t.Fatalf("no end in %d rounds: %v", rounds, left)
}

func newCompany(t *testing.T, seed uint64, nodes ...protocol.NodeID) *company {
	c := &company{
		stage: newStage(t, nodes...), Rand: rand.New(rand.NewPCG(seed, 1)),
		runs: map[protocol.NodeID]protocol.RunID{}, lead: map[chunk.Incarnation]Installation{},
	}
	for _, n := range nodes {
		c.runs[n] = 1
	}
	return c
}

func (c *company) createMany(n int) {
	c.t.Helper()
	p := NewPlacer(c.state, func(protocol.NodeID) bool { return true })
	command := &CreateStreams{}
	for i := range n {
		s := newStream(fmt.Sprintf("s%d", i), "n1")
		place, err := p.Place(Wanted{Arguments: Arguments{LeaderLocator: "balanced"}, Salt: uint64(s.Incarnation)})
		if err != nil {
			c.t.Fatal(err)
		}
		s.Replicas, s.Preferred = place.Replicas, place.Leader
		command.Streams = append(command.Streams, s)
	}
	c.ok(command)
}

// A node that leaves gives all its streams to the others, evenly, and each
// stream keeps three voters and a leader.
func TestCompany_nodeLeaves(t *testing.T) {
	c := newCompany(t, 1, "n1", "n2", "n3", "n4", "n5")
	c.createMany(100)
	c.quiet(50)
	c.ok(&MarkNode{ID: "n1", Leaving: true})
	c.quiet(500)
	for s := range c.state.Streams() {
		if voters, clean := count(s.Replicas); voters != 3 || clean != 3 || len(s.Replicas) != 3 || !s.Led() {
			t.Errorf("%s is %s", s.Name, shape(s))
		}
	}
	if got := Departed(c.state); !slices.Equal(got, []protocol.NodeID{"n1"}) {
		t.Fatalf("departed: %v", got)
	}
	c.ok(&RemoveNode{ID: "n1"})
	for n := range c.state.Nodes() {
		even(t, string(n.ID)+" replicas", c.state.Load(n.ID).Replicas, 75)
	}
}

// A drained node leads nothing; after the undrain a rebalance brings leaders
// back, evenly.
func TestCompany_drainAndBalance(t *testing.T) {
	c := newCompany(t, 1, "n1", "n2", "n3")
	c.createMany(90)
	c.quiet(50)
	c.ok(&MarkNode{ID: "n2", Draining: true})
	c.quiet(100)
	if l := c.state.Load("n2"); l.Leaders != 0 || l.Replicas != 90 {
		t.Errorf("the drained node carries %+v", l)
	}
	c.ok(&MarkNode{ID: "n2"})
	c.quiet(100)
	c.ok(&TransferLeaders{Transfers: BalanceLeaders(c.state, func(protocol.NodeID) bool { return true })})
	c.quiet(100)
	for n := range c.state.Nodes() {
		if l := c.state.Load(n.ID).Leaders; l < 29 || l > 31 {
			t.Errorf("%s leads %d of 90", n.ID, l)
		}
	}
	if got := BalanceLeaders(c.state, func(protocol.NodeID) bool { return true }); len(got) != 0 {
		t.Errorf("balanced leaders are moved: %v", got)
	}
}

// Nodes come and go, restart, are emptied, drain and leave, calls fail: every
// step keeps the invariants, and once all is well every stream has a leader
// that leads it and nobody is left aside.
func TestCompany_throughTroubles(t *testing.T) {
	nodes := []protocol.NodeID{"n1", "n2", "n3", "n4", "n5"}
	for seed := range uint64(20) {
		c := newCompany(t, seed, nodes...)
		c.createMany(12)
		c.luck = 20
		for range 400 {
			before := c.state
			switch node := nodes[c.IntN(len(nodes))]; c.IntN(12) {
			case 0:
				c.sight.See(node, Gone)
			case 1, 2:
				c.sight.See(node, Up)
			case 3: // a new process
				c.runs[node]++
				c.sight.Restarted(c.state, node)
			case 4: // a new disk, as long as no stream loses a majority by it
				if slices.ContainsFunc(slices.Collect(c.state.Streams()), func(s *Stream) bool { return !s.bearsLossOf(node) }) {
					continue
				}
				c.runs[node]++
				c.do(&PutNode{ID: node, Disk: fmt.Sprint(c.Uint64()), Replace: true})
			case 5:
				c.do(&MarkNode{ID: node, Draining: c.IntN(2) == 0, Leaving: c.IntN(4) == 0})
			case 6: // a new coordinator
				fresh := NewSight()
				for _, n := range nodes {
					fresh.See(n, c.sight.Present(n))
				}
				c.sight = fresh
			case 7:
				g := generator{Rand: c.Rand}
				s := g.pick(c.state)
				c.do(&TransferLeaders{Transfers: []Transfer{{s.Incarnation, node}}})
			default:
				c.round()
			}
			checkState(t, c.state)
			checkEpochs(t, before, c.state)
		}
		c.luck = 0
		for _, n := range nodes {
			c.sight.See(n, Up)
			c.do(&MarkNode{ID: n})
		}
		c.quiet(300)
		for s := range c.state.Streams() {
			voters, clean := count(s.Replicas)
			if !c.sight.IsInstalled(s.Incarnation, s.Epoch) || clean != voters || voters != len(s.Replicas) {
				t.Errorf("seed %d: %s ends as %s", seed, s.Name, shape(s))
			}
		}
	}
}

// bearsLossOf says whether a majority would count without a node's replica.
func (s *Stream) bearsLossOf(node protocol.NodeID) bool {
	after := slices.Clone(s.Replicas)
	if at := s.replica(node); at >= 0 {
		after[at].Aside = true
	}
	voters, clean := count(after)
	return 2*clean > voters
}

// checkEpochs: an epoch never goes back and never has two leaders.
func checkEpochs(t *testing.T, before, after *State) {
	t.Helper()
	for old := range before.Streams() {
		s, ok := after.Incarnation(old.Incarnation)
		if ok && (s.Epoch < old.Epoch || s.Epoch == old.Epoch && old.Led() && s.Leader != old.Leader) {
			t.Fatalf("%s was %s, is %s", s.Name, shape(old), shape(s))
		}
	}
}
