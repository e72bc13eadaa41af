package tracking

// entry is one reference in a table. Its key is (major, minor, ref): (LSN, 0)
// for a publisher, (epoch, version) for a stored offset.
type entry[V any] struct {
	ref          string
	major, minor uint64
	value        V
	prev, next   *entry[V]
}

func (e *entry[V]) before(f *entry[V]) bool {
	if e.major != f.major {
		return e.major < f.major
	}
	if e.minor != f.minor {
		return e.minor < f.minor
	}
	return e.ref < f.ref
}

// table finds entries by reference and keeps them in the order of their keys,
// so that the least recently used one is in front and the order is the same
// however the table came about. Updating an entry that exists allocates
// nothing; removed entries are used again.
type table[V any] struct {
	byRef map[string]*entry[V]
	// root closes the ring: root.next is the front, root.prev the back.
	root entry[V]
	free *entry[V]
	// refBytes is the sum of the references' lengths.
	refBytes int
}

func newTable[V any]() *table[V] {
	t := &table[V]{byRef: make(map[string]*entry[V])}
	t.root.next, t.root.prev = &t.root, &t.root
	return t
}

func (t *table[V]) len() int { return len(t.byRef) }

func (t *table[V]) find(ref []byte) *entry[V] { return t.byRef[string(ref)] }

func (t *table[V]) front() *entry[V] { return t.after(&t.root) }

func (t *table[V]) back() *entry[V] {
	if t.root.prev == &t.root {
		return nil
	}
	return t.root.prev
}

// after returns the entry behind e, nil at the end.
func (t *table[V]) after(e *entry[V]) *entry[V] {
	if e.next == &t.root {
		return nil
	}
	return e.next
}

// move gives e, which is in the table, a new key.
func (t *table[V]) move(e *entry[V], major, minor uint64) {
	unlink(e)
	e.major, e.minor = major, minor
	t.place(e)
}

// add makes an entry for a reference that the table does not hold.
func (t *table[V]) add(ref string, major, minor uint64) *entry[V] {
	e := t.free
	if e == nil {
		e = new(entry[V])
	} else {
		t.free = e.next
	}
	e.ref, e.major, e.minor = ref, major, minor
	t.byRef[ref] = e
	t.refBytes += len(ref)
	t.place(e)
	return e
}

// place links e in by its key, looking from the back: new keys are the highest
// but for those of one chunk among each other.
func (t *table[V]) place(e *entry[V]) {
	at := t.root.prev
	for at != &t.root && e.before(at) {
		at = at.prev
	}
	e.prev, e.next = at, at.next
	at.next.prev = e
	at.next = e
}

func (t *table[V]) remove(e *entry[V]) {
	unlink(e)
	delete(t.byRef, e.ref)
	t.refBytes -= len(e.ref)
	*e = entry[V]{next: t.free}
	t.free = e
}

// trim removes from the front until at most most are left, and returns how
// many went.
func (t *table[V]) trim(most int) (removed uint64) {
	for t.len() > most {
		t.remove(t.front())
		removed++
	}
	return removed
}

func (t *table[V]) clear() {
	for e := t.front(); e != nil; e = t.front() {
		unlink(e)
		*e = entry[V]{next: t.free}
		t.free = e
	}
	clear(t.byRef)
	t.refBytes = 0
}

func unlink[V any](e *entry[V]) {
	e.prev.next = e.next
	e.next.prev = e.prev
}
