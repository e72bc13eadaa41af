package wire

// Route asks which partitions a routing key is bound to.
type Route struct {
	Correlation uint32
	RoutingKey  string
	SuperStream string
}

func (*Route) Key() Key { return KeyRoute }

func (r *Route) fields(c *codec) {
	c.correlation(&r.Correlation)
	c.str("routing key", &r.RoutingKey)
	c.str("super stream", &r.SuperStream)
}

// RouteResponse: no match is code 1 and no streams.
type RouteResponse struct {
	Correlation uint32
	Code        ResponseCode
	Streams     Strings
}

func (*RouteResponse) Key() Key { return KeyRoute.Answer() }

func (r *RouteResponse) fields(c *codec) {
	c.correlation(&r.Correlation)
	c.code(&r.Code)
	r.Streams.field(c, "streams")
}

// Partitions asks for the partitions of a super stream.
type Partitions struct {
	Correlation uint32
	SuperStream string
}

func (*Partitions) Key() Key { return KeyPartitions }

func (p *Partitions) fields(c *codec) {
	c.correlation(&p.Correlation)
	c.str("super stream", &p.SuperStream)
}

// PartitionsResponse: Streams is in the order of the partitions.
type PartitionsResponse struct {
	Correlation uint32
	Code        ResponseCode
	Streams     Strings
}

func (*PartitionsResponse) Key() Key { return KeyPartitions.Answer() }

func (p *PartitionsResponse) fields(c *codec) {
	c.correlation(&p.Correlation)
	c.code(&p.Code)
	p.Streams.field(c, "streams")
}

// CreateSuperStream makes a super stream and its partitions; its answer is a
// Response. Partition i is bound by key i; that the two arrays are of one
// length is the server's to check.
type CreateSuperStream struct {
	Correlation uint32
	Name        string
	Partitions  Strings
	BindingKeys Strings
	Arguments   Properties
}

func (*CreateSuperStream) Key() Key { return KeyCreateSuperStream }

func (x *CreateSuperStream) fields(c *codec) {
	c.correlation(&x.Correlation)
	c.str("name", &x.Name)
	x.Partitions.field(c, "partitions")
	x.BindingKeys.field(c, "binding keys")
	x.Arguments.field(c, "arguments")
}

// DeleteSuperStream removes a super stream and its partitions; its answer is a
// Response.
type DeleteSuperStream struct {
	Correlation uint32
	Name        string
}

func (*DeleteSuperStream) Key() Key { return KeyDeleteSuperStream }

func (d *DeleteSuperStream) fields(c *codec) {
	c.correlation(&d.Correlation)
	c.str("name", &d.Name)
}
