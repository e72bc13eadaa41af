package segstore

import (
	"fmt"

	"github.com/millrace/millrace/segstore/chunk"
)

// SpecKind says where a Reader starts.
type SpecKind uint8

const (
	// First: the first chunk that is there.
	First SpecKind = iota + 1
	// Last: the last committed user chunk; like Next without any.
	Last
	// Next: behind everything written so far.
	Next
	// AtOffset: the chunk that holds Spec.Offset. Before the first chunk like
	// First, behind the last like Next.
	AtOffset
	// AtTimestamp: the first chunk whose timestamp is not below Spec.Timestamp;
	// like Next where there is none.
	AtTimestamp
)

func (k SpecKind) String() string {
	switch k {
	case First:
		return "first"
	case Last:
		return "last"
	case Next:
		return "next"
	case AtOffset:
		return "offset"
	case AtTimestamp:
		return "timestamp"
	}
	return fmt.Sprintf("spec %d", uint8(k))
}

// Spec names the place where a Reader starts. Offset and Timestamp count only
// for their kinds.
type Spec struct {
	Kind      SpecKind
	Offset    chunk.Offset
	Timestamp chunk.Timestamp
}

func (s Spec) String() string {
	switch s.Kind {
	case AtOffset:
		return "offset " + s.Offset.String()
	case AtTimestamp:
		return fmt.Sprintf("timestamp %d", s.Timestamp)
	}
	return s.Kind.String()
}
