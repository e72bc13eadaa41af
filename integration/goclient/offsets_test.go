package goclient

import (
	"errors"
	"testing"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/message"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"

	"github.com/millrace/millrace/integration/harness"
)

// TestOffsetSpecs starts a consumer at every kind of offset in a stream of
// several chunks.
func TestOffsetSpecs(t *testing.T) {
	n := harness.Start(t)
	env := environment(t, n)
	declare(t, env, "specs")
	p := publish(t, env, "specs", stream.NewProducerOptions())
	send := func(from, to int) {
		for i := from; i < to; i++ {
			p.frame(i, to-from)
		}
		p.await(to)
	}
	send(0, 500)
	middle := time.Now().UnixMilli() + 1
	<-time.After(10 * time.Millisecond) // chunks are stamped by the clock: the next is later than the middle
	send(500, 1000)

	rows := []struct {
		name string
		from stream.OffsetSpecification
		// exact: the first message is least. Else it is within a chunk's
		// reach: at most most.
		least, most int64
	}{
		{"first", stream.OffsetSpecification{}.First(), 0, 0},
		{"offset 0", stream.OffsetSpecification{}.Offset(0), 0, 0},
		{"offset inside a chunk", stream.OffsetSpecification{}.Offset(250), 250, 250},
		{"offset at a chunk's border", stream.OffsetSpecification{}.Offset(500), 500, 500},
		{"last offset", stream.OffsetSpecification{}.Offset(999), 999, 999},
		{"timestamp before all", stream.OffsetSpecification{}.Timestamp(1), 0, 0},
		{"timestamp in the middle", stream.OffsetSpecification{}.Timestamp(middle), 500, 500},
		{"last", stream.OffsetSpecification{}.Last(), 500, 999},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			first := make(chan delivery, 1)
			c := consume(t, env, "specs", row.from, func(d delivery) {
				select {
				case first <- d:
				default:
				}
			})
			d := await(t, first, row.name)
			if d.offset < row.least || d.offset > row.most || d.body != string(body(int(d.offset))) {
				t.Errorf("the first message is offset %d (%q), want %d to %d", d.offset, d.body, row.least, row.most)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	for _, row := range []struct {
		name string
		from stream.OffsetSpecification
	}{
		{"next", stream.OffsetSpecification{}.Next()},
		{"offset beyond the end", stream.OffsetSpecification{}.Offset(1000)},
	} {
		t.Run(row.name, func(t *testing.T) {
			stats, err := env.StreamStats("specs")
			if err != nil {
				t.Fatal(err)
			}
			if chunk, err := stats.CommittedChunkId(); err != nil || chunk >= 1000+int64(p.confirmed.Load()) {
				t.Errorf("committed chunk %d, %v", chunk, err)
			}
			first := make(chan delivery, 1)
			c := consume(t, env, "specs", row.from, func(d delivery) {
				select {
				case first <- d:
				default:
				}
			})
			want := p.confirmed.Load() // offsets are dense
			p.frame(int(want), 1)
			p.await(int(want) + 1)
			if d := await(t, first, row.name); d.offset != want && row.name == "next" || d.offset < 1000 {
				t.Errorf("the first message is offset %d, want %d", d.offset, want)
			}
			if err := c.Close(); err != nil {
				t.Error(err)
			}
		})
	}
	t.Log("FIGURE official Go client: all offset specifications start where they should")
}

// TestNamedPublisher sends again, after a reconnect, what it does not know to
// be confirmed; each message is stored once.
func TestNamedPublisher(t *testing.T) {
	n := harness.Start(t)
	env := environment(t, n)
	declare(t, env, "named")
	options := func() *stream.ProducerOptions { return stream.NewProducerOptions().SetProducerName("once") }
	numbered := func(from, to int) []message.StreamMessage {
		var list []message.StreamMessage
		for i := from; i < to; i++ {
			m := amqp.NewMessage(body(i))
			m.SetPublishingId(int64(i))
			list = append(list, m)
		}
		return list
	}
	p := publish(t, env, "named", options())
	if err := p.producer.BatchSend(numbered(0, 1000)); err != nil {
		t.Fatal(err)
	}
	p.await(1000)

	n.Kill()
	n.Restart()
	env = environment(t, n)
	sequence, err := env.QuerySequence("once", "named")
	if err != nil || sequence != 999 {
		t.Fatalf("the last sequence is %d (%v), want 999", sequence, err)
	}
	p = publish(t, env, "named", options())
	if err := p.producer.BatchSend(numbered(500, 1500)); err != nil {
		t.Fatal(err)
	}
	p.await(1000) // the 500 duplicates are confirmed too

	done, next := make(chan delivery, 1), 0
	consume(t, env, "named", stream.OffsetSpecification{}.First(), func(d delivery) {
		if d.body != string(body(next)) || d.offset != int64(next) || next == 1499 {
			select {
			case done <- d:
			default:
			}
		}
		next++
	})
	if d := await(t, done, "consume"); d.offset != 1499 || d.body != string(body(1499)) {
		t.Errorf("offset %d holds %q: a message stands twice or is gone", d.offset, d.body)
	}
	if stats, err := env.StreamStats("named"); err == nil {
		if last, err := stats.CommittedChunkId(); err != nil || last > 1499 {
			t.Errorf("the last chunk begins at %d (%v), behind the last message", last, err)
		}
	}
	t.Log("FIGURE official Go client: named publisher sent 2000 messages, 500 of them twice; 1500 are stored, each once")
}

// TestStoredOffset stores an offset, and finds it after a kill and after a
// clean stop.
func TestStoredOffset(t *testing.T) {
	n := harness.Start(t)
	env := environment(t, n)
	declare(t, env, "stored")
	p := publish(t, env, "stored", stream.NewProducerOptions())
	for i := range 100 {
		p.frame(i, 100)
	}
	p.await(100)
	if _, err := env.QueryOffset("reader", "stored"); !errors.Is(err, stream.OffsetNotFoundError) {
		t.Errorf("before any store: %v, want OffsetNotFoundError", err)
	}
	if err := env.StoreOffset("reader", "stored", 42); err != nil {
		t.Fatal(err)
	}
	query := func(when string, want int64) {
		t.Helper()
		if got, err := env.QueryOffset("reader", "stored"); err != nil || got != want {
			t.Errorf("%s: offset %d (%v), want %d", when, got, err, want)
		}
	}
	query("at once", 42)
	if code := n.Stop(); code != 0 {
		t.Errorf("a clean stop exits with %d", code)
	}
	n.Restart()
	env = environment(t, n)
	query("after a clean restart", 42)

	if err := env.StoreOffset("reader", "stored", 17); err != nil { // back: flushed at once
		t.Fatal(err)
	}
	query("moved back", 17)
	p = publish(t, env, "stored", stream.NewProducerOptions())
	for i := range 100 {
		p.frame(i, 100)
	}
	p.await(100) // what was stored before is in the log by now
	n.Kill()
	n.Restart()
	env = environment(t, n)
	query("after kill -9", 17)

	first := make(chan delivery, 1)
	consume(t, env, "stored", stream.OffsetSpecification{}.Offset(17), func(d delivery) {
		select {
		case first <- d:
		default:
		}
	})
	if d := await(t, first, "resume"); d.offset != 17 {
		t.Errorf("resumed at %d, want 17", d.offset)
	}
	t.Log("FIGURE official Go client: a stored offset survives a clean restart and kill -9")
}
