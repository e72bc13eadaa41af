package admin

import (
	"context"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
)

// Metadata is the catalog and the commands that operators may give it. Each
// command returns once it is carried out or refused by an error of catalog.
type Metadata interface {
	View() *catalog.State
	CreateStream(ctx context.Context, user, vhost, name string, arguments map[string]string) error
	DeleteStream(ctx context.Context, vhost, name string) error
	SetRetention(ctx context.Context, vhost, name string, change catalog.RetentionChange) error
	// MoveLeader has a stream led from another node, and returns once it is.
	MoveLeader(ctx context.Context, stream chunk.Incarnation, node string) error
	CreateVHost(ctx context.Context, user, name string) error
	DeleteVHost(ctx context.Context, name string) error
	CreateUser(ctx context.Context, name string, secret Secret, tags []string) error
	SetPassword(ctx context.Context, name string, secret Secret) error
	SetTags(ctx context.Context, name string, tags []string) error
	DeleteUser(ctx context.Context, name string) error
	SetPermission(ctx context.Context, p Permission) error
	ClearPermission(ctx context.Context, vhost, user string) error
}

// Replicas tells about the logs of this node. A stream without a replica here
// is an ErrNoReplica.
type Replicas interface {
	Figures(chunk.Incarnation) (Figures, error)
	Segments(chunk.Incarnation) ([]Segment, error)
	Chunks(stream chunk.Incarnation, file string) ([]Chunk, error)
	// Retention tells what retention makes of the stream; a Run is an
	// ErrNoReplica where the leader is elsewhere.
	Retention(context.Context, chunk.Incarnation, RetentionQuery) (Retention, error)
	// Verify reads every byte of the stream's files.
	Verify(ctx context.Context, stream chunk.Incarnation) ([]Verdict, error)
	// Repair fetches the stream's damaged segments from another replica. Error:
	// ErrNoPeer if there is none.
	Repair(ctx context.Context, stream chunk.Incarnation) (Repair, error)
}

// Tracking is what streams remember of their readers and writers. It answers for
// a stream wherever that is led; one without a leader is an ErrNotLed.
type Tracking interface {
	// References lists by reference, readers before writers of the same name.
	References(context.Context, *catalog.Stream, TrackingQuery) ([]Reference, error)
	// Place returns the offset of the message at which a reader starts.
	Place(context.Context, *catalog.Stream, Position) (uint64, error)
	// Change carries changes out and answers, once they can't be lost any more,
	// the references that did change.
	Change(context.Context, *catalog.Stream, []TrackingChange) (changed []string, err error)
}

// TrackingQuery narrows a list; empty fields are no bound.
type TrackingQuery struct{ Kind, Reference string }

// Position names a place in a stream: first, last, next, or time.
type Position struct {
	At          string
	TimestampMS int64 // of time
}

// TrackingChange changes what is stored under a reference.
type TrackingChange struct {
	Reference string
	Kind      string
	// Forget takes it away; else Offset is stored.
	Forget bool
	Offset uint64
	// UpdatedBefore, if not zero, lets the change happen only if the last update
	// is older, New only if nothing is stored.
	UpdatedBefore time.Time
	New           bool
}

// Sessions are the clients that are connected.
type Sessions interface {
	Connections() []Connection
	Publishers() []Publisher
	Consumers() []Consumer
	// Close closes the named connection's socket; false: there is none.
	Close(name, reason string) bool
	Traffic() Traffic
}

// Traffic counts since the node's start.
type Traffic struct {
	Published, Confirmed, Refused, Delivered uint64 // messages
	DeliveredBytes                           uint64
	Blocked                                  int               // connections that are not read from, now
	Unanswered                               uint64            // connections closed since a single active consumer did not answer
	Overtaken                                uint64            // times that retention took what a subscription had not read
	Refusals                                 map[uint16]uint64 // answers by response code other than ok
}

// Node tells about the process.
type Node interface {
	// Name is the node's in its cluster.
	Name() string
	Status() Status
	// Ready is nil once the node serves clients, else why it does not.
	Ready() error
}

// Authenticate proves a user by password. remote is where the request came
// from: guest is let in from loopback alone.
type Authenticate func(user, password string, remote netip.Addr) error

