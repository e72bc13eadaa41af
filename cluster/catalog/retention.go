package catalog

import (
	"math"
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
)

// RetentionChange says what shall be new about a stream's retention. Limits that
// it does not name stay, so that two operators who change different ones do not
// undo each other's work; what it names it names in full, so that a repetition
// changes nothing.
type RetentionChange struct {
	// MaxLengthBytes, if not nil, is the new bound; 0 lifts it.
	MaxLengthBytes *int64 `json:"max-length-bytes,omitempty"`
	// MaxAge, if not nil, is the new bound; "" lifts it.
	MaxAge *string `json:"max-age,omitempty"`
}

// ParseRetention reads a change as operators give it: by the keys of a create,
// with "" for no bound. Other arguments are fixed at a stream's creation, and
// asking for them is an ErrBadArgument.
func ParseRetention(given map[string]string) (RetentionChange, error) {
	var c RetentionChange
	var keys []string
	for key := range given { // order-free: sorted below
		keys = append(keys, key)
	}
	slices.Sort(keys) // the first wrong one is the same each time
	for _, key := range keys {
		var a Arguments
		var r *Refusal
		switch text := given[key]; key {
		case keyMaxLengthBytes:
			if text != "" {
				r = number(&a.MaxLengthBytes, 1, math.MaxInt64)(key, text)
			}
			c.MaxLengthBytes = &a.MaxLengthBytes.Value
		case keyMaxAge:
			if text != "" {
				r = a.parseMaxAge(key, text)
			}
			c.MaxAge = &a.MaxAge
		case keySegmentBytes, keyInitialClusterSize, keyLeaderLocator, keyFilterBytes:
			r = refuse(ErrBadArgument, "%s is fixed when a stream is created; only %s and %s can be changed", key, keyMaxLengthBytes, keyMaxAge)
		default:
			r = refuse(ErrBadArgument, "%q is no limit of retention; there are %s and %s", key, keyMaxLengthBytes, keyMaxAge)
		}
		if r != nil {
			return RetentionChange{}, r
		}
	}
	return c, nil
}

// In returns the arguments with the change made.
func (c RetentionChange) In(a Arguments) Arguments {
	if c.MaxLengthBytes != nil {
		a.MaxLengthBytes = Number{Value: *c.MaxLengthBytes, Given: *c.MaxLengthBytes != 0}
	}
	if c.MaxAge != nil {
		a.MaxAge = *c.MaxAge
	}
	return a
}

// SetRetention changes the retention of a stream that exists. The incarnation,
// which the proposer looked up, keeps a late repetition from changing a later
// stream of the name.
type SetRetention struct {
	VHost       string            `json:"vhost"`
	Name        string            `json:"name"`
	Incarnation chunk.Incarnation `json:"incarnation"`
	Change      RetentionChange   `json:"change"`
}

func (*SetRetention) kind() string { return "stream.retention" }

func (c *SetRetention) apply(e *edit) []Outcome {
	if old, ok := e.Stream(c.VHost, c.Name); !ok || old.Incarnation != c.Incarnation {
		return one(refuse(ErrStreamMissing, "%q in virtual host %q", c.Name, c.VHost))
	}
	stream, r := e.modify(c.Incarnation)
	if r != nil {
		return one(r)
	}
	// A proposer has checked it; another program's may have not.
	if n := c.Change.MaxLengthBytes; n != nil && *n < 0 {
		return one(refuse(ErrBadArgument, "%s is %d, but must be at least 1, or 0 for no bound", keyMaxLengthBytes, *n))
	}
	if age := c.Change.MaxAge; age != nil && *age != "" {
		if r := new(Arguments).parseMaxAge(keyMaxAge, *age); r != nil {
			return one(r)
		}
	}
	arguments := c.Change.In(stream.Arguments)
	if arguments == stream.Arguments {
		return one(nil)
	}
	if stream.Declared == nil {
		declared := stream.Arguments
		stream.Declared = &declared
	}
	stream.Arguments = arguments
	if *stream.Declared == arguments {
		stream.Declared = nil
	}
	e.putStream(stream)
	return one(nil)
}

// agrees tells whether a create with the arguments asks for the stream that is
// there: as it is now, or as it was created. A client that declares its stream
// at each start must not fail because an operator has changed a limit.
func (s *Stream) agrees(a Arguments) bool {
	return a == s.Arguments || s.Declared != nil && a == *s.Declared
}
