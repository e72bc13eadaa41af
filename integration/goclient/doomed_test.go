package goclient

import (
	"context"
	"fmt"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/ha"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// doomed is a stream that is deleted while its reliable clients look for its
// leader, which was killed.
type doomed struct {
	w        *town
	leader   *harness.Node
	producer *producer
	consumer *consumer
}

const (
	doomedName = "doomed"
	// goneWithin is how soon no node may know a deleted stream any more, goneFor
	// how long that is looked at.
	goneWithin = 50 * time.Millisecond
	goneMax    = 10 * goneWithin
	goneFor    = 2 * time.Second
)

func (w *town) doom(leader *harness.Node) *doomed {
	w.t.Helper()
	w.create(leader, doomedName)
	env, ledger := environmentOf(w.t, w.cluster.Addrs(), nil), harness.NewLedger()
	return &doomed{
		w: w, leader: leader,
		producer: startProducer(w.t, env, doomedName, "doomed: producer", 1, ledger, true),
		consumer: startConsumer(w.t, env, doomedName, "doomed: consumer", 1, ledger),
	}
}

// remove deletes the stream, and asks every node about it by every command: once
// the deletion is confirmed it does not exist, and never is merely not available.
func (d *doomed) remove() {
	w := d.w
	w.t.Helper()
	nodes := w.cluster.Others(d.leader)
	conn := w.dial(nodes[0])
	defer conn.Close()
	if err := conn.Delete(w.t.Context(), doomedName); err != nil {
		w.t.Fatalf("delete: %v", err)
	}
	deleted := time.Now()
	var last time.Duration // when a node still knew it
	var what string
	for time.Since(deleted) < goneFor {
		for _, n := range nodes {
			asked := time.Since(deleted)
			for command, code := range d.ask(n) {
				if code != wire.CodeStreamDoesNotExist {
					last, what = asked, fmt.Sprintf("%s on %s: %s", command, n.Name, code)
				}
			}
		}
	}
	w.t.Logf("FIGURE official Go client, cluster: a stream deleted while its leader is dead is still known for %d ms, goal %d ms", last.Milliseconds(), goneWithin.Milliseconds())
	if last > goneMax {
		w.t.Errorf("%v after the deletion: %s", last, what)
	}
}

// ask asks a node by every command that names a stream.
func (d *doomed) ask(n *harness.Node) map[string]wire.ResponseCode {
	w := d.w
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), hangs)
	defer cancel()
	conn := w.dial(n)
	defer conn.Close()
	answer := func(err error) wire.ResponseCode {
		code := client.Code(err)
		if code == 0 {
			w.t.Fatalf("ask %s: %v", n.Name, err)
		}
		return code
	}
	codes := map[string]wire.ResponseCode{}
	m, err := conn.Metadata(ctx, doomedName)
	if err != nil {
		w.t.Fatal(err)
	}
	codes["metadata"] = m.Streams.Slice()[0].Code
	_, err = conn.Stats(ctx, doomedName)
	codes["stats"] = answer(err)
	_, err = conn.ResolveOffset(ctx, doomedName, wire.OffsetSpec{Type: wire.OffsetFirst})
	codes["resolve"] = answer(err)
	_, err = conn.QueryOffset(ctx, "r", doomedName)
	codes["offset"] = answer(err)
	_, err = conn.QuerySequence(ctx, "r", doomedName)
	codes["sequence"] = answer(err)
	_, err = conn.DeclarePublisher(ctx, client.PublisherConfig{Stream: doomedName})
	codes["declare"] = answer(err)
	_, err = conn.Subscribe(ctx, client.ConsumerConfig{
		Stream: doomedName, Offset: wire.OffsetSpec{Type: wire.OffsetFirst}, Deliver: func(*client.Delivery) {},
	})
	codes["subscribe"] = answer(err)
	codes["delete"] = answer(conn.Delete(ctx, doomedName))
	return codes
}

// end waits until the clients have given up, as they shall: the stream is gone.
// The node that was down all the time knows that too.
func (d *doomed) end() {
	d.w.t.Helper()
	eventually(d.w.t, "the deleted stream's reliable clients give up", goesOnMax, func() bool {
		return d.producer.reliable.GetStatus() == ha.StatusClosed && d.consumer.reliable.GetStatus() == ha.StatusClosed
	})
	for command, code := range d.ask(d.leader) {
		if code != wire.CodeStreamDoesNotExist {
			d.w.t.Errorf("%s on %s, which was down when the stream was deleted: %s", command, d.leader.Name, code)
		}
	}
}
