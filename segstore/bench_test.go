package segstore

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// BenchmarkAppend writes chunks of 100 B messages to the page cache, as the
// publish path does: build, append, release. Every 64 MB the log is synced
// outside of the clock, so that the figure is ours and not the disk's.
func BenchmarkAppend(b *testing.B) {
	for _, messages := range []int{1, 100, 10_000} {
		b.Run(fmt.Sprintf("%d×100B", messages), func(b *testing.B) {
			f := newFixture(b, vfs.OS{}, b.TempDir())
			f.barrier()
			var run []byte
			message := make([]byte, 100)
			for range messages {
				run = chunk.AppendSimple(run, message)
			}
			var builder chunk.Builder
			b.SetBytes(int64(100 * messages))
			b.ReportAllocs()
			unsynced := 0
			for b.Loop() {
				m := f.meta(0)
				c := NewChunk(len(run))
				builder.Reset(c.Head, c.Data)
				builder.AppendRun(run, messages, uint32(messages))
				c.Head, c.Data, c.Header = builder.Finish(&m)
				if err := f.log.Append(c); err != nil {
					b.Fatal(err)
				}
				c.Release()
				if unsynced += len(run); unsynced > 64<<20 {
					unsynced = 0
					b.StopTimer()
					f.sync()
					b.StartTimer()
				}
				if f.log.summary.Size > 400<<20 {
					b.StopTimer()
					f.roll(true)
					f.sync()
					f.must(f.log.SetLogStart(f.log.summary.FirstLSN))
					b.StartTimer()
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*messages), "ns/msg")
		})
	}
}

// BenchmarkRead reads a log of 64 MB from its files: the first time with the
// data checked, then again as deliveries that are sent from the file.
func BenchmarkRead(b *testing.B) {
	for _, messages := range []int{10, 5_000} {
		b.Run(fmt.Sprintf("%d×100B", messages), func(b *testing.B) {
			f := newFixture(b, vfs.OS{}, b.TempDir())
			f.barrier()
			f.fill(64<<20, messages)
			f.sync()
			f.store.cache.cut(&f.log.cached, 0)
			b.SetBytes(f.log.summary.UserBytes)
			b.ReportAllocs()
			for b.Loop() {
				f.drain()
			}
		})
	}
}

// BenchmarkReadTail reads a log of 32 MB from the chunk cache.
func BenchmarkReadTail(b *testing.B) {
	f := newFixture(b, vfs.OS{}, b.TempDir())
	f.barrier()
	f.fill(32<<20, 100)
	f.sync()
	b.SetBytes(f.log.summary.UserBytes)
	b.ReportAllocs()
	for b.Loop() {
		f.drain()
	}
	if s := f.store.cache.snapshot(); s.Misses > s.Hits/1000 {
		b.Errorf("%d misses, %d hits", s.Misses, s.Hits)
	}
}

// fill appends user chunks of 100 B messages up to so many bytes.
func (f *fixture) fill(bytes, messages int) {
	f.t.Helper()
	var run []byte
	message := make([]byte, 100)
	for range messages {
		run = chunk.AppendSimple(run, message)
	}
	var builder chunk.Builder
	for written := 0; written < bytes; written += len(run) {
		m := f.meta(0)
		c := NewChunk(len(run))
		builder.Reset(c.Head, c.Data)
		builder.AppendRun(run, messages, uint32(messages))
		c.Head, c.Data, c.Header = builder.Finish(&m)
		f.append(c)
	}
}

// drain reads the whole log without looking at it.
func (f *fixture) drain() {
	f.t.Helper()
	r, err := f.log.Attach(Spec{Kind: First}, f.log.Commit())
	f.must(err)
	defer r.Close()
	for {
		v, ok, err := r.Next(f.log.Commit())
		f.must(err)
		if !ok {
			return
		}
		v.Release()
	}
}

// BenchmarkOpen opens a log of 5,000 segments whose last stop was clean.
func BenchmarkOpen(b *testing.B) {
	f := manySegments(b, 5000)
	for b.Loop() {
		must(b, f.log.Close())
		f.openLog()
	}
}

// BenchmarkAttach attaches by offset and by time in a log of 10,000 segments.
func BenchmarkAttach(b *testing.B) {
	f := manySegments(b, 10_000)
	next, last := int(f.log.Next()), int(f.log.LastTimestamp()-testTime)
	for name, spec := range map[string]func(i int) Spec{
		"offset":    func(i int) Spec { return Spec{Kind: AtOffset, Offset: chunk.Offset(i * 7919 % next)} },
		"timestamp": func(i int) Spec { return Spec{Kind: AtTimestamp, Timestamp: testTime + chunk.Timestamp(i*7919%last)} },
	} {
		b.Run(name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				r, err := f.log.Attach(spec(i), f.log.Commit())
				must(b, err)
				v, ok, err := r.Next(f.log.Commit())
				if !ok || err != nil {
					b.Fatal(ok, err)
				}
				v.Release()
				r.Close()
			}
		})
	}
}

func manySegments(b *testing.B, n int) *fixture {
	b.Helper()
	f := &fixture{t: b, fs: vfs.NewMem(), dir: "data", epoch: 1, now: testTime, wrote: map[chunk.Offset][]byte{}}
	f.openInline()
	must(b, f.store.Create(testName, testIncarnation))
	f.openLog()
	f.barrier()
	for range n {
		f.publish(2, 20)
		f.roll(true)
	}
	f.publish(1, 20)
	f.sync()
	return f
}
