package sim

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// metadata is what of package cluster the nodes have: calls that reach the
// leader of the metadata and are repeated until somebody answers, the replicas'
// wishes, entering, and beside the leader the coordinator. What it decides, the
// functions of package catalog decide.
type metadata struct {
	w       *World
	reign   *metaReign // the newest
	request int        // numbers the requests
}

func (m *metadata) delay() int64 { return m.w.between(200*microsecond, m.w.opts.metaMax) }

func (m *metadata) lost() bool { return !m.w.calm && m.w.chance(m.w.opts.metaLossPerMille) }

const retryPause = 10 * millisecond // cluster's

// encode makes a command with a request id of its own.
func (m *metadata) encode(body catalog.Body) []byte {
	m.request++
	return catalog.Command{Request: fmt.Sprint("r", m.request), At: m.w.at(), Body: body}.Encode()
}

// call has a command carried out for a node through whoever leads, again and
// again under its one request id until somebody answers; then, once the node's
// own view shows it, it calls back. It ends when on says so.
func (m *metadata) call(n *node, body catalog.Body, on func() bool, then func(catalog.Result)) {
	m.carry(n, m.encode(body), on, then)
}

func (m *metadata) carry(n *node, command []byte, on func() bool, then func(catalog.Result)) {
	w := m.w
	life := n.life
	lives := func() bool { return n.lives(life) && on() && w.failure == nil }
	answered := false
	again := func(after int64) {
		w.after(after, func() {
			if !answered && lives() {
				answered = true
				m.carry(n, command, on, then)
			}
		})
	}
	leader := w.raft.leader
	if leader == nil || !w.reaches(n, leader) {
		again(w.between(retryPause, 5*retryPause))
		return
	}
	way := func(do func()) { // to the leader or back
		switch {
		case n == leader:
			do()
		case m.lost():
			w.reach(markMetaLost)
		default:
			w.after(m.delay(), do)
		}
	}
	again(patience)
	way(func() {
		if !w.raft.leads(leader) {
			way(func() { again(retryPause) })
			return
		}
		w.raft.offer(command, func(index int, result catalog.Result) {
			way(func() {
				switch {
				case answered || !lives():
				case index == 0:
					again(retryPause)
				default:
					answered = true
					m.seen(n, index, lives, func() { then(result) })
				}
			})
		})
	})
}

// seen calls back once a node has applied an entry.
func (m *metadata) seen(n *node, index int, on func() bool, then func()) {
	switch {
	case !on():
	case n.server.applied >= index:
		then()
	default:
		m.w.after(5*millisecond, func() { m.seen(n, index, on, then) })
	}
}

func always() bool { return true }

// enter makes a node that starts a member, or known again, with all of the past
// applied. Until then it answers no fence and starts no replica.
func (m *metadata) enter(n *node) {
	w := m.w
	life := n.life
	again := func() { w.after(w.between(retryPause, 10*retryPause), func() { m.enter(n) }) }
	if !n.lives(life) || w.failure != nil {
		return
	}
	leader := w.raft.leader
	if leader == nil || !w.knocks(n, leader) || !w.raft.leads(leader) {
		w.after(w.between(retryPause, 10*retryPause), func() {
			if n.lives(life) {
				m.enter(n)
			}
		})
		return
	}
	w.after(m.delay(), func() {
		if !n.lives(life) {
			return
		}
		if !w.raft.leads(leader) {
			again()
			return
		}
		m.enterHere(leader, n, life, again)
	})
}

// enterHere takes a node in, or back, on the leader.
func (m *metadata) enterHere(leader, n *node, life int, again func()) {
	w := m.w
	put := &catalog.PutNode{ID: n.id, Disk: n.meta.name}
	old, member := leader.view.Node(n.id)
	retry := func() {
		if n.lives(life) {
			again()
		}
	}
	if member && old.Disk != put.Disk {
		up := func(id protocol.NodeID) bool { return id != n.id && (id == leader.id || leader.seesUp(id)) }
		if n == leader || catalog.MajorityWithout(voters(leader.view), n.id, up) != nil || len(leader.view.LostWithout(n.id, up)) > 0 {
			w.after(20*retryPause, retry)
			return
		}
		put.Replace = true
	}
	done := func(index int) {
		if r := m.reign; n != leader && r.n == leader && r.lives() {
			r.sight.Restarted(leader.view, n.id)
			r.agenda.Touch(leader.view.Held(n.id)...)
			r.soon()
		}
		m.seen(n, index, func() bool { return n.lives(life) }, func() { n.follow() })
	}
	if member && old.Disk == put.Disk {
		done(len(w.raft.log))
		return
	}
	w.raft.offer(m.encode(put), func(index int, result catalog.Result) {
		if index == 0 || result.Err() != nil {
			w.after(retryPause, retry)
			return
		}
		done(index)
	})
}

