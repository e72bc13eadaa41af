package admin

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// pair are the nodes n1 and n2 with a replica of stream s each, led by n2, and a
// node n3 without.
type pair struct {
	*house // n1
	n2     *house
}

func newPair(t *testing.T) *pair {
	t.Helper()
	h := newHouse(t)
	h.must(h.do(&catalog.PutNode{ID: "n2", Disk: "e"}))
	h.must(h.do(&catalog.PutNode{ID: "n3", Disk: "f"}))
	arguments, err := catalog.ParseArguments(nil)
	h.must(err)
	h.must(h.do(&catalog.CreateStreams{Streams: []catalog.NewStream{{
		VHost: "/", Name: "s", Arguments: arguments, Incarnation: 7, Replicas: []protocol.NodeID{"n1", "n2"}, Preferred: "n2",
	}}}))
	stream, _ := h.state.Stream("/", "s")
	h.must(h.elect(stream, "n2"))
	n2 := newHouse(t)
	n2.name, n2.state = "n2", h.state
	h.figures, n2.figures = Figures{NextOffset: 1, Messages: 1}, Figures{NextOffset: 2, Messages: 2}
	h.track("app", 1, 0)
	n2.track("app", 2, 0)
	h.others = map[string]*Server{"n2": n2.server()}
	return &pair{h, n2}
}

const ofS = "/api/v1/streams/%2F/s"

// TestElsewhere_oneAnswer: every request that is for the leader, or for a named
// replica, is answered by it, in the name of the user who asked, though he asked
// another node.
func TestElsewhere_oneAnswer(t *testing.T) {
	for _, row := range []struct {
		method, path string
		body         any
		by           string // the node that was asked for it; empty: none
		holds        string // in the answer
	}{
		{"GET", "", nil, "n2", `"messages":2`},
		{"GET", "?node=n2", nil, "n2", `"messages":2`},
		{"GET", "?node=n1", nil, "", `"messages":1`},
		{"GET", "/segments", nil, "n2", `"file"`},
		{"GET", "/segments?node=n1", nil, "", `"file"`},
		{"GET", "/segments/00000000000000000001.0.seg/chunks", nil, "n2", `"lsn":1`},
		{"GET", "/tracking", nil, "n2", `"value":2`},
		{"GET", "/tracking/app", nil, "n2", `"value":2`},
		{"PUT", "/tracking/app", SetOffset{Offset: new(uint64)}, "n2", `"value":0`},
		{"POST", "/tracking/copy", CopyOffset{From: "app", To: "b"}, "n2", `"reference":"b"`},
		{"POST", "/tracking/expire", ExpireOffsets{OlderThanMS: 1}, "n2", `[]`},
		{"DELETE", "/tracking/app", nil, "n2", ""},
		{"GET", "/retention?max-age=1h", nil, "n2", `"max_age_ms":3600000`},
		{"PUT", "/retention", map[string]string{"max-age": "1h"}, "n2", `"max_age_ms":3600000`},
		{"POST", "/retention/run", nil, "n2", `"goes":{"units":1`},
		{"POST", "/verify?node=n2", nil, "n2", `"node":"n2"`},
		{"POST", "/verify?node=n1", nil, "", `"node":"n1"`},
		{"POST", "/repair?node=n2", nil, "n2", `"repaired":[]`},
	} {
		p := newPair(t)
		res, body := call(t, p.server().Handler(), "root", row.method, ofS+row.path, row.body)
		if res.StatusCode >= 300 || !strings.Contains(body, row.holds) {
			t.Errorf("%s %s: %d %s, want %s", row.method, row.path, res.StatusCode, body, row.holds)
		}
		if row.by == "" && len(p.asked) == 0 {
			continue
		}
		if len(p.asked) != 1 || !strings.HasPrefix(p.asked[0], row.by+" ") || !strings.HasSuffix(p.asked[0], " by root") {
			t.Errorf("%s %s: asked %q, want node %q for root", row.method, row.path, p.asked, row.by)
		}
	}
}

// TestElsewhere_rights: what a user may not do here he may not have done
// elsewhere.
func TestElsewhere_rights(t *testing.T) {
	p := newPair(t)
	if res, body := call(t, p.server().Handler(), "watcher", "DELETE", ofS+"/tracking/app", nil); res.StatusCode != http.StatusForbidden || len(p.asked) > 0 {
		t.Errorf("%d %s, asked %q", res.StatusCode, body, p.asked)
	}
}

// TestElsewhere_failuresComeBack: a refusal of the other node is the answer, as
// it is.
func TestElsewhere_failuresComeBack(t *testing.T) {
	for _, row := range []struct {
		name, method, path string
		break_             func(*pair)
		status             int
		code               string
	}{
		{"the leader lost its office", "GET", "/tracking", func(p *pair) { p.n2.notLed = true }, 503, "not_led"},
		{"no such reference", "GET", "/tracking/none", func(*pair) {}, 404, "reference_missing"},
		{"no such segment", "GET", "/segments/x.seg/chunks", func(*pair) {}, 404, "no_segment"},
		{"the leader is silent", "GET", "/tracking", func(p *pair) { p.others = nil }, 504, "node_silent"},
		{"the named node is silent", "GET", "?node=n2", func(p *pair) { p.others = nil }, 504, "node_silent"},
		{"no leader", "GET", "/tracking", func(p *pair) { p.leaderless() }, 503, "not_led"},
		{"a node without a replica", "GET", "/segments?node=n3", func(*pair) {}, 404, "no_replica"},
		{"no such node", "GET", "/segments?node=n9", func(*pair) {}, 404, "node_missing"},
	} {
		p := newPair(t)
		row.break_(p)
		res, body := call(t, p.server().Handler(), "root", row.method, ofS+row.path, nil)
		if got := decode[Failure](t, body); res.StatusCode != row.status || got.Code != row.code || got.Message == "" {
			t.Errorf("%s: %d %s, want %d %s", row.name, res.StatusCode, body, row.status, row.code)
		}
	}
}

