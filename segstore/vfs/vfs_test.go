package vfs

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// each runs a test on every implementation, in an empty directory of it.
func each(t *testing.T, test func(t *testing.T, fsys FS, dir string)) {
	t.Run("OS", func(t *testing.T) { test(t, OS{}, t.TempDir()) })
	t.Run("Mem", func(t *testing.T) {
		m := NewMem()
		must(t, m.MkdirAll("/data", 0o755))
		test(t, m, "/data")
	})
	t.Run("Faulty", func(t *testing.T) {
		m := NewMem()
		must(t, m.MkdirAll("/data", 0o755))
		test(t, NewFaulty(m), "/data")
	})
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t testing.TB, fsys FS, name string, content string) File {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	if content != "" {
		_, err = f.WriteAt([]byte(content), 0)
		must(t, err)
	}
	return f
}

func wantContent(t testing.TB, fsys FS, name, want string) {
	t.Helper()
	got, err := ReadFile(fsys, name)
	must(t, err)
	if string(got) != want {
		t.Fatalf("%s holds %q, want %q", name, got, want)
	}
}

func TestFile_readsBackWhatWasWritten(t *testing.T) {
	each(t, func(t *testing.T, fsys FS, dir string) {
		f := create(t, fsys, path.Join(dir, "a"), "hello")
		_, err := f.WriteAt([]byte("world"), 8)
		must(t, err)
		wantContent(t, fsys, path.Join(dir, "a"), "hello\x00\x00\x00world")
		must(t, f.Truncate(3))
		must(t, f.Truncate(6))
		wantContent(t, fsys, path.Join(dir, "a"), "hel\x00\x00\x00")
		must(t, f.Sync())
		must(t, f.Datasync())
		size, err := f.Size()
		must(t, err)
		if size != 6 {
			t.Fatalf("size %d, want 6", size)
		}
		buf := make([]byte, 4)
		if n, err := f.ReadAt(buf, 4); n != 2 || !errors.Is(err, io.EOF) {
			t.Fatalf("read over the end: %d bytes, %v", n, err)
		}
		if n, err := f.ReadAt(buf, 100); n != 0 || !errors.Is(err, io.EOF) {
			t.Fatalf("read behind the end: %d bytes, %v", n, err)
		}
	})
}

func TestFile_writesManyBuffersAsOneRun(t *testing.T) {
	each(t, func(t *testing.T, fsys FS, dir string) {
		f := create(t, fsys, path.Join(dir, "a"), "ab")
		var bufs [][]byte
		var want bytes.Buffer
		want.WriteString("ab")
		for i := range 3000 { // more than one system call takes
			b := bytes.Repeat([]byte{byte(i)}, i%5)
			bufs = append(bufs, b)
			want.Write(b)
		}
		n, err := f.WriteVAt(bufs, 2)
		must(t, err)
		if n != want.Len()-2 {
			t.Fatalf("wrote %d bytes, want %d", n, want.Len()-2)
		}
		wantContent(t, fsys, path.Join(dir, "a"), want.String())
	})
}

func TestOpenFile_flags(t *testing.T) {
	each(t, func(t *testing.T, fsys FS, dir string) {
		name := path.Join(dir, "a")
		if _, err := fsys.OpenFile(name, os.O_RDONLY, 0); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("missing file: %v", err)
		}
		create(t, fsys, name, "old")
		if _, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644); !errors.Is(err, fs.ErrExist) {
			t.Fatalf("exclusive creation: %v", err)
		}
		f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
		must(t, err)
		if _, err := f.WriteAt([]byte("x"), 0); !errors.Is(err, syscall.EBADF) {
			t.Fatalf("write to a file opened for reading: %v", err)
		}
		must(t, f.Close())
		if _, err := f.ReadAt(make([]byte, 1), 0); !errors.Is(err, fs.ErrClosed) {
			t.Fatalf("read of a closed file: %v", err)
		}
		f, err = fsys.OpenFile(name, os.O_RDWR|os.O_TRUNC, 0)
		must(t, err)
		must(t, f.Close())
		wantContent(t, fsys, name, "")
		if _, err := fsys.OpenFile(path.Join(dir, "no", "a"), os.O_RDWR|os.O_CREATE, 0o644); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("missing directory: %v", err)
		}
		if _, err := fsys.OpenFile(path.Join(name, "b"), os.O_RDWR|os.O_CREATE, 0o644); err == nil {
			t.Fatal("made a file below a file")
		}
	})
}

func TestRename_replacesAndOpenFilesStayReadable(t *testing.T) {
	each(t, func(t *testing.T, fsys FS, dir string) {
		a, b, c := path.Join(dir, "a"), path.Join(dir, "b"), path.Join(dir, "c")
		create(t, fsys, a, "new")
		old := create(t, fsys, b, "old")
		gone := create(t, fsys, c, "gone")
		must(t, fsys.Rename(a, b))
		must(t, fsys.Remove(c))
		must(t, fsys.SyncDir(dir))
		wantContent(t, fsys, b, "new")
		for f, want := range map[File]string{old: "old", gone: "gone"} {
			buf := make([]byte, len(want))
			if _, err := f.ReadAt(buf, 0); err != nil || string(buf) != want {
				t.Fatalf("%s reads %q, %v", f.Name(), buf, err)
			}
		}
		if ok, err := Exists(fsys, a); ok || err != nil {
			t.Fatalf("a exists: %v, %v", ok, err)
		}
		if err := fsys.Rename(a, b); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("rename of a missing file: %v", err)
		}
		if err := fsys.Remove(a); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("removal of a missing file: %v", err)
		}
	})
}

