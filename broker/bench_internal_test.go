package broker

import (
	"encoding/binary"
	"net"
	"testing"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// instant confirms every batch at once and keeps nothing.
type instant struct{}

func (instant) Declare(string) (*replication.Publisher, error) {
	return new(replication.Publisher), nil
}
func (instant) Publish(b *replication.Batch)               { b.Sink.Confirmed(b) }
func (instant) Sequence(string, func(uint64, bool, error)) {}
func (instant) StoreOffset(string, chunk.Offset) error     { return nil }
func (instant) StoreOffsetFrom(replication.Origin, string, chunk.Offset) (uint64, error) {
	return 0, nil
}
func (instant) QueryOffset(string) (chunk.Offset, bool, error) { return 0, false, nil }
func (instant) Committed() (chunk.LSN, chunk.Offset)           { return 0, 0 }
func (instant) Watch(func()) func()                            { return func() {} }
func (instant) Attach(segstore.Spec) (*segstore.Reader, error) { return nil, segstore.ErrClosed }

// BenchmarkSession_publish is what a message costs the session: its share of
// checking the frame, of the batch and of the confirm. Sockets and the log are
// left out.
func BenchmarkSession_publish(b *testing.B) {
	const messages, size, window = 100, 100, 10_000
	config := Config{}.withDefaults()
	server, client := net.Pipe()
	defer server.Close()
	defer client.Close()
	s := newSession(&Broker{config: config}, server, nil, nil)
	s.frameMax = config.FrameMax
	s.publishers[1] = &publisher{session: s, id: 1, tie: &tie{session: s}, handle: &localPublisher{replica: instant{}}}
	w := &writer{session: s}
	var build wire.PublishBuilder
	build.Begin(nil, 1, 1)
	for i := range messages {
		build.Add(uint64(i), make([]byte, size))
	}
	payload := build.End()[wire.SizeSize:]
	b.ReportAllocs()
	b.SetBytes(messages * size)
	sent := 0
	for b.Loop() {
		if err := s.publish(payload); err != nil {
			b.Fatal(err)
		}
		if sent += messages; sent%window == 0 {
			s.out.take(w)
			w.settle(w.settled)
			clear(w.settled)
			if n := binary.BigEndian.Uint32(w.run[9:]); n != window {
				b.Fatalf("confirm of %d ids, want those of the whole window", n)
			}
			w.giveBack()
		}
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/messages, "ns/message")
}

// unchanged is metadata that nobody changes.
type unchanged struct {
	Directory
	view *catalog.State
}

func (u unchanged) View() *catalog.State { return u.view }

// storingSession is a session that has stored an offset before, and the frame
// of the next.
func storingSession(tb testing.TB) (*session, []byte) {
	server, client := net.Pipe()
	tb.Cleanup(func() { server.Close(); client.Close() })
	view := catalog.New()
	s := newSession(&Broker{config: Config{}.withDefaults(), directory: unchanged{view: view}}, server, nil, nil)
	s.state = open
	s.storing = storing{view: view, stream: "orders", leader: &local{s, instant{}}}
	return s, wire.Append(nil, &wire.StoreOffset{Reference: "a consumer", Stream: "orders", Offset: 7})[wire.SizeSize:]
}

// TestSession_storeOffsetAllocatesNothing holds the hot path of stores.
func TestSession_storeOffsetAllocatesNothing(t *testing.T) {
	s, payload := storingSession(t)
	n := testing.AllocsPerRun(1000, func() {
		if err := s.carryOut(payload); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Errorf("a store allocates %v times", n)
	}
}

// BenchmarkSession_storeOffset is what a store costs the session.
func BenchmarkSession_storeOffset(b *testing.B) {
	s, payload := storingSession(b)
	b.ReportAllocs()
	for b.Loop() {
		if err := s.carryOut(payload); err != nil {
			b.Fatal(err)
		}
	}
}
