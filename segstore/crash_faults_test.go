package segstore_test

import (
	"fmt"
	"syscall"
	"testing"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// diskFaults are what may strike one operation.
var diskFaults = []struct {
	name string
	vfs.Fault
}{
	{"full disk", vfs.Fault{Err: syscall.ENOSPC}},
	{"full disk, some bytes written", vfs.Fault{Err: syscall.ENOSPC, Short: 700}},
	{"full disk, most bytes written", vfs.Fault{Err: syscall.ENOSPC, Short: 1800}},
	{"short write", vfs.Fault{Short: 60}},
	{"I/O error, bytes stay dirty", vfs.Fault{Err: syscall.EIO, Sync: vfs.BytesStayDirty}},
	{"I/O error, bytes called clean", vfs.Fault{Err: syscall.EIO, Sync: vfs.BytesLostAtCrash}},
	{"I/O error, bytes dropped", vfs.Fault{Err: syscall.EIO, Sync: vfs.BytesDropped}},
	{"too many files", vfs.Fault{Err: syscall.EMFILE}},
}

// faultAt runs a script with one operation of its last step struck, and ends
// what is left of the log as its owner does, or by killing the process. It tells
// whether the last step has so many operations.
func (s script) faultAt(fault vfs.Fault, after int, kill bool) (struck bool, err error) {
	w, idle, err := s.setUp(true)
	for i := 0; err == nil && !idle && i < len(s.steps)-1; i++ {
		var does bool
		does, err = w.step(s.steps[i])
		idle = !does
	}
	if err != nil || idle {
		return false, err
	}
	rule := w.faulty.Add(vfs.Rule{Ops: vfs.OpChange | vfs.OpOpen | vfs.OpList, After: after, Times: 1, Fault: fault})
	_, failed := w.step(s.steps[len(s.steps)-1])
	struck = w.faulty.Hits(rule) > 0
	w.faulty.Lift(rule)
	if !struck {
		return false, failed
	}
	if err := w.afterFault(kill); err != nil {
		return true, fmt.Errorf("%w\n  the step said: %v", err, failed)
	}
	return true, nil
}

// afterFault brings the log back and holds it against the ghost.
func (w *world) afterFault(kill bool) error {
	if !kill && w.log != nil {
		if err := w.ownUp(); err != nil {
			return err
		}
	}
	w.process.dead = true
	out, err := w.recover(nil)
	if err != nil {
		return err
	}
	if err := w.sameAfterPowerLoss(out); err != nil {
		return err
	}
	return w.goesOn(out)
}

// ownUp does what a log's owner does after an error: a log that takes no chunk
// any more is closed and opened again; any other goes on.
func (w *world) ownUp() error {
	if w.log.Err() != nil {
		_ = w.log.Close() // says what was wrong once more
		if err := w.open(); err != nil {
			// What the journal does not take ends the node, not only the log.
			return w.restartAfter(err)
		}
		present, err := w.present()
		if err != nil {
			return err
		}
		w.ghost.histories = []history{present}
		w.reported(w.log.Durable())
		return nil
	}
	// Chunks that the log refused may be in the file, until a sync says that
	// what replaced them is.
	present, err := w.present()
	if err != nil {
		return err
	}
	again := w.refused(&present)
	w.ghost.rewrite(present)
	if again == nil {
		again = w.message()
	} else {
		w.add(again)
	}
	if err := w.append(again); err != nil {
		return fmt.Errorf("the log says that it goes on, but: %w", err)
	}
	if err := w.sync(); err != nil {
		return fmt.Errorf("the log says that it goes on, but: %w", err)
	}
	w.ghost.settle()
	return nil
}

// refused returns the first chunk that the log has not taken, so that it can be
// handed in once more; nil if it has taken all.
func (w *world) refused(present *history) *segstore.Chunk {
	l := w.ghost.now().at(present.tail().LSN + 1)
	if l == nil || l.Has(chunk.FlagSegmentStart) || len(l.data) == 0 {
		return nil
	}
	c := segstore.NewChunk(len(l.data))
	c.Head, c.Data, c.Header = append(c.Head, l.head...), append(c.Data, l.data...), l.Header
	return c
}

// present returns the history that a running log holds: a cut that could not be
// begun leaves the one before it.
func (w *world) present() (history, error) {
	tail, start := w.log.Tail(), w.log.LogStart().LSN
	for _, h := range w.ghost.histories {
		if start < h.from.LSN || tail.LSN > h.tail().LSN {
			continue
		}
		if h = h.cut(tail.LSN); h.tail() == tail && h.digest() == w.log.Digest() {
			return h, nil
		}
	}
	return history{}, fmt.Errorf("the log goes on at %s, which is none of its histories", tail)
}

func (w *world) restartAfter(cause error) error {
	_ = w.store.Close()
	w.process.dead = true
	if err := w.start(nil); err != nil {
		return fmt.Errorf("%w, after %w", err, cause)
	}
	if err := w.open(); err != nil {
		return fmt.Errorf("%w, after %w", err, cause)
	}
	return nil
}

// faultScripts are all of one or two steps in a long run, else all of one step,
// or each third, and some of two.
func faultScripts() (scripts []script) {
	single, double := 3*raceFactor, 97*raceFactor
	switch {
	case *crashLong:
		single, double = 1, 1
	case *crashFull:
		single = raceFactor
	}
	for n := 0; n < scriptsUpTo(2); n++ {
		s := scriptAt(n)
		if each := map[int]int{1: single, 2: double}[len(s.steps)]; n%each == 0 && (*crashLong || !s.big()) {
			scripts = append(scripts, s)
		}
	}
	return scripts
}

// Every operation of every step fails once, in every way: nothing that was
// reported is missing, nothing that failed is believed later, and the log goes
// on without help (design 3.7).
func TestFaults_everyOperationOfEveryStep(t *testing.T) {
	cases := 0
	for _, s := range faultScripts() {
		for _, fault := range diskFaults {
			for _, kill := range []bool{false, true} {
				for after := 0; ; after++ {
					struck, err := s.faultAt(fault.Fault, after, kill)
					if err != nil {
						t.Fatalf("%v\n  steps %s\n  %s at operation %d of the last one, killed after it: %v",
							err, s.tell(), fault.name, after+1, kill)
					}
					if !struck {
						break
					}
					cases++
				}
			}
		}
	}
	t.Logf("%d faults", cases)
	if cases < 1000/raceFactor {
		t.Errorf("only %d faults were struck", cases)
	}
}
