package catalog

import (
	"maps"
	"slices"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Agenda is which streams the coordinator looks at next: those that something
// has happened to, and at a time those that wait for it.
type Agenda struct {
	dirty   map[chunk.Incarnation]struct{}
	waiting map[chunk.Incarnation]struct{}
	wakeAt  protocol.Tick // when to look at waiting; 0 is never
}

// NewAgenda is empty.
func NewAgenda() *Agenda {
	return &Agenda{dirty: make(map[chunk.Incarnation]struct{}), waiting: make(map[chunk.Incarnation]struct{})}
}

// Touch has streams looked at.
func (a *Agenda) Touch(streams ...chunk.Incarnation) {
	for _, i := range streams {
		a.dirty[i] = struct{}{}
	}
}

// Changed has those streams looked at that changes of the catalog are about; a
// node's are all that it holds. It reports whether there are any.
func (a *Agenda) Changed(view *State, changes []Change) bool {
	touched := false
	for _, c := range changes {
		var streams []chunk.Incarnation
		switch {
		case c.Kind == NodeChanged:
			streams = view.Held(c.Node)
		case c.Kind != StreamChanged:
		case c.Stream == nil:
			streams = append(streams, c.Before.Incarnation)
		default:
			streams = append(streams, c.Stream.Incarnation)
		}
		a.Touch(streams...)
		touched = touched || len(streams) > 0
	}
	return touched
}

// Take empties the agenda of what is due, in order.
func (a *Agenda) Take(now protocol.Tick) []chunk.Incarnation {
	if a.wakeAt != 0 && a.wakeAt <= now {
		maps.Copy(a.dirty, a.waiting)
		clear(a.waiting)
		a.wakeAt = 0
	}
	streams := slices.Sorted(maps.Keys(a.dirty))
	clear(a.dirty)
	return streams
}

// Keep enters who waits for a time.
func (a *Agenda) Keep(steps *Steps) {
	for _, i := range steps.Waiting {
		a.waiting[i] = struct{}{}
	}
	if steps.Wake != 0 && (a.wakeAt == 0 || steps.Wake < a.wakeAt) {
		a.wakeAt = steps.Wake
	}
}

// Wake is when to take again though nothing has happened; 0 is never.
func (a *Agenda) Wake() protocol.Tick { return a.wakeAt }

// Held returns the streams with a replica on a node, in order.
func (s *State) Held(node protocol.NodeID) []chunk.Incarnation {
	var held []chunk.Incarnation
	for stream := range s.Streams() {
		if stream.replica(node) >= 0 {
			held = append(held, stream.Incarnation)
		}
	}
	return held
}
