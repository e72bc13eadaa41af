package wire

// DeclarePublisher opens a publisher on a stream; its answer is a Response.
type DeclarePublisher struct {
	Correlation uint32
	PublisherID uint8
	Reference   string // "" = no de-duplication; null is read as ""
	Stream      string
}

func (*DeclarePublisher) Key() Key { return KeyDeclarePublisher }

func (d *DeclarePublisher) fields(c *codec) {
	c.correlation(&d.Correlation)
	c.u8("publisher id", &d.PublisherID)
	c.nullableString("reference", &d.Reference)
	c.str("stream", &d.Stream)
}

// DeletePublisher closes a publisher; its answer is a Response.
type DeletePublisher struct {
	Correlation uint32
	PublisherID uint8
}

func (*DeletePublisher) Key() Key { return KeyDeletePublisher }

func (d *DeletePublisher) fields(c *codec) {
	c.correlation(&d.Correlation)
	c.u8("publisher id", &d.PublisherID)
}

// QueryPublisherSequence asks for the last publishing id of a reference.
type QueryPublisherSequence struct {
	Correlation uint32
	Reference   string
	Stream      string
}

func (*QueryPublisherSequence) Key() Key { return KeyQueryPublisherSequence }

func (q *QueryPublisherSequence) fields(c *codec) {
	c.correlation(&q.Correlation)
	c.str("reference", &q.Reference)
	c.str("stream", &q.Stream)
}

// QueryPublisherSequenceResponse: Sequence is 0 if none is known, or on error.
type QueryPublisherSequenceResponse struct {
	Correlation uint32
	Code        ResponseCode
	Sequence    uint64
}

func (*QueryPublisherSequenceResponse) Key() Key { return KeyQueryPublisherSequence.Answer() }

func (q *QueryPublisherSequenceResponse) fields(c *codec) {
	c.correlation(&q.Correlation)
	c.code(&q.Code)
	c.u64("sequence", &q.Sequence)
}
