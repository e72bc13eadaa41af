package wire

import (
	"encoding/binary"
	"math"
)

// HeaderSize is the length of key and version at the head of every payload,
// and SizeSize that of the size before it.
const (
	SizeSize   = 4
	HeaderSize = 4
)

// Command is one command or answer of the protocol; its implementations are
// the pointers to this package's structs.
type Command interface {
	Key() Key
	fields(*codec)
}

// versioned is a command that exists in other versions than 1.
type versioned interface{ wireVersion() uint16 }

// Append appends c's whole frame to dst, its four size bytes included.
func Append(dst []byte, c Command) []byte {
	w := codec{mode: writing, version: 1}
	if v, ok := c.(versioned); ok {
		w.version = v.wireVersion()
	}
	start := len(dst)
	w.out = appendHeader(dst, 0, c.Key(), w.version)
	c.fields(&w)
	finishFrame(w.out, start)
	return w.out
}

// Header reads key and version of a payload of at least HeaderSize bytes, as
// the Splitter gives it.
func Header(payload []byte) (Key, uint16) {
	return Key(binary.BigEndian.Uint16(payload)), binary.BigEndian.Uint16(payload[2:])
}

// FromClient decodes a payload that a client sent. The value owns its memory,
// but for *Publish, which refers to payload. The error is a *DecodeError.
func FromClient(payload []byte) (Command, error) { return decodeNew(payload, clientCommand) }

// FromServer decodes a payload that a server sent. The value owns its memory,
// but for *Deliver, which refers to payload. The error is a *DecodeError.
func FromServer(payload []byte) (Command, error) { return decodeNew(payload, serverCommand) }

// Decode decodes payload into c, a new value of the payload's key. The types of
// the hot paths have a Decode of their own, which allocates nothing and takes a
// used value.
func Decode(payload []byte, c Command) error {
	if t, ok := c.(*Tune); ok && len(payload) >= HeaderSize {
		key, _ := Header(payload)
		t.Answer = key.IsAnswer()
	}
	r, err := beginDecode(payload, c.Key())
	if err != nil {
		return err
	}
	c.fields(&r)
	return r.finish(c.Key())
}

func decodeNew(payload []byte, make func(Key) Command) (Command, error) {
	if len(payload) < HeaderSize {
		return nil, &DecodeError{Index: -1, Err: ErrFrameTooSmall}
	}
	key, _ := Header(payload)
	c := make(key)
	if c == nil {
		err := ErrUnknownKey
		if clientCommand(key) != nil || serverCommand(key) != nil {
			err = ErrWrongDirection
		}
		return nil, &DecodeError{Key: key, Index: -1, Err: err}
	}
	r, err := beginDecode(payload, key)
	if err != nil {
		return nil, err
	}
	c.fields(&r)
	if err := r.finish(key); err != nil {
		return nil, err
	}
	return c, nil
}

// beginDecode checks the header of a payload that must have the key.
func beginDecode(payload []byte, want Key) (codec, error) {
	if len(payload) < HeaderSize {
		return codec{}, &DecodeError{Key: want, Index: -1, Err: ErrFrameTooSmall}
	}
	key, version := Header(payload)
	if key != want {
		return codec{}, &DecodeError{Key: key, Index: -1, Err: ErrUnknownKey}
	}
	if version < 1 || version > versionMax(key) {
		return codec{}, &DecodeError{Key: key, Field: "version", Index: -1, Err: ErrVersion}
	}
	return codec{version: version, in: payload, pos: HeaderSize}, nil
}

// finish ends a reading walk: nothing may be left.
func (c *codec) finish(key Key) error {
	if c.remaining() > 0 {
		c.fail("", ErrTrailing)
	}
	if c.err != nil {
		c.err.Key = key
		return c.err
	}
	return nil
}

func versionMax(key Key) uint16 {
	if key == KeyPublish || key == KeyDeliver {
		return 2
	}
	return 1
}

// appendHeader appends size, key and version.
func appendHeader(dst []byte, size uint32, key Key, version uint16) []byte {
	dst = binary.BigEndian.AppendUint32(dst, size)
	dst = binary.BigEndian.AppendUint16(dst, uint16(key))
	return binary.BigEndian.AppendUint16(dst, version)
}

