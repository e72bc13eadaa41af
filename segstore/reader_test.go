package segstore

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/plan"
	"github.com/millrace/millrace/segstore/vfs"
)

// dropCache makes readers go to the files.
func (f *fixture) dropCache() { f.store.cache.cut(&f.log.cached, 0) }

// Attaching by time gives the first chunk at or after it by a full scan,
// wherever segments end and however many chunks share a millisecond (ST-26,
// ST-27, ST-28).
func TestAttach_byTimestamp(t *testing.T) {
	f := memFixture(t)
	clock := []int64{5, 5, 5, 6, 6, 9, 9, 9, 9, 12}
	type place struct {
		at   chunk.Timestamp
		base chunk.Offset
	}
	var all []place
	for i, c := range clock {
		f.now = testTime + chunk.Timestamp(100*c) - 10 // meta adds 10
		f.append(f.user(1, 20))
		all = append(all, place{f.now, chunk.Offset(i)})
		if i%2 == 1 {
			f.now -= 10
			f.roll(true)
		}
	}
	f.sync()
	f.dropCache()
	times := []chunk.Timestamp{0, -1, 1 << 62, testTime}
	for _, p := range all {
		times = append(times, p.at-1, p.at, p.at+1)
	}
	for _, at := range times {
		want := chunk.Offset(len(all))
		for _, p := range all {
			if p.at >= at {
				want = p.base
				break
			}
		}
		r, err := f.log.Attach(Spec{Kind: AtTimestamp, Timestamp: at}, f.log.Commit())
		must(t, err)
		if r.Offset() != want {
			t.Errorf("at %d: offset %d, want %d", at-testTime, r.Offset(), want)
		}
		if got := f.read(r); len(got) != len(all)-int(want) || len(got) > 0 && got[0] != want {
			t.Errorf("at %d: read %v, want from %d", at-testTime, ends(got), want)
		}
	}
}

// Every kind of place on every kind of log: never an error, and what comes later
// is delivered.
func TestAttach_specs(t *testing.T) {
	logs := map[string]func(*fixture){
		"empty":         func(*fixture) {},
		"barrier alone": func(f *fixture) { f.barrier() },
		"one chunk":     func(f *fixture) { f.barrier(); f.publish(1, 20) },
		"many segments": func(f *fixture) {
			f.barrier()
			for range 4 {
				f.publish(3, 20)
				f.roll(true)
			}
			f.publish(1, 20)
		},
		"ends in control": func(f *fixture) { f.barrier(); f.publish(3, 20); f.roll(true) },
		"trimmed": func(f *fixture) {
			f.barrier()
			f.publish(3, 20)
			f.roll(true)
			f.publish(3, 20)
			f.sync()
			f.must(f.log.SetLogStart(5))
		},
	}
	for name, build := range logs {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, vfs.NewMem(), "data")
			build(f)
			f.sync()
			f.dropCache()
			first, next := f.log.First(), f.log.Next()
			last := next
			if next > first {
				last = next - 2 // chunks hold two records
			}
			for _, c := range []struct {
				spec Spec
				want chunk.Offset
			}{
				{Spec{Kind: First}, first},
				{Spec{Kind: Last}, last},
				{Spec{Kind: Next}, next},
				{Spec{Kind: AtOffset}, first},
				{Spec{Kind: AtOffset, Offset: next}, next},
				{Spec{Kind: AtOffset, Offset: ^chunk.Offset(0)}, next},
				{Spec{Kind: AtTimestamp}, first},
				{Spec{Kind: AtTimestamp, Timestamp: -1 << 63}, first},
				{Spec{Kind: AtTimestamp, Timestamp: 1<<63 - 1}, next},
			} {
				r, err := f.log.Attach(c.spec, f.log.Commit())
				must(t, err)
				if r.Offset() != c.want {
					t.Errorf("%s: at %d, want %d", c.spec, r.Offset(), c.want)
				}
				got := f.read(r)
				if len(got) != int(next-c.want) || len(got) > 0 && got[0] != c.want {
					t.Errorf("%s: read %v, want %d to %d", c.spec, ends(got), c.want, next)
				}
				if v, ok, err := r.Next(f.log.Commit()); ok || err != nil {
					t.Errorf("%s: after the end %v, %v", c.spec, v.Header, err)
				}
			}
			r, err := f.log.Attach(Spec{Kind: Next}, f.log.Commit())
			must(t, err)
			f.elect()
			f.publish(2, 30)
			f.sync()
			if got := f.read(r); len(got) != 4 || got[0] != next {
				t.Errorf("after next: %v, want from %d", got, next)
			}
		})
	}
}

