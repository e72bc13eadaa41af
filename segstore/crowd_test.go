package segstore

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

var (
	crowdReaders = flag.Int("crowd.readers", 200, "readers of one log")
	crowdRounds  = flag.Int("crowd.rounds", 12, "rounds of everything that happens to a log under its readers")
)

// messageBytes is the size of each record; its content is its own offset.
const messageBytes = 300

// crowd is a log on a real disk with hundreds of readers and one writer, which
// appends, rolls, cuts, compacts and drops what is old.
type crowd struct {
	*tracker
	// wake holds a channel that is closed when the commit has moved.
	wake atomic.Pointer[chan struct{}]
	over atomic.Bool
	// epochs tells of each committed user chunk, by base offset, its epoch.
	epochs sync.Map
	// pending are the uncommitted ones.
	pending map[chunk.Offset]chunk.Epoch
	next    atomic.Uint64 // offset behind the commit
	chunks  atomic.Int64
	attachs atomic.Int64
	jumps   atomic.Int64
	// old is closed once retention has taken the log's first chunks; shortened
	// is the writer's own note of that.
	old       chan struct{}
	shortened bool
}

func newCrowd(t *testing.T) *crowd {
	c := &crowd{pending: map[chunk.Offset]chunk.Epoch{}, old: make(chan struct{})}
	f := &fixture{t: t, fs: vfs.OS{}, dir: t.TempDir(), epoch: 1, now: testTime, wrote: map[chunk.Offset][]byte{}}
	s, err := NewStore(Options{FS: f.fs, Dir: f.dir, HandlesMax: crowdHandles, CacheBytes: 1 << 20})
	f.must(err)
	f.store = s
	t.Cleanup(func() { _ = s.Close() })
	f.config.SegmentBytes = 1 << 20
	f.must(s.Create(testName, testIncarnation))
	f.openLog()
	c.tracker = &tracker{fixture: f}
	first := make(chan struct{})
	c.wake.Store(&first)
	c.barrier()
	return c
}

// crowdHandles is how many segment files the store may keep open.
const crowdHandles = 8

func (c *crowd) write(records int) {
	m := c.userWith(records, messageBytes, c.updates(3))
	c.pending[m.Header.BaseOffset] = m.Header.Epoch
	c.append(m)
	clear(c.wrote) // readers know what records hold
}

// commitAll makes everything durable and committed and tells the readers.
func (c *crowd) commitAll() {
	c.must(c.log.syncNow())
	for base, epoch := range c.pending {
		c.epochs.Store(base, epoch)
	}
	clear(c.pending)
	c.log.SetCommit(c.log.Durable().LSN)
	c.next.Store(uint64(c.log.Next()))
	c.tell()
}

func (c *crowd) tell() {
	next := make(chan struct{})
	close(*c.wake.Swap(&next))
}

// round does to the log what happens to one in a day.
func (c *crowd) round(i int) {
	for n := range 12 {
		c.write(2)
		if n%4 == 0 {
			c.commitAll()
		}
	}
	if i%2 == 0 {
		c.write(300) // large enough to be sent from the file
	}
	c.deltas(60)
	c.commitAll()
	switch i % 4 {
	case 1: // a leader that wrote what nobody confirmed
		c.write(2)
		c.roll(false)
		c.write(3)
		c.must(c.log.syncNow())
		clear(c.pending)
		_, err := c.log.Truncate(c.log.Commit())
		c.must(err)
		c.elect()
	case 2:
		for range 2 {
			if job, _ := c.log.Compact(); job != nil {
				c.finish(job)
				c.must(c.log.Install(job))
			}
		}
	case 3:
		moved, err := c.log.Retention(Policy{BytesMax: 300_000}, c.now)
		c.must(err)
		if moved && !c.shortened {
			c.shortened = true
			close(c.old)
		}
	}
	c.roll(i%3 == 0)
	c.commitAll()
}

func (c *crowd) spec(random *rand.Rand) Spec {
	switch random.IntN(5) {
	case 0:
		return Spec{Kind: First}
	case 1:
		return Spec{Kind: Last}
	case 2:
		return Spec{Kind: Next}
	case 3:
		return Spec{Kind: AtOffset, Offset: chunk.Offset(random.Uint64N(c.next.Load() + 10))}
	default:
		return Spec{Kind: AtTimestamp, Timestamp: testTime + chunk.Timestamp(random.Uint64N(c.next.Load()/2+10)*10)}
	}
}

