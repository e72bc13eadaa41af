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
	"github.com/millrace/millrace/tracking"
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

// crowd publishes frames of 100 messages under as many names in turn, with 50
// frames not confirmed at a time; 0 names is one unnamed publisher.
type crowd struct {
	f          *fixture
	publishers []*Publisher
	sink       *windowSink
	frames     int    // so far
	id         uint64 // rises for all of them
}

const crowdFrame, crowdWindow = 100, 50

func newCrowd(f *fixture, names int) *crowd {
	c := &crowd{f: f, sink: &windowSink{free: make(chan *Batch, crowdWindow)}}
	for i := range names {
		c.publishers = append(c.publishers, f.declare(fmt.Sprintf("publisher-%03d", i)))
	}
	if names == 0 {
		c.publishers = append(c.publishers, f.declare(""))
	}
	for range crowdWindow {
		c.sink.free <- batchOf(c.publishers[0], c.sink, numbered(1, crowdFrame, 100)...)
	}
	return c
}

// publish returns when all frames are confirmed.
func (c *crowd) publish(frames int) {
	c.f.t.Helper()
	for range frames {
		batch := <-c.sink.free
		batch.Publisher = c.publishers[c.frames%len(c.publishers)]
		c.frames++
		for i := range batch.IDs {
			c.id++
			batch.IDs[i] = c.id
		}
		c.f.replica.Publish(batch)
	}
	var free [crowdWindow]*Batch
	for i := range free {
		free[i] = <-c.sink.free
	}
	for _, batch := range free {
		c.sink.free <- batch
	}
	if err := c.sink.failed.Load(); err != nil {
		c.f.t.Fatal(*err)
	}
}

// TestPublish_namesCostLittle counts what names cost, one and 255 of them: a few
// bytes for each frame and the name itself once in a segment, no chunk besides,
// and no allocation (TR-11). What that is in time, BenchmarkPublish_names tells.
func TestPublish_namesCostLittle(t *testing.T) {
	const frames = 4 * 255
	var unnamed uint64 // deltas, snapshots and barriers
	for _, names := range []int{0, 1, 255} {
		f := newFixture(t, vfs.OS{}, t.TempDir())
		f.lead(1)
		c := newCrowd(f, names)
		c.publish(frames) // pools, rings and tables grow
		before := f.replica.Stats()
		var m [2]runtime.MemStats
		runtime.ReadMemStats(&m[0])
		c.publish(frames)
		runtime.ReadMemStats(&m[1])
		st := f.replica.Stats()
		t.Logf("FIGURE %d names: %.3f allocations and %.2f B of sequences for a frame of %d messages, %.2f %% of the messages' bytes; %d chunks without messages",
			names, float64(m[1].Mallocs-m[0].Mallocs)/frames, float64(st.Log.SequenceBytes)/(2*frames), crowdFrame,
			100*float64(st.Log.SequenceBytes)/float64(st.Log.UserBytes), st.Controls)

		if st.Published != 2*frames*crowdFrame || st.Duplicate != 0 || st.Rolls != 0 {
			t.Errorf("%d names: %d stored, %d duplicates, %d rolls: the counts below mean nothing", names, st.Published, st.Duplicate, st.Rolls)
		}
		if perFrame := float64(m[1].Mallocs-m[0].Mallocs) / frames; perFrame > 5 {
			t.Errorf("%d names: %.2f allocations for a frame", names, perFrame)
		}
		// Each name stands once in a chunk that has messages of it: a tag, a short id
		// of up to two bytes, a sequence of up to three.
		most := func(chunks uint64) int64 {
			return int64(min(uint64(names)*chunks, frames+chunks) * (1 + 2 + 3))
		}
		chunks, took := st.Chunks-before.Chunks, st.Log.SequenceBytes-before.Log.SequenceBytes
		if took > most(chunks) {
			t.Errorf("%d names: %d frames in %d chunks took %d B of sequences, more than %d", names, frames, chunks, took, most(chunks))
		}
		defined := int64(names * tracking.SequenceLengthMax(len("publisher-000")))
		if first := before.Log.SequenceBytes; first > most(before.Chunks)+defined {
			t.Errorf("%d names: with the names it took %d B, more than %d", names, first, most(before.Chunks)+defined)
		}
		if names == 0 {
			unnamed = st.Controls
			if st.Log.SequenceBytes != 0 {
				t.Errorf("without a name there are %d B of sequences", st.Log.SequenceBytes)
			}
		} else if st.Log.SequenceBytes == 0 {
			t.Errorf("%d names: nothing is tracked", names)
		}
		if st.Controls != unnamed {
			t.Errorf("%d names: %d chunks without messages, %d without names", names, st.Controls, unnamed)
		}
		f.stop()
	}
}

// BenchmarkPublish_names publishes the same under no, one and 255 names; an
// operation is one message (TR-11: the loss should stay under 10 %).
func BenchmarkPublish_names(b *testing.B) {
	for _, names := range []int{0, 1, 255} {
		b.Run(fmt.Sprint("names=", names), func(b *testing.B) {
			f := newFixture(b, vfs.OS{}, b.TempDir(), func(f *fixture) { f.stream.Settings.RetainBytes = 1 << 30 })
			f.lead(1)
			c := newCrowd(f, names)
			b.ReportAllocs()
			b.SetBytes(100)
			b.ResetTimer()
			c.publish((b.N + crowdFrame - 1) / crowdFrame)
		})
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
