package client

import (
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// filled is a server with stream s: offsets 0 to 2 in one chunk, a gzip
// sub-batch of 3 to 5, and 6.
func filled(t testing.TB) *fakeServer {
	t.Helper()
	s := newFakeServer(t)
	stream := s.stream("s")
	var run []byte
	for i := range 3 {
		run = chunk.AppendSimple(run, fmt.Appendf(nil, "m%d", i))
	}
	stream.appendRun(run, 3, 3)
	var p packer
	data, size, err := p.pack(chunk.CompressionGzip, [][]byte{[]byte("m3"), []byte("m4"), []byte("m5")})
	if err != nil {
		t.Fatal(err)
	}
	stream.append(chunk.AppendSubBatch(nil, chunk.CompressionGzip, 3, uint32(size), data), 3)
	stream.append(chunk.AppendSimple(nil, []byte("m6")), 1)
	return s
}

// collect returns a Deliver that sends what it hears.
func collect(t testing.TB) (func(*Delivery), <-chan string) {
	records := make(chan string, 100)
	return func(d *Delivery) {
		for r, err := range d.Records() {
			if err != nil {
				t.Error(err)
				return
			}
			records <- fmt.Sprintf("%d %s", r.Offset, r.Message)
		}
	}, records
}

func TestConsumer_recordsFromTheOffsetAskedFor(t *testing.T) {
	s := filled(t)
	for from := range uint64(7) {
		c := s.dial(nil)
		deliver, records := collect(t)
		_, err := c.Subscribe(t.Context(), ConsumerConfig{Stream: "s", Offset: wire.FromOffset(from), Deliver: deliver})
		if err != nil {
			t.Fatal(err)
		}
		for i := from; i < 7; i++ {
			if got, want := receive(t, records, "record"), fmt.Sprintf("%d m%d", i, i); got != want {
				t.Errorf("from %d: %q, want %q", from, got, want)
			}
		}
	}
}

func TestConsumer_everySpecIsSent(t *testing.T) {
	s := filled(t)
	c := s.dial(nil)
	specs := []wire.OffsetSpec{{Type: wire.OffsetFirst}, {Type: wire.OffsetLast}, {Type: wire.OffsetNext}, wire.FromOffset(1 << 40), wire.FromTimestamp(-1)}
	for _, spec := range specs {
		consumer, err := c.Subscribe(t.Context(), ConsumerConfig{Stream: "s", Offset: spec, Credit: 3,
			Properties: map[string]string{"name": "n"}, Deliver: func(*Delivery) {}})
		if err != nil {
			t.Fatal(err)
		}
		if err := consumer.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for i, q := range s.commands(wire.KeySubscribe) {
		q := q.(*wire.Subscribe)
		if name, _ := q.Properties.Get("name"); q.Offset != specs[i] || q.Credit != 3 || name != "n" || q.SubscriptionID != 0 {
			t.Errorf("subscribed by %+v", q)
		}
	}
}

// Each chunk is paid for by one credit, unless the owner does it.
func TestConsumer_credit(t *testing.T) {
	s := filled(t)
	credits := make(chan wire.Credit, 10)
	s.answerTo(wire.KeyCredit, func(f *fakeSession, q wire.Command) bool {
		credits <- *q.(*wire.Credit)
		return true
	})
	c := s.dial(nil)
	delivered := make(chan chunk.Offset, 10)
	deliver := func(d *Delivery) { delivered <- d.Header.BaseOffset }
	if _, err := c.Subscribe(t.Context(), ConsumerConfig{Stream: "s", Offset: wire.FromOffset(0), Deliver: deliver}); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if got := receive(t, credits, "credit"); got != (wire.Credit{SubscriptionID: 0, Credit: 1}) {
			t.Errorf("%+v", got)
		}
		receive(t, delivered, "chunk")
	}
	manual, err := c.Subscribe(t.Context(), ConsumerConfig{Stream: "s", Offset: wire.FromOffset(0), Deliver: deliver, ManualCredit: true})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		receive(t, delivered, "chunk")
	}
	manual.Credit(5)
	if got := receive(t, credits, "manual credit"); got != (wire.Credit{SubscriptionID: 1, Credit: 5}) {
		t.Errorf("%+v: a chunk was paid for by itself", got)
	}
}

