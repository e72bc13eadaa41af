package segstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"
	"syscall"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

const (
	crashIncarnation chunk.Incarnation = 0x0123456789abcdef
	otherIncarnation chunk.Incarnation = 0xfedcba9876543210
	crashStream                        = "/orders"
	crashTime        chunk.Timestamp   = 1_700_000_000_000
	crashDir                           = "data"
)

var crashConfig = segstore.Config{CheckpointBytes: 1024}

// streamPath is where the log's files lie.
var streamPath = path.Join(crashDir, "streams", segstore.Hash(crashStream)+"-"+crashIncarnation.String())

// errDead is what a killed process gets from the disk: nothing.
var errDead = errors.New("process is dead")

// mortal is the disk as one process sees it. It counts the operations that
// change something, shows the moment before each, and ends them all when the
// process is killed. Locks die with the process, so there are none.
type mortal struct {
	vfs.FS
	before func(n int, what string) // called before the n-th change, from 1
	n      int
	killAt int // before this change; 0 = never
	dead   bool
	pinned bool   // segment files can't be removed
	deadly string // the process is killed behind the rename of this file
}

func (m *mortal) change(op vfs.Op, name string) error {
	if !m.dead {
		m.n++
		if m.before != nil {
			m.before(m.n, op.String()+" "+path.Base(name))
		}
		m.dead = m.n == m.killAt
	}
	if m.dead {
		return errDead
	}
	return nil
}

func (m *mortal) OpenFile(name string, flag int, perm fs.FileMode) (vfs.File, error) {
	if m.dead {
		return nil, errDead
	}
	if flag&(os.O_CREATE|os.O_TRUNC) != 0 {
		if err := m.change(vfs.OpCreate, name); err != nil {
			return nil, err
		}
	}
	f, err := m.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &mortalFile{File: f, process: m}, nil
}

func (m *mortal) Remove(name string) error {
	if m.pinned && strings.HasSuffix(name, ".seg") {
		return syscall.EBUSY
	}
	if err := m.change(vfs.OpRemove, name); err != nil {
		return err
	}
	return m.FS.Remove(name)
}

func (m *mortal) Rename(oldName, newName string) error {
	if err := m.change(vfs.OpRename, oldName); err != nil {
		return err
	}
	err := m.FS.Rename(oldName, newName)
	m.dead = m.dead || path.Base(oldName) == m.deadly
	return err
}

func (m *mortal) MkdirAll(dir string, perm fs.FileMode) error {
	if _, err := m.Stat(dir); err == nil {
		return nil
	}
	if err := m.change(vfs.OpMkdir, dir); err != nil {
		return err
	}
	return m.FS.MkdirAll(dir, perm)
}

func (m *mortal) SyncDir(dir string) error {
	if err := m.change(vfs.OpSyncDir, dir); err != nil {
		return err
	}
	return m.FS.SyncDir(dir)
}

func (m *mortal) Lock(string) (io.Closer, error) { return io.NopCloser(nil), nil }

type mortalFile struct {
	vfs.File
	process *mortal
}

func (f *mortalFile) WriteAt(p []byte, off int64) (int, error) {
	return f.WriteVAt([][]byte{p}, off)
}

func (f *mortalFile) WriteVAt(bufs [][]byte, off int64) (int, error) {
	if err := f.process.change(vfs.OpWrite, f.Name()); err != nil {
		return 0, err
	}
	return f.File.WriteVAt(bufs, off)
}

func (f *mortalFile) Truncate(size int64) error {
	if err := f.process.change(vfs.OpTruncate, f.Name()); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *mortalFile) Sync() error { return f.Datasync() }

func (f *mortalFile) Datasync() error {
	if err := f.process.change(vfs.OpSync, f.Name()); err != nil {
		return err
	}
	return f.File.Datasync()
}