// Last is the last committed user chunk, also far behind an uncommitted tail and
// behind many control chunks.
func TestAttach_lastCommitted(t *testing.T) {
	f := memFixture(t)
	for i := range 60 {
		f.append(f.user(2, 2500))
		if i%3 == 0 {
			f.append(f.control(chunk.Delta, 0, nil))
		}
		if i == 20 {
			f.roll(true)
		}
	}
	f.must(f.log.syncNow())
	f.dropCache()
	users := map[chunk.LSN]chunk.Offset{}
	r := f.log.AttachLSN(1)
	for {
		v, ok, err := r.Next(f.log.Tail().LSN)
		must(t, err)
		if !ok {
			break
		}
		if v.Header.Type == chunk.User {
			users[v.Header.LSN] = v.Header.BaseOffset
		}
		v.Release()
	}
	want := f.log.Next()
	for commit := chunk.LSN(0); commit <= f.log.Tail().LSN; commit++ {
		if base, ok := users[commit]; ok {
			want = base
		}
		r, err := f.log.Attach(Spec{Kind: Last}, commit)
		must(t, err)
		if r.Offset() != want {
			t.Fatalf("commit %d: last at %d, want %d", commit, r.Offset(), want)
		}
		after, err := f.log.OffsetAfter(commit)
		must(t, err)
		expect := chunk.Offset(0)
		if len(users) > 0 && want != f.log.Next() || commit == f.log.Tail().LSN {
			expect = min(want+2, f.log.Next())
		}
		if after != expect {
			t.Fatalf("commit %d: offset after it %d, want %d", commit, after, expect)
		}
	}
}

// Nothing above the commit is given out, in memory or on disk (ST-12).
func TestReader_waitsForTheCommit(t *testing.T) {
	for _, cold := range []bool{false, true} {
		f := memFixture(t)
		f.publish(5, 30)
		f.must(f.log.syncNow())
		if cold {
			f.dropCache()
		}
		r, err := f.log.Attach(Spec{Kind: First}, 0)
		must(t, err)
		for commit := chunk.LSN(0); commit <= 8; commit++ {
			got := 0
			for {
				v, ok, err := r.Next(commit)
				must(t, err)
				if !ok {
					break
				}
				if v.Header.LSN > commit {
					t.Fatalf("chunk %d at commit %d", v.Header.LSN, commit)
				}
				got++
				v.Release()
			}
			want := 0
			if commit >= 2 && commit <= 6 { // 1 is the barrier
				want = 1
			}
			if got != want {
				t.Errorf("cold %v, commit %d: %d chunks, want %d", cold, commit, got, want)
			}
		}
	}
}

// Readers at the tail never touch the disk.
func TestReader_tailIsServedFromMemory(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "data")
	faulty := f.faulty()
	f.barrier()
	r, err := f.log.Attach(Spec{Kind: Next}, 0)
	must(t, err)
	rule := faulty.Add(vfs.Rule{Ops: vfs.OpRead, Fault: vfs.Fault{Err: errors.New("the disk was read")}})
	for range 20 {
		f.publish(3, 100)
		f.sync()
		if got := f.read(r); len(got) != 6 {
			t.Fatalf("read %d records", len(got))
		}
	}
	if n := faulty.Hits(rule); n != 0 {
		t.Errorf("%d reads of the disk", n)
	}
}

// A reader whose segment retention takes goes on at the new start, and says so;
// a View that it has given out stays good.
func TestReader_overtakenByRetention(t *testing.T) {
	bothFS(t, func(t *testing.T, f *fixture) {
		f.barrier()
		for range 3 {
			f.append(f.user(1, 100_000))
			f.append(f.user(1, 100_000))
			f.roll(true)
		}
		f.append(f.user(1, 10))
		f.sync()
		f.dropCache()
		f.drain() // checks all data, so that sections are given out
		r, err := f.log.Attach(Spec{Kind: First}, f.log.Commit())
		must(t, err)
		v, ok, err := r.Next(f.log.Commit())
		if !ok || err != nil {
			t.Fatal(ok, err)
		}
		must(t, f.log.SetLogStart(7))
		if got := f.check(&v); !slices.Equal(got, []chunk.Offset{0}) {
			t.Errorf("the view holds %v", got)
		}
		v.Release()
		if got := f.read(r); !slices.Equal(got, []chunk.Offset{4, 5, 6}) || r.Jumps() != 1 {
			t.Errorf("read %v, %d jumps", got, r.Jumps())
		}
	})
}

