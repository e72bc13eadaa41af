package broker_test

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/wire"
)

// clientCommands is every command that a client can send, right in itself.
func clientCommands() map[string]wire.Command {
	var build wire.PublishBuilder
	build.Begin(nil, 1, 9)
	build.Add(1, []byte("m"))
	publish, err := wire.DecodePublish(build.End()[wire.SizeSize:])
	if err != nil {
		panic(err)
	}
	return map[string]wire.Command{
		"PeerProperties":          &wire.PeerProperties{Correlation: 7},
		"SaslHandshake":           &wire.SaslHandshake{Correlation: 7},
		"SaslAuthenticate":        plain(7, "guest", "guest"),
		"Tune":                    &wire.Tune{FrameMax: 1 << 20, Heartbeat: 60},
		"Tune response":           &wire.Tune{Answer: true, FrameMax: 1 << 20, Heartbeat: 60},
		"Open":                    &wire.Open{Correlation: 7, VirtualHost: "/"},
		"Heartbeat":               &wire.Heartbeat{},
		"Close":                   &wire.Close{Correlation: 7, Code: 1, Reason: "OK"},
		"DeclarePublisher":        &wire.DeclarePublisher{Correlation: 7, PublisherID: 1, Stream: "s"},
		"Publish":                 &publish,
		"DeletePublisher":         &wire.DeletePublisher{Correlation: 7, PublisherID: 9},
		"QueryPublisherSequence":  &wire.QueryPublisherSequence{Correlation: 7, Reference: "r", Stream: "s"},
		"Subscribe":               &wire.Subscribe{Correlation: 7, Stream: "s", Offset: wire.OffsetSpec{Type: wire.OffsetFirst}},
		"Credit":                  &wire.Credit{SubscriptionID: 9, Credit: 1},
		"Unsubscribe":             &wire.Unsubscribe{Correlation: 7, SubscriptionID: 9},
		"ConsumerUpdate response": &wire.ConsumerUpdateResponse{Correlation: 7, Code: 1},
		"StoreOffset":             &wire.StoreOffset{Reference: "r", Stream: "s", Offset: 1},
		"QueryOffset":             &wire.QueryOffset{Correlation: 7, Reference: "other", Stream: "s"},
		"Create":                  &wire.Create{Correlation: 7, Stream: "created"},
		"Delete":                  &wire.Delete{Correlation: 7, Stream: "other"},
		"Metadata":                &wire.Metadata{Correlation: 7, Streams: wire.StringsOf("s")},
		"StreamStats":             &wire.StreamStats{Correlation: 7, Stream: "s"},
		"ResolveOffsetSpec":       &wire.ResolveOffsetSpec{Correlation: 7, Stream: "s", Offset: wire.OffsetSpec{Type: wire.OffsetFirst}},
		"ExchangeCommandVersions": &wire.ExchangeCommandVersions{Correlation: 7},
		"Route":                   &wire.Route{Correlation: 7, RoutingKey: "k", SuperStream: "x"},
		"Partitions":              &wire.Partitions{Correlation: 7, SuperStream: "x"},
		"CreateSuperStream":       &wire.CreateSuperStream{Correlation: 7, Name: "made"},
		"DeleteSuperStream":       &wire.DeleteSuperStream{Correlation: 7, Name: "x"},
	}
}

// Outcomes of a command in a state.
const (
	ends   = "ends"   // the socket is closed, nothing is answered
	closes = "closes" // the broker asks to close: unknown frame
	silent = "silent" // taken without an answer
)

// handshakeOutcomes are the commands that mean something before Open, by how
// many steps of the handshake are done; what is not listed ends the connection.
var handshakeOutcomes = []map[string]string{
	{"PeerProperties": "PeerProperties response 1", "Heartbeat": silent},
	{"PeerProperties": "PeerProperties response 1", "SaslHandshake": "SaslHandshake response 1", "Heartbeat": silent},
	{"SaslHandshake": "SaslHandshake response 1", "SaslAuthenticate": "SaslAuthenticate response 1", "Heartbeat": silent},
	{"Tune": silent, "Tune response": silent, "Open": "Open response 1", "Heartbeat": silent},
	{"Tune": silent, "Tune response": silent, "Open": "Open response 1", "Heartbeat": silent},
}

