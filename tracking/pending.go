package tracking

import (
	"encoding/binary"
	"strings"

	"github.com/millrace/millrace/segstore/chunk"
)

// Outcome is what a store came to.
type Outcome uint8

const (
	// Same: the reference has this value already; only its time moves.
	Same Outcome = iota
	// Forward: the value waits to be written, under the budget.
	Forward
	// Back: the value is below the one before, and must be written at once
	// (F6): its loss would be a skip.
	Back
)

// Pending holds the last update of each reference that no chunk of this log
// carries so far: on a leader its own, on a follower those the leader has told
// it of (F5). A replica has one for life; a deposed leader's own updates stay in
// it under their old epoch. Make one with NewPending.
type Pending struct {
	// updates are in the order of (epoch, version).
	updates *table[update]
	most    int
	epoch   chunk.Epoch // a leader's own; 0 when not leading
	version uint64      // the last one given out in that epoch
	// bytes estimates what the updates take in a payload.
	bytes   int
	dropped uint64
}

// update is an entry's value in Pending; epoch and version are its key.
type update struct {
	offset chunk.Offset
	time   chunk.Timestamp
	forget bool
}

// NewPending makes an empty set of at most caps.Offsets references; beyond
// that the oldest update goes, as it would from the state.
func NewPending(caps Caps) *Pending {
	return &Pending{updates: newTable[update](), most: caps.orDefault().Offsets}
}

// Lead empties the set and starts to count the versions of a leader's epoch.
func (p *Pending) Lead(epoch chunk.Epoch) {
	p.Clear()
	p.epoch, p.version = epoch, 0
}

// Len returns the number of updates.
func (p *Pending) Len() int { return p.updates.len() }

// Bytes estimates what the updates take in a trailer or delta.
func (p *Pending) Bytes() int { return p.bytes }

// Dropped counts the updates that went because the set was full.
func (p *Pending) Dropped() uint64 { return p.dropped }

// Version returns the newest version of the leader's epoch: what AppendSince
// goes on from.
func (p *Pending) Version() uint64 { return p.version }

// Lookup returns a reference's pending update.
func (p *Pending) Lookup(ref []byte) (Update, bool) {
	e := p.updates.find(ref)
	if e == nil {
		return Update{}, false
	}
	return updateOf(e), true
}

// Current returns a reference's stored offset as the leader answers it: the
// pending one, else the state's.
func (p *Pending) Current(s *State, ref []byte) (chunk.Offset, bool) {
	return value(p.find(s, ref))
}

// Store takes a client's store on the leader.
func (p *Pending) Store(s *State, ref []byte, offset chunk.Offset, now chunk.Timestamp) Outcome {
	e, known := p.find(s, ref)
	current, has := value(e, known)
	if has && current == offset {
		if e != nil {
			e.value.time = max(e.value.time, now)
		}
		s.Refresh(ref, now)
		return Same
	}
	p.set(e, known, ref, update{offset: offset, time: now})
	if has && offset < current {
		return Back
	}
	return Forward
}

// Forget takes an operator's deletion on the leader; it tells whether the
// reference had an offset.
func (p *Pending) Forget(s *State, ref []byte, now chunk.Timestamp) bool {
	e, known := p.find(s, ref)
	if _, has := value(e, known); !has {
		return false
	}
	p.set(e, known, ref, update{forget: true, time: now})
	return true
}

// find returns a reference's pending update and, only if there is none, what
// the state has of it.
func (p *Pending) find(s *State, ref []byte) (*entry[update], *entry[stored]) {
	if e := p.updates.find(ref); e != nil {
		return e, nil
	}
	return nil, s.offsets.find(ref)
}

// value is the offset that what find has found stands for.
func value(e *entry[update], known *entry[stored]) (offset chunk.Offset, has bool) {
	switch {
	case e != nil:
		return e.value.offset, !e.value.forget
	case known != nil:
		return known.value.offset, !known.value.forgotten
	}
	return 0, false
}

// set gives a reference its newest update. The reference's string is the
// state's where that has it, so that nothing is allocated in the long run.
func (p *Pending) set(e *entry[update], known *entry[stored], ref []byte, u update) {
	p.version++
	switch {
	case e != nil:
		p.bytes -= updateBytes(e)
		p.updates.move(e, uint64(p.epoch), p.version)
	case known != nil:
		e = p.updates.add(known.ref, uint64(p.epoch), p.version)
	default:
		e = p.updates.add(string(ref), uint64(p.epoch), p.version)
	}
	e.value = u
	p.bytes += updateBytes(e)
	p.trim()
}

