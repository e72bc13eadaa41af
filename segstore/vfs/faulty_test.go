package vfs

import (
	"errors"
	"io"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

var errDisk = syscall.EIO

func TestFaulty_strikesByOperationPathAndCount(t *testing.T) {
	for _, c := range []struct {
		name string
		rule Rule
		want [4]bool // which of: write a, write a, write b, sync a fail
	}{
		{"each write", Rule{Ops: OpWrite}, [4]bool{true, true, true, false}},
		{"one file", Rule{Ops: OpWrite, Path: "a*"}, [4]bool{true, true, false, false}},
		{"one file by its whole name", Rule{Ops: OpWrite | OpSync, Path: "/d/a.seg"}, [4]bool{true, true, false, true}},
		{"the second", Rule{Ops: OpWrite, After: 1, Times: 1}, [4]bool{false, true, false, false}},
		{"from the third on", Rule{Ops: OpWrite | OpSync, After: 2}, [4]bool{false, false, true, true}},
		{"another operation", Rule{Ops: OpTruncate}, [4]bool{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := NewMem()
			must(t, m.MkdirAll("/d", 0o755))
			faulty := NewFaulty(m)
			a, b := create(t, faulty, "/d/a.seg", ""), create(t, faulty, "/d/b.seg", "")
			c.rule.Err = errDisk
			rule := faulty.Add(c.rule)
			var got [4]bool
			for i, f := range []File{a, a, b} {
				_, err := f.WriteAt([]byte("x"), 0)
				got[i] = errors.Is(err, errDisk)
			}
			got[3] = errors.Is(a.Sync(), errDisk)
			hits := 0
			for _, failed := range got {
				if failed {
					hits++
				}
			}
			if got != c.want || faulty.Hits(rule) != hits {
				t.Fatalf("failed %v (%d hits), want %v", got, faulty.Hits(rule), c.want)
			}
			faulty.Lift(rule)
			for _, f := range []File{a, b} {
				_, err := f.WriteAt([]byte("x"), 0)
				must(t, err)
				must(t, f.Sync())
			}
		})
	}
}

func TestFaulty_everyOperationCanFail(t *testing.T) {
	m := NewMem()
	faulty := NewFaulty(m)
	f := create(t, faulty, "/a", "abc")
	buf := make([]byte, 1)
	calls := map[Op]func() error{
		OpOpen:      func() error { _, err := faulty.OpenFile("/a", os.O_RDONLY, 0); return err },
		OpCreate:    func() error { _, err := faulty.OpenFile("/new", os.O_RDWR|os.O_CREATE, 0o644); return err },
		OpRead:      func() error { _, err := f.ReadAt(buf, 0); return err },
		OpWrite:     func() error { _, err := f.WriteAt(buf, 0); return err },
		OpTruncate:  func() error { return f.Truncate(1) },
		OpSync:      f.Datasync,
		OpSize:      func() error { _, err := f.Size(); return err },
		OpRemove:    func() error { return faulty.Remove("/a") },
		OpRename:    func() error { return faulty.Rename("/a", "/b") },
		OpMkdir:     func() error { return faulty.MkdirAll("/d", 0o755) },
		OpList:      func() error { _, err := faulty.List("/"); return err },
		OpStat:      func() error { _, err := faulty.Stat("/a"); return err },
		OpSyncDir:   func() error { return faulty.SyncDir("/") },
		OpFreeSpace: func() error { _, err := faulty.FreeSpace("/"); return err },
		OpLock:      func() error { _, err := faulty.Lock("/l"); return err },
		OpClose:     func() error { return f.Close() },
	}
	if len(calls) != len(opNames) {
		t.Fatalf("%d operations tried of %d", len(calls), len(opNames))
	}
	before := picture(t, m)
	for i := range opNames { // close is not the last: it comes before remove
		op := Op(1) << i
		if op == OpClose {
			continue
		}
		rule := faulty.Add(Rule{Ops: op, Fault: Fault{Err: syscall.EMFILE}})
		if err := calls[op](); !errors.Is(err, syscall.EMFILE) {
			t.Errorf("%v: %v", op, err)
		}
		faulty.Lift(rule)
	}
	if after := picture(t, m); after != before {
		t.Fatalf("failed operations changed %q to %q", before, after)
	}
	faulty.Add(Rule{Ops: OpClose, Fault: Fault{Err: errDisk}})
	if err := calls[OpClose](); !errors.Is(err, errDisk) {
		t.Errorf("close: %v", err)
	}
}

func TestFaulty_shortWrites(t *testing.T) {
	m := NewMem()
	faulty := NewFaulty(m)
	f := create(t, faulty, "/a", "")
	faulty.Add(Rule{Ops: OpWrite, Times: 1, Fault: Fault{Short: 3}})
	faulty.Add(Rule{Ops: OpWrite, Times: 1, Fault: Fault{Short: 1, Err: syscall.ENOSPC}})
	n, err := f.WriteVAt([][]byte{[]byte("ab"), []byte("cd")}, 0)
	if n != 3 || !errors.Is(err, io.ErrShortWrite) {
		t.Fatalf("first write: %d, %v", n, err)
	}
	n, err = f.WriteAt([]byte("xyz"), 3)
	if n != 1 || !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("second write: %d, %v", n, err)
	}
	wantContent(t, m, "/a", "abcx")
}

func TestFaulty_misdirectsAndRots(t *testing.T) {
	m := NewMem()
	faulty := NewFaulty(m)
	f := create(t, faulty, "/a", "........")
	faulty.Add(Rule{Ops: OpWrite, Times: 1, Fault: Fault{Shift: 4}})
	n, err := f.WriteAt([]byte("xy"), 1)
	if n != 2 || err != nil {
		t.Fatalf("misdirected write says %d, %v", n, err)
	}
	wantContent(t, m, "/a", ".....xy.")
	faulty.Add(Rule{Ops: OpRead, Fault: Fault{Rot: 1, RotAt: 5}})
	buf := make([]byte, 3)
	_, err = f.ReadAt(buf, 4)
	must(t, err)
	if string(buf) != ".yy" {
		t.Fatalf("read %q", buf)
	}
	_, err = f.ReadAt(buf, 0) // does not cover the rotten byte
	must(t, err)
	if string(buf) != "..." {
		t.Fatalf("read %q", buf)
	}
}

func TestFaulty_slowAndHanging(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		faulty := NewFaulty(NewMem())
		f := create(t, faulty, "/a", "x")
		faulty.Add(Rule{Ops: OpSync, Times: 1, Fault: Fault{Delay: time.Minute}})
		release := make(chan struct{})
		faulty.Add(Rule{Ops: OpSync, Times: 1, Fault: Fault{Hang: release}})
		start := time.Now()
		must(t, f.Sync())
		if took := time.Since(start); took != time.Minute {
			t.Fatalf("slow sync took %v", took)
		}
		done := make(chan error, 1)
		go func() { done <- f.Sync() }()
		synctest.Wait()
		select {
		case <-done:
			t.Fatal("hanging sync returned")
		default:
		}
		_, err := f.WriteAt([]byte("y"), 0) // others go on meanwhile
		must(t, err)
		close(release)
		must(t, <-done)
	})
}
