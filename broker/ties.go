package broker

import (
	"maps"
	"slices"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// tie is what one connection has to do with one stream: its publishers, its
// subscriptions, and that it asked for stored offsets. When the stream goes,
// or another leader comes, the tie says who must be told, once.
type tie struct {
	session *session
	stream  *catalog.Stream // as it was when the tie was made

	// Guarded by session.mu.
	publishers    int
	subscriptions int
	consulted     bool // offsets were stored or asked for
	making        int  // parts that tieTo was called for and that are not attached yet
	unwatch       func()

	// The writer's own: the last committed chunk, and the offset behind it.
	committedBase, committedNext chunk.Offset

	// Guarded by session.out.mu.
	advances uint64 // of the commit that were told
	readers  []*subscription
}

// tieTo finds or makes the connection's tie to a stream, for a part that is then
// attached or given up.
func (s *session) tieTo(name string) (*tie, error) {
	stream, ok := s.broker.directory.View().Stream(s.vhost, name)
	if !ok {
		return nil, errStreamMissing
	}
	s.mu.Lock()
	t := s.ties[stream.Incarnation]
	if t == nil {
		t = &tie{session: s, stream: stream}
		s.ties[stream.Incarnation] = t
		s.broker.ties.add(t)
	}
	t.making++
	s.mu.Unlock()
	// A deletion that was told before the tie was there is seen here.
	if _, still := s.broker.directory.View().Incarnation(stream.Incarnation); !still {
		s.dropTie(stream.Incarnation, everything)
		return nil, errStreamMissing
	}
	return t, nil
}

// attach adds a part to a tie if that still stands.
func (s *session) attach(t *tie, do func()) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t.making--
	if s.ties[t.stream.Incarnation] != t {
		return false
	}
	do()
	return true
}

// abandon gives up a part that was to be attached.
func (s *session) abandon(t *tie) {
	s.attach(t, func() { s.loosenLocked(t) })
}

// loosen forgets a tie, or the watch on its stream, that nothing needs any more.
func (s *session) loosen(t *tie) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ties[t.stream.Incarnation] == t {
		s.loosenLocked(t)
	}
}

func (s *session) loosenLocked(t *tie) {
	if t.subscriptions == 0 && t.unwatch != nil {
		t.unwatch()
		t.unwatch = nil
	}
	if t.publishers == 0 && t.subscriptions == 0 && !t.consulted && t.making <= 0 {
		delete(s.ties, t.stream.Incarnation)
		s.broker.ties.remove(t)
	}
}

// loss says which of a tie's parts are taken away.
type loss struct {
	publisher    func(*publisher) bool
	subscription func(*subscription) bool
	consulted    bool
	making       bool
}

var everything = loss{
	publisher:    func(*publisher) bool { return true },
	subscription: func(*subscription) bool { return true },
	consulted:    true,
	making:       true,
}

// dropTie takes parts of the connection's tie to a stream away, frees their
// ids, and tells the client by one MetadataUpdate if there were any.
func (s *session) dropTie(incarnation chunk.Incarnation, lost loss) {
	s.mu.Lock()
	t := s.ties[incarnation]
	if t == nil {
		s.mu.Unlock()
		return
	}
	var publishers []*publisher
	for id, p := range s.publishers {
		if p.tie == t && lost.publisher(p) {
			delete(s.publishers, id)
			t.publishers--
			publishers = append(publishers, p)
		}
	}
	var subscriptions []*subscription
	for id, sub := range s.subscriptions {
		if sub.tie == t && lost.subscription(sub) {
			delete(s.subscriptions, id)
			t.subscriptions--
			subscriptions = append(subscriptions, sub)
		}
	}
	// Who has something else on the stream goes on with that, and offsets go to
	// the new leader.
	asked := t.consulted && lost.consulted && t.publishers == 0 && t.subscriptions == 0
	told := len(publishers) > 0 || len(subscriptions) > 0 || asked
	if lost.consulted {
		t.consulted = false
	}
	if lost.making {
		t.making = 0
	}
	s.loosenLocked(t)
	s.mu.Unlock()
	for _, p := range publishers {
		p.close()
	}
	s.closeAll(subscriptions)
	if told {
		s.broker.stats.count(wire.CodeStreamNotAvailable)
		s.out.notify(&wire.MetadataUpdate{Code: wire.CodeStreamNotAvailable, Stream: t.stream.Name})
	}
}