// updateBytes estimates an update's bytes, with 2 for the version's step.
func updateBytes(e *entry[update]) int {
	return 2 + len(e.ref) + 2 + uvarintLength(uint64(e.value.offset))
}

func updateOf(e *entry[update]) Update {
	return Update{
		Ref: e.ref, Offset: e.value.offset, Forget: e.value.forget, Time: e.value.time,
		Epoch: chunk.Epoch(e.major), Version: e.minor,
	}
}

func (p *Pending) remove(e *entry[update]) {
	p.bytes -= updateBytes(e)
	p.updates.remove(e)
}

func (p *Pending) trim() {
	for p.updates.len() > p.most {
		p.remove(p.updates.front())
		p.dropped++
	}
}

// Clear drops every update: a snapshot carries them, or a session's new set
// replaces them.
func (p *Pending) Clear() {
	p.updates.clear()
	p.bytes = 0
}

// Take moves updates into dst, the oldest first, as many as fit into bytesMax
// of payload. What it takes is on its way into a chunk, or lost with the run.
func (p *Pending) Take(dst []Update, bytesMax int) []Update {
	if p.updates.refBytes+p.updates.len()*UpdateLengthMax(0) <= bytesMax {
		dst = p.Append(dst)
		p.Clear() // costs less than one removal after the other
		return dst
	}
	for e := p.updates.front(); e != nil; e = p.updates.front() {
		bytesMax -= UpdateLengthMax(len(e.ref))
		if bytesMax < 0 {
			break
		}
		dst = append(dst, updateOf(e))
		p.remove(e)
	}
	return dst
}

// AppendSince appends the leader's own updates above the given version, the
// oldest first: what the followers have not been told of.
func (p *Pending) AppendSince(dst []Update, version uint64) []Update {
	e := p.updates.back()
	if e == nil || chunk.Epoch(e.major) != p.epoch || e.minor <= version {
		return dst
	}
	for e.prev != &p.updates.root && chunk.Epoch(e.prev.major) == p.epoch && e.prev.minor > version {
		e = e.prev
	}
	for ; e != nil; e = p.updates.after(e) {
		dst = append(dst, updateOf(e))
	}
	return dst
}

// Append appends every update in the order of (epoch, version): the report of
// an election, or the first frame of a session.
func (p *Pending) Append(dst []Update) []Update {
	for e := p.updates.front(); e != nil; e = p.updates.after(e) {
		dst = append(dst, updateOf(e))
	}
	return dst
}

// Add takes one update of whatever epoch; of two for one reference the one with
// the highest (epoch, version) stays, never the larger offset (F5).
func (p *Pending) Add(u Update) {
	e := p.updates.byRef[u.Ref]
	if e == nil {
		e = p.updates.add(strings.Clone(u.Ref), uint64(u.Epoch), u.Version)
	} else {
		if !newer(u.Epoch, u.Version, e) {
			return
		}
		p.bytes -= updateBytes(e)
		p.updates.move(e, uint64(u.Epoch), u.Version)
	}
	e.value = update{offset: u.Offset, time: u.Time, forget: u.Forget}
	p.bytes += updateBytes(e)
	p.trim()
}

// Merge takes updates as Add does.
func (p *Pending) Merge(updates []Update) {
	for i := range updates {
		p.Add(updates[i])
	}
}

func newer(epoch chunk.Epoch, version uint64, than *entry[update]) bool {
	if uint64(epoch) != than.major {
		return uint64(epoch) > than.major
	}
	return version > than.minor
}

// Observe drops what a chunk that a follower has taken makes void (F5): all
// updates of earlier epochs, and of its own epoch those whose reference has an
// item with a version that is not lower. The payload is one that State.Apply
// has accepted.
func (p *Pending) Observe(h *chunk.Header, payload []byte) {
	for e := p.updates.front(); e != nil && chunk.Epoch(e.major) < h.Epoch; e = p.updates.front() {
		p.remove(e)
	}
	if p.Len() == 0 || len(payload) == 0 {
		return
	}
	if h.Type == chunk.Snapshot {
		for it := PartItemsIn(h, payload); it.Next(); {
			if i := it.Item(); !i.Publisher && i.Stored.Epoch == h.Epoch {
				p.cover(i.Ref, h.Epoch, i.Stored.Version)
			}
		}
		return
	}
	for it := ItemsIn(payload); it.Next(); {
		if i := it.Item(); !i.Publisher {
			p.cover(i.Ref, h.Epoch, i.Version)
		}
	}
}

