package broker_test

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/wire"
)

var first = wire.OffsetSpec{Type: wire.OffsetFirst}

func TestPublish_confirmsAndDelivers(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	p.wantCode(&wire.Response{Code: p.declare(3, "", "s")}, wire.CodeOK)
	p.publish(3, 10, "a", "", "c")
	p.wantConfirms(3, 10, 3)
	if code := p.subscribe(5, "s", first, 1); code != wire.CodeOK {
		t.Fatalf("subscribe: code %d", code)
	}
	got := p.wantDeliver()
	if got.id != 5 || got.version != 1 || got.first != 0 || strings.Join(got.messages, ",") != "a,,c" {
		t.Fatalf("delivered %+v", got)
	}
}

func TestPublish_unknownPublisherErrsForEachID(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	withFilter := func() []byte {
		var b wire.PublishBuilder
		b.Begin(nil, 2, 9)
		b.AddFiltered(1, "", []byte("x"))
		b.AddFiltered(1, "eu", []byte("y"))
		return b.End()
	}
	// Before it is declared, after it is deleted, after its stream is gone.
	for range 3 {
		p.publish(9, 7, "x", "y")
		p.wantErrors(9, wire.CodePublisherDoesNotExist, 7, 8)
		p.write(withFilter())
		p.wantErrors(9, wire.CodePublisherDoesNotExist, 1, 1)
		p.declare(9, "", "s")
		p.wantCode(p.ask(&wire.DeletePublisher{Correlation: p.next(), PublisherID: 9}), wire.CodeOK)
	}
	p.declare(9, "", "s")
	p.skip[wire.KeyMetadataUpdate] = true
	p.wantCode(p.ask(&wire.Delete{Correlation: p.next(), Stream: "s"}), wire.CodeOK)
	p.publish(9, 7, "x")
	p.wantErrors(9, wire.CodePublisherDoesNotExist, 7)
	if len(p.skipped) != 1 {
		t.Fatalf("%d updates, want one", len(p.skipped))
	}
}

// subBatch is a Publish entry of any header, right or wrong.
func subBatch(id uint64, head byte, records uint16, uncompressed, size uint32, body []byte) []byte {
	b := make([]byte, 0, 19+len(body))
	for shift := 56; shift >= 0; shift -= 8 {
		b = append(b, byte(id>>shift))
	}
	b = append(b, head, byte(records>>8), byte(records))
	for _, n := range []uint32{uncompressed, size} {
		b = append(b, byte(n>>24), byte(n>>16), byte(n>>8), byte(n))
	}
	return append(b, body...)
}

func simple(id byte, message string) []byte {
	return append([]byte{0, 0, 0, 0, 0, 0, 0, id, 0, 0, 0, byte(len(message))}, message...)
}

func TestPublish_wrongSubBatchRefusesTheRestOfItsFrame(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	p.declare(0, "", "s")
	body := []byte{0, 0, 0, 1, 'x', 0, 0, 0, 1, 'y'}
	for i, row := range []struct {
		name string
		bad  []byte
	}{
		{"unknown compression", subBatch(2, 0xd0, 2, 10, 10, body)},
		{"no records", subBatch(2, 0x80, 0, 10, 10, body)},
		{"65,535 records in ten bytes", subBatch(2, 0x80, 65535, 10, 10, body)},
		{"claims 4 GiB", subBatch(2, 0x90, 2, 0xffffffff, 10, body)},
		{"claims 64 MiB and a byte", subBatch(2, 0x90, 2, 64<<20+1, 10, body)},
		{"compressed nothing", subBatch(2, 0x90, 2, 10, 0, nil)},
		{"reserved bits", subBatch(2, 0x8f, 2, 10, 10, body)},
	} {
		fields := bytes.Join([][]byte{{0, 0, 0, 0, 3}, simple(1, "before"), row.bad, simple(3, "behind")}, nil)
		p.write(wireFrame(2, 1, fields...))
		p.skip[wire.KeyPublishConfirm] = true
		p.wantErrors(0, wire.CodePreconditionFailed, 2, 3)
		eventually(t, row.name, func() bool { _, next := h.replica(t, "s").Committed(); return int(next) == i+1 })
	}
}

