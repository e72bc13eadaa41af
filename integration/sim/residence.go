package sim

import (
	"errors"
	"slices"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// follow begins, once the node is entered, to keep its replicas equal to those
// that the catalog places here; and puts away what was given up while it was
// down. A journal that was made anew has forgotten what the node promised.
func (n *node) follow() {
	if n.entered {
		return
	}
	n.entered = true
	n.w.log("entered", "%s at %d", n.id, n.server.applied)
	var waits []chunk.Incarnation
	for s := range n.view.Streams() {
		if _, holds := s.Replica(n.id); !holds || !n.store.Journal().Made() || n.meta.fresh {
			continue
		}
		if _, known := n.store.Journal().State(s.Incarnation); !known {
			waits = append(waits, s.Incarnation)
		}
	}
	n.meta.fresh = false
	life := n.life
	for _, i := range waits {
		n.store.Journal().Change(i, func(s *segstore.StreamState) { s.Aside = segstore.AsideJournalLost }, func(error) {
			n.w.after(1, func() {
				if n.lives(life) {
					n.reconcileStream(n.w.streamOf(i))
				}
			})
		})
	}
	for _, d := range n.store.List() {
		s := n.w.streamOf(d.Incarnation)
		if _, known := n.stream(s.inc); known {
			continue
		}
		n.w.reach(markQuarantine)
		n.w.log("put away", "%s s%d", n.id, s.index)
		if err := n.store.Quarantine(s.inc); err != nil {
			n.later(s)
		}
	}
	for _, s := range n.w.streams {
		if !slices.Contains(waits, s.inc) {
			n.reconcileStream(s)
		}
		if n.dead {
			n.die()
			return
		}
	}
}

// changed hears of changes that the view shows.
func (n *node) changed(changes []catalog.Change) {
	if r := n.w.meta.reign; r != nil && r.n == n {
		r.changed(changes)
	}
	if n.wishes.Changed(changes) {
		n.carrySoon()
	}
	for _, c := range changes {
		if c.Kind != catalog.StreamChanged {
			continue
		}
		if c.Stream == nil {
			delete(n.heard, c.Before.Incarnation)
			n.deleted[c.Before.Incarnation] = true
			n.reconcileStream(n.w.streamOf(c.Before.Incarnation))
		} else {
			if !newer(n.heard[c.Stream.Incarnation], c.Stream) {
				delete(n.heard, c.Stream.Incarnation)
			}
			n.reconcileStream(n.w.streamOf(c.Stream.Incarnation))
		}
		if n.dead {
			return
		}
	}
}

// newer tells whether a is a later state of the stream than b.
func newer(a, b *catalog.Stream) bool {
	return a != nil && (b == nil || a.Epoch > b.Epoch || a.ConfigVersion > b.ConfigVersion)
}

// stream is the newest that is known here of a stream.
func (n *node) stream(i chunk.Incarnation) (*catalog.Stream, bool) {
	s, _ := n.view.Incarnation(i)
	if h := n.heard[i]; newer(h, s) {
		s = h
	}
	return s, s != nil
}

var (
	errNotEntered = errors.New("the node does not know its membership yet")
	errNotHere    = errors.New("the stream has no replica here")
)

// openFor starts a replica that a fence asks for, of the newest known state of
// the stream, which the fence may have brought.
func (n *node) openFor(s *stream, brought *catalog.Stream) error {
	if !n.entered {
		return errNotEntered
	}
	known, ok := n.stream(s.inc)
	if !ok || newer(brought, known) {
		if n.deleted[s.inc] {
			return catalog.ErrStreamMissing
		}
		n.w.reach(markFenceAhead)
		n.heard[s.inc], known = brought, brought
		if !ok && len(n.heard) == 1 {
			n.w.reach(markHeardAlone)
			n.lookUpHeard()
		}
	}
	if _, holds := known.Replica(n.id); !holds {
		return errNotHere
	}
	n.startReplica(s, known)
	return nil
}

// heardPatience is how long a stream that a fence brought may be unknown to the
// view before it is looked up.
const heardPatience = second

// lookUpHeard gives up streams that a fence brought and that are not in the
// catalog any more. A snapshot in place of entries tells nothing of a stream that
// came and went between.
func (n *node) lookUpHeard() {
	life := n.life
	on := func() bool { return n.lives(life) }
	n.w.after(heardPatience, func() {
		leader := n.w.raft.leader
		switch {
		case !on() || len(n.heard) == 0:
		case leader == nil || !n.w.raft.leads(leader) || !n.w.reaches(n, leader):
			n.lookUpHeard()
		default:
			n.w.meta.seen(n, len(n.w.raft.log), on, func() {
				for _, s := range n.w.streams {
					if _, known := n.view.Incarnation(s.inc); n.heard[s.inc] != nil && !known {
						delete(n.heard, s.inc)
						n.deleted[s.inc] = true
						n.reconcileStream(s)
					}
				}
				if len(n.heard) > 0 {
					n.lookUpHeard()
				}
			})
		}
	})
}

// reconcileAll looks at all streams.
func (n *node) reconcileAll() {
	for _, s := range n.w.streams {
		n.reconcileStream(s)
		if n.dead {
			n.die()
			return
		}
	}
}

func (n *node) has(inc chunk.Incarnation) bool { return n.store.Has(inc) }

// reconcileStream makes this node's replica of a stream what it should be.
func (n *node) reconcileStream(s *stream) {
	if !n.entered || n.dead {
		return
	}
	c, ok := n.stream(s.inc)
	if ok {
		if _, holds := c.Replica(n.id); holds {
			n.startReplica(s, c)
			return
		}
	}
	if _, open := n.repl.Replica(s.inc); open || n.has(s.inc) {
		n.w.log("remove", "%s s%d", n.id, s.index)
		n.remove(s)
	}
}

// found is what is on this node's disk of a replica.
func (n *node) found(i chunk.Incarnation) catalog.Found {
	state, remembered := n.store.Journal().State(i)
	return catalog.Found{
		Files: n.has(i), Remembered: remembered, Registration: protocol.Registration(state.Registration),
		Forgotten: state.Aside == segstore.AsideJournalLost,
	}
}

// startReplica has a stream's replica run here, and tells it what the metadata
// says.
func (n *node) startReplica(s *stream, c *catalog.Stream) {
	if _, runs := n.repl.Replica(s.inc); !runs {
		entry, _ := c.Replica(n.id)
		switch c.Residence(n.id, n.found(s.inc)) {
		case catalog.OpenFiles:
			n.open(s, false)
		case catalog.MakeEmpty:
			n.open(s, true)
		case catalog.JoinEmpty:
			n.join(s, c.Epoch, entry.Registration)
		case catalog.EnterAnew:
			n.w.log("anew", "%s s%d", n.id, s.index)
			n.wishFor(s.inc, protocol.Proposal{Kind: protocol.ProposeRegister, Node: n.id})
		case catalog.LostAlone:
			n.w.violate("D1", "%s has lost the only replica of %s", n.id, s)
		}
	}
	if r, runs := n.repl.Replica(s.inc); runs && !n.dead {
		n.tell(s, c, r)
	}
}

// tell brings a replica its entry, if that is newer than the one it knows itself
// by, and the configuration. An epoch that an earlier run led is over (A5).
func (n *node) tell(s *stream, c *catalog.Stream, r *replication.Replica) {
	switch c.Entry(n.id, n.found(s.inc)) {
	case catalog.EntryIsNew:
		entry, _ := c.Replica(n.id)
		n.repl.BeginRegistered(s.inc, c.Epoch, entry.Registration, func(error) {})
	case catalog.EntryOfOther:
		n.wishFor(s.inc, protocol.Proposal{Kind: protocol.ProposeRegister, Node: n.id})
	case catalog.EntryKnown:
	}
	n.repl.BeginConfigure(s.inc, c.Configuration(), func(error) {})
	if c.Leader.Node == n.id && c.Leader.Run != r.Standing().Run {
		n.ended(s.inc, c.Epoch, "")
	}
}

// registered hears that the metadata has entered a replica of this node anew.
func (n *node) registered(s *stream, e chunk.Epoch, as protocol.Registration) {
	if _, runs := n.repl.Replica(s.inc); runs {
		n.repl.BeginRegistered(s.inc, e, as, func(error) {})
		return
	}
	n.reconcileStream(s)
}

func (n *node) remove(s *stream) {
	if g := n.known[s.inc]; g != nil {
		n.given[s.inc] = g
	}
	delete(n.known, s.inc)
	n.repl.BeginRemove(s.inc, func(err error) {
		if err != nil {
			n.later(s)
		}
	})
}

// later has a stream looked at again.
func (n *node) later(s *stream) {
	life := n.life
	n.w.after(100*millisecond, func() {
		if n.lives(life) {
			if n.reconcileStream(s); n.dead {
				n.die()
			}
		}
	})
}

func (n *node) spec(s *stream) replication.Stream {
	return replication.Stream{Incarnation: s.inc, Name: s.name, Settings: s.settings.Settings}
}

// open starts a replica.
func (n *node) open(s *stream, isNew bool) bool {
	r, err := n.repl.Open(n.spec(s), isNew)
	return n.opened(s, r, err)
}

func (n *node) opened(s *stream, r *replication.Replica, err error) bool {
	if n.dead {
		return false
	}
	if err != nil {
		if n.w.opts.diskEvery > 0 || errors.Is(err, segstore.ErrMissing) {
			// The disk failed just now; the process would be started again.
			n.w.log("open", "%s s%d: failed", n.id, s.index)
			life := n.life
			n.w.after(100*millisecond, func() {
				if n.lives(life) {
					n.reconcileAll()
				}
			})
			return false
		}
		n.w.violate("I25", "%s does not open %s: %v", n.id, s, err)
		return false
	}
	n.w.checkOpened(n, s, r)
	return true
}

// join makes a learner's replica, or an emptied one's.
func (n *node) join(s *stream, e chunk.Epoch, as protocol.Registration) {
	n.w.log("join", "%s s%d as %d at e%d", n.id, s.index, as, e)
	delete(n.known, s.inc)
	delete(n.given, s.inc)
	r, err := n.repl.Join(n.spec(s), e, as)
	n.opened(s, r, err)
}

// propose takes a replica's wish.
func (n *node) propose(life int, inc chunk.Incarnation, p protocol.Proposal) {
	if !n.lives(life) {
		return
	}
	n.w.log("propose", "%s s%d %s %s e%d v%d", n.id, n.w.streamOf(inc).index, p.Kind, p.Node, p.Epoch, p.Config)
	n.wishFor(inc, p)
}

// lost hears that a run ended; after damage or an alarm it says why.
func (n *node) lost(life int, inc chunk.Incarnation, err error) {
	if !n.lives(life) {
		return
	}
	s := n.w.streamOf(inc)
	n.w.log("lost", "%s s%d", n.id, s.index)
	n.w.observeCommit(n, s) // of the same turn
	if g := n.known[inc]; g != nil {
		g.endRun()
		g.torn = true // what failed may have been a cut
	}
	if errors.Is(err, replication.ErrUnavailable) {
		n.w.violate("alarm", "%s stops %s: %v", n.id, s, err)
	} else if n.w.opts.diskEvery == 0 && n.w.rotten != n {
		n.w.violate("disk", "%s loses a run of %s without a fault: %v", n.id, s, err)
	}
	if c, ok := n.stream(inc); ok && c.Leader.Node == n.id {
		n.ended(inc, c.Epoch, "")
	}
	// The view may show only later that the run led: it is looked at once more.
	n.w.after(second, func() {
		if n.lives(life) {
			n.reconcileStream(s)
		}
	})
}
