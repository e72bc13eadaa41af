package plan

import (
	"math/bits"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

// CompactKind says what a piece of compaction does.
type CompactKind uint8

const (
	// CompactNone: nothing is worth it now.
	CompactNone CompactKind = iota
	// CompactDrop: one segment loses its control chunks and trailers.
	CompactDrop
	// CompactMerge: neighbours without tracking become one segment.
	CompactMerge
)

func (k CompactKind) String() string { return [...]string{"none", "drop", "merge"}[k] }

const (
	// dropBytesMin makes dropping worth it, however much of the segment stays.
	dropBytesMin = 64 << 20
	// mergeSegmentsMin is the least run that is merged before it makes a full
	// segment: so each byte is rewritten a few times at most.
	mergeSegmentsMin = 4
	// mergeSegmentsMax and mergeLinesMax bound one merge's record.
	mergeSegmentsMax = 4096
	mergeLinesMax    = 16_384

	// What the bound of design 1 is made of: 5 % of user bytes, nine snapshots
	// and 4 MiB.
	boundUserShare     = 20
	boundSnapshots     = 9
	boundBytes         = 4 << 20
	pressingQuarters   = 3
	boundQuarters      = 4
	freeForEachKeptMin = 2
)

// CompactInput is what the decision rests on: the log's segments from the log
// start on, the last being the active one if there is one, and how far the log
// is safe.
type CompactInput struct {
	Segments []manifest.Summary
	// Active tells that the last of Segments is unsealed.
	Active bool
	// Commit and Durable bound what may be relied on (E2).
	Commit, Durable chunk.LSN
	// SegmentBytes are the user bytes of a full segment.
	SegmentBytes int64
	// FreeBytes may still be written to the disk.
	FreeBytes uint64
	// Unreadable, if given, tells of each segment whether it is damaged: such a
	// one is never touched.
	Unreadable []bool
}

// Compaction is the decision: what becomes of Segments[From:To], and what that
// takes and gains.
type Compaction struct {
	Kind     CompactKind
	From, To int
	// KeptBytes go to the new file; DroppedBytes don't.
	KeptBytes, DroppedBytes int64
	// Until, with CompactNone, is the LSN that commit and durable tail must reach
	// before asking again can find more; 0 if only a new segment can change it, or
	// Spare.
	Until chunk.LSN
	// Spare, with CompactNone, is how many bytes of tracking may come until what is
	// droppable must go; 0 if nothing is.
	Spare int64
}

// Compact returns the next piece of compaction that is worth it (design 3.5), the
// one that drops most for each kept byte first, and merges only when nothing is
// to be dropped.
func Compact(in *CompactInput) Compaction {
	n, until := compactable(in)
	if c := bestDrop(in, n); c.Kind != CompactNone {
		return c
	}
	if from, to := nextRun(in, n, without); from < to {
		c := Compaction{Kind: CompactMerge, From: from, To: to}
		for i := from; i < to; i++ {
			c.KeptBytes += kept(&in.Segments[i])
		}
		return c
	}
	return Compaction{Until: until, Spare: spare(in, n)}
}

// spare returns how many bytes tracking may grow by until it presses, 0 if that
// changes nothing.
func spare(in *CompactInput, n int) int64 {
	if TrackingBytes(in.Segments[:n]) == 0 {
		return 0
	}
	return max(aim(in.Segments)/boundQuarters*pressingQuarters+1-TrackingBytes(in.Segments), 0)
}

// Droppable returns how many bytes compaction could drop now, whether it is
// worth the work or not.
func Droppable(in *CompactInput) (n int64) {
	DroppableBy(in, func(_ int, bytes int64) { n += bytes })
	return n
}

// DroppableBy tells of each segment with something droppable, by its index, what
// that is.
func DroppableBy(in *CompactInput, each func(segment int, bytes int64)) {
	most, _ := compactable(in)
	for i := range most {
		if n := droppable(&in.Segments[i]); n > 0 && in.readable(i) {
			each(i, n)
		}
	}
}

// TrackingBytes returns what stored offsets take on disk.
func TrackingBytes(segments []manifest.Summary) (n int64) {
	for i := range segments {
		n += segments[i].TrackingBytes()
	}
	return n
}

// TrackingBound returns what stored offsets may take on disk (design 1): 5 % of
// user bytes, or nine snapshots and 4 MiB if that is more. Of complete snapshots
// on disk the largest counts: where references have gone, the newest is small,
// but those before it go only when two are newer.
func TrackingBound(segments []manifest.Summary) int64 {
	var user, largest int64
	for i := range segments {
		user += segments[i].UserBytes
		largest = max(largest, snapshotOf(&segments[i]))
	}
	return bound(user, largest)
}

// aim is the bound by the newest complete snapshot, which work keeps to.
func aim(segments []manifest.Summary) int64 {
	var user, newest int64
	for i := range segments {
		user += segments[i].UserBytes
		if segments[i].SnapshotLast.LSN != 0 {
			newest = snapshotOf(&segments[i])
		}
	}
	return bound(user, newest)
}

func bound(user, snapshot int64) int64 {
	return max(user/boundUserShare, boundSnapshots*snapshot+boundBytes)
}

// snapshotOf returns the bytes of stored offsets in a segment's snapshot, 0 if it
// has no complete one.
func snapshotOf(s *manifest.Summary) int64 {
	if s.SnapshotLast.LSN == 0 {
		return 0
	}
	return s.SnapshotBytes - s.SnapshotSequenceBytes
}

// pressing tells whether tracking is so near to a bound that work is due.
func pressing(tracking, bound int64) bool { return tracking > bound/boundQuarters*pressingQuarters }

// HeldTracking returns what stored offsets take from the second newest complete
// snapshot on, which no compaction takes before a newer snapshot is written, and
// the bound of those segments alone: retention may leave no others. It goes by the
// newest snapshot, or by the most that the next one can take if that is less.
func HeldTracking(sealed []manifest.Summary, active *manifest.Summary, next int64) (tracking, most int64) {
	var user, newest int64
	s, complete := active, 0
	for i := len(sealed); ; s = &sealed[i] {
		user += s.UserBytes
		tracking += s.TrackingBytes()
		if s.SnapshotLast.LSN != 0 {
			if complete++; complete == 1 {
				newest = snapshotOf(s)
			}
		}
		if i--; i < 0 || complete == 2 {
			return tracking, bound(user, min(newest, next))
		}
	}
}

// compactable returns how many segments, from the front, lie before the second
// newest complete snapshot that is committed and durable (E2): what they carry
// of tracking is superseded, with one snapshot to spare. until is the end of the
// oldest snapshot that is not committed and durable so far.
func compactable(in *CompactInput) (n int, until chunk.LSN) {
	safe := min(in.Commit, in.Durable)
	complete := 0
	for i := len(in.Segments) - 1; i >= 0; i-- {
		switch last := in.Segments[i].SnapshotLast.LSN; {
		case last == 0:
		case last > safe:
			until = last
		case complete == 0:
			complete++
		default:
			return i, until
		}
	}
	return 0, until
}

func (in *CompactInput) readable(i int) bool { return len(in.Unreadable) == 0 || !in.Unreadable[i] }

// room tells whether the disk has twice what a piece of work keeps.
func (in *CompactInput) room(kept int64) bool { return uint64(kept)*freeForEachKeptMin <= in.FreeBytes }

// kept returns the bytes of a segment that stay: user chunks without trailers.
func kept(s *manifest.Summary) int64 {
	return chunk.StorageHeaderLength*int64(s.UserChunks) + s.UserBytes + s.FilterBytes
}

func droppable(s *manifest.Summary) int64 { return s.Size - kept(s) }

func without(s *manifest.Summary) bool { return droppable(s) == 0 }

// bestDrop returns the segment whose tracking should go next.
func bestDrop(in *CompactInput, n int) (best Compaction) {
	pressed := pressing(TrackingBytes(in.Segments), aim(in.Segments))
	// Tracking in the way of a merge goes too.
	from, to := nextRun(in, n, func(s *manifest.Summary) bool { return true })
	for i := range n {
		s := &in.Segments[i]
		drop, keep := droppable(s), kept(s)
		if drop == 0 || !in.readable(i) || !in.room(keep) {
			continue
		}
		worth := 2*drop >= s.Size || drop >= dropBytesMin ||
			pressed && s.TrackingBytes() > 0 || from <= i && i < to
		if worth && (best.Kind == CompactNone || denser(drop, keep, best.DroppedBytes, best.KeptBytes)) {
			best = Compaction{Kind: CompactDrop, From: i, To: i + 1, KeptBytes: keep, DroppedBytes: drop}
		}
	}
	return best
}

// denser tells whether the first work drops more for each byte that it keeps.
func denser(drop, keep, otherDrop, otherKeep int64) bool {
	hi, lo := bits.Mul64(uint64(drop), uint64(otherKeep)+1)
	otherHi, otherLo := bits.Mul64(uint64(otherDrop), uint64(keep)+1)
	return hi > otherHi || hi == otherHi && lo > otherLo
}

// nextRun returns the oldest run of segments among the first n, all of them fit,
// that is worth merging: neighbours of one unit that make no more than a full
// segment together, none of which is more than half of it. It is worth it from
// four segments on, or as soon as it makes half a full one.
//
// The rule of the half bounds the work: a byte is rewritten only into a segment
// of at least twice the size, so a few times until the segment is full.
func nextRun(in *CompactInput, n int, fit func(*manifest.Summary) bool) (from, to int) {
	for from = 0; from < n; from++ {
		to = from
		var user, most, keep int64
		lines := 0
		for i := from; i < n && i-from < mergeSegmentsMax; i++ {
			s := &in.Segments[i]
			user += s.UserBytes
			most = max(most, s.UserBytes)
			keep += kept(s)
			lines += len(s.Lines)
			if i > from && s.UnitStart || !in.readable(i) || !fit(s) || user > in.SegmentBytes || lines > mergeLinesMax || !in.room(keep) {
				break
			}
			count := i - from + 1
			if count > 1 && 2*most <= user && (count >= mergeSegmentsMin || 2*user >= in.SegmentBytes) {
				to = i + 1
			}
		}
		if to > from {
			return from, to
		}
	}
	return n, n
}
