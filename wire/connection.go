package wire

// PeerProperties is what a client tells about itself first of all.
type PeerProperties struct {
	Correlation uint32
	Properties  Properties
}

func (*PeerProperties) Key() Key { return KeyPeerProperties }

func (p *PeerProperties) fields(c *codec) {
	c.correlation(&p.Correlation)
	p.Properties.field(c, "properties")
}

// PeerPropertiesResponse is what the server tells about itself. Clients look
// for the first three numbers joined by dots in "version".
type PeerPropertiesResponse struct {
	Correlation uint32
	Code        ResponseCode
	Properties  Properties
}

func (*PeerPropertiesResponse) Key() Key { return KeyPeerProperties.Answer() }

func (p *PeerPropertiesResponse) fields(c *codec) {
	c.correlation(&p.Correlation)
	c.code(&p.Code)
	p.Properties.field(c, "properties")
}

// SaslHandshake asks for the authentication mechanisms.
type SaslHandshake struct{ Correlation uint32 }

func (*SaslHandshake) Key() Key          { return KeySaslHandshake }
func (s *SaslHandshake) fields(c *codec) { c.correlation(&s.Correlation) }

// SaslHandshakeResponse lists the mechanisms, by their upper-case names.
type SaslHandshakeResponse struct {
	Correlation uint32
	Code        ResponseCode
	Mechanisms  Strings
}

func (*SaslHandshakeResponse) Key() Key { return KeySaslHandshake.Answer() }

func (s *SaslHandshakeResponse) fields(c *codec) {
	c.correlation(&s.Correlation)
	c.code(&s.Code)
	s.Mechanisms.field(c, "mechanisms")
}

// SaslAuthenticate carries the credentials; its answer is a Response. Data is
// nil when it was null or empty. A challenge (code 10) is never sent, and
// taken for a malformed answer.
type SaslAuthenticate struct {
	Correlation uint32
	Mechanism   string
	Data        []byte
}

func (*SaslAuthenticate) Key() Key { return KeySaslAuthenticate }

func (s *SaslAuthenticate) fields(c *codec) {
	c.correlation(&s.Correlation)
	c.str("mechanism", &s.Mechanism)
	c.bytes("data", &s.Data)
}

// Tune proposes (server), then settles (client) the largest frame in bytes and
// the heartbeat in seconds; 0 means no limit and no heartbeat.
type Tune struct {
	// Answer marks the client's Tune that comes with the answer's key; clients
	// send either. The server's never does.
	Answer    bool
	FrameMax  uint32
	Heartbeat uint32
}

func (t *Tune) Key() Key {
	if t.Answer {
		return KeyTune.Answer()
	}
	return KeyTune
}

func (t *Tune) fields(c *codec) {
	c.u32("frame max", &t.FrameMax)
	c.u32("heartbeat", &t.Heartbeat)
}

// Open binds the connection to a virtual host.
type Open struct {
	Correlation uint32
	VirtualHost string
}

func (*Open) Key() Key { return KeyOpen }

func (o *Open) fields(c *codec) {
	c.correlation(&o.Correlation)
	c.str("virtual host", &o.VirtualHost)
}

// OpenResponse answers Open. Properties exist with code 1 only, and hold
// exactly advertised_host and advertised_port: a third one confuses clients.
type OpenResponse struct {
	Correlation uint32
	Code        ResponseCode
	Properties  Properties
}

func (*OpenResponse) Key() Key { return KeyOpen.Answer() }

func (o *OpenResponse) fields(c *codec) {
	c.correlation(&o.Correlation)
	c.code(&o.Code)
	if o.Code == CodeOK {
		o.Properties.field(c, "properties")
	}
}

// Close asks the other side to end the connection; its answer is a Response.
type Close struct {
	Correlation uint32
	Code        ResponseCode
	Reason      string
}

func (*Close) Key() Key { return KeyClose }

func (x *Close) fields(c *codec) {
	c.correlation(&x.Correlation)
	c.code(&x.Code)
	c.str("reason", &x.Reason)
}

// Heartbeat shows that its sender is alive. It is never answered.
type Heartbeat struct{}

func (*Heartbeat) Key() Key      { return KeyHeartbeat }
func (*Heartbeat) fields(*codec) {}
