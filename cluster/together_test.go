package cluster

import (
	"testing"
)

// Three empty nodes that start at the same moment are one cluster, and each
// takes every call.
func TestTogether_threeNodesOneCluster(t *testing.T) {
	sites := newTown(t).gather("n1", "n2", "n3")
	for _, s := range sites {
		if s.ID() == "" || s.ID() != sites[0].ID() {
			t.Errorf("%s is of cluster %q, %s of %q", s.name, s.ID(), sites[0].name, sites[0].ID())
		}
	}
	voting(t, sites, 3, 0)
	for _, s := range sites {
		create(t, s.Cluster, "by-"+string(s.name))
		if _, ok := s.View().Stream("/", "by-"+string(s.name)); !ok {
			t.Errorf("%s does not see the stream that it created", s.name)
		}
	}
}
