package broker

import (
	"math/bits"
	"sync"
)

// Buffers come in powers of two from 4 KiB to 32 MiB: the smallest serves an
// idle handshake, the largest a frame of the greatest frame_max with its size.
const (
	bufferBitsMin = 12
	bufferBitsMax = 25
)

// buffer is a run of bytes lent by bufferPools; bytes has its full length.
type buffer struct {
	bytes []byte
}

// bufferPools lends buffers by size class. A connection holds one only while
// bytes are in it, so that idle connections cost none.
type bufferPools [bufferBitsMax - bufferBitsMin + 1]sync.Pool

var buffers bufferPools

// take returns a buffer of at least size bytes (at most 32 MiB).
func (pools *bufferPools) take(size int) *buffer {
	class := bufferClass(size)
	if pooled, ok := pools[class].Get().(*buffer); ok {
		return pooled
	}
	return &buffer{bytes: make([]byte, 1<<(class+bufferBitsMin))}
}

// give takes a buffer back; nobody may touch it afterwards.
func (pools *bufferPools) give(b *buffer) {
	pools[bufferClass(len(b.bytes))].Put(b)
}

func bufferClass(size int) int {
	if size <= 1<<bufferBitsMin {
		return 0
	}
	class := bits.Len(uint(size-1)) - bufferBitsMin
	return min(class, bufferBitsMax-bufferBitsMin)
}
