package catalog

import "testing"

// One node goes on alone: its replicas lead, others' streams and nodes are gone.
func TestGiveUpNodes_keepsWhatTheNodeHas(t *testing.T) {
	w := newWorld(t, "n1", "n2", "n3")
	w.ok(&CreateStreams{Streams: []NewStream{newStream("mine", "n1"), newStream("shared", "n1", "n2", "n3"), newStream("theirs", "n2", "n3")}})
	w.refused(&GiveUpNodes{Keep: "n9"}, ErrNodeMissing)
	before, _ := w.state.Stream("/", "shared")
	w.ok(&RegisterReplicas{Node: "n1", Streams: []Registered{{before.Incarnation, 0}}}) // set aside: it counts all the same
	w.ok(&GiveUpNodes{Keep: "n1"})
	if _, ok := w.state.Stream("/", "theirs"); ok {
		t.Error("a stream without a replica here is still there")
	}
	if mine, _ := w.state.Stream("/", "mine"); mine.Epoch != 1 {
		t.Errorf("the stream that needed nothing is at epoch %d", mine.Epoch)
	}
	s, _ := w.state.Stream("/", "shared")
	if len(s.Replicas) != 1 || s.Replicas[0].Node != "n1" || !s.Replicas[0].Voter || s.Replicas[0].Aside || s.Led() || s.Epoch <= before.Epoch || s.ConfigVersion <= before.ConfigVersion {
		t.Errorf("shared: %+v", s)
	}
	nodes := 0
	for range w.state.Nodes() {
		nodes++
	}
	if nodes != 1 || w.state.Load("n2") != (Load{}) || w.state.Load("n1").Replicas != 2 {
		t.Errorf("%d nodes, n2 carries %+v, n1 %+v", nodes, w.state.Load("n2"), w.state.Load("n1"))
	}
}
