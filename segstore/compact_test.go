package segstore

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/tracking"
)

// tracker is a fixture whose consumers store offsets.
type tracker struct {
	*fixture
	version uint64
}

func newTracker(t testing.TB) *tracker { return &tracker{fixture: memFixture(t)} }

// updates returns a store of each of so many references.
func (k *tracker) updates(refs int) []tracking.Update {
	var u []tracking.Update
	for i := range refs {
		k.version++
		u = append(u, tracking.Update{
			Ref: fmt.Sprintf("consumer-%03d", i), Offset: chunk.Offset(k.version), Version: k.version, Epoch: k.epoch,
		})
	}
	return u
}

// deltas appends so many delta chunks.
func (k *tracker) deltas(n int) {
	k.t.Helper()
	for range n {
		k.append(k.control(chunk.Delta, 0, tracking.EncodeDelta(nil, k.updates(20))))
	}
}

// ride appends user chunks whose trailers carry stored offsets.
func (k *tracker) ride(chunks, size int) {
	k.t.Helper()
	for range chunks {
		k.append(k.userWith(2, size, k.updates(3)))
	}
}

// mixed makes a log of a first segment, three of user data and tracking, one of
// tracking alone, and two more behind them whose snapshots supersede it all.
func (k *tracker) mixed() {
	k.t.Helper()
	for i := range 3 {
		k.ride(3, 40)
		k.deltas(30)
		k.ride(2, 40)
		if i == 1 {
			k.elect()
		}
		k.roll(i == 1)
	}
	k.deltas(30)
	k.roll(false)
	k.ride(2, 40)
	k.roll(true)
	k.ride(2, 40)
	k.sync()
}

// compactAll carries out everything that is worth it and returns how many pieces
// that was.
func (f *fixture) compactAll() (pieces int) {
	f.t.Helper()
	for {
		job, _ := f.log.Compact()
		if job == nil {
			return pieces
		}
		f.finish(job)
		f.must(f.log.Install(job))
		pieces++
	}
}

func (f *fixture) finish(job *Compaction) {
	f.t.Helper()
	for {
		_, done, err := job.Step(1000)
		f.must(err)
		if done {
			return
		}
	}
}

// portrait is everything of a log that compaction must leave as it is.
type portrait struct {
	Tail     chunk.Tail
	Next     chunk.Offset
	First    chunk.Offset
	Digest   chunk.Digest
	Epochs   []manifest.EpochLine
	Tracking string
	Records  uint64
	Users    uint64
	Bytes    int64
	// Chunks are client header and data of every user chunk, under its LSN.
	Chunks []string
}

func (f *fixture) portrait() portrait {
	f.t.Helper()
	st := f.log.Stats()
	p := portrait{
		Tail: f.log.Tail(), Next: f.log.Next(), First: f.log.First(), Digest: f.log.Digest(), Epochs: f.log.Epochs(),
		Tracking: trackingBytes(f.t, f.log.Tracking()), Records: st.Records, Users: st.UserChunks, Bytes: st.UserBytes,
	}
	r, err := f.log.Attach(Spec{Kind: First}, f.log.Tail().LSN)
	f.must(err)
	defer r.Close()
	for {
		v, ok, err := r.Next(f.log.Tail().LSN)
		f.must(err)
		if !ok {
			return p
		}
		header, data := v.Delivery()
		p.Chunks = append(p.Chunks, fmt.Sprintf("%d %x %x", v.Header.LSN, header, data))
		v.Release()
	}
}

func (f *fixture) wantPortrait(want portrait) {
	f.t.Helper()
	if got := f.portrait(); !reflect.DeepEqual(got, want) {
		f.t.Fatalf("log is\n%+v\nwant\n%+v", got, want)
	}
}

// uncached forgets the chunks in memory, so that reading goes to the files.
func (f *fixture) uncached() { f.store.cache.cut(&f.log.cached, 0) }

// rescan holds every summary against its file (I24).
func (f *fixture) rescan() {
	f.t.Helper()
	infos := f.log.Segments()
	for i := range infos {
		want := infos[i].Summary
		if i > 0 {
			p := infos[i-1].Summary
			if p.LastLSN+1 != want.FirstLSN || p.NextOffset != want.BaseOffset || p.DigestAfter != want.DigestBefore {
				f.t.Fatalf("segment %s does not follow %s", want.Name(), p.Name())
			}
		}
		f.must(want.Check())
		got := f.scanSegment(&want)
		if !reflect.DeepEqual(got, want) {
			f.t.Fatalf("segment %s holds\n%+v\nits summary says\n%+v", want.Name(), got, want)
		}
	}
}

