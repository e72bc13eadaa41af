package vfs

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// OS is the file system of the operating system. Its zero value is ready.
type OS struct{}

var _ FS = OS{}

// OpenFile implements FS.
func (OS) OpenFile(name string, flag int, perm fs.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag|unix.O_NOFOLLOW, perm)
	if err != nil {
		return nil, err
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &osFile{File: f, conn: conn}, nil
}

// Remove implements FS.
func (OS) Remove(name string) error { return os.Remove(name) }

// Rename implements FS.
func (OS) Rename(oldName, newName string) error { return os.Rename(oldName, newName) }

// MkdirAll implements FS.
func (OS) MkdirAll(dir string, perm fs.FileMode) error { return os.MkdirAll(dir, perm) }

// List implements FS. Entries that vanish while it reads are left out.
func (OS) List(dir string) ([]Entry, error) {
	found, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	entries := make([]Entry, 0, len(found))
	for _, d := range found {
		info, err := d.Info()
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		entries = append(entries, entryOf(info))
	}
	return entries, nil
}

// Stat implements FS.
func (OS) Stat(name string) (Entry, error) {
	info, err := os.Lstat(name)
	if err != nil {
		return Entry{}, err
	}
	return entryOf(info), nil
}

func entryOf(info fs.FileInfo) Entry {
	e := Entry{Name: info.Name(), Mode: info.Mode()}
	if info.Mode().IsRegular() {
		e.Size = info.Size()
	}
	return e
}

// SyncDir implements FS.
func (OS) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// FreeSpace implements FS.
func (OS) FreeSpace(dir string) (uint64, error) {
	st, err := statfs(dir)
	return st.Bavail * uint64(st.Bsize), err
}

// Capacity implements FS.
func (OS) Capacity(dir string) (uint64, error) {
	st, err := statfs(dir)
	return st.Blocks * uint64(st.Bsize), err
}

func statfs(dir string) (st unix.Statfs_t, err error) {
	if err := unix.Statfs(dir, &st); err != nil {
		return unix.Statfs_t{}, &fs.PathError{Op: "statfs", Path: dir, Err: err}
	}
	return st, nil
}

// Lock implements FS by flock, which the kernel drops when the process dies.
func (OS) Lock(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	err = retryInterrupted(func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err == nil {
		return f, nil
	}
	if errors.Is(err, unix.EWOULDBLOCK) {
		err = ErrLocked
	}
	return nil, errors.Join(fmt.Errorf("lock %s: %w", name, err), f.Close())
}

// osFile adds to os.File what it lacks: writing of several buffers, fdatasync,
// size.
type osFile struct {
	*os.File
	conn syscall.RawConn
}

var _ OSFile = (*osFile)(nil)

func (f *osFile) OSFile() *os.File { return f.File }

// writeBuffersMax is the kernel's limit of buffers in one pwritev.
const writeBuffersMax = 1024

// WriteVAt implements File. The caller's slice of buffers is left as it was.
func (f *osFile) WriteVAt(bufs [][]byte, off int64) (int, error) {
	written := 0
	for len(bufs) > 0 {
		part := bufs[:min(len(bufs), writeBuffersMax)]
		want := 0
		for _, b := range part {
			want += len(b)
		}
		n, err := f.pwritev(part, off+int64(written))
		written += n
		if err != nil {
			return written, &fs.PathError{Op: "pwritev", Path: f.Name(), Err: err}
		}
		if n < want { // a short write: finish this part buffer by buffer
			m, err := f.writeRest(part, n, off+int64(written))
			written += m
			if err != nil {
				return written, err
			}
		}
		bufs = bufs[len(part):]
	}
	return written, nil
}

func (f *osFile) pwritev(bufs [][]byte, off int64) (int, error) {
	c := takeCall(callWrite)
	defer c.give()
	c.bufs, c.off = bufs, off
	if err := f.conn.Control(c.run); err != nil {
		return 0, err
	}
	return max(c.n, 0), c.err
}

// writeRest writes what lies behind the first skip bytes of the buffers.
func (f *osFile) writeRest(bufs [][]byte, skip int, off int64) (int, error) {
	written := 0
	for _, b := range bufs {
		if skip >= len(b) {
			skip -= len(b)
			continue
		}
		n, err := f.WriteAt(b[skip:], off+int64(written))
		written += n
		if err != nil {
			return written, err
		}
		skip = 0
	}
	return written, nil
}

// Datasync implements File.
func (f *osFile) Datasync() error {
	c := takeCall(callDatasync)
	defer c.give()
	if err := f.conn.Control(c.run); err != nil {
		return err
	}
	if c.err != nil {
		return &fs.PathError{Op: "fdatasync", Path: f.Name(), Err: c.err}
	}
	return nil
}

// Size implements File.
func (f *osFile) Size() (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

func retryInterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}

// call is a system call on a descriptor that Control lends. It is pooled with
// its function, so that writing and syncing allocate nothing.
type call struct {
	kind callKind
	run  func(fd uintptr) // does it, bound once
	bufs [][]byte
	off  int64
	n    int
	err  error
}

type callKind uint8

const (
	callWrite callKind = iota
	callDatasync
)

var calls = sync.Pool{New: func() any {
	c := &call{}
	c.run = c.do
	return c
}}

func takeCall(kind callKind) *call {
	c := calls.Get().(*call)
	c.kind = kind
	return c
}

func (c *call) give() {
	*c = call{run: c.run}
	calls.Put(c)
}

func (c *call) do(fd uintptr) {
	for {
		if c.kind == callWrite {
			c.n, c.err = unix.Pwritev(int(fd), c.bufs, c.off)
		} else {
			c.err = unix.Fdatasync(int(fd))
		}
		if !errors.Is(c.err, unix.EINTR) {
			return
		}
	}
}