// Readers that stand anywhere go on right after a cut of uncommitted chunks and
// other chunks in their place.
func TestReader_acrossTruncation(t *testing.T) {
	for _, cold := range []bool{false, true} {
		f := memFixture(t)
		f.publish(3, 50)
		f.sync()
		var readers []*Reader
		for _, spec := range []Spec{{Kind: First}, {Kind: Last}, {Kind: Next}, {Kind: AtOffset, Offset: 2}} {
			r, err := f.log.Attach(spec, f.log.Commit())
			must(t, err)
			if _, ok, err := r.Next(0); ok || err != nil {
				t.Fatal(ok, err)
			}
			readers = append(readers, r)
		}
		f.publish(4, 70)
		f.must(f.log.syncNow())
		_, err := f.log.Truncate(4)
		must(t, err)
		f.elect()
		f.publish(6, 33)
		f.sync()
		if cold {
			f.dropCache()
		}
		for i, from := range []chunk.Offset{0, 4, 6, 2} {
			got := f.read(readers[i])
			if len(got) != int(18-from) || got[0] != from {
				t.Errorf("cold %v, reader %d: %v, want from %d", cold, i, ends(got), from)
			}
		}
	}
}

// The first read since the start checks the data's CRC; later big chunks are
// given out as sections of the file.
func TestReader_checksFirstThenSends(t *testing.T) {
	f := newFixture(t, vfs.OS{}, t.TempDir())
	f.barrier()
	for range 40 {
		f.append(f.user(1, 100_000))
	}
	f.append(f.user(1, 100))
	f.roll(true)
	f.append(f.user(1, 100))
	f.sync()
	f.restart()
	sections := func() (n int) {
		r, err := f.log.Attach(Spec{Kind: First}, f.log.Commit())
		must(t, err)
		for {
			v, ok, err := r.Next(f.log.Commit())
			must(t, err)
			if !ok {
				return n
			}
			if _, _, _, section := v.Section(); section {
				n++
			}
			f.check(&v)
			v.Release()
		}
	}
	if n := sections(); n != 0 {
		t.Errorf("%d sections at the first read", n)
	}
	if n := sections(); n < 28 || n > 32 { // three whole MiB of 3.8
		t.Errorf("%d sections at the second read, want those of three MiB", n)
	}
}

// A flipped bit in a sealed segment is never served: the read fails and names
// the range, what is before it is readable, what is behind it after Skip, and
// the log goes on (ST-09, I26).
func TestReader_damageInASealedSegment(t *testing.T) {
	build := func() *fixture { return rolledFixture(t) }
	size := build().size(segmentOf(5))
	sum := build().log.Segments()[1].Summary
	for at := int64(0); at < size; at += 3 {
		f := build()
		f.stopped(func() {
			f.edit(segmentOf(5), func(b []byte) []byte { b[at] ^= byte(1) << (at % 8); return b })
		})
		if f.log.Err() != nil {
			t.Fatalf("byte %d: %v", at, f.log.Err())
		}
		r, err := f.log.Attach(Spec{Kind: First}, f.log.Commit())
		must(t, err)
		var got []chunk.Offset
		damaged := false
		for {
			v, ok, err := r.Next(f.log.Commit())
			var d *DamageError
			if errors.As(err, &d) {
				if damaged || d.First < 5 || d.Last != 8 || d.Segment != sum.Name() {
					t.Fatalf("byte %d: %v", at, err)
				}
				damaged = true
				r.Skip()
				continue
			}
			must(t, err)
			if !ok {
				break
			}
			got = append(got, f.check(&v)...)
			v.Release()
		}
		if wantDamage := at < sum.Size; damaged != wantDamage {
			t.Fatalf("byte %d of %d: damage %v", at, sum.Size, damaged)
		}
		if damaged && (!slices.Contains(got, 5) || !slices.Contains(got, 12) || slices.Contains(got, 11)) {
			t.Fatalf("byte %d: read %v", at, got)
		}
		f.elect()
		f.publish(1, 10)
		f.sync()
	}
}

// A sealed segment that is gone or cut marks that segment only.
func TestReader_missingSegment(t *testing.T) {
	for name, change := range map[string]func(*fixture){
		"missing": func(f *fixture) { f.must(f.fs.Remove(f.log.file(segmentOf(5)))) },
		"cut":     func(f *fixture) { f.edit(segmentOf(5), func(b []byte) []byte { return b[:len(b)-1] }) },
		"empty":   func(f *fixture) { f.edit(segmentOf(5), func([]byte) []byte { return nil }) },
	} {
		t.Run(name, func(t *testing.T) {
			f := rolledFixture(t)
			f.stopped(func() { change(f) })
			if f.log.Err() != nil || len(f.found.Damage) != 1 || f.found.Aside != NotAside {
				t.Fatalf("found %+v, %v", f.found, f.log.Err())
			}
			r, err := f.log.Attach(Spec{Kind: AtOffset, Offset: 8}, f.log.Commit())
			must(t, err)
			if _, _, err := r.Next(f.log.Commit()); !errors.Is(err, ErrDamaged) {
				t.Fatalf("got %v", err)
			}
			r.Skip()
			if got := f.read(r); len(got) != 10 || got[0] != 12 {
				t.Errorf("behind it: %v", got)
			}
			must(t, f.log.SetLogStart(9))
			f.wantAll(12, 22)
		})
	}
}

