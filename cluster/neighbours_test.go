package cluster

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/replication/protocol"
)

// TestNeighbours_trimmed: an address that nobody tells any more is not asked for
// ever, and one that comes late is not kept out by those.
func TestNeighbours_trimmed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n neighbours
		n.hear([]string{"gone:1", "stays:1"})
		time.Sleep(heardPatience / 2)
		n.hear([]string{"stays:1"})
		if got := n.told(); len(got) != 2 {
			t.Errorf("told %q", got)
		}
		time.Sleep(heardPatience / 2)
		if got := n.told(); !slices.Equal(got, []string{"stays:1"}) {
			t.Errorf("%v after the last word of one: told %q", heardPatience, got)
		}
		for i := range 3 * heardMax {
			time.Sleep(time.Millisecond)
			n.hear([]string{fmt.Sprintf("many:%d", i)})
		}
		n.hear([]string{"late:1"})
		got := n.told()
		if len(got) != heardMax || !slices.Contains(got, "late:1") || slices.Contains(got, "stays:1") {
			t.Errorf("of too many: told %d, %q", len(got), got)
		}
	})
}

// Nodes that knocked, of whatever names, are forgotten too.
func TestNeighbours_ofManyNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n neighbours
		for i := range 2 * neighboursMax {
			n.met(introduction{Node: protocol.NodeID(fmt.Sprint(i)), Address: "x:1"})
			time.Sleep(time.Microsecond)
		}
		if got := len(n.present()); got != neighboursMax {
			t.Errorf("%d are remembered at once", got)
		}
		time.Sleep(neighbourPatience)
		n.met(introduction{Node: "new", Address: "y:1"})
		if got := n.addresses(); len(n.all) != 1 || !slices.Equal(got, []string{"y:1"}) {
			t.Errorf("%d are remembered, at %q", len(n.all), got)
		}
	})
}
