package catalog

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// FenceRequest asks a replica to promise an epoch and to report (A2, A3).
type FenceRequest struct {
	Stream *Stream // as it was when the epoch was granted; Epoch is the one to promise
}

// Installation tells a replica that it leads, with what the election left to
// it. To be told twice is the same as once.
type Installation struct {
	protocol.Assignment
	Inheritance protocol.Inheritance
}

// NodeFences are all fences for one node: one frame, one sync.
type NodeFences struct {
	Node     protocol.NodeID
	Requests []FenceRequest
}

// NodeInstalls are all new leaders on one node.
type NodeInstalls struct {
	Node        protocol.NodeID
	Assignments []Installation
}

// Handover asks the leader on From to stop accepting, to commit all that it
// has, and to answer when To holds it durably (D4).
type Handover struct {
	Stream   chunk.Incarnation
	Epoch    chunk.Epoch
	From, To protocol.NodeID
}

// Stuck is a stream that can't get a leader, and why.
type Stuck struct {
	Stream *Stream
	Reason string
}

// Steps are what the coordinator should do next, for many streams at once. All
// lists are in the order of the streams given to NextSteps, nodes in theirs.
type Steps struct {
	Grants    []Grant // one GrantEpochs
	Fences    []NodeFences
	Elected   []Assign // one AssignLeaders
	Installs  []NodeInstalls
	Handovers []Handover
	Added     []Added   // one AddReplicas
	Retired   []Retired // one RetireReplicas
	Removed   []Removed // one RemoveReplicas
	Stuck     []Stuck
	// Wake is when to look again at Waiting though nothing has happened; 0 is
	// never.
	Wake    protocol.Tick
	Waiting []chunk.Incarnation
}

// Empty says whether there is nothing to do now.
func (s *Steps) Empty() bool {
	return len(s.Grants)+len(s.Fences)+len(s.Elected)+len(s.Installs)+len(s.Handovers)+
		len(s.Added)+len(s.Retired)+len(s.Removed) == 0
}

// NextSteps says what each of the given streams needs next. It is
// level-triggered: it looks at where a stream stands, not at how it came there,
// so that a lost event is made good by looking again. What it returns counts as
// begun in the sight, whose methods take the outcome.
//
//	led, not known to be installed  → install     → Installed, InstallFailed, Over
//	led, reign over or leader gone  → grant the next epoch
//	not led, voters not asked       → fence them  → Reported, FenceFailed
//	not led, enough reports         → record the leader
//	led, leader wanted elsewhere    → hand over   → HandedOver, HandoverFailed
//	replica on a leaving node       → add one elsewhere in its place
//	learner that is to go           → remove it
func NextSteps(s *State, g *Sight, streams []chunk.Incarnation, now protocol.Tick) Steps {
	var steps Steps
	d := decider{
		state: s, sight: g, now: now, steps: &steps, learners: map[protocol.NodeID]int{},
		fences: map[protocol.NodeID][]FenceRequest{}, installs: map[protocol.NodeID][]Installation{},
	}
	for _, i := range streams {
		stream, ok := s.Incarnation(i)
		if !ok {
			g.Forget(i)
			continue
		}
		if stream.Led() {
			d.led(stream)
		} else {
			d.elect(stream)
		}
		d.move(stream)
	}
	for n := range s.Nodes() {
		if requests := d.fences[n.ID]; len(requests) > 0 {
			steps.Fences = append(steps.Fences, NodeFences{n.ID, requests})
		}
		if list := d.installs[n.ID]; len(list) > 0 {
			steps.Installs = append(steps.Installs, NodeInstalls{n.ID, list})
		}
	}
	return steps
}

// decider collects the steps of one call.
type decider struct {
	state    *State
	sight    *Sight
	now      protocol.Tick
	steps    *Steps
	fences   map[protocol.NodeID][]FenceRequest
	installs map[protocol.NodeID][]Installation
	// learners counts those that this call adds, by node.
	learners map[protocol.NodeID]int
}

