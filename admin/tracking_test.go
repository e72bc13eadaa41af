package admin

import (
	"fmt"
	"net/http"
	"testing"
	"time"
)

// trackingHouse has a stream with the offsets 5 to 24 and three references.
func trackingHouse(t *testing.T) (*house, http.Handler) {
	h := newHouse(t)
	h.figures = Figures{FirstOffset: 5, NextOffset: 25}
	handler := h.server().Handler()
	call(t, handler, "root", "POST", "/api/v1/streams", CreateStream{Name: "s"})
	h.track("app", 10, time.Minute)
	h.track("a/b", 3, 40*24*time.Hour)
	h.tracked["writer app"] = Reference{Reference: "app", Kind: KindWriter, Value: 7, State: "written", LSN: 3, Sessions: 1}
	h.tracked["writer gone"] = Reference{Reference: "gone", Kind: KindWriter, Value: 9, State: "written", LSN: 4}
	return h, handler
}

const trackingPath = "/api/v1/streams/%2F/s/tracking"

func TestTracking_looking(t *testing.T) {
	_, handler := trackingHouse(t)
	for query, want := range map[string]int{"": 4, "?kind=offset": 2, "?kind=writer": 2} {
		_, body := call(t, handler, "watcher", "GET", trackingPath+query, nil)
		if list := decode[[]Reference](t, body); len(list) != want {
			t.Errorf("%q lists %s", query, body)
		}
	}
	_, body := call(t, handler, "watcher", "GET", trackingPath+"/a%2Fb", nil)
	if r := decode[Reference](t, body); r.Reference != "a/b" || r.Kind != KindOffset || r.Value != 3 || *r.Lag != 21 {
		t.Errorf("a/b: %s", body)
	}
	_, body = call(t, handler, "watcher", "GET", trackingPath+"/app?kind=writer", nil)
	if r := decode[Reference](t, body); r.Value != 7 || r.LSN != 3 || r.Lag != nil {
		t.Errorf("the writer: %s", body)
	}
}

// TestTracking_set: a place becomes the offset before it.
func TestTracking_set(t *testing.T) {
	h, handler := trackingHouse(t)
	huge := ^uint64(0)
	three := uint64(3)
	rows := []struct {
		body SetOffset
		want uint64
	}{
		{SetOffset{Offset: &three}, 3}, {SetOffset{Offset: &huge}, huge}, {SetOffset{At: "first"}, 4},
		{SetOffset{At: "last"}, 19}, {SetOffset{At: "next"}, 24}, {SetOffset{At: "time", TimestampMS: 17}, 16},
	}
	before := uint64(10)
	for _, row := range rows {
		dry := row.body
		dry.DryRun = true
		for _, body := range []SetOffset{dry, row.body} {
			res, text := call(t, handler, "root", "PUT", trackingPath+"/app", body)
			m := decode[MovedOffset](t, text)
			if res.StatusCode != 200 || m.Value != row.want || m.Before == nil || *m.Before != before || m.DryRun != body.DryRun {
				t.Errorf("%+v: %d %s", body, res.StatusCode, text)
			}
			if got := h.tracked["offset app"].Value; body.DryRun && got != before {
				t.Errorf("a dry run has stored %d", got)
			}
		}
		before = row.want
		if got := h.tracked["offset app"].Value; got != row.want {
			t.Errorf("%+v has stored %d", row.body, got)
		}
	}
	_, text := call(t, handler, "root", "PUT", trackingPath+"/new", SetOffset{At: "first"})
	if m := decode[MovedOffset](t, text); m.Before != nil {
		t.Errorf("a new one: %s", text)
	}
	h.figures.FirstOffset = 0
	if _, text = call(t, handler, "root", "PUT", trackingPath+"/new", SetOffset{At: "first"}); decode[MovedOffset](t, text).Value != 0 {
		t.Errorf("nothing is before offset 0: %s", text)
	}
}

func TestTracking_copyAndDelete(t *testing.T) {
	h, handler := trackingHouse(t)
	for _, body := range []CopyOffset{
		{From: "app", To: "new", DryRun: true}, {From: "app", To: "new"}, {From: "a/b", To: "new", Overwrite: true},
	} {
		res, text := call(t, handler, "root", "POST", trackingPath+"/copy", body)
		if m := decode[MovedOffset](t, text); res.StatusCode != 200 || m.Value != h.tracked["offset "+body.From].Value {
			t.Errorf("%+v: %d %s", body, res.StatusCode, text)
		}
		if r, ok := h.tracked["offset new"]; ok == body.DryRun || ok && r.Value != h.tracked["offset "+body.From].Value {
			t.Errorf("%+v has stored %+v", body, r)
		}
	}
	for _, path := range []string{"/new", "/gone?kind=writer"} {
		if res, text := call(t, handler, "root", "DELETE", trackingPath+path, nil); res.StatusCode != 204 {
			t.Errorf("delete %s: %d %s", path, res.StatusCode, text)
		}
		if res, _ := call(t, handler, "root", "DELETE", trackingPath+path, nil); res.StatusCode != 404 {
			t.Errorf("delete %s again: %d", path, res.StatusCode)
		}
	}
	if len(h.tracked) != 3 {
		t.Errorf("%d references are left, want 3", len(h.tracked))
	}
}

