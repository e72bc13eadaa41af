package segstore

import "sync"

// sharedSync does a sync for all who want it: whoever asks while one runs shares
// the next, since the running one may have begun before what he has done.
//
//	asked for  a      b c      d
//	sync       |--a--||--b,c--||--d--|
type sharedSync struct {
	turn sync.Mutex // held while a sync runs
	mu   sync.Mutex // guards next and its callers; taken inside of turn
	next *syncRound // that has not begun
}

type syncRound struct {
	callers int           // that it answers
	over    chan struct{} // closed when err is set
	err     error
}

// do returns what a sync said that began after the call.
func (s *sharedSync) do(sync func() error) error {
	s.mu.Lock()
	r := s.next
	mine := r == nil
	if mine {
		r = &syncRound{over: make(chan struct{})}
		s.next = r
	}
	r.callers++
	s.mu.Unlock()
	if !mine {
		<-r.over
		return r.err
	}
	s.turn.Lock()
	defer s.turn.Unlock()
	s.mu.Lock()
	s.next = nil // who comes now shares the one behind
	s.mu.Unlock()
	r.err = sync()
	close(r.over)
	return r.err
}
