package admin

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace/cluster/catalog"
)

// Clients are connected to one node each, so a list of them is every node's. A
// node that does not say its part in time is named; the rest comes without it.

// Across is what the nodes know of their clients.
type Across[T any] struct {
	Items   []T      `json:"items"`
	Unknown []string `json:"unknown"` // nodes that did not answer, and why
}

// across asks all members but this one for their part of a list, or the one that
// ?node= names, all at the same time. What another node asks is for this one's
// part alone.
func across[T any](s *Server, req *http.Request, path string, own []T) (Across[T], error) {
	all := Across[T]{Items: own, Unknown: []string{}}
	if all.Items == nil {
		all.Items = []T{}
	}
	if _, came := asked(req); came {
		return all, nil
	}
	only := req.URL.Query().Get("node")
	if only != "" && only != s.self() {
		if !s.isMember(only) {
			return all, fmt.Errorf("%w: %q", catalog.ErrNodeMissing, only)
		}
		all.Items = []T{}
	}
	ctx, cancel := context.WithTimeout(req.Context(), figuresPatience)
	defer cancel()
	var mu sync.Mutex // guards all
	var asking sync.WaitGroup
	for n := range s.metadata.View().Nodes() {
		node := string(n.ID)
		if node == s.self() || only != "" && node != only {
			continue
		}
		asking.Go(func() {
			theirs, err := Across[T]{}, fmt.Errorf("%w: %s is down", ErrSilent, node)
			if s.placement.Up(node) {
				theirs, err = askFor[Across[T]](ctx, s, node, &Asked{Method: "GET", Target: path, User: caller(req)})
			}
			mu.Lock()
			defer mu.Unlock()
			all.Items = append(all.Items, theirs.Items...)
			if err != nil {
				all.Unknown = append(all.Unknown, node+": "+err.Error())
			}
		})
	}
	asking.Wait()
	slices.Sort(all.Unknown)
	return all, nil
}

const connectionsPath, publishersPath, consumersPath = "/api/v1/connections", "/api/v1/publishers", "/api/v1/consumers"

// connections lists the clients of all nodes, by node and name.
func (s *Server) connections(req *http.Request) (Across[Connection], error) {
	own := s.sessions.Connections()
	for i := range own {
		own[i].Node = s.self()
	}
	all, err := across(s, req, connectionsPath, own)
	slices.SortFunc(all.Items, func(a, b Connection) int { return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Name, b.Name)) })
	return all, err
}

func (s *Server) listConnections(w http.ResponseWriter, req *http.Request) error {
	all, err := s.connections(req)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

func (s *Server) listPublishers(w http.ResponseWriter, req *http.Request) error {
	all, err := atStreams(s, req, publishersPath, s.sessions.Publishers(), func(p *Publisher) *AtStream { return &p.AtStream })
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, all)
	return nil
}

func (s *Server) listConsumers(w http.ResponseWriter, req *http.Request) error {
	all, err := atStreams(s, req, consumersPath, s.sessions.Consumers(), func(c *Consumer) *AtStream { return &c.AtStream })
	if err != nil {
		return err
	}
	s.explain(all.Items)
	writeJSON(w, http.StatusOK, all)
	return nil
}

// atStreams is what the connections of all nodes have at streams, by stream and
// reference.
func atStreams[T any](s *Server, req *http.Request, path string, own []T, at func(*T) *AtStream) (Across[T], error) {
	for i := range own {
		at(&own[i]).Node = s.self()
	}
	all, err := across(s, req, path, own)
	slices.SortFunc(all.Items, func(x, y T) int {
		a, b := at(&x), at(&y)
		return cmp.Or(cmp.Compare(a.VHost, b.VHost), cmp.Compare(a.Stream, b.Stream), cmp.Compare(a.Reference, b.Reference),
			cmp.Compare(a.Node, b.Node), cmp.Compare(a.Connection, b.Connection), cmp.Compare(a.ID, b.ID))
	})
	return all, err
}

// closeConnection closes a connection on whichever node it is, or on the one that
// ?node= names: clients of two networks may have one name.
func (s *Server) closeConnection(w http.ResponseWriter, req *http.Request) error {
	name := pathName(req, "name")
	node, err := s.connectedTo(req, name)
	if err != nil {
		return err
	}
	if node != s.self() {
		return s.passAs(w, req, node, connectionsPath+"/"+url.PathEscape(name), changePatience)
	}
	if !s.sessions.Close(name, "closed by "+caller(req)) {
		return fmt.Errorf("%w: %q", errNoConnection, name)
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

// connectedTo is the node that has a client of that name.
func (s *Server) connectedTo(req *http.Request, name string) (string, error) {
	if _, came := asked(req); came {
		return s.self(), nil
	}
	all, err := s.connections(req)
	if err != nil {
		return "", err
	}
	var nodes []string
	for _, c := range all.Items {
		if c.Name == name {
			nodes = append(nodes, c.Node)
		}
	}
	switch {
	case len(nodes) > 1:
		return "", fmt.Errorf("%w: %q is one on each of %s", errManyConnections, name, strings.Join(nodes, ", "))
	case len(nodes) == 0 && len(all.Unknown) > 0:
		return "", fmt.Errorf("%w: %s; the others have no connection %q", ErrSilent, strings.Join(all.Unknown, "; "), name)
	case len(nodes) == 0:
		return "", fmt.Errorf("%w: %q", errNoConnection, name)
	}
	return nodes[0], nil
}
