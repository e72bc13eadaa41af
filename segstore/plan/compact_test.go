package plan

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

// history builds a log's summaries segment by segment, from what each holds.
type history struct {
	segments []manifest.Summary
	lsn      chunk.LSN
	offset   chunk.Offset
	clock    chunk.Timestamp
}

func newHistory() *history { return &history{lsn: 1} }

// part is one segment's content, in bytes. Deltas and snapshot are whole chunks.
type part struct {
	unit                            bool
	user, trailer, deltas, snapshot int64
	sequences                       int64 // of trailer
	noSnapshot, incomplete          bool
}

// add appends segments; each begins with a complete snapshot unless told
// otherwise, and the log's first is a unit of its own.
func (h *history) add(parts ...part) *history {
	for _, p := range parts {
		h.clock += 1000
		s := manifest.Summary{
			UnitStart: p.unit || h.lsn == 1, FirstLSN: h.lsn, FirstEpoch: 1, LastEpoch: 1,
			BaseOffset: h.offset, UserBytes: p.user, TrailerBytes: p.trailer, DeltaBytes: p.deltas,
			TrailerSequenceBytes: p.sequences,
		}
		if p.user > 0 {
			s.UserChunks, s.Records = 1, 1
			s.FirstTimestamp, s.LastTimestamp = h.clock, h.clock
		}
		if p.deltas > 0 {
			s.DeltaChunks = 1
		}
		if h.lsn > 1 && !p.noSnapshot {
			s.SnapshotChunks, s.SnapshotBytes = 1, max(p.snapshot, 100)
			s.SnapshotFirst = manifest.Place{LSN: h.lsn}
			if !p.incomplete {
				s.SnapshotLast = s.SnapshotFirst
			}
		}
		h.lsn += 10
		h.offset += chunk.Offset(s.Records)
		s.LastLSN, s.NextOffset = h.lsn-1, h.offset
		s.Size = 48*int64(s.UserChunks) + s.UserBytes + s.TrailerBytes + s.DeltaBytes + s.SnapshotBytes
		h.segments = append(h.segments, s)
	}
	return h
}

// input asks for a log whose last segment is active and all of which is safe.
func (h *history) input() *CompactInput {
	return &CompactInput{
		Segments: h.segments, Active: true, Commit: h.lsn - 1, Durable: h.lsn - 1,
		SegmentBytes: 500_000, FreeBytes: 1 << 40,
	}
}

// carryOut makes the decision come true in the summaries.
func (in *CompactInput) carryOut(c Compaction) {
	run := in.Segments[c.From:c.To]
	by := manifest.Replacing(run, run[0].Generation+1)
	for i := range run {
		s := &run[i]
		by.UserChunks += s.UserChunks
		by.Records += s.Records
		by.UserBytes += s.UserBytes
		if by.FirstTimestamp == 0 {
			by.FirstTimestamp = s.FirstTimestamp
		}
		by.LastTimestamp = max(by.LastTimestamp, s.LastTimestamp)
		if s.Chunks() > s.UserChunks || s.TrailerBytes > 0 {
			by.DroppedLSN = s.LastLSN
		}
	}
	by.Size = kept(&by)
	in.Segments = slices.Replace(slices.Clone(in.Segments), c.From, c.To, by)
}

func (c Compaction) String() string {
	if c.Kind == CompactNone {
		return fmt.Sprintf("none until %d", c.Until)
	}
	return fmt.Sprintf("%s %d..%d", c.Kind, c.From, c.To)
}

const kb = 1000

