package segstore

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// roller is a leader that rolls as its log says.
type roller struct {
	*tracker
	refs  int
	rolls map[RollKind]int
	// user and control are what was written outside of head snapshots.
	user, control int64
}

// roll writes a head snapshot before an append if the log should have one.
func (r *roller) roll(next Appending) {
	r.t.Helper()
	kind := r.log.ShouldRoll(timeOf(r.now), next, 0)
	if kind == RollNone {
		return
	}
	r.rolls[kind]++
	flags := chunk.FlagSegmentStart | chunk.FlagSnapshotFirst
	if kind.StartsUnit() {
		flags |= chunk.FlagUnitStart
	}
	parts := r.log.Tracking().EncodeSnapshot(tracking.SnapshotOptions{Now: r.now, Epoch: r.epoch}, nil)
	for i, part := range parts {
		if i == len(parts)-1 {
			flags |= chunk.FlagSnapshotLast
		}
		r.append(r.snapshotPart(flags, part))
		flags = 0
	}
	if again := r.log.ShouldRoll(timeOf(r.now), next, 0); again != RollNone {
		r.t.Fatalf("right behind a %s roll: %s", kind, again)
	}
}

func (r *roller) snapshotPart(flags chunk.Flags, payload []byte) *Chunk {
	r.now -= 10 // meta adds it: time stands still while a log rolls
	return r.fixture.control(chunk.Snapshot, flags, payload)
}

func (r *roller) delta() {
	r.t.Helper()
	r.roll(AppendingDelta)
	var u []tracking.Update
	for i := range r.refs {
		r.version++
		u = append(u, tracking.Update{Ref: fmt.Sprintf("consumer-%05d", i), Offset: chunk.Offset(r.version), Version: r.version, Epoch: r.epoch})
	}
	c := r.fixture.control(chunk.Delta, 0, tracking.EncodeDelta(nil, u))
	r.control += int64(c.Header.Length())
	r.append(c)
}

func (r *roller) publishOne() {
	r.t.Helper()
	r.roll(AppendingUser)
	c := r.fixture.user(2, 4000)
	r.user += c.Header.UserBytes()
	r.append(c)
}

// Whatever the ratio of a snapshot to a segment, a log rolls no more often than
// what is written beside snapshots allows: the ancestor, whose snapshots count,
// rolls for ever once one exceeds a segment.
func TestRoll_noEndlessRoll(t *testing.T) {
	for _, refs := range []int{0, 10, 1000, 4000} { // snapshots of 10 B to 120 KB
		for _, deltas := range []int{0, 1, 5} { // for each user chunk
			r := &roller{tracker: newTracker(t), refs: refs, rolls: map[RollKind]int{}}
			r.log.Configure(Config{SegmentBytes: SegmentBytesMin, ControlBytes: 8 << 10})
			if refs > 0 {
				r.delta()
			}
			for range 60 {
				r.publishOne()
				for range deltas {
					r.delta()
				}
			}
			c := r.log.Config()
			if most := r.user/c.SegmentBytes + 1; int64(r.rolls[RollSize]) > most {
				t.Errorf("%d references, %d deltas: %d size rolls for %d bytes", refs, deltas, r.rolls[RollSize], r.user)
			}
			// Snapshots cost no more than what they let compaction drop, and one for
			// each segment of user data.
			var snapshots, largest int64
			for _, s := range r.log.Segments() {
				snapshots += s.SnapshotBytes
				largest = max(largest, s.SnapshotBytes)
			}
			if most := r.control/max(c.ControlBytes, largest*9/10) + 2; int64(r.rolls[RollControl]) > most {
				t.Errorf("%d references, %d deltas: %d control rolls for %d bytes, snapshots of %d", refs, deltas, r.rolls[RollControl], r.control, largest)
			}
			if most := 2*r.control + largest*int64(r.rolls[RollSize]+2); snapshots > most {
				t.Errorf("%d references, %d deltas: %d bytes of snapshots for %d of deltas", refs, deltas, snapshots, r.control)
			}
			if deltas > 0 && refs > 0 && r.rolls[RollControl] == 0 && r.control > 3*(c.ControlBytes+largest) {
				t.Errorf("%d references, %d deltas: no control roll for %d bytes", refs, deltas, r.control)
			}
		}
	}
}

// Each segment but the first starts with a complete snapshot, each unit but the
// first at a size or age roll (design 3.3).
func TestRoll_headsAndUnits(t *testing.T) {
	r := &roller{tracker: newTracker(t), refs: 20, rolls: map[RollKind]int{}}
	r.log.Configure(Config{SegmentBytes: SegmentBytesMin, ControlBytes: 2000})
	for range 60 {
		r.publishOne()
		r.delta()
	}
	r.sync()
	units, infos := 0, r.log.Segments()
	for i, s := range infos {
		if s.UnitStart {
			units++
		}
		if i > 0 && (s.SnapshotFirst.LSN != s.FirstLSN || s.SnapshotLast.LSN == 0) {
			t.Errorf("segment %s starts without a complete snapshot: %+v", s.Name(), s.SnapshotFirst)
		}
	}
	if !infos[0].UnitStart || units != 1+r.rolls[RollSize] || len(infos) != 1+r.rolls[RollSize]+r.rolls[RollControl] {
		t.Errorf("%d segments, %d units, rolls %v", len(infos), units, r.rolls)
	}
	if r.rolls[RollSize] < 3 || r.rolls[RollControl] < 3 {
		t.Errorf("rolls %v", r.rolls)
	}
}
