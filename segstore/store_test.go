package segstore

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

func TestStore_createListRemove(t *testing.T) {
	bothFS(t, func(t *testing.T, f *fixture) {
		f.barrier()
		f.publish(3, 30)
		f.sync()
		if err := f.store.Create(testName, testIncarnation); !errors.Is(err, ErrExists) {
			t.Errorf("created twice: %v", err)
		}
		if _, _, err := f.store.Open(testIncarnation, Config{}); !errors.Is(err, ErrExists) {
			t.Errorf("opened twice: %v", err)
		}
		if _, _, err := f.store.Open(77, Config{}); !errors.Is(err, ErrMissing) {
			t.Errorf("opened what is not there: %v", err)
		}
		if got := f.store.List(); len(got) != 1 || got[0] != (Stream{Hash(testName), testIncarnation}) {
			t.Errorf("%v", got)
		}
		r, err := f.log.Attach(Spec{Kind: First}, f.log.Commit())
		must(t, err)
		must(t, f.store.Remove(testIncarnation))
		must(t, f.store.Remove(testIncarnation))
		if _, _, err := r.Next(4); !errors.Is(err, ErrClosed) {
			t.Errorf("reader of a removed stream: %v", err)
		}
		if err := f.log.Append(f.user(1, 1)); !errors.Is(err, ErrClosed) {
			t.Errorf("append to a removed stream: %v", err)
		}
		if _, ok := f.store.Journal().State(testIncarnation); ok || len(f.store.List()) != 0 {
			t.Error("something is left")
		}
		// The same name again is another life; nothing of the old one is in it.
		must(t, f.store.Create(testName, testIncarnation+1))
		l, found, err := f.store.Open(testIncarnation+1, Config{})
		must(t, err)
		if l.Tail().LSN != 0 || len(found.Damage) != 0 {
			t.Errorf("tail %s", l.Tail())
		}
	})
}

// A removal that a fault or a crash interrupts can be repeated, and is finished
// at the next start (ST-22).
func TestStore_removalIsFinished(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "data")
	faulty := f.faulty()
	f.barrier()
	f.sync()
	rule := faulty.Add(vfs.Rule{Ops: vfs.OpRemove, Path: "*.seg", Fault: vfs.Fault{Err: syscall.EPERM}})
	if err := f.store.Remove(testIncarnation); !errors.Is(err, syscall.EPERM) {
		t.Fatalf("got %v", err)
	}
	if err := f.store.Remove(testIncarnation); !errors.Is(err, syscall.EPERM) {
		t.Fatalf("the second time: %v", err)
	}
	f.must(f.store.Close())
	faulty.Lift(rule)
	f.open()
	if left, err := f.fs.List("data/" + streamsDir); err != nil || len(left) != 0 || len(f.store.List()) != 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestStore_isLocked(t *testing.T) {
	f := memFixture(t)
	if _, err := NewStore(Options{FS: f.fs, Dir: f.dir}); !errors.Is(err, vfs.ErrLocked) {
		t.Errorf("got %v", err)
	}
}

// What has no name of ours goes to quarantine: it is kept, never followed, and
// holds nothing up (ST-08).
func TestStore_quarantinesTheUnknown(t *testing.T) {
	dir := t.TempDir()
	f := newFixture(t, vfs.OS{}, dir)
	f.barrier()
	f.publish(3, 30)
	f.roll(true)
	f.publish(1, 30)
	f.sync()
	f.must(f.store.Close())
	outside := filepath.Join(t.TempDir(), "outside")
	must(t, os.WriteFile(outside, []byte("not ours"), 0o600))
	log := f.log.dir
	strange := map[string]func(name string) error{
		".nfs0000000001":              func(n string) error { return os.WriteFile(n, nil, 0o600) },
		"lost+found":                  func(n string) error { return os.Mkdir(n, 0o700) },
		segmentOf(1) + ".bak":         func(n string) error { return os.WriteFile(n, []byte("x"), 0o600) },
		segmentOf(1) + "~":            func(n string) error { return os.WriteFile(n, []byte("x"), 0o600) },
		"1.0.seg":                     func(n string) error { return os.WriteFile(n, []byte("x"), 0o600) },
		"00000000000000000007.00.seg": func(n string) error { return os.WriteFile(n, []byte("x"), 0o600) },
		segmentOf(900):                func(n string) error { return os.WriteFile(n, []byte("hello"), 0o600) },
		segmentOf(901):                func(n string) error { return os.Symlink(outside, n) },
		segmentOf(902):                func(n string) error { return os.Mkdir(n, 0o700) },
		"socket":                      func(n string) error { return syscall.Mknod(n, syscall.S_IFIFO|0o600, 0) },
	}
	for name, make := range strange {
		must(t, make(filepath.Join(log, name)))
	}
	must(t, os.Mkdir(filepath.Join(dir, streamsDir, "orders"), 0o700))
	must(t, os.Symlink(outside, filepath.Join(dir, streamsDir, dirName("/x", 5))))
	f.open()
	f.openLog()
	f.wantAll(0, 8)
	kept, err := os.ReadDir(filepath.Join(dir, quarantineDir))
	must(t, err)
	if len(kept) != len(strange)+2 || len(f.found.Quarantined) != len(strange) {
		t.Errorf("kept %v, quarantined %v", kept, f.found.Quarantined)
	}
	if b, err := os.ReadFile(outside); err != nil || string(b) != "not ours" {
		t.Errorf("a link was followed: %q, %v", b, err)
	}
	for _, n := range f.files() {
		if strange[n] != nil {
			t.Errorf("%s is still there", n)
		}
	}
	f.restart()
	if len(f.found.Quarantined) != 0 {
		t.Errorf("again: %v", f.found.Quarantined)
	}
}