// openOutcomes are all commands in an open connection, with a stream s.
var openOutcomes = map[string]string{
	"PeerProperties":          closes,
	"SaslHandshake":           closes,
	"SaslAuthenticate":        "SaslAuthenticate response 1",
	"Tune":                    closes,
	"Tune response":           closes,
	"Open":                    closes,
	"Heartbeat":               silent,
	"Close":                   "Close response 1",
	"DeclarePublisher":        "DeclarePublisher response 1",
	"Publish":                 "PublishError 0",
	"DeletePublisher":         "DeletePublisher response 18",
	"QueryPublisherSequence":  "QueryPublisherSequence response 1",
	"Subscribe":               "Subscribe response 1",
	"Credit":                  "Credit response 4",
	"Unsubscribe":             "Unsubscribe response 4",
	"ConsumerUpdate response": silent,
	"StoreOffset":             silent,
	"QueryOffset":             "QueryOffset response 19",
	"Create":                  "Create response 1",
	"Delete":                  "Delete response 1",
	"Metadata":                "Metadata response 0",
	"StreamStats":             "StreamStats response 1",
	"ResolveOffsetSpec":       "ResolveOffsetSpec response 1",
	"ExchangeCommandVersions": "ExchangeCommandVersions response 1",
	"Route":                   "Route response 2",
	"Partitions":              "Partitions response 2",
	"CreateSuperStream":       "CreateSuperStream response 1",
	"DeleteSuperStream":       "DeleteSuperStream response 2",
}

func TestStates_everyCommandInEveryState(t *testing.T) {
	h := serve(t, nil)
	setup := h.open(t)
	setup.create("s")
	commands := clientCommands()
	for steps := range len(handshakeOutcomes) + 1 {
		for name, command := range commands {
			t.Run(fmt.Sprintf("%d %s", steps, name), func(t *testing.T) {
				if name == "Delete" && steps == len(handshakeOutcomes) {
					setup.create("other")
				}
				want := openOutcomes[name]
				if steps < len(handshakeOutcomes) {
					want = ends
					if outcome, ok := handshakeOutcomes[steps][name]; ok {
						want = outcome
					}
				}
				p := h.dial(t)
				p.advance(steps, "guest", "guest", &wire.Tune{FrameMax: 1 << 20, Heartbeat: 60})
				p.send(command)
				p.wantOutcome(want, steps)
			})
		}
	}
	setup.wantCode(setup.ask(&wire.DeleteSuperStream{Correlation: setup.next(), Name: "made"}), wire.CodeOK)
	if _, made := h.View().Stream("/", "created"); !made {
		t.Error("create in the open state made no stream")
	}
	setup.wantCode(setup.ask(&wire.Delete{Correlation: setup.next(), Stream: "created"}), wire.CodeOK)
}

func (p *peer) wantOutcome(want string, steps int) {
	p.t.Helper()
	switch want {
	case ends:
		p.wantEnd()
	case closes:
		p.wantClose(wire.CodeUnknownFrame)
	case silent:
		// Nothing comes, and the connection goes on.
		if steps == 5 {
			p.ask(&wire.Metadata{Correlation: p.next()})
		} else {
			p.wantSilence()
		}
	default:
		answer := p.read()
		if got := fmt.Sprintf("%s %d", answer.Key(), codeIn(answer)); got != want {
			p.t.Fatalf("got %s, want %s", got, want)
		}
	}
}

