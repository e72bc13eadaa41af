package admin

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/pprof"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
)

//go:embed openapi.yaml
var openAPI []byte

// routes is everything that the main port serves. openapi.yaml describes the
// same list; a test compares the two.
func (s *Server) routes() []route {
	return append([]route{
		{"GET", "/healthz", anyone, here, (*Server).healthz},
		{"GET", "/readyz", anyone, here, (*Server).readyz},
		{"GET", "/metrics", anyone, here, (*Server).metrics},
		{"GET", "/metrics/streams", anyone, here, (*Server).streamMetrics},
		{"GET", "/api/v1/openapi.yaml", anyone, here, (*Server).description},
		{"GET", "/api/v1/status", operator, here, (*Server).status},
		{"GET", "/api/v1/streams", operator, here, (*Server).listStreams},
		{"POST", "/api/v1/streams", administrator, here, (*Server).createStream},
		{"GET", "/api/v1/streams/{vhost}/{stream}", operator, atNamed, (*Server).describeStream},
		{"DELETE", "/api/v1/streams/{vhost}/{stream}", administrator, here, (*Server).deleteStream},
		{"GET", "/api/v1/streams/{vhost}/{stream}/retention", operator, atLeader, (*Server).retention},
		{"PUT", "/api/v1/streams/{vhost}/{stream}/retention", administrator, here, (*Server).setRetention},
		{"POST", "/api/v1/streams/{vhost}/{stream}/retention/run", administrator, atLeader, (*Server).runRetention},
		{"PUT", "/api/v1/streams/{vhost}/{stream}/leader", administrator, here, (*Server).moveLeader},
		{"GET", "/api/v1/streams/{vhost}/{stream}/segments", operator, atReplica, (*Server).listSegments},
		{"GET", "/api/v1/streams/{vhost}/{stream}/segments/{file}/chunks", operator, atReplica, (*Server).listChunks},
		{"POST", "/api/v1/streams/{vhost}/{stream}/verify", operator, atNamed, (*Server).verifyStream},
		{"GET", "/api/v1/streams/{vhost}/{stream}/tracking", operator, atLeader, (*Server).listTracking},
		{"GET", "/api/v1/streams/{vhost}/{stream}/tracking/{reference}", operator, atLeader, (*Server).getTracking},
		{"PUT", "/api/v1/streams/{vhost}/{stream}/tracking/{reference}", administrator, atLeader, (*Server).setTracking},
		{"DELETE", "/api/v1/streams/{vhost}/{stream}/tracking/{reference}", administrator, atLeader, (*Server).deleteTracking},
		{"POST", "/api/v1/streams/{vhost}/{stream}/tracking/copy", administrator, atLeader, (*Server).copyTracking},
		{"POST", "/api/v1/streams/{vhost}/{stream}/tracking/expire", administrator, atLeader, (*Server).expireTracking},
		{"POST", "/api/v1/streams/{vhost}/{stream}/repair", administrator, atNamed, (*Server).repairStream},
		{"POST", "/api/v1/streams/{vhost}/{stream}/groups/activate", administrator, here, (*Server).activateGroup},
		{"GET", "/api/v1/groups", operator, here, (*Server).listGroups},
		{"GET", "/api/v1/replicas", operator, here, (*Server).ownReplicas},
		{"GET", connectionsPath, operator, here, (*Server).listConnections},
		{"GET", publishersPath, operator, here, (*Server).listPublishers},
		{"GET", consumersPath, operator, here, (*Server).listConsumers},
		{"DELETE", connectionsPath + "/{name}", administrator, here, (*Server).closeConnection},
	}, slices.Concat(s.accessRoutes(), s.clusterRoutes(), s.replicaRoutes(), profileRoutes(), pageRoutes())...)
}

// healthz answers as long as the process can answer at all.
func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) error {
	_, err := fmt.Fprintln(w, "ok")
	return err
}

// readyz says whether clients are served, and if not, why.
func (s *Server) readyz(w http.ResponseWriter, _ *http.Request) error {
	if err := s.node.Ready(); err != nil {
		http.Error(w, "not ready: "+err.Error(), http.StatusServiceUnavailable)
		return nil
	}
	_, err := fmt.Fprintln(w, "ready")
	return err
}

func (s *Server) description(w http.ResponseWriter, _ *http.Request) error {
	w.Header().Set("Content-Type", "application/yaml")
	_, err := w.Write(openAPI)
	return err
}

func (s *Server) status(w http.ResponseWriter, _ *http.Request) error {
	status := s.node.Status()
	if err := s.node.Ready(); err != nil {
		status.Reason = err.Error()
	} else {
		status.Ready = true
	}
	view := s.metadata.View()
	status.Streams = view.StreamCount()
	for range view.VHosts() {
		status.VHosts++
	}
	for _, c := range s.sessions.Connections() {
		status.Connections++
		status.Publishers += c.Publishers
		status.Subscriptions += c.Subscriptions
	}
	writeJSON(w, http.StatusOK, status)
	return nil
}