func TestConsumer_creditRefused(t *testing.T) {
	s := newFakeServer(t)
	refused := make(chan wire.ResponseCode, 1)
	s.answerTo(wire.KeyCredit, func(f *fakeSession, q wire.Command) bool {
		f.send(wire.Refusal(q, wire.CodePreconditionFailed))
		return true
	})
	consumer, err := s.dial(nil).Subscribe(t.Context(), ConsumerConfig{Stream: "s", Offset: wire.FromOffset(0),
		Deliver: func(*Delivery) {}, CreditRefused: func(code wire.ResponseCode) { refused <- code }})
	if err != nil {
		t.Fatal(err)
	}
	consumer.Credit(1)
	if code := receive(t, refused, "refused credit"); code != wire.CodePreconditionFailed {
		t.Error(code)
	}
}

func TestConsumer_deliverVersions(t *testing.T) {
	s := filled(t)
	for _, v1 := range []bool{false, true} {
		c := s.dial(func(cfg *Config) { cfg.DeliverV1 = v1 })
		committed := make(chan chunk.Offset, 10)
		_, err := c.Subscribe(t.Context(), ConsumerConfig{Stream: "s", Offset: wire.FromOffset(0), Deliver: func(d *Delivery) { committed <- d.Committed }})
		if err != nil {
			t.Fatal(err)
		}
		want := chunk.Offset(77)
		if v1 {
			want = 0
		}
		if got := receive(t, committed, "chunk"); got != want {
			t.Errorf("committed chunk %d, want %d", got, want)
		}
	}
}

