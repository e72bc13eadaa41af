package segstore

import (
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/segstore/chunk"
)

// Chunk is one chunk in memory, counted and pooled. It is filled by its owner
// (a Builder over Head and Data, or a frame from a leader), then appended; from
// that moment on its bytes never change, and whoever still needs them (cache,
// links, deliveries) holds a count. The last Release gives the buffers back.
//
//	c := store.NewChunk(bytes)
//	builder.Reset(c.Head, c.Data)
//	…
//	c.Head, c.Data, c.Header = builder.Finish(&meta)
//	err := log.Append(c)
//	c.Release()
type Chunk struct {
	Header chunk.Header
	Head   []byte
	Data   []byte

	refs atomic.Int32
	// Where Append put it.
	segment  *segment
	position int64
}

// dataClasses are the capacities of pooled data buffers, in bytes. A chunk's
// memory counts with its capacity, so that small chunks must not sit in big
// buffers. The last class is for readers' blocks: a full chunk with its head.
var dataClasses = [...]int{
	0, 1 << 10, 4 << 10, 16 << 10, 64 << 10, 256 << 10, chunk.DataLengthTarget, chunk.DataLengthTarget + headPooledMax,
}

// headPooledMax bounds the heads that are kept for reuse: snapshots are rare.
const headPooledMax = 64 << 10

var chunkPools [len(dataClasses)]sync.Pool

// NewChunk returns an empty chunk whose Data has room for so many bytes, with
// one count held by the caller.
func NewChunk(dataBytes int) *Chunk {
	class := classFor(dataBytes)
	if class < 0 {
		c := &Chunk{Data: make([]byte, 0, dataBytes)}
		c.refs.Store(1)
		return c
	}
	c, _ := chunkPools[class].Get().(*Chunk)
	if c == nil {
		c = &Chunk{}
		if n := dataClasses[class]; n > 0 {
			c.Data = make([]byte, 0, n)
		}
	}
	c.refs.Store(1)
	return c
}

// classFor returns the smallest class that holds n bytes, −1 if none does.
func classFor(n int) int {
	for i, size := range dataClasses {
		if n <= size {
			return i
		}
	}
	return -1
}

// Retain adds a count. The caller must hold one already.
func (c *Chunk) Retain() {
	if c.refs.Add(1) <= 1 {
		panic("segstore: Retain of a released chunk")
	}
}

// Release gives a count back; with the last one the chunk must not be touched.
func (c *Chunk) Release() {
	switch n := c.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic("segstore: Release without a count")
	}
	c.Header, c.segment, c.position = chunk.Header{}, nil, 0
	c.Head, c.Data = c.Head[:0], c.Data[:0]
	if cap(c.Head) > headPooledMax {
		c.Head = nil
	}
	// A buffer that has grown goes to the class it can fully serve; one beyond
	// the classes is left to the garbage collector.
	for class := len(dataClasses) - 1; class >= 0; class-- {
		if n := cap(c.Data); n >= dataClasses[class] && n <= 2*chunk.DataLengthTarget {
			chunkPools[class].Put(c)
			return
		}
	}
}

// memory returns the bytes that the chunk keeps from other use.
func (c *Chunk) memory() int64 { return int64(cap(c.Head)) + int64(cap(c.Data)) }

// Delivery returns what a Deliver frame carries, in two runs: the client header
// and the data.
func (c *Chunk) Delivery() (clientHeader, data []byte) {
	return chunk.ClientHeaderOf(c.Head), c.Data
}
