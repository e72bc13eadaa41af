package chunk

import "errors"

// The checks a chunk can fail, each a sentinel so that recovery can tell a
// torn tail from damage and damage from a newer program's file. Decode, Verify
// and the iterators wrap exactly one of them.
var (
	// ErrShort: fewer bytes than the chunk, or the part asked for, claims.
	ErrShort = errors.New("chunk: cut short")
	// ErrMagic: the bytes do not start like a chunk.
	ErrMagic = errors.New("chunk: bad magic")
	// ErrVersion: a whole, undamaged chunk of a format this program is too old for.
	ErrVersion = errors.New("chunk: written by a newer version of the format")
	// ErrLength: a length is outside of the limits of the format.
	ErrLength = errors.New("chunk: length out of limits")
	// ErrHeadCRC: storage header, filter, trailer or client header are damaged,
	// or belong to another incarnation.
	ErrHeadCRC = errors.New("chunk: bad CRC of the head")
	// ErrDataCRC: the data section is damaged.
	ErrDataCRC = errors.New("chunk: bad CRC of the data")
	// ErrReserved: bits that this version writes as zero are not zero.
	ErrReserved = errors.New("chunk: reserved bits are set")
	// ErrMalformed: the CRCs hold but the fields contradict each other. Only a
	// faulty writer produces that.
	ErrMalformed = errors.New("chunk: contradictory fields")
	// ErrEntries: the data section is not the entries and records it claims.
	ErrEntries = errors.New("chunk: entries do not match the header")
)
