package segstore

import (
	"errors"
	"runtime"
	"testing"
)

// Whoever asks while a sync runs is not answered by it, and shares the next one
// with all who come meanwhile, its failure too.
func TestSharedSync(t *testing.T) {
	const many = 10
	var s sharedSync
	bad := errors.New("bad")
	running, release := make(chan struct{}), make(chan struct{})
	first, others := make(chan error), make(chan error)
	go func() {
		first <- s.do(func() error {
			close(running)
			<-release
			return nil
		})
	}()
	<-running
	runs := 0
	for range many {
		go func() {
			others <- s.do(func() error {
				runs++
				return bad
			})
		}()
	}
	for gathered := 0; gathered < many; runtime.Gosched() {
		s.mu.Lock()
		if s.next != nil {
			gathered = s.next.callers
		}
		s.mu.Unlock()
	}
	close(release)
	if err := <-first; err != nil {
		t.Errorf("the first sync says %v", err)
	}
	for range many {
		if err := <-others; !errors.Is(err, bad) {
			t.Errorf("one who came while the first ran was told %v", err)
		}
	}
	if runs != 1 {
		t.Errorf("%d syncs for %d who came while another ran", runs, many)
	}
	if err := s.do(func() error { return nil }); err != nil {
		t.Errorf("a failure stays: %v", err)
	}
}