// Leftovers of a rewrite have our name and no place: they go.
func TestStore_removesTemporaries(t *testing.T) {
	f := memFixture(t)
	f.sync()
	f.must(f.store.Close())
	for _, n := range []string{manifestName + temporary, checkpointName + temporary, indexFile(nameOf(1)) + temporary} {
		file, err := f.fs.OpenFile(f.log.file(n), os.O_CREATE|os.O_RDWR, 0o644)
		f.must(err)
		f.must(file.Close())
	}
	f.open()
	f.openLog()
	for _, n := range f.files() {
		if strings.HasSuffix(n, temporary) {
			t.Errorf("%s is still there", n)
		}
	}
	if len(f.found.Quarantined) != 0 {
		t.Errorf("quarantined %v", f.found.Quarantined)
	}
}

func TestStore_quarantineAStream(t *testing.T) {
	f := memFixture(t)
	f.sync()
	f.must(f.store.Quarantine(testIncarnation))
	kept, err := f.fs.List("data/" + quarantineDir)
	if err != nil || len(kept) != 1 || len(f.store.List()) != 0 {
		t.Errorf("kept %v, %v", kept, err)
	}
}

func TestParseDirName(t *testing.T) {
	good := dirName("/orders", 0xfedcba9876543210)
	if hash, inc, ok := ParseDirName(good); !ok || hash != Hash("/orders") || inc != 0xfedcba9876543210 {
		t.Errorf("%s: %s, %s, %v", good, hash, inc, ok)
	}
	for _, bad := range []string{
		"", "orders", good[1:], good + "0", strings.ToUpper(good), strings.Replace(good, "-", "_", 1),
		"zz" + good[2:], good[:20] + "xx" + good[22:],
	} {
		if _, _, ok := ParseDirName(bad); ok {
			t.Errorf("%q is taken for ours", bad)
		}
	}
}