// scanSegment makes a segment's summary anew from its file. What no chunk tells
// comes from the old one: bounds, lines, and what was dropped.
func (f *fixture) scanSegment(s *manifest.Summary) manifest.Summary {
	f.t.Helper()
	file, err := f.fs.OpenFile(f.log.file(segmentFile(s.Name())), 0, 0)
	f.must(err)
	defer func() { f.must(file.Close()) }()
	got := manifest.Summary{
		Incarnation: s.Incarnation, Generation: s.Generation, UnitStart: s.UnitStart, FirstLSN: s.FirstLSN,
		FirstEpoch: s.FirstEpoch, BaseOffset: s.BaseOffset, NextOffset: s.BaseOffset,
		DigestBefore: s.DigestBefore, DigestAfter: s.DigestBefore,
	}
	w := newWalker(file, testIncarnation, 0, s.Size, true)
	for w.position < s.Size {
		h, head, _, _, err := w.next()
		f.must(err)
		got.Add(&h, h.Epoch)
		got.AddSequences(&h, tracking.SequenceBytes(&h, h.TrailerOf(head)))
	}
	if s.Generation > 0 {
		got.DroppedLSN = s.DroppedLSN
	}
	got.LastLSN, got.LastEpoch, got.NextOffset, got.Lines = s.LastLSN, s.LastEpoch, max(got.NextOffset, got.BaseOffset), s.Lines
	return got
}

func TestCompact_dropsTrackingAndNothingElse(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	before := k.portrait()
	tracked := k.log.Stats().TrackingBytes
	if got := k.log.Compaction().BytesDroppable; got < tracked/2 || got > tracked+1000 {
		t.Errorf("%d bytes could be dropped, of %d of tracking", got, tracked)
	}
	droppable := k.droppable()
	if n := k.compactAll(); n < 4 {
		t.Fatalf("%d pieces of work", n)
	}
	k.uncached()
	k.wantPortrait(before)
	k.rescan()
	infos := k.log.Segments()
	for _, s := range infos[:len(infos)-2] {
		if s.TrackingBytes() != 0 || s.TrailerBytes != 0 {
			t.Errorf("segment %s still has %d bytes of tracking, %d of trailers", s.Name(), s.TrackingBytes(), s.TrailerBytes)
		}
		if i := slices.IndexFunc(droppable, func(lsn chunk.LSN) bool { return lsn > s.LastLSN }); s.DroppedLSN != droppable[i-1] {
			t.Errorf("segment %s has lost chunk %d, says %d", s.Name(), droppable[i-1], s.DroppedLSN)
		}
	}
	if spare := infos[len(infos)-2]; spare.Generation != 0 || spare.SnapshotLast.LSN == 0 {
		t.Errorf("the spare was touched: %+v", spare.Summary)
	}
	if got := k.log.Compaction().BytesDroppable; got != 0 {
		t.Errorf("%d bytes could still be dropped", got)
	}
	st := k.log.Compaction()
	if st.BytesDropped < tracked/2 || st.Drops == 0 || st.Failures != 0 || st.BytesPinned != 0 {
		t.Errorf("compacted %+v", st)
	}
	for range 2 {
		k.restart()
		if len(k.found.Damage) > 0 || len(k.found.Removed) > 0 || len(k.found.Quarantined) > 0 {
			t.Fatalf("found %+v", k.found)
		}
		k.wantPortrait(before)
		k.rescan()
		if !k.log.Tracking().Known() {
			t.Error("tracking is unknown after a restart")
		}
	}
}

// droppable returns the LSNs of all chunks that carry tracking.
func (f *fixture) droppable() (lsns []chunk.LSN) {
	f.t.Helper()
	r := f.log.AttachLSN(1)
	defer r.Close()
	for {
		v, ok, err := r.Next(f.log.Tail().LSN)
		f.must(err)
		if !ok {
			return lsns
		}
		if v.Header.Type != chunk.User || v.Header.TrailerLength > 0 {
			lsns = append(lsns, v.Header.LSN)
		}
		v.Release()
	}
}

