package vfs

import (
	"cmp"
	"io"
	"io/fs"
	"os"
	"path"
	"sync"
	"time"
)

// Faulty is a file system with faults: operations that match a Rule fail, hang,
// or do something else than they say. Without rules it is the file system
// below it.
type Faulty struct {
	FS

	mu    sync.Mutex // guards rules and their counts
	rules []*Rule
}

// NewFaulty returns below without faults yet.
func NewFaulty(below FS) *Faulty { return &Faulty{FS: below} }

// Rule says which operations a fault strikes.
type Rule struct {
	Ops Op
	// Path is a pattern of path.Match for the whole name or its last element;
	// empty matches each.
	Path string
	// After is how many matching operations pass first, Times how many are
	// struck then; Times 0 strikes for ever.
	After, Times int
	Fault

	matched, struck int
}

// Fault is what happens to an operation. The fields apply in this order, each
// where it makes sense; an operation that nothing fails goes on below.
type Fault struct {
	// Delay is waited for first, then Hang until it is closed.
	Delay time.Duration
	Hang  <-chan struct{}
	// Err fails the operation. A write does nothing, or with Short > 0 its
	// first Short bytes; a Short write without Err fails with
	// io.ErrShortWrite.
	Err   error
	Short int
	// Sync, with Err, is what a failing sync does to the unsynced bytes. It
	// needs Mem below; elsewhere they stay dirty.
	Sync SyncFailure
	// Shift moves a write's bytes by so many positions: misdirected.
	Shift int64
	// Rot, at position RotAt, is XORed to what reads return.
	Rot   byte
	RotAt int64
}

// SyncFailure is what has become of the unsynced bytes when a sync failed. In
// each case the next sync succeeds.
type SyncFailure uint8

// The three ways.
const (
	BytesStayDirty   SyncFailure = iota // the next sync makes them durable
	BytesLostAtCrash                    // called clean: readable, gone after a crash
	BytesDropped                        // the file is back at its durable state
)

// Add puts a rule into force, and returns it for Lift and Hits. Where several
// match an operation, the one added first strikes.
func (f *Faulty) Add(rule Rule) *Rule {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rules = append(f.rules, &rule)
	return &rule
}

// Lift ends a rule.
func (f *Faulty) Lift(rule *Rule) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for i, r := range f.rules {
		if r == rule {
			f.rules = append(f.rules[:i:i], f.rules[i+1:]...)
			return
		}
	}
}

// Hits returns how many operations a rule has struck.
func (f *Faulty) Hits(rule *Rule) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return rule.struck
}

// strike finds the fault for an operation, and waits as it says. The error is
// what the operation shall fail with.
func (f *Faulty) strike(op Op, name string) (Fault, error) {
	fault, ok := f.match(op, name)
	if !ok {
		return Fault{}, nil
	}
	if fault.Delay > 0 {
		time.Sleep(fault.Delay)
	}
	if fault.Hang != nil {
		<-fault.Hang
	}
	if fault.Err == nil {
		return fault, nil
	}
	return fault, &fs.PathError{Op: op.String(), Path: name, Err: fault.Err}
}

func (f *Faulty) match(op Op, name string) (Fault, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, r := range f.rules {
		if r.Ops&op == 0 || !matches(r.Path, name) {
			continue
		}
		r.matched++
		if r.matched <= r.After || r.Times > 0 && r.struck == r.Times {
			continue
		}
		r.struck++
		return r.Fault, true
	}
	return Fault{}, false
}

func matches(pattern, name string) bool {
	if pattern == "" {
		return true
	}
	whole, _ := path.Match(pattern, name)
	last, _ := path.Match(pattern, path.Base(name))
	return whole || last
}

// OpenFile implements FS.
func (f *Faulty) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	op := OpOpen
	if flag&os.O_CREATE != 0 {
		op |= OpCreate
	}
	if _, err := f.strike(op, name); err != nil {
		return nil, err
	}
	file, err := f.FS.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &faultyFile{File: file, faults: f}, nil
}

// Remove implements FS.
func (f *Faulty) Remove(name string) error {
	if _, err := f.strike(OpRemove, name); err != nil {
		return err
	}
	return f.FS.Remove(name)
}

