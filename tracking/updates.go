package tracking

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/segstore/chunk"
)

// Update is one store of an offset, on its way into the log.
type Update struct {
	Ref    string
	Offset chunk.Offset
	// Forget says that the reference was deleted; Offset is then 0.
	Forget  bool
	Time    chunk.Timestamp // when it was stored
	Epoch   chunk.Epoch     // that of the leader which took it
	Version uint64          // counts from 1 within the epoch
}

// SequenceUpdate is a publisher's highest publishing id in one chunk.
type SequenceUpdate struct {
	Ref      string
	Sequence uint64
	// Forget deletes the publisher; Sequence is then 0.
	Forget bool
}

// SequenceLengthMax returns the most bytes that a sequence of a reference of n
// bytes takes in a trailer; a turn closes its chunk before they exceed
// chunk.TrailerLengthMax.
func SequenceLengthMax(n int) int { return 1 + 3 + 1 + n + binary.MaxVarintLen64 }

// UpdateLengthMax returns the most bytes that an update of a reference of n
// bytes takes in a trailer or delta.
func UpdateLengthMax(n int) int { return 1 + 1 + n + 2*binary.MaxVarintLen64 }

// EncodeTrailer appends the trailer of the user chunk that follows the last
// applied one: the sequences of its own messages (F1), one for each publisher,
// and any updates that ride along. It sorts both slices. segmentStart tells
// that the chunk will open a segment, so that no short id of the present one
// holds.
func (s *State) EncodeTrailer(dst []byte, segmentStart bool, sequences []SequenceUpdate, updates []Update) []byte {
	shorts := s.shorts
	if segmentStart {
		shorts = shorts.at(&chunk.Header{Flags: chunk.FlagSegmentStart}, false)
	}
	slices.SortFunc(sequences, func(a, b SequenceUpdate) int { return strings.Compare(a.Ref, b.Ref) })
	next := len(shorts.refs)
	for i := range sequences {
		var defined bool
		dst, defined = s.appendSequence(dst, &shorts, next, &sequences[i])
		if defined {
			next++
		}
	}
	return EncodeDelta(dst, updates)
}

// appendSequence draws one of
//
//	+----+-----+-----------+----------+
//	| 01 | len | reference | sequence |             in full
//	+----+-----+-----+-----+-----+----+-----+
//	| 02 | short id  | len | ref…| sequence |       in full, for a long reference's
//	+----+----------++-----+-----+----------+       first time in a segment
//	| 03 | short id | sequence |                    thereafter
//	+----+-----+----+------+---+
//	| 04 | len | reference |                        the publisher is forgotten
//	+----+-----+-----------+
//
// where short id and sequence are uvarints, and tells whether it gave out the
// short id next.
func (s *State) appendSequence(dst []byte, shorts *shortIDs, next int, u *SequenceUpdate) ([]byte, bool) {
	if u.Forget {
		return appendRef(append(dst, tagSequenceForget), u.Ref), false
	}
	defines := false
	if id, ok := shorts.of(s.publishers.byRef[u.Ref]); ok {
		dst = binary.AppendUvarint(append(dst, tagSequenceShort), id)
	} else if len(u.Ref) >= shortRefLengthMin && shorts.valid && next < shortIDsMax {
		dst = binary.AppendUvarint(append(dst, tagSequenceDefine), uint64(next))
		dst = appendRef(dst, u.Ref)
		defines = true
	} else {
		dst = appendRef(append(dst, tagSequence), u.Ref)
	}
	return binary.AppendUvarint(dst, u.Sequence), defines
}

// EncodeDelta appends the payload of a delta chunk, or what rides in a trailer
// behind the sequences. It sorts the updates by version. All must be of the
// epoch of the chunk they go into.
func EncodeDelta(dst []byte, updates []Update) []byte {
	slices.SortFunc(updates, func(a, b Update) int {
		if a.Version != b.Version {
			if a.Version < b.Version {
				return -1
			}
			return 1
		}
		return strings.Compare(a.Ref, b.Ref)
	})
	last := uint64(0)
	for i := range updates {
		u := &updates[i]
		dst = appendUpdate(dst, u, u.Version-last)
		last = u.Version
	}
	return dst
}