func TestList_isSortedAndTellsKinds(t *testing.T) {
	each(t, func(t *testing.T, fsys FS, dir string) {
		must(t, fsys.MkdirAll(path.Join(dir, "z/deep/er"), 0o755))
		create(t, fsys, path.Join(dir, "b"), "12")
		create(t, fsys, path.Join(dir, "a"), "")
		entries, err := fsys.List(dir)
		must(t, err)
		var got []string
		for _, e := range entries {
			kind := "other"
			if e.IsDir() {
				kind = "dir"
			} else if e.IsRegular() {
				kind = "file"
			}
			got = append(got, e.Name+" "+kind)
		}
		if want := []string{"a file", "b file", "z dir"}; !slices.Equal(got, want) {
			t.Fatalf("listed %q, want %q", got, want)
		}
		if entries[1].Size != 2 {
			t.Fatalf("size of b: %d", entries[1].Size)
		}
		if err := fsys.Remove(path.Join(dir, "z")); !errors.Is(err, syscall.ENOTEMPTY) {
			t.Fatalf("removal of a full directory: %v", err)
		}
		must(t, RemoveAll(fsys, path.Join(dir, "z")))
		must(t, RemoveAll(fsys, path.Join(dir, "z")))
		if _, err := fsys.Stat(path.Join(dir, "z")); !errors.Is(err, fs.ErrNotExist) {
			t.Fatalf("z after removal: %v", err)
		}
		if _, err := fsys.List(path.Join(dir, "b")); err == nil {
			t.Fatal("listed a file")
		}
	})
}

func TestLock_isExclusive(t *testing.T) {
	each(t, func(t *testing.T, fsys FS, dir string) {
		name := path.Join(dir, "lock")
		l, err := fsys.Lock(name)
		must(t, err)
		if _, err := fsys.Lock(name); !errors.Is(err, ErrLocked) {
			t.Fatalf("second lock: %v", err)
		}
		must(t, l.Close())
		l, err = fsys.Lock(name)
		must(t, err)
		must(t, l.Close())
	})
}

func TestWriteFileSynced_replaces(t *testing.T) {
	each(t, func(t *testing.T, fsys FS, dir string) {
		name := path.Join(dir, "a")
		must(t, WriteFileSynced(fsys, name, []byte("a longer one"), 0o644))
		must(t, WriteFileSynced(fsys, name, []byte("short"), 0o644))
		wantContent(t, fsys, name, "short")
		free, err := fsys.FreeSpace(dir)
		must(t, err)
		total, err := fsys.Capacity(dir)
		must(t, err)
		if free == 0 || total < free {
			t.Fatalf("%d of %d bytes are said to be free", free, total)
		}
	})
}

func TestOS_followsNoLink(t *testing.T) {
	dir := t.TempDir()
	target, link := path.Join(dir, "target"), path.Join(dir, "link")
	create(t, OS{}, target, "secret")
	must(t, os.Symlink(target, link))
	if _, err := (OS{}).OpenFile(link, os.O_RDWR|os.O_CREATE, 0o644); err == nil {
		t.Fatal("opened a symbolic link")
	}
	if _, err := (OS{}).Lock(link); err == nil {
		t.Fatal("locked a symbolic link")
	}
	e, err := (OS{}).Stat(link)
	must(t, err)
	if e.IsRegular() || e.IsDir() {
		t.Fatalf("link described as %v", e.Mode)
	}
}

func TestOS_givesItsDescriptor(t *testing.T) {
	f := create(t, OS{}, path.Join(t.TempDir(), "a"), "x")
	of, ok := f.(OSFile)
	if !ok || of.OSFile().Name() != f.Name() {
		t.Fatalf("no descriptor of %v", f)
	}
}

func TestMem_limitIsENOSPC(t *testing.T) {
	m := NewMem()
	m.Limit(10)
	f := create(t, m, "/a", "1234567")
	n, err := f.WriteAt([]byte("abcdef"), 7)
	if n != 3 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("wrote %d, %v", n, err)
	}
	wantContent(t, m, "/a", "1234567abc")
	if free, _ := m.FreeSpace("/"); free != 0 {
		t.Fatalf("free %d", free)
	}
	if total, _ := m.Capacity("/"); total != 10 {
		t.Fatalf("capacity %d", total)
	}
	must(t, m.Remove("/a"))
	create(t, m, "/b", strings.Repeat("x", 10))
}

func TestMem_editChangesSeenAndDurable(t *testing.T) {
	m := NewMem()
	create(t, m, "/a", "abc")
	must(t, m.SyncDir("/"))
	must(t, m.Edit("/a", func(c []byte) []byte { c[1] ^= 1; return c[:2] }))
	wantContent(t, m, "/a", "ac")
	wantContent(t, m.Crash(Policy{}, nil), "/a", "ac")
	if err := m.Edit("/b", nil); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("edit of a missing file: %v", err)
	}
}

func TestOS_writingAndSyncingAllocateNothing(t *testing.T) {
	f := create(t, OS{}, path.Join(t.TempDir(), "a"), "")
	s := NewSyncer(2)
	bufs := [][]byte{make([]byte, 100), make([]byte, 1000)}
	synced := make(chan error, 1)
	done := func(err error) { synced <- err }
	allocs := testing.AllocsPerRun(200, func() {
		_, err := f.WriteVAt(bufs, 0)
		must(t, err)
		s.Submit(f, done)
		must(t, <-synced)
	})
	must(t, s.Close())
	if allocs > 1 { // a pool may be emptied now and then
		t.Fatalf("%v allocations for a write and its sync", allocs)
	}
}
