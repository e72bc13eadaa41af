package vfs

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

// Resume answers the request that Hold made wait, if there is one.
func (s *Syncer) Resume() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hold = false
	if held := s.held; held != nil {
		s.runInline(held)
	}
}

// submitInline is Submit, entered and left with mu held.
func (s *Syncer) submitInline(fs *fileSyncs) {
	switch {
	case fs.active:
		return // the loop below, further up the stack, takes it
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