func TestPublish_subBatchTakesAnOffsetForEachRecord(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	p.declare(0, "", "s")
	body := []byte{0, 0, 0, 1, 'x', 0, 0, 0, 1, 'y'}
	broken := []byte("not gzip at all") // opaque to the broker: the sizes are right
	fields := bytes.Join([][]byte{
		{0, 0, 0, 0, 4}, simple(1, "a"), subBatch(2, 0x80, 2, 10, 10, body),
		subBatch(3, 0x90, 3, 100, uint32(len(broken)), broken), simple(4, "z"),
	}, nil)
	p.write(wireFrame(2, 1, fields...))
	p.wantConfirms(0, 1, 4)
	p.subscribe(0, "s", first, 10)
	want := []delivered{{first: 0, records: 1}, {first: 1, records: 2}, {first: 3, records: 3}, {first: 6, records: 1}}
	for _, w := range want {
		if got := p.wantDeliver(); got.first != w.first || got.records != w.records {
			t.Fatalf("got %d records from %d, want %d from %d", got.records, got.first, w.records, w.first)
		}
	}
}

func TestPublish_duplicatesAreConfirmedAndStoredOnce(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	p.declare(0, "ref", "s")
	p.publish(0, 1, "a", "b")
	p.wantConfirms(0, 1, 2)
	p.publish(0, 2, "b", "c")
	p.wantConfirms(0, 2, 2)
	if _, next := h.replica(t, "s").Committed(); next != 3 {
		t.Fatalf("%d records, want 3", next)
	}
	answer := p.ask(&wire.QueryPublisherSequence{Correlation: p.next(), Reference: "ref", Stream: "s"})
	if got := answer.(*wire.QueryPublisherSequenceResponse); got.Code != wire.CodeOK || got.Sequence != 3 {
		t.Fatalf("sequence %+v, want 3", got)
	}
}

func TestPublish_takenOverPublisherIsFenced(t *testing.T) {
	h := serve(t, nil)
	older, newer := h.open(t), h.open(t)
	older.create("s")
	older.declare(1, "ref", "s")
	newer.declare(2, "ref", "s")
	older.publish(1, 5, "late", "frame")
	older.wantErrors(1, wire.CodePublisherDoesNotExist, 5, 6)
	newer.publish(2, 1, "new")
	newer.wantConfirms(2, 1, 1)
	// The fenced one's id is free.
	if code := older.declare(1, "", "s"); code != wire.CodeOK {
		t.Fatalf("declare again: code %d", code)
	}
}

// What was stored before the takeover is confirmed, also when the fence has
// taken the publisher's id away meanwhile.
func TestPublish_takenOverPublisherHearsOfWhatItStored(t *testing.T) {
	h := serve(t, nil)
	older, newer := h.open(t), h.open(t)
	older.create("s")
	older.declare(1, "ref", "s")
	h.replica(t, "s").hold()
	older.publish(1, 5, "in", "time")
	older.ask(&wire.Metadata{Correlation: older.next()}) // it is handed over
	newer.declare(2, "ref", "s")
	older.publish(1, 7, "late")
	older.wantErrors(1, wire.CodePublisherDoesNotExist, 7)
	h.replica(t, "s").commit()
	older.wantConfirms(1, 5, 2)
}

func TestPublish_lateConfirmsAreNotForTheNextPublisherOfTheID(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	p.declare(1, "", "s")
	h.replica(t, "s").hold()
	p.publish(1, 100, "old")
	p.wantCode(p.ask(&wire.DeletePublisher{Correlation: p.next(), PublisherID: 1}), wire.CodeOK)
	p.declare(1, "", "s")
	p.publish(1, 200, "new")
	p.ask(&wire.Metadata{Correlation: p.next()}) // both are handed over
	h.replica(t, "s").commit()
	p.wantConfirms(1, 200, 1)
	p.wantSilence()
}

func TestPublish_refusedBatchesErrByTheirReason(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	p.declare(0, "", "s")
	h.replica(t, "s").fail(replication.ErrBacklog)
	p.publish(0, 1, "a", "b")
	p.wantErrors(0, wire.CodeStreamNotAvailable, 1, 2)
	// Where the leader went away nobody knows what is stored: the client is told
	// by MetadataUpdate, not by errors.
	for _, err := range []error{replication.ErrNotLeader, replication.ErrUnavailable, replication.ErrClosed} {
		h.replica(t, "s").fail(err)
		p.publish(0, 3, "c")
		p.ask(&wire.Metadata{Correlation: p.next()})
		p.wantSilence()
	}
}

