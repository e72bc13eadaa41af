package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/cluster/catalog"
)

// brokenStore fails writes while broken is set, and its first writes with full.
type brokenStore struct {
	raft.LogStore
	raft.StableStore
	broken bool
	full   error
	after  int // writes that full fails
	writes int
}

var errDisk = errors.New("input/output error")

func (s *brokenStore) write() error {
	s.writes++
	if s.full != nil && s.writes <= s.after {
		return s.full
	}
	if s.broken {
		return errDisk
	}
	return nil
}

func (s *brokenStore) FirstIndex() (uint64, error)          { return 1, nil }
func (s *brokenStore) StoreLog(*raft.Log) error             { return s.write() }
func (s *brokenStore) StoreLogs([]*raft.Log) error          { return s.write() }
func (s *brokenStore) DeleteRange(uint64, uint64) error     { return s.write() }
func (s *brokenStore) Set([]byte, []byte) error             { return s.write() }
func (s *brokenStore) SetUint64(key []byte, v uint64) error { return s.write() }

// One failed write is the last: no later success is believed.
func TestLatch_closesForGood(t *testing.T) {
	for name, write := range map[string]func(l *latch) error{
		"entry":   func(l *latch) error { return l.StoreLog(&raft.Log{}) },
		"entries": func(l *latch) error { return l.StoreLogs(nil) },
		"cut":     func(l *latch) error { return l.DeleteRange(1, 2) },
		"vote":    func(l *latch) error { return l.Set(nil, nil) },
		"term":    func(l *latch) error { return l.SetUint64(nil, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			s := &brokenStore{}
			failures := 0
			l := newLatch(s, s, nullLog, func(error) { failures++ })
			if err := write(l); err != nil || failures != 0 {
				t.Fatal(err)
			}
			s.broken = true
			if err := write(l); !errors.Is(err, errDisk) || failures != 1 {
				t.Errorf("the failing write: %v, %d failures told", err, failures)
			}
			s.broken = false
			writes := s.writes
			for again, write := range map[string]func() error{
				"entry": func() error { return l.StoreLog(&raft.Log{}) }, "entries": func() error { return l.StoreLogs(nil) },
				"cut": func() error { return l.DeleteRange(1, 2) }, "vote": func() error { return l.Set(nil, nil) },
				"term": func() error { return l.SetUint64(nil, 1) },
			} {
				if err := write(); !errors.Is(err, ErrFailed) {
					t.Errorf("%s afterwards: %v", again, err)
				}
			}
			if s.writes != writes || failures != 1 {
				t.Errorf("%d writes went through, %d failures told", s.writes-writes, failures)
			}
		})
	}
}

// A write that did not take place for want of space is tried again until there
// is some; nothing else is.
func TestLatch_waitsForSpace(t *testing.T) {
	noRoom := func(op string) error { return &fs.PathError{Op: op, Path: "raft.db", Err: syscall.ENOSPC} }
	tests := map[string]struct {
		full  error
		alone bool
		waits bool
	}{
		"one voter":             {noRoom("write"), true, true},
		"over its quota":        {&fs.PathError{Op: "write", Err: syscall.EDQUOT}, true, true},
		"one of several voters": {noRoom("write"), false, false},
		"at the sync":           {syscall.ENOSPC, true, false},
		"another failure":       {&fs.PathError{Op: "write", Err: syscall.EIO}, true, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				failures := 0
				s := &brokenStore{full: test.full, after: 3}
				l := newLatch(s, s, nullLog, func(error) { failures++ })
				l.alone.Store(test.alone)
				err := l.StoreLogs(nil)
				if !test.waits && (!errors.Is(err, test.full) || failures != 1 || s.writes != 1) || test.waits && (err != nil || failures != 0 || s.writes != 4) {
					t.Errorf("%d writes, %d failures told, answer %v", s.writes, failures, err)
				}
			})
		})
	}
}

// A node that is stopped while its disk is full does not wait, and raft, which
// cannot bear a term that is not kept, does not hear of it.
func TestLatch_releasedWhileItWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &brokenStore{full: &fs.PathError{Op: "write", Err: syscall.ENOSPC}, after: 1 << 30}
		l := newLatch(s, s, nullLog, func(err error) { t.Errorf("told to stop: %v", err) })
		l.alone.Store(true)
		time.AfterFunc(time.Minute, l.release)
		if err := l.StoreLogs(nil); !errors.Is(err, ErrStopped) {
			t.Errorf("entries: %v", err)
		}
		s.full = nil
		if err := l.SetUint64([]byte(currentTerm), 2); err != nil {
			t.Errorf("term: %v", err)
		}
		if err := l.Set([]byte("LastVoteCand"), []byte("n1")); !errors.Is(err, ErrFailed) {
			t.Errorf("a vote in a term that was not kept: %v", err)
		}
	})
}

// The node is told to stop, calls fail with the reason, reads go on.
func TestCluster_failedStoreStopsTheNode(t *testing.T) {
	c := open(t, t.TempDir(), newReplicas(newDisk(), 1))
	create(t, c, "s")
	s := &brokenStore{broken: true}
	c.meta.store.latched.LogStore = s // nothing is under way on an idle node
	err := c.CreateVHost(within(t), "", "v")
	if !errors.Is(err, ErrFailed) || !errors.Is(err, errDisk) {
		t.Errorf("call: %v", err)
	}
	select {
	case <-c.Failed():
	case <-time.After(patience):
		t.Fatal("the node is not told to stop")
	}
	if err := c.Err(); !errors.Is(err, errDisk) || !strings.Contains(err.Error(), "store raft log") {
		t.Errorf("reason: %v", err)
	}
	if _, ok := c.View().Stream("/", "s"); !ok {
		t.Error("reads ended too")
	}
}