// A flipped bit in the data ends the connection, unless nobody looks.
func TestConsumer_crc(t *testing.T) {
	s := filled(t)
	b := s.stream("s").chunks[2]
	b[len(b)-1] ^= 1
	ends := make(chan error, 1)
	deliver, records := collect(t)
	_, err := s.dial(nil).Subscribe(t.Context(), ConsumerConfig{Stream: "s", Offset: wire.FromOffset(6), Deliver: deliver, Ended: func(err error) { ends <- err }})
	if err != nil {
		t.Fatal(err)
	}
	if err := receive(t, ends, "end"); !errors.Is(err, chunk.ErrDataCRC) {
		t.Errorf("ended by %v", err)
	}
	if len(records) != 0 {
		t.Errorf("%d records of a damaged chunk", len(records))
	}
	_, err = s.dial(nil).Subscribe(t.Context(), ConsumerConfig{Stream: "s", Offset: wire.FromOffset(6), Deliver: deliver, SkipCRC: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := receive(t, records, "record"); got != "6 m7" {
		t.Errorf("%q", got)
	}
}

// What cannot be unpacked is an error in its place; what went before is given.
func TestDelivery_badSubBatch(t *testing.T) {
	s := newFakeServer(t)
	stream := s.stream("s")
	stream.append(chunk.AppendSubBatch(nil, chunk.CompressionGzip, 2, 100, []byte("not gzip")), 2)
	got := make(chan error, 10)
	_, err := s.dial(nil).Subscribe(t.Context(), ConsumerConfig{Stream: "s", Offset: wire.FromOffset(0), Deliver: func(d *Delivery) {
		for _, err := range d.Records() {
			got <- err
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
	if err := receive(t, got, "error"); !errors.Is(err, ErrCompression) || len(got) != 0 {
		t.Errorf("%v, and %d more", err, len(got))
	}
}

func TestDelivery_recordsCanBeLeft(t *testing.T) {
	s := filled(t)
	seen := make(chan []chunk.Offset, 10)
	_, err := s.dial(nil).Subscribe(t.Context(), ConsumerConfig{Stream: "s", Offset: wire.FromOffset(1), Deliver: func(d *Delivery) {
		var offsets []chunk.Offset
		for r := range d.Records() {
			if offsets = append(offsets, r.Offset); len(offsets) == 2 {
				break
			}
		}
		seen <- offsets
	}})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range [][]chunk.Offset{{1, 2}, {3, 4}, {6}} {
		if got := receive(t, seen, "chunk"); !slices.Equal(got, want) {
			t.Errorf("offsets %v, want %v", got, want)
		}
	}
}

// A member of a group answers where to read from, and goes by that.
func TestConsumer_updates(t *testing.T) {
	s := filled(t)
	answers := make(chan wire.ConsumerUpdateResponse, 10)
	s.answerTo(wire.KeySubscribe, func(f *fakeSession, q wire.Command) bool {
		f.ok(q, q.(*wire.Subscribe).Correlation)
		f.send(&wire.ConsumerUpdate{Correlation: 0, SubscriptionID: q.(*wire.Subscribe).SubscriptionID, Active: true})
		return true
	})
	s.answerTo(wire.KeyConsumerUpdate.Answer(), func(f *fakeSession, a wire.Command) bool {
		answers <- *a.(*wire.ConsumerUpdateResponse)
		for _, b := range s.stream("s").chunks {
			f.deliver(0, b)
		}
		return true
	})
	for _, r := range []struct {
		update func(bool) wire.OffsetSpec
		want   wire.OffsetSpec
		first  string
	}{
		{nil, wire.OffsetSpec{}, "2 m2"},
		{func(active bool) wire.OffsetSpec { return wire.FromOffset(4) }, wire.FromOffset(4), "4 m4"},
		{func(active bool) wire.OffsetSpec { return wire.OffsetSpec{Type: wire.OffsetFirst} }, wire.OffsetSpec{Type: wire.OffsetFirst}, "0 m0"},
	} {
		deliver, records := collect(t)
		_, err := s.dial(nil).Subscribe(t.Context(), ConsumerConfig{Stream: "s", Offset: wire.FromOffset(2), Deliver: deliver, Update: r.update})
		if err != nil {
			t.Fatal(err)
		}
		if a := receive(t, answers, "answer"); a.Offset != r.want || a.Code != wire.CodeOK {
			t.Errorf("answered %+v, want %v", a, r.want)
		}
		if got := receive(t, records, "record"); got != r.first {
			t.Errorf("first record %q, want %q", got, r.first)
		}
	}
}

func TestConsumer_ends(t *testing.T) {
	s := newFakeServer(t)
	c := s.dial(nil)
	ends := make(chan error, 10)
	subscribe := func(stream string) *Consumer {
		consumer, err := c.Subscribe(t.Context(), ConsumerConfig{Stream: stream, Offset: wire.FromOffset(0),
			Deliver: func(*Delivery) {}, Ended: func(err error) { ends <- err }})
		if err != nil {
			t.Fatal(err)
		}
		return consumer
	}
	subscribe("gone")
	closed := subscribe("closed")
	subscribe("left")
	s.answerTo(wire.KeyDelete, func(f *fakeSession, _ wire.Command) bool {
		f.send(&wire.MetadataUpdate{Code: wire.CodeStreamNotAvailable, Stream: "gone"})
		return false
	})
	if err := c.Delete(t.Context(), "gone"); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, ends, "end"); !errors.Is(err, ErrStreamUnavailable) {
		t.Errorf("stream gone: %v", err)
	}
	if err := closed.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, ends, "end"); !errors.Is(err, ErrClosed) {
		t.Errorf("connection closed: %v", err)
	}
	if len(ends) != 0 {
		t.Errorf("a consumer that its owner closed heard of it: %v", <-ends)
	}
}

func TestConn_idsRunOut(t *testing.T) {
	s := newFakeServer(t)
	c := s.dial(nil)
	cfg := ConsumerConfig{Stream: "s", Offset: wire.FromOffset(0), Deliver: func(*Delivery) {}}
	for range 256 {
		if _, err := c.Subscribe(t.Context(), cfg); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := c.Subscribe(t.Context(), cfg); !errors.Is(err, ErrIDs) {
		t.Errorf("257th: %v", err)
	}
}
