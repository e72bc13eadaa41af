package broker_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/wire"
)

// FuzzSession sends what a fuzzer makes of frames to a broker over real
// replicas, after some steps of the handshake. Whatever comes, each frame of
// the broker's is one that a client understands, the connection ends when the
// client does, nothing of it is left, and another connection goes on.
func FuzzSession(f *testing.F) {
	frames := func(commands ...wire.Command) (all []byte) {
		for _, c := range commands {
			all = wire.Append(all, c)
		}
		return all
	}
	var publish wire.PublishBuilder
	publish.Begin(nil, 1, 0)
	publish.Add(1, []byte("m"))
	publish.AddSubBatch(2, 0, 2, 10, []byte{0, 0, 0, 1, 'x', 0, 0, 0, 1, 'y'})
	f.Add(byte(0), frames(&wire.PeerProperties{Correlation: 1}, &wire.SaslHandshake{Correlation: 2}, plain(3, "guest", "guest"),
		&wire.Tune{FrameMax: 1 << 20}, &wire.Open{Correlation: 4, VirtualHost: "/"}, &wire.Metadata{Correlation: 5}))
	f.Add(byte(2), frames(plain(3, "guest", "wrong")))
	f.Add(byte(5), append(frames(
		&wire.Create{Correlation: 1, Stream: "t"},
		&wire.DeclarePublisher{Correlation: 2, Stream: "s", Reference: "r"},
		&wire.Subscribe{Correlation: 3, Stream: "s", Offset: first, Credit: 10, Properties: wire.PropertiesOf("filter.0", "x")},
	), publish.End()...))
	f.Add(byte(5), frames(
		&wire.Credit{Credit: 65535}, &wire.StoreOffset{Reference: "r", Stream: "s", Offset: 1},
		&wire.QueryOffset{Correlation: 1, Reference: "r", Stream: "s"},
		&wire.QueryPublisherSequence{Correlation: 1, Reference: "r", Stream: "s"},
		&wire.StreamStats{Correlation: 1, Stream: "s"},
		&wire.ResolveOffsetSpec{Correlation: 1, Stream: "s", Offset: wire.FromTimestamp(-1)},
		&wire.Delete{Correlation: 1, Stream: "s"}, &wire.Close{Correlation: 1, Code: 1},
	))
	for _, command := range clientCommands() {
		f.Add(byte(5), frames(command))
	}
	h := fuzzHouse(f)
	f.Fuzz(func(t *testing.T, steps byte, input []byte) {
		h.createAgain(t, "s")
		p := h.dial(t)
		if err := tryAdvance(p, int(steps%6)); err != nil {
			t.Fatalf("handshake: %v", err)
		}
		read := make(chan error, 1)
		go func() { read <- readAll(p.Raw) }()
		_, _ = p.Write(input) // the broker may have ended it already
		_ = p.CloseWrite()
		if err := <-read; err != nil {
			t.Errorf("the broker's frames: %v", err)
		}
		p.Close()
		eventually(t, "nothing is left", func() bool {
			s := h.broker.Stats()
			return s.Connections == 0 && s.Publishers == 0 && s.Consumers == 0 && s.Unconfirmed == 0
		})
	})
}

// fuzzHouse is a broker that lives as long as the fuzzing.
func fuzzHouse(f *testing.F) *house {
	return serveReal(f, vfs.NewMem(), "data", func(c *broker.Config) {
		c.FailedLoginDelay, c.CloseTimeout = time.Millisecond, 10*time.Millisecond
	})
}

// createAgain makes sure that a stream is there.
func (h *house) createAgain(t testing.TB, stream string) {
	t.Helper()
	if _, there := h.View().Stream("/", stream); !there {
		if err := h.directory.CreateStream(context.Background(), broker.CreateStream{VHost: "/", Name: stream}); err != nil {
			t.Fatal(err)
		}
	}
}

// tryAdvance is advance without a test to fail.
func tryAdvance(p *peer, steps int) error {
	requests := []wire.Command{
		&wire.PeerProperties{Correlation: 1}, &wire.SaslHandshake{Correlation: 2}, plain(3, "guest", "guest"),
		&wire.Tune{FrameMax: 1 << 16}, &wire.Open{Correlation: 4, VirtualHost: "/"},
	}
	for _, request := range requests[:steps] {
		if err := p.Send(request); err != nil {
			return err
		}
		answers := 1
		switch request.(type) {
		case *wire.Tune:
			answers = 0
		case *wire.SaslAuthenticate:
			answers = 2 // and the Tune
		}
		for range answers {
			if _, err := p.NextCommand(); err != nil {
				return err
			}
		}
	}
	return nil
}

// readAll reads frames until the connection ends, and decodes each.
func readAll(r *client.Raw) error {
	for {
		_, err := r.NextCommand()
		var bad *wire.DecodeError
		var socket net.Error
		switch {
		case errors.As(err, &bad), errors.As(err, &socket) && socket.Timeout():
			return err
		case errors.Is(err, io.ErrUnexpectedEOF):
			return err
		case err != nil:
			return nil // the end
		}
	}
}
