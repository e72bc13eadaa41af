package link

// ring is a queue in an array that grows, by powers of two, and is kept.
type ring[T any] struct {
	items []T
	head  int
	n     int
}

func (r *ring[T]) at(i int) *T { return &r.items[(r.head+i)&(len(r.items)-1)] }

// push adds an item at the end and returns it, to be set.
func (r *ring[T]) push() *T {
	if r.n == len(r.items) {
		larger := make([]T, max(4, 2*r.n))
		for i := range r.n {
			larger[i] = *r.at(i)
		}
		r.items, r.head = larger, 0
	}
	r.n++
	return r.at(r.n - 1)
}

// unpush takes the last item back.
func (r *ring[T]) unpush() {
	var zero T
	*r.at(r.n - 1) = zero
	r.n--
}

// pop drops the first item, which the caller has cleared.
func (r *ring[T]) pop() {
	r.head = (r.head + 1) & (len(r.items) - 1)
	r.n--
}

// remove drops the items for which drop says so, in order.
func (r *ring[T]) remove(drop func(T) bool) {
	kept := 0
	for i := range r.n {
		if it := *r.at(i); !drop(it) {
			*r.at(kept) = it
			kept++
		}
	}
	r.n = kept
}

// ringKept is what an empty ring may keep, in items.
const ringKept = 16

func (r *ring[T]) shrink() {
	if r.n == 0 && len(r.items) > ringKept {
		*r = ring[T]{}
	}
}
