package broker_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/wire"
)

func TestClose_confirmsWhatIsPublished(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	p.declare(0, "", "s")
	replica := h.replica(t, "s")
	replica.hold()
	p.publish(0, 1, "a", "b")
	p.ask(&wire.Metadata{Correlation: p.next()})
	closed := make(chan error, 1)
	go func() { closed <- h.broker.Close(context.Background()) }()
	eventually(t, "the connection waits", func() bool { return h.broker.Stats().Connections == 1 && p.Send(&wire.Heartbeat{}) == nil })
	replica.commit()
	p.wantConfirms(0, 1, 2)
	p.wantEnd()
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
}

func TestClose_cutsOffWhoKeepsItWaiting(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	p.declare(0, "", "s")
	h.replica(t, "s").hold()
	p.publish(0, 1, "a")
	p.ask(&wire.Metadata{Correlation: p.next()})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := h.broker.Close(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("close: %v", err)
	}
	p.wantEnd()
	if n := h.broker.Stats().Connections; n != 0 {
		t.Fatalf("%d connections are left", n)
	}
}

func TestEnd_ofTheClientsSideStillGetsItsAnswers(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.send(&wire.Create{Correlation: 7, Stream: "s"})
	if err := p.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	p.wantCode(p.read(), wire.CodeOK)
	p.wantEnd()
}

func TestDeclare_waitsForTheLeader(t *testing.T) {
	h := serve(t, func(c *broker.Config) { c.MetadataWait = patience })
	p := h.open(t)
	p.create("s")
	h.depose(t, "s")
	p.send(&wire.DeclarePublisher{Correlation: 7, Stream: "s"})
	p.wantSilence()
	h.elect(t, "s")
	p.wantCode(p.read(), wire.CodeOK)
	p.publish(0, 1, "m")
	p.wantConfirms(0, 1, 1)
}

// TestDeclare_ledElsewhere: who asks a node that has just lost the leader, as
// another node's catalog did not know yet, is told at once.
func TestDeclare_ledElsewhere(t *testing.T) {
	h := serve(t, func(c *broker.Config) { c.MetadataWait = time.Hour })
	p := h.open(t)
	p.create("s")
	h.addReplica(t, "s", "n2", "two.example:1234")
	h.promote(t, "s", "n2")
	h.depose(t, "s")
	p.send(&wire.DeclarePublisher{Correlation: 7, Stream: "s"})
	p.wantSilence()
	h.electOther(t, "s", "n2")
	p.wantCode(p.read(), wire.CodeStreamNotAvailable)
	p.wantCode(p.ask(&wire.QueryOffset{Correlation: 8, Reference: "r", Stream: "s"}), wire.CodeStreamNotAvailable)
}

func TestSubscription_whoseLogEndsIsTakenAway(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	p.create("other")
	p.declare(0, "", "s")
	p.subscribe(0, "s", first, 10)
	p.subscribe(1, "s", first, 0) // not read from, so nothing is known of it
	p.subscribe(2, "other", first, 10)
	h.fill(t, "s", 1)
	p.wantDeliver()
	// The replica's run ends while the stream lives on.
	s, _ := h.View().Stream("/", "s")
	if err := h.store.Remove(s.Incarnation); err != nil {
		t.Fatal(err)
	}
	h.replica(t, "s").advance()
	if update, ok := p.read().(*wire.MetadataUpdate); !ok || update.Stream != "s" {
		t.Fatalf("got %+v", update)
	}
	p.wantCode(p.ask(&wire.Unsubscribe{Correlation: 1, SubscriptionID: 0}), wire.CodeSubscriptionIDDoesNotExist)
	p.wantCode(p.ask(&wire.Unsubscribe{Correlation: 1, SubscriptionID: 1}), wire.CodeOK)
	h.fill(t, "other", 1)
	p.wantDeliver()
}

func TestAnswers_thatAreNotReadStopTheReading(t *testing.T) {
	h := serve(t, func(c *broker.Config) { c.AnswerBytes = 64 << 10 })
	p := h.openTCP(t)
	// Each frame of 16 KiB asks for as much: a client that never reads could
	// have the broker hold any amount.
	var names []string
	for range 60 {
		names = append(names, strings.Repeat("n", 250)+string(rune('a'+len(names))))
	}
	p.SetDeadline(time.Now().Add(patience))
	frame := wire.Append(nil, &wire.Metadata{Correlation: 1, Streams: wire.StringsOf(names...)})
	sent := make(chan int, 1)
	go func() {
		n := 0
		for n < 64<<20 {
			if _, err := p.Write(frame); err != nil {
				break
			}
			n += len(frame)
		}
		sent <- n
	}()
	eventually(t, "the broker reads no more", func() bool {
		before := h.broker.Stats().ReceivedBytes
		<-time.After(50 * time.Millisecond)
		return before > 0 && h.broker.Stats().ReceivedBytes == before
	})
	if got := h.broker.Stats().ReceivedBytes; got > 32<<20 {
		t.Errorf("%d bytes were read from a client that reads nothing", got)
	}
	p.Close()
	<-sent
}
