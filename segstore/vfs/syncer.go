package vfs

import (
	"errors"
	"sync"
	"time"
)

// ErrPoisoned reports a sync of a file one of whose syncs has failed before:
// the system may have dropped the bytes and called them clean, so no later
// success is believed. The cause is wrapped beside it.
var ErrPoisoned = errors.New("vfs: an earlier sync of this file failed")

// ErrSyncerClosed reports a request made after Close.
var ErrSyncerClosed = errors.New("vfs: syncer is closed")

// Syncer makes files durable, for all streams of a node. Requests for a file
// that come while a sync of it runs are all covered by its next one, so the
// slower the disk, the bigger the batches.
//
//	request a      b c      d
//	sync    |--1--|   |--2--|   |--3--|        one at a time for each file
//	covers     –        a,b,c      d           b, c came while 1 or the turn ran
//
// Different files are synced side by side, up to a limit. Without requests it
// owns no goroutine.
type Syncer struct {
	parallel int

	// mu guards everything below; it is never held over a sync or a callback.
	mu    sync.Mutex
	idle  sync.Cond
	files map[File]*fileSyncs // with requests, a running sync, or poisoned
	// queue holds each file at most once, none that is being synced; the oldest
	// is at first.
	queue   []*fileSyncs
	first   int
	workers int // Invariant: workers ≤ parallel
	closed  bool
	spare   []*fileSyncs
	run     func() // work, bound once
	stats   SyncStats

	// inline Syncers (inline.go) have no workers and no queue.
	inline, hold bool
	held         *fileSyncs
	later        func(sync func())
	deferred     []*fileSyncs // those that later was asked about, in that order
}

// fileSyncs holds the requests for one file.
type fileSyncs struct {
	file    File
	waiting []func(error) // for the next sync
	covered []func(error) // by the one that runs
	active  bool          // in the queue or at a worker
	// deferred: an inline Syncer has asked when to sync.
	deferred bool
	poison   error
}

// SyncStats counts a Syncer's work since its start.
type SyncStats struct {
	Requests uint64
	Syncs    uint64 // system calls made
	Failures uint64 // system calls failed
	Waiting  int    // requests not yet answered
	Running  int    // workers at work now
	Busy     time.Duration
	Longest  time.Duration
}

// NewSyncer returns a Syncer that syncs up to parallel files at once (at least
// one).
func NewSyncer(parallel int) *Syncer {
	s := &Syncer{parallel: max(parallel, 1), files: make(map[File]*fileSyncs)}
	s.idle.L = &s.mu
	s.run = s.work
	return s
}

// Submit asks for everything written to f before the call to become durable,
// and calls done with the outcome, once, on another goroutine. The calls for
// one file come in the order of its requests; the next sync of the file waits
// for them, so done must be short and must not wait for another sync.
func (s *Syncer) Submit(f File, done func(error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Requests++
	s.stats.Waiting++
	fs := s.files[f]
	if fs == nil {
		fs = s.take(f)
	}
	fs.waiting = append(fs.waiting, done)
	switch {
	case s.inline:
		s.submitInline(fs)
	case !fs.active:
		s.enqueue(fs)
	}
}

// Forget drops the memory of a failed sync of f. The owner calls it when it
// closes the file; the same bytes are believed again only through a new File.
func (s *Syncer) Forget(f File) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if fs := s.files[f]; fs != nil && !fs.active && len(fs.waiting) == 0 {
		delete(s.files, f)
	}
}

// Close waits until every request made before it is answered. Requests made
// after it fail with ErrSyncerClosed.
func (s *Syncer) Close() error {
	if s.inline {
		s.Resume()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	for s.workers > 0 {
		s.idle.Wait()
	}
	return nil
}

// Stats returns the counts so far.
func (s *Syncer) Stats() SyncStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := s.stats
	st.Running = s.workers
	return st
}

func (s *Syncer) take(f File) *fileSyncs {
	var fs *fileSyncs
	if n := len(s.spare); n > 0 {
		fs, s.spare = s.spare[n-1], s.spare[:n-1]
	} else {
		fs = new(fileSyncs)
	}
	fs.file = f
	s.files[f] = fs
	if s.closed {
		fs.poison = ErrSyncerClosed
	}
	return fs
}

func (s *Syncer) enqueue(fs *fileSyncs) {
	fs.active = true
	s.push(fs)
	if s.workers < s.parallel {
		s.workers++
		go s.run()
	}
}

// push adds a file to the queue, in the room of those that have left it.
func (s *Syncer) push(fs *fileSyncs) {
	if len(s.queue) == cap(s.queue) && s.first > 0 {
		n := copy(s.queue, s.queue[s.first:])
		clear(s.queue[n:])
		s.queue, s.first = s.queue[:n], 0
	}
	s.queue = append(s.queue, fs)
}

// work syncs queued files until none is left.
func (s *Syncer) work() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.first < len(s.queue) {
		fs := s.queue[s.first]
		s.queue[s.first] = nil
		s.first++
		if s.first == len(s.queue) {
			s.queue, s.first = s.queue[:0], 0
		}
		s.syncOne(fs)
		if len(fs.waiting) > 0 {
			s.push(fs)
			continue
		}
		s.retire(fs)
	}
	s.workers--
	if s.workers == 0 {
		s.idle.Broadcast()
	}
}

// syncOne runs one sync and answers the requests it covers. It is entered and
// left with mu held.
func (s *Syncer) syncOne(fs *fileSyncs) {
	fs.covered, fs.waiting = fs.waiting, fs.covered[:0]
	err := fs.poison
	s.mu.Unlock()
	var took time.Duration
	ran := err == nil
	if ran {
		start := time.Now()
		err = fs.file.Datasync()
		took = time.Since(start)
	}
	for i, done := range fs.covered {
		fs.covered[i] = nil
		done(err)
	}
	s.mu.Lock()
	s.stats.Waiting -= len(fs.covered)
	if !ran {
		return
	}
	s.stats.Syncs++
	s.stats.Busy += took
	s.stats.Longest = max(s.stats.Longest, took)
	if err != nil {
		s.stats.Failures++
		fs.poison = errors.Join(ErrPoisoned, err)
	}
}

// spareMax bounds the records kept for reuse: a few for each file that a busy
// node syncs at once.
const spareMax = 64

func (s *Syncer) retire(fs *fileSyncs) {
	fs.active = false
	if fs.poison != nil && !s.closed {
		return // remembered until Forget
	}
	delete(s.files, fs.file)
	fs.file, fs.poison = nil, nil
	if len(s.spare) < spareMax {
		s.spare = append(s.spare, fs)
	}
}
