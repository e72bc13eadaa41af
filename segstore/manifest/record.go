package manifest

import (
	"encoding/binary"
	"fmt"

	"github.com/millrace/millrace/segstore/chunk"
)

// Kind tells what a record says.
type Kind uint8

const (
	// KindBegin is the first record of every MANIFEST.
	KindBegin Kind = 1
	// KindSealed: a segment got its footer and is synced.
	KindSealed Kind = 2
	// KindReplaced: these generations are gone, that one takes their place. The
	// one commit point of a compaction or merge.
	KindReplaced Kind = 3
	// KindStart: the log starts here; above the tail it is a reset (C4).
	KindStart Kind = 4
	// KindLine: an epoch's line that no sealed summary holds.
	KindLine Kind = 5
	// KindCut: everything above LSN goes (C3); open until KindCutDone.
	KindCut Kind = 6
	// KindCutDone: the files agree with the last KindCut.
	KindCutDone Kind = 7
	// KindUnit: the segment that comes next, which begins at LSN, begins a unit of
	// retention, though the chunk that would say so is missing (C5).
	KindUnit Kind = 8
)

func (k Kind) String() string {
	names := [...]string{"", "begin", "sealed", "replaced", "start", "line", "cut", "cut done", "unit start"}
	if int(k) < len(names) && k != 0 {
		return names[k]
	}
	return fmt.Sprintf("kind %d", uint8(k))
}

// Start is where a log starts: its first chunk's LSN and offset, the epoch line
// that holds the LSN before, and the digest before the first chunk. A log that
// was never trimmed starts at LSN 1, offset 0, with a zero line.
type Start struct {
	LSN    chunk.LSN
	Offset chunk.Offset
	Line   EpochLine
	Digest chunk.Digest
}

// Tail returns the tail of a log that holds nothing yet (C4).
func (s *Start) Tail() chunk.Tail { return chunk.Tail{Epoch: s.Line.Epoch, LSN: s.LSN - 1} }

// Record is one record of a MANIFEST; Kind says which fields count.
type Record struct {
	Kind    Kind
	Summary Summary   // KindSealed, KindReplaced
	Old     []Name    // KindReplaced, ascending
	Start   Start     // KindStart
	Line    EpochLine // KindLine
	LSN     chunk.LSN // KindCut, KindCutDone, KindUnit
}

const (
	beginMagic   = 0xD34D4D01 // D3 'M' 'M', version 1
	beginLength  = 4 + 12
	startLength  = 4 + 24 + lineLength
	cutLength    = 4 + 8
	nameLength   = 12
	replacedHead = 4 + 4
)

// AppendRecord appends a record in its frame. The body starts with the kind and
// three reserved bytes.
func AppendRecord(dst []byte, inc chunk.Incarnation, r *Record) []byte {
	return AppendFrame(dst, inc, appendBody(make([]byte, 0, 512), inc, r))
}

func appendBody(b []byte, inc chunk.Incarnation, r *Record) []byte {
	be := binary.BigEndian
	b = append(b, byte(r.Kind), 0, 0, 0)
	switch r.Kind {
	case KindBegin:
		b = be.AppendUint32(b, beginMagic)
		b = be.AppendUint64(b, uint64(inc))
	case KindSealed:
		b = appendSummary(b, &r.Summary)
	case KindReplaced:
		b = be.AppendUint32(b, uint32(len(r.Old)))
		for _, n := range r.Old {
			b = be.AppendUint64(b, uint64(n.FirstLSN))
			b = be.AppendUint32(b, n.Generation)
		}
		b = appendSummary(b, &r.Summary)
	case KindStart:
		b = be.AppendUint64(b, uint64(r.Start.LSN))
		b = be.AppendUint64(b, uint64(r.Start.Offset))
		b = be.AppendUint64(b, uint64(r.Start.Digest))
		b = appendLine(b, r.Start.Line)
	case KindLine:
		b = appendLine(b, r.Line)
	case KindCut, KindCutDone, KindUnit:
		b = be.AppendUint64(b, uint64(r.LSN))
	default:
		panic(fmt.Sprintf("manifest: encode %s", r.Kind))
	}
	return b
}

