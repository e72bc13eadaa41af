package plan

import (
	"math/rand/v2"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

func TestUnits(t *testing.T) {
	four := logOf(
		seg{100, 1000, true, false}, seg{100, 2000, true, true}, seg{100, 3000, true, true}, seg{50, 4000, true, true})
	bare := logOf(seg{100, 1000, true, false}, seg{100, 2000, true, false})
	type unit struct {
		verdict Verdict
		hold    Hold
	}
	for _, c := range []struct {
		name string
		in   RetainInput
		want []unit
	}{
		{"no limit", RetainInput{Segments: four}, []unit{{}, {}, {}, {}}},
		{"size", RetainInput{Segments: four, Policy: Policy{BytesMax: 150}, Commit: 100, Durable: 100},
			[]unit{{TooMuch, 0}, {TooMuch, 0}, {}, {}}},
		{"size, the newest alone is too big", RetainInput{Segments: four, Policy: Policy{BytesMax: 10}, Commit: 100, Durable: 100},
			[]unit{{TooMuch, 0}, {TooMuch, 0}, {TooMuch, 0}, {Newest, 0}}},
		{"age", RetainInput{Segments: four, Policy: Policy{AgeMax: 1000}, Now: 3500, Commit: 100, Durable: 100},
			[]unit{{TooOld, 0}, {TooOld, 0}, {}, {}}},
		{"the snapshot is not committed", RetainInput{Segments: four, Policy: Policy{BytesMax: 150}, Commit: 21, Durable: 100},
			[]unit{{TooMuch, 0}, {TooMuch, HoldSnapshotUncommitted}, {}, {}}},
		{"the snapshot is not synced", RetainInput{Segments: four, Policy: Policy{BytesMax: 150}, Commit: 100, Durable: 21},
			[]unit{{TooMuch, 0}, {TooMuch, HoldSnapshotUnsynced}, {}, {}}},
		{"nothing is committed", RetainInput{Segments: four, Policy: Policy{BytesMax: 150}, Durable: 100},
			[]unit{{TooMuch, HoldUncommitted}, {TooMuch, HoldUncommitted}, {}, {}}},
		{"no snapshot", RetainInput{Segments: bare, Policy: Policy{BytesMax: 100}, Commit: 100, Durable: 100},
			[]unit{{TooMuch, HoldNoSnapshot}, {}}},
		{"empty log", RetainInput{}, nil},
	} {
		got := Units(&c.in)
		if len(got) != len(c.want) {
			t.Fatalf("%s: %d units", c.name, len(got))
		}
		for i := range got {
			if (unit{got[i].Verdict, got[i].Hold}) != c.want[i] {
				t.Errorf("%s: unit %d: %s, held %q; want %s, %q", c.name, i, got[i].Verdict, got[i].Hold, c.want[i].verdict, c.want[i].hold)
			}
		}
	}
}

// What is said to go is what goes, and the figures are those of the segments.
func TestUnits_agreeWithRetain(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 20_000 {
		var segs []seg
		now := chunk.Timestamp(0)
		for i := range 1 + r.IntN(8) {
			now += chunk.Timestamp(r.IntN(100))
			segs = append(segs, seg{int64(r.IntN(4) * 50), now, i == 0 || r.IntN(2) == 0, r.IntN(3) > 0})
		}
		in := RetainInput{
			Segments: logOf(segs...), Policy: Policy{BytesMax: int64(r.IntN(500)), AgeMax: int64(r.IntN(200))}, Now: now,
			Commit: chunk.LSN(r.IntN(100)), Durable: chunk.LSN(r.IntN(100)),
		}
		segments, bytes := 0, int64(0)
		stays := false
		for _, u := range Units(&in) {
			if u.From != segments && !stays {
				t.Fatalf("%v: a hole before segment %d", segs, u.From)
			}
			if !u.Goes() {
				stays = true
			} else if stays {
				t.Fatalf("%v: a unit goes behind one that stays", segs)
			} else {
				segments = u.To
			}
			bytes += u.UserBytes
		}
		if n := Retain(&in); n != segments {
			t.Fatalf("%v %+v: %d segments go, %d are said to", segs, in.Policy, n, segments)
		}
		for i := range in.Segments {
			bytes -= in.Segments[i].UserBytes
		}
		if bytes != 0 {
			t.Fatalf("%v: units differ from the segments by %d bytes", segs, bytes)
		}
	}
}
