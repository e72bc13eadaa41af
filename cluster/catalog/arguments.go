package catalog

import (
	"encoding/json"
	"math"
	"strconv"
)

// The keys of stream arguments as clients send them; others are ignored.
const (
	keyMaxLengthBytes     = "max-length-bytes"
	keyMaxAge             = "max-age"
	keySegmentBytes       = "stream-max-segment-size-bytes"
	keyInitialClusterSize = "initial-cluster-size"
	keyLeaderLocator      = "queue-leader-locator"
	keyFilterBytes        = "stream-filter-size-bytes"
)

// Defaults and bounds of stream arguments.
const (
	DefaultSegmentBytes = 500_000_000
	MaxSegmentBytes     = 3_000_000_000
	MinSegmentBytes     = 64 << 10 // smaller values are kept and act as this

	DefaultFilterBytes = 16
	MaxFilterBytes     = 255
)

// Number is an integer that may be absent. Absent is not the default value:
// two creates agree only if both gave the same keys.
type Number struct {
	Value int64
	Given bool
}

// Given returns a Number that is there.
func Given(v int64) Number { return Number{Value: v, Given: true} }

// IsZero tells encoding/json that an absent number is left out.
func (n Number) IsZero() bool { return !n.Given }

// MarshalJSON writes a plain number.
func (n Number) MarshalJSON() ([]byte, error) {
	if !n.Given {
		return []byte("null"), nil
	}
	return strconv.AppendInt(nil, n.Value, 10), nil
}

// UnmarshalJSON reads a plain number, or null for an absent one.
func (n *Number) UnmarshalJSON(b []byte) error {
	var v *int64
	if err := json.Unmarshal(b, &v); err != nil {
		return err
	}
	*n = Number{}
	if v != nil {
		*n = Given(*v)
	}
	return nil
}

// Arguments are what the creator of a stream asked for, as given: numbers as
// numbers, texts as texts. Values compare with ==, which is the comparison that
// tells ErrStreamExists from ErrStreamDiffers. The zero value asks for nothing.
type Arguments struct {
	MaxLengthBytes     Number `json:"max-length-bytes,omitzero"`
	MaxAge             string `json:"max-age,omitempty"` // "" is absent
	SegmentBytes       Number `json:"stream-max-segment-size-bytes,omitzero"`
	InitialClusterSize Number `json:"initial-cluster-size,omitzero"`
	LeaderLocator      string `json:"queue-leader-locator,omitempty"` // "" is absent
	FilterBytes        Number `json:"stream-filter-size-bytes,omitzero"`
}

// ParseArguments reads the arguments of a create. A bad value is an
// ErrBadArgument that names the key and the values it may have; the first one
// in the order of the struct is reported. Unknown keys are ignored.
func ParseArguments(given map[string]string) (Arguments, error) {
	var a Arguments
	for _, p := range []struct {
		key   string
		parse func(key, text string) *Refusal
	}{
		{keyMaxLengthBytes, number(&a.MaxLengthBytes, 1, math.MaxInt64)},
		{keyMaxAge, a.parseMaxAge},
		{keySegmentBytes, number(&a.SegmentBytes, 1, MaxSegmentBytes)},
		{keyInitialClusterSize, number(&a.InitialClusterSize, 1, math.MaxInt64)},
		{keyLeaderLocator, a.parseLocator},
		{keyFilterBytes, number(&a.FilterBytes, DefaultFilterBytes, MaxFilterBytes)},
	} {
		text, ok := given[p.key]
		if !ok {
			continue
		}
		if r := p.parse(p.key, text); r != nil {
			return Arguments{}, r
		}
	}
	return a, nil
}

// Map returns the arguments as a client would give them.
func (a Arguments) Map() map[string]string {
	m := make(map[string]string)
	for _, p := range []struct {
		key string
		n   Number
	}{
		{keyMaxLengthBytes, a.MaxLengthBytes},
		{keySegmentBytes, a.SegmentBytes},
		{keyInitialClusterSize, a.InitialClusterSize},
		{keyFilterBytes, a.FilterBytes},
	} {
		if p.n.Given {
			m[p.key] = strconv.FormatInt(p.n.Value, 10)
		}
	}
	if a.MaxAge != "" {
		m[keyMaxAge] = a.MaxAge
	}
	if a.LeaderLocator != "" {
		m[keyLeaderLocator] = a.LeaderLocator
	}
	return m
}

