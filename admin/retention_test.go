package admin

import (
	"encoding/json"
	"testing"
)

func TestAPI_retention(t *testing.T) {
	h := newHouse(t)
	handler := h.server().Handler()
	if res, body := call(t, handler, "root", "POST", "/api/v1/streams", CreateStream{Name: "s", Arguments: map[string]string{"max-length-bytes": "1000", "max-age": "1h"}}); res.StatusCode != 201 {
		t.Fatalf("create: %d: %s", res.StatusCode, body)
	}
	const path = "/api/v1/streams/%2F/s/retention"
	for _, row := range []struct {
		name, user, method, path string
		body                     any
		status                   int
		bytes, age               int64
		gone                     int
	}{
		{"the stream's own", "watcher", "GET", path, nil, 200, 1000, 3_600_000, 0},
		{"a dry run of another size", "watcher", "GET", path + "?max-length-bytes=50", nil, 200, 50, 3_600_000, 0},
		{"a dry run without a bound", "watcher", "GET", path + "?max-length-bytes=&max-age=", nil, 200, 0, 0, 0},
		{"a dry run of nonsense", "watcher", "GET", path + "?max-age=7", nil, 400, 0, 0, 0},
		{"it has changed nothing", "watcher", "GET", path, nil, 200, 1000, 3_600_000, 0},
		{"monitoring changes nothing", "watcher", "PUT", path, map[string]string{"max-age": "2h"}, 403, 0, 0, 0},
		{"and runs nothing", "watcher", "POST", path + "/run", nil, 403, 0, 0, 0},
		{"one limit", "root", "PUT", path, map[string]string{"max-age": "2h"}, 200, 1000, 7_200_000, 0},
		{"again", "root", "PUT", path, map[string]string{"max-age": "2h"}, 200, 1000, 7_200_000, 0},
		{"lift one", "root", "PUT", path, map[string]string{"max-length-bytes": ""}, 200, 0, 7_200_000, 0},
		{"no limit named", "root", "PUT", path, map[string]string{}, 400, 0, 0, 0},
		{"a bad one", "root", "PUT", path, map[string]string{"max-age": "-1s"}, 400, 0, 0, 0},
		{"what is fixed", "root", "PUT", path, map[string]string{"stream-max-segment-size-bytes": "70000"}, 400, 0, 0, 0},
		{"a bad one beside a good one", "root", "PUT", path, map[string]string{"max-age": "3h", "max-length-bytes": "x"}, 400, 0, 0, 0},
		{"changes nothing", "root", "GET", path, nil, 200, 0, 7_200_000, 0},
		{"a run", "root", "POST", path + "/run", nil, 200, 0, 7_200_000, 1},
		{"no such stream", "root", "PUT", "/api/v1/streams/%2F/t/retention", map[string]string{"max-age": "2h"}, 404, 0, 0, 0},
	} {
		res, body := call(t, handler, row.user, row.method, row.path, row.body)
		var r Retention
		if err := json.Unmarshal([]byte(body), &r); err != nil {
			t.Fatalf("%s: %v: %s", row.name, err, body)
		}
		if res.StatusCode != row.status || r.MaxBytes != row.bytes || r.MaxAgeMS != row.age || r.Goes.Units != row.gone {
			t.Errorf("%s: %d: %s", row.name, res.StatusCode, body)
		}
	}
	h.elsewhere = true
	if res, body := call(t, handler, "root", "POST", path+"/run", nil); res.StatusCode != 409 {
		t.Errorf("a run where another node leads: %d: %s", res.StatusCode, body)
	}
}
