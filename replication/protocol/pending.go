package protocol

import (
	"cmp"
	"slices"
	"strings"

	"github.com/millrace/millrace/segstore/chunk"
)

// Pending is a stored offset that a leader has accepted and not yet written
// (F5). Which of two is newer is told by (epoch, version), never by offset or
// time (F8).
type Pending struct {
	Reference string
	Offset    chunk.Offset
	Epoch     chunk.Epoch // of the leader that accepted it
	Version   Version     // counts within that epoch, from 1
}

// newer compares two updates of one reference.
func (p Pending) newer(q Pending) bool {
	return cmp.Or(cmp.Compare(p.Epoch, q.Epoch), cmp.Compare(p.Version, q.Version)) > 0
}

// PendingSet holds the newest pending update of each reference. It is bounded
// by the cap on references that tracking has.
type PendingSet struct {
	by map[string]Pending
}

// Len is the number of references with a pending update.
func (s *PendingSet) Len() int { return len(s.by) }

// Put keeps an update unless a newer one of its reference is held.
func (s *PendingSet) Put(p Pending) {
	if q, ok := s.by[p.Reference]; ok && !p.newer(q) {
		return
	}
	if s.by == nil {
		s.by = make(map[string]Pending)
	}
	s.by[p.Reference] = p
}

// Cover drops the update of a reference that a chunk of the given epoch has
// written, if what was written is not older.
func (s *PendingSet) Cover(reference string, e chunk.Epoch, v Version) {
	if q, ok := s.by[reference]; ok && q.Epoch == e && q.Version <= v {
		delete(s.by, reference)
	}
}

// DropBelow drops all updates of epochs before e.
func (s *PendingSet) DropBelow(e chunk.Epoch) {
	for r, p := range s.by { // order does not matter: each is judged alone
		if p.Epoch < e {
			delete(s.by, r)
		}
	}
}

// Clear drops all.
func (s *PendingSet) Clear() { clear(s.by) }

// Sorted appends the updates to out, ordered by reference.
func (s *PendingSet) Sorted(out []Pending) []Pending {
	n := len(out)
	for _, p := range s.by { // sorted below
		out = append(out, p)
	}
	slices.SortFunc(out[n:], func(a, b Pending) int { return strings.Compare(a.Reference, b.Reference) })
	return out
}

// since returns the updates above a version, ordered by reference.
func (s *PendingSet) since(v Version) []Pending {
	return slices.DeleteFunc(s.Sorted(nil), func(p Pending) bool { return p.Version <= v })
}

// Merge returns the newest update of each reference out of several lists,
// ordered by reference.
func Merge(lists ...[]Pending) []Pending {
	var s PendingSet
	for _, l := range lists {
		for _, p := range l {
			s.Put(p)
		}
	}
	return s.Sorted(nil)
}
