package admin

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"sync"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
)

// Placement changes where replicas are. Its methods return once the change is
// entered in the metadata; ErrUnsafe of the catalog says what stands against one.
type Placement interface {
	Up(node string) bool
	// Low tells whether a node's disk is so low that publishers are stopped there.
	Low(node string) bool
	AddReplica(ctx context.Context, stream chunk.Incarnation, node string) error
	RemoveReplica(ctx context.Context, stream chunk.Incarnation, node string) error
	MoveReplica(ctx context.Context, stream chunk.Incarnation, from, to string) error
	Balance(ctx context.Context, all, dry bool) (Balance, error)
	// Progress asks a node how far its replica is.
	Progress(ctx context.Context, node string, stream chunk.Incarnation) (Progress, error)
}

// Progress is how far a replica is.
type Progress struct{ CommittedLSN, NextOffset, DiskBytes, DamagedSegments uint64 }

// Values of Replica.State.
const (
	replicaLeads    = "leads"
	replicaFollows  = "follows"
	replicaCatching = "catching up" // counts for nothing yet
	replicaLeaving  = "leaving"
	replicaDown     = "down"
)

// Replica is one copy of a stream.
type Replica struct {
	Node  string `json:"node"`
	State string `json:"state"`
	Voter bool   `json:"voter"` // it counts for confirms and elections
	// DiskAlarm: its node's disk is low. At the floor it takes no messages, and
	// falls behind.
	DiskAlarm bool `json:"disk_alarm,omitempty"`
	// The rest is absent where the node did not answer. Behind are chunks, of
	// those that any replica knows to be committed.
	CommittedLSN *uint64 `json:"committed_lsn,omitempty"`
	NextOffset   *uint64 `json:"next_offset,omitempty"`
	DiskBytes    *uint64 `json:"disk_bytes,omitempty"`
	Behind       *uint64 `json:"behind_chunks,omitempty"`
	// Damaged segments are known to be damaged there; the log's end counts as one.
	Damaged *uint64 `json:"damaged_segments,omitempty"`
}

// Balance is what evens out leaders and replicas over the nodes.
type Balance struct {
	DryRun   bool   `json:"dry_run"` // nothing was changed
	Leaders  []Move `json:"leaders"`
	Replicas []Move `json:"replicas"`
	// Later are moves of replicas for which nodes have no room at once.
	Later int `json:"later"`
}

// Move is of one stream's leader or replica.
type Move struct {
	VHost  string `json:"vhost"`
	Stream string `json:"stream"`
	From   string `json:"from"`
	To     string `json:"to"`
}

func (s *Server) replicaRoutes() []route {
	return []route{
		{"GET", "/api/v1/streams/{vhost}/{stream}/replicas", operator, here, (*Server).listReplicas},
		{"PUT", "/api/v1/streams/{vhost}/{stream}/replicas/{node}", administrator, here, (*Server).addReplica},
		{"DELETE", "/api/v1/streams/{vhost}/{stream}/replicas/{node}", administrator, here, (*Server).removeReplica},
		{"POST", "/api/v1/cluster/balance", administrator, here, (*Server).balance},
	}
}

func (s *Server) listReplicas(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, s.replicasOf(req.Context(), stream))
	return nil
}

// replicasOf asks each node for its replica.
func (s *Server) replicasOf(ctx context.Context, stream *catalog.Stream) []Replica {
	list := make([]Replica, len(stream.Replicas))
	var asked sync.WaitGroup
	for i, r := range stream.Replicas {
		node := string(r.Node)
		list[i] = Replica{Node: node, State: stateOfReplica(stream, &r, s.placement.Up(node)), Voter: r.Voter && !r.Aside, DiskAlarm: s.placement.Low(node)}
		if list[i].State == replicaDown {
			continue
		}
		asked.Go(func() {
			if p, err := s.placement.Progress(ctx, node, stream.Incarnation); err == nil {
				list[i].CommittedLSN, list[i].NextOffset, list[i].DiskBytes = &p.CommittedLSN, &p.NextOffset, &p.DiskBytes
				list[i].Damaged = &p.DamagedSegments
			}
		})
	}
	asked.Wait()
	far := uint64(0)
	for _, r := range list {
		if r.CommittedLSN != nil {
			far = max(far, *r.CommittedLSN)
		}
	}
	for i := range list {
		if at := list[i].CommittedLSN; at != nil {
			behind := far - *at
			list[i].Behind = &behind
		}
	}
	return list
}

func stateOfReplica(s *catalog.Stream, r *catalog.Replica, up bool) string {
	switch {
	case !up:
		return replicaDown
	case r.Leaving:
		return replicaLeaving
	case r.Aside || !r.Voter:
		return replicaCatching
	case s.Leader.Node == r.Node:
		return replicaLeads
	}
	return replicaFollows
}

// addReplica makes a replica, with ?instead=NODE in the place of another.
func (s *Server) addReplica(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	node, instead := pathName(req, "node"), req.URL.Query().Get("instead")
	if instead == "" {
		err = s.placement.AddReplica(req.Context(), stream.Incarnation, node)
	} else {
		err = s.placement.MoveReplica(req.Context(), stream.Incarnation, instead, node)
	}
	if err != nil {
		return s.lagging(req.Context(), stream, err)
	}
	s.log.Info("replica added", "stream", stream.Name, "vhost", stream.VHost, "node", node, "instead", instead, "by", caller(req))
	return s.answerReplicas(w, req)
}

// lagging adds to a refusal how far those are who catch up.
func (s *Server) lagging(ctx context.Context, stream *catalog.Stream, err error) error {
	if !slices.ContainsFunc(stream.Replicas, func(r catalog.Replica) bool { return r.Aside || !r.Voter }) {
		return err
	}
	for _, r := range s.replicasOf(ctx, stream) {
		if r.State == replicaCatching && r.Behind != nil {
			err = fmt.Errorf("%w; %s is %d chunks behind", err, r.Node, *r.Behind)
		}
	}
	return err
}

func (s *Server) removeReplica(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	node := pathName(req, "node")
	if err := s.placement.RemoveReplica(req.Context(), stream.Incarnation, node); err != nil {
		return err
	}
	s.log.Info("replica removed", "stream", stream.Name, "vhost", stream.VHost, "node", node, "by", caller(req))
	return s.answerReplicas(w, req)
}

// answerReplicas says that a change has begun, and how replicas stand.
func (s *Server) answerReplicas(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusAccepted, s.replicasOf(req.Context(), stream))
	return nil
}

// balance evens out leaders, with ?what=all replicas too; ?dry_run=true only says
// what it would do.
func (s *Server) balance(w http.ResponseWriter, req *http.Request) error {
	q := req.URL.Query()
	what, dry := q.Get("what"), q.Get("dry_run")
	if what != "" && what != "leaders" && what != "all" || dry != "" && dry != "true" && dry != "false" {
		return fmt.Errorf("%w: what is leaders or all, dry_run true or false", errBadQuery)
	}
	b, err := s.placement.Balance(req.Context(), what == "all", dry == "true")
	if err != nil {
		return err
	}
	if dry != "true" {
		s.log.Info("balanced", "leaders", len(b.Leaders), "replicas", len(b.Replicas), "later", b.Later, "by", caller(req))
	}
	writeJSON(w, http.StatusOK, b)
	return nil
}
