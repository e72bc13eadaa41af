package catalog

import (
	"errors"
	"strings"
	"testing"
)

func TestSetRetention(t *testing.T) {
	w := newWorld(t, "n1")
	n := newStream("s", "n1")
	n.Arguments = Arguments{MaxLengthBytes: Given(1000), MaxAge: "7D", SegmentBytes: Given(70_000)}
	w.ok(&CreateStreams{Streams: []NewStream{n}})
	set := func(bytes *int64, age *string) *SetRetention {
		return &SetRetention{"/", "s", n.Incarnation, RetentionChange{bytes, age}}
	}
	number := func(v int64) *int64 { return &v }
	text := func(v string) *string { return &v }

	for _, row := range []struct {
		name     string
		body     *SetRetention
		want     Arguments
		declared bool // the stream is as it was created
	}{
		{"lower", set(number(10), nil), Arguments{MaxLengthBytes: Given(10), MaxAge: "7D", SegmentBytes: Given(70_000)}, false},
		{"above the creation's", set(number(1<<40), nil), Arguments{MaxLengthBytes: Given(1 << 40), MaxAge: "7D", SegmentBytes: Given(70_000)}, false},
		{"the other limit", set(nil, text("1h")), Arguments{MaxLengthBytes: Given(1 << 40), MaxAge: "1h", SegmentBytes: Given(70_000)}, false},
		{"lift one", set(number(0), nil), Arguments{MaxAge: "1h", SegmentBytes: Given(70_000)}, false},
		{"lift both", set(number(0), text("")), Arguments{SegmentBytes: Given(70_000)}, false},
		{"back again", set(number(1000), text("7D")), n.Arguments, true},
	} {
		w.ok(row.body)
		s := w.get("s")
		if s.Arguments != row.want || (s.Declared == nil) != row.declared {
			t.Errorf("%s: %+v, declared %+v", row.name, s.Arguments, s.Declared)
		}
		if len(w.changes) != 1 || w.changes[0].Kind != StreamChanged || w.changes[0].Stream != s {
			t.Errorf("%s: changes %+v", row.name, w.changes)
		}
		w.ok(row.body)
		if len(w.changes) != 0 {
			t.Errorf("%s: a repetition changed something", row.name)
		}
		// Whoever declares the stream as it was created, or as it is, has it.
		again := n
		again.Incarnation = 7
		w.refused(&CreateStreams{Streams: []NewStream{again}}, ErrStreamExists)
		again.Arguments = row.want
		w.refused(&CreateStreams{Streams: []NewStream{again}}, ErrStreamExists)
		again.Arguments.MaxAge = "9D"
		w.refused(&CreateStreams{Streams: []NewStream{again}}, ErrStreamDiffers)
	}
	w.refused(&SetRetention{"/", "s", 7, RetentionChange{MaxAge: text("1h")}}, ErrStreamMissing)
	w.refused(&SetRetention{"/", "t", n.Incarnation, RetentionChange{MaxAge: text("1h")}}, ErrStreamMissing)
	w.refused(set(number(-1), nil), ErrBadArgument)
	w.refused(set(nil, text("1 h")), ErrBadArgument)
}

func TestParseRetention(t *testing.T) {
	for _, row := range []struct {
		given map[string]string
		says  string // of the error; "" for none
	}{
		{map[string]string{}, ""},
		{map[string]string{keyMaxAge: "7D", keyMaxLengthBytes: "1"}, ""},
		{map[string]string{keyMaxAge: "", keyMaxLengthBytes: ""}, ""},
		{map[string]string{keyMaxAge: "7"}, "max-age"},
		{map[string]string{keyMaxLengthBytes: "0"}, "max-length-bytes"},
		{map[string]string{keyMaxLengthBytes: "1e6"}, "max-length-bytes"},
		{map[string]string{keySegmentBytes: "100000"}, "fixed when a stream is created"},
		{map[string]string{"max-bytes": "1"}, "max-length-bytes and max-age"},
	} {
		_, err := ParseRetention(row.given)
		if row.says == "" && err != nil || row.says != "" && (!errors.Is(err, ErrBadArgument) || !strings.Contains(err.Error(), row.says)) {
			t.Errorf("%v: %v", row.given, err)
		}
	}
	c, err := ParseRetention(map[string]string{keyMaxAge: "", keyMaxLengthBytes: "5"})
	if got := c.In(Arguments{MaxAge: "7D"}); err != nil || got != (Arguments{MaxLengthBytes: Given(5)}) {
		t.Errorf("%+v, %v", got, err)
	}
}
