package catalog

import (
	"testing"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

func grant(s *Stream, e chunk.Epoch) *GrantEpochs {
	return &GrantEpochs{Streams: []Grant{{Stream: s.Incarnation, Epoch: e}}}
}

func TestGrantEpochs_oneFollowsTheOther(t *testing.T) {
	w := newWorld(t, "n1", "n2")
	s := w.led("s", "n1", "n2")
	w.shape("s", "e1 v1 *n1 n2")
	w.ok(grant(s, 2))
	w.shape("s", "e2 v1 n1 n2")
	w.refused(grant(s, 2), ErrStaleEpoch) // a second proposer with the same view
	w.refused(grant(s, 4), ErrStaleEpoch)
	w.refused(&GrantEpochs{Streams: []Grant{{Stream: 1, Epoch: 2}}}, ErrStreamMissing)
	w.ok(&GrantEpochs{Streams: []Grant{{Stream: s.Incarnation, Epoch: 3, Prefer: "n2"}}})
	if w.get("s").Preferred != "n2" {
		t.Error("the target of a transfer is not preferred")
	}
}

func TestAssignLeaders_oneForAnEpoch(t *testing.T) {
	w := newWorld(t, "n1", "n2", "n3")
	s := w.stream("s", "n1", "n2")
	assign := func(f func(*Assign)) *AssignLeaders {
		a := Assign{Stream: s.Incarnation, Epoch: 1, Node: "n2", Run: 5, ConfigVersion: 1}
		f(&a)
		return &AssignLeaders{Leaders: []Assign{a}}
	}
	w.refused(assign(func(a *Assign) { a.Epoch = 0 }), ErrStaleEpoch)
	w.refused(assign(func(a *Assign) { a.Epoch = 2 }), ErrStaleEpoch)
	w.refused(assign(func(a *Assign) { a.ConfigVersion = 2 }), ErrStaleVersion)
	w.refused(assign(func(a *Assign) { a.Node = "n3" }), ErrReplicaMissing)
	w.ok(assign(func(a *Assign) {}))
	w.shape("s", "e1 v1 n1 *n2")
	w.ok(assign(func(a *Assign) {})) // the same once more
	if len(w.changes) != 0 {
		t.Error("a repetition changed something")
	}
	w.refused(assign(func(a *Assign) { a.Node = "n1" }), ErrStaleEpoch)
	w.refused(assign(func(a *Assign) { a.Run = 6 }), ErrStaleEpoch)

	a, ok := w.get("s").Assignment()
	if !ok || a.Epoch != 1 || a.Node != "n2" || a.Run != 5 || a.Replicas.Version != 1 || len(a.Replicas.Members) != 2 {
		t.Errorf("assignment %+v", a)
	}
	w.ok(grant(s, 2))
	if _, ok := w.get("s").Assignment(); ok {
		t.Error("an assignment outlived its epoch")
	}
}

func register(s *Stream, node protocol.NodeID) *RegisterReplicas {
	r, _ := s.Replica(node)
	return &RegisterReplicas{Node: node, Streams: []Registered{{Stream: s.Incarnation, From: r.Registration}}}
}

func TestRegisterReplicas_setsAside(t *testing.T) {
	w := newWorld(t, "n1", "n2", "n3")
	w.led("s", "n1", "n2", "n3")
	once := register(w.get("s"), "n2")
	if r := w.ok(once); r.Outcomes[0].Epoch != 1 {
		t.Errorf("the promise to make is %d", r.Outcomes[0].Epoch)
	}
	w.shape("s", "e1 v2 *n1 n2- n3")
	w.refused(once, ErrStaleVersion) // a repetition
	first, _ := w.get("s").Replica("n2")
	w.ok(register(w.get("s"), "n2"))
	second, _ := w.get("s").Replica("n2")
	if first.Registration == second.Registration || first.Registration == 0 {
		t.Errorf("registrations %d, %d", first.Registration, second.Registration)
	}
	w.refused(register(w.get("s"), "n9"), ErrReplicaMissing)

	s := w.get("s")
	w.ok(grant(s, 2))
	w.refused(&AssignLeaders{Leaders: []Assign{{s.Incarnation, 2, "n2", 1, s.ConfigVersion}}}, ErrUnsafe)
}

// A leader that lost its log ends its epoch: no second leader may have it.
func TestRegisterReplicas_leaderEndsItsEpoch(t *testing.T) {
	w := newWorld(t, "n1", "n2", "n3")
	w.led("s", "n1", "n2", "n3")
	if r := w.ok(register(w.get("s"), "n1")); r.Outcomes[0].Epoch != 2 {
		t.Errorf("the promise to make is %d", r.Outcomes[0].Epoch)
	}
	w.shape("s", "e2 v2 n1- n2 n3")
}

func TestRegisterReplicas_soleVoterMayLeadAgain(t *testing.T) {
	w := newWorld(t, "n1")
	w.led("s", "n1")
	w.ok(register(w.get("s"), "n1"))
	w.shape("s", "e2 v2 n1-")
	w.elect(w.get("s"), "n1")
	w.shape("s", "e2 v2 *n1-")
}

func TestClearReplicas_onlyByTheLeaderOfTheEpoch(t *testing.T) {
	w := newWorld(t, "n1", "n2", "n3")
	w.led("s", "n1", "n2", "n3")
	w.ok(register(w.get("s"), "n2"))
	s := w.get("s")
	r, _ := s.Replica("n2")
	clear := func(f func(*Cleared)) *ClearReplicas {
		c := Cleared{Stream: s.Incarnation, Node: "n2", Registration: r.Registration, Epoch: 1}
		f(&c)
		return &ClearReplicas{Replicas: []Cleared{c}}
	}
	w.refused(clear(func(c *Cleared) { c.Epoch = 2 }), ErrStaleEpoch)
	w.refused(clear(func(c *Cleared) { c.Registration = 0 }), ErrStaleVersion) // emptied once more since
	w.refused(clear(func(c *Cleared) { c.Node = "n4" }), ErrReplicaMissing)
	w.ok(clear(func(c *Cleared) {}))
	w.shape("s", "e1 v3 *n1 n2 n3")
	w.ok(clear(func(c *Cleared) {}))
	w.shape("s", "e1 v3 *n1 n2 n3")
	w.ok(grant(s, 2))
	w.refused(clear(func(c *Cleared) {}), ErrStaleEpoch)
	w.refused(clear(func(c *Cleared) { c.Epoch = 2 }), ErrStaleEpoch) // an election, no leader
}

func (w *world) change(name string, node protocol.NodeID, voter bool) *ChangeVoters {
	s := w.get(name)
	r, _ := s.Replica(node)
	return &ChangeVoters{Changes: []VoterChange{{
		Stream: s.Incarnation, Epoch: s.Epoch, Version: s.ConfigVersion, Node: node, Registration: r.Registration, Voter: voter,
	}}}
}

func (w *world) remove(name string, node protocol.NodeID) *RemoveReplicas {
	s := w.get(name)
	r, _ := s.Replica(node)
	return &RemoveReplicas{Replicas: []Removed{{s.Incarnation, node, r.Registration}}}
}

func TestChangeVoters_growsAndShrinks(t *testing.T) {
	w := newWorld(t, "n1", "n2", "n3")
	w.led("s", "n1")
	add := &AddReplicas{Replicas: []Added{{Stream: w.get("s").Incarnation, Node: "n3"}}}
	if o := w.ok(add).Outcomes[0]; o.Epoch != 1 || o.Registration != 2 {
		t.Errorf("the learner's promise and registration are %+v", o)
	}
	w.shape("s", "e1 v2 *n1 n3l-")
	w.refused(add, ErrReplicaExists)
	w.refused(&AddReplicas{Replicas: []Added{{Stream: w.get("s").Incarnation, Node: "n9"}}}, ErrNodeMissing)
	other := w.change("s", "n3", true)
	other.Changes[0].Registration++
	w.refused(other, ErrStaleVersion)
	late := w.change("s", "n3", true)
	late.Changes[0].Version--
	w.refused(late, ErrUnsettled)
	promote := w.change("s", "n3", true)
	w.ok(promote)
	w.shape("s", "e1 v3 *n1 n3")
	w.ok(promote) // a repetition
	w.shape("s", "e1 v3 *n1 n3")
	w.refused(w.remove("s", "n3"), ErrUnsafe)

	w.ok(w.change("s", "n1", false)) // the leader leads on until it transfers
	w.shape("s", "e1 v4 *n1l n3")
	w.refused(w.remove("s", "n1"), ErrLeader)
	w.refused(w.change("s", "n3", false), ErrUnsafe) // the last voter
	w.ok(grant(w.get("s"), 2))
	w.refused(w.change("s", "n1", true), ErrUnsettled) // in an election
	w.elect(w.get("s"), "n3")
	stale := w.change("s", "n1", true)
	stale.Changes[0].Epoch = 1
	w.refused(stale, ErrStaleEpoch)
	again := w.remove("s", "n1")
	wrong := w.remove("s", "n1")
	wrong.Replicas[0].Registration = 9
	w.refused(wrong, ErrReplicaMissing)
	w.ok(again)
	w.shape("s", "e2 v5 *n3")
	w.refused(again, ErrReplicaMissing)
}

func TestRetireReplicas(t *testing.T) {
	w := newWorld(t, "n1", "n2", "n3")
	w.led("s", "n1", "n2")
	retire := func(node protocol.NodeID, stay bool) *RetireReplicas {
		return &RetireReplicas{Replicas: []Retired{{w.get("s").Incarnation, node, stay}}}
	}
	w.ok(retire("n2", false))
	w.shape("s", "e1 v1 *n1 n2!")
	w.ok(retire("n2", false))
	w.refused(retire("n1", false), ErrUnsafe) // nothing would stay
	w.refused(retire("n3", false), ErrReplicaMissing)
	w.ok(&AddReplicas{Replicas: []Added{{Stream: w.get("s").Incarnation, Node: "n3"}}})
	w.ok(retire("n1", false))
	w.shape("s", "e1 v2 *n1! n2! n3l-")
	w.ok(w.change("s", "n3", true))
	w.ok(w.change("s", "n2", false))
	w.refused(w.change("s", "n2", true), ErrUnsafe) // on its way out
	w.ok(retire("n2", true))
	w.ok(w.change("s", "n2", true))
	w.shape("s", "e1 v5 *n1! n2 n3")
}

func TestTransferLeaders(t *testing.T) {
	w := newWorld(t, "n1", "n2", "n3")
	w.led("s", "n1", "n2")
	to := func(node protocol.NodeID) *TransferLeaders {
		return &TransferLeaders{Transfers: []Transfer{{w.get("s").Incarnation, node}}}
	}
	w.refused(to("n3"), ErrReplicaMissing)
	w.ok(to("n2"))
	if w.get("s").Target != "n2" {
		t.Error("no target")
	}
	w.ok(to("n1")) // it leads already
	if w.get("s").Target != "" {
		t.Error("a target where the leader is")
	}
	w.ok(to("n2"))
	w.ok(grant(w.get("s"), 2))
	w.elect(w.get("s"), "n1")
	if w.get("s").Target != "" {
		t.Error("the wish outlived the next leader")
	}
	w.ok(register(w.get("s"), "n2"))
	w.refused(to("n2"), ErrUnsafe)
	w.ok(&AddReplicas{Replicas: []Added{{Stream: w.get("s").Incarnation, Node: "n3"}}})
	w.refused(to("n3"), ErrUnsafe)
	w.ok(to(""))
}

// Three voters of which one counts for nothing bear the loss of none.
func TestChangeVoters_keepsAMajorityThatCounts(t *testing.T) {
	w := newWorld(t, "n1", "n2", "n3")
	w.led("s", "n1", "n2", "n3")
	w.ok(register(w.get("s"), "n2"))
	w.refused(w.change("s", "n3", false), ErrUnsafe)
	w.ok(w.change("s", "n2", false))
	w.shape("s", "e1 v3 *n1 n2l- n3")
}

func TestNodes(t *testing.T) {
	w := newWorld(t, "n1", "n2", "n3")
	w.led("a", "n1", "n2", "n3")
	w.led("b", "n2", "n3")
	n1 := PutNode{ID: "n1", Disk: "disk-n1", Rack: "r1", Endpoints: Endpoints{Stream: "h:5552"}}
	w.ok(&n1)
	if n, _ := w.state.Node("n1"); n.Rack != "r1" || n.Endpoints.Stream != "h:5552" || len(w.changes) != 1 {
		t.Errorf("node %+v", n)
	}
	w.ok(&n1)
	if len(w.changes) != 0 {
		t.Error("the same properties count as a change")
	}
	w.refused(&PutNode{ID: "", Disk: "x"}, ErrBadArgument)
	w.refused(&PutNode{ID: "n2", Disk: "another"}, ErrNodeExists)

	w.ok(&PutNode{ID: "n2", Disk: "another", Replace: true})
	w.shape("a", "e1 v2 *n1 n2- n3")
	w.shape("b", "e2 v2 n2- n3") // its leader is gone, and so is its epoch

	w.refused(&MarkNode{ID: "n9"}, ErrNodeMissing)
	w.ok(&MarkNode{ID: "n2", Leaving: true})
	if n, _ := w.state.Node("n2"); !n.Draining || !n.Leaving {
		t.Errorf("node %+v", n)
	}
	w.ok(&PutNode{ID: "n2", Disk: "another", Rack: "r2"}) // a restart keeps the marks
	if n, _ := w.state.Node("n2"); !n.Draining || !n.Leaving {
		t.Errorf("node %+v", n)
	}
	w.ok(&MarkNode{ID: "n2"})
	if n, _ := w.state.Node("n2"); n.Draining || n.Leaving {
		t.Errorf("node %+v", n)
	}
	w.refused(&RemoveNode{ID: "n2"}, ErrNodeInUse)
	w.refused(&RemoveNode{ID: "n9"}, ErrNodeMissing)
	w.ok(&PutNode{ID: "n4", Disk: "d"})
	w.ok(&RemoveNode{ID: "n4"})
	if w.state.NodeCount() != 3 {
		t.Errorf("%d nodes", w.state.NodeCount())
	}
}
