package admin

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAPI_rights(t *testing.T) {
	h := newHouse(t)
	handler := h.server().Handler()
	stream := CreateStream{Name: "a"}
	rows := []struct {
		name, user, method, path string
		body                     any
		status                   int
	}{
		{"probes need none", "", "GET", "/healthz", nil, 200},
		{"nor do metrics", "", "GET", "/metrics", nil, 200},
		{"nor do the page's own files", "", "GET", "/page/start.js", nil, 200},
		{"the page has browsers ask for them", "", "GET", "/", nil, 401},
		{"and then comes", "watcher", "GET", "/", nil, 200},
		{"nor the description", "", "GET", "/api/v1/openapi.yaml", nil, 200},
		{"looking without credentials", "", "GET", "/api/v1/streams", nil, 401},
		{"wrong password", "root:wrong", "GET", "/api/v1/streams", nil, 401},
		{"unknown user", "nobody", "GET", "/api/v1/streams", nil, 401},
		{"a user without tags", "plain", "GET", "/api/v1/streams", nil, 403},
		{"monitoring looks", "watcher", "GET", "/api/v1/streams", nil, 200},
		{"monitoring sees profiles", "watcher", "GET", "/debug/pprof/", nil, 200},
		{"profiles are not for all", "", "GET", "/debug/pprof/heap", nil, 401},
		{"monitoring changes nothing", "watcher", "POST", "/api/v1/streams", stream, 403},
		{"administrators do", "root", "POST", "/api/v1/streams", stream, 201},
		{"unknown path", "root", "GET", "/api/v1/nothing", nil, 404},
		{"wrong method", "root", "PUT", "/api/v1/streams", nil, 405},
	}
	for _, row := range rows {
		res, body := call(t, handler, row.user, row.method, row.path, row.body)
		if res.StatusCode != row.status {
			t.Errorf("%s: %s %s answers %d, want %d: %s", row.name, row.method, row.path, res.StatusCode, row.status, body)
		}
		if challenge := res.Header.Get("WWW-Authenticate"); (challenge != "") != (row.status == 401) {
			t.Errorf("%s: status %d with challenge %q", row.name, row.status, challenge)
		}
	}
}

func TestAPI_refusesOtherSites(t *testing.T) {
	h := newHouse(t)
	req := newRequest(t, "POST", "/api/v1/streams", `{"name":"a"}`)
	req.SetBasicAuth("root", "secret")
	req.Header.Set("Sec-Fetch-Site", "cross-site")
	if status := serve(h.server().Handler(), req); status != http.StatusForbidden {
		t.Errorf("a create that another site's page asked for answers %d, want 403", status)
	}
}

// TestAPI_unrouted: what the API does not have is answered in its form, with
// what is allowed; what lies beside the API is not.
func TestAPI_unrouted(t *testing.T) {
	handler := newHouse(t).server().Handler()
	for _, row := range []struct {
		method, path string
		status       int
		allow        string
	}{
		{"GET", "/api/v1/nothing", 404, ""},
		{"PUT", "/api/v1/streams", 405, "GET, HEAD, POST"},
	} {
		res, body := call(t, handler, "root", row.method, row.path, nil)
		var f Failure
		if err := json.Unmarshal([]byte(body), &f); err != nil || f.Code != "no_such_call" || !strings.Contains(f.Message, row.method+" "+row.path) {
			t.Errorf("%s %s answers %q (%v)", row.method, row.path, body, err)
		}
		if res.StatusCode != row.status || res.Header.Get("Allow") != row.allow || res.Header.Get("Content-Type") != "application/json" {
			t.Errorf("%s %s answers %d, %v; want %d, allowed %q", row.method, row.path, res.StatusCode, res.Header, row.status, row.allow)
		}
	}
	if _, body := call(t, handler, "root", "GET", "/nothing", nil); strings.Contains(body, "no_such_call") {
		t.Errorf("GET /nothing answers %q", body)
	}
}