func (p *Pending) cover(ref []byte, epoch chunk.Epoch, version uint64) {
	if e := p.updates.find(ref); e != nil && chunk.Epoch(e.major) == epoch && e.minor <= version {
		p.remove(e)
	}
}

// ForBarrier takes what the winner of an election writes into its barrier out
// of the merged set: updates of an epoch above the tail's, and those of the
// tail's own that the state does not cover. The rest is dropped, and so are the
// oldest that don't fit one chunk. The set is then empty.
func (p *Pending) ForBarrier(s *State, tail chunk.Tail) []Update {
	var out []Update
	room := chunk.TrailerLengthMax
	for e := p.updates.back(); e != nil; e = p.updates.back() {
		if writes(s, tail, e) {
			if room -= UpdateLengthMax(len(e.ref)); room >= 0 {
				out = append(out, updateOf(e))
			} else {
				p.dropped++
			}
		}
		p.remove(e)
	}
	return out
}

func writes(s *State, tail chunk.Tail, e *entry[update]) bool {
	if chunk.Epoch(e.major) != tail.Epoch {
		return chunk.Epoch(e.major) > tail.Epoch
	}
	in := s.offsets.byRef[e.ref]
	return in == nil || in.before(&entry[stored]{ref: e.ref, major: e.major, minor: e.minor})
}

// EncodeUpdates appends updates as links and election reports carry them: at
// most bytesMax bytes, for which those at the front, the oldest, are left out.
//
//	+-------+-----+-----------+-------+---------+--------+------+
//	| 0 | 1 | len | reference | epoch | version | offset | time |  …
//	+-------+-----+-----------+-------+---------+--------+------+
//
// where 1 says forgotten, numbers are uvarints and the time is zigzag.
func EncodeUpdates(dst []byte, updates []Update, bytesMax int) []byte {
	from := len(updates)
	for n := 0; from > 0; from-- {
		if n += encodedLength(&updates[from-1]); n > bytesMax {
			break
		}
	}
	for i := range updates[from:] {
		u := &updates[from+i]
		dst = appendRef(append(dst, flag(u.Forget, 1)), u.Ref)
		dst = binary.AppendUvarint(dst, uint64(u.Epoch))
		dst = binary.AppendUvarint(dst, u.Version)
		dst = binary.AppendUvarint(dst, uint64(u.Offset))
		dst = binary.AppendUvarint(dst, zigzag(int64(u.Time)))
	}
	return dst
}

// UpdatesWithin is how many updates, from the front, EncodeUpdates writes into so
// many bytes.
func UpdatesWithin(updates []Update, bytesMax int) int {
	for i := range updates {
		if bytesMax -= encodedLength(&updates[i]); bytesMax < 0 {
			return i
		}
	}
	return len(updates)
}

func encodedLength(u *Update) int {
	return 2 + len(u.Ref) + uvarintLength(uint64(u.Epoch)) + uvarintLength(u.Version) +
		uvarintLength(uint64(u.Offset)) + uvarintLength(zigzag(int64(u.Time)))
}

func zigzag(v int64) uint64 { return uint64(v)<<1 ^ uint64(v>>63) }

// DecodeUpdates appends the updates that EncodeUpdates wrote, at most most of
// them. Their references are copies. Error: ErrMalformed.
func DecodeUpdates(dst []Update, b []byte, most int) ([]Update, error) {
	r := &reader{b: b}
	for n := 0; !r.done(); n++ {
		if n == most {
			return dst, malformed("more than %d updates", most)
		}
		forget, ref := r.byte(), r.ref()
		u := Update{Ref: string(ref), Forget: forget == 1}
		u.Epoch, u.Version = chunk.Epoch(r.uvarint()), r.uvarint()
		u.Offset, u.Time = chunk.Offset(r.uvarint()), chunk.Timestamp(r.varint())
		if r.failed || forget > 1 {
			return dst, malformed("update %d does not decode", n)
		}
		dst = append(dst, u)
	}
	return dst, nil
}