// EncodeBarrier appends the payload of a barrier: the merged updates of earlier
// epochs, all of them as version 0 of the new one (F5). It sorts the updates.
func EncodeBarrier(dst []byte, updates []Update) []byte {
	slices.SortFunc(updates, func(a, b Update) int { return strings.Compare(a.Ref, b.Ref) })
	for i := range updates {
		dst = appendUpdate(dst, &updates[i], 0)
	}
	return dst
}

// appendUpdate draws one of
//
//	+----+-----+-----------+------+--------+
//	| 11 | len | reference | step | offset |    a stored offset
//	+----+-----+-----------+------+--------+
//	| 12 | len | reference | step |             forgotten by an operator
//	+----+-----+-----------+------+
//
// where step, a uvarint, is the version less that of the item before.
func appendUpdate(dst []byte, u *Update, step uint64) []byte {
	if u.Forget {
		dst = appendRef(append(dst, tagOffsetForget), u.Ref)
		return binary.AppendUvarint(dst, step)
	}
	dst = appendRef(append(dst, tagOffset), u.Ref)
	dst = binary.AppendUvarint(dst, step)
	return binary.AppendUvarint(dst, uint64(u.Offset))
}

// Item is one item of a trailer or delta, as bytes alone tell it.
type Item struct {
	// Publisher tells a sequence from a stored offset.
	Publisher bool
	// Ref aliases the payload; nil for a sequence under a short id.
	Ref []byte
	// Short is the id that the item uses, or with Defines gives out.
	Short             uint64
	HasShort, Defines bool
	Forget            bool
	// Value is the sequence or the offset.
	Value   uint64
	Version uint64 // of a stored offset
}

// Items walks the payload of a trailer or delta; the loop of callers is that of
// chunk.Entries.
type Items struct {
	r       reader
	item    Item
	version uint64
}

// ItemsIn starts a walk.
func ItemsIn(payload []byte) Items { return Items{r: reader{b: payload}} }

// Next steps to the next item, and tells whether there is one.
func (it *Items) Next() bool {
	if it.r.done() {
		return false
	}
	r := &it.r
	i := Item{}
	switch r.byte() {
	case tagSequence:
		i.Publisher, i.Ref, i.Value = true, r.ref(), r.uvarint()
	case tagSequenceDefine:
		i.Publisher, i.HasShort, i.Defines = true, true, true
		i.Short, i.Ref, i.Value = r.uvarint(), r.ref(), r.uvarint()
	case tagSequenceShort:
		i.Publisher, i.HasShort = true, true
		i.Short, i.Value = r.uvarint(), r.uvarint()
	case tagSequenceForget:
		i.Publisher, i.Forget, i.Ref = true, true, r.ref()
	case tagOffset:
		i.Ref = r.ref()
		it.step(&i)
		i.Value = r.uvarint()
	case tagOffsetForget:
		i.Forget, i.Ref = true, r.ref()
		it.step(&i)
	default:
		r.failed = true
	}
	it.item = i
	return !r.failed
}

func (it *Items) step(i *Item) {
	i.Version = it.version + it.r.uvarint()
	if i.Version < it.version {
		it.r.failed = true
	}
	it.version = i.Version
}

// Item returns the item that Next stepped to.
func (it *Items) Item() *Item { return &it.item }

// Err returns ErrMalformed if the walk ended before the payload did.
func (it *Items) Err() error {
	if it.r.failed {
		return malformed("an item does not decode")
	}
	return nil
}

// SequenceBytes returns how many of a chunk's payload bytes are publisher
// sequences, which the budget leaves out (F7): they stand in front. The payload
// is one that State.Apply has accepted, or will.
func SequenceBytes(h *chunk.Header, payload []byte) int64 {
	left := len(payload)
	if h.Type == chunk.Snapshot {
		it := PartItemsIn(h, payload)
		left = len(it.r.b)
		from := left
		for it.Next() && it.item.Publisher {
			left = len(it.r.b)
		}
		return int64(from - left)
	}
	for it := ItemsIn(payload); it.Next() && it.item.Publisher; {
		left = len(it.r.b)
	}
	return int64(len(payload) - left)
}

