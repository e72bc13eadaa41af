package integration

import (
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// A stream that retention has emptied by age goes on where it was: its last
// offset is told, nothing is delivered twice, a publisher is known.
func TestEmptiedStream_goesOn(t *testing.T) {
	t.Parallel() // it waits for retention
	n := harness.Start(t)
	dial := func() *client.Conn {
		t.Helper()
		conn, err := client.Dial(t.Context(), client.Config{Addr: n.Stream})
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}
	conn := dial()
	if err := conn.Create(t.Context(), "s", map[string]string{"max-age": "1s"}); err != nil {
		t.Fatal(err)
	}
	publish := func(body string) {
		t.Helper()
		pub, err := conn.DeclarePublisher(t.Context(), client.PublisherConfig{Stream: "s", Reference: "p"})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := pub.Publish([]byte(body)); err != nil {
			t.Fatal(err)
		}
		if err := pub.Drain(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := pub.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for range 10 {
		publish("old")
	}

	stats := awaitEmpty(t, conn)
	if stats["committed_offset"] != 9 || stats["committed_chunk_id"] != -1 {
		t.Errorf("of an emptied stream the node tells %v", stats)
	}
	conn.Close()
	n.Kill()
	n.Restart()

	conn = dial()
	defer conn.Close()
	if stats, err := conn.Stats(t.Context(), "s"); err != nil || stats["committed_offset"] != 9 {
		t.Errorf("after a restart: %v, %v", stats, err)
	}
	if sequence, err := conn.QuerySequence(t.Context(), "p", "s"); err != nil || sequence != 10 {
		t.Errorf("the publisher is at %d, %v", sequence, err)
	}
	got := make(chan client.Record, 10)
	for _, spec := range []wire.OffsetSpec{{Type: wire.OffsetFirst}, {Type: wire.OffsetNext}, {Type: wire.OffsetAt, Offset: 3}} {
		_, err := conn.Subscribe(t.Context(), client.ConsumerConfig{Stream: "s", Offset: spec, Deliver: func(d *client.Delivery) {
			for record := range d.Records() {
				record.Message = append([]byte(nil), record.Message...)
				got <- record
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	publish("new")
	for range 3 {
		select {
		case record := <-got:
			if record.Offset != 10 || string(record.Message) != "new" {
				t.Errorf("got %q at offset %d", record.Message, record.Offset)
			}
		case <-time.After(usableWithin):
			t.Fatal("the new message does not come")
		}
	}
}

// awaitEmpty waits until the stream has no chunk, and returns its figures.
func awaitEmpty(t *testing.T, conn *client.Conn) map[string]int64 {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	giveUp := time.After(usableWithin)
	for {
		stats, err := conn.Stats(t.Context(), "s")
		if err != nil {
			t.Fatal(err)
		}
		if stats["first_chunk_id"] == -1 {
			return stats
		}
		select {
		case <-tick.C:
		case <-giveUp:
			t.Fatalf("old messages are still there: %v", stats)
		}
	}
}
