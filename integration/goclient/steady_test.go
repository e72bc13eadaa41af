package goclient

import (
	"context"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

const (
	// steadyPace is between two messages, steadyPatience how long one waits for
	// its confirm before the leader is looked for anew.
	steadyPace     = 5 * time.Millisecond
	steadyPatience = 700 * time.Millisecond
	messageBytes   = 100
)

// steady publishes by our own client, which goes on as soon as the cluster does:
// consumers are measured by its messages, whatever the official producers wait
// for. There is one message under way at a time.
type steady struct {
	addrs  []string
	stream string
	ledger *harness.Ledger
	number uint32 // its producer in the ledger

	news
}

// run ends once its last message is confirmed, after stop.
func (s *steady) run(stop <-chan struct{}) {
	for id, done := uint64(1), false; !done; {
		ctx, cancel := context.WithTimeout(context.Background(), steadyPatience)
		conn, err := client.DialLeader(ctx, client.Config{
			Addr: s.addrs[rand.IntN(len(s.addrs))], Name: "steady", Timeout: steadyPatience,
		}, s.stream)
		cancel()
		if err != nil {
			time.Sleep(steadyPace)
			continue
		}
		id, done = s.publish(conn, id, stop)
		conn.Abort()
	}
}

// publish goes on from a message that is not known to be confirmed.
func (s *steady) publish(conn *client.Conn, id uint64, stop <-chan struct{}) (uint64, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), steadyPatience)
	defer cancel()
	confirmed, refused := make(chan uint64, 16), make(chan struct{}, 16)
	p, err := conn.DeclarePublisher(ctx, client.PublisherConfig{
		Stream: s.stream, Reference: "steady",
		Confirmed: func(ids []uint64) { confirmed <- ids[len(ids)-1] },
		Refused:   func([]wire.PublishingError) { refused <- struct{}{} },
	})
	if err != nil {
		return id, false
	}
	for {
		message, err := amqp.NewMessage(harness.AppendMessage(nil, s.number, id, messageBytes)).MarshalBinary()
		if err != nil {
			panic(err) // a message of bytes
		}
		s.ledger.Sent(s.number, id)
		s.sends(id)
		if p.Send(id, message) != nil || p.Flush() != nil {
			return id, false
		}
		select {
		case <-confirmed:
		case <-refused:
			return id, false
		case <-conn.Done():
			return id, false
		case <-time.After(steadyPatience):
			return id, false
		}
		s.ledger.Confirmed(s.number, id)
		s.comes(id)
		id++
		select {
		case <-stop:
			return id, true
		case <-time.After(steadyPace):
		}
	}
}

// news is how soon something new came of what was sent since a mark.
type news struct {
	mu     sync.Mutex // guards all below
	sent   uint64     // the last number
	marked uint64     // that at the mark
	first  time.Time  // when a later one came first; zero: not yet
}

func (n *news) sends(number uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.sent = max(n.sent, number)
}

func (n *news) comes(number uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if number > n.marked && n.first.IsZero() {
		n.first = time.Now()
	}
}

// markAt has what is above a number count from now on.
func (n *news) markAt(number uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.marked, n.first = number, time.Time{}
}

// mark has what is sent from now on count.
func (n *news) mark() uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.marked, n.first = n.sent, time.Time{}
	return n.marked
}

// came is when the first came of what counts.
func (n *news) came() (time.Time, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.first, !n.first.IsZero()
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, within time.Duration, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(within); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never within %v: %s", within, what)
		}
	}
}