// The directory holds the files that MANIFEST names and nothing else.
func TestCompact_leavesNoFile(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	k.compactAll()
	var named []string
	for _, s := range k.log.Segments() {
		named = append(named, segmentFile(s.Name()))
	}
	var found []string
	for _, name := range k.files() {
		if strings.HasSuffix(name, segmentSuffix) {
			found = append(found, name)
		}
		if base, ok := strings.CutSuffix(name, indexSuffix); ok && !slices.Contains(named, base+segmentSuffix) {
			t.Errorf("index %s is of no segment", name)
		}
	}
	if !slices.Equal(found, named) {
		t.Errorf("files %v, named %v", found, named)
	}
}

// A segment without user data keeps a file with its footer alone, and a run of
// such becomes one.
func TestCompact_footersAlone(t *testing.T) {
	k := newTracker(t)
	k.ride(1, 40)
	for range 12 {
		k.roll(false)
		k.deltas(5)
	}
	k.sync()
	before := k.portrait()
	k.compactAll()
	k.uncached()
	k.wantPortrait(before)
	k.rescan()
	infos := k.log.Segments()
	if len(infos) > 6 {
		t.Errorf("%d segments are left", len(infos))
	}
	if st := k.log.Compaction(); st.Merges == 0 {
		t.Errorf("nothing was merged: %+v", st)
	}
	empty := 0
	for _, s := range infos {
		if s.Sealed && s.Size == 0 {
			empty++
		}
	}
	k.restart()
	k.wantPortrait(before)
	k.rescan()
	if empty == 0 && infos[0].LastLSN < 60 {
		t.Errorf("no segment is a footer alone, and the first ends at %d", infos[0].LastLSN)
	}
}

// Whatever place is asked for, it is found where it was before (ST-19, ST-26).
func TestCompact_placesAreFound(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	type place struct {
		lsn    chunk.LSN
		offset chunk.Offset
		header string
	}
	find := func(spec Spec) (p place) {
		r, err := k.log.Attach(spec, k.log.Commit())
		must(t, err)
		defer r.Close()
		v, ok, err := r.Next(k.log.Commit())
		must(t, err)
		if !ok {
			return place{lsn: r.LSN(), offset: r.Offset()}
		}
		defer v.Release()
		header, _ := v.Delivery()
		return place{v.Header.LSN, r.Offset(), string(header)}
	}
	specs := []Spec{{Kind: First}, {Kind: Last}, {Kind: Next}}
	for o := range k.log.Next() + 2 {
		specs = append(specs, Spec{Kind: AtOffset, Offset: o})
	}
	for ts := testTime - 10; ts < k.now+20; ts += 5 {
		specs = append(specs, Spec{Kind: AtTimestamp, Timestamp: ts})
	}
	places := map[Spec]place{}
	for _, s := range specs {
		places[s] = find(s)
	}
	var nexts []chunk.Offset
	for lsn := range k.log.Tail().LSN + 1 {
		o, err := k.log.OffsetAfter(lsn)
		must(t, err)
		nexts = append(nexts, o)
	}
	look := func() {
		t.Helper()
		for _, s := range specs {
			if got := find(s); got != places[s] {
				t.Fatalf("%s: %+v, want %+v", s, got, places[s])
			}
		}
		for lsn, want := range nexts {
			if o, err := k.log.OffsetAfter(chunk.LSN(lsn)); err != nil || o != want {
				t.Fatalf("offset after chunk %d: %d, %v; want %d", lsn, o, err, want)
			}
		}
	}
	k.compactAll()
	look()
	k.uncached()
	look()
	for _, name := range k.files() { // indexes are caches
		if strings.HasSuffix(name, indexSuffix) {
			must(t, k.fs.Remove(k.log.file(name)))
		}
	}
	look()
	k.restart()
	k.log.SetCommit(k.log.Tail().LSN)
	look()
}

// A link reads on over the gap: user chunks in order, with their flags telling
// what was taken.
func TestCompact_linkSeesTheGap(t *testing.T) {
	k := newTracker(t)
	k.mixed()
	k.compactAll()
	k.uncached()
	r := k.log.AttachLSN(1)
	defer r.Close()
	last, stripped := chunk.LSN(0), 0
	for {
		v, ok, err := r.Next(k.log.Tail().LSN)
		must(t, err)
		if !ok {
			break
		}
		if v.Header.LSN <= last {
			t.Fatalf("chunk %d after %d", v.Header.LSN, last)
		}
		last = v.Header.LSN
		if v.Header.Has(chunk.FlagStripped) {
			stripped++
		}
		v.Release()
	}
	if last != k.log.Tail().LSN || stripped < 10 {
		t.Errorf("read up to %d of %d, %d chunks without their trailers", last, k.log.Tail().LSN, stripped)
	}
}
