package admin

import "testing"

func TestAPI_leader(t *testing.T) {
	h := newHouse(t)
	handler := h.server().Handler()
	if res, body := call(t, handler, "root", "POST", "/api/v1/streams", CreateStream{Name: "s"}); res.StatusCode != 201 {
		t.Fatalf("create: %d: %s", res.StatusCode, body)
	}
	const path = "/api/v1/streams/%2F/s/leader"
	for _, row := range []struct {
		name, user, path string
		body             any
		status           int
	}{
		{"to a node that has a replica", "root", path, LeaderRequest{"n1"}, 200},
		{"to one that has none", "root", path, LeaderRequest{"n9"}, 409},
		{"to nowhere", "root", path, LeaderRequest{}, 400},
		{"no such stream", "root", "/api/v1/streams/%2F/t/leader", LeaderRequest{"n1"}, 404},
		{"monitoring moves nothing", "watcher", path, LeaderRequest{"n1"}, 403},
	} {
		if res, body := call(t, handler, row.user, "PUT", row.path, row.body); res.StatusCode != row.status {
			t.Errorf("%s: %d: %s", row.name, res.StatusCode, body)
		}
	}
	if h.movedTo != "n1" {
		t.Errorf("the leader went to %q", h.movedTo)
	}
}
