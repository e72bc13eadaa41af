package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
)

// Any node answers any request. What only the leader of a stream knows, or one
// replica, its node is asked for, as this node was: the request goes over the
// link, after this node has proven the user and his rights, and without his
// password. It goes one step: the node that gets it answers itself.

// Peers are the servers of operators on other nodes.
type Peers interface {
	// Ask has a node answer. Error: ErrSilent.
	Ask(ctx context.Context, node string, r *Asked) (Answer, error)
}

// Asked is a request that another node has let in.
type Asked struct {
	Method string `json:"method"`
	// Target is the path, as it is escaped, and the query.
	Target string `json:"target"`
	User   string `json:"user"` // who is to be named in the log
	Body   []byte `json:"body,omitempty"`
}

// Answer is what the node says to it.
type Answer struct {
	Status int    // of HTTP
	Body   []byte // JSON, or nothing
}

// A place is where a route is answered.
type place int

const (
	here      place = iota // by the node that is asked, whichever that is
	atLeader               // by the leader of the stream that the path names
	atReplica              // by a replica's node: the one that ?node= names, else the leader's
	atNamed                // here, or by the replica's node that ?node= names
)

// Bounds of the wait for another node. A request that only looks must not hang
// with a node that does; reading or fetching a whole log may take long.
const (
	figuresPatience = 2 * time.Second
	lookPatience    = 4 * time.Second
	changePatience  = 10 * time.Second
	logPatience     = time.Hour
)

// patience is how long another node may take for a route.
func (r *route) patience() time.Duration {
	switch {
	case r.method == http.MethodGet:
		return lookPatience
	case r.place == atNamed:
		return logPatience
	}
	return changePatience
}

// askedKey marks the context of a request that came from another node with its
// user.
type askedKey struct{}

// asked is the user of a request that came from another node.
func asked(req *http.Request) (user string, ok bool) {
	user, ok = req.Context().Value(askedKey{}).(string)
	return user, ok
}

// ServePeer answers what another node asks. Who may ask that was decided
// there.
func (s *Server) ServePeer(ctx context.Context, r *Asked) Answer {
	req, err := http.NewRequestWithContext(context.WithValue(ctx, askedKey{}, r.User), r.Method, r.Target, bytes.NewReader(r.Body))
	if err != nil {
		err = fmt.Errorf("%w: %w", errBadBody, err)
		status, body := failure(err)
		text, _ := json.Marshal(body) // strings alone
		return Answer{status, text}
	}
	got := &kept{header: http.Header{}, status: http.StatusOK}
	s.inner.ServeHTTP(got, req)
	return Answer{got.status, got.body.Bytes()}
}

// kept is an answer that goes to another node.
type kept struct {
	header http.Header
	status int
	body   bytes.Buffer
}

func (k *kept) Header() http.Header            { return k.header }
func (k *kept) WriteHeader(status int)         { k.status = status }
func (k *kept) Write(text []byte) (int, error) { return k.body.Write(text) }

// self is this node's name.
func (s *Server) self() string { return s.node.Name() }

// elsewhere is the other node that a request is for, or "". Errors: ErrNotLed,
// ErrNoReplica.
func (s *Server) elsewhere(r *route, req *http.Request) (node string, err error) {
	if _, came := asked(req); came || r.place == here {
		return "", nil
	}
	stream, err := s.stream(req)
	if err != nil {
		return "", err
	}
	node = string(stream.Leader.Node)
	if r.place != atLeader {
		if named := req.URL.Query().Get("node"); named != "" {
			if err := s.holds(stream, named); err != nil {
				return "", err
			}
			node = named
		} else if r.place == atNamed {
			return "", nil
		}
	}
	switch node {
	case "":
		return "", fmt.Errorf("%w: %q", ErrNotLed, stream.Name)
	case s.self():
		return "", nil
	}
	return node, nil
}

