package integration

import (
	"testing"
	"time"

	"github.com/millrace/millrace/integration/harness"
)

// The same as partition_test.go on a network that loses what it does not carry:
// each node is in a network namespace of its own, with addresses that are not
// loopback's, so that they must prove themselves by certificates. Gossip is cut
// too.

// wiresTest is a cutTest whose lines can do more than be cut.
type wiresTest struct {
	*cutTest
	wires *harness.Wires
}

// everywhere has the lines between all nodes behave in a way for a while, in
// which every publisher must get confirms.
func (w *wiresTest) everywhere(what string, as harness.Behaviour) {
	w.through(what, func() {
		for _, from := range w.cluster.Nodes {
			for _, to := range w.cluster.Others(from) {
				w.wires.Shape(from, to, as)
			}
		}
	})
}

// lossy has every line lose one frame of twenty.
func (w *wiresTest) lossy() { w.everywhere("lines that lose 5 %", harness.Behaviour{Loss: 0.05}) }

// far has the nodes on different continents.
func (w *wiresTest) far() {
	w.everywhere("a round trip of 200 ms", harness.Behaviour{Delay: 100 * time.Millisecond})
}

// slow has one node that receives less than is written: it falls behind, and
// nobody waits for it.
func (w *wiresTest) slow() {
	leader := w.cluster.Leader(w.streams[0].name)
	slowed := w.cluster.Others(leader)[0]
	w.through("a node behind a line of 500 kB/s", func() {
		for _, n := range w.cluster.Others(slowed) {
			w.wires.Shape(n, slowed, harness.Behaviour{BytesPerSecond: 500_000})
		}
	})
}

// unplugged pulls the plug of a stream's leader: its sockets are told at once.
func (w *wiresTest) unplugged() {
	leader := w.cluster.Leader(w.streams[0].name)
	w.through("a leader without its plug", func() { w.wires.Unplug(leader) })
}

func TestNamespaces_cuts(t *testing.T) {
	needNamespaces(t)
	rows := number(t, "NAMESPACES", 0)
	type row struct {
		name string
		cut  func(*wiresTest)
	}
	var all []row
	for _, c := range cuts {
		all = append(all, row{c.name, func(w *wiresTest) { c.cut(w.cutTest) }})
	}
	all = append(all, row{"lossy", (*wiresTest).lossy}, row{"far", (*wiresTest).far}, row{"slow", (*wiresTest).slow}, row{"unplugged", (*wiresTest).unplugged})
	for i, row := range all[:min(rows, len(all))] {
		t.Run(row.name, func(t *testing.T) {
			cluster, wires := harness.StartInNamespaces(t, 3, i%2 == 1, strayAllowance...)
			w := &wiresTest{newCutTest(t, cluster, wires), wires}
			row.cut(w)
			w.judge()
		})
	}
}
