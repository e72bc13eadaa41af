package segstore

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
)

// CompactorOptions set how a node compacts.
type CompactorOptions struct {
	// BytesPerSecond bounds what is read for it: 20,000,000 by default.
	BytesPerSecond int64
	// Enter has f called as the log's mutator: once, now or later. It returns
	// false if f will not be called. A nil Enter calls it at once, for whoever
	// steps the Compactor as the mutator of all logs.
	Enter func(l *Log, f func()) bool
	// Wake, if not nil, is called whenever Step has something to do earlier than
	// it said; from anywhere, also from logs' turns. Run needs none.
	Wake func()
}

const (
	compactBytesPerSecond = 20_000_000
	// compactBurst is how much may be read at once, in parts of a second's worth.
	compactBurst = 10
	// compactRetry is how often a log is looked at that waits for its commit or
	// for readers of replaced files, compactRetryFailed how long one waits whose
	// disk has failed.
	compactRetry       = time.Second
	compactRetryFailed = time.Minute
	// CompactorIdle is what Step returns when nothing is to be done until a log
	// seals a segment.
	CompactorIdle = time.Hour
)

// Compactor compacts a node's logs: one piece of work at a time, at a bounded
// rate. It owns no goroutine: Run is a loop around Step, which a simulator calls
// with its own clock.
//
// A log is looked at after it was opened and after each seal, and again when its
// commit has reached what the last look was waiting for; an idle log costs
// nothing.
type Compactor struct {
	store *Store
	enter func(l *Log, f func()) bool
	rate  int64

	// The stepper's own.
	tokens int64 // bytes that may be read now; below zero they are owed
	last   time.Time

	// mu guards what turns of logs change.
	mu  sync.Mutex
	job *Compaction
	// asked is a log whose turn is to plan or install; ticket tells its answer
	// from that of one that was given up.
	asked  *Log
	busy   bool // the answer is being worked on
	ticket uint64
	now    time.Time
}

// candidate is a log that may have something to be compacted.
type candidate struct {
	log *Log
	// until is what commit and durable tail must have reached, after when.
	until chunk.LSN
	after time.Time
}

// candidates are those of a store, the one that waits longest in front.
type candidates struct {
	mu     sync.Mutex // guards list and notify
	list   []candidate
	notify func()
	wake   chan struct{} // tells Run of a new one
}

// add puts a log in, or lets one that is in be looked at again.
func (c *candidates) add(n candidate) {
	c.mu.Lock()
	c.list = slices.DeleteFunc(c.list, func(o candidate) bool { return o.log == n.log })
	c.list = append(c.list, n)
	c.mu.Unlock()
	c.signal()
}

func (c *candidates) signal() {
	c.mu.Lock()
	notify := c.notify
	c.mu.Unlock()
	if notify != nil {
		notify()
		return
	}
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// drop takes a log out that is about to be closed.
func (c *candidates) drop(l *Log) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = slices.DeleteFunc(c.list, func(o candidate) bool { return o.log == l })
}

// take removes and returns the first log that is due, and tells whether others
// wait.
func (c *candidates) take(now time.Time) (l *Log, waiting bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, o := range c.list {
		if o.after.After(now) || min(o.log.Commit(), o.log.Durable().LSN) < o.until {
			continue
		}
		c.list = slices.Delete(c.list, i, i+1)
		return o.log, true
	}
	return nil, len(c.list) > 0
}

// NewCompactor returns the node's compactor; a store has one at most.
func (s *Store) NewCompactor(o CompactorOptions) *Compactor {
	c := &Compactor{store: s, enter: o.Enter, rate: o.BytesPerSecond}
	if c.rate <= 0 {
		c.rate = compactBytesPerSecond
	}
	if c.enter == nil {
		c.enter = func(_ *Log, f func()) bool { f(); return true }
	}
	s.candidates.mu.Lock()
	defer s.candidates.mu.Unlock()
	s.candidates.notify = o.Wake
	return c
}

// Run compacts until the context ends.
func (c *Compactor) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			c.Stop()
			return
		case <-timer.C:
		case <-c.store.candidates.wake:
		}
		timer.Reset(c.Step(time.Now()))
	}
}

