package replication

import (
	"unsafe"

	"github.com/millrace/millrace/segstore/chunk"
)

func chunkOffset(n uint64) chunk.Offset { return chunk.Offset(n) }

// unsafeString is a string over a buffer that changes, as sessions pass.
func unsafeString(b []byte) string { return unsafe.String(&b[0], len(b)) }
