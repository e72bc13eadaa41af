package wire

// CommandVersion is the range of versions of a command that its sender speaks.
type CommandVersion struct {
	Key Key
	Min uint16
	Max uint16
}

func (v *CommandVersion) fields(c *codec) {
	c.u16("", (*uint16)(&v.Key))
	c.u16("", &v.Min)
	c.u16("", &v.Max)
}

// CommandVersions is an array of versions.
type CommandVersions = List[CommandVersion, *CommandVersion]

// CommandVersionsOf makes CommandVersions of values.
func CommandVersionsOf(values ...CommandVersion) CommandVersions {
	return listOf[CommandVersion](values)
}

// ExchangeCommandVersions announces what a client can receive.
type ExchangeCommandVersions struct {
	Correlation uint32
	Versions    CommandVersions
}

func (*ExchangeCommandVersions) Key() Key { return KeyExchangeCommandVersions }

func (e *ExchangeCommandVersions) fields(c *codec) {
	c.correlation(&e.Correlation)
	listField(c, "versions", &e.Versions, 6)
}

// ExchangeCommandVersionsResponse announces what the server can receive.
type ExchangeCommandVersionsResponse struct {
	Correlation uint32
	Code        ResponseCode
	Versions    CommandVersions
}

func (*ExchangeCommandVersionsResponse) Key() Key { return KeyExchangeCommandVersions.Answer() }

func (e *ExchangeCommandVersionsResponse) fields(c *codec) {
	c.correlation(&e.Correlation)
	c.code(&e.Code)
	listField(c, "versions", &e.Versions, 6)
}

// ServerVersions is what a server announces: the commands that clients send
// after Open, without the handshake and the exchange itself. One public client
// takes Publish by its place, the second.
var ServerVersions = CommandVersionsOf(
	CommandVersion{KeyDeclarePublisher, 1, 1},
	CommandVersion{KeyPublish, 1, 2},
	CommandVersion{KeyQueryPublisherSequence, 1, 1},
	CommandVersion{KeyDeletePublisher, 1, 1},
	CommandVersion{KeySubscribe, 1, 1},
	CommandVersion{KeyCredit, 1, 1},
	CommandVersion{KeyStoreOffset, 1, 1},
	CommandVersion{KeyQueryOffset, 1, 1},
	CommandVersion{KeyUnsubscribe, 1, 1},
	CommandVersion{KeyCreate, 1, 1},
	CommandVersion{KeyDelete, 1, 1},
	CommandVersion{KeyMetadata, 1, 1},
	CommandVersion{KeyClose, 1, 1},
	CommandVersion{KeyHeartbeat, 1, 1},
	CommandVersion{KeyRoute, 1, 1},
	CommandVersion{KeyPartitions, 1, 1},
	CommandVersion{KeyStreamStats, 1, 1},
	CommandVersion{KeyCreateSuperStream, 1, 1},
	CommandVersion{KeyDeleteSuperStream, 1, 1},
	CommandVersion{KeyResolveOffsetSpec, 1, 1},
)
