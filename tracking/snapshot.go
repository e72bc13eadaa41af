package tracking

import (
	"encoding/binary"
	"math"

	"github.com/millrace/millrace/segstore/chunk"
)

const (
	partHeaderLength = 4
	// partsMax is what the part header can count.
	partsMax = math.MaxUint16
	// GraceDefault is how long a stale id stays, in milliseconds: 24 h.
	GraceDefault = 24 * 60 * 60 * 1000

	// The most bytes of a snapshot's item beside the reference.
	publisherLengthMax = 1 + 1 + 2*binary.MaxVarintLen64
	storedLengthMax    = 1 + 1 + 4*binary.MaxVarintLen64
)

// SnapshotOptions say at which point of the log a snapshot is taken.
type SnapshotOptions struct {
	Now   chunk.Timestamp // the timestamp of all its parts
	Epoch chunk.Epoch     // the epoch of all its parts
	// First is the first available offset: an id stored before it is stale and
	// leaves, once Grace milliseconds have passed since its last update (0: at
	// once).
	First chunk.Offset
	Grace int64
	// PartBytesMax bounds each part; 0 means chunk.TrailerLengthMax.
	PartBytesMax int
}

// EncodeSnapshot returns the payloads of a snapshot's parts, at least one: the
// sequences of exactly the chunks applied so far, and the stored offsets with
// what is pending on top (F1); pending may be nil. Parts must become consecutive
// chunks, the first flagged FlagSnapshotFirst, the last FlagSnapshotLast. What
// was pending is carried by them and has to be dropped by the caller, with
// Pending.Clear, once they are applied.
func (s *State) EncodeSnapshot(o SnapshotOptions, pending *Pending) [][]byte {
	w := partWriter{max: o.PartBytesMax}
	if w.max <= 0 || w.max > chunk.TrailerLengthMax {
		w.max = chunk.TrailerLengthMax
	}
	w.start()
	for e := s.publishers.front(); e != nil; e = s.publishers.after(e) {
		w.publisher(e)
	}
	s.storedAndPending(pending, func(e *entry[stored]) {
		if stale(e, &o) {
			return
		}
		w.stored(e, &o)
	})
	return w.finish()
}

// storedAndPending visits state and pending updates as one list in the order of
// keys; of a reference that both hold, only the pending update counts.
func (s *State) storedAndPending(pending *Pending, visit func(*entry[stored])) {
	var p *entry[update]
	if pending != nil {
		p = pending.updates.front()
	}
	e := s.offsets.front()
	for e != nil || p != nil {
		if e != nil && pending != nil && pending.updates.byRef[e.ref] != nil {
			e = s.offsets.after(e)
			continue
		}
		if p != nil {
			u := entry[stored]{ref: p.ref, major: p.major, minor: p.minor, value: stored{
				offset: p.value.offset, time: p.value.time, forgotten: p.value.forget,
			}}
			if e == nil || u.before(e) {
				visit(&u)
				p = pending.updates.after(p)
				continue
			}
		}
		visit(e)
		e = s.offsets.after(e)
	}
}

func stale(e *entry[stored], o *SnapshotOptions) bool {
	if e.value.forgotten {
		return chunk.Epoch(e.major) < o.Epoch
	}
	return e.value.offset < o.First && int64(o.Now-lastUpdate(&e.value)) >= o.Grace
}

func lastUpdate(v *stored) chunk.Timestamp { return max(v.time, v.refreshed) }

// partWriter fills parts in turn. A part is
//
//	 0      2      4
//	+------+------+-------+---
//	| part |parts | item  | …
//	+------+------+-------+---
//
// counting parts from 0, and an item one of
//
//	+----+-----+-----------+-------+----------+
//	| 21 | len | reference |  LSN  | sequence |                      publisher
//	+----+-----+-----------+-------+---------++-----+--------+
//	| 22 | len | reference | epoch | version | age  | offset |       stored offset
//	+----+-----+-----------+-------+-+-------+------+--------+
//	| 23 | len | reference | version |                               forgotten in
//	+----+-----+-----------+---------+                               this epoch
//
// in uvarints; age is the chunk's timestamp less the last update's, in
// milliseconds. Publishers come first, by (LSN, reference), then the others by
// (epoch, version, reference), through all parts.
type partWriter struct {
	max   int
	parts [][]byte
	part  []byte
}

