package vfs

import (
	"io"
	"io/fs"
	"os"
	"slices"
	"syscall"
)

// content is what a file of Mem holds.
//
// The two byte slices may be shared with other file systems (Crash does that
// for what did not change); whoever changes a shared one copies it first.
type content struct {
	seen, kept             []byte // as programs see it; as it is durable
	seenShared, keptShared bool
	// Invariant: seen = kept + pending in order, until a failed sync lost some.
	pending []change
}

// change is one write or truncation since the last sync.
type change struct {
	sequence uint64
	truncate bool
	at       int64  // position of a write; new size of a truncation
	bytes    []byte // of a write
	lost     bool   // a failed sync dropped it: it never becomes durable
}

// applyTo returns buf with the change made; buf must not be shared.
func (c change) applyTo(buf []byte) []byte {
	if c.truncate {
		return resize(buf, c.at)
	}
	if end := c.at + int64(len(c.bytes)); end > int64(len(buf)) {
		buf = resize(buf, end)
	}
	copy(buf[c.at:], c.bytes)
	return buf
}

// resize cuts or grows buf; what is new is zero.
func resize(buf []byte, size int64) []byte {
	old := int64(len(buf))
	if size <= old {
		return buf[:size]
	}
	return append(buf, make([]byte, size-old)...) // zeroed once, amortized
}

func (m *Mem) write(n *node, p []byte, at int64) {
	m.apply(n, change{at: at, bytes: slices.Clone(p)})
}

func (m *Mem) truncate(n *node, size int64) {
	m.apply(n, change{truncate: true, at: size})
}

func (m *Mem) apply(n *node, c change) {
	m.sequence++
	c.sequence = m.sequence
	if n.seenShared {
		n.seen, n.seenShared = slices.Clone(n.seen), false
	}
	before := len(n.seen)
	n.seen = c.applyTo(n.seen)
	n.pending = append(n.pending, c)
	m.used += int64(len(n.seen) - before)
}

// makeDurable is a successful sync.
func (c *content) makeDurable() {
	if len(c.pending) == 0 {
		return
	}
	if c.keptShared {
		c.kept, c.keptShared = slices.Clone(c.kept), false
	}
	for _, p := range c.pending {
		if !p.lost {
			c.kept = p.applyTo(c.kept)
		}
	}
	c.pending = nil
}

// failSync is a failed sync, in one of the ways that systems fail.
func (c *content) failSync(how SyncFailure) {
	switch how {
	case BytesStayDirty:
	case BytesLostAtCrash:
		for i := range c.pending {
			c.pending[i].lost = true
		}
	case BytesDropped:
		c.seen, c.seenShared = slices.Clone(c.kept), false
		c.pending = nil
	}
}

// memFile is an open file of Mem.
type memFile struct {
	mem    *Mem
	node   *node
	name   string
	flag   int
	closed bool
}

func (f *memFile) begin(op Op) error {
	f.mem.begin(op, f.name)
	if f.closed {
		return f.fail(op, fs.ErrClosed)
	}
	writes := f.flag&(os.O_WRONLY|os.O_RDWR) != 0
	if op&(OpWrite|OpTruncate) != 0 && !writes || op&OpRead != 0 && f.flag&os.O_WRONLY != 0 {
		return f.fail(op, syscall.EBADF)
	}
	return nil
}

func (f *memFile) fail(op Op, err error) error {
	return &fs.PathError{Op: op.String(), Path: f.name, Err: err}
}

func (f *memFile) Name() string { return f.name }

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	err := f.begin(OpRead)
	defer f.mem.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, f.fail(OpRead, syscall.EINVAL)
	}
	if off >= int64(len(f.node.seen)) {
		return 0, io.EOF
	}
	n := copy(p, f.node.seen[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	return f.WriteVAt([][]byte{p}, off)
}

// WriteVAt implements File. It is one change: a tear falls anywhere in it.
func (f *memFile) WriteVAt(bufs [][]byte, off int64) (int, error) {
	err := f.begin(OpWrite)
	defer f.mem.mu.Unlock()
	if err != nil {
		return 0, err
	}
	if off < 0 {
		return 0, f.fail(OpWrite, syscall.EINVAL)
	}
	joined := slices.Concat(bufs...)
	room := f.mem.room(f.node, off)
	if int64(len(joined)) <= room {
		if len(joined) > 0 {
			f.mem.write(f.node, joined, off)
		}
		return len(joined), nil
	}
	if room > 0 {
		f.mem.write(f.node, joined[:room], off)
	}
	return int(room), f.fail(OpWrite, syscall.ENOSPC)
}

// room returns how many bytes may be written from a position of a file.
func (m *Mem) room(n *node, off int64) int64 {
	if m.capacity == 0 {
		return 1 << 62
	}
	return max(int64(len(n.seen))+m.capacity-m.used-off, 0)
}

func (f *memFile) Truncate(size int64) error {
	err := f.begin(OpTruncate)
	defer f.mem.mu.Unlock()
	if err != nil {
		return err
	}
	if size < 0 {
		return f.fail(OpTruncate, syscall.EINVAL)
	}
	f.mem.truncate(f.node, size)
	return nil
}

func (f *memFile) Sync() error {
	err := f.begin(OpSync)
	defer f.mem.mu.Unlock()
	if err == nil {
		f.node.makeDurable()
	}
	return err
}

func (f *memFile) Datasync() error { return f.Sync() }

// failSync is what Faulty calls in place of a sync.
func (f *memFile) failSync(how SyncFailure) {
	err := f.begin(OpSync)
	defer f.mem.mu.Unlock()
	if err != nil {
		return
	}
	before := len(f.node.seen)
	f.node.failSync(how)
	f.mem.used += int64(len(f.node.seen) - before)
}

func (f *memFile) Size() (int64, error) {
	err := f.begin(OpSize)
	defer f.mem.mu.Unlock()
	return int64(len(f.node.seen)), err
}

func (f *memFile) Close() error {
	err := f.begin(OpClose)
	defer f.mem.mu.Unlock()
	f.closed = true
	return err
}
