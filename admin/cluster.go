package admin

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
)

// Membership is the cluster that this node is one of.
type Membership interface {
	// Overview tells how the nodes are, as the metadata's leader sees them.
	Overview(context.Context) Cluster
	// Transfer moves the leadership of the metadata; "" is to any other node.
	Transfer(ctx context.Context, node string) error
	// Meet makes the node at an address known to this one. A node of another
	// cluster is refused.
	Meet(ctx context.Context, address string) (node string, err error)
	// Remove takes a node out for good, once its replicas are elsewhere. It is
	// refused where that would cost a majority.
	Remove(ctx context.Context, node string) error
	// Drain moves leaders away from a node, or lets them come back.
	Drain(ctx context.Context, node string, drain bool) error
}

// Cluster is the nodes together.
type Cluster struct {
	ID     string `json:"id"`
	Node   string `json:"node"`             // that answers
	Leader string `json:"leader,omitempty"` // of the metadata; empty: none at present
	Term   uint64 `json:"term"`             // of the metadata's leader
	// Seen is false where no leader of the metadata answered: then the rest is
	// what this node knows by itself.
	Seen bool `json:"seen"`
	// Removed: Node is no member any more; the rest is what it knew last.
	Removed         bool     `json:"removed,omitempty"`
	Members         []Member `json:"members"`
	Streams         int      `json:"streams"`
	WithoutLeader   int      `json:"without_leader"`   // streams
	UnderReplicated int      `json:"under_replicated"` // streams with a replica that does not count now
	// Problems are why the cluster is degraded; empty: it is well.
	Problems []string `json:"problems"`
}

// Member is one node of a cluster.
type Member struct {
	Node     string `json:"node"`
	State    string `json:"state"`  // up or down
	Leader   bool   `json:"leader"` // of the metadata
	Voter    bool   `json:"voter"`  // on metadata
	Draining bool   `json:"draining"`
	// DiskAlarm: its disk is so low that publishers are stopped there.
	DiskAlarm bool `json:"disk_alarm"`
	Leaving   bool `json:"leaving"`
	// Leaders are the streams that it leads, Replicas those that it has a copy
	// of.
	Leaders   int               `json:"leaders"`
	Replicas  int               `json:"replicas"`
	Rack      string            `json:"rack,omitempty"`
	Version   string            `json:"version,omitempty"`
	Joined    time.Time         `json:"joined"`
	Addresses map[string]string `json:"addresses"` // stream, http, node, gossip
}

// Joining is a node that another one is told of.
type Joining struct {
	Address string `json:"address"`
}

func (s *Server) clusterRoutes() []route {
	return []route{
		{"GET", "/api/v1/cluster", operator, here, (*Server).clusterNow},
		{"POST", "/api/v1/cluster/transfer", administrator, here, (*Server).transferMetadata},
		{"POST", "/api/v1/cluster/join", administrator, here, (*Server).meet},
		{"DELETE", "/api/v1/cluster/members/{node}", administrator, here, (*Server).removeMember},
		{"GET", "/api/v1/cluster/members/{node}/stop", operator, here, (*Server).stopCheck},
		{"PUT", "/api/v1/cluster/members/{node}/drain", administrator, here, (*Server).drain},
		{"DELETE", "/api/v1/cluster/members/{node}/drain", administrator, here, (*Server).undrain},
	}
}

func (s *Server) clusterNow(w http.ResponseWriter, req *http.Request) error {
	c := s.membership.Overview(req.Context())
	c.count(s.metadata.View())
	writeJSON(w, http.StatusOK, c)
	return nil
}

// count adds what the catalog says of streams, and what is wrong.
func (c *Cluster) count(view *catalog.State) {
	c.Problems = []string{}
	bad := func(what string, names ...string) {
		c.Problems = append(c.Problems, what+strings.Join(names, ", "))
	}
	switch {
	case c.Removed:
		c.Problems = append(c.Problems, c.Node+" was removed from the cluster and is no member any more")
		return // of the others it knows nothing
	case !c.Seen:
		bad("no leader of the metadata answers: streams can't be created or elect leaders")
	}
	var down []string
	for _, m := range c.Members {
		if m.State != memberUp {
			down = append(down, m.Node)
		}
	}
	if len(down) > 0 {
		bad("down: ", down...)
	}
	var low []string
	for _, m := range c.Members {
		if m.DiskAlarm {
			low = append(low, m.Node)
		}
	}
	if len(low) > 0 {
		bad("disk alarm: ", low...)
	}
	var unled []string
	for s := range view.Streams() {
		c.Streams++
		if !s.Led() || slices.Contains(down, string(s.Leader.Node)) {
			c.WithoutLeader++
			unled = append(unled, s.Name)
		}
		if slices.ContainsFunc(s.Replicas, func(r catalog.Replica) bool {
			return r.Aside || !r.Voter || slices.Contains(down, string(r.Node))
		}) {
			c.UnderReplicated++
		}
	}
	const most = 5
	if len(unled) > most {
		unled = append(unled[:most], "…")
	}
	if len(unled) > 0 {
		bad("streams without a leader: ", unled...)
	}
	if c.UnderReplicated > 0 {
		bad("streams have a replica that does not count now")
	}
}

// Values of Member.State.
const (
	memberUp   = "up"
	memberDown = "down"
)

// StateOf is a Member's State.
func StateOf(up bool) string {
	if up {
		return memberUp
	}
	return memberDown
}

// transferMetadata moves the metadata's leadership to ?to=NODE, or anywhere.
func (s *Server) transferMetadata(w http.ResponseWriter, req *http.Request) error {
	if err := s.membership.Transfer(req.Context(), req.URL.Query().Get("to")); err != nil {
		return err
	}
	s.log.Info("leadership of the metadata moved", "to", req.URL.Query().Get("to"), "by", caller(req))
	return s.clusterNow(w, req)
}

func (s *Server) meet(w http.ResponseWriter, req *http.Request) error {
	var body Joining
	if err := readJSON(w, req, &body); err != nil {
		return err
	}
	node, err := s.membership.Meet(req.Context(), body.Address)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, map[string]string{"node": node})
	return nil
}

func (s *Server) removeMember(w http.ResponseWriter, req *http.Request) error {
	node := pathName(req, "node")
	if err := s.membership.Remove(req.Context(), node); err != nil {
		return err
	}
	s.log.Info("a node is to leave the cluster", "node", node, "by", caller(req))
	w.WriteHeader(http.StatusAccepted)
	return nil
}

func (s *Server) drain(w http.ResponseWriter, req *http.Request) error { return s.mark(w, req, true) }
func (s *Server) undrain(w http.ResponseWriter, req *http.Request) error {
	return s.mark(w, req, false)
}

func (s *Server) mark(w http.ResponseWriter, req *http.Request, drain bool) error {
	node := pathName(req, "node")
	if err := s.membership.Drain(req.Context(), node, drain); err != nil {
		return err
	}
	s.log.Info("drain", "node", node, "on", drain, "by", caller(req))
	return s.clusterNow(w, req)
}