func (w *partWriter) start() {
	if w.part != nil {
		w.parts = append(w.parts, w.part)
	}
	w.part = make([]byte, partHeaderLength, 512)
}

// end closes an item that starts at the given index: one that does not fit
// moves on to the next part.
func (w *partWriter) end(at int) {
	if len(w.part) <= w.max || at == partHeaderLength {
		return
	}
	item := w.part[at:]
	w.part = w.part[:at]
	w.start()
	w.part = append(w.part, item...)
}

func (w *partWriter) publisher(e *entry[publisher]) {
	at := len(w.part)
	w.part = appendRef(append(w.part, tagPublisher), e.ref)
	w.part = binary.AppendUvarint(w.part, e.major)
	w.part = binary.AppendUvarint(w.part, e.value.sequence)
	w.end(at)
}

func (w *partWriter) stored(e *entry[stored], o *SnapshotOptions) {
	at := len(w.part)
	if e.value.forgotten {
		w.part = appendRef(append(w.part, tagForgotten), e.ref)
		w.part = binary.AppendUvarint(w.part, e.minor)
	} else {
		w.part = appendRef(append(w.part, tagStored), e.ref)
		w.part = binary.AppendUvarint(w.part, e.major)
		w.part = binary.AppendUvarint(w.part, e.minor)
		w.part = binary.AppendUvarint(w.part, age(o.Now, lastUpdate(&e.value)))
		w.part = binary.AppendUvarint(w.part, uint64(e.value.offset))
	}
	w.end(at)
}

// age returns now − then in milliseconds, 0 where then is later.
func age(now, then chunk.Timestamp) uint64 {
	if then >= now {
		return 0
	}
	return uint64(now) - uint64(then)
}

func (w *partWriter) finish() [][]byte {
	w.parts = append(w.parts, w.part)
	if len(w.parts) > partsMax {
		panic("tracking: snapshot of too many parts")
	}
	for i, p := range w.parts {
		binary.BigEndian.PutUint16(p[0:], uint16(i))
		binary.BigEndian.PutUint16(p[2:], uint16(len(w.parts)))
	}
	return w.parts
}

type partHeader struct{ part, parts uint16 }

// SnapshotItem is one item of a snapshot part.
type SnapshotItem struct {
	Publisher bool
	Ref       []byte // aliases the payload
	LSN       chunk.LSN
	Sequence  uint64
	Forgotten bool
	Stored    Stored
}

// PartItems walks one snapshot part; the loop of callers is that of
// chunk.Entries.
type PartItems struct {
	Part, Parts uint16
	r           reader
	h           *chunk.Header
	item        SnapshotItem
}

// PartItemsIn starts a walk over the payload of the snapshot chunk h.
func PartItemsIn(h *chunk.Header, payload []byte) PartItems {
	it := PartItems{r: reader{b: payload}, h: h}
	it.Part, it.Parts = it.r.uint16(), it.r.uint16()
	return it
}

// Next steps to the next item, and tells whether there is one.
func (it *PartItems) Next() bool {
	if it.r.done() {
		return false
	}
	r := &it.r
	i := SnapshotItem{}
	switch r.byte() {
	case tagPublisher:
		i.Publisher, i.Ref = true, r.ref()
		i.LSN, i.Sequence = chunk.LSN(r.uvarint()), r.uvarint()
	case tagStored:
		i.Ref = r.ref()
		i.Stored.Epoch, i.Stored.Version = chunk.Epoch(r.uvarint()), r.uvarint()
		i.Stored.Time = it.time(r.uvarint())
		i.Stored.Offset = chunk.Offset(r.uvarint())
	case tagForgotten:
		i.Forgotten, i.Ref = true, r.ref()
		i.Stored.Epoch, i.Stored.Version = it.h.Epoch, r.uvarint()
	default:
		r.failed = true
	}
	it.item = i
	return !r.failed
}