func TestPublish_confirmsStayWithinTheClientsFrames(t *testing.T) {
	h := serve(t, nil)
	p := h.openAs(t, "guest", "guest", &wire.Tune{FrameMax: 8192})
	p.create("s")
	p.declare(0, "", "s")
	h.replica(t, "s").hold()
	const batches, size = 40, 100
	for i := range batches {
		p.publish(0, uint64(i*size), strings.Split(strings.Repeat("m", size), "")...)
	}
	p.ask(&wire.Metadata{Correlation: p.next()})
	h.replica(t, "s").commit()
	left := batches * size
	for frames := 0; left > 0; frames++ {
		payload, err := p.Next()
		if err != nil {
			t.Fatal(err)
		}
		if len(payload) > 8192 {
			t.Fatalf("confirm of %d bytes, agreed were 8192", len(payload))
		}
		confirm, err := wire.FromServer(payload)
		if err != nil {
			t.Fatal(err)
		}
		left -= len(confirm.(*wire.PublishConfirm).IDs)
		if frames > batches {
			t.Fatal("confirms are not joined")
		}
	}
}

func TestPublish_unconfirmedBytesStopTheReading(t *testing.T) {
	h := serve(t, func(c *broker.Config) { c.UnconfirmedBytes = 64 << 10 })
	p := h.open(t)
	p.create("s")
	p.declare(0, "", "s")
	replica := h.replica(t, "s")
	replica.hold()
	message := strings.Repeat("m", 10_000)
	const n = 20
	go func() {
		for i := range n {
			p.publish(0, uint64(i), message)
		}
	}()
	eventually(t, "the connection is blocked", func() bool { return h.broker.Stats().Blocked == 1 })
	if held := h.broker.Stats().Unconfirmed; held > 64<<10+12_000 {
		t.Fatalf("%d bytes are unconfirmed, the limit is 64 KiB and a frame", held)
	}
	if c := h.broker.Connections(); len(c) != 1 || !c[0].Blocked {
		t.Fatalf("connections %+v, want one that is blocked", c)
	}
	replica.commit()
	p.wantConfirms(0, 0, n)
	eventually(t, "nothing is unconfirmed", func() bool {
		s := h.broker.Stats()
		return s.Blocked == 0 && s.Unconfirmed == 0 && s.Confirmed == n
	})
}

func TestPublish_nodeLimitStopsTheReadingOfAll(t *testing.T) {
	h := serve(t, func(c *broker.Config) { c.UnconfirmedBytes, c.UnconfirmedBytesNode = 64<<10, 64<<10 })
	one, two := h.open(t), h.open(t)
	one.create("s")
	one.declare(0, "", "s")
	two.declare(0, "", "s")
	replica := h.replica(t, "s")
	replica.hold()
	message := strings.Repeat("m", 40_000)
	one.publish(0, 1, message)
	one.publish(0, 2, message)
	one.ask(&wire.Metadata{Correlation: 1})
	two.publish(0, 1, "held up by the other")
	eventually(t, "the other is blocked", func() bool { return h.broker.Stats().Blocked == 1 })
	replica.commit()
	two.wantConfirms(0, 1, 1)
}

func TestPublish_alarmHoldsPublishersUpButNotReaders(t *testing.T) {
	h := serve(t, nil)
	publisher, reader := h.open(t), h.open(t)
	publisher.create("s")
	publisher.declare(0, "", "s")
	publisher.publish(0, 1, "a")
	publisher.wantConfirms(0, 1, 1)
	h.broker.SetAlarm("disk", true)
	publisher.publish(0, 2, "b")
	eventually(t, "the publisher is blocked", func() bool { return h.broker.Stats().Blocked == 1 })
	if code := reader.declare(0, "", "s"); code != wire.CodePreconditionFailed {
		t.Fatalf("declare during the alarm: code %d", code)
	}
	if code := reader.subscribe(0, "s", first, 10); code != wire.CodeOK {
		t.Fatalf("subscribe during the alarm: code %d", code)
	}
	reader.wantDeliver()
	h.broker.SetAlarm("disk", false)
	publisher.wantConfirms(0, 2, 1)
	reader.wantDeliver()
}

