package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// The house is a cluster of the catalog's nodes; down are those that don't
// answer.
func (h *house) Overview(context.Context) Cluster {
	c := Cluster{ID: "c", Node: "n1", Leader: "n1", Term: 3, Seen: !h.headless, Removed: h.removed}
	for n := range h.state.Nodes() {
		l := h.state.Load(n.ID)
		c.Members = append(c.Members, Member{
			Node: string(n.ID), State: StateOf(!slices.Contains(h.down, string(n.ID))), Leader: n.ID == "n1", Voter: true,
			Draining: n.Draining, Leaving: n.Leaving, Leaders: l.Leaders, Replicas: l.Replicas,
		})
	}
	return c
}

func (h *house) Transfer(_ context.Context, node string) error {
	if node == "down" {
		return fmt.Errorf("%w: it does not answer", catalog.ErrUnsafe)
	}
	return nil
}

func (h *house) Meet(_ context.Context, address string) (string, error) {
	if strings.HasPrefix(address, "other") {
		return "", ErrOtherCluster
	}
	return "n2", nil
}

func (h *house) Remove(_ context.Context, node string) error {
	if node == "n1" {
		return fmt.Errorf("%w: it is the only one", catalog.ErrUnsafe)
	}
	return h.do(&catalog.RemoveNode{ID: "n9"})
}

func (h *house) Drain(_ context.Context, node string, drain bool) error {
	if node == "n7" {
		return errors.Join(ErrUnavailable)
	}
	return h.do(&catalog.MarkNode{ID: "n1", Draining: drain})
}

func TestCluster_callsAndRefusals(t *testing.T) {
	for _, row := range []struct {
		method, path, user string
		body               any
		status             int
		code               string
	}{
		{"GET", "/api/v1/cluster", "watcher", nil, 200, ""},
		{"GET", "/api/v1/cluster", "plain", nil, 403, "not_allowed"},
		{"POST", "/api/v1/cluster/transfer?to=n2", "watcher", nil, 403, "not_allowed"},
		{"POST", "/api/v1/cluster/transfer", "root", nil, 200, ""},
		{"POST", "/api/v1/cluster/transfer?to=down", "root", nil, 412, "unsafe"},
		{"POST", "/api/v1/cluster/join", "root", Joining{"n2:7081"}, 200, ""},
		{"POST", "/api/v1/cluster/join", "root", Joining{"other:7081"}, 409, "other_cluster"},
		{"DELETE", "/api/v1/cluster/members/n1", "root", nil, 412, "unsafe"},
		{"DELETE", "/api/v1/cluster/members/n9", "root", nil, 404, "node_missing"},
		{"DELETE", "/api/v1/cluster/members/n9", "watcher", nil, 403, "not_allowed"},
		{"PUT", "/api/v1/cluster/members/n1/drain", "root", nil, 200, ""},
		{"DELETE", "/api/v1/cluster/members/n1/drain", "root", nil, 200, ""},
		{"PUT", "/api/v1/cluster/members/n7/drain", "root", nil, 503, "unavailable"},
	} {
		h := newHouse(t)
		res, body := call(t, h.server().Handler(), row.user, row.method, row.path, row.body)
		if status := res.StatusCode; status != row.status || row.code != "" && !strings.Contains(body, `"`+row.code+`"`) {
			t.Errorf("%s %s by %s: %d %s, want %d %s", row.method, row.path, row.user, res.StatusCode, body, row.status, row.code)
		}
	}
}

// The cluster says what is wrong with it, each thing once and by name.
func TestCluster_saysWhatIsWrong(t *testing.T) {
	h := newHouse(t)
	h.must(h.do(&catalog.PutNode{ID: "n2", Disk: "e"}))
	h.must(h.do(&catalog.CreateStreams{Streams: []catalog.NewStream{
		{VHost: "/", Name: "led", Incarnation: 1, Replicas: []protocol.NodeID{"n1"}, Preferred: "n1"},
		{VHost: "/", Name: "unled", Incarnation: 2, Replicas: []protocol.NodeID{"n1", "n2"}, Preferred: "n2"},
	}}))
	h.must(h.do(&catalog.AssignLeaders{Leaders: []catalog.Assign{{Stream: 1, Epoch: 1, Node: "n1", Run: 1, ConfigVersion: 1}}}))
	read := func() Cluster {
		_, body := call(t, h.server().Handler(), "root", http.MethodGet, "/api/v1/cluster", nil)
		return decode[Cluster](t, body)
	}
	if c := read(); c.Streams != 2 || c.WithoutLeader != 1 || c.UnderReplicated != 0 || !slices.Equal(c.Problems, []string{"streams without a leader: unled"}) {
		t.Errorf("one without a leader: %+v", c)
	}
	h.must(h.do(&catalog.AssignLeaders{Leaders: []catalog.Assign{{Stream: 2, Epoch: 1, Node: "n2", Run: 1, ConfigVersion: 1}}}))
	if c := read(); len(c.Problems) != 0 || c.Members[0].Leaders != 1 || c.Members[1].Replicas != 1 {
		t.Errorf("all is well: %+v", c)
	}
	h.down, h.headless = []string{"n2"}, true
	c := read()
	if c.WithoutLeader != 1 || c.UnderReplicated != 1 || len(c.Problems) != 4 || !strings.Contains(strings.Join(c.Problems, "; "), "down: n2") {
		t.Errorf("a node down, no majority: %+v", c)
	}
	h.removed = true
	if c := read(); !slices.Equal(c.Problems, []string{"n1 was removed from the cluster and is no member any more"}) {
		t.Errorf("a node that was removed: %q", c.Problems)
	}
}