func (p *pair) leaderless() {
	s, _ := p.state.Stream("/", "s")
	p.must(p.do(&catalog.GrantEpochs{Streams: []catalog.Grant{{Stream: s.Incarnation, Epoch: s.Epoch + 1}}}))
}

// TestElsewhere_figures: the leader's where it answers; else those of the replica
// here; else it is said that they are unknown, and why. (OP-02)
func TestElsewhere_figures(t *testing.T) {
	for _, row := range []struct {
		name     string
		change   func(*pair)
		messages uint64
		of       string
		why      string
	}{
		{"the leader answers", func(*pair) {}, 2, "n2", ""},
		{"the leader is down", func(p *pair) { p.down = []string{"n2"} }, 1, "n1", ""},
		{"the leader is silent", func(p *pair) { p.others = nil }, 1, "n1", ""},
		{"no leader", func(p *pair) { p.leaderless() }, 1, "n1", ""},
		{"the leader is down, no replica here", func(p *pair) { p.down, p.missing = []string{"n2"}, true }, 0, "", "n2 is down"},
		{"the leader is silent, no replica here", func(p *pair) { p.others, p.missing = nil, true }, 0, "", "does not answer"},
		{"no leader, no replica here", func(p *pair) { p.leaderless(); p.missing = true }, 0, "", "no leader"},
	} {
		p := newPair(t)
		row.change(p)
		for _, path := range []string{"/api/v1/streams", ofS} {
			res, body := call(t, p.server().Handler(), "watcher", "GET", path, nil)
			if res.StatusCode != 200 {
				t.Fatalf("%s: %s: %d %s", row.name, path, res.StatusCode, body)
			}
			s := decode[Stream](t, strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(body), "["), "]"))
			if s.Messages != row.messages || s.FiguresOf != row.of || !strings.Contains(s.Unknown, row.why) || (s.Unknown != "") != (row.of == "") {
				t.Errorf("%s: %s: %d messages of %q, unknown %q", row.name, path, s.Messages, s.FiguresOf, s.Unknown)
			}
		}
	}
}

// TestElsewhere_limitsAreSet: whatever becomes of the leader's answer.
func TestElsewhere_limitsAreSet(t *testing.T) {
	p := newPair(t)
	p.others = nil
	res, body := call(t, p.server().Handler(), "root", "PUT", ofS+"/retention", map[string]string{"max-age": "1h"})
	r := decode[Retention](t, body)
	if stream, _ := p.state.Stream("/", "s"); res.StatusCode != 200 || r.MaxAgeMS != 3_600_000 || r.Unknown == "" || stream.Arguments.Map()["max-age"] != "1h" {
		t.Errorf("%d %s: %v", res.StatusCode, body, stream.Arguments.Map())
	}
}

// TestElsewhere_everyReplica: verify and repair go to all replicas, and say which
// are not known to be whole.
func TestElsewhere_everyReplica(t *testing.T) {
	p := newPair(t)
	handler := p.server().Handler()
	verdicts := func() (list []string) {
		_, body := call(t, handler, "root", "POST", ofS+"/verify", nil)
		for _, v := range decode[[]Verdict](t, body) {
			list = append(list, fmt.Sprint(v.Node, " ", len(v.Problems), v.Unknown))
		}
		return list
	}
	if got := verdicts(); !slices.Equal(got, []string{"n1 0 false", "n2 0 false"}) {
		t.Errorf("verdicts are %v", got)
	}
	p.n2.figures.DamagedSegments = 1 // which n2 can fetch from nobody
	_, body := call(t, handler, "root", "POST", ofS+"/repair", nil)
	if r := decode[Repair](t, body); len(r.Damaged) != 1 || !strings.HasPrefix(r.Damaged[0], "n2: ") || len(r.Unknown) != 0 {
		t.Errorf("damage on n2: %+v", r)
	}
	p.asked, p.down = nil, []string{"n2"}
	if got := verdicts(); !slices.Equal(got, []string{"n1 0 false", "n2 1 true"}) || len(p.asked) > 0 {
		t.Errorf("verdicts are %v where n2 is down, and asked was %q", got, p.asked)
	}
	p.others, p.down = nil, nil
	if got := verdicts(); !slices.Equal(got, []string{"n1 0 false", "n2 1 true"}) {
		t.Errorf("verdicts are %v where n2 is silent", got)
	}
	_, body = call(t, handler, "root", "POST", ofS+"/repair", nil)
	if r := decode[Repair](t, body); len(r.Damaged) != 0 || len(r.Unknown) != 1 || !strings.HasPrefix(r.Unknown[0], "n2: ") {
		t.Errorf("n2 is silent: %+v", r)
	}
}
