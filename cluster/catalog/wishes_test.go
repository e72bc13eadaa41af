package catalog

import (
	"testing"

	"github.com/millrace/millrace/replication/protocol"
)

// That voters are settled is said once. Where it waits behind a newcomer that was
// taken in already, and so changes nothing, it must not get lost: whoever is to
// go would stay for ever.
func TestVoterChanges_settledBehindAnother(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3")
	g.settle("s", "n1", "n2", "n3")
	g.ok(&RetireReplicas{Replicas: []Retired{{Stream: g.get("s").Incarnation, Node: "n2"}}})
	s := g.get("s")
	w := NewWishes("n1")
	w.Add(s.Incarnation, protocol.Proposal{Kind: protocol.ProposeSettled, Node: "n1", Epoch: s.Epoch, Config: s.ConfigVersion})
	w.Add(s.Incarnation, protocol.Proposal{Kind: protocol.ProposePromote, Node: "n3", Epoch: s.Epoch, Config: s.ConfigVersion})
	body, _, later := VoterChanges(g.state, "n1", w.Take(), everyone)
	g.ok(body)
	if r, _ := g.get("s").Replica("n2"); !r.Voter || len(later) != 1 {
		t.Fatalf("n2 is %+v, and %d wishes are to come again; want a voter, and 1", r, len(later))
	}
	w.Add(later[0].Stream, later[0].Proposal)
	body, _, _ = VoterChanges(g.state, "n1", w.Take(), everyone)
	g.ok(body)
	if r, _ := g.get("s").Replica("n2"); r.Voter {
		t.Errorf("n2 is %+v, want a learner", r)
	}
}

// A wish that comes again does not take back what its leader has called settled
// meanwhile.
func TestWishes_olderComesAgain(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3", "n4")
	g.settle("s", "n1", "n2", "n3")
	i := g.get("s").Incarnation
	w := NewWishes("n1")
	settled := func(v protocol.ConfigVersion) {
		w.Add(i, protocol.Proposal{Kind: protocol.ProposeSettled, Node: "n1", Epoch: 1, Config: v})
	}
	settled(1)
	g.ok(&AddReplicas{Replicas: []Added{{Stream: i, Node: "n4"}}})
	settled(2)
	settled(1)
	newcomer, _ := g.get("s").Replica("n4")
	w.Add(i, protocol.Proposal{Kind: protocol.ProposePromote, Node: "n4", Epoch: 1, Config: 2, Registration: newcomer.Registration})
	body, _, _ := VoterChanges(g.state, "n1", w.Take(), everyone)
	g.ok(body)
	if r, _ := g.get("s").Replica("n4"); !r.Voter {
		t.Errorf("n4 is %+v, want a voter", r)
	}
}

// A newcomer whose node has gone meanwhile makes the majority greater and does not
// help to it; and who is to go stays for as long as the rest has none that is
// there. The leader's word waits and does not get lost.
func TestVoterChanges_whoIsThere(t *testing.T) {
	g := newStage(t, "n1", "n2", "n3", "n4")
	g.settle("s", "n1", "n2", "n3")
	i := g.get("s").Incarnation
	g.ok(&AddReplicas{Replicas: []Added{{Stream: i, Node: "n4", Instead: "n2"}}})
	down := protocol.NodeID("")
	up := func(n protocol.NodeID) bool { return n != "n3" && n != down }
	w := NewWishes("n1")
	say := func(kind protocol.ProposalKind, node protocol.NodeID) (changes int, later []Wish) {
		s := g.get("s")
		r, _ := s.Replica(node)
		w.Add(i, protocol.Proposal{Kind: protocol.ProposeSettled, Node: "n1", Epoch: s.Epoch, Config: s.ConfigVersion})
		w.Take()
		w.Add(i, protocol.Proposal{Kind: kind, Node: node, Epoch: s.Epoch, Config: s.ConfigVersion, Registration: r.Registration})
		body, _, later := VoterChanges(g.state, "n1", w.Take(), up)
		g.ok(body)
		return len(body.Changes), later
	}
	down = "n4"
	if changes, later := say(protocol.ProposePromote, "n4"); changes != 0 || len(later) != 0 {
		t.Errorf("n4 is gone: %d changes, %d later", changes, len(later))
	}
	down = ""
	if changes, _ := say(protocol.ProposePromote, "n4"); changes != 1 {
		t.Errorf("n4 is there: %d changes", changes)
	}
	down = "n4"
	if changes, later := say(protocol.ProposeSettled, "n1"); changes != 0 || len(later) != 1 {
		t.Errorf("n2 is to go while n3 and n4 are gone: %d changes, %d later", changes, len(later))
	}
	down = ""
	if changes, later := say(protocol.ProposeSettled, "n1"); changes != 1 || len(later) != 0 {
		t.Errorf("n2 is to go while n3 is gone: %d changes, %d later", changes, len(later))
	}
}
