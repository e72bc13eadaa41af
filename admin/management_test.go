package admin

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

func newRequest(t *testing.T, method, path, body string) *http.Request {
	t.Helper()
	return httptest.NewRequest(method, path, strings.NewReader(body))
}

func serve(handler http.Handler, req *http.Request) int {
	rec := httptest.NewRecorder()
	handler.ServeHTTP(rec, req)
	return rec.Code
}

// withConnections is a house with one client that named itself and one that
// did not.
func withConnections(t *testing.T) *house {
	h := newHouse(t)
	h.sessions["127.0.0.1:5000 -> 127.0.0.1:5552"] = Connection{
		Name: "127.0.0.1:5000 -> 127.0.0.1:5552", User: "guest", VHost: "/", Connected: time.Unix(1, 0),
		Properties: map[string]string{"connection_name": "mine", "product": "client"},
	}
	h.sessions["127.0.0.1:5001 -> 127.0.0.1:5552"] = Connection{Name: "127.0.0.1:5001 -> 127.0.0.1:5552"}
	return h
}

func TestManagement_connections(t *testing.T) {
	h := withConnections(t)
	handler := h.server().ManagementHandler()
	for _, path := range []string{"/api/connections", "/api/connections/"} {
		res, body := call(t, handler, "root", "GET", path, nil)
		list := decode[[]map[string]any](t, body)
		if res.StatusCode != 200 || len(list) != 2 {
			t.Fatalf("GET %s: %d %s", path, res.StatusCode, body)
		}
		for _, c := range list {
			properties, ok := c["client_properties"].(map[string]any)
			if !ok {
				t.Fatalf("GET %s: no client_properties in %v", path, c)
			}
			name, ok := properties["connection_name"].(string)
			if !ok || (name == "mine") != (c["name"] == "127.0.0.1:5000 -> 127.0.0.1:5552") {
				t.Errorf("GET %s: connection_name %v of %v", path, properties["connection_name"], c["name"])
			}
		}
	}
}

func TestManagement_emptyListIsAnArray(t *testing.T) {
	_, body := call(t, newHouse(t).server().ManagementHandler(), "root", "GET", "/api/connections", nil)
	if strings.TrimSpace(body) != "[]" {
		t.Errorf("no connections: %q, want []", body)
	}
}

// TestManagement_connectionNames takes the name in every spelling that
// clients use.
func TestManagement_connectionNames(t *testing.T) {
	for _, path := range []string{
		"/api/connections/127.0.0.1:5000%20-%3E%20127.0.0.1:5552",
		"/api/connections/127.0.0.1%3A5000%20-%3E%20127.0.0.1%3A5552",
		"/api/connections/127.0.0.1:5000%20->%20127.0.0.1:5552",
	} {
		handler := withConnections(t).server().ManagementHandler()
		for _, step := range []struct {
			method string
			status int
		}{{"GET", 200}, {"DELETE", 204}, {"GET", 404}, {"DELETE", 404}} {
			if res, body := call(t, handler, "root", step.method, path, nil); res.StatusCode != step.status {
				t.Errorf("%s %s: %d, want %d: %s", step.method, path, res.StatusCode, step.status, body)
			}
		}
	}
}

func TestManagement_vhosts(t *testing.T) {
	h := newHouse(t)
	handler := h.server().ManagementHandler()
	for _, step := range []struct {
		method, path string
		status       int
	}{
		{"PUT", "/api/vhosts/new%2Fone", 201},
		{"PUT", "/api/vhosts/new%2fone", 204}, // there already, and that is fine
		{"DELETE", "/api/vhosts/new%2fone", 204},
		{"DELETE", "/api/vhosts/new%2Fone", 404},
		{"PUT", "/api/vhosts/%2F", 204},
	} {
		if res, body := call(t, handler, "root", step.method, step.path, nil); res.StatusCode != step.status {
			t.Errorf("%s %s: %d, want %d: %s", step.method, step.path, res.StatusCode, step.status, body)
		}
	}
}

func TestManagement_challengesAndRefuses(t *testing.T) {
	handler := newHouse(t).server().ManagementHandler()
	rows := []struct {
		user, method, path string
		status             int
	}{
		{"", "GET", "/api/connections", 401},
		{"", "GET", "/api/no/such/call", 401},
		{"root", "GET", "/api/no/such/call", 404},
		{"watcher", "PUT", "/api/vhosts/v", 403},
	}
	for _, row := range rows {
		res, _ := call(t, handler, row.user, row.method, row.path, nil)
		challenge := res.Header.Get("WWW-Authenticate")
		if res.StatusCode != row.status || strings.HasPrefix(challenge, "Basic ") != (row.status == 401) {
			t.Errorf("%s %s as %q: %d with challenge %q, want %d", row.method, row.path, row.user, res.StatusCode, challenge, row.status)
		}
	}
}

// TestNames_ofSlashesAlone: such names differ from each other and from the end
// of a path.
func TestNames_ofSlashesAlone(t *testing.T) {
	h := newHouse(t)
	handler := h.server().ManagementHandler()
	for _, name := range []string{"//", "///"} {
		path := "/api/vhosts/" + strings.ReplaceAll(name, "/", "%2F")
		if res, body := call(t, handler, "root", "PUT", path, nil); res.StatusCode != 201 {
			t.Errorf("PUT %s: %d %s", path, res.StatusCode, body)
		}
		if _, ok := h.state.VHost(name); !ok {
			t.Errorf("%s did not create %q", path, name)
		}
	}
}

// TestManagement_usersAndPermissions: what clients' suites send, with more in it
// than is read.
func TestManagement_usersAndPermissions(t *testing.T) {
	h := newHouse(t)
	handler := h.server().ManagementHandler()
	for _, row := range []struct {
		user, method, path string
		body               any
		status             int
	}{
		{"root", "PUT", "/api/users/ann", map[string]any{"password": "pw", "tags": "monitoring, impersonator", "limits": map[string]any{}}, 201},
		{"root", "PUT", "/api/users/ann", map[string]any{"password": "pw2", "tags": []string{"management"}}, 204},
		{"root", "PUT", "/api/users/root", map[string]any{"password": "pw", "tags": ""}, 412},
		{"root", "PUT", "/api/permissions/%2f/ann", map[string]any{"configure": "", "write": "^s", "read": ".*", "vhost": "/"}, 204},
		{"root", "PUT", "/api/permissions/%2f/nobody", map[string]any{}, 404},
		{"watcher", "PUT", "/api/permissions/%2f/watcher", map[string]any{}, 403},
		{"watcher", "PUT", "/api/users/watcher", map[string]any{"tags": "administrator"}, 403},
	} {
		if res, text := call(t, handler, row.user, row.method, row.path, row.body); res.StatusCode != row.status {
			t.Errorf("%s %s: %d %s, want %d", row.method, row.path, res.StatusCode, text, row.status)
		}
	}
	if u, ok := h.state.User("ann"); !ok || u.Hash != "pw2" || !slices.Equal(u.Tags, []string{"management"}) {
		t.Errorf("ann is %+v", u)
	}
	if p, ok := h.state.Permission("/", "ann"); !ok || p.Write != "^s" || p.Read != ".*" || p.Configure != "" {
		t.Errorf("ann may %+v", p)
	}
	for _, path := range []string{"/api/permissions/%2f/ann", "/api/users/ann"} {
		if res, _ := call(t, handler, "root", "DELETE", path, nil); res.StatusCode != 204 {
			t.Errorf("DELETE %s: %d", path, res.StatusCode)
		}
	}
	if _, ok := h.state.User("ann"); ok {
		t.Error("a deleted user is there")
	}
}
