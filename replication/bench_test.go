package replication

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
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

// BenchmarkStoreOffset stores as fast as four consumers can, each with 25
// references, and asks once for a hundred stores.
func BenchmarkStoreOffset(b *testing.B) {
	f := newFixture(b, vfs.OS{}, b.TempDir())
	f.lead(1)
	b.ReportAllocs()
	b.ResetTimer()
	var work sync.WaitGroup
	for consumer := range 4 {
		work.Go(func() {
			var references []string
			for i := range 25 {
				references = append(references, fmt.Sprint("consumer-", consumer, "-", i))
			}
			for i := range b.N / 4 {
				reference := references[i%len(references)]
				if err := f.replica.StoreOffset(reference, chunk.Offset(i)); err != nil {
					b.Error(err)
					return
				}
				if i%100 == 0 {
					if _, _, err := f.replica.QueryOffset(reference); err != nil {
						b.Error(err)
					}
				}
			}
		})
	}
	work.Wait()
	b.StopTimer()
	st := f.replica.Stats()
	b.ReportMetric(float64(st.Turns)/float64(b.N), "turns/op")
}

// BenchmarkManyStreams publishes a message to each of 1,000 streams in turn and
// waits for all of them.
func BenchmarkManyStreams(b *testing.B) {
	const streams = 1000
	f := newFixture(b, vfs.OS{}, b.TempDir())
	var publishers []*Publisher
	var replicas []*Replica
	for i := range chunk.Incarnation(streams) {
		r, err := f.node.Open(Stream{Incarnation: 1000 + i, Name: fmt.Sprint("stream ", i)}, true)
		f.must(err)
		result := f.node.Fence(f.context(), []FenceRequest{{1000 + i, 1}})[0]
		f.must(result.Err)
		f.must(f.node.Assign(f.context(), protocol.Assignment{
			Stream: 1000 + i, Epoch: 1, Node: "n1", Run: result.Report.Run, Replicas: alone,
		}, nil))
		p, err := r.Declare("")
		f.must(err)
		replicas, publishers = append(replicas, r), append(publishers, p)
	}
	b.ReportAllocs()
	b.ResetTimer()
	sink := &windowSink{free: make(chan *Batch, streams)}
	for range b.N {
		for i, r := range replicas {
			r.Publish(batchOf(publishers[i], sink, message{id: 1, body: "one message a second"}))
		}
		for range streams {
			<-sink.free
		}
	}
	b.ReportMetric(float64(b.Elapsed().Microseconds())/float64(b.N*streams), "µs/msg")
}