// reader attaches anywhere and reads, over and over, until the writer is done
// and it stands at the end.
func (c *crowd) reader(seed uint64) error {
	random := rand.New(rand.NewPCG(seed, 1))
	for {
		over := c.over.Load()
		if atEnd, err := c.visit(random, c.spec(random), 5+random.IntN(100)); err != nil {
			return fmt.Errorf("reader %d: %w", seed, err)
		} else if over && atEnd {
			return nil
		}
	}
}

// visit attaches and reads so many chunks, waiting for them at the tail.
func (c *crowd) visit(random *rand.Rand, spec Spec, chunks int) (atEnd bool, err error) {
	committed := chunk.Offset(c.next.Load())
	r, err := c.log.Attach(spec, c.log.Commit())
	if err != nil {
		return false, err
	}
	defer r.Close()
	c.attachs.Add(1)
	next, jumps, first := r.Offset(), r.Jumps(), true
	for chunks > 0 {
		wake, over := *c.wake.Load(), c.over.Load()
		v, ok, err := r.Next(c.log.Commit())
		switch {
		case err != nil:
			return false, fmt.Errorf("%s, behind offset %d: %w", spec, next, err)
		case !ok && over:
			return true, nil
		case !ok:
			<-wake
			continue
		}
		if r.Jumps() != jumps {
			if v.Header.BaseOffset < next {
				return false, fmt.Errorf("%s: jumped from %d back to %d", spec, next, v.Header.BaseOffset)
			}
			c.jumps.Add(1)
			jumps, next = r.Jumps(), v.Header.BaseOffset
		}
		if first {
			if err := c.begins(&v.Header, spec, committed); err != nil {
				return false, err
			}
			next = v.Header.BaseOffset
		}
		if err := c.look(&v, spec, next); err != nil {
			return false, err
		}
		next, first = v.Header.Next(), false
		v.Release()
		c.chunks.Add(1)
		if chunks--; chunks%7 == 0 {
			r.Rest()
		}
		if random.IntN(50) == 0 {
			runtime.Gosched()
		}
	}
	return false, nil
}

// sleeper reads the log's first chunk, and goes on when retention has been there.
func (c *crowd) sleeper() error {
	r, err := c.log.Attach(Spec{Kind: First}, c.log.Commit())
	if err != nil {
		return err
	}
	defer r.Close()
	for range 2 {
		v, ok, err := r.Next(c.log.Commit())
		if err != nil || !ok {
			return fmt.Errorf("sleeper: %v %w", ok, err)
		}
		v.Release()
		<-c.old
	}
	if r.Jumps() != 1 {
		return fmt.Errorf("sleeper: %d jumps", r.Jumps())
	}
	c.jumps.Add(1)
	return nil
}

// begins holds a reader's first chunk against where it wanted to begin, and what
// was committed by then.
func (c *crowd) begins(h *chunk.Header, spec Spec, committed chunk.Offset) error {
	wrong := false
	switch {
	case spec.Kind == Next || spec.Kind == AtOffset && spec.Offset >= committed:
		wrong = h.BaseOffset < committed
	case spec.Kind == AtOffset:
		wrong = !h.Contains(spec.Offset) && (h.BaseOffset < spec.Offset || c.log.First() <= spec.Offset)
	case spec.Kind == AtTimestamp:
		wrong = h.Timestamp < spec.Timestamp && h.BaseOffset < committed // else like Next
	}
	if wrong {
		return fmt.Errorf("%s: began at offset %d, time %d, when %d was committed", spec, h.BaseOffset, h.Timestamp, committed)
	}
	return nil
}

// look holds a chunk against what was committed.
func (c *crowd) look(v *View, spec Spec, next chunk.Offset) error {
	h := &v.Header
	if h.BaseOffset != next {
		return fmt.Errorf("%s: chunk at offset %d, want %d", spec, h.BaseOffset, next)
	}
	if epoch, ok := c.epochs.Load(h.BaseOffset); !ok || epoch != h.Epoch {
		return fmt.Errorf("%s: chunk at offset %d of epoch %d, committed is %v", spec, h.BaseOffset, h.Epoch, epoch)
	}
	_, err := readRecords(v, messageBytes)
	return err
}

// run has readers read while the writer takes so many rounds. meanwhile is
// called between rounds.
func (c *crowd) run(rounds int, readers []func() error, meanwhile func()) {
	c.t.Helper()
	c.round(0)
	errs := make(chan error, len(readers))
	for _, read := range readers {
		go func() { errs <- read() }()
	}
	for i := range rounds {
		c.round(i + 1)
		meanwhile()
	}
	if !c.shortened {
		c.t.Error("retention has taken nothing")
		close(c.old)
	}
	c.over.Store(true)
	c.tell()
	for range readers {
		if err := <-errs; err != nil {
			c.t.Error(err)
			c.over.Store(true)
		}
	}
}

