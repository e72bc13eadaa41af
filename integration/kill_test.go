package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// The kill test: kill -9 at random moments under load. After each kill every
// confirmed message is there exactly once and in order, nothing is there that
// was never sent, and stored offsets are never ahead and never older than the
// announced window. KILL_ROUNDS says how many kills (make kill-test ROUNDS=10).

const (
	killRoundsDefault = 2
	// roundsPerStream bounds how much one reading takes: every round reads its
	// stream from the first record on.
	roundsPerStream = 10
	// usableWithin is K5.
	usableWithin = 30 * time.Second
)

func TestKill(t *testing.T) {
	rounds := killRoundsDefault
	if text := os.Getenv("KILL_ROUNDS"); text != "" {
		var err error
		if rounds, err = strconv.Atoi(text); err != nil {
			t.Fatal(err)
		}
	}
	k := &killTest{t: t, node: harness.Start(t)}
	for round := range rounds {
		if round%roundsPerStream == 0 {
			if k.load != nil {
				k.settle()
			}
			k.begin(fmt.Sprintf("kill-%d", round/roundsPerStream))
		}
		k.round()
	}
	k.settle()
	t.Logf("FIGURE kill test: %d kills of kill -9; %d messages sent, %d confirmed, %d found again, each once and in order; slowest restart %d ms; stored offset at worst %d ms old (window %d ms, %d checks)",
		rounds, k.sent, k.confirmed, k.found, k.slowest.Milliseconds(), k.stalest.Milliseconds(), k.window.Milliseconds(), k.windowChecks)
}

// killTest is one node through all rounds.
type killTest struct {
	t    *testing.T
	node *harness.Node

	stream string
	ledger *harness.Ledger
	load   *load

	sent, confirmed, found uint64
	slowest                time.Duration // restart
	stalest, window        time.Duration // of stored offsets
	windowChecks           int
}

// begin makes a new stream, with small segments so that rolls and seals are
// hit too.
func (k *killTest) begin(stream string) {
	k.t.Helper()
	k.stream, k.ledger = stream, harness.NewLedger()
	conn := k.dial()
	defer conn.Close()
	if err := conn.Create(k.t.Context(), stream, map[string]string{"stream-max-segment-size-bytes": "1000000"}); err != nil {
		k.t.Fatalf("create %s: %v", stream, err)
	}
	k.load = newLoad(k)
}

func (k *killTest) config() client.Config {
	return client.Config{Addr: k.node.Stream, Name: "kill test"}
}

func (k *killTest) dial() *client.Conn {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), usableWithin)
	defer cancel()
	conn, err := client.Dial(ctx, k.config())
	if err != nil {
		k.t.Fatalf("dial: %v", err)
	}
	return conn
}

// round runs the load, kills the node at a random moment, starts it again and
// judges.
func (k *killTest) round() {
	k.t.Helper()
	k.load.start()
	moment := 300*time.Millisecond + rand.N(1200*time.Millisecond)
	select {
	case <-time.After(moment):
	case err := <-k.load.failed:
		k.t.Fatalf("the load failed before the kill: %v", err)
	}
	window := k.announcedWindow()
	killed := time.Now()
	k.node.Kill()
	k.load.stop()

	k.node.Restart()
	k.slowest = max(k.slowest, k.node.Ready)
	k.judge()
	k.judgeStored(killed, window)
}

// settle lets named publishers get everything confirmed, without a kill, and
// judges once more: now nothing that they sent may be missing.
func (k *killTest) settle() {
	k.t.Helper()
	k.load.start()
	giveUp := time.After(usableWithin)
	for !k.load.settled() {
		select {
		case <-k.load.progress:
		case err := <-k.load.failed:
			k.t.Fatalf("the load failed without a kill: %v", err)
		case <-giveUp:
			k.t.Fatalf("K5: named publishers have unconfirmed messages %v after the restart", usableWithin)
		}
	}
	k.load.stop()
	k.judge()
	sent, confirmed := k.ledger.Counts()
	k.sent += sent
	k.confirmed += confirmed
}

