package chunk

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand"
	"testing"
)

func values(from, n int) [][]byte {
	var out [][]byte
	for i := from; i < from+n; i++ {
		out = append(out, fmt.Appendf(nil, "value-%d", i))
	}
	return out
}

// TestFilter_noFalseNegative: every value that was added matches, at every size
// (PR-26).
func TestFilter_noFalseNegative(t *testing.T) {
	for length := FilterLengthMin; length <= FilterLengthMax; length++ {
		var f Filter
		f.Reset(length)
		vs := values(length*1000, 40)
		for _, v := range vs {
			f.Add(v)
		}
		if len(f.Bytes()) != length {
			t.Fatalf("%d bytes for %d", len(f.Bytes()), length)
		}
		for _, v := range vs {
			m := NewMatcher([][]byte{v}, false)
			if !m.Matches(FilterFNV, f.Bytes()) {
				t.Fatalf("%d bytes: %q is lost", length, v)
			}
		}
	}
}

// TestFilter_falsePositives: the rate is that of a Bloom filter with two
// independent probes, (1 − (1 − 1/m)^2n)^2, within a fifth and a half percent;
// also for values that differ in one bit.
func TestFilter_falsePositives(t *testing.T) {
	kinds := map[string]func(i int) []byte{
		"text":     func(i int) []byte { return fmt.Appendf(nil, "value-%d", i) },
		"counters": func(i int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(i)) },
		"letters":  func(i int) []byte { return []byte{byte(i), byte(i >> 8), byte(i >> 16)} },
	}
	for kind, value := range kinds {
		for _, tt := range []struct{ length, n int }{{16, 1}, {16, 10}, {16, 30}, {64, 20}, {255, 50}, {255, 200}} {
			hits, asked := 0, 0
			for round := range 40 {
				var f Filter
				f.Reset(tt.length)
				for i := range tt.n {
					f.Add(value(round*100_000 + i))
				}
				for i := tt.n; i < tt.n+1000; i++ {
					m := NewMatcher([][]byte{value(round*100_000 + i)}, false)
					asked++
					if m.Matches(FilterFNV, f.Bytes()) {
						hits++
					}
				}
			}
			got := float64(hits) / float64(asked)
			want := math.Pow(1-math.Pow(1-1/float64(8*tt.length-1), float64(2*tt.n)), 2)
			if math.Abs(got-want) > want/5+0.005 {
				t.Errorf("%s, %d values in %d bytes: %.4f, expected %.4f", kind, tt.n, tt.length, got, want)
			}
		}
	}
}

func TestMatcher_table(t *testing.T) {
	only := func(add ...string) []byte {
		var f Filter
		f.Reset(FilterLengthDefault)
		for _, v := range add {
			f.Add([]byte(v))
		}
		return f.Bytes()
	}
	tests := []struct {
		name       string
		ask        [][]byte
		unfiltered bool
		algorithm  uint8
		filter     []byte
		want       bool
	}{
		{"no value asked for", nil, false, FilterFNV, only("eu"), true},
		{"value there", values(1, 2), false, FilterFNV, only("value-2"), true},
		{"value not there", [][]byte{[]byte("us")}, false, FilterFNV, only("eu"), false},
		{"unfiltered entry, not asked for", [][]byte{[]byte("us")}, false, FilterFNV, only("eu", ""), false},
		{"unfiltered entry, asked for", [][]byte{[]byte("us")}, true, FilterFNV, only("eu", ""), true},
		{"no unfiltered entry, asked for", [][]byte{[]byte("us")}, true, FilterFNV, only("eu"), false},
		{"chunk without filter", [][]byte{[]byte("us")}, false, FilterNone, nil, false},
		{"chunk without filter, unfiltered asked for", [][]byte{[]byte("us")}, true, FilterNone, nil, true},
		{"a later version's algorithm", [][]byte{[]byte("us")}, false, 2, only("eu"), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := NewMatcher(tt.ask, tt.unfiltered)
			if got := m.Matches(tt.algorithm, tt.filter); got != tt.want {
				t.Fatalf("matches = %t", got)
			}
		})
	}
}

func TestFilter_onlyUnfilteredIsNoFilter(t *testing.T) {
	var f Filter
	f.Reset(16)
	f.Add(nil)
	if f.Bytes() != nil {
		t.Fatalf("%x", f.Bytes())
	}
}

// TestFilter_golden ties bits and hash to the file.
func TestFilter_golden(t *testing.T) {
	raw := golden(t, "filter-trailer")
	h, _ := Decode(testIncarnation, raw)
	var f Filter
	f.Reset(16)
	f.Add(nil)
	f.Add([]byte("eu"))
	if !bytes.Equal(f.Bytes(), h.FilterOf(raw)) {
		t.Fatalf("%x, the file has %x", f.Bytes(), h.FilterOf(raw))
	}
}

// TestProbes_neverBitZero: bit 0 is not a value's.
func TestProbes_neverBitZero(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for _, h := range []uint64{0, 1, 1 << 32, math.MaxUint32, math.MaxUint64, r.Uint64()} {
		for length := FilterLengthMin; length <= FilterLengthMax; length++ {
			a, b := probes(h, length)
			if a == 0 || b == 0 || a >= uint64(8*length) || b >= uint64(8*length) {
				t.Fatalf("hash %x, %d bytes: bits %d, %d", h, length, a, b)
			}
		}
	}
}