// Step does what is due and the rate allows, and returns when to call it again
// unless a log seals a segment before. One goroutine at a time calls it.
func (c *Compactor) Step(now time.Time) time.Duration {
	c.earn(now)
	for {
		job, asked := c.state(now)
		switch {
		case asked:
			return compactRetry / compactBurst
		case job == nil:
			if l, waiting := c.store.candidates.take(now); l != nil {
				c.ask(l, func() { c.plan(l) })
			} else if waiting {
				return compactRetry
			} else {
				return CompactorIdle
			}
		case c.tokens <= 0:
			return time.Duration((1-c.tokens)*int64(time.Second)/c.rate + 1)
		default:
			c.work(job)
		}
	}
}

// Stop gives up the piece of work that is under way. Whoever calls Step calls
// it.
func (c *Compactor) Stop() {
	c.mu.Lock()
	job := c.job
	if c.busy {
		job = nil // it is being installed
	}
	c.asked, c.ticket = nil, c.ticket+1
	if job != nil {
		c.job = nil
	}
	c.mu.Unlock()
	if job != nil {
		job.Abandon()
	}
}

func (c *Compactor) earn(now time.Time) {
	if c.last.IsZero() {
		c.tokens = c.rate / compactBurst
	} else if d := now.Sub(c.last); d > 0 {
		c.tokens = min(c.tokens+int64(float64(c.rate)*min(d.Seconds(), 3600)), c.rate/compactBurst)
	}
	c.last = now
}

// state returns the piece of work to go on with, or that a log's turn is waited
// for. A turn that can't come any more, since its log is closed, is not.
func (c *Compactor) state(now time.Time) (job *Compaction, asked bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = now
	if c.asked != nil && !c.busy && c.asked.closed() {
		c.asked, c.ticket = nil, c.ticket+1
	}
	return c.job, c.asked != nil
}

// ask has f called in a log's turn.
func (c *Compactor) ask(l *Log, f func()) {
	c.mu.Lock()
	c.ticket++
	ticket := c.ticket
	c.asked = l
	c.mu.Unlock()
	entered := c.enter(l, func() {
		if !c.begin(ticket) {
			return
		}
		f()
		c.end()
	})
	if !entered {
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.ticket == ticket {
			c.asked = nil
		}
	}
}

func (c *Compactor) begin(ticket uint64) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.busy = c.ticket == ticket && c.asked != nil
	return c.busy
}

func (c *Compactor) end() {
	c.mu.Lock()
	c.asked, c.busy = nil, false
	c.mu.Unlock()
	c.store.candidates.signal()
}

// plan looks for work in a log's turn.
func (c *Compactor) plan(l *Log) {
	job, until := l.Compact()
	switch {
	case job != nil:
		c.set(job)
	case len(l.removals) > 0:
		c.later(l, compactRetry)
	case until != 0:
		c.store.candidates.add(candidate{log: l, until: until})
	}
}

func (c *Compactor) set(job *Compaction) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.job = job
}

func (c *Compactor) later(l *Log, wait time.Duration) {
	c.mu.Lock()
	after := c.now.Add(wait)
	c.mu.Unlock()
	c.store.candidates.add(candidate{log: l, after: after})
}

// work goes on with a piece of work, as far as there are tokens, and has it
// installed when it is done.
func (c *Compactor) work(job *Compaction) {
	if job.Log().closed() {
		c.give(job, ErrClosed)
		return
	}
	read, done, err := job.Step(c.tokens)
	c.tokens -= read
	switch {
	case err != nil:
		c.give(job, err)
	case done:
		l := job.Log()
		c.ask(l, func() {
			c.set(nil)
			err := l.Install(job)
			if err != nil && !errors.Is(err, ErrStale) {
				l.failed(err)
				c.later(l, compactRetryFailed)
				return
			}
			// There may be more, and files that are still read are to be removed.
			c.store.candidates.add(candidate{log: l})
		})
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.asked == nil && c.job == job { // the log takes no more turns
			c.job = nil
			job.Abandon()
		}
	}
}

// give ends a piece of work that has failed.
func (c *Compactor) give(job *Compaction, err error) {
	job.Abandon()
	c.set(nil)
	l := job.Log()
	wait := compactRetryFailed
	switch {
	case errors.Is(err, ErrClosed):
		return
	case errors.Is(err, ErrStale), errors.Is(err, ErrDamaged):
		wait = compactRetry // the next plan will differ
	}
	if !errors.Is(err, ErrStale) {
		l.failed(err)
	}
	c.later(l, wait)
}
