package replication

import (
	"sync/atomic"
	"testing"
)

// countingRunner checks that it is at one worker at a time.
type countingRunner struct {
	t       *testing.T
	inside  atomic.Int32
	left    atomic.Int32
	done    chan struct{}
	perTurn func()
}

func (r *countingRunner) Turn() bool {
	if r.inside.Add(1) != 1 {
		r.t.Error("two turns of one replica at once")
	}
	if r.perTurn != nil {
		r.perTurn()
	}
	more := r.left.Add(-1) > 0
	if !more {
		close(r.done)
	}
	r.inside.Add(-1)
	return more
}

func TestRunQueue_runsEachReplicaUntilItIsDone(t *testing.T) {
	q := newRunQueue(4)
	var runners []*countingRunner
	for i := range 100 {
		r := &countingRunner{t: t, done: make(chan struct{})}
		r.left.Store(int32(1 + i))
		runners = append(runners, r)
		q.push(r)
	}
	for _, r := range runners {
		<-r.done
	}
	q.Close()
}

func TestRunQueue_busyReplicaGoesBehindTheOthers(t *testing.T) {
	q := newRunQueue(1)
	var order []string
	a := &countingRunner{t: t, done: make(chan struct{}), perTurn: func() { order = append(order, "a") }}
	b := &countingRunner{t: t, done: make(chan struct{}), perTurn: func() { order = append(order, "b") }}
	a.left.Store(3)
	b.left.Store(1)
	gate := &countingRunner{t: t, done: make(chan struct{}), perTurn: func() { q.push(a); q.push(b) }}
	gate.left.Store(1)
	q.push(gate)
	<-a.done
	<-b.done
	q.Close()
	if got := len(order); got != 4 || order[1] != "b" {
		t.Fatalf("turns %q", order)
	}
}

func TestQueue_isFirstInFirstOut(t *testing.T) {
	var q queue[int]
	next, want := 0, 0
	for round := range 100 {
		for range round % 7 {
			q.push(next)
			next++
		}
		for q.len() > round%3 {
			if got := q.pop(); got != want {
				t.Fatalf("popped %d, want %d", got, want)
			}
			want++
		}
	}
	for q.len() > 0 {
		if *q.first() != want {
			t.Fatalf("first is %d, want %d", *q.first(), want)
		}
		q.pop()
		want++
	}
	if want != next {
		t.Fatalf("%d of %d came out", want, next)
	}
	q.release()
	if q.ring != nil {
		t.Fatal("an empty queue keeps its memory")
	}
}