func voters(s *catalog.State) (list []protocol.NodeID) {
	for n := range s.Nodes() {
		list = append(list, n.ID)
	}
	return list
}

// wishFor takes what a replica of a node wants of the metadata.
func (n *node) wishFor(i chunk.Incarnation, p protocol.Proposal) {
	n.wishes.Add(i, p)
	n.carrySoon()
}

func (n *node) carrySoon() {
	if n.carrying {
		return
	}
	n.carrying = true
	life := n.life
	n.w.after(n.w.between(1, millisecond), func() {
		if n.lives(life) {
			n.carryWishes(life)
		}
	})
}

// wishPause is cluster's.
const wishPause = 100 * millisecond

// carryWishes hands the replicas' wishes to the metadata: registrations, then
// clearings, then changes of voters.
func (n *node) carryWishes(life int) {
	list := n.wishes.Take()
	again := func(x catalog.Wish) {
		n.w.after(wishPause, func() {
			if n.lives(life) {
				n.wishFor(x.Stream, x.Proposal)
			}
		})
	}
	registrations, asked := catalog.Registrations(n.view, n.id, list)
	n.wish(registrations, len(asked), func(result catalog.Result) {
		for i, x := range asked {
			switch o := result.Outcomes[i]; {
			case errors.Is(o.Err(), catalog.ErrStaleVersion):
				again(x)
			case o.Refusal == nil:
				n.w.reach(markRegistered)
				n.registered(n.w.streamOf(x.Stream), o.Epoch, o.Registration)
			}
		}
	}, func() {
		clearings := catalog.Clearings(list)
		n.wish(clearings, len(clearings.Replicas), nil, func() {
			changes, _, later := catalog.VoterChanges(n.view, n.id, list, n.reached)
			n.wish(changes, len(changes.Changes), nil, func() {
				for _, x := range later {
					again(x)
				}
				n.carrying = false
				if !n.wishes.Empty() {
					n.carrySoon()
				}
			})
		})
	})
}

// wish carries one command out, if there is anything in it, and then goes on.
func (n *node) wish(body catalog.Body, parts int, heard func(catalog.Result), then func()) {
	if parts == 0 {
		then()
		return
	}
	n.w.meta.call(n, body, always, func(result catalog.Result) {
		if heard != nil {
			heard(result)
		}
		then()
	})
}

// ended tells the coordinator, wherever it is, that a leader on this node leads
// no more; heir is whom it has handed over to. It is repeated until somebody has
// heard, or the catalog has gone beyond.
func (n *node) ended(i chunk.Incarnation, e chunk.Epoch, heir protocol.NodeID) {
	w := n.w
	life := n.life
	if c, ok := n.view.Incarnation(i); !ok || c.Epoch > e {
		return
	}
	w.log("ended", "%s s%d e%d %s", n.id, w.streamOf(i).index, e, heir)
	again := func(after int64) {
		w.after(after, func() {
			if n.lives(life) {
				n.ended(i, e, heir)
			}
		})
	}
	r := w.meta.reign
	if r == nil || !r.lives() || !w.reaches(n, r.n) || w.meta.lost() {
		again(w.between(retryPause, 10*retryPause))
		return
	}
	w.after(w.meta.delay(), func() {
		if !r.lives() {
			again(retryPause)
			return
		}
		r.post(i, func(view *catalog.State) {
			c, ok := view.Incarnation(i)
			switch {
			case !ok:
			case heir != "":
				r.sight.HandedOver(c, e, heir)
			default:
				r.sight.Over(c, e)
			}
		})
	})
}