// bodyLength tells how long the body that b starts with must be; −1 if its kind
// is unknown.
func bodyLength(b []byte) int {
	if len(b) < 8 {
		return -1
	}
	switch Kind(b[0]) {
	case KindBegin:
		return beginLength
	case KindSealed:
		if n := summaryLength(b[4:]); n >= 0 {
			return 4 + n
		}
	case KindReplaced:
		names := binary.BigEndian.Uint32(b[4:])
		if names > bodyLengthMax/nameLength || len(b) < replacedHead+nameLength*int(names) {
			return -1
		}
		at := replacedHead + nameLength*int(names)
		if n := summaryLength(b[at:]); n >= 0 {
			return at + n
		}
	case KindStart:
		return startLength
	case KindLine:
		return 4 + lineLength
	case KindCut, KindCutDone, KindUnit:
		return cutLength
	}
	return -1
}

// readBody reads one record; its CRC has been checked.
// Errors: ErrVersion for a kind or file version of a later program,
// ErrContradiction.
func readBody(inc chunk.Incarnation, b []byte) (Record, error) {
	if len(b) < 8 || b[1] != 0 || b[2] != 0 || b[3] != 0 {
		return Record{}, fmt.Errorf("%w: record of %d bytes", ErrContradiction, len(b))
	}
	r := Record{Kind: Kind(b[0])}
	if r.Kind > KindUnit {
		return Record{}, fmt.Errorf("%w: record of %s", ErrVersion, r.Kind)
	}
	if n := bodyLength(b); n != len(b) {
		return Record{}, fmt.Errorf("%w: %s record of %d bytes", ErrContradiction, r.Kind, len(b))
	}
	be := binary.BigEndian
	var err error
	switch r.Kind {
	case KindBegin:
		err = checkBegin(inc, b)
	case KindSealed:
		r.Summary, err = readSummary(b[4:])
	case KindReplaced:
		at := replacedHead
		for range be.Uint32(b[4:]) {
			r.Old = append(r.Old, Name{FirstLSN: chunk.LSN(be.Uint64(b[at:])), Generation: be.Uint32(b[at+8:])})
			at += nameLength
		}
		r.Summary, err = readSummary(b[at:])
	case KindStart:
		r.Start = Start{
			LSN: chunk.LSN(be.Uint64(b[4:])), Offset: chunk.Offset(be.Uint64(b[12:])),
			Digest: chunk.Digest(be.Uint64(b[20:])), Line: readLine(b[28:]),
		}
	case KindLine:
		r.Line = readLine(b[4:])
	case KindCut, KindCutDone, KindUnit:
		r.LSN = chunk.LSN(be.Uint64(b[4:]))
	}
	if err == nil && (r.Kind == KindSealed || r.Kind == KindReplaced) && r.Summary.Incarnation != inc {
		err = fmt.Errorf("%w: summary of incarnation %s", ErrContradiction, r.Summary.Incarnation)
	}
	return r, err
}

func checkBegin(inc chunk.Incarnation, b []byte) error {
	be := binary.BigEndian
	switch m := be.Uint32(b[4:]); {
	case m > beginMagic && m|0xff == beginMagic|0xff:
		return fmt.Errorf("%w: MANIFEST %08x", ErrVersion, m)
	case m != beginMagic || chunk.Incarnation(be.Uint64(b[8:])) != inc:
		return fmt.Errorf("%w: first record", ErrContradiction)
	}
	return nil
}

// Decode reads a whole MANIFEST: its records without the first, and the bytes
// of the file that are good; what is behind them is a torn append. An empty or
// wholly torn file gives no record and good 0.
// Errors: ErrDamaged, ErrVersion, ErrContradiction, with the records before.
func Decode(inc chunk.Incarnation, file []byte) (records []Record, good int, err error) {
	bodies, good, err := Frames(inc, file, 0, bodyLength, AllBefore)
	records = make([]Record, 0, max(len(bodies)-1, 0))
	for i, b := range bodies {
		r, bad := readBody(inc, b)
		if bad == nil && (i == 0) != (r.Kind == KindBegin) {
			bad = fmt.Errorf("%w: record %d is of %s", ErrContradiction, i, r.Kind)
		}
		if bad != nil {
			return records, good, bad
		}
		if i > 0 {
			records = append(records, r)
		}
	}
	return records, good, err
}

// Encode returns a whole MANIFEST of these records.
func Encode(inc chunk.Incarnation, records []Record) []byte {
	b := AppendRecord(nil, inc, &Record{Kind: KindBegin})
	for i := range records {
		b = AppendRecord(b, inc, &records[i])
	}
	return b
}

// rewriteFloor spares small files the rewriting.
const rewriteFloor = 64 << 10

// WorthRewriting tells whether a file of so many bytes, of which live would
// remain, should be rewritten: at twice its live size.
func WorthRewriting(size, live int64) bool { return size > rewriteFloor && size > 2*live }
