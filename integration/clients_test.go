package integration

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// TestOperators_clients: operators see the clients of all nodes at any of them,
// and cut one off at another; while nodes hang or are down the list comes in time,
// without theirs, and says so.
func TestOperators_clients(t *testing.T) {
	o := newOperators(t)
	const messages = 100
	o.create("orders", messages, nil)
	leader := o.cluster.Leader("orders")
	conns := map[string]*client.Conn{}
	for _, n := range o.cluster.Nodes {
		conns[n.Name] = o.reader(n, "orders")
	}
	writer := o.writer(leader, "orders")

	for _, at := range o.cluster.Nodes {
		where := map[string]string{}
		for _, c := range parsed[[]admin.Connection](o, o.must(at, "connection", "list", "-o", "json")) {
			where[c.Properties["connection_name"]] = c.Node
		}
		for name := range conns {
			if where["reader at "+name] != name {
				t.Errorf("%s has the clients at %v", at.Name, where)
			}
		}
		published := parsed[[]admin.Publisher](o, o.must(at, "publisher", "list", "--stream", "orders", "-o", "json"))
		if len(published) != 1 || published[0].Reference != "writer" || published[0].Node != leader.Name || published[0].Confirmed != messages {
			t.Errorf("%s has the publishers %+v", at.Name, published)
		}
		o.eventually("every reader has read all", func() bool {
			read := 0
			for _, c := range parsed[[]admin.Consumer](o, o.must(at, "consumer", "list", "--group", "app", "-o", "json")) {
				if c.Lag != nil && *c.Lag == 0 && c.Consumed == 2*messages && c.Reference == "app" {
					read++
				}
			}
			return read == len(conns)
		})
	}

	last := o.cluster.Nodes[2]
	address := o.addressOf("reader at "+last.Name, last)
	o.must(o.cluster.Nodes[0], "connection", "close", address)
	select {
	case <-conns[last.Name].Done():
	case <-time.After(usableWithin):
		t.Fatal("the client is connected still")
	}
	if s := o.run(o.cluster.Nodes[1], "connection", "close", address); s.code != 3 {
		t.Errorf("closed again: exit %d: %s", s.code, s.err)
	}
	for _, n := range o.cluster.Nodes[:2] {
		if err := conns[n.Name].Err(); err != nil {
			t.Errorf("the client at %s went with it: %v", n.Name, err)
		}
	}
	if err := writer.Err(); err != nil {
		t.Errorf("the publisher went with it: %v", err)
	}

	last.Pause()
	o.lists(last, "while it hangs")
	last.Kill()
	o.lists(last, "once it is gone")
	if s := o.run(o.cluster.Nodes[0], "connection", "close", "192.0.2.1:1"); s.code != 6 || !strings.Contains(s.err, last.Name) {
		t.Errorf("a client that may be on a node that is down: exit %d: %s", s.code, s.err)
	}
}

// lists wants the lists of clients at the other nodes to come in time, and to name
// the one that is missing.
func (o *operators) lists(missing *harness.Node, when string) {
	o.t.Helper()
	for _, at := range o.cluster.Others(missing) {
		for _, noun := range []string{"connection", "publisher", "consumer"} {
			s := o.run(at, noun, "list", "-o", "name")
			if s.code != 8 || !strings.Contains(s.err, "not known: "+missing.Name) || s.took > 5*time.Second {
				o.t.Errorf("%s, %s list at %s: exit %d after %v: %s", when, noun, at.Name, s.code, s.took, s.err)
			}
			if strings.TrimSpace(s.out) == "" {
				o.t.Errorf("%s, %s list at %s is empty", when, noun, at.Name)
			}
		}
	}
}

// connect makes a client of that name at a node.
func (o *operators) connect(at *harness.Node, name string) (context.Context, *client.Conn) {
	o.t.Helper()
	ctx, cancel := context.WithTimeout(o.t.Context(), usableWithin)
	o.t.Cleanup(cancel)
	conn, err := client.Dial(ctx, client.Config{Addr: at.Stream, Name: name})
	if err != nil {
		o.t.Fatal(err)
	}
	o.t.Cleanup(conn.Abort)
	return ctx, conn
}

// reader reads a stream at a node as app.
func (o *operators) reader(at *harness.Node, stream string) *client.Conn {
	o.t.Helper()
	ctx, conn := o.connect(at, "reader at "+at.Name)
	_, err := conn.Subscribe(ctx, client.ConsumerConfig{
		Stream: stream, Offset: wire.OffsetSpec{Type: wire.OffsetFirst}, Properties: map[string]string{"name": "app"}, Deliver: func(*client.Delivery) {},
	})
	if err != nil {
		o.t.Fatalf("read at %s: %v", at.Name, err)
	}
	return conn
}

// writer publishes as many messages as are in a stream, as writer, and stays.
func (o *operators) writer(at *harness.Node, stream string) *client.Conn {
	o.t.Helper()
	ctx, conn := o.connect(at, "writer")
	pub, err := conn.DeclarePublisher(ctx, client.PublisherConfig{Stream: stream, Reference: "writer"})
	if err != nil {
		o.t.Fatal(err)
	}
	for i := range o.next[stream] {
		if _, err := pub.Publish(message(i)); err != nil {
			o.t.Fatal(err)
		}
	}
	if err := pub.Drain(ctx); err != nil {
		o.t.Fatal(err)
	}
	return conn
}

// addressOf is where the client of that name calls from.
func (o *operators) addressOf(name string, at *harness.Node) string {
	o.t.Helper()
	list := parsed[[]admin.Connection](o, o.must(at, "connection", "list", "-o", "json"))
	i := slices.IndexFunc(list, func(c admin.Connection) bool { return c.Properties["connection_name"] == name })
	if i < 0 {
		o.t.Fatalf("%s is not connected: %+v", name, list)
	}
	address, _, _ := strings.Cut(list[i].Name, " -> ")
	return address
}