func TestStates_whatClientsMayNotSend(t *testing.T) {
	h := serve(t, nil)
	for _, row := range []struct {
		name  string
		frame []byte
	}{
		{"unknown key", wireFrame(0x00ff, 1)},
		{"key 0", wireFrame(0, 1)},
		{"response of an unknown key", wireFrame(0x80ff, 1)},
		{"version 0", wireFrame(0x0017, 0)},
		{"version 2", wireFrame(0x0017, 2)},
		{"Publish 3", wireFrame(0x0002, 3, 0, 0, 0, 0, 0)},
		{"a server's command", wire.Append(nil, &wire.PublishConfirm{})},
		{"a server's answer", wire.Append(nil, &wire.Response{To: wire.KeyCreate, Code: 1})},
		{"Close response unasked", wire.Append(nil, &wire.Response{To: wire.KeyClose, Code: 1})},
		{"bytes left over", wireFrame(0x0017, 1, 0)},
		{"fields cut", wireFrame(0x000e, 1, 0, 0, 0, 1, 0, 9)},
		{"null string", wireFrame(0x000e, 1, 0, 0, 0, 1, 0xff, 0xff)},
		{"string length -2", wireFrame(0x000e, 1, 0, 0, 0, 1, 0xff, 0xfe)},
		{"array count 2^31-1", wireFrame(0x000f, 1, 0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff)},
		{"array count -1", wireFrame(0x000f, 1, 0, 0, 0, 1, 0xff, 0xff, 0xff, 0xff)},
		{"Publish with a count too low", wireFrame(0x0002, 1, 0, 0, 0, 0, 0, 1)},
		{"Publish with a count too high", wireFrame(0x0002, 1, 0, 0, 0, 0, 1)},
		{"Publish with an entry larger than the frame", wireFrame(0x0002, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 9, 1)},
		{"Publish 2 with a sub-batch", wireFrame(0x0002, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0xff, 0xff, 0x80, 0, 1, 0, 0, 0, 4, 0, 0, 0, 4, 0, 0, 0, 0)},
		{"Subscribe with offset type 0", wireFrame(0x0007, 1, 0, 0, 0, 1, 0, 0, 1, 's', 0, 0, 0, 1)},
		{"Subscribe with offset type 6", wireFrame(0x0007, 1, 0, 0, 0, 1, 0, 0, 1, 's', 0, 6, 0, 1)},
		{"size 0", []byte{0, 0, 0, 0}},
		{"size 3", []byte{0, 0, 0, 3, 0, 0x17, 0}},
	} {
		t.Run("open/"+row.name, func(t *testing.T) {
			p := h.open(t)
			p.write(row.frame)
			p.wantClose(wire.CodeUnknownFrame)
		})
		t.Run("before/"+row.name, func(t *testing.T) {
			p := h.dial(t)
			p.write(row.frame)
			p.wantEnd()
		})
	}
	h.broker.Stats()
}

// wireFrame is a frame of any key, version and fields.
func wireFrame(key, version uint16, fields ...byte) []byte {
	size := 4 + len(fields)
	head := []byte{
		byte(size >> 24), byte(size >> 16), byte(size >> 8), byte(size),
		byte(key >> 8), byte(key), byte(version >> 8), byte(version),
	}
	return append(head, fields...)
}

func TestStates_framesMayComeTogether(t *testing.T) {
	h := serve(t, nil)
	p := h.dial(t)
	p.send(
		&wire.PeerProperties{Correlation: 1},
		&wire.SaslHandshake{Correlation: 2},
		plain(3, "guest", "guest"),
		&wire.Tune{FrameMax: 1 << 20},
		&wire.Open{Correlation: 4, VirtualHost: "/"},
		&wire.Metadata{Correlation: 5},
	)
	for _, key := range []wire.Key{
		wire.KeyPeerProperties.Answer(), wire.KeySaslHandshake.Answer(), wire.KeySaslAuthenticate.Answer(),
		wire.KeyTune, wire.KeyOpen.Answer(), wire.KeyMetadata.Answer(),
	} {
		if got := p.read(); got.Key() != key {
			t.Fatalf("got %s, want %s", got.Key(), key)
		}
	}
}

func TestStates_nothingIsCarriedOutBehindAnEnd(t *testing.T) {
	h := serve(t, nil)
	create := func(name string) *wire.Create { return &wire.Create{Correlation: 8, Stream: name} }
	p := h.open(t)
	p.send(&wire.Close{Correlation: 7, Code: 1, Reason: "OK"}, create("behind close"))
	p.wantCode(p.read(), wire.CodeOK)
	p.wantEnd()

	p = h.open(t)
	p.write(append(wireFrame(0x00ff, 1), wire.Append(nil, create("behind violation"))...))
	p.wantClose(wire.CodeUnknownFrame)
	for name := range h.View().StreamsOf("/") {
		t.Errorf("stream %q was created", name.Name)
	}
}