func TestCompact_decisions(t *testing.T) {
	tracking := part{deltas: 1200 * kb, snapshot: 30 * kb}
	user := part{unit: true, user: 490 * kb, trailer: 9 * kb, snapshot: 30 * kb}
	small := part{user: 60 * kb, deltas: 20 * kb}
	for _, c := range []struct {
		name   string
		log    *history
		change func(in *CompactInput)
		want   string
	}{
		{"an empty log", newHistory(), nil, "none until 0"},
		{"only the first segment", newHistory().add(tracking), nil, "none until 0"},
		{"one snapshot is not enough", newHistory().add(tracking, tracking), nil, "none until 0"},
		{"with a second, what is before it goes", newHistory().add(tracking, tracking, tracking), nil, "drop 0..1"},
		{"the spare keeps its deltas", newHistory().add(user, user, tracking, tracking), nil, "none until 0"},
		{"the newest is above the commit", newHistory().add(tracking, tracking, tracking),
			func(in *CompactInput) { in.Commit = 20 }, "none until 21"},
		{"the newest is not durable here", newHistory().add(tracking, tracking, tracking),
			func(in *CompactInput) { in.Durable = 20 }, "none until 21"},
		{"both are above the commit", newHistory().add(tracking, tracking, tracking),
			func(in *CompactInput) { in.Commit = 10 }, "none until 11"},
		{"an incomplete snapshot does not count",
			newHistory().add(tracking, tracking, part{deltas: 1200 * kb, incomplete: true}), nil, "none until 0"},
		{"nor does a segment without one",
			newHistory().add(tracking, tracking, part{deltas: 1200 * kb, noSnapshot: true}), nil, "none until 0"},
		{"a third of a segment is not worth it",
			newHistory().add(part{}, part{user: 400 * kb, deltas: 200 * kb}, user, user), nil, "none until 0"},
		{"half of a segment is", newHistory().add(part{}, part{user: 400 * kb, deltas: 400 * kb}, user, user), nil, "drop 1..2"},
		{"64 MiB are", newHistory().add(part{}, part{user: 1 << 31, deltas: 64 << 20}, part{user: 1 << 31}, user), nil, "drop 1..2"},
		{"most for each kept byte first",
			newHistory().add(part{}, part{user: 100 * kb, deltas: 300 * kb}, part{user: 10 * kb, deltas: 200 * kb}, user, user), nil, "drop 2..3"},
		{"the oldest of equals first", newHistory().add(part{}, tracking, tracking, user, user), nil, "drop 1..2"},
		{"three quarters of the bound press",
			newHistory().add(part{}, part{unit: true, user: 9000 * kb, trailer: 3320 * kb}, part{unit: true, user: 900 * kb}, user),
			nil, "drop 1..2"},
		{"just below they don't",
			newHistory().add(part{}, part{unit: true, user: 9000 * kb, trailer: 3300 * kb}, part{unit: true, user: 900 * kb}, user),
			nil, "none until 0"},
		{"sequences don't press (F7)",
			newHistory().add(part{}, part{unit: true, user: 9000 * kb, trailer: 3320 * kb, sequences: 3200 * kb}, part{unit: true, user: 900 * kb}, user),
			nil, "none until 0"},
		{"no room for what is kept", newHistory().add(part{}, part{user: 400 * kb, deltas: 400 * kb}, user, user),
			func(in *CompactInput) { in.FreeBytes = 800_000 }, "none until 0"},
		{"what keeps less may still go", newHistory().add(part{}, part{user: 400 * kb, deltas: 400 * kb}, tracking, user, user),
			func(in *CompactInput) { in.FreeBytes = 0 }, "drop 2..3"},
		{"a damaged segment is left alone", newHistory().add(part{}, tracking, user, user),
			func(in *CompactInput) { in.Unreadable = []bool{false, true, false, false} }, "none until 0"},
		{"small neighbours lose tracking so that they can be merged",
			newHistory().add(part{}, small, small, small, small, user, user), nil, "drop 1..2"},
		{"three are too few", newHistory().add(part{}, part{unit: true, user: 60 * kb, deltas: 20 * kb}, small, small, user, user), nil, "none until 0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := c.log.input()
			if c.change != nil {
				c.change(in)
			}
			if got := Compact(in); got.String() != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

func TestCompact_merges(t *testing.T) {
	bare := func(user int64) part { return part{user: user, noSnapshot: true} }
	tail := []part{{user: 10 * kb}, {user: 10 * kb}}
	for _, c := range []struct {
		name  string
		parts []part
		want  string
	}{
		{"a run of four", []part{bare(10), bare(10), bare(10), bare(10)}, "merge 0..4"},
		{"three wait for a fourth", []part{bare(10), bare(10), bare(10)}, "none until 0"},
		{"two that make a full one", []part{bare(200 * kb), bare(200 * kb)}, "merge 0..2"},
		{"more than a full one together", []part{bare(300 * kb), bare(300 * kb)}, "none until 0"},
		{"footers alone", []part{bare(0), bare(0), bare(0), bare(0), bare(0)}, "merge 0..5"},
		{"a big one is not rewritten for small ones", []part{bare(400 * kb), bare(10), bare(10), bare(10)}, "none until 0"},
		{"but the small ones behind it are merged", []part{bare(400 * kb), bare(10), bare(10), bare(10), bare(10)}, "merge 1..5"},
		{"and those in front of it", []part{bare(10), bare(10), bare(10), bare(10), bare(400 * kb)}, "merge 0..4"},
		{"never across a unit start", []part{bare(10), bare(10), {unit: true, user: 10, noSnapshot: true}, bare(10), bare(10)}, "none until 0"},
		{"from a unit start on", []part{bare(10), {unit: true, user: 10, noSnapshot: true}, bare(10), bare(10), bare(10)}, "merge 1..5"},
		{"tracking is dropped first", []part{bare(10), bare(10), {user: 10, trailer: 1, noSnapshot: true}, bare(10)}, "drop 2..3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := newHistory().add(append(slices.Clone(c.parts), tail...)...).input()
			if got := Compact(in); got.String() != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
}

// Whatever the log, a decision keeps to E2 and 3.5; carrying decisions out ends,
// and leaves nothing that presses. Retention decides as it would without.
func TestCompact_anyLog(t *testing.T) {
	steps := map[CompactKind]int{}
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 4))
		in := randomInput(r)
		plain := RetainInput{
			Segments: in.Segments, Commit: in.Commit, Durable: in.Durable,
			Policy: Policy{BytesMax: 1 + r.Int64N(3_000_000)},
		}
		wantStart := retained(&plain)
		work := 0
		for c := Compact(in); c.Kind != CompactNone; c = Compact(in) {
			steps[c.Kind]++
			if broken := breach(in, c); broken != "" {
				t.Fatalf("seed %d: %s: %s", seed, c, broken)
			}
			in.carryOut(c)
			if work++; work > 1000 {
				t.Fatalf("seed %d: no end: %s", seed, c)
			}
		}
		if in.FreeBytes > 1<<39 && len(in.Unreadable) == 0 {
			n, _ := compactable(in)
			left := Droppable(in)
			if pressing(TrackingBytes(in.Segments), aim(in.Segments)) && trackingOf(in.Segments[:n]) > 0 {
				t.Fatalf("seed %d: %d bytes of tracking press, and %d could go", seed, TrackingBytes(in.Segments), left)
			}
		}
		after := plain
		after.Segments = in.Segments
		if got := retained(&after); got != wantStart {
			t.Fatalf("seed %d: retention starts at offset %d after compaction, at %d without", seed, got, wantStart)
		}
	}
	if steps[CompactDrop] < 1000 || steps[CompactMerge] < 500 {
		t.Errorf("only %d drops, %d merges were tried", steps[CompactDrop], steps[CompactMerge])
	}
}

// retained returns the first offset that retention keeps.
func retained(in *RetainInput) chunk.Offset { return in.Segments[Retain(in)].BaseOffset }

func trackingOf(segments []manifest.Summary) int64 { return TrackingBytes(segments) }

func randomInput(r *rand.Rand) *CompactInput {
	h := newHistory()
	some := func(most int64) int64 {
		if r.IntN(3) == 0 {
			return 0
		}
		return r.Int64N(most)
	}
	sizes := [][]int64{{1000, 50_000, 500_000}, {1000}}[r.IntN(2)]
	for range 3 + r.IntN(20) {
		h.add(part{
			unit: r.IntN(6) == 0, user: some(sizes[r.IntN(len(sizes))]), trailer: some(5000),
			deltas: some(1_500_000), snapshot: some([]int64{1000, 2_000_000}[r.IntN(2)]),
			noSnapshot: r.IntN(8) == 0, incomplete: r.IntN(8) == 0,
		})
	}
	for i := range h.segments {
		if s := &h.segments[i]; s.UserBytes == 0 {
			s.TrailerBytes, s.Size = 0, s.DeltaBytes+s.SnapshotBytes
		}
	}
	in := h.input()
	in.Active = r.IntN(5) > 0
	in.Commit -= chunk.LSN(r.IntN(40))
	in.Durable -= chunk.LSN(r.IntN(40))
	if r.IntN(4) == 0 {
		in.FreeBytes = uint64(r.Int64N(1_000_000))
	}
	if r.IntN(4) == 0 {
		in.Unreadable = make([]bool, len(in.Segments))
		in.Unreadable[r.IntN(len(in.Segments))] = true
	}
	return in
}

// breach names the rule that a decision breaks, if any.
func breach(in *CompactInput, c Compaction) string {
	var broken []string
	rule := func(ok bool, what string) {
		if !ok {
			broken = append(broken, what)
		}
	}
	snapshots := 0
	for i := c.To; i < len(in.Segments); i++ {
		if last := in.Segments[i].SnapshotLast.LSN; last != 0 && last <= in.Commit && last <= in.Durable {
			snapshots++
		}
	}
	rule(snapshots >= 2, "fewer than two committed and durable snapshots lie behind")
	rule(c.From < c.To && c.To <= len(in.Segments), "bounds")
	last := in.Segments[c.To-1].LastLSN
	rule(last <= in.Commit && last <= in.Durable, "above the commit or the durable tail")
	rule(!in.Active || c.To < len(in.Segments), "the active segment")
	rule(uint64(2*c.KeptBytes) <= in.FreeBytes, "headroom")
	var user int64
	for i := c.From; i < c.To; i++ {
		s := &in.Segments[i]
		user += s.UserBytes
		rule(i == c.From || !s.UnitStart, "crosses a unit start")
		rule(len(in.Unreadable) == 0 || !in.Unreadable[i], "a damaged segment")
		if c.Kind == CompactMerge {
			rule(s.TrailerBytes == 0 && s.DeltaChunks == 0 && s.SnapshotChunks == 0, "merges a segment with tracking")
		}
	}
	switch c.Kind {
	case CompactDrop:
		rule(c.To == c.From+1 && c.DroppedBytes > 0, "drops nothing, or of several")
	case CompactMerge:
		rule(c.To > c.From+1 && user <= in.SegmentBytes, "merges one, or more than a full segment")
	}
	return strings.Join(broken, ", ")
}

func TestHeldTracking(t *testing.T) {
	const kb, floor = 1000, 4 << 20
	old := part{user: 1 << 30, deltas: 900 * kb, snapshot: 800 * kb}
	for _, c := range []struct {
		name           string
		history        *history
		next           int64
		tracking, most int64
	}{
		{"a first segment, without a snapshot", newHistory().add(part{deltas: 500 * kb, trailer: 20 * kb}), 100 * kb, 520 * kb, floor},
		{"from the second newest snapshot on",
			newHistory().add(old, old, part{trailer: 10 * kb, snapshot: 30 * kb}, part{deltas: 5 * kb, snapshot: 40 * kb}),
			50 * kb, 85 * kb, 9*40*kb + floor},
		{"their own user bytes alone",
			newHistory().add(old, old, part{user: 1 << 30, snapshot: 30 * kb}, part{user: 1 << 29, snapshot: 40 * kb}),
			50 * kb, 70 * kb, (1<<30 + 1<<29) / 20},
		{"an incomplete snapshot is none",
			newHistory().add(part{}, part{snapshot: 30 * kb}, part{snapshot: 40 * kb}, part{snapshot: 50 * kb, incomplete: true}),
			60 * kb, 120 * kb, 9*40*kb + floor},
		{"references that went with the next one",
			newHistory().add(old, old, old), 10 * kb, 3400 * kb, (2 << 30) / 20},
		{"and without user data",
			newHistory().add(part{}, part{snapshot: 800 * kb}, part{snapshot: 800 * kb}), 10 * kb, 1600 * kb, 9*10*kb + floor},
	} {
		t.Run(c.name, func(t *testing.T) {
			last := len(c.history.segments) - 1
			got, most := HeldTracking(c.history.segments[:last], &c.history.segments[last], c.next)
			if got != c.tracking || most != c.most {
				t.Errorf("%d of %d, want %d of %d", got, most, c.tracking, c.most)
			}
		})
	}
}

// TestCompact_spare: what is not worth it now is so after just as many bytes more.
func TestCompact_spare(t *testing.T) {
	heavy := part{user: 9_000_000, trailer: 2_000_000}
	grown := func(more int64) Compaction {
		return Compact(newHistory().add(part{}, heavy, part{user: 600_000}, part{user: 600_000, deltas: 1 + more}).input())
	}
	c := grown(0)
	if c.Kind != CompactNone || c.Spare <= 0 {
		t.Fatalf("%s, %d to spare", c, c.Spare)
	}
	if again := grown(c.Spare - 1); again.Kind != CompactNone {
		t.Errorf("a byte before that: %s", again)
	}
	if again := grown(c.Spare); again.Kind != CompactDrop {
		t.Errorf("then: %s", again)
	}
	if c := Compact(newHistory().add(part{user: 1000}, part{user: 1000}, part{user: 1000, deltas: 1000}).input()); c.Spare != 0 {
		t.Errorf("%d to spare where nothing can be dropped", c.Spare)
	}
}