// world is a node with one stream, its leader, and the ghost that watches.
type world struct {
	disk    vfs.FS      // under every process of this world
	faulty  *vfs.Faulty // between, if there are faults
	process *mortal
	syncer  *vfs.Syncer
	store   *segstore.Store
	log     *segstore.Log
	found   segstore.Recovery
	job     *segstore.Compaction // finished, not installed

	ghost   *ghost
	epoch   chunk.Epoch
	version uint64
	clock   chunk.Timestamp
	user    int // counts user chunks, for their contents
}

// create makes a node with the stream, empty, and another one beside it.
func create(disk vfs.FS, faulty bool) (*world, error) {
	w := newWorld(disk)
	if faulty {
		w.faulty = vfs.NewFaulty(disk)
	}
	if err := w.start(nil); err != nil {
		return nil, err
	}
	for name, inc := range map[string]chunk.Incarnation{crashStream: crashIncarnation, "/other": otherIncarnation} {
		if err := w.store.Create(name, inc); err != nil {
			return nil, err
		}
	}
	if err := w.promiseOther(); err != nil {
		return nil, err
	}
	return w, w.open()
}

// newWorld is one whose log has no chunk yet.
func newWorld(disk vfs.FS) *world {
	return &world{disk: disk, clock: crashTime, epoch: 1, ghost: &ghost{
		histories: []history{{from: manifest.Start{LSN: 1}}},
		startMin:  1, startMax: 1,
	}}
}

// start begins a process on the disk.
func (w *world) start(before func(n int, what string)) error {
	w.process = &mortal{FS: w.disk, before: before}
	if w.faulty != nil {
		w.process.FS = w.faulty
	}
	w.syncer, w.store, w.log, w.job = vfs.NewInlineSyncer(), nil, nil, nil
	var err error
	w.store, err = segstore.NewStore(segstore.Options{FS: w.process, Dir: crashDir, Syncer: w.syncer, HandlesMax: 2})
	return err
}

func (w *world) open() (err error) {
	w.log, w.found, err = w.store.Open(crashIncarnation, crashConfig)
	return err
}

// otherPromise is what the other stream's journal record must say for ever.
const otherPromise = 7

func (w *world) promiseOther() error {
	return wait(func(done func(error)) { w.store.Journal().Promise(otherIncarnation, otherPromise, done) })
}

// wait calls what answers later; an inline Syncer has answered when it returns.
func wait(call func(done func(error))) error {
	err := errors.New("no answer")
	call(func(e error) { err = e })
	return err
}

func (w *world) meta(flags chunk.Flags) *chunk.Meta {
	h := w.ghost.now()
	w.clock += 10
	return &chunk.Meta{
		Incarnation: crashIncarnation, Flags: flags, LSN: h.tail().LSN + 1, SyncedLSN: w.log.Durable().LSN,
		DigestBefore: h.digest(), Timestamp: max(w.clock, h.timestamp()), Epoch: w.epoch, BaseOffset: h.next(),
	}
}

// add enters a chunk in the ghost's present history, before the log is asked to
// take it.
func (w *world) add(c *segstore.Chunk) {
	h := w.ghost.now()
	h.links = append(h.links[:len(h.links):len(h.links)], link{Header: c.Header, head: bytes.Clone(c.Head), data: bytes.Clone(c.Data)})
	if fold, ok := h.fold().AppendCheckpoint(nil); ok {
		h.links[len(h.links)-1].fold = fold
	}
}

// append hands chunks that add has noted to the log.
func (w *world) append(chunks ...*segstore.Chunk) error {
	defer func() {
		for _, c := range chunks {
			c.Release()
		}
	}()
	return w.log.Append(chunks...)
}

func (w *world) control(t chunk.Type, flags chunk.Flags, payload []byte) *segstore.Chunk {
	m := w.meta(flags)
	m.Trailer = payload
	c := segstore.NewChunk(0)
	c.Head, c.Header = chunk.BuildControl(t, m, c.Head)
	w.add(c)
	return c
}

func (w *world) barrier() *segstore.Chunk {
	flags := chunk.FlagEpochStart
	if w.ghost.now().tail().LSN == 0 {
		flags |= chunk.FlagSegmentStart | chunk.FlagUnitStart
	}
	w.version = 0
	return w.control(chunk.Delta, flags, tracking.EncodeBarrier(nil, nil))
}

