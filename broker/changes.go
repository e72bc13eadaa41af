package broker

import (
	"sync"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
)

// changeQueue takes the catalog's changes without blocking, for follow.
type changeQueue struct {
	mu      sync.Mutex // guards waiting and ended
	waiting []catalog.Change
	ended   bool
	wake    chan struct{}
}

func (q *changeQueue) init() { q.wake = make(chan struct{}, 1) }

func (q *changeQueue) put(changes []catalog.Change) {
	q.mu.Lock()
	q.waiting = append(q.waiting, changes...)
	q.mu.Unlock()
	signal(q.wake)
}

func (q *changeQueue) close() {
	q.mu.Lock()
	q.ended = true
	q.mu.Unlock()
	signal(q.wake)
}

func (q *changeQueue) take() (changes []catalog.Change, ended bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	changes, q.waiting = q.waiting, nil
	return changes, q.ended
}

// follow carries the catalog's changes to the sessions that they touch.
func (b *Broker) follow() {
	for g := range b.directory.View().Groups() { // of an earlier run of this node
		b.groupChanged(groupRef(g))
	}
	for range b.changes.wake {
		changes, ended := b.changes.take()
		if ended {
			return
		}
		access := false
		for _, change := range changes {
			switch change.Kind {
			case catalog.StreamChanged:
				b.streamChanged(change.Before, change.Stream)
			case catalog.GroupChanged:
				b.groupChanged(groupOf(change))
			case catalog.AccessChanged:
				access = true
			}
		}
		b.news.announce()
		if access {
			b.recheck()
		}
	}
}

func (b *Broker) streamChanged(before, after *catalog.Stream) {
	stream := after
	if stream == nil {
		stream = before
	}
	for _, s := range b.ties.of(stream.Incarnation) {
		s.streamChanged(before, after, b.config.NodeName)
	}
}

// groupOf names the group that a change is about.
func groupOf(change catalog.Change) catalog.GroupRef {
	if change.Group == nil {
		return groupRef(change.GroupBefore)
	}
	return groupRef(change.Group)
}

func groupRef(g *catalog.Group) catalog.GroupRef {
	return catalog.GroupRef{VHost: g.VHost, Stream: g.Stream, Name: g.Name}
}

// recheck looks again at what every open connection may do.
func (b *Broker) recheck() {
	for _, s := range b.openSessions() {
		s.recheck()
	}
}

// tieIndex finds the sessions that have to do with a stream.
type tieIndex struct {
	mu       sync.Mutex // guards sessions
	sessions map[chunk.Incarnation]map[*session]struct{}
}

func (x *tieIndex) init() { x.sessions = map[chunk.Incarnation]map[*session]struct{}{} }

func (x *tieIndex) add(t *tie) {
	x.mu.Lock()
	defer x.mu.Unlock()
	tied := x.sessions[t.stream.Incarnation]
	if tied == nil {
		tied = map[*session]struct{}{}
		x.sessions[t.stream.Incarnation] = tied
	}
	tied[t.session] = struct{}{}
}

func (x *tieIndex) remove(t *tie) {
	x.mu.Lock()
	defer x.mu.Unlock()
	tied := x.sessions[t.stream.Incarnation]
	delete(tied, t.session)
	if len(tied) == 0 {
		delete(x.sessions, t.stream.Incarnation)
	}
}

func (x *tieIndex) of(stream chunk.Incarnation) []*session {
	x.mu.Lock()
	defer x.mu.Unlock()
	tied := make([]*session, 0, len(x.sessions[stream]))
	for s := range x.sessions[stream] {
		tied = append(tied, s)
	}
	return tied
}
