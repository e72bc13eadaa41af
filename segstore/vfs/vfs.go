package vfs

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
)

// ErrLocked reports that another process, or another opening in this one,
// holds the lock that was asked for.
var ErrLocked = errors.New("vfs: lock is held elsewhere")

// FS is a tree of files. Names are slash-separated paths; directories must
// exist before files are made in them. All methods may be called concurrently.
type FS interface {
	// OpenFile opens a regular file with the flags of package os (O_RDONLY,
	// O_RDWR, O_CREATE, O_EXCL, O_TRUNC). A symbolic link as the last element
	// is an error, never followed.
	OpenFile(name string, flag int, perm fs.FileMode) (File, error)
	// Remove removes a file or an empty directory.
	Remove(name string) error
	// Rename moves oldName to newName and replaces a file of that name.
	Rename(oldName, newName string) error
	// MkdirAll makes the directory and its missing parents. Their names are
	// durable after SyncDir of each parent.
	MkdirAll(dir string, perm fs.FileMode) error
	// List returns what is in a directory, sorted by name.
	List(dir string) ([]Entry, error)
	// Stat describes one name; a symbolic link is described, not followed.
	Stat(name string) (Entry, error)
	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
	// FreeSpace returns the bytes that a plain process may still write.
	FreeSpace(dir string) (uint64, error)
	// Capacity returns the size in bytes of the disk that holds a directory.
	Capacity(dir string) (uint64, error)
	// Lock takes an exclusive lock on a file, made if missing, until Close;
	// it fails with ErrLocked at once when the lock is held.
	Lock(name string) (io.Closer, error)
}

// File is an open file. Reads, writes and syncs may be concurrent; Close must
// come last.
type File interface {
	io.ReaderAt
	io.WriterAt
	// WriteVAt writes the buffers one behind the other from position off, as
	// one write where the system can. It returns the bytes written.
	WriteVAt(bufs [][]byte, off int64) (int, error)
	// Truncate sets the size in bytes; growing fills with zeros.
	Truncate(size int64) error
	// Sync makes bytes and all attributes durable.
	Sync() error
	// Datasync makes bytes durable, and of the attributes what reading them
	// back needs (the size).
	Datasync() error
	// Size returns the present size in bytes.
	Size() (int64, error)
	// Name returns the name the file was opened by.
	Name() string
	io.Closer
}

// OSFile is what a File of OS is besides: a way to the descriptor, for
// sendfile. The position of the descriptor is shared and must not be used;
// every system call names its own.
type OSFile interface {
	File
	OSFile() *os.File
}

// Entry describes a name in a directory.
type Entry struct {
	Name string      // last element only
	Size int64       // bytes; 0 for directories
	Mode fs.FileMode // type and permission bits
}

// IsDir reports whether the entry is a directory.
func (e Entry) IsDir() bool { return e.Mode.IsDir() }

// IsRegular reports whether the entry is a plain file: not a directory, link,
// socket or device.
func (e Entry) IsRegular() bool { return e.Mode.IsRegular() }

// Exists reports whether a name exists.
func Exists(fsys FS, name string) (bool, error) {
	_, err := fsys.Stat(name)
	switch {
	case err == nil:
		return true, nil
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	}
	return false, err
}

// RemoveAll removes a name with everything below it; a missing name is no
// error. It syncs nothing.
func RemoveAll(fsys FS, name string) error {
	e, err := fsys.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if e.IsDir() {
		entries, err := fsys.List(name)
		if err != nil {
			return err
		}
		for _, child := range entries {
			if err := RemoveAll(fsys, path.Join(name, child.Name)); err != nil {
				return err
			}
		}
	}
	if err := fsys.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ReadFile returns the whole content of a file.
func ReadFile(fsys FS, name string) ([]byte, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	buf := make([]byte, size)
	n, err := io.ReadFull(io.NewSectionReader(f, 0, size), buf)
	if errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, io.EOF) {
		err = nil // cut since Size: what is there is the content
	}
	return buf[:n], err
}

// WriteFileSynced replaces a file's content so that a crash leaves the old or
// the new one: temporary file, sync, rename, sync of the directory.
func WriteFileSynced(fsys FS, name string, content []byte, perm fs.FileMode) error {
	temporary := name + ".tmp"
	f, err := fsys.OpenFile(temporary, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, perm)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(content, 0)
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := fsys.Rename(temporary, name); err != nil {
		return err
	}
	return fsys.SyncDir(path.Dir(name))
}