// Server serves operators. Make one by New.
type Server struct {
	metadata     Metadata
	replicas     Replicas
	tracking     Tracking
	sessions     Sessions
	node         Node
	membership   Membership
	placement    Placement
	groups       Groups
	peers        Peers
	inner        http.Handler // answers other nodes
	authenticate Authenticate
	hosts        hosts
	log          hclog.Logger
	registry     *prometheus.Registry
}

// Parts are what a Server is joined from; all are needed.
type Parts struct {
	Metadata     Metadata
	Replicas     Replicas
	Tracking     Tracking
	Sessions     Sessions
	Node         Node
	Membership   Membership
	Placement    Placement
	Groups       Groups
	Peers        Peers
	Authenticate Authenticate
	// Hosts are the names that operators may ask this node under, besides IP
	// addresses and localhost.
	Hosts []string
	Log   hclog.Logger
}

// New joins a server.
func New(parts Parts) *Server {
	s := &Server{
		metadata: parts.Metadata, replicas: parts.Replicas, tracking: parts.Tracking, sessions: parts.Sessions,
		node: parts.Node, membership: parts.Membership, placement: parts.Placement, groups: parts.Groups, peers: parts.Peers,
		authenticate: parts.Authenticate, hosts: hostsOf(parts.Hosts), log: parts.Log,
	}
	s.registry = newRegistry(s)
	mux := http.NewServeMux()
	for _, r := range s.routes() {
		mux.Handle(r.pattern(), s.answer(r))
	}
	s.inner = slashNames(mux)
	return s
}

// Handler serves the main port: health, metrics, API, profiles and page.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	for _, r := range s.routes() {
		mux.Handle(r.pattern(), s.guard(r))
	}
	// Browsers send a user's password along with any site's request; this
	// refuses those that another site made.
	return http.NewCrossOriginProtection().Handler(securityHeaders(slashNames(unrouted(mux))))
}

// A right is what a caller must prove before a route runs.
type right int

const (
	anyone        right = iota // no credentials: probes and the page's own files
	operator                   // a proven user whose tags let him look
	administrator              // a proven user whose tags let him change things
)

// A route is one method and path with its handler.
type route struct {
	method, path string
	right        right
	place        place
	handle       func(*Server, http.ResponseWriter, *http.Request) error
}

func (r route) pattern() string { return r.method + " " + r.path }

// guard proves the name and the right that the caller asks under, and turns errors into answers.
func (s *Server) guard(r route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		err := s.addressed(r.right, req)
		if err == nil {
			err = s.admit(r.right, req)
		}
		if err != nil {
			writeFailure(w, err)
			return
		}
		s.answer(r).ServeHTTP(w, req)
	})
}

// answer has the request carried out where it belongs.
func (s *Server) answer(r route) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		node, err := s.elsewhere(&r, req)
		switch {
		case err != nil:
		case node != "":
			err = s.pass(w, req, node, r.patience())
		default:
			err = r.handle(s, w, req)
		}
		if err != nil {
			writeFailure(w, err)
		}
	})
}

// admit checks that the caller may do what needs the right.
func (s *Server) admit(needed right, req *http.Request) error {
	if needed == anyone {
		return nil
	}
	name, password, ok := req.BasicAuth()
	if !ok {
		return errNoCredentials
	}
	remote, err := netip.ParseAddrPort(req.RemoteAddr)
	if err != nil {
		return errBadCredentials
	}
	if err := s.authenticate(name, password, remote.Addr().Unmap()); err != nil {
		return errBadCredentials
	}
	user, ok := s.metadata.View().User(name)
	if !ok {
		return errBadCredentials
	}
	allowed := []string{administratorTag}
	if needed == operator {
		allowed = append(allowed, "monitoring", "management")
	}
	if !slices.ContainsFunc(user.Tags, func(tag string) bool { return slices.Contains(allowed, tag) }) {
		return errNotAllowed
	}
	return nil
}

// caller is the proven user's name.
func caller(req *http.Request) string {
	if user, came := asked(req); came {
		return user
	}
	name, _, _ := req.BasicAuth()
	return name
}

// securityHeaders keeps the page from loading or being framed by others.
func securityHeaders(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		next.ServeHTTP(w, req)
	})
}