func descriptors(t *testing.T) int {
	entries, err := os.ReadDir("/proc/self/fd")
	if errors.Is(err, os.ErrNotExist) {
		t.Skip("this system does not list a process's descriptors")
	}
	must(t, err)
	return len(entries)
}

// Hundreds read one log anywhere while it is written, rolled, cut, compacted and
// shortened: each gets every committed record from its place on, in order and
// with its own bytes, or is moved to the log's start; the process never has many
// more files open than the store may keep.
func TestReaders_hundreds(t *testing.T) {
	before := descriptors(t)
	c := newCrowd(t)
	var readers []func() error
	for i := range *crowdReaders {
		readers = append(readers, func() error { return c.reader(uint64(i)) })
	}
	readers = append(readers, c.sleeper)
	most := 0
	c.run(*crowdRounds, readers, func() { most = max(most, descriptors(t)-before) })
	idle := descriptors(t) - before
	st := c.log.Stats()
	t.Logf("%d readers, %d attached, %d chunks, %d jumps, %d segments now, at most %d descriptors, %d at the end",
		len(readers), c.attachs.Load(), c.chunks.Load(), c.jumps.Load(), st.Segments, most, idle)
	fmt.Printf("FIGURE readers: %d of one log, %d chunks read, %d jumps, at most %d descriptors with a table of %d\n",
		len(readers), c.chunks.Load(), c.jumps.Load(), most, crowdHandles)
	// Beside the table: lock, journal, epoll, what is being opened or read at
	// this moment.
	if busy := crowdHandles + 16; most > busy || idle > crowdHandles+6 {
		t.Errorf("%d descriptors, %d at the end", most, idle)
	}
	if c.jumps.Load() == 0 || c.log.Compaction().Merges+c.log.Compaction().Drops == 0 {
		t.Errorf("%d jumps, %+v", c.jumps.Load(), c.log.Compaction())
	}
}

// ST-11: whoever describes a log in a loop while it is written never meets half
// of anything.
func TestReaders_describeUnderLoad(t *testing.T) {
	c := newCrowd(t)
	describe := func() error {
		for !c.over.Load() {
			st := c.log.Stats()
			var records uint64
			for _, s := range c.log.Segments() {
				records += s.Records
				if err := s.Check(); err != nil {
					return err
				}
			}
			if st.Next < st.First || st.Commit > st.Tail.LSN {
				return fmt.Errorf("stats say %+v", st)
			}
			committed := chunk.Offset(c.next.Load())
			if o, err := c.log.OffsetAfter(c.log.Commit()); err != nil || o < committed {
				return fmt.Errorf("offset after the commit is %d, was %d: %w", o, committed, err)
			}
			for _, spec := range []Spec{{Kind: First}, {Kind: Last}, {Kind: Next}, {Kind: AtOffset, Offset: st.Next / 2}, {Kind: AtTimestamp, Timestamp: testTime + 500}} {
				r, err := c.log.Attach(spec, c.log.Commit())
				if err != nil {
					return err
				}
				r.Close()
			}
			c.attachs.Add(1)
		}
		return nil
	}
	c.run(*crowdRounds, []func() error{describe, describe, describe, describe, describe, describe, describe, describe}, func() {})
	t.Logf("described %d times", c.attachs.Load())
	if c.attachs.Load() < 100 {
		t.Error("hardly ever described")
	}
}

// ST-12: the commit may run ahead of the bytes. Readers at the tail wait until a
// chunk of a megabyte is wholly there.
func TestReaders_commitAheadOfTheBytes(t *testing.T) {
	c := newCrowd(t)
	const records = 3300 // a megabyte
	const readers = 20
	follow := func() error {
		r, err := c.log.Attach(Spec{Kind: Next}, c.log.Commit())
		if err != nil {
			return err
		}
		defer r.Close()
		for next := r.Offset(); ; {
			wake, over := *c.wake.Load(), c.over.Load()
			v, ok, err := r.Next(^chunk.LSN(0))
			switch {
			case err != nil:
				return fmt.Errorf("behind offset %d: %w", next, err)
			case !ok && over:
				return nil
			case !ok:
				select {
				case <-wake:
				default:
					runtime.Gosched() // look again: the bytes may come at any moment
				}
				continue
			}
			if v.Header.BaseOffset != next {
				return fmt.Errorf("chunk at offset %d, want %d", v.Header.BaseOffset, next)
			}
			if next, err = readRecords(&v, messageBytes); err != nil {
				return err
			}
			v.Release()
			c.chunks.Add(1)
		}
	}
	errs := make(chan error, readers)
	for range readers {
		go func() { errs <- follow() }()
	}
	for i := range *crowdRounds / 4 {
		c.append(c.user(records, messageBytes))
		clear(c.wrote)
		c.uncached() // so that readers go to the file
		if i%4 == 3 {
			c.roll(true)
		}
		c.tell()
	}
	c.over.Store(true)
	c.tell()
	for range readers {
		must(t, <-errs)
	}
	if c.chunks.Load() == 0 {
		t.Error("nobody has read anything")
	}
	t.Logf("%d chunks of a megabyte read", c.chunks.Load())
}

