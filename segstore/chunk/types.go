package chunk

import (
	"cmp"
	"fmt"
	"strconv"
)

// Offset numbers one record of a stream. User records are dense: control
// chunks take no offset, so Next − First is the number of records.
type Offset uint64

// LSN numbers one chunk of a log, of whatever type; the first is 1, and 0
// means "before the first chunk".
type LSN uint64

// Epoch numbers one leader's reign over a stream; the first is 1, and 0 means
// "before the first leader". Only the metadata raft gives out epochs (A1).
type Epoch uint64

// Incarnation names one life of a stream name: 64 random bits drawn by the
// proposer of the create. Every CRC of the stream's files starts from it.
type Incarnation uint64

// Digest is the running digest over user chunks (design 3.2): the first eight
// bytes of SHA-256 over the previous digest and the chunk's identity.
type Digest uint64

// Timestamp is Unix time in milliseconds.
type Timestamp int64

func (o Offset) String() string      { return fmt.Sprintf("%d", uint64(o)) }
func (l LSN) String() string         { return fmt.Sprintf("%d", uint64(l)) }
func (e Epoch) String() string       { return fmt.Sprintf("%d", uint64(e)) }
func (i Incarnation) String() string { return fmt.Sprintf("%016x", uint64(i)) }
func (d Digest) String() string      { return fmt.Sprintf("%016x", uint64(d)) }

// Tail is the position of a log's last chunk. Tails compare epoch first, then
// LSN (A4); the zero Tail is that of a log that never held a chunk.
type Tail struct {
	Epoch Epoch
	LSN   LSN
}

// Compare returns −1, 0 or +1 as t is below, equal to or above u.
func (t Tail) Compare(u Tail) int {
	if c := cmp.Compare(t.Epoch, u.Epoch); c != 0 {
		return c
	}
	return cmp.Compare(t.LSN, u.LSN)
}

func (t Tail) String() string { return fmt.Sprintf("%d/%d", uint64(t.Epoch), uint64(t.LSN)) }

// MarshalText writes the incarnation as String does, since decimal numbers of
// 64 bits do not survive every JSON reader.
func (i Incarnation) MarshalText() ([]byte, error) { return []byte(i.String()), nil }

// UnmarshalText reads what MarshalText wrote.
func (i *Incarnation) UnmarshalText(text []byte) error {
	n, err := strconv.ParseUint(string(text), 16, 64)
	if err != nil || len(text) != 16 {
		return fmt.Errorf("incarnation %q is not 16 hexadecimal digits", text)
	}
	*i = Incarnation(n)
	return nil
}