// checkUpdates proves that applyUpdates will take the payload: order, kinds and
// short ids as the encoders write them.
func checkUpdates(h *chunk.Header, payload []byte, shorts *shortIDs) error {
	c := checker{h: h, shorts: shorts, next: uint64(len(shorts.refs))}
	it := ItemsIn(payload)
	for it.Next() {
		if err := c.check(it.Item()); err != nil {
			return err
		}
	}
	return it.Err()
}

type checker struct {
	h      *chunk.Header
	shorts *shortIDs
	next   uint64 // short id to be given out
	// last and lastShort are the reference of the item before, one of them
	// empty; updates tells the kind of that item.
	last      []byte
	lastShort string
	version   uint64
	updates   bool
}

func (c *checker) check(i *Item) error {
	if i.Publisher {
		return c.checkSequence(i)
	}
	if !c.updates {
		c.updates, c.last, c.lastShort = true, nil, ""
	}
	if c.h.Has(chunk.FlagEpochStart) {
		if i.Version != 0 || !c.rises(i.Ref) {
			return malformed("barrier's update of %q: version %d, or out of order", i.Ref, i.Version)
		}
	} else if i.Version <= c.version {
		return malformed("update of %q: version %d after %d", i.Ref, i.Version, c.version)
	}
	c.version = i.Version
	return nil
}

func (c *checker) checkSequence(i *Item) error {
	switch {
	case c.updates:
		return malformed("sequence behind stored offsets")
	case c.h.Type != chunk.User && !i.Forget:
		return malformed("sequence outside of a trailer")
	case !c.shorts.valid:
		return nil
	case i.Defines:
		if i.Short != c.next || i.Short >= shortIDsMax {
			return malformed("short id %d given out, %d is next", i.Short, c.next)
		}
		c.next++
	case i.HasShort:
		if i.Short >= uint64(len(c.shorts.refs)) {
			return malformed("short id %d of %d", i.Short, len(c.shorts.refs))
		}
		if !c.risesShort(c.shorts.refs[i.Short]) {
			return malformed("sequence of short id %d out of order", i.Short)
		}
		return nil
	}
	if !c.rises(i.Ref) {
		return malformed("sequence of %q out of order", i.Ref)
	}
	return nil
}

// rises tells whether ref comes after the last reference, and makes it the last.
func (c *checker) rises(ref []byte) bool {
	ok := string(c.last) < string(ref) && c.lastShort < string(ref)
	c.last, c.lastShort = ref, ""
	return ok
}

func (c *checker) risesShort(ref string) bool {
	ok := string(c.last) < ref && c.lastShort < ref
	c.last, c.lastShort = nil, ref
	return ok
}

// applyUpdates folds a payload that checkUpdates has accepted.
func (s *State) applyUpdates(h *chunk.Header, payload []byte) {
	it := ItemsIn(payload)
	for it.Next() {
		switch i := it.Item(); {
		case !i.Publisher:
			s.setOffset(i.Ref, h.Epoch, i.Version,
				stored{offset: chunk.Offset(i.Value), time: h.Timestamp, forgotten: i.Forget})
		case i.Forget:
			s.forgetSequence(i.Ref)
		default:
			s.applySequence(h, i)
		}
	}
	if err := it.Err(); err != nil {
		panic(fmt.Sprintf("tracking: checked payload of chunk %d: %v", h.LSN, err))
	}
}

func (s *State) applySequence(h *chunk.Header, i *Item) {
	var e *entry[publisher]
	switch {
	case i.Ref != nil:
		e = s.sequenceEntry(i.Ref, h.LSN)
	case s.shorts.valid:
		ref := s.shorts.refs[i.Short]
		if e = s.publishers.byRef[ref]; e == nil {
			e = s.publishers.add(ref, uint64(h.LSN), 0)
		} else {
			s.publishers.move(e, uint64(h.LSN), 0)
		}
	default:
		// Its definition was lost in a gap, so the state can't be complete.
		s.known = false
		return
	}
	e.value.sequence = i.Value
	if i.HasShort && s.shorts.valid {
		e.value.short = shortID{segment: s.shorts.segment, id: uint16(i.Short)}
	}
	if i.Defines && s.shorts.valid {
		s.shorts.refs = append(s.shorts.refs, e.ref)
	}
	s.trimPublishers()
}