// led handles a stream whose newest epoch has a leader.
func (d *decider) led(s *Stream) {
	p := d.sight.of(s)
	switch {
	case p.over, d.sight.Present(s.Leader.Node) == Gone && d.majorityUp(s):
		d.steps.Grants = append(d.steps.Grants, Grant{Stream: s.Incarnation, Epoch: s.Epoch + 1, Prefer: p.passed.to})
	case p.installed:
		d.handOver(s, p)
	case p.installing:
	case d.sight.Present(s.Leader.Node) == Gone:
		// Without a majority a new epoch would stop a leader that may still
		// have one: nothing is done until somebody is seen again.
	case p.retry > d.now:
		d.wake(s, p.retry)
	default:
		a, _ := s.Assignment()
		p.installing = true
		d.installs[a.Node] = append(d.installs[a.Node], Installation{a, p.inheritance})
	}
}

// elect handles a stream whose newest epoch has no leader yet.
func (d *decider) elect(s *Stream) {
	p := d.sight.of(s)
	if p.retry <= d.now {
		d.fence(s, p)
	}
	decision := protocol.SelectLeader(s.Epoch, p.reports, s.Configuration(), d.preference(s)...)
	enough := decision.Kind == protocol.Elected
	switch {
	case enough && (p.settled(decision.Node) || d.now >= p.since+p.patience(s)):
		p.inheritance = decision.Inheritance
		d.steps.Elected = append(d.steps.Elected, Assign{
			Stream: s.Incarnation, Epoch: s.Epoch, Node: decision.Node, Run: decision.Run, ConfigVersion: s.ConfigVersion,
		})
	case enough:
		d.wake(s, p.since+p.patience(s)) // more may come, and may hold more
	case len(p.asked) == 0:
		d.steps.Stuck = append(d.steps.Stuck, Stuck{s, p.why(decision)})
		p.later(d.now)
		d.wake(s, p.retry)
	case p.retry > d.now:
		d.wake(s, p.retry) // who failed is asked again beside who has not answered
	}
}

// patience is how long voters are waited for that are up and have not reported.
func (p *progress) patience(s *Stream) protocol.Tick {
	if s.Epoch == 1 && slices.Contains(p.asked, s.Preferred) {
		return placePatience
	}
	return fencePatience
}

// fence asks the voters that are up and owe a report.
func (d *decider) fence(s *Stream, p *progress) {
	for _, id := range s.Voters() {
		if d.sight.Present(id) == Gone || p.reported(id) || slices.Contains(p.asked, id) {
			continue
		}
		p.asked = append(p.asked, id)
		p.since = d.now
		d.fences[id] = append(d.fences[id], FenceRequest{s})
	}
}

// preference orders the voters for ties: the wanted place, then spread by a
// hash; nodes that drain come last.
func (d *decider) preference(s *Stream) []protocol.NodeID {
	voters := s.Voters()
	slices.SortFunc(voters, func(a, b protocol.NodeID) int {
		return cmp.Or(
			cmp.Compare(d.draining(a), d.draining(b)),
			cmp.Compare(unlike(a, s.Preferred), unlike(b, s.Preferred)),
			cmp.Compare(mix(uint64(s.Incarnation), a), mix(uint64(s.Incarnation), b)),
		)
	})
	return voters
}

func (d *decider) draining(id protocol.NodeID) int {
	if n, ok := d.state.Node(id); ok && !n.Draining {
		return 0
	}
	return 1
}

func unlike(a, b protocol.NodeID) int {
	if a == b {
		return 0
	}
	return 1
}

// majorityUp says whether an election could succeed now.
func (d *decider) majorityUp(s *Stream) bool {
	up := 0
	for _, r := range s.Replicas {
		if r.Voter && !r.Aside && d.sight.Present(r.Node) == Up {
			up++
		}
	}
	return up >= s.Configuration().Quorum()
}

func (d *decider) wake(s *Stream, at protocol.Tick) {
	if d.steps.Wake == 0 || at < d.steps.Wake {
		d.steps.Wake = at
	}
	d.steps.Waiting = append(d.steps.Waiting, s.Incarnation)
}

// why says in words what an election lacks.
func (p *progress) why(d protocol.Decision) string {
	var b strings.Builder
	if d.Mark.Compare(d.Tail) > 0 {
		fmt.Fprintf(&b, "a damaged replica held chunks up to %s, the best undamaged one has %s; ", d.Mark, d.Tail)
	}
	if d.Kind == protocol.Lost {
		b.WriteString("all voters have reported and too few of them count")
	} else {
		fmt.Fprintf(&b, "no report from %v", d.Missing)
	}
	for _, r := range p.refused {
		fmt.Fprintf(&b, "; %s: %s", r.node, r.reason)
	}
	return b.String()
}
