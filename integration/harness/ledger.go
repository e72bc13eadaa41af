package harness

import (
	"errors"
	"fmt"
	"hash/maphash"
	"slices"
	"sync"
)

// Ledger holds what producers sent and what was confirmed, and judges what a
// reader finds against it.
//
//	K1  every confirmed message is there exactly once
//	K2  offsets are dense and grow by one
//	K3  the same offset gives the same bytes in every reading
//	K4  first and next offset never step back
//	K6  nothing is there that was not sent
//
// and, of each producer, messages stand in the order in which they were sent.
// (K5, a node that is usable again within 30 s, is Node's.)
type Ledger struct {
	mu        sync.Mutex // guards all below
	producers map[uint32]*account
	seed      maphash.Seed
	// seen is the hash of each record that a complete reading has found, by
	// offset − origin.
	seen        []uint64
	origin      uint64
	first, next uint64
}

// account is one producer's.
type account struct {
	sent      uint64 // counters 1 to sent were sent
	confirmed map[uint64]bool
}

// NewLedger returns an empty ledger.
func NewLedger() *Ledger {
	return &Ledger{producers: map[uint32]*account{}, seed: maphash.MakeSeed()}
}

// Sent notes that the producer is about to send the counter: before the bytes
// leave, since the node may store them and die before the call returns.
func (l *Ledger) Sent(producer uint32, counter uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.account(producer)
	a.sent = max(a.sent, counter)
}

// Confirmed notes a confirm.
func (l *Ledger) Confirmed(producer uint32, counter uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.account(producer).confirmed[counter] = true
}

// Counts returns how many messages were sent and how many confirmed.
func (l *Ledger) Counts() (sent, confirmed uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.producers {
		sent += a.sent
		confirmed += uint64(len(a.confirmed))
	}
	return sent, confirmed
}

func (l *Ledger) account(producer uint32) *account {
	a, ok := l.producers[producer]
	if !ok {
		a = &account{confirmed: map[uint64]bool{}}
		l.producers[producer] = a
	}
	return a
}

// Bounds checks K4 on first and next offset as the node tells them.
func (l *Ledger) Bounds(first, next uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if first < l.first || next < l.next {
		return fmt.Errorf("K4: offsets %d up to %d stepped back from %d up to %d", first, next, l.first, l.next)
	}
	l.first, l.next = first, next
	return nil
}

// Reading is one reader's pass over a stream from its first record to its end.
type Reading struct {
	ledger   *Ledger
	last     map[uint32]uint64 // by producer: the last counter
	found    map[uint32]map[uint64]bool
	from     uint64
	next     uint64
	begun    bool
	hashes   []uint64
	problems []error
}

// problemsMax bounds how many violations one reading tells.
const problemsMax = 20

// Read begins a reading.
func (l *Ledger) Read() *Reading {
	return &Reading{ledger: l, last: map[uint32]uint64{}, found: map[uint32]map[uint64]bool{}}
}

// Record takes the next record that the reader got.
func (r *Reading) Record(offset uint64, body []byte) {
	if !r.begun {
		r.from, r.next, r.begun = offset, offset, true
	}
	if offset != r.next {
		r.fail("K2: offset %d where %d is due", offset, r.next)
	}
	r.next = offset + 1
	r.hashes = append(r.hashes, maphash.Bytes(r.ledger.seed, body))
	producer, counter, err := ParseMessage(body)
	if err != nil {
		r.fail("K6: offset %d: %w", offset, err)
		return
	}
	r.judge(offset, producer, counter)
}

func (r *Reading) judge(offset uint64, producer uint32, counter uint64) {
	r.ledger.mu.Lock()
	a, known := r.ledger.producers[producer]
	never := !known || counter == 0 || counter > a.sent
	r.ledger.mu.Unlock()
	if never {
		r.fail("K6: offset %d holds message %d of producer %d, which was never sent", offset, counter, producer)
		return
	}
	of := r.found[producer]
	if of == nil {
		of = map[uint64]bool{}
		r.found[producer] = of
	}
	switch {
	case of[counter]:
		r.fail("K1: message %d of producer %d stands twice, again at offset %d", counter, producer, offset)
	case counter < r.last[producer]:
		r.fail("order: message %d of producer %d stands behind %d, at offset %d", counter, producer, r.last[producer], offset)
	}
	of[counter] = true
	r.last[producer] = max(r.last[producer], counter)
}

func (r *Reading) fail(format string, args ...any) {
	if len(r.problems) < problemsMax {
		r.problems = append(r.problems, fmt.Errorf(format, args...))
	}
}

// Next is the offset that the next record would have.
func (r *Reading) Next() uint64 { return r.next }

// Count is how many records the reading took.
func (r *Reading) Count() int { return len(r.hashes) }

// End judges the whole: what was confirmed before the reading began must have
// been found (K1), and what an earlier reading saw must be there unchanged (K3).
func (r *Reading) End() error {
	l := r.ledger
	l.mu.Lock()
	defer l.mu.Unlock()
	for producer, a := range l.producers {
		missing := []uint64{}
		for counter := range a.confirmed {
			if !r.found[producer][counter] {
				missing = append(missing, counter)
			}
		}
		if len(missing) > 0 {
			slices.Sort(missing)
			r.fail("K1: %d confirmed messages of producer %d are gone, the first is %d", len(missing), producer, missing[0])
		}
	}
	r.compare()
	return errors.Join(r.problems...)
}

// compare holds this reading against the longest one before (K3).
func (r *Reading) compare() {
	l := r.ledger
	if l.seen == nil {
		l.seen, l.origin = r.hashes, r.from
		return
	}
	for i, hash := range r.hashes {
		at := int(r.from) + i - int(l.origin)
		switch {
		case at < 0:
		case at < len(l.seen):
			if l.seen[at] != hash {
				r.fail("K3: offset %d has other bytes than before", r.from+uint64(i))
			}
		default:
			l.seen = append(l.seen, hash)
		}
	}
	if int(r.from)+len(r.hashes) < int(l.origin)+len(l.seen) {
		r.fail("K4: the stream ended at %d and now ends at %d", int(l.origin)+len(l.seen), int(r.from)+len(r.hashes))
	}
}
