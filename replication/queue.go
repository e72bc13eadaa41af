package replication

// queue is a first-in-first-out ring that allocates only while it grows.
type queue[T any] struct {
	ring []T // Invariant: len(ring) is 0 or a power of two
	head int
	n    int
}

const queueLengthMin = 16

func (q *queue[T]) len() int { return q.n }

func (q *queue[T]) push(v T) {
	if q.n == len(q.ring) {
		ring := make([]T, max(queueLengthMin, 2*len(q.ring)))
		for i := range q.n {
			ring[i] = q.ring[(q.head+i)&(len(q.ring)-1)]
		}
		q.ring, q.head = ring, 0
	}
	q.ring[(q.head+q.n)&(len(q.ring)-1)] = v
	q.n++
}

// first returns the oldest element; the queue must not be empty.
func (q *queue[T]) first() *T { return &q.ring[q.head] }

// pop takes the oldest element; the queue must not be empty.
func (q *queue[T]) pop() T {
	var none T
	v := q.ring[q.head]
	q.ring[q.head] = none
	q.head = (q.head + 1) & (len(q.ring) - 1)
	q.n--
	return v
}

// release frees the memory of an empty queue.
func (q *queue[T]) release() {
	if q.n == 0 {
		*q = queue[T]{}
	}
}
