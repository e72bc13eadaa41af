package goclient

import (
	"fmt"
	"net"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/message"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"

	"github.com/millrace/millrace/integration/harness"
)

// hangs bounds waits that only a broken node or client reaches.
const hangs = 2 * time.Minute

func environment(t *testing.T, n *harness.Node) *stream.Environment {
	t.Helper()
	host, port, err := net.SplitHostPort(n.Stream)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	env, err := stream.NewEnvironment(stream.NewEnvironmentOptions().
		SetHost(host).SetPort(number).SetUser("guest").SetPassword("guest"))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() {
		if !env.IsClosed() {
			_ = env.Close() // the node may be gone already
		}
	})
	return env
}

func declare(t *testing.T, env *stream.Environment, name string) {
	t.Helper()
	if err := env.DeclareStream(name, stream.NewStreamOptions()); err != nil {
		t.Fatalf("declare %s: %v", name, err)
	}
}

// body is message i's: it tells its number and has a length of its own.
func body(i int) []byte {
	return fmt.Appendf(nil, "message %09d %.*s", i, i%60, "............................................................")
}

// publisher sends through a producer and counts what is confirmed.
type publisher struct {
	t         *testing.T
	producer  *stream.Producer
	confirmed atomic.Int64
	refused   atomic.Int64
	progress  chan struct{} // one place: something was confirmed
	batch     []message.StreamMessage
}

func publish(t *testing.T, env *stream.Environment, name string, options *stream.ProducerOptions) *publisher {
	t.Helper()
	producer, err := env.NewProducer(name, options)
	if err != nil {
		t.Fatalf("new producer: %v", err)
	}
	p := &publisher{t: t, producer: producer, progress: make(chan struct{}, 1)}
	confirms := producer.NotifyPublishConfirmation()
	go func() {
		for list := range confirms {
			for _, c := range list {
				if c.IsConfirmed() {
					p.confirmed.Add(1)
				} else {
					p.refused.Add(1)
				}
			}
			select {
			case p.progress <- struct{}{}:
			default:
			}
		}
	}()
	return p
}

// frame adds message i to the frame in the making and sends it when it holds
// size messages.
func (p *publisher) frame(i, size int) {
	p.t.Helper()
	p.batch = append(p.batch, amqp.NewMessage(body(i)))
	if len(p.batch) == size {
		p.flush()
	}
}

func (p *publisher) flush() {
	p.t.Helper()
	if len(p.batch) == 0 {
		return
	}
	if err := p.producer.BatchSend(p.batch); err != nil {
		p.t.Fatalf("send: %v", err)
	}
	p.batch = p.batch[:0]
}

// await waits until n messages are confirmed.
func (p *publisher) await(n int) {
	p.t.Helper()
	giveUp := time.After(hangs)
	for p.confirmed.Load() < int64(n) {
		select {
		case <-p.progress:
		case <-giveUp:
			p.t.Fatalf("%d of %d messages confirmed, %d refused", p.confirmed.Load(), n, p.refused.Load())
		}
	}
}

// A delivery is one message as a consumer got it.
type delivery struct {
	offset int64
	body   string
}

// consume subscribes and hands each message to handle, from the client's own
// goroutine.
func consume(t *testing.T, env *stream.Environment, name string, from stream.OffsetSpecification, handle func(delivery)) *stream.Consumer {
	t.Helper()
	consumer, err := env.NewConsumer(name, func(c stream.ConsumerContext, m *amqp.Message) {
		handle(delivery{c.Consumer.GetOffset(), string(m.GetData())})
	}, stream.NewConsumerOptions().SetOffset(from).SetCRCCheck(true).SetManualCommit())
	if err != nil {
		t.Fatalf("new consumer: %v", err)
	}
	return consumer
}

// await receives from c, or fails the test when nothing comes.
func await[T any](t *testing.T, c <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(hangs):
		t.Fatalf("%s: nothing came within %v", what, hangs)
		panic("unreachable")
	}
}
