package tracking

import (
	"fmt"
	"iter"

	"github.com/millrace/millrace/segstore/chunk"
)

// Caps bound a stream's state. Beyond them the least recently used goes, by LSN
// or (epoch, version). A zero field takes the default.
type Caps struct {
	Offsets    int // stored offsets, 10,000 by default
	Publishers int // publishers with a sequence, 65,536 by default
}

// The default caps.
const (
	OffsetsMaxDefault    = 10_000
	PublishersMaxDefault = 65_536
)

func (c Caps) orDefault() Caps {
	if c.Offsets <= 0 {
		c.Offsets = OffsetsMaxDefault
	}
	if c.Publishers <= 0 {
		c.Publishers = PublishersMaxDefault
	}
	return c
}

// Stored is a reference's stored offset.
type Stored struct {
	Offset chunk.Offset
	// Time is that of the chunk that carried the last update, or what a
	// snapshot said.
	Time chunk.Timestamp
	// Epoch and Version order the stores (F8); a barrier's version is 0.
	Epoch   chunk.Epoch
	Version uint64
}

// Sequence is a publisher's last publishing id and the chunk that holds its
// message: a duplicate may be confirmed once LSN is committed (F2).
type Sequence struct {
	Last uint64
	LSN  chunk.LSN
}

// State is the fold of a log's tracking up to its last applied chunk. Make one
// with New; one goroutine at a time uses it.
type State struct {
	caps       Caps
	offsets    *table[stored]
	publishers *table[publisher]
	shorts     shortIDs
	// staging collects a snapshot whose last part is still to come.
	staging *staging
	last    chunk.Tail
	known   bool
	// forgotten counts the entries of offsets that only remember a deletion.
	forgotten         int
	offsetsEvicted    uint64
	publishersEvicted uint64
}

// stored is an entry's value in offsets; epoch and version are its key.
type stored struct {
	offset chunk.Offset
	time   chunk.Timestamp
	// refreshed is the time of a later store of the same value, which no chunk
	// carries: not part of the fold, but a snapshot's time for the id.
	refreshed chunk.Timestamp
	// forgotten keeps a deletion's version for the rest of its epoch, so that no
	// older pending update brings the id back (F5).
	forgotten bool
}

// publisher is an entry's value in publishers; the LSN is its key.
type publisher struct {
	sequence uint64
	short    shortID
}

// New makes the state before the chunk with LSN first. Before LSN 1 it is
// empty and known (E1); anywhere else it is unknown until a complete snapshot
// has been applied (F9).
func New(caps Caps, first chunk.LSN) *State {
	s := &State{
		caps: caps.orDefault(), known: first <= 1,
		offsets: newTable[stored](), publishers: newTable[publisher](),
	}
	// LSN 1 opens the first segment, whatever its flags.
	s.shorts = shortIDs{valid: s.known, segment: 1}
	if first > 0 {
		s.last.LSN = first - 1
	}
	return s
}

// Known tells whether the fold says everything (F9). If not, no lookup here
// proves anything: such queries go to the leader.
func (s *State) Known() bool { return s.known }

// Last returns the place of the last applied chunk.
func (s *State) Last() chunk.Tail { return s.last }

// Assembling tells whether the last applied chunk is a snapshot part that is
// not the last of its set.
func (s *State) Assembling() bool { return s.staging != nil }

// Offset returns a reference's stored offset.
func (s *State) Offset(ref []byte) (Stored, bool) {
	e := s.offsets.find(ref)
	if e == nil || e.value.forgotten {
		return Stored{}, false
	}
	return storedOf(e), true
}

func storedOf(e *entry[stored]) Stored {
	return Stored{Offset: e.value.offset, Time: e.value.time, Epoch: chunk.Epoch(e.major), Version: e.minor}
}

// Sequence returns a publisher's last sequence.
func (s *State) Sequence(ref []byte) (Sequence, bool) {
	e := s.publishers.find(ref)
	if e == nil {
		return Sequence{}, false
	}
	return Sequence{Last: e.value.sequence, LSN: chunk.LSN(e.major)}, true
}

// Offsets yields every stored offset, the least recently updated first.
func (s *State) Offsets() iter.Seq2[string, Stored] {
	return func(yield func(string, Stored) bool) {
		for e := s.offsets.front(); e != nil; e = s.offsets.after(e) {
			if !e.value.forgotten && !yield(e.ref, storedOf(e)) {
				return
			}
		}
	}
}

// Publishers yields every publisher, the least recently seen first.
func (s *State) Publishers() iter.Seq2[string, Sequence] {
	return func(yield func(string, Sequence) bool) {
		for e := s.publishers.front(); e != nil; e = s.publishers.after(e) {
			if !yield(e.ref, Sequence{Last: e.value.sequence, LSN: chunk.LSN(e.major)}) {
				return
			}
		}
	}
}

// Stats tells how full the state is and whether its caps have bitten.
type Stats struct {
	Known                     bool
	Offsets, OffsetsMax       int
	Publishers, PublishersMax int
	ShortIDs                  int // in the present segment
	// Evicted count what the caps took since New or DecodeCheckpoint.
	OffsetsEvicted, PublishersEvicted uint64
	// SnapshotBytesMax is no less than a snapshot's payloads taken together.
	SnapshotBytesMax int64
}