// finishFrame writes the size of the frame that begins at start and ends with
// buf.
func finishFrame(buf []byte, start int) {
	size := len(buf) - start - SizeSize
	if size > math.MaxInt32 {
		panic("wire: frame above 2 GiB")
	}
	binary.BigEndian.PutUint32(buf[start:], uint32(size))
}

// clientCommand returns a new value for a key that clients send, else nil.
func clientCommand(key Key) Command {
	switch key {
	case KeyDeclarePublisher:
		return new(DeclarePublisher)
	case KeyPublish:
		return new(Publish)
	case KeyQueryPublisherSequence:
		return new(QueryPublisherSequence)
	case KeyDeletePublisher:
		return new(DeletePublisher)
	case KeySubscribe:
		return new(Subscribe)
	case KeyCredit:
		return new(Credit)
	case KeyStoreOffset:
		return new(StoreOffset)
	case KeyQueryOffset:
		return new(QueryOffset)
	case KeyUnsubscribe:
		return new(Unsubscribe)
	case KeyCreate:
		return new(Create)
	case KeyDelete:
		return new(Delete)
	case KeyMetadata:
		return new(Metadata)
	case KeyPeerProperties:
		return new(PeerProperties)
	case KeySaslHandshake:
		return new(SaslHandshake)
	case KeySaslAuthenticate:
		return new(SaslAuthenticate)
	case KeyTune, KeyTune.Answer():
		return &Tune{Answer: key.IsAnswer()}
	case KeyOpen:
		return new(Open)
	case KeyClose:
		return new(Close)
	case KeyClose.Answer():
		return &Response{To: KeyClose}
	case KeyHeartbeat:
		return new(Heartbeat)
	case KeyRoute:
		return new(Route)
	case KeyPartitions:
		return new(Partitions)
	case KeyConsumerUpdate.Answer():
		return new(ConsumerUpdateResponse)
	case KeyExchangeCommandVersions:
		return new(ExchangeCommandVersions)
	case KeyStreamStats:
		return new(StreamStats)
	case KeyCreateSuperStream:
		return new(CreateSuperStream)
	case KeyDeleteSuperStream:
		return new(DeleteSuperStream)
	case KeyResolveOffsetSpec:
		return new(ResolveOffsetSpec)
	}
	return nil
}

// serverCommand returns a new value for a key that servers send, else nil.
func serverCommand(key Key) Command {
	switch key {
	case KeyPublishConfirm:
		return new(PublishConfirm)
	case KeyPublishError:
		return new(PublishError)
	case KeyQueryPublisherSequence.Answer():
		return new(QueryPublisherSequenceResponse)
	case KeyDeliver:
		return new(Deliver)
	case KeyCredit.Answer():
		return new(CreditResponse)
	case KeyQueryOffset.Answer():
		return new(QueryOffsetResponse)
	case KeyMetadata.Answer():
		return new(MetadataResponse)
	case KeyMetadataUpdate:
		return new(MetadataUpdate)
	case KeyPeerProperties.Answer():
		return new(PeerPropertiesResponse)
	case KeySaslHandshake.Answer():
		return new(SaslHandshakeResponse)
	case KeyTune:
		return new(Tune)
	case KeyOpen.Answer():
		return new(OpenResponse)
	case KeyClose:
		return new(Close)
	case KeyHeartbeat:
		return new(Heartbeat)
	case KeyRoute.Answer():
		return new(RouteResponse)
	case KeyPartitions.Answer():
		return new(PartitionsResponse)
	case KeyConsumerUpdate:
		return new(ConsumerUpdate)
	case KeyExchangeCommandVersions.Answer():
		return new(ExchangeCommandVersionsResponse)
	case KeyStreamStats.Answer():
		return new(StreamStatsResponse)
	case KeyResolveOffsetSpec.Answer():
		return new(ResolveOffsetSpecResponse)
	case KeyDeclarePublisher.Answer(), KeyDeletePublisher.Answer(), KeySubscribe.Answer(),
		KeyUnsubscribe.Answer(), KeyCreate.Answer(), KeyDelete.Answer(),
		KeySaslAuthenticate.Answer(), KeyClose.Answer(),
		KeyCreateSuperStream.Answer(), KeyDeleteSuperStream.Answer():
		return &Response{To: key.Command()}
	}
	return nil
}