func TestPublish_ofADeadConnectionIsForgotten(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	p.declare(0, "", "s")
	replica := h.replica(t, "s")
	replica.hold()
	p.publish(0, 1, "a")
	p.ask(&wire.Metadata{Correlation: p.next()})
	p.Close()
	eventually(t, "the connection is gone", func() bool { return h.broker.Stats().Connections == 0 })
	replica.commit()
	eventually(t, "its batch is counted back", func() bool { return h.broker.Stats().Unconfirmed == 0 })
}

func TestPublishers_codes(t *testing.T) {
	h := serve(t, func(c *broker.Config) { c.Publishers = 3 })
	h.addUser(t, "reader", "pw")
	h.permit(t, "reader", "/", "", "", ".*")
	p := h.open(t)
	p.create("s")
	p.create("t")
	long, tooLong := strings.Repeat("r", 255), strings.Repeat("r", 256)
	for _, row := range []struct {
		what      string
		id        uint8
		reference string
		stream    string
		want      wire.ResponseCode
	}{
		{"reference too long", 0, tooLong, "s", wire.CodePreconditionFailed},
		{"reference too long, no stream", 0, tooLong, "none", wire.CodePreconditionFailed},
		{"no stream", 0, "", "none", wire.CodeStreamDoesNotExist},
		{"first", 0, long, "s", wire.CodeOK},
		{"id in use", 0, "", "t", wire.CodePreconditionFailed},
		{"reference in use on the stream", 1, long, "s", wire.CodePreconditionFailed},
		{"reference on another stream", 1, long, "t", wire.CodeOK},
		{"third", 2, "", "s", wire.CodeOK},
		{"too many", 3, "", "s", wire.CodePreconditionFailed},
	} {
		if got := p.declare(row.id, row.reference, row.stream); got != row.want {
			t.Errorf("%s: code %d, want %d", row.what, got, row.want)
		}
	}
	p.wantCode(p.ask(&wire.DeletePublisher{Correlation: p.next(), PublisherID: 2}), wire.CodeOK)
	if got := p.declare(2, "", "s"); got != wire.CodeOK {
		t.Errorf("after a delete: code %d", got)
	}
	reader := h.openAs(t, "reader", "pw", &wire.Tune{})
	for _, reference := range []string{"", tooLong} {
		if got := reader.declare(0, reference, "s"); got != wire.CodeAccessRefused {
			t.Errorf("without the right to write: code %d", got)
		}
	}
	if n := h.broker.Stats().Publishers; n != 3 {
		t.Errorf("%d publishers are counted, want 3", n)
	}
}

func TestPublishers_256(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	for id := range 256 {
		if code := p.declare(uint8(id), fmt.Sprint(id), "s"); code != wire.CodeOK {
			t.Fatalf("publisher %d: code %d", id, code)
		}
	}
	if code := p.declare(0, "one more", "s"); code != wire.CodePreconditionFailed {
		t.Fatalf("publisher 257: code %d", code)
	}
}

func TestPublish_filterValuesReachTheChunk(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	p.declare(0, "", "s")
	for i, value := range []string{"eu", "us", ""} {
		var b wire.PublishBuilder
		b.Begin(nil, 2, 0)
		b.AddFiltered(uint64(i), value, []byte("in "+value))
		p.write(b.End())
		p.wantConfirms(0, uint64(i), 1)
	}
	p.subscribe(0, "s", first, 10, "filter.0", "us")
	if got := p.wantDeliver(); got.messages[0] != "in us" {
		t.Fatalf("filtered by us: %q", got.messages)
	}
	p.wantSilence()
	p.subscribe(1, "s", first, 10, "filter.0", "us", "match-unfiltered", "true")
	for _, want := range []string{"in us", "in "} {
		if got := p.wantDeliver(); got.messages[0] != want {
			t.Fatalf("us or unfiltered: got %q, want %q", got.messages, want)
		}
	}
}

