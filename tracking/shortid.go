package tracking

import "github.com/millrace/millrace/segstore/chunk"

const (
	// shortRefLengthMin is the least length of a reference that gets a short id
	// within a segment: shorter ones would save next to nothing (F7).
	shortRefLengthMin = 12
	// shortIDsMax bounds the ids of one segment; later references are written
	// in full.
	shortIDsMax = 65_536
)

// shortIDs are the short ids of the present segment: each long reference gets
// the next number when its first sequence in the segment is written. Numbers
// start anew at each segment start, so a reader that starts there has them all.
type shortIDs struct {
	refs []string // by id
	// valid is false after a gap inside of a segment: definitions may be missing.
	valid bool
	// segment tells the ids of one segment from those of another; it is never 0,
	// which is a publisher's that has no short id.
	segment uint32
}

// shortID is what a publisher remembers of its own short id.
type shortID struct {
	segment uint32
	id      uint16
}

// at returns the ids as they hold for the payload of h.
func (t shortIDs) at(h *chunk.Header, gap bool) shortIDs {
	if h.Has(chunk.FlagSegmentStart) {
		return shortIDs{refs: t.refs[:0], valid: true, segment: t.segment + 1}
	}
	if gap {
		t.refs, t.valid = t.refs[:0], false
	}
	return t
}

// of returns a publisher's short id, if it has one in this segment.
func (t *shortIDs) of(e *entry[publisher]) (uint64, bool) {
	if e == nil || !t.valid || e.value.short.segment != t.segment {
		return 0, false
	}
	return uint64(e.value.short.id), true
}