func TestTracking_expire(t *testing.T) {
	h, handler := trackingHouse(t)
	month := (30 * 24 * time.Hour).Milliseconds()
	for _, dry := range []bool{true, false} {
		_, text := call(t, handler, "root", "POST", trackingPath+"/expire", ExpireOffsets{OlderThanMS: month, DryRun: dry})
		if list := decode[[]Reference](t, text); len(list) != 1 || list[0].Reference != "a/b" {
			t.Errorf("dry %v: %s", dry, text)
		}
		if want := map[bool]int{true: 4, false: 3}[dry]; len(h.tracked) != want {
			t.Errorf("dry %v leaves %d references, want %d", dry, len(h.tracked), want)
		}
	}
	if _, text := call(t, handler, "root", "POST", trackingPath+"/expire", ExpireOffsets{OlderThanMS: month}); text != "[]\n" {
		t.Errorf("nothing is left to expire: %s", text)
	}
}

func TestTracking_failures(t *testing.T) {
	h, handler := trackingHouse(t)
	one := uint64(1)
	rows := []struct {
		name, user, method, path string
		body                     any
		status                   int
		code                     string
	}{
		{"set by one who may only look", "watcher", "PUT", "/app", SetOffset{Offset: &one}, 403, "not_allowed"},
		{"delete likewise", "watcher", "DELETE", "/app", nil, 403, "not_allowed"},
		{"copy likewise", "watcher", "POST", "/copy", CopyOffset{From: "app", To: "b"}, 403, "not_allowed"},
		{"expire likewise", "watcher", "POST", "/expire", ExpireOffsets{OlderThanMS: 1}, 403, "not_allowed"},
		{"unknown kind", "root", "GET", "?kind=reader", nil, 400, "bad_argument"},
		{"unknown reference", "root", "GET", "/none", nil, 404, "reference_missing"},
		{"a reader's as a writer's", "root", "GET", "/a%2Fb?kind=writer", nil, 404, "reference_missing"},
		{"neither offset nor place", "root", "PUT", "/app", SetOffset{}, 400, "bad_argument"},
		{"both", "root", "PUT", "/app", SetOffset{Offset: &one, At: "first"}, 400, "bad_argument"},
		{"unknown place", "root", "PUT", "/app", SetOffset{At: "middle"}, 400, "bad_argument"},
		{"a reference that is too long", "root", "PUT", "/" + fmt.Sprintf("%0256d", 0), SetOffset{Offset: &one}, 400, "bad_argument"},
		{"copy of nothing", "root", "POST", "/copy", CopyOffset{From: "none", To: "b"}, 404, "reference_missing"},
		{"copy over something", "root", "POST", "/copy", CopyOffset{From: "app", To: "a/b"}, 409, "reference_exists"},
		{"copy to nobody", "root", "POST", "/copy", CopyOffset{From: "app"}, 400, "bad_argument"},
		{"a writer that is connected", "root", "DELETE", "/app?kind=writer", nil, 409, "reference_in_use"},
		{"expire of all", "root", "POST", "/expire", ExpireOffsets{}, 400, "bad_argument"},
	}
	for _, row := range rows {
		res, body := call(t, handler, row.user, row.method, trackingPath+row.path, row.body)
		if f := decode[Failure](t, body); res.StatusCode != row.status || f.Code != row.code {
			t.Errorf("%s: %d %s, want %d %s", row.name, res.StatusCode, body, row.status, row.code)
		}
	}
	if len(h.tracked) != 4 {
		t.Errorf("refusals have changed something: %v", h.tracked)
	}
	h.figures = Figures{}
	res, body := call(t, handler, "root", "PUT", trackingPath+"/app", SetOffset{At: "next"})
	if f := decode[Failure](t, body); res.StatusCode != 409 || f.Code != "stream_empty" {
		t.Errorf("a place in an empty stream: %d %s", res.StatusCode, body)
	}
	h.notLed = true
	if res, body = call(t, handler, "root", "GET", trackingPath, nil); res.StatusCode != 503 || decode[Failure](t, body).Code != "not_led" {
		t.Errorf("without a leader: %d %s", res.StatusCode, body)
	}
}
