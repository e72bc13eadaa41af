package admin

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// house is the node n1 as admin sees it, or the one of another name: a real catalog in memory, connections and
// figures that tests set. The password of every user is "secret".
type house struct {
	t          *testing.T
	name       string // n1 if empty
	state      *catalog.State
	figures    Figures
	sessions   map[string]Connection
	publishers []Publisher
	consumers  []Consumer
	traffic    Traffic
	elsewhere  bool     // the leader of every stream
	down, low  []string // nodes
	headless   bool     // the metadata has no leader
	removed    bool     // this node is no member any more
	notReady   error
	serial     chunk.Incarnation
	tracked    map[string]Reference // by kind and reference
	notLed     bool
	movedTo    string // the last leader
	others     map[string]*Server
	asking     sync.Mutex // guards asked
	asked      []string   // of the others
	missing    bool       // no replica is here
}

func newHouse(t *testing.T) *house {
	t.Helper()
	h := &house{t: t, state: catalog.New(), tracked: map[string]Reference{}, sessions: map[string]Connection{}}
	h.must(h.do(&catalog.PutNode{ID: "n1", Disk: "d"}))
	h.must(h.do(&catalog.CreateVHost{Name: "/"}))
	h.must(h.do(&catalog.PutUser{Name: "root", Hash: "h", Tags: []string{"administrator"}}))
	h.must(h.do(&catalog.PutUser{Name: "watcher", Hash: "h", Tags: []string{"monitoring"}}))
	h.must(h.do(&catalog.PutUser{Name: "plain", Hash: "h"}))
	return h
}

func (h *house) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

func (h *house) do(body catalog.Body) error {
	next, result, _ := h.state.Do(catalog.Command{At: 1_700_000_000_000, Body: body})
	h.state = next
	return result.Err()
}

func (h *house) View() *catalog.State { return h.state }

func (h *house) CreateStream(_ context.Context, user, vhost, name string, arguments map[string]string) error {
	parsed, err := catalog.ParseArguments(arguments)
	if err != nil {
		return err
	}
	h.serial++
	if err := h.do(&catalog.CreateStreams{Streams: []catalog.NewStream{{
		Creator: user,
		VHost:   vhost, Name: name, Arguments: parsed, Incarnation: h.serial,
		Replicas: []protocol.NodeID{"n1"}, Preferred: "n1",
	}}}); err != nil {
		return err
	}
	stream, _ := h.state.Stream(vhost, name)
	return h.elect(stream, "n1")
}

// elect has a stream led from a node, in its next epoch.
func (h *house) elect(s *catalog.Stream, node protocol.NodeID) error {
	if err := h.do(&catalog.GrantEpochs{Streams: []catalog.Grant{{Stream: s.Incarnation, Epoch: s.Epoch + 1}}}); err != nil {
		return err
	}
	return h.do(&catalog.AssignLeaders{Leaders: []catalog.Assign{{
		Stream: s.Incarnation, Epoch: s.Epoch + 1, Node: node, Run: 1, ConfigVersion: s.ConfigVersion,
	}}})
}

func (h *house) DeleteStream(_ context.Context, vhost, name string) error {
	stream, ok := h.state.Stream(vhost, name)
	if !ok {
		return catalog.ErrStreamMissing
	}
	return h.do(&catalog.DeleteStreams{Streams: []catalog.OldStream{{VHost: vhost, Name: name, Incarnation: stream.Incarnation}}})
}

// MoveLeader goes wherever there is a replica.
func (h *house) MoveLeader(_ context.Context, stream chunk.Incarnation, node string) error {
	err := h.do(&catalog.TransferLeaders{Transfers: []catalog.Transfer{{Stream: stream, To: protocol.NodeID(node)}}})
	if err == nil {
		h.movedTo = node
	}
	return err
}

func (h *house) Up(node string) bool { return !slices.Contains(h.down, node) }

func (h *house) Low(node string) bool { return slices.Contains(h.low, node) }

func (h *house) up(node protocol.NodeID) bool { return h.Up(string(node)) }

func (h *house) AddReplica(_ context.Context, i chunk.Incarnation, node string) error {
	s, _ := h.state.Incarnation(i)
	if err := h.state.CanAdd(s, protocol.NodeID(node), h.up); err != nil {
		return err
	}
	return h.do(&catalog.AddReplicas{Replicas: []catalog.Added{{Stream: i, Node: protocol.NodeID(node)}}})
}

func (h *house) RemoveReplica(_ context.Context, i chunk.Incarnation, node string) error {
	s, _ := h.state.Incarnation(i)
	if err := h.state.CanRemove(s, protocol.NodeID(node), h.up); err != nil {
		return err
	}
	return h.do(&catalog.RetireReplicas{Replicas: []catalog.Retired{{Stream: i, Node: protocol.NodeID(node)}}})
}

