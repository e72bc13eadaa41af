package tracking

import "github.com/millrace/millrace/segstore/chunk"

// Reference is a stored offset as the leader answers it, for operators.
type Reference struct {
	Ref    string
	Offset chunk.Offset
	// Updated is the time of the last store, also of an equal value.
	Updated chunk.Timestamp
	// Pending: no chunk carries this value so far.
	Pending bool
}

// References returns every reference that has an offset, pending updates on top
// of the state's, in the order of (epoch, version).
func (p *Pending) References(s *State) []Reference {
	list := make([]Reference, 0, s.offsets.len()+p.updates.len())
	s.storedAndPending(p, func(e *entry[stored]) {
		if e.value.forgotten {
			return
		}
		list = append(list, Reference{
			Ref: e.ref, Offset: e.value.offset, Updated: lastUpdate(&e.value), Pending: p.updates.byRef[e.ref] != nil,
		})
	})
	return list
}

// Reference returns what References tells of one.
func (p *Pending) Reference(s *State, ref []byte) (Reference, bool) {
	if e := p.updates.find(ref); e != nil {
		if e.value.forget {
			return Reference{}, false
		}
		return Reference{Ref: e.ref, Offset: e.value.offset, Updated: e.value.time, Pending: true}, true
	}
	e := s.offsets.find(ref)
	if e == nil || e.value.forgotten {
		return Reference{}, false
	}
	return Reference{Ref: e.ref, Offset: e.value.offset, Updated: lastUpdate(&e.value)}, true
}