// listStreams lists the streams of one virtual host (?vhost=), or all, ordered
// by virtual host and name.
func (s *Server) listStreams(w http.ResponseWriter, req *http.Request) error {
	view := s.metadata.View()
	only, filtered := req.URL.Query()["vhost"]
	if filtered {
		if _, ok := view.VHost(only[0]); !ok {
			return fmt.Errorf("%w: %q", catalog.ErrVHostMissing, only[0])
		}
	}
	var list []*catalog.Stream
	for v := range view.VHosts() {
		if filtered && v.Name != only[0] {
			continue
		}
		for stream := range view.StreamsOf(v.Name) {
			list = append(list, stream)
		}
	}
	writeJSON(w, http.StatusOK, s.views(req, list))
	return nil
}

// describe joins what the catalog and the replica here know of a stream. Where
// there is none here, or it is just being opened, the figures are unknown.
func (s *Server) describe(stream *catalog.Stream) Stream {
	out := Stream{
		VHost: stream.VHost, Name: stream.Name, Incarnation: stream.Incarnation.String(),
		Created: time.UnixMilli(int64(stream.Created)).UTC(), Creator: stream.Creator,
		Arguments: stream.Arguments.Map(), Leader: string(stream.Leader.Node), Epoch: uint64(stream.Epoch),
		Replicas: []string{},
	}
	for _, r := range stream.Replicas {
		out.Replicas = append(out.Replicas, string(r.Node))
	}
	figures, err := s.replicas.Figures(stream.Incarnation)
	switch {
	case err == nil:
		out.Figures, out.FiguresOf = figures, s.self()
	case out.Leader == "":
		out.Unknown = ErrNotLed.Error()
	default:
		out.Unknown = err.Error()
	}
	return out
}

func (s *Server) createStream(w http.ResponseWriter, req *http.Request) error {
	var body CreateStream
	if err := readJSON(w, req, &body); err != nil {
		return err
	}
	if body.VHost == "" {
		body.VHost = "/"
	}
	if err := s.metadata.CreateStream(req.Context(), caller(req), body.VHost, body.Name, body.Arguments); err != nil {
		return err
	}
	stream, ok := s.metadata.View().Stream(body.VHost, body.Name)
	if !ok { // deleted again by somebody else
		return fmt.Errorf("%w: %q", catalog.ErrStreamMissing, body.Name)
	}
	s.log.Info("stream created", "stream", body.Name, "vhost", body.VHost, "by", caller(req))
	writeJSON(w, http.StatusCreated, s.describe(stream))
	return nil
}

func (s *Server) describeStream(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	st := s.describe(stream)
	if !byItself(req) {
		st = s.view(req, stream)
	}
	writeJSON(w, http.StatusOK, st)
	return nil
}

func (s *Server) deleteStream(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	if err := s.metadata.DeleteStream(req.Context(), stream.VHost, stream.Name); err != nil {
		return err
	}
	s.log.Info("stream deleted", "stream", stream.Name, "vhost", stream.VHost, "by", caller(req))
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (s *Server) listSegments(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	list, err := s.replicas.Segments(stream.Incarnation)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

func (s *Server) listChunks(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	list, err := s.replicas.Chunks(stream.Incarnation, pathName(req, "file"))
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// stream finds the stream that the path names.
func (s *Server) stream(req *http.Request) (*catalog.Stream, error) {
	vhost, name := pathName(req, "vhost"), pathName(req, "stream")
	view := s.metadata.View()
	if _, ok := view.VHost(vhost); !ok {
		return nil, fmt.Errorf("%w: %q", catalog.ErrVHostMissing, vhost)
	}
	stream, ok := view.Stream(vhost, name)
	if !ok {
		return nil, fmt.Errorf("%w: %q in %q", catalog.ErrStreamMissing, name, vhost)
	}
	return stream, nil
}

// bodyMax bounds what a call may send; the largest is a stream's arguments.
const bodyMax = 64 << 10

func readJSON(w http.ResponseWriter, req *http.Request, into any) error {
	dec := json.NewDecoder(http.MaxBytesReader(w, req.Body, bodyMax))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return fmt.Errorf("%w: %w", errBadBody, err)
	}
	return nil
}

// profileRoutes serve the runtime's profiles.
func profileRoutes() []route {
	plain := func(h http.HandlerFunc) func(*Server, http.ResponseWriter, *http.Request) error {
		return func(_ *Server, w http.ResponseWriter, req *http.Request) error { h(w, req); return nil }
	}
	return []route{
		{"GET", "/debug/pprof/{profile...}", operator, here, plain(func(w http.ResponseWriter, req *http.Request) {
			switch strings.TrimPrefix(req.URL.Path, "/debug/pprof/") {
			case "profile":
				pprof.Profile(w, req)
			case "trace":
				pprof.Trace(w, req)
			default:
				pprof.Index(w, req)
			}
		})},
	}
}
