package segstore

import (
	"bytes"
	"errors"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

const (
	testIncarnation chunk.Incarnation = 0x0123456789abcdef
	testTime        chunk.Timestamp   = 1_700_000_000_000
	testName                          = "/orders"
)

// fixture is a store with one log, and a writer that plays its leader.
type fixture struct {
	t      testing.TB
	fs     vfs.FS
	dir    string
	config Config
	store  *Store
	log    *Log
	found  Recovery
	epoch  chunk.Epoch
	now    chunk.Timestamp
	// wrote is what user chunks carry, by offset.
	wrote map[chunk.Offset][]byte
}

// newFixture makes a store on fsys with an empty log of epoch 1. The barrier is
// not written yet.
func newFixture(t testing.TB, fsys vfs.FS, dir string) *fixture {
	t.Helper()
	f := &fixture{t: t, fs: fsys, dir: dir, epoch: 1, now: testTime, wrote: map[chunk.Offset][]byte{}}
	f.open()
	f.must(f.store.Create(testName, testIncarnation))
	f.openLog()
	return f
}

// memFixture is a fixture in memory with a barrier in the log.
func memFixture(t testing.TB) *fixture {
	t.Helper()
	f := newFixture(t, vfs.NewMem(), "data")
	f.barrier()
	return f
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) open() {
	f.t.Helper()
	s, err := NewStore(Options{FS: f.fs, Dir: f.dir})
	f.must(err)
	f.store = s
	f.t.Cleanup(func() { _ = s.Close() })
}

func (f *fixture) openLog() {
	f.t.Helper()
	var err error
	f.log, f.found, err = f.store.Open(testIncarnation, f.config)
	f.must(err)
}

// restart closes everything in order and opens it again.
func (f *fixture) restart() {
	f.t.Helper()
	f.must(f.store.Close())
	f.open()
	f.openLog()
}

// kill drops the process: nothing is closed or synced, what was written stays.
func (f *fixture) kill() {
	f.t.Helper()
	f.log.shut()
	f.must(f.store.lock.Close())
	f.open()
	f.openLog()
}

// powerOff goes on with what a power loss leaves when it takes all it may.
func (f *fixture) powerOff() {
	f.t.Helper()
	f.log.shut()
	f.fs = f.fs.(*vfs.Mem).Crash(vfs.Policy{}, func(int) int { return 0 })
	f.open()
	f.openLog()
}

func (f *fixture) meta(flags chunk.Flags) chunk.Meta {
	f.now += 10
	return chunk.Meta{
		Incarnation: testIncarnation, Flags: flags, LSN: f.log.before().LSN + 1, SyncedLSN: f.log.Durable().LSN,
		DigestBefore: f.log.Digest(), Timestamp: max(f.now, f.log.LastTimestamp()), Epoch: f.epoch, BaseOffset: f.log.Next(),
	}
}

func (f *fixture) append(c *Chunk) {
	f.t.Helper()
	f.must(f.log.Append(c))
	c.Release()
}

// control makes a control chunk with this payload.
func (f *fixture) control(t chunk.Type, flags chunk.Flags, payload []byte) *Chunk {
	c := NewChunk(0)
	m := f.meta(flags)
	m.Trailer = payload
	c.Head, c.Header = chunk.BuildControl(t, &m, c.Head)
	return c
}

// barrier begins the fixture's epoch.
func (f *fixture) barrier() {
	f.t.Helper()
	flags := chunk.FlagEpochStart
	if f.log.Tail().LSN == 0 {
		flags |= chunk.FlagSegmentStart | chunk.FlagUnitStart
	}
	f.append(f.control(chunk.Delta, flags, tracking.EncodeBarrier(nil, nil)))
}

// elect begins a new epoch.
func (f *fixture) elect() {
	f.t.Helper()
	f.epoch++
	f.barrier()
}

// user makes a chunk of so many records of so many bytes each, from a publisher
// whose sequence goes up with the offsets.
func (f *fixture) user(records, size int) *Chunk {
	return f.userWith(records, size, nil)
}

func (f *fixture) userWith(records, size int, updates []tracking.Update) *Chunk {
	f.t.Helper()
	m := f.meta(0)
	var entries []byte
	for i := range records {
		o := m.BaseOffset + chunk.Offset(i)
		message := bytes.Repeat(fmt.Appendf(nil, "%d.", o), size/2+1)[:size]
		f.wrote[o] = message
		entries = chunk.AppendSimple(entries, message)
	}
	m.Trailer = f.log.Tracking().EncodeTrailer(nil, false,
		[]tracking.SequenceUpdate{{Ref: "publisher", Sequence: uint64(m.BaseOffset) + uint64(records)}}, updates)
	c := NewChunk(len(entries))
	var b chunk.Builder
	b.Reset(c.Head, c.Data)
	b.AppendRun(entries, records, uint32(records))
	c.Head, c.Data, c.Header = b.Finish(&m)
	return c
}

// publish appends so many user chunks of two records.
func (f *fixture) publish(chunks, size int) {
	f.t.Helper()
	for range chunks {
		f.append(f.user(2, size))
	}
}

// roll begins a new segment, and a unit if told so.
func (f *fixture) roll(unit bool) {
	f.t.Helper()
	flags := chunk.FlagSegmentStart | chunk.FlagSnapshotFirst
	if unit {
		flags |= chunk.FlagUnitStart
	}
	parts := f.log.Tracking().EncodeSnapshot(tracking.SnapshotOptions{Now: f.now}, nil)
	for i, part := range parts {
		if i == len(parts)-1 {
			flags |= chunk.FlagSnapshotLast
		}
		f.append(f.control(chunk.Snapshot, flags, part))
		flags = 0
	}
}

// sync makes everything durable and committed.
func (f *fixture) sync() {
	f.t.Helper()
	f.must(f.log.syncNow())
	f.log.SetCommit(f.log.Durable().LSN)
}

// content reads the log by a Reader from a place up to its tail and checks each
// record against what was written.
func (f *fixture) content(spec Spec) (offsets []chunk.Offset) {
	f.t.Helper()
	r, err := f.log.Attach(spec, f.log.Tail().LSN)
	f.must(err)
	defer r.Close()
	return f.read(r)
}

func (f *fixture) read(r *Reader) (offsets []chunk.Offset) {
	f.t.Helper()
	for {
		v, ok, err := r.Next(f.log.Tail().LSN)
		f.must(err)
		if !ok {
			return offsets
		}
		offsets = append(offsets, f.check(&v)...)
		v.Release()
	}
}

// check compares a View with what was written.
func (f *fixture) check(v *View) (offsets []chunk.Offset) {
	f.t.Helper()
	data := v.Data
	if file, position, length, ok := v.Section(); ok {
		section := make([]byte, length)
		if n, err := file.ReadAt(section, position); n != len(section) {
			f.t.Fatalf("section of chunk %d: %v", v.Header.LSN, err)
		}
		if !bytes.Equal(section[:chunk.ClientHeaderLength], chunk.ClientHeaderOf(v.Head)) {
			f.t.Fatalf("section of chunk %d starts with another header", v.Header.LSN)
		}
		data = section[chunk.ClientHeaderLength:]
	}
	f.must(v.Header.VerifyData(data))
	it := v.Header.EntriesIn(data)
	for it.Next() {
		e := it.Entry()
		if !bytes.Equal(e.Body, f.wrote[e.Offset]) {
			f.t.Fatalf("offset %d: %.20q, want %.20q", e.Offset, e.Body, f.wrote[e.Offset])
		}
		offsets = append(offsets, e.Offset)
	}
	f.must(it.Err())
	return offsets
}

// wantAll checks that the log holds the records from..next−1 and nothing else.
func (f *fixture) wantAll(from, next chunk.Offset) {
	f.t.Helper()
	got := f.content(Spec{Kind: First})
	if len(got) != int(next-from) || len(got) > 0 && (got[0] != from || got[len(got)-1] != next-1) {
		f.t.Fatalf("read %d records %v, want %d to %d", len(got), ends(got), from, next-1)
	}
	if f.log.Next() != next {
		f.t.Fatalf("next offset %d, want %d", f.log.Next(), next)
	}
}

func ends(o []chunk.Offset) []chunk.Offset {
	if len(o) < 2 {
		return o
	}
	return []chunk.Offset{o[0], o[len(o)-1]}
}

// files lists the log's directory.
func (f *fixture) files() (names []string) {
	f.t.Helper()
	entries, err := f.fs.List(f.log.dir)
	f.must(err)
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return names
}

// edit changes a file of the log behind everybody's back.
func (f *fixture) edit(name string, change func([]byte) []byte) {
	f.t.Helper()
	f.must(f.fs.(*vfs.Mem).Edit(f.log.file(name), change))
}

func segmentOf(first chunk.LSN) string { return segmentFile(nameOf(first)) }

// wantDamage checks that the log was set aside for chunks from an LSN on.
func (f *fixture) wantDamage(first chunk.LSN) {
	f.t.Helper()
	var d *DamageError
	if err := f.log.Err(); !errors.As(err, &d) || d.First != first {
		f.t.Fatalf("log says %v, want damage from chunk %d on", err, first)
	}
	if f.found.Aside != AsideDamaged {
		f.t.Fatalf("replica is %s", f.found.Aside)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func memFS() *vfs.Mem { return vfs.NewMem() }

func timeOf(t chunk.Timestamp) time.Time { return time.UnixMilli(int64(t)) }

// faulty puts a Faulty below the store, which it opens anew.
func (f *fixture) faulty() *vfs.Faulty {
	f.t.Helper()
	f.must(f.store.Close())
	faulty := vfs.NewFaulty(f.fs)
	f.fs = faulty
	f.open()
	f.openLog()
	return faulty
}

func failRemove() vfs.Rule { return vfs.Rule{Ops: vfs.OpRemove, Fault: vfs.Fault{Err: syscall.EPERM}} }

func trackingFrom(c Config, b []byte) (*tracking.State, error) {
	return tracking.DecodeCheckpoint(c.Caps, b)
}

// snapshot returns the payload of a snapshot that fits one part.
func (f *fixture) snapshot() []byte {
	f.t.Helper()
	parts := f.log.Tracking().EncodeSnapshot(tracking.SnapshotOptions{Now: f.now}, nil)
	if len(parts) != 1 {
		f.t.Fatalf("%d parts", len(parts))
	}
	return parts[0]
}

func manifestFrame(inc chunk.Incarnation, body []byte) []byte {
	return manifest.AppendFrame(nil, inc, body)
}

func nameOf(first chunk.LSN) manifest.Name { return manifest.Name{FirstLSN: first} }

// awaited waits for the answer of an operation, of a store with workers.
func awaited(start func(done func(error))) error { return await(vfs.NewSyncer(1), start) }