// ST-13: who attaches at next under load starts at a number that was fixed at
// that moment, and never meets an unexpected chunk.
func TestReaders_attachAtNext(t *testing.T) {
	c := newCrowd(t)
	take := func(seed uint64) func() error {
		return func() error {
			random := rand.New(rand.NewPCG(seed, 2))
			for !c.over.Load() {
				if _, err := c.visit(random, Spec{Kind: Next}, 1); err != nil {
					return err
				}
			}
			return nil
		}
	}
	var readers []func() error
	for i := range 50 {
		readers = append(readers, take(uint64(i)))
	}
	c.run(*crowdRounds, readers, func() {})
	t.Logf("attached %d times, %d chunks", c.attachs.Load(), c.chunks.Load())
	if c.chunks.Load() < 50 {
		t.Error("hardly anything was read")
	}
}

// openFS counts the opened segment files.
type openFS struct {
	vfs.FS
	segments, indexes atomic.Int64
}

func (o *openFS) OpenFile(name string, flag int, perm os.FileMode) (vfs.File, error) {
	switch {
	case strings.HasSuffix(name, segmentSuffix):
		o.segments.Add(1)
	case strings.HasSuffix(name, indexSuffix):
		o.indexes.Add(1)
	}
	return o.FS.OpenFile(name, flag, perm)
}

// In a log of 10,000 segments an attach by offset or time opens the one segment
// that holds the place, and its index.
func TestAttach_opensOneOfTenThousand(t *testing.T) {
	const segments = 10_000
	counting := &openFS{FS: vfs.NewMem()}
	s, err := NewStore(Options{FS: counting, Dir: "data", Syncer: vfs.NewInlineSyncer(), HandlesMax: 4})
	must(t, err)
	f := &fixture{t: t, fs: counting, dir: "data", epoch: 1, now: testTime, wrote: map[chunk.Offset][]byte{}, store: s}
	must(t, s.Create(testName, testIncarnation))
	f.openLog()
	f.barrier()
	for i := range segments {
		f.publish(2, 20)
		if i < segments-1 {
			f.roll(true)
		}
	}
	f.sync()
	must(t, s.Close())
	counting.segments.Store(0)
	f.openInline()
	f.openLog()
	if n := counting.segments.Load(); n > 2 {
		t.Errorf("the start opened %d segments", n)
	}
	f.log.SetCommit(f.log.Tail().LSN)
	times := map[chunk.Offset]chunk.Timestamp{}
	random := rand.New(rand.NewPCG(1, 2))
	for range 300 {
		o := chunk.Offset(random.Uint64N(uint64(f.log.Next())))
		counting.segments.Store(0)
		counting.indexes.Store(0)
		r, err := f.log.Attach(Spec{Kind: AtOffset, Offset: o}, f.log.Commit())
		must(t, err)
		v, ok, err := r.Next(f.log.Commit())
		if err != nil || !ok || !v.Header.Contains(o) {
			t.Fatalf("offset %d: %v %v %+v", o, ok, err, v.Header)
		}
		times[v.Header.BaseOffset] = v.Header.Timestamp
		v.Release()
		r.Close()
		if n, x := counting.segments.Load(), counting.indexes.Load(); n > 1 || x > 1 {
			t.Fatalf("offset %d: opened %d segments, %d indexes", o, n, x)
		}
	}
	for base, at := range times {
		counting.segments.Store(0)
		counting.indexes.Store(0)
		r, err := f.log.Attach(Spec{Kind: AtTimestamp, Timestamp: at}, f.log.Commit())
		must(t, err)
		v, ok, err := r.Next(f.log.Commit())
		if err != nil || !ok || v.Header.BaseOffset != base {
			t.Fatalf("time %d: %v %v %+v", at, ok, err, v.Header)
		}
		v.Release()
		r.Close()
		if n, x := counting.segments.Load(), counting.indexes.Load(); n > 1 || x > 1 {
			t.Fatalf("time %d: opened %d segments, %d indexes", at, n, x)
		}
	}
	if n := s.handles.count(); n > 4 {
		t.Errorf("%d handles", n)
	}
}
