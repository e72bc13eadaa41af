package wire

// Metadata asks where streams are.
type Metadata struct {
	Correlation uint32
	Streams     Strings
}

func (*Metadata) Key() Key { return KeyMetadata }

func (m *Metadata) fields(c *codec) {
	c.correlation(&m.Correlation)
	m.Streams.field(c, "streams")
}

// NoLeader stands for a leader's reference while there is none.
const NoLeader uint16 = 0xffff

// Broker is a node that clients can connect to. Its reference is local to one
// MetadataResponse, and below 32768: some clients read it signed.
type Broker struct {
	Reference uint16
	Host      string
	Port      uint32
}

func (b *Broker) fields(c *codec) {
	c.u16("", &b.Reference)
	c.str("", &b.Host)
	c.u32("", &b.Port)
}

// StreamMetadata says which brokers hold a stream; Replicas is without the
// leader, and every reference in it is that of a Broker in the same answer.
type StreamMetadata struct {
	Stream   string
	Code     ResponseCode
	Leader   uint16
	Replicas []uint16
}

func (s *StreamMetadata) fields(c *codec) {
	c.str("", &s.Stream)
	c.code(&s.Code)
	c.u16("", &s.Leader)
	c.u16s("", &s.Replicas)
}

// Brokers and StreamsMetadata are the arrays of a MetadataResponse.
type (
	Brokers         = List[Broker, *Broker]
	StreamsMetadata = List[StreamMetadata, *StreamMetadata]
)

// BrokersOf makes Brokers of values.
func BrokersOf(values ...Broker) Brokers { return listOf[Broker](values) }

// StreamsMetadataOf makes StreamsMetadata of values.
func StreamsMetadataOf(values ...StreamMetadata) StreamsMetadata {
	return listOf[StreamMetadata](values)
}

// MetadataResponse has no code of its own; every stream asked for has one.
type MetadataResponse struct {
	Correlation uint32
	Brokers     Brokers
	Streams     StreamsMetadata
}

func (*MetadataResponse) Key() Key { return KeyMetadata.Answer() }

func (m *MetadataResponse) fields(c *codec) {
	c.correlation(&m.Correlation)
	listField(c, "brokers", &m.Brokers, 8)
	listField(c, "streams", &m.Streams, 10)
}

// MetadataUpdate tells a client that its publishers or subscriptions on a
// stream are gone. The code is always 6: one client cannot read others.
type MetadataUpdate struct {
	Code   ResponseCode
	Stream string
}

func (*MetadataUpdate) Key() Key { return KeyMetadataUpdate }

func (m *MetadataUpdate) fields(c *codec) {
	c.code(&m.Code)
	c.str("stream", &m.Stream)
}
