package segstore

import (
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/plan"
	"github.com/millrace/millrace/segstore/vfs"
)

// crashWalk runs a script on a log in memory and, before every single operation
// that changes the disk, looks at states that a power loss could leave: each is
// recovered, held against what had been promised by then, and recovered again.
type crashWalk struct {
	*fixture
	mem   *vfs.Mem
	ready bool
	// What the log may be: every state that its tail ever had.
	histories []history
	// What was promised: a chunk once it was durable, unless a later cut took it.
	durable chunk.LSN
	start   chunk.LSN
	promise chunk.Epoch
	states  int
	seed    uint64
	// judgeMore, if set, looks at a recovered log too.
	judgeMore func(l *Log, mem *vfs.Mem) error
}

// history is what a log with a certain tail must be like.
type history struct {
	tail     chunk.Tail
	next     chunk.Offset
	digest   chunk.Digest
	tracking string
}

func newCrashWalk(t *testing.T, config Config) *crashWalk {
	w := &crashWalk{mem: vfs.NewMem()}
	w.mem.Observe(func(op vfs.Op, name string) {
		if w.ready {
			w.crash(op, name)
		}
	})
	w.fixture = &fixture{t: t, fs: w.mem, dir: "data", config: config, epoch: 1, now: testTime, wrote: map[chunk.Offset][]byte{}}
	w.openInline()
	w.must(w.store.Create(testName, testIncarnation))
	w.openLog()
	w.start = 1
	w.note()
	w.ready = true
	return w
}

func (f *fixture) openInline() {
	f.t.Helper()
	s, err := NewStore(Options{FS: f.fs, Dir: f.dir, Syncer: vfs.NewInlineSyncer()})
	f.must(err)
	f.store = s
}

// note takes the log's present state into the possible ones.
func (w *crashWalk) note() {
	b, _ := w.log.tracking.AppendCheckpoint(nil)
	w.histories = append(w.histories, history{w.log.tail, w.log.next, w.log.digest, string(b)})
}

// cut truncates the log. Once it has returned, nothing above n may come back.
func (w *crashWalk) cut(n chunk.LSN) {
	w.t.Helper()
	_, err := w.log.Truncate(n)
	w.must(err)
	w.histories = slices.DeleteFunc(w.histories, func(h history) bool { return h.tail.LSN > n })
	w.note()
}

// chunk appends a chunk; a state is possible as soon as its bytes are written.
func (w *crashWalk) chunk(c *Chunk) {
	w.t.Helper()
	w.foresee(c)
	w.append(c)
	w.note()
}

// foresee adds the state after a chunk before it is written.
func (w *crashWalk) foresee(c *Chunk) {
	b, _ := w.log.tracking.AppendCheckpoint(nil)
	state, err := trackingFrom(w.log.config, b)
	w.must(err)
	h := &c.Header
	w.must(state.Apply(h, h.TrailerOf(c.Head)))
	after, _ := state.AppendCheckpoint(nil)
	w.histories = append(w.histories, history{h.Tail(), h.Next(), h.DigestAfter(), string(after)})
}

func (w *crashWalk) syncAll() {
	w.t.Helper()
	w.must(w.log.syncNow())
	w.durable = max(w.durable, w.log.Durable().LSN)
	w.log.SetCommit(w.durable)
}

func (w *crashWalk) rollTo(unit bool) {
	w.t.Helper()
	flags := chunk.FlagSegmentStart | chunk.FlagSnapshotFirst | chunk.FlagSnapshotLast
	if unit {
		flags |= chunk.FlagUnitStart
	}
	w.chunk(w.control(chunk.Snapshot, flags, w.snapshot()))
}

var crashPolicies = []vfs.Policy{
	{},
	{Writes: vfs.KeepAll, Names: vfs.KeepAll},
	{Ordered: true, Tears: vfs.TearAny, BordersMax: 3},
	{Writes: vfs.KeepPrefix, Names: vfs.KeepPrefix, Tears: vfs.TearAny, BordersMax: 3},
	{Writes: vfs.KeepAny, Names: vfs.KeepAny, Tears: vfs.TearAny, BordersMax: 3, Grown: true},
	{Writes: vfs.KeepAny, Names: vfs.KeepAll, Tears: vfs.TearZero, BordersMax: 3},
	{Writes: vfs.KeepNone, Names: vfs.KeepAll, Grown: true},
	{Writes: vfs.KeepAll, Names: vfs.KeepNone},
}

func (w *crashWalk) crash(op vfs.Op, name string) {
	w.ready = false
	defer func() { w.ready = true }()
	for i, p := range crashPolicies {
		w.seed++
		after := w.mem.Crash(p, vfs.Seeded(w.seed))
		w.states++
		if err := w.judge(after); err != nil {
			w.t.Fatalf("state %d: crash before %s of %s, policy %d: %v", w.states, op, name, i, err)
		}
	}
}

// judge recovers a state twice, the second time after a loss of everything that
// the first left unsynced.
func (w *crashWalk) judge(mem *vfs.Mem) error {
	first, err := w.recovered(mem)
	if err != nil {
		return fmt.Errorf("recovery: %w", err)
	}
	second, err := w.recovered(mem.Crash(vfs.Policy{}, vfs.Seeded(1)))
	if err != nil {
		return fmt.Errorf("recovery of the recovery: %w", err)
	}
	if !reflect.DeepEqual(first, second) {
		return fmt.Errorf("recovered to %+v, then to %+v", first.tail, second.tail)
	}
	return nil
}

