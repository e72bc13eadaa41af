package replication

import (
	"container/heap"
	"sync"
	"time"
)

// alarms wakes replicas at times that they asked for, all by one timer. A
// replica has at most one alarm; without alarms there is no timer.
type alarms struct {
	clock Clock

	mu     sync.Mutex // guards the fields below and each alarm's
	heap   alarmHeap
	armed  time.Time // when the timer fires; zero without one
	stop   func() bool
	closed bool
}

// alarm is a replica's place in alarms. Its ring is called with nothing locked.
type alarm struct {
	at    time.Time
	index int // in the heap, plus one; 0 = not set
	ring  func()
}

// set has the alarm ring at a time, or earlier if it is set for earlier
// already: who is woken too early sets it again.
func (a *alarms) set(al *alarm, at time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.closed || al.index > 0 && !at.Before(al.at):
		return
	case al.index > 0:
		al.at = at
		heap.Fix(&a.heap, al.index-1)
	default:
		al.at = at
		heap.Push(&a.heap, al)
	}
	a.arm()
}

// clear takes an alarm back.
func (a *alarms) clear(al *alarm) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if al.index > 0 {
		heap.Remove(&a.heap, al.index-1)
	}
}

// arm sees to it that the timer fires for the first alarm.
func (a *alarms) arm() {
	if len(a.heap) == 0 || a.closed {
		return
	}
	first := a.heap[0].at
	if !a.armed.IsZero() && !first.Before(a.armed) {
		return
	}
	if a.stop != nil {
		a.stop()
	}
	a.armed = first
	a.stop = a.clock.AfterFunc(max(first.Sub(a.clock.Now()), 0), a.fire)
}

func (a *alarms) fire() {
	var due []*alarm
	a.mu.Lock()
	now := a.clock.Now()
	for len(a.heap) > 0 && !a.heap[0].at.After(now) {
		due = append(due, heap.Pop(&a.heap).(*alarm))
	}
	a.armed = time.Time{}
	a.arm()
	a.mu.Unlock()
	for _, al := range due {
		al.ring()
	}
}

func (a *alarms) close() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.closed = true
	if a.stop != nil {
		a.stop()
	}
}

// alarmHeap orders alarms by time.
type alarmHeap []*alarm

func (h alarmHeap) Len() int           { return len(h) }
func (h alarmHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h alarmHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i+1, j+1
}

func (h *alarmHeap) Push(x any) {
	al := x.(*alarm)
	*h = append(*h, al)
	al.index = len(*h)
}

func (h *alarmHeap) Pop() any {
	last := len(*h) - 1
	al := (*h)[last]
	(*h)[last] = nil
	*h = (*h)[:last]
	al.index = 0
	return al
}