func (w *world) update() tracking.Update {
	w.version++
	return tracking.Update{
		Ref: fmt.Sprintf("consumer-%d", w.user%3), Offset: w.ghost.now().next(),
		Time: w.clock, Epoch: w.epoch, Version: w.version,
	}
}

// message makes a user chunk of two records that together with its head spans
// two or three sectors.
func (w *world) message() *segstore.Chunk {
	w.user++
	m := w.meta(0)
	var entries []byte
	for i := range 2 {
		body := bytes.Repeat(fmt.Appendf(nil, "%d.%d.%d/", w.epoch, w.user, i), 400)[:150+w.user*97%400]
		entries = chunk.AppendSimple(entries, body)
	}
	var updates []tracking.Update
	if w.user%3 == 0 {
		updates = append(updates, w.update())
	}
	sequence := tracking.SequenceUpdate{Ref: fmt.Sprintf("publisher-with-long-name-%d", w.user%2), Sequence: uint64(w.user)}
	m.Trailer = w.ghost.now().fold().EncodeTrailer(nil, false, []tracking.SequenceUpdate{sequence}, updates)
	c := segstore.NewChunk(len(entries))
	var b chunk.Builder
	b.Reset(c.Head, c.Data)
	b.AppendRun(entries, 2, 2)
	c.Head, c.Data, c.Header = b.Finish(m)
	w.add(c)
	return c
}

// snapshot makes the head of a new segment, in parts of at most so many bytes.
func (w *world) snapshot(unit bool, partBytes int) []*segstore.Chunk {
	flags := chunk.FlagSegmentStart | chunk.FlagSnapshotFirst
	if unit {
		flags |= chunk.FlagUnitStart
	}
	parts := w.ghost.now().fold().EncodeSnapshot(tracking.SnapshotOptions{
		Now: w.clock + 10, Epoch: w.epoch, First: w.log.First(), Grace: tracking.GraceDefault, PartBytesMax: partBytes,
	}, nil)
	var chunks []*segstore.Chunk
	for i, part := range parts {
		if i == len(parts)-1 {
			flags |= chunk.FlagSnapshotLast
		}
		chunks = append(chunks, w.control(chunk.Snapshot, flags, part))
		flags = 0
		w.clock -= 10 // all parts have one timestamp
	}
	w.clock += 10
	return chunks
}

// reported takes what the log says is durable for true.
func (w *world) reported(durable chunk.Tail) {
	h := w.ghost.now()
	h.must = max(h.must, durable.LSN)
}

func (w *world) sync() error {
	return wait(func(done func(error)) {
		w.log.Sync(func(durable chunk.Tail, err error) {
			w.reported(durable)
			done(err)
		})
	})
}

// syncInFlight asks for a sync that a later one answers.
func (w *world) syncInFlight() {
	w.syncer.Hold()
	w.log.Sync(func(durable chunk.Tail, err error) { w.reported(durable) })
}

// saveProgress has mark and commit written, and notes that they were.
func (w *world) saveProgress() error {
	mark, commit := w.log.Durable().LSN, w.log.Commit()
	err := wait(w.log.SaveProgress)
	if err == nil {
		w.ghost.markMin = max(w.ghost.markMin, mark)
		w.ghost.commitMin = max(w.ghost.commitMin, min(commit, mark))
	}
	return err
}

func (w *world) commit() {
	w.ghost.commitMax = max(w.ghost.commitMax, w.log.Durable().LSN)
	w.log.SetCommit(w.log.Durable().LSN)
}

// truncate cuts the log behind n.
func (w *world) truncate(n chunk.LSN) error {
	w.ghost.rewrite(w.ghost.now().cut(n))
	w.ghost.markMin = min(w.ghost.markMin, n)
	found, err := w.log.Truncate(n)
	if err != nil {
		return err
	}
	w.ghost.settle()
	w.reported(found.Tail)
	return w.expectTail()
}

