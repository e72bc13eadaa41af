package admin

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

func TestAPI_replicas(t *testing.T) {
	h := newHouse(t)
	for _, n := range []string{"n2", "n3", "n4"} {
		h.must(h.do(&catalog.PutNode{ID: protocol.NodeID(n), Disk: n}))
	}
	h.down = []string{"n4"}
	handler := h.server().Handler()
	if res, body := call(t, handler, "root", "POST", "/api/v1/streams", CreateStream{Name: "s"}); res.StatusCode != 201 {
		t.Fatalf("create: %d: %s", res.StatusCode, body)
	}
	const at = "/api/v1/streams/%2F/s/replicas"
	for _, row := range []struct {
		what, user, method, path string
		status                   int
		says                     string
	}{
		{"one", "watcher", "GET", at, 200, `[{"node":"n1","state":"leads","voter":true,"committed_lsn":9,"next_offset":90,"disk_bytes":0,"behind_chunks":0,"damaged_segments":0}]`},
		{"monitoring adds nothing", "watcher", "PUT", at + "/n2", 403, ""},
		{"to a node that is down", "root", "PUT", at + "/n4", 412, "does not answer"},
		{"to a stranger", "root", "PUT", at + "/n9", 404, "node_missing"},
		{"where one is", "root", "PUT", at + "/n1", 409, "replica_exists"},
		{"the only one", "root", "DELETE", at + "/n1", 412, "add one on another node first"},
		{"add", "root", "PUT", at + "/n2", 202, `{"node":"n2","state":"catching up","voter":false,"committed_lsn":4,"next_offset":40,"disk_bytes":0,"behind_chunks":5,"damaged_segments":2}`},
		{"the next has to wait for it", "root", "PUT", at + "/n3", 412, "n2 is 5 chunks behind"},
		{"nor can one move", "root", "PUT", at + "/n3?instead=n1", 412, "still catching up"},
		{"remove it again", "root", "DELETE", at + "/n2", 202, `"state":"leaving"`},
		{"where none is", "root", "DELETE", at + "/n3", 409, "replica_missing"},
		{"plan", "root", "POST", "/api/v1/cluster/balance?dry_run=true", 200, `"dry_run":true,"leaders":[{"vhost":"/","stream":"s","from":"n1","to":"n2"}],"replicas":[],"later":0`},
		{"all", "root", "POST", "/api/v1/cluster/balance?what=all", 200, `"dry_run":false`},
		{"nonsense", "root", "POST", "/api/v1/cluster/balance?what=none", 400, "leaders or all"},
		{"monitoring balances nothing", "watcher", "POST", "/api/v1/cluster/balance", 403, ""},
	} {
		res, body := call(t, handler, row.user, row.method, row.path, nil)
		if res.StatusCode != row.status || !strings.Contains(body, row.says) {
			t.Errorf("%s: %d, want %d: %s, want %s", row.what, res.StatusCode, row.status, body, row.says)
		}
	}
}
