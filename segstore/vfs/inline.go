package vfs

import "slices"

// NewInlineSyncer returns a Syncer without goroutines: Submit syncs and answers
// before it returns. The order of operations on the disk then follows from the
// order of calls alone, which simulations and walks over crash states need. One
// goroutine at a time may use it.
func NewInlineSyncer() *Syncer {
	s := NewSyncer(1)
	s.inline = true
	return s
}

// Hold makes an inline Syncer keep its next request, as if the disk were slow:
// what is written meanwhile is written while a sync is in flight. The next
// request for the same file covers both; Resume ends the wait for any.
func (s *Syncer) Hold() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = true
}

// Defer makes an inline Syncer ask, for each file with a new request, when to
// sync it: later gets a function that does so, to be called once, or never if
// the power fails before. Other requests for the file until then are covered by
// the same sync. Resume ends the waits of all.
func (s *Syncer) Defer(later func(sync func())) { s.later = later }

// Resume answers what Hold and Defer made wait. Another Syncer needs none.
func (s *Syncer) Resume() {
	if !s.inline {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = false
	if held := s.held; held != nil {
		s.runInline(held)
	}
	for len(s.deferred) > 0 {
		fs := s.deferred[0]
		s.deferred = s.deferred[1:]
		s.undefer(fs)
	}
}

// undefer syncs a deferred file, if it still waits.
func (s *Syncer) undefer(fs *fileSyncs) {
	if fs.deferred {
		fs.deferred = false
		s.runInline(fs)
	}
}

func (s *Syncer) deferOne(fs *fileSyncs) {
	if fs.deferred {
		return
	}
	fs.deferred = true
	s.deferred = append(s.deferred, fs)
	s.later(func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if i := slices.Index(s.deferred, fs); i >= 0 {
			s.deferred = slices.Delete(s.deferred, i, i+1)
			s.undefer(fs)
		}
	})
}

// submitInline is Submit, entered and left with mu held.
func (s *Syncer) submitInline(fs *fileSyncs) {
	switch {
	case fs.active:
		return // the loop below, further up the stack, takes it
	case s.later != nil:
		s.deferOne(fs)
	case s.hold && s.held == nil:
		s.hold, s.held = false, fs
	default:
		s.runInline(fs)
	}
}

func (s *Syncer) runInline(fs *fileSyncs) {
	if fs == s.held {
		s.held = nil
	}
	fs.active = true
	for len(fs.waiting) > 0 {
		s.syncOne(fs)
	}
	s.retire(fs)
}