// Opening finds an end that a checkpoint bounds: little is read however long the
// segment is, and a checkpoint that is stale, cut or flipped is no harm.
func TestCheckpoint(t *testing.T) {
	build := func() *fixture {
		f := newFixture(t, vfs.NewMem(), "data")
		f.log.Configure(Config{CheckpointBytes: 2000})
		f.config = f.log.Config()
		f.barrier()
		for range 26 {
			f.publish(2, 40)
			f.sync()
		}
		return f
	}
	f := build()
	size := f.log.summary.Size
	f.kill()
	f.wantAll(0, 104)
	if f.found.ReadBytes == 0 || f.found.ReadBytes > 2*2000 {
		t.Errorf("read %d of %d bytes", f.found.ReadBytes, size)
	}
	full, want := f.log.tracking, f.log.summary
	f = build()
	must(t, f.log.Close())
	f.openLog()
	if f.found.ReadBytes != 0 {
		t.Errorf("read %d bytes after a clean stop", f.found.ReadBytes)
	}
	f = build()
	f.must(f.store.Close())
	f.must(f.fs.Remove(f.log.file(checkpointName)))
	f.open()
	f.openLog()
	if f.found.ReadBytes != size || !sameSummary(&f.log.summary, &want) {
		t.Errorf("read %d bytes; from the head\n%+v, from the checkpoint\n%+v", f.found.ReadBytes, f.log.summary, want)
	}
	for name, change := range map[string]func([]byte) []byte{
		"cut":       func(b []byte) []byte { return b[:len(b)/2] },
		"flipped":   func(b []byte) []byte { b[len(b)/2] ^= 1; return b },
		"empty":     func([]byte) []byte { return nil },
		"another's": func(b []byte) []byte { b[4] ^= 1; return b },
	} {
		t.Run(name, func(t *testing.T) {
			f := build()
			f.must(f.store.Close())
			f.edit(checkpointName, change)
			f.open()
			f.openLog()
			f.wantAll(0, 104)
			if !sameSummary(&f.log.summary, &want) || trackingBytes(t, f.log.tracking) != trackingBytes(t, full) {
				t.Error("the log is not the same")
			}
		})
	}
	t.Run("older than a cut", func(t *testing.T) {
		f := build()
		old, err := vfs.ReadFile(f.fs, f.log.file(checkpointName))
		f.must(err)
		f.log.commit.Store(0)
		_, err = f.log.Truncate(5)
		f.must(err)
		f.elect()
		f.publish(60, 40)
		f.sync()
		f.must(f.store.Close())
		f.edit(checkpointName, func([]byte) []byte { return old })
		f.open()
		f.openLog()
		f.wantAll(0, 128)
		if f.log.Err() != nil {
			t.Error(f.log.Err())
		}
	})
}

// Chunks of any size class go round the pool without mixing.
func TestChunk_pool(t *testing.T) {
	for _, n := range []int{0, 1, 1024, 1025, 70_000, chunk.DataLengthTarget, chunk.DataLengthTarget + 1} {
		c := NewChunk(n)
		if cap(c.Data) < n || len(c.Data) != 0 || len(c.Head) != 0 {
			t.Errorf("%d bytes: data %d of %d", n, len(c.Data), cap(c.Data))
		}
		c.Retain()
		c.Data = append(c.Data, 1)
		c.Release()
		if len(c.Data) != 1 {
			t.Error("released while a count was left")
		}
		c.Release()
	}
	defer func() {
		if recover() == nil {
			t.Error("releasing twice went unnoticed")
		}
	}()
	c := &Chunk{}
	c.refs.Store(1)
	c.Release()
	c.Release()
}

// The cache keeps the newest chunks of all logs within its bound.
func TestCache_evictsTheOldest(t *testing.T) {
	c := &cache{max: 5 << 10}
	var a, b cachedLog
	put := func(l *cachedLog, lsn chunk.LSN) {
		ch := &Chunk{Header: chunk.Header{LSN: lsn}, Data: make([]byte, 0, 1<<10)}
		ch.refs.Store(1)
		c.put(l, ch)
		ch.Release()
	}
	has := func(l *cachedLog, lsn chunk.LSN) bool {
		ch := c.get(l, lsn)
		if ch == nil {
			return false
		}
		defer ch.Release()
		return ch.Header.LSN == lsn
	}
	for i := range chunk.LSN(4) {
		put(&a, 10+i)
	}
	put(&b, 1)
	put(&b, 2)
	if has(&a, 10) || !has(&a, 11) || !has(&b, 1) || !has(&b, 2) {
		t.Error("not the oldest one was evicted")
	}
	c.cut(&a, 11)
	if has(&a, 12) || has(&a, 13) || !has(&a, 11) {
		t.Error("the cut kept the wrong ones")
	}
	put(&a, 12)
	put(&a, 20) // leaves a gap: what was before is dropped
	if has(&a, 12) || !has(&a, 20) {
		t.Error("a gap in the LSNs")
	}
	for i := range chunk.LSN(20) {
		put(&b, 3+i)
	}
	if s := c.snapshot(); s.Bytes > s.BytesMax || s.Chunks != 5 || !has(&b, 22) || has(&a, 20) {
		t.Errorf("%+v", s)
	}
	c.cut(&b, 0)
	c.cut(&a, 0)
	if s := c.snapshot(); s.Bytes != 0 || s.Chunks != 0 {
		t.Errorf("%+v", s)
	}
	if !slices.Equal([]int{a.chunks.len(), b.chunks.len()}, []int{0, 0}) {
		t.Error("chunks are left")
	}
}

// A data directory whose parents had to be made too survives a power loss.
func TestNewStore_makesParentsDurable(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "var/lib/millrace")
	f.barrier()
	f.publish(2, 20)
	f.sync()
	f.powerOff()
	f.wantAll(0, 4)
}
