package goclient

import (
	"net/url"
	"testing"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/integration/harness"
)

// TestNext_endedBeforeAnything: a consumer at next whose connection is closed by
// an operator before it has received anything, and one whose node is killed, read
// new messages alone when they subscribe at next again. (The client's own reliable
// consumer asks for offset 1 then, whatever it began at.)
func TestNext_endedBeforeAnything(t *testing.T) {
	n := harness.Start(t)
	env := environment(t, n)
	declare(t, env, "idle")
	p := publish(t, env, "idle", stream.NewProducerOptions())
	sent := 0
	send := func() {
		p.frame(sent, 1)
		sent++
		p.await(sent)
	}
	send()
	const name = "idle consumer"
	got := make(chan delivery, 100)
	subscribe := func(env *stream.Environment) *stream.Consumer {
		t.Helper()
		c, err := env.NewConsumer("idle", func(c stream.ConsumerContext, m *amqp.Message) {
			got <- delivery{c.Consumer.GetOffset(), string(m.GetData())}
		}, stream.NewConsumerOptions().SetOffset(stream.OffsetSpecification{}.Next()).SetClientProvidedName(name))
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	wantNext := func(when string) {
		t.Helper()
		if d := await(t, got, when); d.offset != int64(sent-1) || d.body != string(body(sent-1)) {
			t.Errorf("%s: the first message is offset %d (%q), want %d", when, d.offset, d.body, sent-1)
		}
		if len(got) > 0 {
			t.Errorf("%s: more than what was published since", when)
		}
	}
	closed := subscribe(env).NotifyClose()
	var list admin.Across[admin.Connection]
	if err := n.Call("GET", "/api/v1/connections", nil, &list); err != nil {
		t.Fatal(err)
	}
	found := 0
	for _, c := range list.Items {
		if c.Properties["connection_name"] == name {
			found++
			if status, body, err := n.Manage("DELETE", "/api/connections/"+url.PathEscape(c.Name)); err != nil || status >= 300 {
				t.Fatalf("close %s: %d, %v: %s", c.Name, status, err, body)
			}
		}
	}
	if found != 1 {
		t.Fatalf("%d connections of the consumer", found)
	}
	await(t, closed, "the end of the connection")
	again := subscribe(env)
	send()
	wantNext("behind the end of its connection")
	if err := again.Close(); err != nil {
		t.Error(err)
	}

	closed = subscribe(env).NotifyClose()
	n.Kill()
	await(t, closed, "the end of the node")
	n.Restart()
	env = environment(t, n)
	subscribe(env)
	p, sent = publish(t, env, "idle", stream.NewProducerOptions()), 2
	p.frame(sent, 1)
	sent++
	p.await(1)
	wantNext("behind the node's kill")
}