// giveUp drops everything that the connection has. Nobody is told: it ends.
func (s *session) giveUp() {
	s.mu.Lock()
	publishers, subscriptions := s.publishers, slices.Collect(maps.Values(s.subscriptions))
	s.publishers, s.subscriptions = map[uint8]*publisher{}, map[uint8]*subscription{}
	for _, t := range s.ties {
		t.publishers, t.subscriptions, t.consulted, t.making = 0, 0, false, 0
		s.loosenLocked(t)
	}
	s.mu.Unlock()
	for _, p := range publishers {
		p.close()
	}
	s.closeAll(subscriptions)
}

// closeAll closes subscriptions that have their ids no more.
func (s *session) closeAll(subscriptions []*subscription) {
	for _, sub := range subscriptions {
		sub.closeAlone()
	}
	s.broker.leaveGroups(subscriptions...)
}

// streamChanged follows a stream's change in the catalog. Publishers are bound to
// the epoch they were declared in; their client is told when the next leader is
// known, so that it finds one. Subscriptions go on through an election: they read
// the replica here.
func (s *session) streamChanged(before, after *catalog.Stream, node string) {
	if after == nil {
		s.dropTie(before.Incarnation, everything)
		return
	}
	elected := before != nil && after.Led() && (!before.Led() || before.Epoch < after.Epoch)
	s.dropTie(after.Incarnation, loss{
		publisher:    func(p *publisher) bool { return after.Led() && p.epoch < after.Epoch },
		subscription: func(*subscription) bool { return !replicaOn(after, node) },
		consulted:    elected,
	})
}

// recheck drops what the connection's user may no longer do, and the
// connection itself where it may not be here at all.
func (s *session) recheck() {
	s.mu.Lock()
	user, vhost := s.user, s.vhost
	ties := make([]*tie, 0, len(s.ties))
	for _, t := range s.ties {
		ties = append(ties, t)
	}
	s.mu.Unlock()
	view := s.broker.directory.View()
	if _, exists := view.User(user); !exists || !mayEnter(view, vhost, user) {
		s.kill()
		return
	}
	for _, t := range ties {
		mayWrite := view.Allowed(vhost, user, catalog.Write, t.stream.Name)
		mayRead := view.Allowed(vhost, user, catalog.Read, t.stream.Name)
		if mayWrite && mayRead {
			continue
		}
		s.dropTie(t.stream.Incarnation, loss{
			publisher:    func(*publisher) bool { return !mayWrite },
			subscription: func(*subscription) bool { return !mayRead },
		})
	}
}

// still is called once something that needed a right is there for recheck to
// find. A change of rights that was told before is seen here.
func (s *session) still(allowed bool) {
	if !allowed {
		s.recheck()
	}
}

func replicaOn(stream *catalog.Stream, node string) bool {
	for _, replica := range stream.Replicas {
		if string(replica.Node) == node {
			return true
		}
	}
	return false
}

func mayEnter(view *catalog.State, vhost, user string) bool {
	if _, exists := view.VHost(vhost); !exists {
		return false
	}
	_, allowed := view.Permission(vhost, user)
	return allowed
}

func (s *session) mayEnter(vhost string) bool {
	return mayEnter(s.broker.directory.View(), vhost, s.user)
}

// may says whether the connection's user may act on a stream.
func (s *session) may(action catalog.Action, name string) bool {
	return s.broker.directory.View().Allowed(s.vhost, s.user, action, name)
}
