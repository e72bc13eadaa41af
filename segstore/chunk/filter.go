package chunk

import "math/bits"

// Filter algorithms, as told by each chunk's storage header.
const (
	FilterNone uint8 = 0
	// FilterFNV: FNV-1a 64 with a finaliser, split in two.
	FilterFNV uint8 = 1
)

// Limits of a filter's size in bytes, when there is one; 16 is the default.
const (
	FilterLengthMin     = 16
	FilterLengthMax     = 255
	FilterLengthDefault = 16
)

// Filter collects the filter values of one chunk's entries in a Bloom filter of
// two probes. Bit 0, the highest of the first byte, says that some entry has no
// value; each value sets two of the others. The zero Filter must be Reset.
type Filter struct {
	bits   [FilterLengthMax]byte
	length int
	values bool
}

// Reset empties the filter and gives it a size in bytes; a size outside of the
// limits becomes the nearest one inside.
func (f *Filter) Reset(length int) {
	*f = Filter{length: min(max(length, FilterLengthMin), FilterLengthMax)}
}

// Add notes an entry's filter value; an empty one means none.
func (f *Filter) Add(value []byte) {
	if len(value) == 0 {
		f.bits[0] |= 0x80
		return
	}
	f.values = true
	first, second := probes(filterHash(value), f.length)
	f.bits[first/8] |= 0x80 >> (first % 8)
	f.bits[second/8] |= 0x80 >> (second % 8)
}

// Bytes returns the filter for Meta; nil if no entry had a value, since such a
// chunk has no filter. It aliases f.
func (f *Filter) Bytes() []byte {
	if !f.values {
		return nil
	}
	return f.bits[:f.length]
}

// Matcher is a subscription's side of the filter: the values it asks for.
type Matcher struct {
	hashes     []uint64
	unfiltered bool
}

// NewMatcher makes a matcher for the values; unfiltered asks for chunks that
// hold an entry without a value too. Without any value everything matches.
func NewMatcher(values [][]byte, unfiltered bool) Matcher {
	m := Matcher{unfiltered: unfiltered}
	for _, v := range values {
		m.hashes = append(m.hashes, filterHash(v))
	}
	return m
}

// Matches tells whether a chunk with this filter may hold a matching entry.
// False is certain; true may be wrong. An algorithm of a later version matches.
func (m *Matcher) Matches(algorithm uint8, filter []byte) bool {
	switch {
	case len(m.hashes) == 0:
		return true
	case len(filter) == 0:
		return m.unfiltered
	case algorithm != FilterFNV || len(filter) < FilterLengthMin:
		return true
	case m.unfiltered && filter[0]&0x80 != 0:
		return true
	}
	for _, h := range m.hashes {
		first, second := probes(h, len(filter))
		if filter[first/8]&(0x80>>(first%8)) != 0 && filter[second/8]&(0x80>>(second%8)) != 0 {
			return true
		}
	}
	return false
}

// probes maps the halves of a hash to two bits between 1 and 8·length − 1.
func probes(h uint64, length int) (first, second uint64) {
	n := uint64(8*length - 1)
	first, _ = bits.Mul64(h&0xffffffff<<32, n)
	second, _ = bits.Mul64(h&^0xffffffff, n)
	return 1 + first, 1 + second
}

// filterHash is FNV-1a 64 followed by the 64-bit finaliser of MurmurHash3,
// without which the halves of short values hang together.
func filterHash(value []byte) uint64 {
	h := uint64(0xcbf29ce484222325)
	for _, b := range value {
		h = (h ^ uint64(b)) * 0x100000001b3
	}
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}
