package segstore

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// twins are two logs with the same user input. Tracked has stored offsets
// besides, and is compacted; plain has neither.
type twins struct {
	t              *testing.T
	random         *rand.Rand
	tracked, plain *tracker
	compactor      *Compactor
	policy         Policy
	stored         map[string]chunk.Offset // the last store of each reference
	rolls          map[RollKind]int
	pieces         uint64
}

func newTwins(t *testing.T, seed uint64) *twins {
	w := &twins{t: t, random: rand.New(rand.NewPCG(seed, 9)), stored: map[string]chunk.Offset{}, rolls: map[RollKind]int{}}
	config := Config{
		SegmentBytes: SegmentBytesMin, ControlBytes: 1 << (8 + w.random.IntN(4)), CheckpointBytes: 1 << 14,
	}
	if w.random.IntN(3) == 0 {
		config.MaxAge = 100 * time.Second
	}
	limits := []int64{0, 1000, SegmentBytesMin, 3 * SegmentBytesMin, 7 * SegmentBytesMin}
	w.policy = Policy{BytesMax: limits[w.random.IntN(len(limits))], AgeMax: config.MaxAge.Milliseconds()}
	for _, k := range []**tracker{&w.tracked, &w.plain} {
		f := newFixture(t, vfs.NewMem(), "data")
		f.config = config
		f.restart()
		f.barrier()
		*k = &tracker{fixture: f}
	}
	w.compactor = w.tracked.store.NewCompactor(CompactorOptions{})
	return w
}

// tick lets time go by on both.
func (w *twins) tick(ms int) {
	w.tracked.now += chunk.Timestamp(ms)
	w.plain.now = w.tracked.now
}

// rolled rolls a log if it should, as its leader does before an append.
func (w *twins) rolled(k *tracker, next Appending) {
	kind := k.log.ShouldRoll(timeOf(k.now), next, 0)
	if kind == RollNone {
		return
	}
	now := k.now
	parts := k.log.Tracking().EncodeSnapshot(tracking.SnapshotOptions{
		Now: now, Epoch: k.epoch, First: k.log.First(), Grace: tracking.GraceDefault, PartBytesMax: 2000,
	}, nil)
	flags := chunk.FlagSegmentStart | chunk.FlagSnapshotFirst
	if kind.StartsUnit() {
		flags |= chunk.FlagUnitStart
	}
	for i, part := range parts {
		if i == len(parts)-1 {
			flags |= chunk.FlagSnapshotLast
		}
		k.now = now - 10 // meta adds it
		k.append(k.control(chunk.Snapshot, flags, part))
		flags = 0
	}
	k.now = now
	if k == w.tracked {
		w.rolls[kind]++
	}
}

func (w *twins) updates() []tracking.Update {
	var u []tracking.Update
	seen := map[string]bool{}
	for range 1 + w.random.IntN(40) {
		ref := fmt.Sprintf("consumer-%d", w.random.IntN(60))
		if seen[ref] {
			continue
		}
		seen[ref] = true
		w.tracked.version++
		o := chunk.Offset(w.random.IntN(1000))
		w.stored[ref] = o
		u = append(u, tracking.Update{Ref: ref, Offset: o, Version: w.tracked.version, Epoch: w.tracked.epoch})
	}
	return u
}

func (w *twins) publish() {
	records, size := 1+w.random.IntN(3), w.random.IntN(8000)
	for _, k := range []*tracker{w.tracked, w.plain} {
		w.rolled(k, AppendingUser)
		var riding []tracking.Update
		if k == w.tracked && w.random.IntN(2) == 0 {
			riding = w.updates()
		}
		now := k.now
		k.now -= 10
		k.append(k.userWith(records, size, riding))
		k.now = now
	}
}

