package goclient

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/message"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"

	"github.com/millrace/millrace/integration/harness"
)

// heardBy is who of a group got a message.
type heardBy struct{ member, body string }

// groupMembers are consumers of the official client that share a name; each has
// connections of its own.
type groupMembers struct {
	t     *testing.T
	heard chan heardBy

	mu     sync.Mutex          // guards the fields below
	active map[string][]string // by stream: who is active, as they were told
	next   map[string]int64    // by stream: behind what was heard
}

func newGroup(t *testing.T) *groupMembers {
	return &groupMembers{t: t, heard: make(chan heardBy, 100), active: map[string][]string{}, next: map[string]int64{}}
}

// closed is what nobody tells of: a consumer that is closed is not active.
func (g *groupMembers) closed(name, member string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.active[name] = slices.DeleteFunc(g.active[name], func(m string) bool { return m == member })
}

func (g *groupMembers) told(member string) stream.ConsumerUpdate {
	return func(name string, active bool) stream.OffsetSpecification {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.active[name] = slices.DeleteFunc(g.active[name], func(m string) bool { return m == member })
		if active {
			g.active[name] = append(g.active[name], member)
		}
		return stream.OffsetSpecification{}.Offset(g.next[name])
	}
}

// handle takes messages, which begin with the name of their stream.
func (g *groupMembers) handle(member string) stream.MessagesHandler {
	return func(_ stream.ConsumerContext, m *amqp.Message) {
		body := string(m.GetData())
		name, _, _ := strings.Cut(body, " ")
		g.mu.Lock()
		g.next[name]++
		g.mu.Unlock()
		g.heard <- heardBy{member, body}
	}
}

func (g *groupMembers) activeOn(name string) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return fmt.Sprint(g.active[name])
}

func (g *groupMembers) await(name, member string) {
	g.t.Helper()
	eventually(g.t, member+" is active on "+name, hangs, func() bool { return g.activeOn(name) == "["+member+"]" })
}

func (g *groupMembers) hears(want heardBy) {
	g.t.Helper()
	if got := await(g.t, g.heard, want.member+" hears "+want.body); got != want {
		g.t.Fatalf("heard %+v, want %+v", got, want)
	}
}

// One of three consumers reads; when it closes, the next one does.
func TestGroup_stream(t *testing.T) {
	n := harness.Start(t)
	env := environment(t, n)
	declare(t, env, "orders")
	g := newGroup(t)
	var consumers []*stream.Consumer
	for _, member := range []string{"a", "b", "c"} {
		c, err := environment(t, n).NewConsumer("orders", g.handle(member), stream.NewConsumerOptions().
			SetConsumerName("app").SetManualCommit().SetSingleActiveConsumer(stream.NewSingleActiveConsumer(g.told(member))))
		if err != nil {
			t.Fatal(err)
		}
		consumers = append(consumers, c)
	}
	producer, err := env.NewProducer("orders", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i, member := range []string{"a", "b", "c"} {
		g.await("orders", member)
		body := fmt.Sprint("orders ", i)
		if err := producer.Send(amqp.NewMessage([]byte(body))); err != nil {
			t.Fatal(err)
		}
		g.hears(heardBy{member, body})
		if err := consumers[i].Close(); err != nil {
			t.Fatal(err)
		}
		g.closed("orders", member)
	}
}

// The partitions of a super stream are spread over two consumers, and come
// together again when one is gone.
func TestGroup_superStream(t *testing.T) {
	n := harness.Start(t)
	env := environment(t, n)
	if err := env.DeclareSuperStream("all", stream.NewPartitionsOptions(2)); err != nil {
		t.Fatal(err)
	}
	g := newGroup(t)
	join := func(member string) *stream.SuperStreamConsumer {
		c, err := environment(t, n).NewSuperStreamConsumer("all", g.handle(member), stream.NewSuperStreamConsumerOptions().
			SetConsumerName("app").SetManualCommit().SetSingleActiveConsumer(stream.NewSingleActiveConsumer(g.told(member))))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	join("a")
	g.await("all-0", "a")
	g.await("all-1", "a")
	b := join("b")
	g.await("all-0", "a")
	g.await("all-1", "b")
	for _, row := range []struct{ partition, member string }{{"all-0", "a"}, {"all-1", "b"}} {
		producer, err := env.NewProducer(row.partition, nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := producer.BatchSend([]message.StreamMessage{amqp.NewMessage([]byte(row.partition))}); err != nil {
			t.Fatal(err)
		}
		g.hears(heardBy{row.member, row.partition})
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	g.closed("all-1", "b")
	g.await("all-1", "a")
}