// judge reads the stream from its first record to its end, and holds it
// against the ledger.
func (k *killTest) judge() {
	k.t.Helper()
	ctx, cancel := context.WithTimeout(k.t.Context(), 2*time.Minute)
	defer cancel()
	conn := k.dial()
	defer conn.Close()
	stats, err := conn.Stats(ctx, k.stream)
	if err != nil {
		k.t.Fatal(err)
	}
	end := stats["committed_offset"] + 1
	if err := k.ledger.Bounds(uint64(max(stats["first_chunk_id"], 0)), uint64(end)); err != nil {
		k.t.Error(err)
	}
	reading, err := readAll(ctx, conn, k.stream, uint64(end), k.ledger)
	if err != nil {
		k.t.Fatalf("read %s: %v", k.stream, err)
	}
	if err := reading.End(); err != nil {
		k.t.Errorf("after a kill: %v", err)
	}
	k.found += uint64(reading.Count()) - k.load.foundBefore
	k.load.foundBefore = uint64(reading.Count())
}

// readAll reads up to the offset end.
func readAll(ctx context.Context, conn *client.Conn, stream string, end uint64, ledger *harness.Ledger) (*harness.Reading, error) {
	reading := ledger.Read()
	if end == 0 {
		return reading, nil
	}
	done := make(chan error, 1)
	var once sync.Once
	finish := func(err error) { once.Do(func() { done <- err }) }
	_, err := conn.Subscribe(ctx, client.ConsumerConfig{
		Stream: stream, Offset: wire.OffsetSpec{Type: wire.OffsetFirst}, Ended: finish,
		Deliver: func(d *client.Delivery) {
			for record, err := range d.Records() {
				if err != nil {
					finish(err)
					return
				}
				if reading.Next() < end {
					reading.Record(uint64(record.Offset), record.Message)
				}
			}
			if reading.Next() >= end {
				finish(nil)
			}
		},
	})
	if err != nil {
		return nil, err
	}
	select {
	case err := <-done:
		conn.Close() // Deliver runs no more
		return reading, err
	case <-ctx.Done():
		return nil, fmt.Errorf("at offset %d of %d: %w", reading.Next(), end, ctx.Err())
	}
}

// announcedWindow is what the node says about how far stored offsets may fall
// back.
func (k *killTest) announcedWindow() time.Duration {
	k.t.Helper()
	body, err := k.node.Get("/api/v1/streams/%2F/" + k.stream)
	if err != nil {
		k.t.Fatal(err)
	}
	var s admin.Stream
	if err := json.Unmarshal(body, &s); err != nil {
		k.t.Fatal(err)
	}
	if s.WindowMS <= 0 {
		k.t.Errorf("the node announces a window of %d ms", s.WindowMS)
	}
	return time.Duration(s.WindowMS) * time.Millisecond
}

// judgeStored holds the stored offset against what was stored.
func (k *killTest) judgeStored(killed time.Time, window time.Duration) {
	k.t.Helper()
	conn := k.dial()
	defer conn.Close()
	got, err := conn.QueryOffset(k.t.Context(), storeReference, k.stream)
	if err != nil && client.Code(err) != wire.CodeNoOffset {
		k.t.Fatal(err)
	}
	newest := k.load.stores.newest()
	if got > newest {
		k.t.Errorf("the stored offset is %d, ahead of the last stored one, %d", got, newest)
	}
	if least, ok := k.load.stores.takenBy(killed.Add(-window)); ok {
		k.windowChecks++
		if got < least {
			k.t.Errorf("the stored offset is %d, but %d was stored more than %v before the kill", got, least, window)
		}
	}
	k.window = max(k.window, window)
	if since, ok := k.load.stores.overtaken(got); ok {
		k.stalest = max(k.stalest, killed.Sub(since))
	}
}
