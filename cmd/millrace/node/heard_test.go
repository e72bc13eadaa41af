package node

import (
	"testing"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
)

// A fence may bring a stream that is deleted before the catalog here has shown it,
// and a snapshot in place of entries then never does. Its replica must not stay.
func TestResidents_heardOfAndGone(t *testing.T) {
	w := newWhole(t)
	w.start(w.config("n1"))
	n := w.nodes["n1"]
	s := &catalog.Stream{
		VHost: "/", Name: "gone", Incarnation: 7, Epoch: 1, ConfigVersion: 1,
		Replicas: []catalog.Replica{{Node: "n1", Voter: true}},
	}
	if err := n.residents.open(s); err != nil {
		t.Fatal(err)
	}
	if _, runs := n.replicas.Replica(7); !runs {
		t.Fatal("the fence's replica does not run")
	}
	for deadline := time.Now().Add(20 * time.Second); n.store.Has(7); {
		select {
		case <-time.After(20 * time.Millisecond):
		case <-w.context(time.Until(deadline)).Done():
			t.Fatal("the replica of a stream that the catalog does not have is still here")
		}
	}
	if err := n.residents.open(s); err == nil {
		t.Error("a late fence brings the stream back")
	}
}