func (w *twins) step() {
	w.tick(10 + w.random.IntN(300))
	switch n := w.random.IntN(20); {
	case n < 6:
		w.publish()
	case n < 14:
		w.rolled(w.tracked, AppendingDelta)
		now := w.tracked.now
		w.tracked.now -= 10
		w.tracked.append(w.tracked.control(chunk.Delta, 0, tracking.EncodeDelta(nil, w.updates())))
		w.tracked.now = now
	case n < 15:
		w.tracked.epoch++
		w.plain.epoch++
		w.tracked.barrier()
		w.plain.barrier()
		w.tick(20)
		w.tracked.version = 0
	case n < 17:
		w.tracked.sync()
		w.plain.sync()
		for wait, now := w.compactor.Step(timeOf(w.tracked.now)), timeOf(w.tracked.now); wait < compactRetry; {
			now = now.Add(wait)
			wait = w.compactor.Step(now)
		}
	case n < 19:
		w.tick(w.random.IntN(20_000))
		w.tracked.sync()
		w.plain.sync()
		for _, k := range []*tracker{w.tracked, w.plain} {
			w.rolled(k, AppendingNothing)
			k.sync()
			_, err := k.log.Retention(w.policy, k.now)
			must(w.t, err)
		}
	default:
		st := w.tracked.log.Compaction()
		w.pieces += st.Drops + st.Merges
		w.tracked.restart()
		w.plain.restart()
		w.compactor = w.tracked.store.NewCompactor(CompactorOptions{})
	}
}

// same checks that the twins hold the same user data, and that what is known of
// the tracked one is what its files say.
func (w *twins) same(seed uint64, step int) {
	w.t.Helper()
	a, b := w.tracked.log, w.plain.log
	fail := func(format string, args ...any) {
		w.t.Helper()
		w.t.Fatalf("seed %d, step %d: %s", seed, step, fmt.Sprintf(format, args...))
	}
	if a.First() != b.First() || a.Next() != b.Next() {
		fail("offsets %d to %d with tracking, %d to %d without (I21)", a.First(), a.Next(), b.First(), b.Next())
	}
	if a.Digest() != b.Digest() || a.LogStart().Digest != b.LogStart().Digest {
		fail("digests %s and %s, at the start %s and %s", a.Digest(), b.Digest(), a.LogStart().Digest, b.LogStart().Digest)
	}
	sa, sb := a.Stats(), b.Stats()
	if sa.Records != sb.Records || sa.UserBytes != sb.UserBytes || sa.Records != uint64(a.Next()-a.First()) {
		fail("%d records, %d bytes with tracking; %d, %d without", sa.Records, sa.UserBytes, sb.Records, sb.UserBytes)
	}
	for ref, want := range w.stored {
		if got, ok := a.Tracking().Offset([]byte(ref)); !ok || got.Offset != want {
			fail("%s is at %d, %v; stored %d", ref, got.Offset, ok, want)
		}
	}
	state := w.tracked.refold()
	if got, want := trackingBytes(w.t, a.Tracking()), trackingBytes(w.t, state); got != want {
		fail("tracking is not the fold of the log (I17):\n%q\n%q", got, want)
	}
}

// refold folds a log from its files alone.
func (f *fixture) refold() *tracking.State {
	f.t.Helper()
	state := tracking.New(f.config.Caps, f.log.LogStart().LSN)
	r := f.log.AttachLSN(f.log.LogStart().LSN)
	defer r.Close()
	for {
		v, ok, err := r.Next(f.log.Tail().LSN)
		f.must(err)
		if !ok {
			return state
		}
		f.must(state.Apply(&v.Header, v.Header.TrailerOf(v.Head)))
		v.Release()
	}
}

// Whatever is published and stored: retention keeps what it keeps without any
// tracking, the fold is the state after every step, manifests are what a fresh
// scan finds, and compaction changes no digest (I17 to I21, I24).
func TestCompact_anyInput(t *testing.T) {
	rolls := map[RollKind]int{}
	var pieces uint64
	for seed := range uint64(25) {
		w := newTwins(t, seed)
		for step := range 200 {
			w.step()
			w.same(seed, step)
			if step%25 == 0 {
				w.tracked.uncached()
				w.tracked.rescan()
				w.plain.rescan()
			}
		}
		w.tracked.uncached()
		w.tracked.rescan()
		w.tracked.wantAll(w.plain.log.First(), w.plain.log.Next())
		for kind, n := range w.rolls {
			rolls[kind] += n
		}
		st := w.tracked.log.Compaction()
		pieces += w.pieces + st.Drops + st.Merges
		must(t, w.tracked.store.Close())
		must(t, w.plain.store.Close())
	}
	t.Logf("rolls %v, %d pieces of compaction", rolls, pieces)
	if rolls[RollSize] < 50 || rolls[RollControl] < 150 || rolls[RollAge] < 20 || pieces < 80 {
		t.Errorf("too little happened: rolls %v, %d pieces of compaction", rolls, pieces)
	}
}