func (h *house) MoveReplica(_ context.Context, i chunk.Incarnation, from, to string) error {
	s, _ := h.state.Incarnation(i)
	if err := h.state.CanMove(s, protocol.NodeID(from), protocol.NodeID(to), h.up); err != nil {
		return err
	}
	return h.do(&catalog.AddReplicas{Replicas: []catalog.Added{{Stream: i, Node: protocol.NodeID(to), Instead: protocol.NodeID(from)}}})
}

func (h *house) Balance(_ context.Context, all, dry bool) (Balance, error) {
	b := Balance{DryRun: dry, Leaders: []Move{{VHost: "/", Stream: "s", From: "n1", To: "n2"}}, Replicas: []Move{}}
	if all {
		b.Later = 1
	}
	return b, nil
}

// Progress: n1 is at chunk 9, all others at 4 with two damaged segments.
func (h *house) Progress(_ context.Context, node string, _ chunk.Incarnation) (Progress, error) {
	if node == "n1" {
		return Progress{CommittedLSN: 9, NextOffset: 90}, nil
	}
	return Progress{CommittedLSN: 4, NextOffset: 40, DamagedSegments: 2}, nil
}

func (h *house) CreateVHost(_ context.Context, user, name string) error {
	return h.do(&catalog.CreateVHost{Name: name, Owner: user})
}

func (h *house) DeleteVHost(_ context.Context, name string) error {
	return h.do(&catalog.DeleteVHost{Name: name})
}

func (h *house) CreateUser(_ context.Context, name string, secret Secret, tags []string) error {
	return h.do(&catalog.PutUser{Name: name, Hash: secret.Hash + secret.Password, Tags: tags, New: true})
}

func (h *house) SetPassword(_ context.Context, name string, secret Secret) error {
	hash := secret.Hash + secret.Password
	return h.do(&catalog.ChangeUser{Name: name, Hash: &hash})
}

func (h *house) SetTags(_ context.Context, name string, tags []string) error {
	return h.do(&catalog.ChangeUser{Name: name, Tags: &tags})
}

func (h *house) DeleteUser(_ context.Context, name string) error {
	return h.do(&catalog.DeleteUser{Name: name})
}

func (h *house) SetPermission(_ context.Context, p Permission) error {
	return h.do(&catalog.SetPermission{VHost: p.VHost, User: p.User, Configure: p.Configure, Write: p.Write, Read: p.Read})
}

func (h *house) ClearPermission(_ context.Context, vhost, user string) error {
	return h.do(&catalog.ClearPermission{VHost: vhost, User: user})
}

func (h *house) Figures(chunk.Incarnation) (Figures, error) {
	if h.missing {
		return Figures{}, ErrNoReplica
	}
	return h.figures, nil
}

func (h *house) SetRetention(_ context.Context, vhost, name string, change catalog.RetentionChange) error {
	stream, ok := h.state.Stream(vhost, name)
	if !ok {
		return catalog.ErrStreamMissing
	}
	return h.do(&catalog.SetRetention{VHost: vhost, Name: name, Incarnation: stream.Incarnation, Change: change})
}

// Retention answers the limits that it was asked about, and one unit that goes
// in a run.
func (h *house) Retention(_ context.Context, i chunk.Incarnation, q RetentionQuery) (Retention, error) {
	if h.elsewhere {
		return Retention{}, ErrElsewhere
	}
	stream, _ := h.state.Incarnation(i)
	limits := stream.Arguments
	if q.Limits != nil {
		limits = *q.Limits
	}
	bytes, _ := limits.MaxLength()
	age, _ := limits.MaxAgeSeconds()
	r := Retention{MaxBytes: bytes, MaxAgeMS: 1000 * age, Leads: true, Units: []Unit{}}
	if q.Run {
		r.Goes.Units = 1
	}
	return r, nil
}

func (h *house) Segments(chunk.Incarnation) ([]Segment, error) {
	return []Segment{{File: "00000000000000000001.0.seg", State: "active"}}, nil
}

func (h *house) Chunks(_ chunk.Incarnation, file string) ([]Chunk, error) {
	if file != "00000000000000000001.0.seg" {
		return nil, fmt.Errorf("%w: %s", ErrNoSegment, file)
	}
	return []Chunk{{LSN: 1, Type: "delta"}}, nil
}

func (h *house) Verify(context.Context, chunk.Incarnation) ([]Verdict, error) {
	return []Verdict{{File: "00000000000000000001.0.seg", Chunks: 1, Problems: []string{}}}, nil
}

// track notes a stored offset of a given age.
func (h *house) track(reference string, value uint64, age time.Duration) {
	ms, updated, lag := age.Milliseconds(), time.UnixMilli(1_700_000_000_000).Add(-age).UTC(), 24-value
	h.tracked[KindOffset+" "+reference] = Reference{
		Reference: reference, Kind: KindOffset, Value: value, State: "written", Lag: &lag, Updated: &updated, AgeMS: &ms,
	}
}

