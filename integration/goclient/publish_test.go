package goclient

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"

	"github.com/millrace/millrace/integration/harness"
)

// messages is how many the big test publishes; GOCLIENT_MESSAGES changes it.
func messages(t *testing.T) int {
	t.Helper()
	text := os.Getenv("GOCLIENT_MESSAGES")
	if text == "" {
		return 1_000_000
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestMillion publishes a million messages in frames of 100 and reads them
// from the first on with two consumers at once, byte for byte in order.
func TestMillion(t *testing.T) {
	n := harness.Start(t)
	env := environment(t, n)
	declare(t, env, "million")
	total := messages(t)

	p := publish(t, env, "million", stream.NewProducerOptions().SetConfirmationTimeOut(hangs))
	begin := time.Now()
	for i := range total {
		p.frame(i, 100)
	}
	p.flush()
	p.await(total)
	published := time.Since(begin)
	if refused := p.refused.Load(); refused != 0 {
		t.Errorf("%d messages were refused", refused)
	}

	begin = time.Now()
	results := make(chan error, 2)
	for range 2 {
		next := 0
		consume(t, env, "million", stream.OffsetSpecification{}.First(), func(d delivery) {
			if next < 0 || next >= total {
				return
			}
			if d.offset != int64(next) || d.body != string(body(next)) {
				results <- fmt.Errorf("message %d came as offset %d, %q", next, d.offset, d.body)
				next = -1
				return
			}
			if next++; next == total {
				results <- nil
			}
		})
	}
	for range 2 {
		if err := await(t, results, "consume"); err != nil {
			t.Fatal(err)
		}
	}
	consumed := time.Since(begin)
	t.Logf("FIGURE official Go client: %d messages in frames of 100 confirmed in %.2f s (%.0f/s); two consumers read them in %.2f s (%.0f/s in all)",
		total, published.Seconds(), float64(total)/published.Seconds(), consumed.Seconds(), 2*float64(total)/consumed.Seconds())
}

// TestSubBatches publishes sub-batches in every compression and reads single
// messages again.
func TestSubBatches(t *testing.T) {
	n := harness.Start(t)
	env := environment(t, n)
	const total, entry = 10_000, 50
	for _, row := range []struct {
		name        string
		compression stream.Compression
	}{
		{"none", stream.Compression{}.None()}, {"gzip", stream.Compression{}.Gzip()}, {"snappy", stream.Compression{}.Snappy()},
		{"lz4", stream.Compression{}.Lz4()}, {"zstd", stream.Compression{}.Zstd()},
	} {
		t.Run(row.name, func(t *testing.T) {
			declare(t, env, row.name)
			p := publish(t, env, row.name, stream.NewProducerOptions().SetSubEntrySize(entry).SetCompression(row.compression))
			for i := range total {
				p.frame(i, 1_000)
			}
			p.flush()
			p.await(total)
			done, next := make(chan error, 1), 0
			consume(t, env, row.name, stream.OffsetSpecification{}.First(), func(d delivery) {
				if next < 0 || next >= total {
					return
				}
				if d.offset != int64(next) || d.body != string(body(next)) {
					done <- fmt.Errorf("message %d came as offset %d, %q", next, d.offset, d.body)
					next = -1
					return
				}
				if next++; next == total {
					done <- nil
				}
			})
			if err := await(t, done, "consume"); err != nil {
				t.Fatal(err)
			}
			t.Logf("FIGURE official Go client: %d messages in sub-batches of %d, %s: read back in order", total, entry, row.name)
		})
	}
}
