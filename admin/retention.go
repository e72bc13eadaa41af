package admin

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
)

// RetentionQuery asks what retention makes of a stream.
type RetentionQuery struct {
	// Limits, if not nil, are asked about in place of the stream's own.
	Limits *catalog.Arguments
	// Run has retention look, and take what may go, now.
	Run bool
}

// Retention is what retention makes of a stream's log on this node.
type Retention struct {
	MaxBytes int64 `json:"max_bytes"`  // of user data; 0: no bound
	MaxAgeMS int64 `json:"max_age_ms"` // of the last message of what is kept; 0: no bound
	// Leads: this node's replica decides; others go where it goes.
	Leads bool `json:"leads"`
	// FirstOffset is the first message now; after a run, behind what went.
	FirstOffset uint64 `json:"first_offset"`
	// Now is the time by which ages are judged. ClockDoubted: it is not the
	// machine's, which has jumped and is believed only when that is confirmed.
	Now          time.Time `json:"now"`
	ClockDoubted bool      `json:"clock_doubted"`
	// NextCheck is when the limits are looked at next without another reason.
	NextCheck time.Time `json:"next_check"`
	Goes      Going     `json:"goes"`
	// Unknown is why the leader did not say the rest of this.
	Unknown string `json:"unknown,omitempty"`
	// Units as they are, or were before a run; the oldest first.
	Units []Unit `json:"units"`
}

// Going adds up the units that go.
type Going struct {
	Units     int    `json:"units"`
	Messages  uint64 `json:"messages"`
	UserBytes uint64 `json:"user_bytes"`
	DiskBytes uint64 `json:"disk_bytes"`
}

// Unit is what retention takes or keeps as a whole: a run of segments.
type Unit struct {
	FirstLSN    uint64     `json:"first_lsn"`
	FirstOffset uint64     `json:"first_offset"`
	NextOffset  uint64     `json:"next_offset"`
	Segments    int        `json:"segments"`
	Messages    uint64     `json:"messages"`
	UserBytes   uint64     `json:"user_bytes"` // what max_bytes bounds
	DiskBytes   uint64     `json:"disk_bytes"`
	FirstTime   *time.Time `json:"first_time,omitempty"` // of messages
	LastTime    *time.Time `json:"last_time,omitempty"`
	// Verdict: stays; newest (it is over a limit, but the newest with messages
	// stays); size or age (it is to go).
	Verdict string `json:"verdict"`
	Goes    bool   `json:"goes"`
	HeldBy  string `json:"held_by,omitempty"` // why it does not go now though it is to
}

// limitKeys are the arguments that can be changed and asked about.
var limitKeys = []string{"max-length-bytes", "max-age"}

// retention answers the present state or, with limits in the query, what it
// would be under those: a dry run.
func (s *Server) retention(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	asked := map[string]string{}
	for key, values := range req.URL.Query() { // order-free: into a map
		asked[key] = values[0]
	}
	var q RetentionQuery
	if len(asked) > 0 {
		change, err := catalog.ParseRetention(asked)
		if err != nil {
			return err
		}
		limits := change.In(stream.Arguments)
		q.Limits = &limits
	}
	return s.answerRetention(w, req, stream, q)
}

// setRetention changes the limits that the body names.
func (s *Server) setRetention(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	var body map[string]string
	if err := readJSON(w, req, &body); err != nil {
		return err
	}
	change, err := catalog.ParseRetention(body)
	if err != nil {
		return err
	}
	if len(body) == 0 {
		return fmt.Errorf("%w: name a limit, of %v", catalog.ErrBadArgument, limitKeys)
	}
	if err := s.metadata.SetRetention(req.Context(), stream.VHost, stream.Name, change); err != nil {
		return err
	}
	s.log.Info("retention changed", "stream", stream.Name, "vhost", stream.VHost, "limits", body, "by", caller(req))
	if stream, err = s.stream(req); err != nil {
		return err
	}
	leader := string(stream.Leader.Node)
	if leader == s.self() {
		return s.answerRetention(w, req, stream, RetentionQuery{Limits: &stream.Arguments})
	}
	writeJSON(w, http.StatusOK, s.retentionAt(req, leader, stream, body))
	return nil
}

// retentionAt asks the leader what the limits that were set come to. They are
// set, whatever it answers.
func (s *Server) retentionAt(req *http.Request, leader string, stream *catalog.Stream, limits map[string]string) Retention {
	values := url.Values{}
	for key, value := range limits { // order-free: Encode sorts
		values.Set(key, value)
	}
	ctx, cancel := context.WithTimeout(req.Context(), figuresPatience)
	defer cancel()
	view, err := Retention{}, ErrNotLed
	if leader != "" {
		view, err = askFor[Retention](ctx, s, leader, &Asked{
			Method: http.MethodGet, Target: streamPath(stream) + "/retention?" + values.Encode(), User: caller(req),
		})
	}
	if err != nil {
		bytes, _ := stream.Arguments.MaxLength()
		seconds, _ := stream.Arguments.MaxAgeSeconds()
		view = Retention{MaxBytes: bytes, MaxAgeMS: 1000 * seconds, Units: []Unit{}, Unknown: err.Error()}
	}
	return view
}

// runRetention has retention look now.
func (s *Server) runRetention(w http.ResponseWriter, req *http.Request) error {
	stream, err := s.stream(req)
	if err != nil {
		return err
	}
	s.log.Info("retention run", "stream", stream.Name, "vhost", stream.VHost, "by", caller(req))
	return s.answerRetention(w, req, stream, RetentionQuery{Run: true})
}

func (s *Server) answerRetention(w http.ResponseWriter, req *http.Request, stream *catalog.Stream, q RetentionQuery) error {
	view, err := s.replicas.Retention(req.Context(), stream.Incarnation, q)
	if err != nil {
		return err
	}
	writeJSON(w, http.StatusOK, view)
	return nil
}
