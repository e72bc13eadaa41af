package wire

// StoreOffset remembers how far a reference has read. It is never answered.
type StoreOffset struct {
	Reference string
	Stream    string
	Offset    uint64
}

func (*StoreOffset) Key() Key { return KeyStoreOffset }

func (s *StoreOffset) fields(c *codec) {
	c.str("reference", &s.Reference)
	c.str("stream", &s.Stream)
	c.u64("offset", &s.Offset)
}

// DecodeStoreOffset decodes a StoreOffset frame's payload into s without
// allocating: text is the payload once more, as a string, and s gets parts of it.
//
// Errors: as Decode.
func DecodeStoreOffset(payload []byte, text string, s *StoreOffset) error {
	c, err := beginDecode(payload, KeyStoreOffset)
	if err != nil {
		return err
	}
	c.text = text
	s.fields(&c)
	return c.finish(KeyStoreOffset)
}

// QueryOffset asks for what StoreOffset remembered.
type QueryOffset struct {
	Correlation uint32
	Reference   string
	Stream      string
}

func (*QueryOffset) Key() Key { return KeyQueryOffset }

func (q *QueryOffset) fields(c *codec) {
	c.correlation(&q.Correlation)
	c.str("reference", &q.Reference)
	c.str("stream", &q.Stream)
}

// QueryOffsetResponse: Offset is 0 on error; code 19 means that none is stored.
type QueryOffsetResponse struct {
	Correlation uint32
	Code        ResponseCode
	Offset      uint64
}

func (*QueryOffsetResponse) Key() Key { return KeyQueryOffset.Answer() }

func (q *QueryOffsetResponse) fields(c *codec) {
	c.correlation(&q.Correlation)
	c.code(&q.Code)
	c.u64("offset", &q.Offset)
}
