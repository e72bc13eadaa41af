package overtake

import (
	"container/heap"
	"sync"
	"time"

	"github.com/millrace/millrace/replication"
)

// clock is the time of a world: it stands still until it is moved. It implements
// replication.Clock; timers fire on the goroutine that moves it.
type clock struct {
	mu     sync.Mutex // guards the fields below
	now    time.Time
	timers timers
	count  int
}

type timer struct {
	at    time.Time
	order int // of those at one time, the one set first fires first
	f     func()
	index int // in the heap; −1 once it has fired or was stopped
}

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) AfterFunc(d time.Duration, f func()) func() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.count++
	t := &timer{at: c.now.Add(max(d, 0)), order: c.count, f: f}
	heap.Push(&c.timers, t)
	return func() bool {
		c.mu.Lock()
		defer c.mu.Unlock()
		if t.index < 0 {
			return false
		}
		heap.Remove(&c.timers, t.index)
		return true
	}
}

// fire moves the time to the next timer at or before until, and calls it; false
// if there is none, and the time is until.
func (c *clock) fire(until time.Time) bool {
	c.mu.Lock()
	if len(c.timers) == 0 || c.timers[0].at.After(until) {
		if until.After(c.now) {
			c.now = until
		}
		c.mu.Unlock()
		return false
	}
	t := heap.Pop(&c.timers).(*timer)
	if t.at.After(c.now) {
		c.now = t.at
	}
	c.mu.Unlock()
	t.f()
	return true
}

type timers []*timer

func (h timers) Len() int { return len(h) }
func (h timers) Less(i, j int) bool {
	if !h[i].at.Equal(h[j].at) {
		return h[i].at.Before(h[j].at)
	}
	return h[i].order < h[j].order
}

func (h timers) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *timers) Push(x any) {
	t := x.(*timer)
	t.index = len(*h)
	*h = append(*h, t)
}

func (h *timers) Pop() any {
	t := (*h)[len(*h)-1]
	(*h)[len(*h)-1] = nil
	*h = (*h)[:len(*h)-1]
	t.index = -1
	return t
}

// scheduler keeps the replicas that have events; the world's goroutine has their
// turns. It implements replication.Scheduler.
type scheduler struct {
	mu     sync.Mutex // guards ready
	ready  []*replication.Replica
	signal chan struct{} // tells who waits for something to become ready
}

func (s *scheduler) Ready(r *replication.Replica) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ready = append(s.ready, r)
	select {
	case s.signal <- struct{}{}:
	default:
	}
}

// Close implements replication.Scheduler: the world has had all turns before.
func (s *scheduler) Close() {}

func (s *scheduler) pop() *replication.Replica {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) == 0 {
		return nil
	}
	r := s.ready[0]
	s.ready = s.ready[1:]
	return r
}

// drain has every turn that is due.
func (s *scheduler) drain() {
	for r := s.pop(); r != nil; r = s.pop() {
		if r.Turn() {
			s.Ready(r)
		}
	}
}