// Stats returns the figures of now.
func (s *State) Stats() Stats {
	return Stats{
		Known:             s.known,
		Offsets:           s.offsets.len() - s.forgotten,
		OffsetsMax:        s.caps.Offsets,
		Publishers:        s.publishers.len(),
		PublishersMax:     s.caps.Publishers,
		ShortIDs:          len(s.shorts.refs),
		OffsetsEvicted:    s.offsetsEvicted,
		PublishersEvicted: s.publishersEvicted,
		SnapshotBytesMax: int64(s.offsets.refBytes) + int64(s.offsets.len())*storedLengthMax +
			int64(s.publishers.refBytes) + int64(s.publishers.len())*publisherLengthMax + partHeaderLength,
	}
}

// Refresh notes that a reference stored the value it has already: nothing is
// written, but the next snapshot gives the id this time.
func (s *State) Refresh(ref []byte, now chunk.Timestamp) {
	if e := s.offsets.find(ref); e != nil && !e.value.forgotten {
		e.value.refreshed = max(e.value.refreshed, now)
	}
}

// Apply folds the next chunk: payload is its trailer, or a control chunk's
// payload. An LSN that leaves a gap, and a stripped chunk, make the state
// unknown until the next complete snapshot.
//
// Errors: ErrOrder, ErrMalformed. The state is then as before, except that a
// snapshot whose parts were arriving is given up.
func (s *State) Apply(h *chunk.Header, payload []byte) error {
	if h.LSN <= s.last.LSN || h.Epoch < s.last.Epoch {
		return fmt.Errorf("%w: %v after %v", ErrOrder, h.Tail(), s.last)
	}
	gap := h.LSN != s.last.LSN+1
	shorts := s.shorts.at(h, gap)
	var set *staging
	var err error
	if h.Type == chunk.Snapshot {
		set, err = s.stage(h, payload, gap)
	} else {
		err = checkUpdates(h, payload, &shorts)
	}
	if err != nil {
		return fmt.Errorf("apply %s chunk %d: %w", h.Type, h.LSN, err)
	}

	if gap || h.Has(chunk.FlagStripped) {
		s.known = false
	}
	if h.Epoch > s.last.Epoch {
		s.dropForgotten()
	}
	s.last, s.shorts, s.staging = h.Tail(), shorts, set
	switch {
	case h.Type != chunk.Snapshot:
		s.applyUpdates(h, payload)
	case set.complete():
		s.adopt(set)
	}
	return nil
}

// Check tells what Apply would find wrong with a chunk's payload taken alone,
// before anything of the chunk is written. Whether parts of a snapshot belong
// together only Apply tells. Error: ErrMalformed.
func (s *State) Check(h *chunk.Header, payload []byte) error {
	var err error
	if h.Type == chunk.Snapshot {
		if _, err = checkPart(h, payload); err == nil {
			err = newStaging(h, partHeader{}).load(h, payload)
		}
	} else {
		shorts := s.shorts.at(h, h.LSN != s.last.LSN+1)
		err = checkUpdates(h, payload, &shorts)
	}
	if err != nil {
		return fmt.Errorf("check %s chunk %d: %w", h.Type, h.LSN, err)
	}
	return nil
}

// dropForgotten lets go of deletions once a later epoch has begun: pending
// updates of theirs can't be written any more (F5).
func (s *State) dropForgotten() {
	for e := s.offsets.front(); e != nil && s.forgotten > 0; {
		next := s.offsets.after(e)
		if e.value.forgotten {
			s.offsets.remove(e)
			s.forgotten--
		}
		e = next
	}
}

func (s *State) setOffset(ref []byte, epoch chunk.Epoch, version uint64, v stored) {
	e := s.offsets.find(ref)
	if e == nil {
		e = s.offsets.add(string(ref), uint64(epoch), version)
	} else {
		if e.value.forgotten {
			s.forgotten--
		}
		s.offsets.move(e, uint64(epoch), version)
	}
	if v.forgotten {
		s.forgotten++
	}
	e.value = v
	s.trimOffsets()
}

// trimOffsets keeps to the cap. Deletions go first: what an operator has cleared
// away must push out nobody who is there.
func (s *State) trimOffsets() {
	for s.offsets.len() > s.caps.Offsets {
		e := s.offsets.front()
		for s.forgotten > 0 && !e.value.forgotten {
			e = s.offsets.after(e)
		}
		if e.value.forgotten {
			s.forgotten--
		} else {
			s.offsetsEvicted++
		}
		s.offsets.remove(e)
	}
}

func (s *State) forgetSequence(ref []byte) {
	if e := s.publishers.find(ref); e != nil {
		s.publishers.remove(e)
	}
}

// sequenceEntry finds or makes a publisher's entry with the chunk's LSN.
func (s *State) sequenceEntry(ref []byte, lsn chunk.LSN) *entry[publisher] {
	e := s.publishers.find(ref)
	if e == nil {
		return s.publishers.add(string(ref), uint64(lsn), 0)
	}
	s.publishers.move(e, uint64(lsn), 0)
	return e
}

func (s *State) trimPublishers() { s.publishersEvicted += s.publishers.trim(s.caps.Publishers) }
