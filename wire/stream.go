package wire

// Create makes a stream; its answer is a Response.
type Create struct {
	Correlation uint32
	Stream      string
	Arguments   Properties
}

func (*Create) Key() Key { return KeyCreate }

func (x *Create) fields(c *codec) {
	c.correlation(&x.Correlation)
	c.str("stream", &x.Stream)
	x.Arguments.field(c, "arguments")
}

// Delete removes a stream; its answer is a Response.
type Delete struct {
	Correlation uint32
	Stream      string
}

func (*Delete) Key() Key { return KeyDelete }

func (d *Delete) fields(c *codec) {
	c.correlation(&d.Correlation)
	c.str("stream", &d.Stream)
}

// StreamStats asks for a stream's numbers.
type StreamStats struct {
	Correlation uint32
	Stream      string
}

func (*StreamStats) Key() Key { return KeyStreamStats }

func (s *StreamStats) fields(c *codec) {
	c.correlation(&s.Correlation)
	c.str("stream", &s.Stream)
}

// The names of the statistics; −1 where the stream is empty.
const (
	StatFirstChunkID     = "first_chunk_id"
	StatLastChunkID      = "last_chunk_id"
	StatCommittedChunkID = "committed_chunk_id"
	StatCommittedOffset  = "committed_offset"
)

// Stat is one number of a stream.
type Stat struct {
	Name  string
	Value int64
}

func (s *Stat) fields(c *codec) {
	c.str("", &s.Name)
	c.i64("", &s.Value)
}

// Stats is the array of a stream's numbers.
type Stats = List[Stat, *Stat]

// StatsOf makes Stats of values.
func StatsOf(values ...Stat) Stats { return listOf[Stat](values) }

// StreamStatsResponse: Stats is empty on error.
type StreamStatsResponse struct {
	Correlation uint32
	Code        ResponseCode
	Stats       Stats
}

func (*StreamStatsResponse) Key() Key { return KeyStreamStats.Answer() }

func (s *StreamStatsResponse) fields(c *codec) {
	c.correlation(&s.Correlation)
	c.code(&s.Code)
	listField(c, "stats", &s.Stats, 10)
}

// ResolveOffsetSpec asks where a subscription with this place would begin.
// Properties may be missing at the end of the frame.
type ResolveOffsetSpec struct {
	Correlation uint32
	Stream      string
	Offset      OffsetSpec
	Properties  Properties
}

func (*ResolveOffsetSpec) Key() Key { return KeyResolveOffsetSpec }

func (r *ResolveOffsetSpec) fields(c *codec) {
	c.correlation(&r.Correlation)
	c.str("stream", &r.Stream)
	r.Offset.fields(c, OffsetFirst)
	r.Properties.optionalField(c, "properties")
}

// ResolveOffsetSpecResponse gives the base offset of the chunk, 0 on error. On
// the wire it is an OffsetSpec, always of type offset.
type ResolveOffsetSpecResponse struct {
	Correlation uint32
	Code        ResponseCode
	Offset      uint64
}

func (*ResolveOffsetSpecResponse) Key() Key { return KeyResolveOffsetSpec.Answer() }

func (r *ResolveOffsetSpecResponse) fields(c *codec) {
	c.correlation(&r.Correlation)
	c.code(&r.Code)
	kind := uint16(OffsetAt)
	c.u16("offset type", &kind)
	if OffsetType(kind) != OffsetAt {
		c.fail("offset type", ErrOffsetType)
	}
	c.u64("offset", &r.Offset)
}
