package wire

import (
	"iter"
	"maps"
	"slices"
)

// List is an immutable array of a command, kept in its wire form: an array of
// empty names takes two bytes an element in the frame, and no more in memory.
// It is checked when it is decoded, so iterating cannot fail. The zero List is
// empty.
type List[T any, P element[T]] struct {
	raw string // the elements, back to back, without the count
	n   int
}

// element is what a List holds: it lists its fields like a command.
type element[T any] interface {
	*T
	fields(*codec)
}

// Len is the number of elements.
func (l List[T, P]) Len() int { return l.n }

// All yields the elements in order. Their strings share the list's memory.
func (l List[T, P]) All() iter.Seq[T] {
	return func(yield func(T) bool) {
		c := codec{in: []byte(l.raw), text: l.raw}
		for range l.n {
			var v T
			P(&v).fields(&c)
			if !yield(v) {
				return
			}
		}
	}
}

// Slice returns the elements in a new slice.
func (l List[T, P]) Slice() []T { return slices.AppendSeq(make([]T, 0, l.n), l.All()) }

func listOf[T any, P element[T]](values []T) List[T, P] {
	c := codec{mode: writing}
	for i := range values {
		P(&values[i]).fields(&c)
	}
	return List[T, P]{raw: string(c.out), n: len(values)}
}

// listField is a List as a command's field; an element takes at least sizeMin
// bytes.
func listField[T any, P element[T]](c *codec, field string, l *List[T, P], sizeMin int) {
	c.count(field, &l.n, sizeMin)
	if c.mode == writing {
		c.out = append(c.out, l.raw...)
		return
	}
	if c.err != nil {
		return
	}
	start := c.pos
	was := c.mode
	c.mode, c.array = skipping, field
	var v T
	for c.index = 0; c.index < l.n && c.err == nil; c.index++ {
		P(&v).fields(c)
	}
	c.mode, c.array = was, ""
	l.raw = ""
	if c.err == nil {
		l.raw = string(c.in[start:c.pos])
	}
}

// Strings is an immutable array of strings.
type Strings struct{ list List[text, *text] }

type text string

func (t *text) fields(c *codec) { c.str("", (*string)(t)) }

// StringsOf makes a Strings of values, each at most StringMax bytes.
func StringsOf(values ...string) Strings {
	c := codec{mode: writing}
	for i := range values {
		c.str("", &values[i])
	}
	return Strings{List[text, *text]{raw: string(c.out), n: len(values)}}
}

// Len is the number of strings.
func (s Strings) Len() int { return s.list.n }

// All yields the strings in order.
func (s Strings) All() iter.Seq[string] {
	return func(yield func(string) bool) {
		for t := range s.list.All() {
			if !yield(string(t)) {
				return
			}
		}
	}
}

// Slice returns the strings in a new slice.
func (s Strings) Slice() []string { return slices.AppendSeq(make([]string, 0, s.list.n), s.All()) }

func (s *Strings) field(c *codec, field string) { listField(c, field, &s.list, 2) }

// Properties is an immutable array of key and value, in wire order. Keys may
// repeat; the protocol gives no meaning to that, and Get takes the last.
type Properties struct{ list List[property, *property] }

type property struct{ key, value string }

func (p *property) fields(c *codec) {
	c.str("", &p.key)
	c.str("", &p.value)
}

// PropertiesOf makes Properties of alternating keys and values.
func PropertiesOf(keysAndValues ...string) Properties {
	if len(keysAndValues)%2 != 0 {
		panic("wire: a property without a value")
	}
	all := StringsOf(keysAndValues...).list
	return Properties{List[property, *property]{raw: all.raw, n: all.n / 2}}
}

// PropertiesFrom makes Properties of a map, in the order of its keys.
func PropertiesFrom(m map[string]string) Properties {
	var all []string
	for _, key := range slices.Sorted(maps.Keys(m)) {
		all = append(all, key, m[key])
	}
	return PropertiesOf(all...)
}

// Len is the number of pairs.
func (p Properties) Len() int { return p.list.n }

// All yields key and value in wire order.
func (p Properties) All() iter.Seq2[string, string] {
	return func(yield func(string, string) bool) {
		for pair := range p.list.All() {
			if !yield(pair.key, pair.value) {
				return
			}
		}
	}
}

// Get returns the value of key, the last one if it repeats.
func (p Properties) Get(key string) (value string, found bool) {
	for k, v := range p.All() {
		if k == key {
			value, found = v, true
		}
	}
	return value, found
}

// Map returns the pairs as a new map.
func (p Properties) Map() map[string]string { return maps.Collect(p.All()) }

func (p *Properties) field(c *codec, field string) { listField(c, field, &p.list, 4) }

// optionalField is an array that may be missing at the end of a frame.
func (p *Properties) optionalField(c *codec, field string) {
	if c.mode != writing && c.err == nil && c.remaining() == 0 {
		*p = Properties{}
		return
	}
	p.field(c, field)
}
