package segstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

// Aside says why a replica receives but counts for nothing.
type Aside uint8

const (
	// NotAside: the replica counts.
	NotAside Aside = iota
	// AsideLearner: new here; it has not caught up yet (D1).
	AsideLearner
	// AsideJournalLost: the node's journal was lost or damaged, and with it the
	// replica's promise.
	AsideJournalLost
	// AsideDamaged: damage leaves tail or tracking unproven (A7).
	AsideDamaged
)

func (a Aside) String() string {
	switch a {
	case NotAside:
		return "not aside"
	case AsideLearner:
		return "learner"
	case AsideJournalLost:
		return "journal lost"
	case AsideDamaged:
		return "damaged"
	}
	return fmt.Sprintf("aside %d", uint8(a))
}

// StreamState is what a replica must remember apart from its chunks.
type StreamState struct {
	// Promise is the highest epoch that the replica promised (A2).
	Promise chunk.Epoch
	// Commit is the highest LSN that it knows to be committed, never above Mark.
	Commit chunk.LSN
	// Mark is the durable mark: everything up to it was synced.
	Mark chunk.LSN
	// Registration is the metadata's entry that the replica knows itself by
	// (D1); 0 is the one that came with the stream.
	Registration uint64
	Aside        Aside
}

const (
	journalMagic      = 0xD34D4A01 // D3 'M' 'J', version 1
	journalHeadLength = 4 + 8
	journalKindHead   = 1
	journalKindState  = 2
	journalKindGone   = 3
	journalBegin      = 4 + journalHeadLength
	journalState      = 4 + 48
	journalGone       = 4 + 16
)

// errJournalDamaged reports a journal that can't be believed.
var errJournalDamaged = errors.New("segstore: node journal is damaged")

// The journal is a file of frames, as MANIFEST is (manifest.AppendFrame). Its
// CRCs start from the id in the first record, which is written before the id
// is known and so starts from 0:
//
//	begin  1 0 0 0 | magic u32 | id u64
//	state  2 aside 0 0 | incarnation u64 | synced u64 | promise u64 |
//	       commit u64 | mark u64 | registration u64
//	gone   3 0 0 0 | incarnation u64 | synced u64
//
// A state record says all about its stream; the last one counts. Synced is the
// position in the file up to which everything was durable when the record was
// written: since one sync covers many records, a power loss may keep a later one
// and lose an earlier.
func appendJournalBegin(dst []byte, id chunk.Incarnation) []byte {
	be := binary.BigEndian
	b := make([]byte, 0, journalBegin)
	b = append(b, journalKindHead, 0, 0, 0)
	b = be.AppendUint32(b, journalMagic)
	b = be.AppendUint64(b, uint64(id))
	return manifest.AppendFrame(dst, 0, b)
}

func appendJournalState(dst []byte, id, inc chunk.Incarnation, synced int64, s *StreamState) []byte {
	be := binary.BigEndian
	var room [journalState]byte
	b := append(room[:0], journalKindState, byte(s.Aside), 0, 0)
	b = be.AppendUint64(b, uint64(inc))
	b = be.AppendUint64(b, uint64(synced))
	b = be.AppendUint64(b, uint64(s.Promise))
	b = be.AppendUint64(b, uint64(s.Commit))
	b = be.AppendUint64(b, uint64(s.Mark))
	b = be.AppendUint64(b, s.Registration)
	return manifest.AppendFrame(dst, id, b)
}

func appendJournalGone(dst []byte, id, inc chunk.Incarnation, synced int64) []byte {
	be := binary.BigEndian
	b := be.AppendUint64([]byte{journalKindGone, 0, 0, 0}, uint64(inc))
	b = be.AppendUint64(b, uint64(synced))
	return manifest.AppendFrame(dst, id, b)
}

func journalBodyLength(b []byte) int {
	if len(b) < 1 {
		return -1
	}
	switch b[0] {
	case journalKindHead:
		return journalBegin
	case journalKindState:
		return journalState
	case journalKindGone:
		return journalGone
	}
	return -1
}

// journalFirst is where the records behind the first begin.
const journalFirst = 8 + journalBegin

// journalSynced tells how many bytes behind the first record a record at a
// position proves to have been durable.
func journalSynced(body []byte, at int) int {
	if body[0] == journalKindHead {
		return at // it has no place here, so nothing is torn
	}
	synced := binary.BigEndian.Uint64(body[12:])
	return int(min(synced, math.MaxInt32)) - journalFirst
}

// decodeJournal reads a whole journal: its id, the states, and how many bytes
// are good; behind them is a torn append.
// Errors: errJournalDamaged, ErrVersion.
func decodeJournal(b []byte) (id chunk.Incarnation, states map[chunk.Incarnation]StreamState, good int, err error) {
	be := binary.BigEndian
	const first = journalFirst
	if len(b) < first {
		return 0, nil, 0, fmt.Errorf("%w: %d bytes", errJournalDamaged, len(b))
	}
	head, _, err := manifest.Frames(0, b[:first], 0, journalBodyLength, manifest.AllBefore)
	if err != nil || len(head) != 1 || len(head[0]) != journalBegin || head[0][0] != journalKindHead {
		return 0, nil, 0, fmt.Errorf("%w: first record", errJournalDamaged)
	}
	switch m := be.Uint32(head[0][4:]); {
	case m > journalMagic && m|0xff == journalMagic|0xff:
		return 0, nil, 0, fmt.Errorf("%w: journal %08x", ErrVersion, m)
	case m != journalMagic:
		return 0, nil, 0, fmt.Errorf("%w: magic %08x", errJournalDamaged, m)
	}
	id = chunk.Incarnation(be.Uint64(head[0][8:]))
	bodies, good, err := manifest.Frames(id, b[first:], first, journalBodyLength, journalSynced)
	if err != nil {
		return 0, nil, 0, fmt.Errorf("%w: %w", errJournalDamaged, err)
	}
	states = make(map[chunk.Incarnation]StreamState)
	for _, r := range bodies {
		if len(r) == 0 || len(r) != journalBodyLength(r) || r[0] == journalKindHead {
			return 0, nil, 0, fmt.Errorf("%w: record of %d bytes", errJournalDamaged, len(r))
		}
		inc := chunk.Incarnation(be.Uint64(r[4:]))
		if r[0] == journalKindGone {
			delete(states, inc)
			continue
		}
		states[inc] = StreamState{
			Aside: Aside(r[1]), Promise: chunk.Epoch(be.Uint64(r[20:])),
			Commit: chunk.LSN(be.Uint64(r[28:])), Mark: chunk.LSN(be.Uint64(r[36:])),
			Registration: be.Uint64(r[44:]),
		}
	}
	return id, states, first + good, nil
}