func (w *crashWalk) recovered(mem *vfs.Mem) (h history, err error) {
	store, err := NewStore(Options{FS: mem, Dir: "data", Syncer: vfs.NewInlineSyncer()})
	if err != nil {
		return h, err
	}
	l, found, err := store.Open(testIncarnation, w.config)
	if err != nil {
		return h, err
	}
	b, _ := l.tracking.AppendCheckpoint(nil)
	h = history{l.tail, l.next, l.digest, string(b)}
	state, _ := store.Journal().State(testIncarnation)
	switch {
	case l.Err() != nil || len(found.Damage) > 0 || found.Aside != NotAside:
		return h, fmt.Errorf("found %+v, %w", found, errors.Join(l.Err(), found.errors()))
	case l.tail.LSN < w.durable:
		return h, fmt.Errorf("tail %s, chunk %d was durable", l.tail, w.durable)
	case l.durable != l.tail:
		return h, fmt.Errorf("tail %s, durable %s", l.tail, l.durable)
	case !slices.Contains(w.histories, h):
		return h, fmt.Errorf("a log that never was: tail %s, next %d, digest %s", h.tail, h.next, h.digest)
	case l.LogStart().LSN < w.start:
		return h, fmt.Errorf("log start %d, was at %d", l.LogStart().LSN, w.start)
	case state.Promise < w.promise:
		return h, fmt.Errorf("promise %d, was %d", state.Promise, w.promise)
	}
	for i, s := range l.Segments() {
		if err := s.Check(); err != nil {
			return h, fmt.Errorf("segment %d: %w", i, err)
		}
	}
	if quarantined, err := mem.List("data/" + quarantineDir); err != nil || len(quarantined) > 0 {
		return h, fmt.Errorf("quarantined %v: %w", quarantined, err)
	}
	if err := readAll(l); err != nil {
		return h, err
	}
	if w.judgeMore != nil {
		return h, w.judgeMore(l, mem)
	}
	return h, nil
}

func (r *Recovery) errors() error {
	var errs []error
	for _, d := range r.Damage {
		errs = append(errs, d)
	}
	return errors.Join(errs...)
}

// readAll reads the log from its start; every record must follow the one before.
func readAll(l *Log) error {
	r, err := l.Attach(Spec{Kind: First}, l.tail.LSN)
	if err != nil {
		return err
	}
	defer r.Close()
	next := l.First()
	for {
		v, ok, err := r.Next(l.tail.LSN)
		if err != nil {
			return err
		}
		if !ok {
			break
		}
		if v.Header.BaseOffset != next {
			return fmt.Errorf("chunk at offset %d, want %d", v.Header.BaseOffset, next)
		}
		next = v.Header.Next()
		v.Release()
	}
	if next != l.next {
		return fmt.Errorf("readable up to %d, log ends at %d", next, l.next)
	}
	return nil
}

// TestCrash_everyOperation walks a script that touches every operation of a log
// and its store.
func TestCrash_everyOperation(t *testing.T) {
	w := newCrashWalk(t, Config{CheckpointBytes: 700})
	publish := func(n int) {
		for range n {
			w.chunk(w.user(2, 60))
		}
	}
	w.chunk(w.control(chunk.Delta, chunk.FlagEpochStart|chunk.FlagSegmentStart|chunk.FlagUnitStart, nil))
	publish(2)
	w.syncAll()
	publish(1)
	w.rollTo(true)
	w.durable = w.log.Durable().LSN // sealing made the first segment durable
	publish(2)
	w.syncAll()
	w.must(awaited(func(done func(error)) { w.store.journal.Promise(testIncarnation, 2, done) }))
	w.promise = 2
	w.rollTo(false)
	publish(2)
	w.syncAll()

	// Retention.
	w.must(w.log.SetLogStart(w.log.Segments()[1].FirstLSN))
	w.start = w.log.LogStart().LSN

	// A cut inside of the active segment, one back into a sealed one.
	committed := w.log.Tail().LSN
	w.epoch = 2
	w.chunk(w.control(chunk.Delta, chunk.FlagEpochStart, nil))
	publish(3)
	w.must(w.log.syncNow())
	w.must(awaited(w.log.saveProgress)) // so that no later sync of the file is needed
	w.cut(committed + 1)
	w.epoch = 3
	w.chunk(w.control(chunk.Delta, chunk.FlagEpochStart, nil))
	w.rollTo(true)
	publish(2)
	w.rollTo(true)
	publish(1)
	w.must(w.log.syncNow())
	w.cut(committed + 2)
	publish(2)
	w.syncAll()

	// A clean restart, and MANIFEST and journal rewritten.
	w.must(w.store.Close())
	w.openInline()
	w.openLog()
	publish(1)
	w.must(w.log.records.rewrite(w.log.state.Records()))
	w.store.journal.mu.Lock()
	w.must(w.store.journal.rewrite())
	w.store.journal.mu.Unlock()
	w.syncAll()
	w.rollTo(true)
	w.syncAll()
	if _, err := w.log.Retention(plan.Policy{BytesMax: 1}, w.now); err != nil {
		t.Fatal(err)
	}
	w.start = w.log.LogStart().LSN
	publish(1)
	t.Logf("%d states", w.states)
	if w.states < 800 {
		t.Errorf("only %d states were looked at", w.states)
	}
}