func (h *house) References(_ context.Context, _ *catalog.Stream, q TrackingQuery) ([]Reference, error) {
	if h.notLed {
		return nil, fmt.Errorf("%w: electing", ErrNotLed)
	}
	var list []Reference
	for _, key := range slices.Sorted(maps.Keys(h.tracked)) {
		r := h.tracked[key]
		if (q.Kind == "" || q.Kind == r.Kind) && (q.Reference == "" || q.Reference == r.Reference) {
			list = append(list, r)
		}
	}
	return list, nil
}

// Place: the log holds the offsets from 5 to 24, the last chunk begins at 20.
func (h *house) Place(_ context.Context, _ *catalog.Stream, p Position) (uint64, error) {
	if h.figures.NextOffset == 0 {
		return 0, nil
	}
	return map[string]uint64{"first": h.figures.FirstOffset, "last": 20, "next": h.figures.NextOffset, "time": uint64(p.TimestampMS)}[p.At], nil
}

func (h *house) Change(_ context.Context, _ *catalog.Stream, changes []TrackingChange) (changed []string, err error) {
	for _, c := range changes {
		key := c.Kind + " " + c.Reference
		was, has := h.tracked[key]
		switch {
		case was.Sessions > 0:
			return nil, ErrReferenceInUse
		case has && c.New, !has && c.Forget, !c.UpdatedBefore.IsZero() && !was.Updated.Before(c.UpdatedBefore):
			continue
		case c.Forget:
			delete(h.tracked, key)
		default:
			h.track(c.Reference, c.Offset, 0)
		}
		changed = append(changed, c.Reference)
	}
	return changed, nil
}

func (h *house) Repair(context.Context, chunk.Incarnation) (Repair, error) {
	if h.figures.DamagedSegments > 0 {
		return Repair{}, fmt.Errorf("%w; damaged: chunks 1 to 2", ErrNoPeer)
	}
	return Repair{Repaired: []string{}, Damaged: []string{}}, nil
}

func (h *house) Connections() []Connection {
	var list []Connection
	for _, c := range h.sessions {
		list = append(list, c)
	}
	return list
}

func (h *house) Publishers() []Publisher { return h.publishers }
func (h *house) Consumers() []Consumer   { return h.consumers }

func (h *house) Close(name, _ string) bool {
	_, ok := h.sessions[name]
	delete(h.sessions, name)
	return ok
}

func (h *house) Traffic() Traffic { return h.traffic }

func (h *house) Name() string { return cmp.Or(h.name, "n1") }

// Ask hands the request to the node of that name in the test, if it is there.
func (h *house) Ask(ctx context.Context, node string, r *Asked) (Answer, error) {
	other := h.others[node]
	if other == nil {
		return Answer{}, fmt.Errorf("%w: %s", ErrSilent, node)
	}
	h.asking.Lock()
	h.asked = append(h.asked, node+" "+r.Method+" "+r.Target+" by "+r.User)
	h.asking.Unlock()
	return other.ServePeer(ctx, r), nil
}

func (h *house) Status() Status {
	return Status{Node: h.Name(), Version: "1.2.3", Started: time.Unix(1_700_000_000, 0).UTC(), Disk: Disk{Level: "alarm", FreeBytes: 42, TotalBytes: 1000, AlarmBelowBytes: 50}}
}

func (h *house) Ready() error { return h.notReady }

func authenticate(_, password string, remote netip.Addr) error {
	if password != "secret" || !remote.IsLoopback() && remote != netip.MustParseAddr("192.0.2.1") {
		return errors.New("no")
	}
	return nil
}

// server joins the house to a Server.
func (h *house) server() *Server {
	return New(Parts{Metadata: h, Replicas: h, Tracking: h, Sessions: h, Node: h, Membership: h, Placement: h, Groups: h, Peers: h, Authenticate: authenticate, Hosts: []string{"example.com", h.Name()}, Log: hclog.NewNullLogger()})
}

// call asks handler as user (none if empty) and returns status and body.
func call(t *testing.T, handler http.Handler, user, method, path string, body any) (*http.Response, string) {
	t.Helper()
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			t.Fatal(err)
		}
		in = bytes.NewReader(text)
	}
	req := httptest.NewRequest(method, path, in)
	if user != "" {
		name, password, _ := strings.Cut(user+":secret", ":")
		req.SetBasicAuth(name, strings.TrimSuffix(password, ":secret"))
	}
	rec := httptest.NewRecorder()
	handler.ServeHTTP(rec, req)
	return rec.Result(), rec.Body.String()
}

func decode[T any](t *testing.T, text string) T {
	t.Helper()
	var v T
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return v
}
