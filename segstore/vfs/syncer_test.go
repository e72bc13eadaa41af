package vfs

import (
	"errors"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
)

// gatedFile is a file whose syncs begin and end as the test says.
type gatedFile struct {
	File
	began  chan struct{}
	finish chan error
}

func newGatedFile() *gatedFile {
	return &gatedFile{began: make(chan struct{}, 100), finish: make(chan error, 100)}
}

func (f *gatedFile) Datasync() error {
	f.began <- struct{}{}
	return <-f.finish
}

func TestSyncer_joinsRequestsMadeDuringASync(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := NewSyncer(2), newGatedFile()
		var got []string
		submit := func(name string) {
			s.Submit(f, func(err error) {
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				got = append(got, name)
			})
		}
		submit("a")
		<-f.began
		submit("b")
		submit("c")
		synctest.Wait()
		if len(f.began) != 0 {
			t.Fatal("two syncs of one file at once")
		}
		f.finish <- nil
		<-f.began
		synctest.Wait()
		if !slices.Equal(got, []string{"a"}) {
			t.Fatalf("the first sync answered %q", got)
		}
		f.finish <- nil
		must(t, s.Close())
		if !slices.Equal(got, []string{"a", "b", "c"}) {
			t.Fatalf("answered %q", got)
		}
		st := s.Stats()
		if st.Requests != 3 || st.Syncs != 2 || st.Waiting != 0 || st.Running != 0 || st.Failures != 0 {
			t.Fatalf("stats %+v", st)
		}
	})
}

func TestSyncer_boundsParallelSyncs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const parallel, files = 3, 10
		s, f := NewSyncer(parallel), newGatedFile()
		answered := 0
		for range files {
			// Each is a file of its own that shares the gates.
			s.Submit(&gatedFile{began: f.began, finish: f.finish}, func(error) {})
		}
		for answered < files {
			synctest.Wait()
			if running := len(f.began); running != min(parallel, files-answered) {
				t.Fatalf("%d syncs at once after %d", running, answered)
			}
			<-f.began
			f.finish <- nil
			answered++
		}
		must(t, s.Close())
	})
}

func TestSyncer_believesNothingAfterAFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := NewSyncer(1), newGatedFile()
		var errs []error
		note := func(err error) { errs = append(errs, err) }
		s.Submit(f, note)
		<-f.began
		s.Submit(f, note) // waits for the next sync, which must not happen
		f.finish <- errDisk
		synctest.Wait()
		s.Submit(f, note)
		synctest.Wait()
		if len(errs) != 3 || len(f.began) != 0 {
			t.Fatalf("%d answers, %d more syncs", len(errs), len(f.began))
		}
		for i, err := range errs {
			if !errors.Is(err, errDisk) || errors.Is(err, ErrPoisoned) != (i > 0) {
				t.Errorf("answer %d: %v", i, err)
			}
		}
		other := newGatedFile()
		other.finish <- nil
		var otherErr error
		s.Submit(other, func(err error) { otherErr = err })
		synctest.Wait()
		must(t, otherErr)
		s.Forget(f)
		f.finish <- nil
		s.Submit(f, note)
		synctest.Wait()
		if len(errs) != 4 || errs[3] != nil {
			t.Fatalf("after Forget: %v", errs)
		}
		must(t, s.Close())
	})
}

func TestSyncer_closeDrainsAndRefuses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, f := NewSyncer(1), newGatedFile()
		answers := make(chan error, 3)
		s.Submit(f, func(err error) { answers <- err })
		<-f.began
		s.Submit(f, func(err error) { answers <- err })
		closed := make(chan struct{})
		go func() {
			_ = s.Close()
			close(closed)
		}()
		synctest.Wait()
		select {
		case <-closed:
			t.Fatal("closed before its requests were answered")
		default:
		}
		f.finish <- nil
		f.finish <- nil
		<-closed
		must(t, <-answers)
		must(t, <-answers)
		s.Submit(f, func(err error) { answers <- err })
		if err := <-answers; !errors.Is(err, ErrSyncerClosed) {
			t.Fatalf("after Close: %v", err)
		}
	})
}

func TestSyncer_queueStaysSmallUnderSteadyLoad(t *testing.T) {
	m := NewMem()
	s := NewSyncer(1)
	var files [8]File
	for i := range files {
		files[i] = create(t, m, string(rune('a'+i)), "")
	}
	// Each answer asks again, so that the queue is never empty.
	var rounds atomic.Int32
	var again [len(files)]func(error)
	for i, f := range files {
		again[i] = func(error) {
			if rounds.Add(1) < 10_000 {
				s.Submit(f, again[i])
			}
		}
		s.Submit(f, again[i])
	}
	must(t, s.Close())
	if n := s.Stats().Syncs; n < 5000 {
		t.Fatalf("%d syncs", n)
	}
	if n := cap(s.queue); n > 4*len(files) {
		t.Fatalf("the queue has grown to %d places for %d files", n, len(files))
	}
}

func TestSyncer_makesRealFilesDurable(t *testing.T) {
	m := NewMem()
	s := NewSyncer(4)
	for _, name := range []string{"/a", "/b", "/c"} {
		f := create(t, m, name, "x")
		for range 10 {
			s.Submit(f, func(err error) {
				if err != nil {
					t.Error(err)
				}
			})
		}
	}
	must(t, m.SyncDir("/"))
	must(t, s.Close())
	if got := picture(t, m.Crash(Policy{}, nil)); got != "/a=x /b=x /c=x" {
		t.Fatalf("after a crash: %q", got)
	}
}

func BenchmarkSyncer_submit(b *testing.B) {
	m := NewMem()
	s := NewSyncer(2)
	f := create(b, m, "/a", "x")
	done := func(error) {}
	b.ReportAllocs()
	for b.Loop() {
		s.Submit(f, done)
	}
	_ = s.Close()
}