// MaxLength returns the bound of user bytes by retention; ok is false if the
// stream has none.
func (a Arguments) MaxLength() (bytes int64, ok bool) {
	return a.MaxLengthBytes.Value, a.MaxLengthBytes.Given
}

// MaxAgeSeconds returns the bound of a message's age by retention; ok is false
// if the stream has none.
func (a Arguments) MaxAgeSeconds() (seconds int64, ok bool) {
	return parseAge(a.MaxAge)
}

// SegmentSize returns the size in user bytes at which a segment rolls.
func (a Arguments) SegmentSize() int64 {
	if !a.SegmentBytes.Given {
		return DefaultSegmentBytes
	}
	return max(a.SegmentBytes.Value, MinSegmentBytes)
}

// FilterSize returns the size in bytes of a chunk's filter.
func (a Arguments) FilterSize() int {
	if !a.FilterBytes.Given {
		return DefaultFilterBytes
	}
	return int(a.FilterBytes.Value)
}

// Locator says where a new stream's leader goes.
type Locator int

const (
	// ClientLocal: on the node that the creating client is connected to.
	ClientLocal Locator = iota
	// Balanced: on the replica's node that has the fewest leaders.
	Balanced
)

func (l Locator) String() string {
	if l == Balanced {
		return "balanced"
	}
	return "client-local"
}

// Locator returns the wanted place of the leader. Partitions of super streams
// default to Balanced, which the create of a super stream says explicitly.
func (a Arguments) Locator() Locator {
	switch a.LeaderLocator {
	case "", "client-local":
		return ClientLocal
	}
	return Balanced
}

// number returns a parser of an integer within [low, high].
func number(n *Number, low, high int64) func(key, text string) *Refusal {
	return func(key, text string) *Refusal {
		v, err := strconv.ParseInt(text, 10, 64)
		if err == nil && low <= v && v <= high {
			*n = Given(v)
			return nil
		}
		if high == math.MaxInt64 {
			return refuse(ErrBadArgument, "%s is %q, but must be a whole number of at least %d", key, text, low)
		}
		return refuse(ErrBadArgument, "%s is %q, but must be a whole number from %d to %d", key, text, low, high)
	}
}

func (a *Arguments) parseMaxAge(key, text string) *Refusal {
	if _, ok := parseAge(text); !ok {
		return refuse(ErrBadArgument,
			"%s is %q, but must be a whole number above 0 and a unit, one of Y M D h m s (like 7D or 12h)", key, text)
	}
	a.MaxAge = text
	return nil
}

func (a *Arguments) parseLocator(key, text string) *Refusal {
	switch text {
	case "client-local", "balanced", "random", "least-leaders", "min-masters":
		a.LeaderLocator = text
		return nil
	}
	return refuse(ErrBadArgument,
		"%s is %q, but must be client-local or balanced (or one of the older names of balanced: random, least-leaders, min-masters)",
		key, text)
}

// parseAge reads a whole number above zero and its unit. The bound is that the
// age in milliseconds fits a timestamp.
func parseAge(text string) (seconds int64, ok bool) {
	if text == "" || text[0] < '0' || text[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseInt(text[:len(text)-1], 10, 64)
	if err != nil || n <= 0 {
		return 0, false
	}
	unit := int64(0)
	switch text[len(text)-1] {
	case 'Y':
		unit = 365 * 86_400
	case 'M':
		unit = 30 * 86_400
	case 'D':
		unit = 86_400
	case 'h':
		unit = 3_600
	case 'm':
		unit = 60
	case 's':
		unit = 1
	default:
		return 0, false
	}
	if n > math.MaxInt64/1000/unit {
		return 0, false
	}
	return n * unit, true
}
