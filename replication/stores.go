package replication

import (
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
)

// storesEvery is how often a turn takes over the offsets that clients store, at
// most: what comes in between collapses to the last value of each reference.
// It is what a leader's crash can lose beside what is on its way (design 4.2).
const storesEvery = 20 * time.Millisecond

// stores is where clients put offsets and ask for them, without waiting for a
// turn: the newest value of each reference that was stored in this reign.
type stores struct {
	mu sync.Mutex // guards the fields below
	// epoch is the reign's whose stores are taken; 0: none are.
	epoch  chunk.Epoch
	latest map[string]*latestStore
	// changed are those with values that no turn has taken over, each once.
	changed []*latestStore
	// moving are those that a turn has taken over and not counted yet.
	moving int
	taken  time.Time // when a turn last took over
	count  uint64    // of stores
	// order numbers the stores of this reign, and what else changes a value.
	// What changed up to blind is not known here any more.
	order, blind uint64
}

// latestStore is a reference's newest value.
type latestStore struct {
	reference []byte
	offset    chunk.Offset
	changed   bool
	// node is whose client stored it, and at its place in the order; foreign is
	// the place of the last store by way of another node.
	node        string
	at, foreign uint64
}

// Origin says where a store comes from that another node hands on.
type Origin struct {
	Node string
	// Epoch is the reign that the store is for; in a later one it must not pass for
	// newer than what was stored meanwhile. 0 is any reign.
	Epoch chunk.Epoch
	// Since, if not 0, is of a store that is sent once more: the place in the reign's
	// order that the node had heard of when its client stored, and one. Only if
	// nothing has been stored under the reference by way of another node since
	// then is the store the newest for sure (F5).
	Since uint64
}

// put takes a store, and returns its place in the order. If ask, a turn should take
// over at the time due, or at once if that is past; otherwise one comes anyway.
func (s *stores) put(from Origin, reference string, offset chunk.Offset) (place uint64, due time.Time, ask bool, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.epoch == 0 || from.Epoch != 0 && from.Epoch != s.epoch {
		return 0, time.Time{}, false, ErrNotLeader
	}
	e := s.latest[reference]
	if from.Since != 0 && s.lastOfOthers(e, from.Node) >= from.Since {
		return 0, time.Time{}, false, ErrOvertaken
	}
	s.count++
	s.order++
	// A value below the one before must not be lost (F6), and one that is not
	// known here may be such.
	urgent := e == nil || offset < e.offset
	if e == nil {
		e = &latestStore{reference: []byte(reference), node: from.Node}
		if s.latest == nil {
			s.latest = make(map[string]*latestStore)
		}
		s.latest[strings.Clone(reference)] = e
	}
	if e.node != from.Node {
		e.node, e.foreign = from.Node, e.at
	}
	e.offset, e.at = offset, s.order
	first := len(s.changed) == 0
	if !e.changed {
		e.changed = true
		s.changed = append(s.changed, e)
	}
	switch {
	case urgent:
		return s.order, s.taken, true, nil
	case first:
		return s.order, s.taken.Add(storesEvery), true, nil
	}
	return s.order, time.Time{}, false, nil
}

// lastOfOthers is the place of the last store of a reference by way of another
// node, or of the last of which that is not known.
func (s *stores) lastOfOthers(e *latestStore, node string) uint64 {
	switch {
	case e == nil:
		return s.blind
	case e.node != node:
		return max(e.at, s.blind)
	}
	return max(e.foreign, s.blind)
}

// lookup returns the newest value of a reference stored in this reign.
func (s *stores) lookup(reference string) (chunk.Offset, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if e := s.latest[reference]; e != nil {
		return e.offset, true
	}
	return 0, false
}

// storedOffset is one value that a turn takes over.
type storedOffset struct {
	reference []byte
	offset    chunk.Offset
}

// take appends what has changed since the last call. It forgets the values of
// references that did not change if more than most are known: the turn still
// knows them.
func (s *stores) take(dst []storedOffset, now time.Time, most int) []storedOffset {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.changed) == 0 {
		return dst
	}
	for i, e := range s.changed {
		dst = append(dst, storedOffset{e.reference, e.offset})
		e.changed = false
		s.changed[i] = nil
	}
	s.moving += len(s.changed)
	s.changed = s.changed[:0]
	s.taken = now
	if len(s.latest) > most {
		clear(s.latest)
		s.blind = s.order
	}
	return dst
}

// forget drops the values that a turn has taken over, since some may have left
// the log's tracking.
func (s *stores) forget() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.blind = s.order
	if len(s.changed) == 0 {
		clear(s.latest)
		return
	}
	for reference, e := range s.latest { // each is judged alone
		if !e.changed {
			delete(s.latest, reference)
		}
	}
}

// drop forgets what was stored under a reference, since an operator has changed
// it, unless a store has come that no turn has taken over.
func (s *stores) drop(reference string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.order++
	s.blind = s.order
	if e := s.latest[reference]; e != nil && !e.changed {
		delete(s.latest, reference)
	}
}

// counted tells that what turns have taken over is in their figures.
func (s *stores) counted() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moving = 0
}

// waiting counts the references with values that are in no turn's figures.
func (s *stores) waiting() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.changed) + s.moving
}

// stored counts the stores since the node's start.
func (s *stores) stored() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.count
}

// lead opens the taking of stores in a reign, or ends it: 0.
func (s *stores) lead(epoch chunk.Epoch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.epoch, s.latest, s.changed, s.moving = epoch, nil, nil, 0
	s.order, s.blind = 0, 0
}