// A command that this version does not know stops the node; nothing behind it
// is applied, and no snapshot is made of the state that lacks it.
func TestCluster_unknownCommandStopsTheNode(t *testing.T) {
	dir := t.TempDir()
	c := open(t, dir, newReplicas(newDisk(), 1))
	later := []byte(`{"v":1,"type":"stream.polish","at":1,"body":{}}`)
	if err := c.meta.instance().Apply(later, time.Second).Error(); err != nil {
		t.Fatal(err)
	}
	<-c.Failed()
	if err := c.Err(); !errors.Is(err, catalog.ErrUnknownCommand) || !strings.Contains(err.Error(), "upgrade this node") {
		t.Errorf("reason: %v", err)
	}
	if err := c.CreateVHost(within(t), "", "v"); !errors.Is(err, ErrFailed) {
		t.Errorf("call: %v", err)
	}
	if _, ok := c.View().VHost("v"); ok {
		t.Error("a command behind the unknown one was applied")
	}
	if err := c.meta.instance().Snapshot().Error(); err == nil {
		t.Error("a snapshot without the unknown command")
	}
	c.Close()
	// The next start meets it again and says so.
	if c, err := Open(context.Background(), Config{Dir: dir, Node: "n1", Fencer: newReplicas(newDisk(), 1)}); !errors.Is(err, catalog.ErrUnknownCommand) {
		t.Errorf("the next start: %v", err)
		if err == nil {
			c.Close()
		}
	}
}

func TestMachine_refusesASnapshotOfALaterVersion(t *testing.T) {
	var reason error
	m := &machine{view: new(atomic.Pointer[catalog.State]), shown: new(watermark), told: &listeners{}, failed: func(err error) { reason = err }, state: catalog.New()}
	later := io.NopCloser(strings.NewReader(`{"format":99}`))
	if err := m.Restore(later); !errors.Is(err, catalog.ErrNewerVersion) || !errors.Is(reason, catalog.ErrNewerVersion) {
		t.Errorf("restore: %v, told %v", err, reason)
	}
	if got := m.Apply(&raft.Log{Index: 9, Type: raft.LogCommand}); !errors.Is(got.(error), ErrFailed) {
		t.Errorf("applied behind it: %v", got)
	}
}

// What was published before is not shown or told again while it is applied
// again, however many batches that takes.
func TestMachine_holdsTheViewWhileItCatchesUp(t *testing.T) {
	entry := func(index uint64, name string) *raft.Log {
		command := catalog.Command{Body: &catalog.CreateVHost{Name: name}}
		return &raft.Log{Index: index, Type: raft.LogCommand, Data: command.Encode()}
	}
	view := new(atomic.Pointer[catalog.State])
	view.Store(catalog.New())
	told := 0
	l := &listeners{}
	l.add(func([]catalog.Change) { told++ })
	fail := func(err error) { t.Error(err) }
	first := &machine{view: view, shown: new(watermark), told: l, failed: fail, state: catalog.New()}
	for i, name := range []string{"a", "b", "c"} {
		first.Apply(entry(uint64(i+1), name))
	}
	published := view.Load()
	told = 0
	second := &machine{view: view, shown: new(watermark), told: l, failed: fail, state: catalog.New(), hold: first.applied}
	for i, name := range []string{"a", "b"} {
		second.Apply(entry(uint64(i+1), name))
		if view.Load() != published || told != 0 {
			t.Fatalf("at entry %d the view is at version %d, told %d times", i+1, view.Load().Version(), told)
		}
	}
	second.ApplyBatch([]*raft.Log{entry(3, "c"), entry(4, "d")})
	if _, ok := view.Load().VHost("d"); !ok || told != 1 {
		t.Errorf("beyond it the view is at version %d, told %d times", view.Load().Version(), told)
	}
}

// Raft on the same store with other timing: the view stays, nothing is told
// twice, calls go on. This is what precedes a second voter.
func TestReopen_keepsAll(t *testing.T) {
	c := open(t, t.TempDir(), newReplicas(newDisk(), 1))
	for i := range 5 {
		create(t, c, fmt.Sprintf("s%d", i))
	}
	told := 0
	seen := c.View().Version()
	cancel := c.Subscribe(func([]catalog.Change) {
		told++
		if v := c.View().Version(); v < seen {
			t.Errorf("the view went back from %d to %d", seen, v)
		} else {
			seen = v
		}
	})
	view := c.View()
	if err := c.meta.reopen(timing{100 * time.Millisecond, 100 * time.Millisecond, 50 * time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if c.View() != view {
		t.Error("the view moved")
	}
	create(t, c, "after")
	if err := c.DeleteStream(within(t), "/", "s0"); err != nil {
		t.Fatal(err)
	}
	cancel()
	if n := c.View().StreamCount(); n != 5 || told < 2 {
		t.Errorf("%d streams, told %d times", n, told)
	}
	if s, _ := c.View().Stream("/", "s1"); s.Epoch != 1 {
		t.Errorf("a reopening of the metadata cost stream s1 its epoch: %d", s.Epoch)
	}
}

// TestEnter_saysThatTheDiskIsFull: a start that waits for room on the node's own
// disk does not blame the others.
func TestEnter_saysThatTheDiskIsFull(t *testing.T) {
	c := open(t, t.TempDir(), newReplicas(newDisk(), 1))
	if line, _ := c.whatLacks(); !strings.Contains(line, "other nodes") {
		t.Errorf("with room: %q", line)
	}
	c.meta.store.latched.waits.Store(true)
	defer c.meta.store.latched.waits.Store(false)
	if line, figures := c.whatLacks(); !strings.Contains(line, "space on this node's disk") || len(figures) == 0 {
		t.Errorf("without: %q %v", line, figures)
	}
}