// Rename implements FS. Rules see the old name.
func (f *Faulty) Rename(oldName, newName string) error {
	if _, err := f.strike(OpRename, oldName); err != nil {
		return err
	}
	return f.FS.Rename(oldName, newName)
}

// MkdirAll implements FS.
func (f *Faulty) MkdirAll(dir string, perm fs.FileMode) error {
	if _, err := f.strike(OpMkdir, dir); err != nil {
		return err
	}
	return f.FS.MkdirAll(dir, perm)
}

// List implements FS.
func (f *Faulty) List(dir string) ([]Entry, error) {
	if _, err := f.strike(OpList, dir); err != nil {
		return nil, err
	}
	return f.FS.List(dir)
}

// Stat implements FS.
func (f *Faulty) Stat(name string) (Entry, error) {
	if _, err := f.strike(OpStat, name); err != nil {
		return Entry{}, err
	}
	return f.FS.Stat(name)
}

// SyncDir implements FS.
func (f *Faulty) SyncDir(dir string) error {
	if _, err := f.strike(OpSyncDir, dir); err != nil {
		return err
	}
	return f.FS.SyncDir(dir)
}

// FreeSpace implements FS.
func (f *Faulty) FreeSpace(dir string) (uint64, error) {
	if _, err := f.strike(OpFreeSpace, dir); err != nil {
		return 0, err
	}
	return f.FS.FreeSpace(dir)
}

// Capacity implements FS.
func (f *Faulty) Capacity(dir string) (uint64, error) {
	if _, err := f.strike(OpFreeSpace, dir); err != nil {
		return 0, err
	}
	return f.FS.Capacity(dir)
}

// Lock implements FS.
func (f *Faulty) Lock(name string) (io.Closer, error) {
	if _, err := f.strike(OpLock, name); err != nil {
		return nil, err
	}
	return f.FS.Lock(name)
}

// faultyFile is an open file whose operations may be struck.
type faultyFile struct {
	File
	faults *Faulty
}

func (f *faultyFile) ReadAt(p []byte, off int64) (int, error) {
	fault, err := f.faults.strike(OpRead, f.Name())
	if err != nil {
		return 0, err
	}
	n, err := f.File.ReadAt(p, off)
	if at := fault.RotAt - off; fault.Rot != 0 && at >= 0 && at < int64(n) {
		p[at] ^= fault.Rot
	}
	return n, err
}

func (f *faultyFile) WriteAt(p []byte, off int64) (int, error) {
	return f.WriteVAt([][]byte{p}, off)
}

func (f *faultyFile) WriteVAt(bufs [][]byte, off int64) (int, error) {
	fault, err := f.faults.strike(OpWrite, f.Name())
	if err == nil && fault.Short == 0 {
		return f.File.WriteVAt(bufs, off+fault.Shift)
	}
	n, writeErr := f.File.WriteVAt(firstBytes(bufs, fault.Short), off+fault.Shift)
	return n, cmp.Or(writeErr, err, error(&fs.PathError{Op: OpWrite.String(), Path: f.Name(), Err: io.ErrShortWrite}))
}

// firstBytes returns buffers with the first n bytes of bufs.
func firstBytes(bufs [][]byte, n int) [][]byte {
	var first [][]byte
	for _, b := range bufs {
		take := min(n, len(b))
		first = append(first, b[:take])
		n -= take
	}
	return first
}

func (f *faultyFile) Truncate(size int64) error {
	if _, err := f.faults.strike(OpTruncate, f.Name()); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultyFile) Sync() error     { return f.sync(f.File.Sync) }
func (f *faultyFile) Datasync() error { return f.sync(f.File.Datasync) }

func (f *faultyFile) sync(below func() error) error {
	fault, err := f.faults.strike(OpSync, f.Name())
	if err == nil {
		return below()
	}
	if mem, ok := f.File.(*memFile); ok {
		mem.failSync(fault.Sync)
	}
	return err
}

func (f *faultyFile) Size() (int64, error) {
	if _, err := f.faults.strike(OpSize, f.Name()); err != nil {
		return 0, err
	}
	return f.File.Size()
}

// Close implements File. The file is closed also where closing fails.
func (f *faultyFile) Close() error {
	_, err := f.faults.strike(OpClose, f.Name())
	return cmp.Or(err, f.File.Close())
}
