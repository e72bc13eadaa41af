package wire

import (
	"errors"
	"fmt"
)

// What can be wrong with a frame. Decoding wraps these in a *DecodeError.
var (
	// ErrFrameTooLarge: the claimed size is above the limit in force.
	ErrFrameTooLarge = errors.New("frame too large")
	// ErrFrameTooSmall: the frame has no room for key and version.
	ErrFrameTooSmall = errors.New("frame too small")
	// ErrUnknownKey: no command has this key.
	ErrUnknownKey = errors.New("unknown command")
	// ErrWrongDirection: the command exists, but the other side sends it.
	ErrWrongDirection = errors.New("command of the other side")
	// ErrVersion: the command exists, but not in this version.
	ErrVersion = errors.New("unsupported version")
	// ErrTruncated: the frame ends before the field does.
	ErrTruncated = errors.New("truncated")
	// ErrTrailing: bytes are left after the last field.
	ErrTrailing = errors.New("trailing bytes")
	// ErrNull: a null string or null bytes where none may stand.
	ErrNull = errors.New("null value")
	// ErrNegativeLength: a length or count below zero.
	ErrNegativeLength = errors.New("negative length")
	// ErrCount: more elements announced than the frame has room for.
	ErrCount = errors.New("count exceeds the frame")
	// ErrOffsetType: an offset specification that is unknown, or not valid here.
	ErrOffsetType = errors.New("invalid offset type")
	// ErrBool: a truth value other than 0 and 1.
	ErrBool = errors.New("neither 0 nor 1")
	// ErrSubBatch: a sub-batch where only simple messages may stand.
	ErrSubBatch = errors.New("sub-batch not valid here")
)

// DecodeError tells where in a frame what is wrong; it unwraps to one of the
// sentinels above.
type DecodeError struct {
	Key   Key
	Field string
	// Index is the element of the array Field that is wrong, −1 if Field is not
	// an array or the fault is not in one of its elements.
	Index int
	Err   error
}

func (e *DecodeError) Error() string {
	switch {
	case e.Field == "":
		return fmt.Sprintf("decode %s: %v", e.Key, e.Err)
	case e.Index >= 0:
		return fmt.Sprintf("decode %s: %s[%d]: %v", e.Key, e.Field, e.Index, e.Err)
	}
	return fmt.Sprintf("decode %s: %s: %v", e.Key, e.Field, e.Err)
}

func (e *DecodeError) Unwrap() error { return e.Err }