// Hundreds of readers of many segments share a few descriptors.
func TestReader_descriptorsAreBounded(t *testing.T) {
	f := newFixture(t, vfs.OS{}, t.TempDir())
	f.must(f.store.Close())
	var err error
	f.store, err = NewStore(Options{FS: f.fs, Dir: f.dir, HandlesMax: 4, CacheBytes: 1})
	must(t, err)
	f.openLog()
	f.barrier()
	for range 30 {
		f.publish(2, 20)
		f.roll(true)
	}
	f.sync()
	var readers []*Reader
	for i := range 200 {
		r, err := f.log.Attach(Spec{Kind: AtOffset, Offset: chunk.Offset(i % 120)}, f.log.Commit())
		must(t, err)
		readers = append(readers, r)
	}
	open := true
	total := 0
	for open {
		open = false
		for _, r := range readers {
			v, ok, err := r.Next(f.log.Commit())
			must(t, err)
			if ok {
				total += len(f.check(&v))
				open = true
				v.Release()
			}
			if n := f.store.handles.count(); n > 5 {
				t.Fatalf("%d open files", n)
			}
		}
	}
	want := 0
	for i := range 200 {
		want += 120 - i%120/2*2
	}
	if total != want {
		t.Errorf("read %d records, want %d", total, want)
	}
}

// Appending, syncing, rolling, retention and many readers at once: every reader
// sees every record in order from where it stands, or a jump that it is told of.
func TestReader_concurrent(t *testing.T) {
	f := newFixture(t, vfs.OS{}, t.TempDir())
	f.must(f.store.Close())
	var err error
	f.store, err = NewStore(Options{FS: f.fs, Dir: f.dir, HandlesMax: 3, CacheBytes: 20_000})
	must(t, err)
	f.openLog()
	f.barrier()
	f.publish(1, 10)
	f.sync()
	const readers, chunks = 12, 600
	var commit commitSignal
	commit.set(f.log.Commit(), false)
	var all sync.WaitGroup
	for i := range readers {
		kind := []SpecKind{First, Last, Next}[i%3]
		r, err := f.log.Attach(Spec{Kind: kind}, f.log.Commit())
		must(t, err)
		all.Go(func() {
			defer r.Close()
			next := r.Offset()
			jumps := uint64(0)
			for at := commit.wait(0); ; {
				v, ok, err := r.Next(at.lsn)
				if err != nil {
					t.Errorf("reader %d: %v", i, err)
					return
				}
				if !ok {
					if at.final {
						if next != f.log.Next() {
							t.Errorf("reader %d ends at %d, log at %d", i, next, f.log.Next())
						}
						return
					}
					at = commit.wait(at.lsn)
					continue
				}
				if v.Header.BaseOffset != next && r.Jumps() == jumps || v.Header.BaseOffset < next {
					t.Errorf("reader %d: chunk at %d, want %d", i, v.Header.BaseOffset, next)
				}
				jumps = r.Jumps()
				if v.Data != nil {
					if err := v.Header.VerifyData(v.Data); err != nil {
						t.Error(err)
					}
				}
				next = v.Header.Next()
				v.Release()
			}
		})
	}
	for i := range chunks {
		f.append(f.user(2, 100+i%300))
		if i%7 == 0 {
			f.sync()
			commit.set(f.log.Commit(), false)
		}
		if i%40 == 0 {
			f.roll(true)
		}
		if i%150 == 149 {
			f.sync()
			if _, err := f.log.Retention(plan.Policy{BytesMax: 40_000}, f.now); err != nil {
				t.Error(err)
			}
		}
		_ = f.log.Stats()
	}
	f.sync()
	commit.set(f.log.Commit(), true)
	all.Wait()
}

// commitSignal lets readers wait for a commit above the one they know.
type commitSignal struct {
	mu    sync.Mutex
	now   committed
	waits chan struct{}
}

type committed struct {
	lsn   chunk.LSN
	final bool
}

func (c *commitSignal) set(lsn chunk.LSN, final bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = committed{lsn, final}
	if c.waits != nil {
		close(c.waits)
		c.waits = nil
	}
}

func (c *commitSignal) wait(above chunk.LSN) committed {
	for {
		c.mu.Lock()
		now := c.now
		if now.lsn > above || now.final {
			c.mu.Unlock()
			return now
		}
		if c.waits == nil {
			c.waits = make(chan struct{})
		}
		waits := c.waits
		c.mu.Unlock()
		<-waits
	}
}
