package segstore

import (
	"sync"

	"github.com/millrace/millrace/segstore/chunk"
)

// cacheBytesDefault bounds the chunks that a node keeps in memory for readers
// at the tails.
const cacheBytesDefault = 64 << 20

// cache keeps the newest chunks of all logs of a node, oldest out first, so
// that readers at a tail never touch the disk.
type cache struct {
	// mu guards everything below and the cachedLogs.
	mu    sync.Mutex
	max   int64
	used  int64
	order ring[*cachedLog] // one entry for each chunk put, oldest first
	stats CacheStats
}

// CacheStats counts a cache's work since the store was opened.
type CacheStats struct {
	Bytes, BytesMax int64
	Chunks          int
	Hits, Misses    uint64
}

// cachedLog is one log's share.
// Invariant: chunks have consecutive LSNs, and order holds at least as many
// entries for this log as it has chunks.
type cachedLog struct {
	chunks ring[*Chunk]
}

// put adds a log's newest chunk and takes a count of it.
func (c *cache) put(l *cachedLog, ch *Chunk) {
	if ch.memory() > c.max {
		return
	}
	ch.Retain()
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := l.chunks.len(); n > 0 && l.chunks.at(n-1).Header.LSN+1 != ch.Header.LSN {
		c.drop(l, 0)
	}
	l.chunks.push(ch)
	c.order.push(l)
	c.used += ch.memory()
	c.stats.Chunks++
	for c.used > c.max {
		c.evict()
	}
}

// evict lets the oldest chunk go. An entry whose log was cut meanwhile evicts
// another chunk of that log, or none.
func (c *cache) evict() {
	l := c.order.popFront()
	if l.chunks.len() > 0 {
		c.forget(l.chunks.popFront())
	}
}

func (c *cache) forget(ch *Chunk) {
	c.used -= ch.memory()
	c.stats.Chunks--
	ch.Release()
}

// get returns a log's chunk with a count for the caller, nil if it is not here.
func (c *cache) get(l *cachedLog, lsn chunk.LSN) *Chunk {
	c.mu.Lock()
	defer c.mu.Unlock()
	if n := l.chunks.len(); n > 0 {
		first := l.chunks.at(0).Header.LSN
		if lsn >= first && lsn < first+chunk.LSN(n) {
			ch := l.chunks.at(int(lsn - first))
			ch.Retain()
			c.stats.Hits++
			return ch
		}
	}
	c.stats.Misses++
	return nil
}

// cut drops a log's chunks above an LSN.
func (c *cache) cut(l *cachedLog, above chunk.LSN) {
	c.mu.Lock()
	defer c.mu.Unlock()
	keep := 0
	if n := l.chunks.len(); n > 0 {
		if first := l.chunks.at(0).Header.LSN; above+1 > first {
			keep = min(n, int(above+1-first))
		}
	}
	c.drop(l, keep)
}

// drop lets all but a log's first keep chunks go. mu is held.
func (c *cache) drop(l *cachedLog, keep int) {
	for l.chunks.len() > keep {
		c.forget(l.chunks.popBack())
	}
}

func (c *cache) snapshot() CacheStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Bytes, s.BytesMax = c.used, c.max
	return s
}

// ring is a double-ended queue that allocates only to grow.
type ring[T any] struct {
	buf   []T // length a power of two, or 0
	front int
	n     int
}

func (r *ring[T]) len() int { return r.n }

func (r *ring[T]) at(i int) T { return r.buf[(r.front+i)&(len(r.buf)-1)] }

func (r *ring[T]) push(v T) {
	if r.n == len(r.buf) {
		grown := make([]T, max(16, 2*len(r.buf)))
		for i := range r.n {
			grown[i] = r.at(i)
		}
		r.buf, r.front = grown, 0
	}
	r.buf[(r.front+r.n)&(len(r.buf)-1)] = v
	r.n++
}

func (r *ring[T]) popFront() T {
	v := r.at(0)
	var none T
	r.buf[r.front] = none
	r.front = (r.front + 1) & (len(r.buf) - 1)
	r.n--
	return v
}

func (r *ring[T]) popBack() T {
	r.n--
	at := (r.front + r.n) & (len(r.buf) - 1)
	v := r.buf[at]
	var none T
	r.buf[at] = none
	return v
}
