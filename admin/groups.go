package admin

import (
	"context"
	"fmt"
	"net/http"

	"github.com/millrace/millrace/cluster/catalog"
)

// Groups has groups of single active consumers decided anew. Who is in them the
// catalog says.
type Groups interface {
	// ActivateGroup has nobody waited for any more who was told to stop and has
	// not answered.
	ActivateGroup(ctx context.Context, group catalog.GroupRef) error
}

// Group is the consumers of one stream that share a name, of which one is active.
type Group struct {
	VHost  string `json:"vhost"`
	Stream string `json:"stream"`
	Name   string `json:"name"`
	// Partition is the stream's place in the super stream that is consumed; absent
	// where the stream is consumed for itself.
	Partition *int          `json:"partition,omitempty"`
	Members   []GroupMember `json:"members"` // in the order in which they came
}

// GroupMember is one consumer of a group.
type GroupMember struct {
	Node         string `json:"node"`
	Connection   string `json:"connection"`
	Subscription int    `json:"subscription"`
	Role         string `json:"role"`  // active, waiting or deactivating
	Reach        string `json:"reach"` // connected, disconnected or presumed down
	Why          string `json:"why"`
}

// ActivateGroup is the body of a request to have a group decided anew.
type ActivateGroup struct {
	Group string `json:"group"`
}

// listGroups lists groups by virtual host, stream and name: all, or those of one
// virtual host (?vhost=) or streams of one name (?stream=).
func (s *Server) listGroups(w http.ResponseWriter, req *http.Request) error {
	view, query := s.metadata.View(), req.URL.Query()
	if v := query.Get("vhost"); v != "" {
		if _, ok := view.VHost(v); !ok {
			return fmt.Errorf("%w: %q", catalog.ErrVHostMissing, v)
		}
	}
	list := []Group{}
	for g := range view.Groups() {
		if only := query.Get("vhost"); only != "" && g.VHost != only {
			continue
		}
		if only := query.Get("stream"); only != "" && g.Stream != only {
			continue
		}
		list = append(list, groupView(g))
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (s *Server) activateGroup(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	var body ActivateGroup
	if err := readJSON(w, req, &body); err != nil {
		return err
	}
	if err := s.groups.ActivateGroup(req.Context(), catalog.GroupRef{VHost: stream.VHost, Stream: stream.Name, Name: body.Group}); err != nil {
		return err
	}
	g, ok := s.metadata.View().Group(stream.VHost, stream.Name, body.Group)
	if !ok {
		return fmt.Errorf("%w: %q of stream %q", catalog.ErrGroupMissing, body.Group, stream.Name)
	}
	s.log.Info("consumer group decided anew", "stream", stream.Name, "vhost", stream.VHost, "group", body.Group, "by", caller(req))
	writeJSON(w, http.StatusOK, groupView(g))
	return nil
}

func groupView(g *catalog.Group) Group {
	out := Group{VHost: g.VHost, Stream: g.Stream, Name: g.Name, Members: make([]GroupMember, len(g.Members))}
	if g.Partition != catalog.Plain {
		out.Partition = &g.Partition
	}
	for i, m := range g.Members {
		reach := string(m.Reach)
		if m.Reach == catalog.Connected {
			reach = "connected"
		}
		out.Members[i] = GroupMember{
			Node: string(m.Node), Connection: m.Connection, Subscription: int(m.Subscription),
			Role: string(m.Role), Reach: reach, Why: whyOf(g, i),
		}
	}
	return out
}

// explain says of each single active consumer why it is active or waits.
func (s *Server) explain(list []Consumer) {
	view := s.metadata.View()
	for i := range list {
		c := &list[i]
		g, ok := view.Group(c.VHost, c.Stream, c.Reference)
		if c.Activity == "" || !ok {
			continue
		}
		for at, m := range g.Members {
			if string(m.Node) == c.Node && m.Connection == c.Connection && int(m.Subscription) == c.ID {
				c.Why = whyOf(g, at)
			}
		}
	}
}

// whyOf says in words why a member is what it is, and what it waits for.
func whyOf(g *catalog.Group, i int) string {
	m := g.Members[i]
	switch {
	case m.Reach == catalog.PresumedDown:
		return fmt.Sprintf("node %s has been out of contact for too long; others go on without it", m.Node)
	case m.Reach == catalog.Disconnected && m.Role == catalog.Stopping:
		return fmt.Sprintf("was told to stop, but node %s is out of contact; it may still be reading", m.Node)
	case m.Reach == catalog.Disconnected && m.Role == catalog.Active:
		return fmt.Sprintf("node %s is out of contact; it may still be reading", m.Node)
	case m.Reach == catalog.Disconnected:
		return fmt.Sprintf("node %s is out of contact", m.Node)
	case m.Role == catalog.Stopping:
		return "was told to stop and has not answered; the next one waits for that"
	case m.Role == catalog.Active && g.Partition != catalog.Plain:
		return fmt.Sprintf("partition %d goes to number %d of those in contact, counted from 0", g.Partition, g.Partition%inContact(g))
	case m.Role == catalog.Active:
		return "came first of those that are in contact"
	}
	for _, other := range g.Members {
		switch {
		case other.Role != catalog.Waiting && other.Reach == catalog.Disconnected:
			return fmt.Sprintf("waits for node %s, which is out of contact and may still be reading", other.Node)
		case other.Role == catalog.Stopping:
			return fmt.Sprintf("waits for %s on node %s to answer that it has stopped", other.Connection, other.Node)
		case other.Role == catalog.Active && other.Reach == catalog.Connected:
			return fmt.Sprintf("%s on node %s is active", other.Connection, other.Node)
		}
	}
	return "nobody is active"
}

func inContact(g *catalog.Group) (n int) {
	for _, m := range g.Members {
		if m.Reach == catalog.Connected {
			n++
		}
	}
	return n
}