// reset drops the log and starts it above its tail.
func (w *world) reset() error {
	h := w.ghost.now()
	start := manifest.Start{
		LSN: h.tail().LSN + 10, Offset: h.next() + 10, Digest: 0x1122334455667788,
		Line: manifest.EpochLine{Epoch: w.epoch, LSN: h.tail().LSN + 5, Offset: h.next() + 5},
	}
	w.ghost.rewrite(history{from: start, must: start.LSN - 1})
	w.ghost.startMax, w.ghost.commitMax = start.LSN, max(w.ghost.commitMax, start.LSN-1)
	if _, err := w.log.Reset(start); err != nil {
		return err
	}
	w.ghost.settle()
	w.ghost.startMin = start.LSN
	return w.expectTail()
}

// expectTail holds the running log against the ghost: nothing is missing.
func (w *world) expectTail() error {
	if got, want := w.log.Tail(), w.ghost.now().tail(); got != want {
		return fmt.Errorf("tail is %s, want %s", got, want)
	}
	return nil
}

// setStart moves the log start to the newest segment that E3 allows, and tells
// whether there was one.
func (w *world) setStart() (bool, error) {
	infos := w.log.Segments()
	for i := len(infos) - 1; i > 0; i-- {
		to := infos[i].FirstLSN
		was := w.ghost.startMax
		w.ghost.startMax = max(was, to)
		err := w.log.SetLogStart(to)
		if errors.Is(err, segstore.ErrNoSnapshot) {
			w.ghost.startMax = was
			continue
		}
		if err == nil {
			w.ghost.startMin = to
		}
		return true, err
	}
	return false, nil
}

// restart ends the process in order and starts the next.
func (w *world) restart() error {
	commit := w.log.Commit()
	if err := w.store.Close(); err != nil {
		return err
	}
	mark := w.log.Durable().LSN
	if w.log.Err() != nil && mark < w.ghost.now().tail().LSN {
		// The last sync has failed: what it was for is given up.
		w.ghost.histories = []history{w.ghost.now().cut(mark)}
		w.ghost.markMin, w.ghost.commitMin = min(w.ghost.markMin, mark), min(w.ghost.commitMin, mark)
		return w.comeBack()
	}
	w.reported(w.ghost.now().tail())
	w.ghost.markMin, w.ghost.commitMin = max(w.ghost.markMin, mark), max(w.ghost.commitMin, min(mark, commit))
	return w.comeBack()
}

// kill ends the process where it is and starts the next.
func (w *world) kill() error {
	w.process.dead = true
	return w.comeBack()
}

// dieAtRename has a torn record in MANIFEST, which the next process replaces
// by a new file, but dies before it can sync the name. Its successor must not
// build on the new file before it has.
func (w *world) dieAtRename() error {
	f, err := w.disk.OpenFile(path.Join(streamPath, "MANIFEST"), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	size, err := f.Size()
	if err != nil {
		return err
	}
	if _, err := f.WriteAt([]byte("torn"), size); err != nil {
		return err
	}
	w.process.dead = true
	if err := w.start(nil); err != nil {
		return err
	}
	w.process.deadly = "MANIFEST.tmp"
	if err := w.open(); !w.process.dead {
		return fmt.Errorf("no MANIFEST was renamed: %w", err)
	}
	return w.comeBack()
}

func (w *world) comeBack() error {
	if err := w.start(w.process.before); err != nil {
		return err
	}
	if err := w.open(); err != nil {
		return err
	}
	w.reported(w.log.Durable())
	return w.expectTail()
}

func (w *world) promise() error {
	epoch := w.epoch + 1
	w.ghost.promiseMax = max(w.ghost.promiseMax, epoch)
	err := wait(func(done func(error)) { w.store.Journal().Promise(crashIncarnation, epoch, done) })
	if err == nil {
		w.ghost.promiseMin = max(w.ghost.promiseMin, epoch)
	}
	return err
}
