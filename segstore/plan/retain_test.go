package plan

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

// seg is one segment of a test's log: its user bytes, the time of its last user
// chunk, whether it starts a unit, and whether its head snapshot is complete.
type seg struct {
	bytes    int64
	last     chunk.Timestamp
	unit     bool
	snapshot bool
}

// logOf makes summaries of ten LSNs each: 1–10, 11–20, …
func logOf(segs ...seg) []manifest.Summary {
	var out []manifest.Summary
	for i, s := range segs {
		sum := manifest.Summary{
			FirstLSN: chunk.LSN(10*i + 1), LastLSN: chunk.LSN(10*i + 10), UnitStart: s.unit,
			UserBytes: s.bytes, LastTimestamp: s.last,
		}
		if s.bytes > 0 {
			sum.UserChunks = 1
		}
		if s.snapshot {
			sum.SnapshotLast = manifest.Place{LSN: sum.FirstLSN + 1}
		}
		out = append(out, sum)
	}
	return out
}

func TestRetain(t *testing.T) {
	four := logOf(
		seg{100, 1000, true, false}, seg{100, 2000, true, true}, seg{100, 3000, true, true}, seg{50, 4000, true, true})
	runs := logOf( // two units of two segments, then the newest
		seg{100, 1000, true, false}, seg{20, 1500, false, true},
		seg{100, 2000, true, true}, seg{0, 0, false, true},
		seg{50, 4000, true, true})
	for _, c := range []struct {
		name string
		in   RetainInput
		want int
	}{
		{"no limit", RetainInput{Segments: four}, 0},
		{"everything fits", RetainInput{Segments: four, Policy: Policy{BytesMax: 350}}, 0},
		{"one byte too many", RetainInput{Segments: four, Policy: Policy{BytesMax: 349}}, 1},
		{"the newest stays whatever its size", RetainInput{Segments: four, Policy: Policy{BytesMax: 1}}, 3},
		{"a newest unit without user data", RetainInput{Segments: append(four[:4:4], logOf(seg{}, seg{}, seg{}, seg{}, seg{0, 0, true, true})[4]), Policy: Policy{BytesMax: 1}}, 3},
		{"a newest unit without user data behind old ones", RetainInput{Segments: append(four[:4:4], logOf(seg{}, seg{}, seg{}, seg{}, seg{0, 0, true, true})[4]), Policy: Policy{AgeMax: 1}, Now: 1 << 50}, 4},
		{"age", RetainInput{Segments: four, Policy: Policy{AgeMax: 1000}, Now: 3500}, 2},
		{"age: exactly the limit stays", RetainInput{Segments: four, Policy: Policy{AgeMax: 1000}, Now: 3000}, 1},
		{"age: the newest stays", RetainInput{Segments: four, Policy: Policy{AgeMax: 1}, Now: 1 << 50}, 3},
		{"age: a clock that went back", RetainInput{Segments: four, Policy: Policy{AgeMax: 1}, Now: 0}, 0},
		{"both limits, size stricter", RetainInput{Segments: four, Policy: Policy{BytesMax: 60, AgeMax: 1000}, Now: 3500}, 3},
		{"units go as wholes", RetainInput{Segments: runs, Policy: Policy{BytesMax: 200}}, 2},
		{"a unit's age is that of its last user chunk", RetainInput{Segments: runs, Policy: Policy{AgeMax: 500}, Now: 2400}, 2},
		{"one segment", RetainInput{Segments: four[3:], Policy: Policy{BytesMax: 1}}, 0},
		{"an empty log", RetainInput{Policy: Policy{BytesMax: 1}}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			c.in.Commit, c.in.Durable = 1000, 1000
			if got := Retain(&c.in); got != c.want {
				t.Errorf("gives up %d segments, want %d", got, c.want)
			}
		})
	}
}

// The log start moves only where a complete snapshot behind it is committed and
// durable, and never over what is not committed (E3, I23).
func TestRetain_onlyAsFarAsItIsSafe(t *testing.T) {
	segs := []seg{{100, 1, true, false}, {100, 2, true, true}, {100, 3, true, true}, {50, 4, true, true}}
	for _, c := range []struct {
		name            string
		commit, durable chunk.LSN
		drop            int // its snapshot is not complete
		want            int
	}{
		{"all committed", 40, 40, -1, 3},
		{"the newest's snapshot is not committed", 31, 40, -1, 2},
		{"the newest's snapshot is not durable", 40, 31, -1, 2},
		{"the second's last chunk is not committed", 19, 40, -1, 1},
		{"nothing is committed", 0, 40, -1, 0},
		{"the newest has no complete snapshot", 40, 40, 3, 2},
		{"a later snapshot serves an earlier start", 40, 40, 2, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			own := append([]seg(nil), segs...)
			if c.drop >= 0 {
				own[c.drop].snapshot = false
			}
			in := RetainInput{Segments: logOf(own...), Policy: Policy{BytesMax: 1}, Commit: c.commit, Durable: c.durable}
			if got := Retain(&in); got != c.want {
				t.Errorf("gives up %d segments, want %d", got, c.want)
			}
		})
	}
}

// Whatever the log: what stays is a run of newest units, it fits unless it is
// one unit or E3 holds it, and tracking bytes change nothing (I21).
func TestRetain_properties(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20_000 {
		var segs []seg
		now := chunk.Timestamp(0)
		for i := range 1 + r.IntN(8) {
			now += chunk.Timestamp(r.IntN(100))
			segs = append(segs, seg{int64(r.IntN(4) * 50), now, i == 0 || r.IntN(2) == 0, true})
		}
		in := RetainInput{Segments: logOf(segs...), Policy: Policy{BytesMax: int64(r.IntN(500)), AgeMax: int64(r.IntN(200))}, Now: now, Commit: 1000, Durable: 1000}
		n := Retain(&in)
		if n < 0 || n >= len(segs) || n > 0 && !segs[n].unit {
			t.Fatalf("%v: gives up %d", segs, n)
		}
		var kept int64
		units, counted := 0, false // those with user data
		for _, s := range segs[n:] {
			kept += s.bytes
			counted = counted && !s.unit
			if s.bytes > 0 && !counted {
				units++
				counted = true
			}
		}
		if in.Policy.BytesMax > 0 && kept > in.Policy.BytesMax && units > 1 {
			t.Fatalf("%v, limit %d: keeps %d bytes in %d units", segs, in.Policy.BytesMax, kept, units)
		}
		tracked := in
		tracked.Segments = logOf(segs...)
		for i := range tracked.Segments {
			tracked.Segments[i].DeltaBytes, tracked.Segments[i].TrailerBytes = 1<<30, 1<<30
			tracked.Segments[i].SnapshotBytes, tracked.Segments[i].Size = 1<<30, 1<<32
		}
		if m := Retain(&tracked); m != n {
			t.Fatalf("%v: tracking changes what goes from %d to %d", segs, n, m)
		}
		if again := (RetainInput{Segments: in.Segments[n:], Policy: in.Policy, Now: in.Now, Commit: 1000, Durable: 1000}); Retain(&again) != 0 {
			t.Fatalf("%v: a second run takes more", segs)
		}
	}
}

func ExampleRetain() {
	in := RetainInput{
		Segments: logOf(seg{100, 1, true, false}, seg{100, 2, true, true}, seg{100, 3, true, true}),
		Policy:   Policy{BytesMax: 200}, Commit: 30, Durable: 30,
	}
	fmt.Println(Retain(&in))
	// Output: 1
}
