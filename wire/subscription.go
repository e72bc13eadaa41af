package wire

// Subscribe opens a subscription; its answer is a Response. Properties may be
// missing at the end of the frame.
type Subscribe struct {
	Correlation    uint32
	SubscriptionID uint8
	Stream         string
	Offset         OffsetSpec
	Credit         uint16 // chunks
	Properties     Properties
}

func (*Subscribe) Key() Key { return KeySubscribe }

func (s *Subscribe) fields(c *codec) {
	c.correlation(&s.Correlation)
	c.u8("subscription id", &s.SubscriptionID)
	c.str("stream", &s.Stream)
	s.Offset.fields(c, OffsetFirst)
	c.u16("credit", &s.Credit)
	s.Properties.optionalField(c, "properties")
}

// Unsubscribe closes a subscription; its answer is a Response.
type Unsubscribe struct {
	Correlation    uint32
	SubscriptionID uint8
}

func (*Unsubscribe) Key() Key { return KeyUnsubscribe }

func (u *Unsubscribe) fields(c *codec) {
	c.correlation(&u.Correlation)
	c.u8("subscription id", &u.SubscriptionID)
}

// Credit allows the server to deliver that many more chunks. It is answered
// only when something is wrong.
type Credit struct {
	SubscriptionID uint8
	Credit         uint16
}

func (*Credit) Key() Key { return KeyCredit }

func (x *Credit) fields(c *codec) {
	c.u8("subscription id", &x.SubscriptionID)
	c.u16("credit", &x.Credit)
}

// Decode decodes payload into x.
func (x *Credit) Decode(payload []byte) error {
	c, err := beginDecode(payload, KeyCredit)
	if err != nil {
		return err
	}
	x.fields(&c)
	return c.finish(KeyCredit)
}

// CreditResponse says what is wrong with a Credit. It has no correlation id.
type CreditResponse struct {
	Code           ResponseCode
	SubscriptionID uint8
}

func (*CreditResponse) Key() Key { return KeyCredit.Answer() }

func (x *CreditResponse) fields(c *codec) {
	c.code(&x.Code)
	c.u8("subscription id", &x.SubscriptionID)
}

// ConsumerUpdate is the server's request to a member of a group to become the
// active one, or to step down.
type ConsumerUpdate struct {
	Correlation    uint32
	SubscriptionID uint8
	Active         bool
}

func (*ConsumerUpdate) Key() Key { return KeyConsumerUpdate }

func (u *ConsumerUpdate) fields(c *codec) {
	c.correlation(&u.Correlation)
	c.u8("subscription id", &u.SubscriptionID)
	c.bool("active", &u.Active)
}

// ConsumerUpdateResponse says where the member wants to read from; type none
// means the subscription's own place. It is the one command with bytes allowed
// behind it: one public client always sends eight behind the types that have
// no value. They are dropped.
type ConsumerUpdateResponse struct {
	Correlation uint32
	Code        ResponseCode
	Offset      OffsetSpec
}

func (*ConsumerUpdateResponse) Key() Key { return KeyConsumerUpdate.Answer() }

func (u *ConsumerUpdateResponse) fields(c *codec) {
	c.correlation(&u.Correlation)
	c.code(&u.Code)
	u.Offset.fields(c, OffsetNone)
	if c.mode == reading && u.Offset.Type < OffsetAt {
		c.take("", c.remaining())
	}
}
