package protocol

import "github.com/millrace/millrace/segstore/chunk"

// backlog holds, for each chunk above the commit that this run has seen, where
// its records end and how many bytes it has. It is a ring that grows to the
// largest backlog and then allocates no more.
type backlog struct {
	ring  []mark
	head  int       // index of the entry of LSN first
	n     int       // entries
	first chunk.LSN // LSN of the oldest entry
	bytes int64     // of all entries
}

type mark struct {
	next  chunk.Offset
	bytes uint32
}

func (b *backlog) at(i int) *mark { return &b.ring[(b.head+i)&(len(b.ring)-1)] }

// push adds a chunk; one that does not follow the last starts afresh, since
// only what is committed can be missing.
func (b *backlog) push(c *Chunk) {
	if b.n == 0 || c.LSN != b.first+chunk.LSN(b.n) {
		b.head, b.n, b.bytes, b.first = 0, 0, 0, c.LSN
	}
	if b.n == len(b.ring) {
		b.grow()
	}
	b.n++
	*b.at(b.n - 1) = mark{c.Next(), c.Bytes}
	b.bytes += int64(c.Bytes)
}

func (b *backlog) grow() {
	ring := make([]mark, max(64, 2*len(b.ring)))
	for i := range b.n {
		ring[i] = *b.at(i)
	}
	b.ring, b.head = ring, 0
}

// release drops what is committed up to n and returns where its records end;
// ok is false if nothing seen here was at or below n.
func (b *backlog) release(n chunk.LSN) (next chunk.Offset, ok bool) {
	for b.n > 0 && b.first <= n {
		m := b.at(0)
		next, ok = m.next, true
		b.bytes -= int64(m.bytes)
		b.head = (b.head + 1) & (len(b.ring) - 1)
		b.first++
		b.n--
	}
	return next, ok
}

// truncate drops what lies above n.
func (b *backlog) truncate(n chunk.LSN) {
	for b.n > 0 && b.first+chunk.LSN(b.n)-1 > n {
		b.n--
		b.bytes -= int64(b.at(b.n).bytes)
	}
}
