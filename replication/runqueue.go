package replication

import "sync"

// Scheduler decides when replicas have their turns. The default has as many
// workers as Config says; a simulation brings its own, on one goroutine.
type Scheduler interface {
	// Ready tells that a replica has events: Turn shall be called, once at a
	// time, and again while it says so. It is not told of a replica twice before
	// its Turn has returned false. It must not call Turn itself.
	Ready(r *Replica)
	// Close lets what is ready have its turns, and returns when no turn is on.
	Close()
}

// runQueue holds the replicas that have events and hands each to one worker at
// a time. It is first in, first out, so that a busy stream goes behind the
// others after each turn.
type runQueue struct {
	mu      sync.Mutex // guards the fields below
	ready   sync.Cond
	waiting queue[runner]
	closed  bool
	done    sync.WaitGroup
}

// runner is a replica, as the queue sees it: Turn handles what has come and
// reports whether more has come meanwhile.
type runner interface {
	Turn() (again bool)
}

func newRunQueue(workers int) *runQueue {
	q := &runQueue{}
	q.ready.L = &q.mu
	for range workers {
		q.done.Go(q.work)
	}
	return q
}

// Ready implements Scheduler.
func (q *runQueue) Ready(r *Replica) { q.push(r) }

// push makes a replica ready. The caller sees to it that no replica is in the
// queue, or at a worker, twice.
func (q *runQueue) push(r runner) {
	q.mu.Lock()
	q.waiting.push(r)
	q.mu.Unlock()
	q.ready.Signal()
}

// pop waits for a replica; nil ends the worker.
func (q *runQueue) pop() runner {
	q.mu.Lock()
	defer q.mu.Unlock()
	for q.waiting.len() == 0 {
		if q.closed {
			return nil
		}
		q.ready.Wait()
	}
	return q.waiting.pop()
}

func (q *runQueue) work() {
	for r := q.pop(); r != nil; r = q.pop() {
		if r.Turn() {
			q.push(r)
		}
	}
}

// Close implements Scheduler: the workers finish what is ready and end.
func (q *runQueue) Close() {
	q.mu.Lock()
	q.closed = true
	q.mu.Unlock()
	q.ready.Broadcast()
	q.done.Wait()
}
