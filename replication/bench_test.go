package replication

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/segstore/vfs"
)

// windowSink is a publisher's side of a window: batches go round.
type windowSink struct {
	free   chan *Batch
	failed atomic.Pointer[error]
}

func (s *windowSink) Confirmed(b *Batch) { s.free <- b }

func (s *windowSink) Failed(b *Batch, err error) {
	s.failed.Store(&err)
	s.free <- b
}

// BenchmarkPublish publishes with fsync on the disk; an operation is one
// message. The window is in messages.
func BenchmarkPublish(b *testing.B) {
	for _, c := range []struct {
		publishers, frame, size, window int
		reference                       bool
	}{
		{1, 100, 100, 10_000, false},
		{1, 100, 100, 10_000, true},
		{4, 100, 100, 10_000, false},
		{1, 1000, 100, 200_000, false},
		{1, 100, 1024, 10_000, false},
		{1, 1, 100, 1000, false},
		{1, 1, 100, 1, false},
	} {
		name := fmt.Sprintf("p=%d/frame=%d/size=%d/window=%d/named=%v", c.publishers, c.frame, c.size, c.window, c.reference)
		b.Run(name, func(b *testing.B) {
			f := newFixture(b, vfs.OS{}, b.TempDir(), func(f *fixture) { f.stream.Settings.RetainBytes = 1 << 30 })
			f.lead(1)
			b.ReportAllocs()
			b.SetBytes(int64(c.size))
			b.ResetTimer()
			start := time.Now()
			var work sync.WaitGroup
			for i := range c.publishers {
				reference := ""
				if c.reference {
					reference = fmt.Sprint("publisher-", i)
				}
				p := f.declare(reference)
				work.Go(func() { publishWindow(b, f.replica, p, c.frame, c.size, c.window/c.frame, b.N/c.publishers) })
			}
			work.Wait()
			b.StopTimer()
			st := f.replica.Stats()
			b.ReportMetric(float64(b.N)/time.Since(start).Seconds()/1e6, "Mmsg/s")
			b.ReportMetric(float64(st.Published)/float64(max(st.Chunks, 1)), "msg/chunk")
			b.ReportMetric(float64(st.Syncs)/time.Since(start).Seconds(), "syncs/s")
		})
	}
}

// publishWindow publishes n messages in frames, with so many frames not
// confirmed at a time.
func publishWindow(b *testing.B, r *Replica, p *Publisher, frame, size, frames, n int) {
	sink := &windowSink{free: make(chan *Batch, frames)}
	messages := numbered(1, frame, size-4)
	for range frames {
		sink.free <- batchOf(p, sink, messages...)
	}
	id := uint64(0)
	for range (n + frame - 1) / frame {
		batch := <-sink.free
		for i := range batch.IDs {
			id++
			batch.IDs[i] = id
		}
		r.Publish(batch)
	}
	for range frames {
		<-sink.free
	}
	if err := sink.failed.Load(); err != nil {
		b.Error(*err)
	}
}

// TestPublish_allocatesNothingPerMessage counts what a window that goes round
// allocates on all goroutines: a few values for each chunk and sync, none for a
// message or a frame.
func TestPublish_allocatesNothingPerMessage(t *testing.T) {
	f := newFixture(t, vfs.OS{}, t.TempDir())
	f.lead(1)
	for _, reference := range []string{"", "publisher"} {
		const frames, frame, rounds = 50, 100, 400
		p := f.declare(reference)
		sink := &windowSink{free: make(chan *Batch, frames)}
		for range frames {
			sink.free <- batchOf(p, sink, numbered(1, frame, 100)...)
		}
		id := uint64(0)
		publish := func(n int) {
			for range n {
				batch := <-sink.free
				for i := range batch.IDs {
					id++
					batch.IDs[i] = id
				}
				f.replica.Publish(batch)
			}
		}
		publish(rounds) // pools and rings grow
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		publish(rounds)
		runtime.ReadMemStats(&after)
		if perFrame := float64(after.Mallocs-before.Mallocs) / rounds; perFrame > 5 {
			t.Errorf("reference %q: %.2f allocations for a frame of %d messages", reference, perFrame, frame)
		}
	}
}
