package segstore

import (
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

// A reader's block holds a full chunk with its head. Were it beyond the classes,
// every chunk read from disk would be new memory.
func TestNewChunk_poolsBlocksOfFullChunks(t *testing.T) {
	for _, bytes := range []int{chunk.DataLengthTarget + chunk.HeadLengthMin, chunk.DataLengthTarget + headPooledMax} {
		class := classFor(bytes)
		if class < 0 {
			t.Fatalf("%d bytes are in no class", bytes)
		}
		if c := NewChunk(bytes); cap(c.Data) != dataClasses[class] {
			t.Errorf("%d bytes got a buffer of %d, not of class %d", bytes, cap(c.Data), dataClasses[class])
		}
	}
	if class := classFor(chunk.DataLengthTarget + headPooledMax + 1); class >= 0 {
		t.Errorf("a larger one is in class %d", class)
	}
}
