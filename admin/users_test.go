package admin

import (
	"slices"
	"strings"
	"testing"
)

// TestUsers_life walks a user from create to delete, and what it may do.
func TestUsers_life(t *testing.T) {
	h := newHouse(t)
	handler := h.server().Handler()
	do := func(method, path string, body any, want int) string {
		t.Helper()
		res, text := call(t, handler, "root", method, path, body)
		if res.StatusCode != want {
			t.Errorf("%s %s answers %d, want %d: %s", method, path, res.StatusCode, want, text)
		}
		return text
	}
	do("POST", "/api/v1/vhosts", NewVHost{Name: "a/b"}, 201)
	do("POST", "/api/v1/users", NewUser{Name: "ann/e", Tags: []string{"monitoring"}, Secret: Secret{Password: "unique-secret"}}, 201)
	do("POST", "/api/v1/users", NewUser{Name: "cert"}, 201)
	do("PUT", "/api/v1/permissions/a%2Fb/ann%2Fe", Patterns{Read: "^s"}, 204)
	do("PUT", "/api/v1/permissions/%2F/ann%2Fe", Patterns{Write: ".*"}, 204)
	text := do("GET", "/api/v1/users", nil, 200)
	if strings.Contains(text, "unique-secret") || strings.Contains(text, "hash") {
		t.Errorf("the list tells what nobody is to know: %s", text)
	}
	users := decode[[]User](t, text)
	at := slices.IndexFunc(users, func(u User) bool { return u.Name == "ann/e" })
	if at < 0 || !users[at].Password || !slices.Equal(users[at].VHosts, []string{"/", "a/b"}) || !slices.Equal(users[at].Tags, []string{"monitoring"}) {
		t.Errorf("users: %s", text)
	}
	if at := slices.IndexFunc(users, func(u User) bool { return u.Name == "cert" }); at < 0 || users[at].Password {
		t.Errorf("a user without a password: %s", text)
	}
	for query, want := range map[string]int{"": 3, "?user=ann%2Fe": 2, "?vhost=%2F": 1, "?vhost=a/b&user=ann%2Fe": 1, "?user=root": 1} {
		if list := decode[[]Permission](t, do("GET", "/api/v1/permissions"+query, nil, 200)); len(list) != want {
			t.Errorf("permissions%s: %+v, want %d", query, list, want)
		}
	}
	do("PUT", "/api/v1/users/ann%2Fe/password", Secret{Password: "other"}, 204)
	do("PUT", "/api/v1/users/ann%2Fe/tags", UserTags{Tags: []string{}}, 204)
	if u, _ := h.state.User("ann/e"); u.Hash != "other" || len(u.Tags) != 0 {
		t.Errorf("after the changes: %+v", u)
	}
	do("DELETE", "/api/v1/permissions/a%2Fb/ann%2Fe", nil, 204)
	if h.state.Allowed("a/b", "ann/e", 2, "s") {
		t.Error("what is cleared is allowed")
	}
	do("DELETE", "/api/v1/users/ann%2Fe", nil, 204)
	vhosts := decode[[]VHost](t, do("GET", "/api/v1/vhosts", nil, 200))
	if len(vhosts) != 2 || vhosts[1].Name != "a/b" || !slices.Equal(vhosts[1].Users, []string{"root"}) {
		t.Errorf("virtual hosts: %+v", vhosts)
	}
	do("DELETE", "/api/v1/vhosts/a%2Fb", nil, 204)
	do("DELETE", "/api/v1/vhosts/a%2Fb", nil, 404)
}

func TestUsers_failures(t *testing.T) {
	h := newHouse(t)
	handler := h.server().Handler()
	for _, row := range []struct {
		name, user, method, path string
		body                     any
		status                   int
		code                     string
	}{
		{"one that is there", "root", "POST", "/api/v1/users", NewUser{Name: "plain"}, 409, "user_exists"},
		{"an empty name", "root", "POST", "/api/v1/users", NewUser{}, 400, "bad_argument"},
		{"an unknown tag", "root", "POST", "/api/v1/users", NewUser{Name: "x", Tags: []string{"boss"}}, 400, "bad_argument"},
		{"tags of nobody", "root", "PUT", "/api/v1/users/x/tags", UserTags{}, 404, "user_missing"},
		{"a password of nobody", "root", "PUT", "/api/v1/users/x/password", Secret{Password: "p"}, 404, "user_missing"},
		{"nobody goes", "root", "DELETE", "/api/v1/users/x", nil, 404, "user_missing"},
		{"the last administrator goes", "root", "DELETE", "/api/v1/users/root", nil, 412, "unsafe"},
		{"the last administrator is none any more", "root", "PUT", "/api/v1/users/root/tags", UserTags{Tags: []string{"monitoring"}}, 412, "unsafe"},
		{"a pattern that is none", "root", "PUT", "/api/v1/permissions/%2F/plain", Patterns{Read: "("}, 400, "bad_argument"},
		{"a permission of nobody", "root", "PUT", "/api/v1/permissions/%2F/x", Patterns{}, 404, "user_missing"},
		{"a permission nowhere", "root", "PUT", "/api/v1/permissions/v/plain", Patterns{}, 404, "vhost_missing"},
		{"permissions of nobody", "root", "GET", "/api/v1/permissions?user=x", nil, 404, "user_missing"},
		{"permissions nowhere", "root", "GET", "/api/v1/permissions?vhost=v", nil, 404, "vhost_missing"},
		{"a virtual host that is there", "root", "POST", "/api/v1/vhosts", NewVHost{Name: "/"}, 409, "vhost_exists"},
		{"monitoring makes no user", "watcher", "POST", "/api/v1/users", NewUser{Name: "x"}, 403, "not_allowed"},
		{"monitoring gives no tags", "watcher", "PUT", "/api/v1/users/watcher/tags", UserTags{Tags: []string{"administrator"}}, 403, "not_allowed"},
		{"monitoring gives no permission", "watcher", "PUT", "/api/v1/permissions/%2F/watcher", Patterns{}, 403, "not_allowed"},
		{"monitoring deletes no virtual host", "watcher", "DELETE", "/api/v1/vhosts/%2F", nil, 403, "not_allowed"},
		{"who has no tags sees no users", "plain", "GET", "/api/v1/users", nil, 403, "not_allowed"},
	} {
		res, text := call(t, handler, row.user, row.method, row.path, row.body)
		if got := decode[Failure](t, text); res.StatusCode != row.status || got.Code != row.code {
			t.Errorf("%s: %d %s, want %d %s", row.name, res.StatusCode, text, row.status, row.code)
		}
	}
	// With a second administrator the first may go.
	call(t, handler, "root", "PUT", "/api/v1/users/plain/tags", UserTags{Tags: []string{"administrator"}})
	if res, text := call(t, handler, "plain", "DELETE", "/api/v1/users/root", nil); res.StatusCode != 204 {
		t.Errorf("one of two administrators: %d %s", res.StatusCode, text)
	}
	if res, _ := call(t, handler, "root", "GET", "/api/v1/users", nil); res.StatusCode != 401 {
		t.Errorf("a deleted user is let in: %d", res.StatusCode)
	}
}