// holds refuses a node that has no replica of the stream, and says who has.
func (s *Server) holds(stream *catalog.Stream, node string) error {
	var names []string
	for _, r := range stream.Replicas {
		names = append(names, string(r.Node))
	}
	if slices.Contains(names, node) {
		return nil
	}
	if !s.isMember(node) {
		return fmt.Errorf("%w: %q", catalog.ErrNodeMissing, node)
	}
	return fmt.Errorf("%w: %s; %q is on %s", ErrNoReplica, node, stream.Name, strings.Join(names, ", "))
}

func (s *Server) isMember(node string) bool {
	for n := range s.metadata.View().Nodes() {
		if string(n.ID) == node {
			return true
		}
	}
	return false
}

// pass has another node answer the request.
func (s *Server) pass(w http.ResponseWriter, req *http.Request, node string, patience time.Duration) error {
	return s.passAs(w, req, node, req.RequestURI, patience)
}

// passAs is pass with another path and query.
func (s *Server) passAs(w http.ResponseWriter, req *http.Request, node, target string, patience time.Duration) error {
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, bodyMax))
	if err != nil {
		return fmt.Errorf("%w: %w", errBadBody, err)
	}
	ctx, cancel := context.WithTimeout(req.Context(), patience)
	defer cancel()
	answer, err := s.peers.Ask(ctx, node, &Asked{Method: req.Method, Target: target, User: caller(req), Body: body})
	if err != nil {
		return err
	}
	w.Header().Set("Cache-Control", "no-store")
	if len(answer.Body) > 0 {
		w.Header().Set("Content-Type", "application/json")
	}
	w.WriteHeader(answer.Status)
	_, _ = w.Write(answer.Body) // the caller hung up: nobody is left to tell
	return nil
}

// failedThere is a failure that another node answered.
type failedThere struct {
	status  int
	failure Failure
}

func (r *failedThere) Error() string { return r.failure.Message }

// askFor asks a node, which may be this one, and reads its answer. A failure
// there is a *failedThere.
func askFor[T any](ctx context.Context, s *Server, node string, r *Asked) (got T, err error) {
	var answer Answer
	if node == s.self() {
		answer = s.ServePeer(ctx, r)
	} else if answer, err = s.peers.Ask(ctx, node, r); err != nil {
		return got, err
	}
	if answer.Status >= http.StatusMultipleChoices {
		no := &failedThere{status: answer.Status}
		if json.Unmarshal(answer.Body, &no.failure) != nil || no.failure.Message == "" {
			no.failure = Failure{Code: "internal", Message: fmt.Sprintf("node %s answers %s", node, http.StatusText(answer.Status))}
		}
		return got, no
	}
	if err := json.Unmarshal(answer.Body, &got); err != nil {
		return got, fmt.Errorf("answer of node %s: %w", node, err)
	}
	return got, nil
}

// byItself tells whether a request that may be for all replicas is for the one
// here.
func byItself(req *http.Request) bool {
	_, came := asked(req)
	return came || req.URL.Query().Get("node") != ""
}

// everywhere has each replica's node do what the request asks for, all at the
// same time. Answers and errors are in the order of the replicas. A node that is
// down, or goes down meanwhile, is not waited for.
func everywhere[T any](s *Server, req *http.Request, stream *catalog.Stream) ([]T, []error) {
	ctx, cancel := context.WithTimeout(req.Context(), logPatience)
	defer cancel()
	got, errs := make([]T, len(stream.Replicas)), make([]error, len(stream.Replicas))
	var all sync.WaitGroup
	for i := range stream.Replicas {
		node := string(stream.Replicas[i].Node)
		all.Go(func() {
			there, stop := s.whileUp(ctx, node)
			defer stop()
			if errs[i] = context.Cause(there); errs[i] != nil {
				return
			}
			got[i], errs[i] = askFor[T](there, s, node, &Asked{Method: req.Method, Target: req.RequestURI, User: caller(req)})
			if gone := context.Cause(there); errs[i] != nil && errors.Is(gone, ErrSilent) {
				errs[i] = gone
			}
		})
	}
	all.Wait()
	return got, errs
}

// upLook is how often a node that takes long is looked at.
const upLook = 500 * time.Millisecond

