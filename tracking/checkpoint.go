package tracking

import (
	"encoding/binary"
	"fmt"

	"github.com/millrace/millrace/segstore/chunk"
)

const checkpointVersion = 1

// AppendCheckpoint appends the whole state, short ids included, so that a fold
// can go on from here. Equal states give equal bytes. It must not be called
// between the parts of a snapshot (Assembling): ok is then false and nothing is
// appended.
//
//	+----+-------+-----+-------+------------+------------+-----------+---
//	| 01 | flags | LSN | epoch | publishers | references | short ids | items …
//	+----+-------+-----+-------+------------+------------+-----------+---
//
// Flags: bit 0 known, bit 1 short ids valid. All counts and numbers are
// uvarints, times zigzag. Then each publisher (len, reference, LSN, sequence,
// short id + 1 or 0), each reference (len, reference, epoch, version, 0 | 1
// forgotten, time, offset), each short id's (len, reference), in their orders.
func (s *State) AppendCheckpoint(dst []byte) (out []byte, ok bool) {
	if s.staging != nil {
		return dst, false
	}
	dst = append(dst, checkpointVersion, flag(s.known, 1)|flag(s.shorts.valid, 2))
	for _, v := range []uint64{
		uint64(s.last.LSN), uint64(s.last.Epoch),
		uint64(s.publishers.len()), uint64(s.offsets.len()), uint64(len(s.shorts.refs)),
	} {
		dst = binary.AppendUvarint(dst, v)
	}
	for e := s.publishers.front(); e != nil; e = s.publishers.after(e) {
		dst = appendRef(dst, e.ref)
		dst = binary.AppendUvarint(dst, e.major)
		dst = binary.AppendUvarint(dst, e.value.sequence)
		short := uint64(0)
		if id, ok := s.shorts.of(e); ok {
			short = id + 1
		}
		dst = binary.AppendUvarint(dst, short)
	}
	for e := s.offsets.front(); e != nil; e = s.offsets.after(e) {
		dst = appendRef(dst, e.ref)
		dst = binary.AppendUvarint(dst, e.major)
		dst = binary.AppendUvarint(dst, e.minor)
		dst = append(dst, flag(e.value.forgotten, 1))
		dst = binary.AppendVarint(dst, int64(e.value.time))
		dst = binary.AppendUvarint(dst, uint64(e.value.offset))
	}
	for _, ref := range s.shorts.refs {
		dst = appendRef(dst, ref)
	}
	return dst, true
}

func flag(set bool, bit byte) byte {
	if set {
		return bit
	}
	return 0
}

// DecodeCheckpoint restores a state; what exceeds the caps goes at once.
// Error: ErrMalformed.
func DecodeCheckpoint(caps Caps, b []byte) (*State, error) {
	r := &reader{b: b}
	s := New(caps, 0)
	version, flags := r.byte(), r.byte()
	if r.failed || version != checkpointVersion || flags > 3 {
		return nil, malformed("checkpoint of version %d, flags %02x", version, flags)
	}
	s.known, s.shorts.valid = flags&1 != 0, flags&2 != 0
	s.last = chunk.Tail{LSN: chunk.LSN(r.uvarint())}
	s.last.Epoch = chunk.Epoch(r.uvarint())
	publishers, references, shorts := r.uvarint(), r.uvarint(), r.uvarint()
	if shorts > shortIDsMax {
		return nil, malformed("checkpoint of %d short ids", shorts)
	}
	for ; publishers > 0 && !r.failed; publishers-- {
		if err := s.loadPublisher(r, shorts); err != nil {
			return nil, err
		}
	}
	for ; references > 0 && !r.failed; references-- {
		if err := s.loadStored(r); err != nil {
			return nil, err
		}
	}
	for ; shorts > 0 && !r.failed; shorts-- {
		s.shorts.refs = append(s.shorts.refs, string(r.ref()))
	}
	if r.failed || len(r.b) != 0 {
		return nil, malformed("checkpoint cut short, or %d bytes too long", len(r.b))
	}
	for e := s.publishers.front(); e != nil; e = s.publishers.after(e) {
		if id, ok := s.shorts.of(e); ok && s.shorts.refs[id] != e.ref {
			return nil, malformed("checkpoint's short id %d is not that of %q", id, e.ref)
		}
	}
	s.trimOffsets()
	s.trimPublishers()
	return s, nil
}

func (s *State) loadPublisher(r *reader, shorts uint64) error {
	ref, lsn := r.ref(), r.uvarint()
	sequence, short := r.uvarint(), r.uvarint()
	if r.failed {
		return nil // the caller sees it
	}
	if s.publishers.find(ref) != nil || short > shorts || lsn > uint64(s.last.LSN) {
		return malformed("checkpoint's publisher %q", ref)
	}
	e := s.publishers.add(string(ref), lsn, 0)
	e.value.sequence = sequence
	if short > 0 {
		if !s.shorts.valid {
			return malformed("checkpoint's publisher %q has a short id", ref)
		}
		e.value.short = shortID{segment: s.shorts.segment, id: uint16(short - 1)}
	}
	return ordered(s.publishers, e)
}

func (s *State) loadStored(r *reader) error {
	ref, epoch, version := r.ref(), r.uvarint(), r.uvarint()
	forgotten, time := r.byte(), r.varint()
	offset := r.uvarint()
	if r.failed {
		return nil // the caller sees it
	}
	if s.offsets.find(ref) != nil || forgotten > 1 || epoch > uint64(s.last.Epoch) {
		return malformed("checkpoint's reference %q", ref)
	}
	e := s.offsets.add(string(ref), epoch, version)
	e.value = stored{offset: chunk.Offset(offset), time: chunk.Timestamp(time), forgotten: forgotten == 1}
	s.forgotten += int(forgotten)
	return ordered(s.offsets, e)
}

// ordered tells whether e, just added, came last in order.
func ordered[V any](t *table[V], e *entry[V]) error {
	if e != t.back() {
		return malformed("%q out of order", e.ref)
	}
	return nil
}

// varint is a zigzag number in its shortest form.
func (r *reader) varint() int64 {
	u := r.uvarint()
	return int64(u>>1) ^ -int64(u&1)
}

// String is for logs.
func (s *State) String() string {
	return fmt.Sprintf("tracking at %v: %d offsets, %d publishers, known %t",
		s.last, s.offsets.len()-s.forgotten, s.publishers.len(), s.known)
}
