package goclient

import (
	"net"
	"strconv"
	"testing"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"

	"github.com/millrace/millrace/integration/harness"
)

// TestTLS: the client over TLS, by password and by certificate: what is published
// there is consumed there, whole and in order.
func TestTLS(t *testing.T) {
	n := harness.StartSecure(t)
	host, port, err := net.SplitHostPort(n.StreamTLS)
	if err != nil {
		t.Fatal(err)
	}
	number, err := strconv.Atoi(port)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []struct {
		name, mechanism, user string
	}{
		{"password", stream.SaslConfigurationPlain, ""},
		{"certificate", stream.SaslConfigurationExternal, "guest"},
	} {
		t.Run(r.name, func(t *testing.T) {
			env, err := stream.NewEnvironment(stream.NewEnvironmentOptions().
				SetHost(host).SetPort(number).SetUser("guest").SetPassword("guest").
				IsTLS(true).SetTLSConfig(n.Client(t, r.user)).SetSaslConfiguration(r.mechanism))
			if err != nil {
				t.Fatalf("connect: %v", err)
			}
			t.Cleanup(func() { _ = env.Close() })
			const messages = 50_000
			declare(t, env, r.name)
			p := publish(t, env, r.name, stream.NewProducerOptions())
			for i := range messages {
				p.frame(i, 100)
			}
			p.flush()
			p.await(messages)
			got := make(chan delivery, 1000)
			consumer := consume(t, env, r.name, stream.OffsetSpecification{}.First(), func(d delivery) { got <- d })
			for i := range messages {
				if d := await(t, got, "a message"); d.offset != int64(i) || d.body != string(body(i)) {
					t.Fatalf("message %d is %q at %d", i, d.body, d.offset)
				}
			}
			if err := consumer.Close(); err != nil {
				t.Fatal(err)
			}
		})
	}
}