// whileUp is a context that ends, by ErrSilent, when a node is found down.
func (s *Server) whileUp(ctx context.Context, node string) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	look := func() {
		if node != s.self() && !s.placement.Up(node) {
			cancel(fmt.Errorf("%w: %s is down", ErrSilent, node))
		}
	}
	look()
	tick := time.NewTicker(upLook)
	go func() {
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				look()
			case <-ctx.Done():
				return
			}
		}
	}()
	return ctx, func() { cancel(nil) }
}

// Own is a replica on the node that is asked.
type Own struct {
	Incarnation string `json:"incarnation"` // of its stream
	Figures
}

// ownReplicas lists the replicas on this node; ?leading=true those that lead.
func (s *Server) ownReplicas(w http.ResponseWriter, req *http.Request) error {
	leading := req.URL.Query().Get("leading") == "true"
	list := []Own{}
	for stream := range s.metadata.View().Streams() {
		if leading && string(stream.Leader.Node) != s.self() {
			continue
		}
		if figures, err := s.replicas.Figures(stream.Incarnation); err == nil {
			list = append(list, Own{stream.Incarnation.String(), figures})
		}
	}
	writeJSON(w, http.StatusOK, list)
	return nil
}

// views joins what the catalog knows of streams with the figures of their
// leaders' replicas. Each leader's node is asked once, all at the same time.
func (s *Server) views(req *http.Request, streams []*catalog.Stream) []Stream {
	nodes := map[string]*leading{}
	ctx, cancel := context.WithTimeout(req.Context(), figuresPatience)
	defer cancel()
	var all sync.WaitGroup
	for _, stream := range streams {
		node := string(stream.Leader.Node)
		if _, met := nodes[node]; met || node == "" || node == s.self() {
			continue
		}
		answer := &leading{}
		nodes[node] = answer
		all.Go(func() { answer.own, answer.err = s.ownOf(ctx, node, caller(req)) })
	}
	all.Wait()
	list := make([]Stream, len(streams))
	for i, stream := range streams {
		list[i] = s.describe(stream)
		node := nodes[list[i].Leader]
		if node == nil {
			continue
		}
		if figures, ok := node.own[list[i].Incarnation]; ok {
			list[i].Figures, list[i].FiguresOf, list[i].Unknown = figures, list[i].Leader, ""
		} else if list[i].FiguresOf == "" && node.err != nil {
			list[i].Unknown = node.err.Error()
		}
	}
	return list
}

// leading is what a node says of the streams that it leads.
type leading struct {
	own map[string]Figures // by incarnation
	err error
}

// ownOf asks another node for what leads there.
func (s *Server) ownOf(ctx context.Context, node, user string) (map[string]Figures, error) {
	if !s.placement.Up(node) {
		return nil, fmt.Errorf("%w: %s is down", ErrSilent, node)
	}
	list, err := askFor[[]Own](ctx, s, node, &Asked{Method: "GET", Target: "/api/v1/replicas?leading=true", User: user})
	own := make(map[string]Figures, len(list))
	for i := range list {
		own[list[i].Incarnation] = list[i].Figures
	}
	return own, err
}

// view is views of one stream.
func (s *Server) view(req *http.Request, stream *catalog.Stream) Stream {
	st := s.describe(stream)
	if st.Leader == "" || st.Leader == s.self() {
		return st
	}
	ctx, cancel := context.WithTimeout(req.Context(), figuresPatience)
	defer cancel()
	got, err := Stream{}, fmt.Errorf("%w: %s is down", ErrSilent, st.Leader)
	if s.placement.Up(st.Leader) {
		got, err = askFor[Stream](ctx, s, st.Leader, &Asked{Method: "GET", Target: streamPath(stream), User: caller(req)})
	}
	switch {
	case err == nil && got.FiguresOf != "":
		st.Figures, st.FiguresOf, st.Unknown = got.Figures, got.FiguresOf, ""
	case st.FiguresOf == "" && err != nil:
		st.Unknown = err.Error()
	}
	return st
}

// streamPath is where the API has a stream.
func streamPath(stream *catalog.Stream) string {
	return "/api/v1/streams/" + url.PathEscape(stream.VHost) + "/" + url.PathEscape(stream.Name)
}