// TestAPI_streamLife walks a stream from create to delete.
func TestAPI_streamLife(t *testing.T) {
	h := newHouse(t)
	h.figures = Figures{FirstOffset: 5, NextOffset: 25, Messages: 20, Segments: 1, Bytes: Bytes{User: 100, Delta: 3}}
	handler := h.server().Handler()
	arguments := map[string]string{"max-age": "7D"}

	res, body := call(t, handler, "root", "POST", "/api/v1/streams", CreateStream{Name: "a b/c", Arguments: arguments})
	created := decode[Stream](t, body)
	if res.StatusCode != 201 || created.Name != "a b/c" || created.VHost != "/" || created.Creator != "root" {
		t.Fatalf("create: %d %s", res.StatusCode, body)
	}
	if diff := cmp.Diff(arguments, created.Arguments); diff != "" {
		t.Errorf("arguments: %s", diff)
	}

	path := "/api/v1/streams/%2F/a%20b%2Fc"
	_, body = call(t, handler, "watcher", "GET", path, nil)
	described := decode[Stream](t, body)
	if diff := cmp.Diff(h.figures, described.Figures); diff != "" {
		t.Errorf("figures: %s", diff)
	}
	_, body = call(t, handler, "watcher", "GET", "/api/v1/streams?vhost=%2f", nil)
	if list := decode[[]Stream](t, body); len(list) != 1 || list[0].Name != "a b/c" {
		t.Errorf("list: %s", body)
	}
	if _, body = call(t, handler, "watcher", "GET", path+"/segments", nil); len(decode[[]Segment](t, body)) != 1 {
		t.Errorf("segments: %s", body)
	}
	if _, body = call(t, handler, "watcher", "POST", path+"/verify", nil); len(decode[[]Verdict](t, body)) != 1 {
		t.Errorf("verify: %s", body)
	}
	if res, body = call(t, handler, "root", "DELETE", path, nil); res.StatusCode != 204 {
		t.Fatalf("delete: %d %s", res.StatusCode, body)
	}
	if res, _ = call(t, handler, "root", "GET", path, nil); res.StatusCode != 404 {
		t.Errorf("describe after delete: %d, want 404", res.StatusCode)
	}
}

func TestAPI_failures(t *testing.T) {
	h := newHouse(t)
	handler := h.server().Handler()
	call(t, handler, "root", "POST", "/api/v1/streams", CreateStream{Name: "there"})
	h.figures.DamagedSegments = 1
	rows := []struct {
		name, method, path string
		body               any
		status             int
		code               string
	}{
		{"same again", "POST", "/api/v1/streams", CreateStream{Name: "there"}, 409, "stream_exists"},
		{"other arguments", "POST", "/api/v1/streams", CreateStream{Name: "there", Arguments: map[string]string{"max-age": "1D"}}, 409, "stream_differs"},
		{"bad argument", "POST", "/api/v1/streams", CreateStream{Name: "x", Arguments: map[string]string{"max-age": "soon"}}, 400, "bad_argument"},
		{"empty name", "POST", "/api/v1/streams", CreateStream{}, 400, "bad_argument"},
		{"no such virtual host", "POST", "/api/v1/streams", CreateStream{VHost: "v", Name: "x"}, 404, "vhost_missing"},
		{"unknown field", "POST", "/api/v1/streams", map[string]any{"name": "x", "nmae": "y"}, 400, "bad_body"},
		{"no JSON", "POST", "/api/v1/streams", "text", 400, "bad_body"},
		{"list of a missing virtual host", "GET", "/api/v1/streams?vhost=v", nil, 404, "vhost_missing"},
		{"missing stream", "GET", "/api/v1/streams/%2F/none", nil, 404, "stream_missing"},
		{"delete of a missing one", "DELETE", "/api/v1/streams/%2F/none", nil, 404, "stream_missing"},
		{"missing virtual host", "GET", "/api/v1/streams/v/there", nil, 404, "vhost_missing"},
		{"missing segment", "GET", "/api/v1/streams/%2F/there/segments/7.0.seg/chunks", nil, 404, "no_segment"},
		{"repair without a peer", "POST", "/api/v1/streams/%2F/there/repair", nil, 412, "no_peer"},
		{"repair of a missing stream", "POST", "/api/v1/streams/%2F/none/repair", nil, 404, "stream_missing"},
		{"missing connection", "DELETE", "/api/v1/connections/nobody", nil, 404, "no_connection"},
	}
	for _, row := range rows {
		res, body := call(t, handler, "root", row.method, row.path, row.body)
		failure := decode[Failure](t, body)
		if res.StatusCode != row.status || failure.Code != row.code || failure.Message == "" {
			t.Errorf("%s: %d %s, want %d %s", row.name, res.StatusCode, body, row.status, row.code)
		}
	}
	if status, body := failure(errors.New("boom")); status != 500 || body.Code != "internal" {
		t.Errorf("an error that no row knows: %d %s", status, body.Code)
	}
}

func TestAPI_healthAndReadiness(t *testing.T) {
	h := newHouse(t)
	handler := h.server().Handler()
	if res, _ := call(t, handler, "", "GET", "/readyz", nil); res.StatusCode != 200 {
		t.Errorf("ready: %d", res.StatusCode)
	}
	h.notReady = errors.New("no leader yet")
	res, body := call(t, handler, "", "GET", "/readyz", nil)
	if res.StatusCode != 503 || body != "not ready: no leader yet\n" {
		t.Errorf("not ready: %d %q", res.StatusCode, body)
	}
	if res, _ := call(t, handler, "", "GET", "/healthz", nil); res.StatusCode != 200 {
		t.Errorf("a node that is not ready is healthy all the same: %d", res.StatusCode)
	}
	_, body = call(t, handler, "watcher", "GET", "/api/v1/status", nil)
	if status := decode[Status](t, body); status.Ready || status.Reason != "no leader yet" || status.VHosts != 1 {
		t.Errorf("status: %s", body)
	}
}
