package goclient

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/ha"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/message"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"

	"github.com/millrace/millrace/integration/harness"
)

// environmentOf is an environment that is given some addresses, of nodes or of a
// load balancer.
func environmentOf(t *testing.T, addrs []string, front *balancer) *stream.Environment {
	t.Helper()
	options := stream.NewEnvironmentOptions()
	if front != nil {
		addrs = []string{fmt.Sprintf("localhost:%d", front.port())}
		options.SetAddressResolver(stream.AddressResolver{Host: "localhost", Port: front.port()})
	}
	var uris []string
	for _, addr := range addrs {
		uris = append(uris, "rabbitmq-stream://guest:guest@"+addr)
	}
	env, err := stream.NewEnvironment(options.SetUris(uris))
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	t.Cleanup(func() {
		if !env.IsClosed() {
			_ = env.Close() // what it is connected to may be gone
		}
	})
	return env
}

const (
	producerPace = 10 * time.Millisecond
	// producerBatch is what a named producer has under way at a time. It sends a
	// batch again as it was until all of it is confirmed: a producer that went on
	// meanwhile could not send the earlier messages any more. After a reconnect it
	// sends the batch before once more too, as one that has lost count would.
	producerBatch = 20
	// unanswered is how long a batch may be without an answer from the client: its
	// own patience is 10 s.
	unanswered = 20 * time.Second
)

// producer is a reliable producer of the official client in an application.
type producer struct {
	label    string
	number   uint32 // in the ledger
	ledger   *harness.Ledger
	reliable *ha.ReliableProducer
	batch    int // 0: messages are not numbered, and not sent again

	news

	answers struct {
		sync.Mutex
		open   map[uint64]bool // numbers sent and not answered yet
		failed bool            // one of them
	}
	answered chan struct{} // one place: answers changed
}

func startProducer(t *testing.T, env *stream.Environment, name, label string, number uint32, ledger *harness.Ledger, named bool) *producer {
	t.Helper()
	p := &producer{label: label, number: number, ledger: ledger, answered: make(chan struct{}, 1)}
	options := stream.NewProducerOptions().SetClientProvidedName(label)
	if named {
		p.batch = producerBatch
		options.SetProducerName(label)
	}
	var err error
	if p.reliable, err = ha.NewReliableProducer(env, name, options, p.heard); err != nil {
		t.Fatalf("%s: %v", label, err)
	}
	return p
}

// heard takes the client's word on messages.
func (p *producer) heard(list []*stream.ConfirmationStatus) {
	for _, c := range list {
		_, number, err := harness.ParseMessage(c.GetMessage().GetData()[0])
		if err != nil {
			panic(err) // the client gives back what it was given
		}
		if c.IsConfirmed() {
			p.ledger.Confirmed(p.number, number)
			p.comes(number)
		}
		p.answers.Lock()
		delete(p.answers.open, number)
		p.answers.failed = p.answers.failed || !c.IsConfirmed()
		p.answers.Unlock()
	}
	select {
	case p.answered <- struct{}{}:
	default:
	}
}

// run publishes until stop, and until all is confirmed that will be.
func (p *producer) run(stop <-chan struct{}) error {
	tick := time.NewTicker(producerPace)
	defer tick.Stop()
	var under, before []message.StreamMessage // the batch that is not confirmed yet, and the one before it
	again := false                            // before too
	for next := uint64(1); ; {
		select {
		case <-stop:
			return nil
		case <-tick.C:
		}
		if p.reliable.GetStatus() == ha.StatusClosed {
			return fmt.Errorf("%s gave up", p.label)
		}
		if p.reliable.GetStatus() != ha.StatusOpen {
			again = before != nil
			continue
		}
		if again {
			confirmed, err := p.send(before)
			if err != nil {
				return fmt.Errorf("%s: %w", p.label, err)
			}
			again = !confirmed
			continue
		}
		if p.batch == 0 {
			if err := p.reliable.Send(p.message(next)); err != nil {
				return fmt.Errorf("%s: %w", p.label, err)
			}
			next++
			continue
		}
		for len(under) < p.batch {
			m := p.message(next)
			m.SetPublishingId(int64(next))
			under = append(under, m)
			next++
		}
		confirmed, err := p.send(under)
		if err != nil {
			return fmt.Errorf("%s: %w", p.label, err)
		}
		if confirmed {
			under, before = nil, under
		}
	}
}

// message makes a message, which is about to be sent.
func (p *producer) message(number uint64) *amqp.AMQP10 {
	p.ledger.Sent(p.number, number)
	p.sends(number)
	return amqp.NewMessage(harness.AppendMessage(nil, p.number, number, messageBytes))
}

// send sends a batch in one frame, and says whether all of it was confirmed.
func (p *producer) send(list []message.StreamMessage) (bool, error) {
	open := map[uint64]bool{}
	for _, m := range list {
		open[uint64(m.GetPublishingId())] = true
	}
	p.answers.Lock()
	p.answers.open, p.answers.failed = open, false
	p.answers.Unlock()
	if err := p.reliable.BatchSend(list); err != nil {
		return false, err
	}
	late := time.After(unanswered)
	for {
		p.answers.Lock()
		left, failed := len(p.answers.open), p.answers.failed
		p.answers.Unlock()
		if left == 0 || failed {
			return !failed, nil
		}
		select {
		case <-p.answered:
		case <-late:
			return false, nil
		}
	}
}

// consumer is a reliable consumer of the official client in an application. It
// must see every record once, in order, over all that happens.
type consumer struct {
	label    string
	of       uint32 // the steady producer's number, by which it is measured
	reliable *ha.ReliableConsumer

	news

	judged  sync.Mutex // guards reading
	reading *harness.Reading
}

func startConsumer(t *testing.T, env *stream.Environment, name, label string, of uint32, ledger *harness.Ledger) *consumer {
	t.Helper()
	c := &consumer{label: label, of: of, reading: ledger.Read()}
	var err error
	c.reliable, err = ha.NewReliableConsumer(env, name, stream.NewConsumerOptions().
		SetClientProvidedName(label).SetOffset(stream.OffsetSpecification{}.First()).SetManualCommit(), c.heard)
	if err != nil {
		t.Fatalf("%s: %v", label, err)
	}
	return c
}

func (c *consumer) heard(at stream.ConsumerContext, m *amqp.Message) {
	body := m.GetData()
	c.judged.Lock()
	c.reading.Record(uint64(at.Consumer.GetOffset()), body)
	c.judged.Unlock()
	if producer, number, err := harness.ParseMessage(body); err == nil && producer == c.of {
		c.comes(number)
	}
}

func (c *consumer) next() uint64 {
	c.judged.Lock()
	defer c.judged.Unlock()
	return c.reading.Next()
}