// TestPublish_refusedBatchEndsANamedPublisher: what is sent behind a refused batch
// is not stored. Else the refused one would be confirmed as a duplicate when it is
// sent again, and be nowhere.
func TestPublish_refusedBatchEndsANamedPublisher(t *testing.T) {
	for _, remote := range []bool{false, true} {
		n := serveTwo(t, nil)
		n.created(t, "s")
		p := n.leader.open(t)
		if remote {
			p = n.open(t)
		}
		p.declare(0, "r", "s")
		p.declare(1, "", "s")
		p.publish(0, 1, "a")
		p.wantConfirms(0, 1, 1)
		n.replica(t, "s").fail(replication.ErrBacklog)
		p.publish(0, 2, "b", "c")
		p.wantErrors(0, wire.CodeStreamNotAvailable, 2, 3)
		if update, ok := p.read().(*wire.MetadataUpdate); !ok || update.Stream != "s" {
			t.Fatalf("got %+v", update)
		}
		n.replica(t, "s").fail(nil)
		p.publish(0, 4, "d")
		p.wantErrors(0, wire.CodePublisherDoesNotExist, 4)
		p.publish(1, 1, "-") // clients take what they are told for all publishers of the stream
		p.wantErrors(1, wire.CodePublisherDoesNotExist, 1)
		p.declare(1, "", "s")
		if code := p.declare(0, "r", "s"); code != wire.CodeOK {
			t.Fatalf("declare again: %s", code)
		}
		p.publish(0, 2, "b", "c", "d")
		p.wantConfirms(0, 2, 3)
		if _, next := n.replica(t, "s").Committed(); next != 4 {
			t.Errorf("%d messages are stored, want 4", next)
		}
		n.replica(t, "s").fail(replication.ErrBacklog)
		p.publish(1, 5, "e") // one without a name has no duplicates, and stays
		p.wantErrors(1, wire.CodeStreamNotAvailable, 5)
		n.replica(t, "s").fail(nil)
		p.publish(1, 6, "f")
		p.wantConfirms(1, 6, 1)
	}
}

// TestPublish_wrongSubBatchEndsANamedPublisher: what was refused with a wrong
// sub-batch must not count as a duplicate either.
func TestPublish_wrongSubBatchEndsANamedPublisher(t *testing.T) {
	for _, remote := range []bool{false, true} {
		n := serveTwo(t, nil)
		n.created(t, "s")
		p := n.leader.open(t)
		if remote {
			p = n.open(t)
		}
		p.declare(0, "r", "s")
		p.skip = map[wire.Key]bool{wire.KeyPublishConfirm: true} // of the first message, perhaps
		fields := bytes.Join([][]byte{
			{0, 0, 0, 0, 3}, simple(1, "a"), subBatch(2, 0x80, 0, 10, 10, make([]byte, 10)), simple(3, "c"),
		}, nil)
		p.write(wireFrame(2, 1, fields...))
		p.wantErrors(0, wire.CodePreconditionFailed, 2, 3)
		if update, ok := p.read().(*wire.MetadataUpdate); !ok || update.Stream != "s" {
			t.Fatalf("got %+v", update)
		}
		p.publish(0, 4, "d")
		p.wantErrors(0, wire.CodePublisherDoesNotExist, 4)
		if code := p.declare(0, "r", "s"); code != wire.CodeOK {
			t.Fatalf("declare again: %s", code)
		}
		p.skip = nil
		p.publish(0, 2, "b", "c", "d")
		p.wantConfirms(0, 2, 3)
		if _, next := n.replica(t, "s").Committed(); next != 4 {
			t.Errorf("%d messages are stored, want 4", next)
		}
	}
}

// TestPublish_behindARefusedBatch: what came together with a refused batch is
// refused as well.
func TestPublish_behindARefusedBatch(t *testing.T) {
	n := serveTwo(t, nil)
	n.created(t, "s")
	p := n.open(t)
	p.declare(0, "r", "s")
	replica := n.replica(t, "s")
	replica.failOnce(replication.ErrBacklog)
	for id := uint64(1); id <= 20; id++ {
		p.publish(0, id, "m")
	}
	p.skip = map[wire.Key]bool{wire.KeyPublishError: true, wire.KeyMetadataUpdate: true, wire.KeyPublishConfirm: true}
	p.ask(&wire.Metadata{Correlation: p.next()})
	eventually(t, "every frame is answered", func() bool { return n.broker.Stats().Unconfirmed == 0 })
	if _, next := replica.Committed(); next != 0 {
		t.Errorf("%d messages are stored behind one that was refused", next)
	}
}