func (it *PartItems) time(age uint64) chunk.Timestamp {
	// All of the 64-bit circle down to the least timestamp, and no further.
	if age > uint64(it.h.Timestamp)-uint64(1<<63) {
		it.r.failed = true
	}
	return chunk.Timestamp(uint64(it.h.Timestamp) - age)
}

// Item returns the item that Next stepped to.
func (it *PartItems) Item() *SnapshotItem { return &it.item }

// Err returns ErrMalformed if the walk ended before the payload did.
func (it *PartItems) Err() error {
	if it.r.failed {
		return malformed("a snapshot's item does not decode")
	}
	return nil
}

// checkPart proves what one part shows by itself: numbers, flags and items, and
// that no item is from the future.
func checkPart(h *chunk.Header, payload []byte) (partHeader, error) {
	it := PartItemsIn(h, payload)
	p := partHeader{it.Part, it.Parts}
	if p.part >= p.parts ||
		(p.part == 0) != h.Has(chunk.FlagSnapshotFirst) ||
		(p.part == p.parts-1) != h.Has(chunk.FlagSnapshotLast) {
		return p, malformed("part %d of %d with flags %04x", p.part, p.parts, uint16(h.Flags))
	}
	for it.Next() {
		if i := it.Item(); i.LSN >= h.LSN || i.Stored.Epoch > h.Epoch {
			return p, malformed("snapshot's %q is of chunk %d, epoch %d", i.Ref, i.LSN, i.Stored.Epoch)
		}
	}
	return p, it.Err()
}

// staging is a snapshot whose parts are arriving. They are consecutive chunks
// of one epoch; anything else between them ends it (E1).
type staging struct {
	epoch      chunk.Epoch
	next       partHeader
	offsets    *table[stored]
	publishers *table[publisher]
	forgotten  int
}

func (g *staging) complete() bool { return g != nil && g.next.part == g.next.parts }

func newStaging(h *chunk.Header, p partHeader) *staging {
	return &staging{epoch: h.Epoch, next: p, offsets: newTable[stored](), publishers: newTable[publisher]()}
}

// stage takes the next part and returns the set it belongs to; nil if the start
// of that set was lost.
func (s *State) stage(h *chunk.Header, payload []byte, gap bool) (*staging, error) {
	p, err := checkPart(h, payload)
	if err != nil {
		return nil, err
	}
	g := s.staging
	if p.part == 0 {
		g = newStaging(h, p)
	} else if g == nil || gap || g.epoch != h.Epoch || g.next != p {
		return nil, nil
	}
	if err := g.load(h, payload); err != nil {
		s.staging = nil
		return nil, err
	}
	g.next.part++
	return g, nil
}

// load adds one part's items, which must go on in the order of all.
func (g *staging) load(h *chunk.Header, payload []byte) error {
	it := PartItemsIn(h, payload)
	for it.Next() {
		i := it.Item()
		if i.Publisher {
			if g.offsets.len() > 0 || g.publishers.find(i.Ref) != nil {
				return malformed("snapshot's publisher %q twice or out of order", i.Ref)
			}
			e := g.publishers.add(string(i.Ref), uint64(i.LSN), 0)
			e.value.sequence = i.Sequence
			if err := ordered(g.publishers, e); err != nil {
				return err
			}
			continue
		}
		if g.offsets.find(i.Ref) != nil {
			return malformed("snapshot's reference %q twice", i.Ref)
		}
		e := g.offsets.add(string(i.Ref), uint64(i.Stored.Epoch), i.Stored.Version)
		e.value = stored{offset: i.Stored.Offset, time: i.Stored.Time, forgotten: i.Forgotten}
		if err := ordered(g.offsets, e); err != nil {
			return err
		}
		if i.Forgotten {
			g.forgotten++
		}
	}
	return it.Err()
}

// adopt makes a complete snapshot the state.
func (s *State) adopt(g *staging) {
	s.offsets, s.publishers, s.forgotten = g.offsets, g.publishers, g.forgotten
	s.staging, s.known = nil, true
	s.trimOffsets()
	s.trimPublishers()
}
