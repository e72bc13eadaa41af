package catalog

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

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
		s, _ := c.state.Incarnation(h.Stream)
		if c.fails(h.From) || c.fails(h.To) {
			c.sight.HandoverFailed(h.Stream, h.Epoch, c.tick)
			continue
		}
		c.sight.HandedOver(s, h.Epoch, h.To)
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

func (c *company) up(node protocol.NodeID) bool { return c.sight.Present(node) == Up }

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
		if next, _ := NextChange(s, s.Leader.Node, s.ConfigVersion, c.up); next != nil && body == nil {
			body = &ChangeVoters{[]VoterChange{*next}}
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
