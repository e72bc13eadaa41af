package wire

import "fmt"

// Key names a command on the wire. Bit 15 marks an answer.
type Key uint16

// responseBit is the bit that turns a command's key into its answer's.
const responseBit Key = 0x8000

// The commands, in the order of their ids.
const (
	KeyDeclarePublisher        Key = 1
	KeyPublish                 Key = 2
	KeyPublishConfirm          Key = 3
	KeyPublishError            Key = 4
	KeyQueryPublisherSequence  Key = 5
	KeyDeletePublisher         Key = 6
	KeySubscribe               Key = 7
	KeyDeliver                 Key = 8
	KeyCredit                  Key = 9
	KeyStoreOffset             Key = 10
	KeyQueryOffset             Key = 11
	KeyUnsubscribe             Key = 12
	KeyCreate                  Key = 13
	KeyDelete                  Key = 14
	KeyMetadata                Key = 15
	KeyMetadataUpdate          Key = 16
	KeyPeerProperties          Key = 17
	KeySaslHandshake           Key = 18
	KeySaslAuthenticate        Key = 19
	KeyTune                    Key = 20
	KeyOpen                    Key = 21
	KeyClose                   Key = 22
	KeyHeartbeat               Key = 23
	KeyRoute                   Key = 24
	KeyPartitions              Key = 25
	KeyConsumerUpdate          Key = 26
	KeyExchangeCommandVersions Key = 27
	KeyStreamStats             Key = 28
	KeyCreateSuperStream       Key = 29
	KeyDeleteSuperStream       Key = 30
	KeyResolveOffsetSpec       Key = 31
)

var keyNames = [...]string{
	KeyDeclarePublisher:        "DeclarePublisher",
	KeyPublish:                 "Publish",
	KeyPublishConfirm:          "PublishConfirm",
	KeyPublishError:            "PublishError",
	KeyQueryPublisherSequence:  "QueryPublisherSequence",
	KeyDeletePublisher:         "DeletePublisher",
	KeySubscribe:               "Subscribe",
	KeyDeliver:                 "Deliver",
	KeyCredit:                  "Credit",
	KeyStoreOffset:             "StoreOffset",
	KeyQueryOffset:             "QueryOffset",
	KeyUnsubscribe:             "Unsubscribe",
	KeyCreate:                  "Create",
	KeyDelete:                  "Delete",
	KeyMetadata:                "Metadata",
	KeyMetadataUpdate:          "MetadataUpdate",
	KeyPeerProperties:          "PeerProperties",
	KeySaslHandshake:           "SaslHandshake",
	KeySaslAuthenticate:        "SaslAuthenticate",
	KeyTune:                    "Tune",
	KeyOpen:                    "Open",
	KeyClose:                   "Close",
	KeyHeartbeat:               "Heartbeat",
	KeyRoute:                   "Route",
	KeyPartitions:              "Partitions",
	KeyConsumerUpdate:          "ConsumerUpdate",
	KeyExchangeCommandVersions: "ExchangeCommandVersions",
	KeyStreamStats:             "StreamStats",
	KeyCreateSuperStream:       "CreateSuperStream",
	KeyDeleteSuperStream:       "DeleteSuperStream",
	KeyResolveOffsetSpec:       "ResolveOffsetSpec",
}

// Answer returns the key of the answer to a command.
func (k Key) Answer() Key { return k | responseBit }

// Command returns the key without the answer's bit.
func (k Key) Command() Key { return k &^ responseBit }

// IsAnswer tells whether the key is that of an answer.
func (k Key) IsAnswer() bool { return k&responseBit != 0 }

// Known tells whether the id is one of the protocol's.
func (k Key) Known() bool {
	id := k.Command()
	return id >= KeyDeclarePublisher && id <= KeyResolveOffsetSpec
}

func (k Key) String() string {
	if !k.Known() {
		return fmt.Sprintf("command %04x", uint16(k))
	}
	if k.IsAnswer() {
		return keyNames[k.Command()] + " response"
	}
	return keyNames[k]
}
