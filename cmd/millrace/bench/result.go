package bench

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Load says what to do. Zero fields take the value of the comment.
type Load struct {
	Producers int           `json:"producers,omitempty"`
	Consumers int           `json:"consumers,omitempty"`
	Streams   int           `json:"streams"`
	Size      int           `json:"size_bytes"`                // of a message
	Frame     int           `json:"frame_messages"`            // messages in a frame
	Window    int           `json:"window_messages"`           // unconfirmed messages of a producer
	Messages  uint64        `json:"messages,omitempty"`        // in all; 0: until Time is over
	Rate      int           `json:"rate_per_second,omitempty"` // in all; 0: as fast as possible
	Time      time.Duration `json:"-"`
}

// Result is what was measured. Its JSON is a contract with compare scripts.
type Result struct {
	Kind     string            `json:"kind"`
	Broker   map[string]string `json:"broker,omitempty"`
	Load     Load              `json:"load"`
	Started  time.Time         `json:"started"`
	Seconds  float64           `json:"seconds"`
	Messages uint64            `json:"messages"` // confirmed, or consumed
	Refused  uint64            `json:"refused"`
	// OutOfOrder counts records whose offset was not the one due.
	OutOfOrder uint64  `json:"out_of_order"`
	PerSecond  float64 `json:"messages_per_second"`
	MBPerSec   float64 `json:"megabytes_per_second"`
	Confirm    Latency `json:"confirm_latency,omitzero"`
	EndToEnd   Latency `json:"end_to_end_latency,omitzero"`
	// ServerCPU is the broker's CPU time for each message, and ServerRSS the
	// most memory it had, if its process was named.
	ServerCPU float64 `json:"server_cpu_microseconds_per_message,omitempty"`
	ServerRSS uint64  `json:"server_peak_rss_bytes,omitempty"`
}

// Latency is a histogram's summary in milliseconds.
type Latency struct {
	P50 float64 `json:"p50_ms"`
	P99 float64 `json:"p99_ms"`
	P9  float64 `json:"p99_9_ms"`
	Max float64 `json:"max_ms"`
}

// newHistogram holds 1 µs to 100 s with three digits.
func newHistogram() *hdrhistogram.Histogram {
	return hdrhistogram.New(1, 100_000_000, 3)
}

// record adds n values of d, clamped to what the histogram holds.
func record(h *hdrhistogram.Histogram, d time.Duration, n int64) {
	µs := min(max(d.Microseconds(), 1), 100_000_000)
	_ = h.RecordValues(µs, n) // within the bounds it cannot fail
}

func summary(h *hdrhistogram.Histogram) Latency {
	if h.TotalCount() == 0 {
		return Latency{}
	}
	ms := func(µs int64) float64 { return float64(µs) / 1000 }
	return Latency{
		P50: ms(h.ValueAtQuantile(50)), P99: ms(h.ValueAtQuantile(99)), P9: ms(h.ValueAtQuantile(99.9)), Max: ms(h.Max()),
	}
}

// finish computes the rates.
func (r *Result) finish(bytes uint64, elapsed time.Duration) {
	r.Seconds = elapsed.Seconds()
	r.PerSecond = float64(r.Messages) / r.Seconds
	r.MBPerSec = float64(bytes) / r.Seconds / 1e6
}
