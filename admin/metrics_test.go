package admin

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

var rewrite = flag.Bool("rewrite", false, "write the golden files anew; read the diff")

// parse reads the text format with Prometheus' own parser.
func parse(t *testing.T, text string) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(strings.NewReader(text))
	if err != nil {
		t.Fatalf("the official parser refuses it: %v\n%s", err, text)
	}
	return families
}

func TestMetrics_node(t *testing.T) {
	h := withConnections(t)
	h.traffic = Traffic{Published: 7, Confirmed: 6, Refused: 1, Delivered: 3, DeliveredBytes: 300, Refusals: map[uint16]uint64{17: 2}}
	_, body := call(t, h.server().Handler(), "", "GET", "/metrics", nil)
	families := parse(t, body)
	rows := []struct {
		name  string
		value float64
	}{
		{"millrace_build_info", 1}, {"millrace_ready", 1}, {"millrace_streams", 0}, {"millrace_connections", 2},
		{"millrace_published_messages_total", 7}, {"millrace_confirmed_messages_total", 6},
		{"millrace_refused_messages_total", 1}, {"millrace_delivered_messages_total", 3},
		{"millrace_delivered_bytes_total", 300}, {"millrace_protocol_errors_total", 2}, {"millrace_disk_free_bytes", 42},
		{"millrace_disk_total_bytes", 1000}, {"millrace_disk_alarm_below_bytes", 50}, {"millrace_disk_low", 1}, {"millrace_disk_alarm", 1},
	}
	for _, row := range rows {
		family := families[row.name]
		if family == nil {
			t.Errorf("%s is missing", row.name)
			continue
		}
		m := family.Metric[0]
		if got := m.GetGauge().GetValue() + m.GetCounter().GetValue(); got != row.value {
			t.Errorf("%s is %v, want %v", row.name, got, row.value)
		}
	}
	if families["go_goroutines"] == nil || families["process_open_fds"] == nil {
		t.Error("the runtime's and the process's own metrics are missing")
	}
}

// TestMetrics_streams ties the hand-written page to a golden file and to the
// official parser, names that need escaping included.
func TestMetrics_streams(t *testing.T) {
	h := newHouse(t)
	h.figures = Figures{
		FirstOffset: 5, NextOffset: 25, Messages: 20, Segments: 2, StoredOffsets: 3, Sequences: 4,
		Bytes:            Bytes{User: 1000, Trailer: 10, Delta: 20, Snapshot: 30, Filter: 40, Index: 48, Disk: 2000},
		StoredOffsetsMax: 10, StoredOffsetsEvicted: 11, StoredOffsetsPending: 12, SequencesMax: 13, SequencesEvicted: 14,
		TrackingBytes: 50, SequenceBytes: 10, TrackingBound: 4096, WindowMS: 5250,
		Compaction: Compaction{Droppable: 1, Dropped: 2, Rewritten: 3, Drops: 4, Merges: 5, Failures: 6},
		Leads:      true, PublishersStopped: true, Followers: []Follower{{Node: "n2", Linked: true, Behind: 7}, {Node: `n"3`}},
	}
	handler := h.server().Handler()
	names := []string{"orders", `quo"te\slash`, "ümlaut"}
	for _, name := range names {
		call(t, handler, "root", "POST", "/api/v1/streams", CreateStream{Name: name})
	}
	_, body := call(t, handler, "", "GET", "/metrics/streams", nil)

	if *rewrite {
		if err := os.WriteFile("testdata/streams.metrics", []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	golden, err := os.ReadFile("testdata/streams.metrics")
	if err != nil {
		t.Fatal(err)
	}
	if body != string(golden) {
		t.Errorf("differs from testdata/streams.metrics:\n%s", body)
	}
	seen := map[string]bool{}
	for _, family := range parse(t, body) {
		if family.GetHelp() == "" || family.Type == nil {
			t.Errorf("%s has no help or type", family.GetName())
		}
		for _, m := range family.Metric {
			for _, label := range m.Label {
				if label.GetName() == "stream" {
					seen[label.GetValue()] = true
				}
			}
		}
	}
	for _, name := range names {
		if !seen[name] {
			t.Errorf("stream %q did not survive the escaping", name)
		}
	}
}

// TestMetrics_logs: the node's page sums up what its streams take.
func TestMetrics_logs(t *testing.T) {
	h := newHouse(t)
	handler := h.server().Handler()
	h.figures = Figures{
		Bytes:         Bytes{User: 1000, Trailer: 10, Delta: 20, Snapshot: 30, Filter: 40, Index: 48},
		TrackingBytes: 50, SequenceBytes: 10, TrackingBound: 200, WindowMS: 5250, Compaction: Compaction{Droppable: 7},
	}
	for _, name := range []string{"a", "b"} {
		call(t, handler, "root", "POST", "/api/v1/streams", CreateStream{Name: name})
	}
	_, body := call(t, handler, "", "GET", "/metrics", nil)
	families := parse(t, body)
	got := map[string]float64{}
	for _, name := range []string{"log_bytes", "tracking_bound_ratio_max", "tracking_window_seconds_max", "compaction_droppable_bytes"} {
		for _, m := range families["millrace_"+name].GetMetric() {
			for _, label := range m.Label {
				name = "log_bytes " + label.GetValue()
			}
			got[name] = m.GetGauge().GetValue()
		}
	}
	want := map[string]float64{
		"log_bytes user": 2000, "log_bytes offset": 100, "log_bytes sequence": 20, "log_bytes filter": 80, "log_bytes index": 96,
		"tracking_bound_ratio_max": 0.25, "tracking_window_seconds_max": 5.25, "compaction_droppable_bytes": 14,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func BenchmarkStreamMetrics(b *testing.B) {
	list := make([]streamFigures, 10_000)
	for i := range list {
		list[i].labels = fmt.Appendf(nil, `vhost="/",stream="stream-%d"`, i)
	}
	buffer := make([]byte, 0, 16<<20)
	b.ReportAllocs()
	for b.Loop() {
		buffer = appendStreamMetrics(buffer[:0], list)
	}
}
