package sim

import (
	"fmt"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// What operators ask for. They ask some node, which looks at what it knows, as
// package cluster does, and has it carried out by a command.

// operate has an operator's command carried out through a node that is there.
func (w *World) operate(body func(n *node) catalog.Body) {
	n := w.anyNode()
	if !n.up || n.dead || !n.entered {
		return
	}
	if b := body(n); b != nil {
		x := &asked{n: n, life: n.life}
		w.asked = append(w.asked, x)
		w.meta.call(n, b, always, func(catalog.Result) { x.answered = true })
	}
}

// asked is what an operator has asked of a node in one of its lives.
type asked struct {
	n        *node
	life     int
	answered bool
}

// moveOne moves a replica to another node, adds one, or has one go.
func (w *World) moveOne() {
	s := w.anyStream()
	w.operate(func(n *node) catalog.Body {
		c, ok := n.view.Incarnation(s.inc)
		if !ok {
			return nil
		}
		to := w.anyNode().id
		from := c.Replicas[w.rng.IntN(len(c.Replicas))].Node
		w.stats.Moves++
		switch w.rng.IntN(4) {
		case 0:
			if n.view.CanAdd(c, to, n.seesUp) == nil {
				w.log("add", "s%d on %s", s.index, to)
				return &catalog.AddReplicas{Replicas: []catalog.Added{{Stream: s.inc, Node: to}}}
			}
		case 1:
			if n.view.CanRemove(c, from, n.seesUp) == nil && w.maySpare(s) {
				w.log("retire", "s%d on %s", s.index, from)
				return &catalog.RetireReplicas{Replicas: []catalog.Retired{{Stream: s.inc, Node: from}}}
			}
		default:
			if n.view.CanMove(c, from, to, n.seesUp) == nil {
				w.log("move", "s%d %s→%s", s.index, from, to)
				return &catalog.AddReplicas{Replicas: []catalog.Added{{Stream: s.inc, Node: to, Instead: from}}}
			}
		}
		return nil
	})
}

// maySpare: one may rot for good, and the others must be a majority then.
func (w *World) maySpare(s *stream) bool { return s.want > 3 || s.want == 3 && w.opts.rotEvery == 0 }

func (w *World) handOverOne() {
	s, to := w.anyStream(), w.anyNode().id
	w.operate(func(*node) catalog.Body {
		w.log("transfer", "s%d to %s", s.index, to)
		return &catalog.TransferLeaders{Transfers: []catalog.Transfer{{Stream: s.inc, To: to}}}
	})
}

// drainOne drains a node, and lets it work again some time later.
func (w *World) drainOne() {
	id := w.anyNode().id
	w.operate(func(n *node) catalog.Body {
		m, ok := n.view.Node(id)
		if !ok || m.Leaving {
			return nil
		}
		w.log("drain", "%s %v", id, !m.Draining)
		return &catalog.MarkNode{ID: id, Draining: !m.Draining}
	})
}

// balanceOne evens out leaders and replicas over the nodes.
func (w *World) balanceOne() {
	w.operate(func(n *node) catalog.Body {
		moves, _ := n.view.Room(catalog.BalanceReplicas(n.view, n.seesUp))
		if len(moves) > 0 {
			body := &catalog.AddReplicas{}
			for _, m := range moves {
				body.Replicas = append(body.Replicas, catalog.Added{Stream: m.Stream, Node: m.To, Instead: m.From})
			}
			w.reach(markBalanced)
			return body
		}
		if transfers := catalog.BalanceLeaders(n.view, n.seesUp); len(transfers) > 0 {
			w.reach(markBalanced)
			return &catalog.TransferLeaders{Transfers: transfers}
		}
		return nil
	})
}

// leaveOne takes a node out of the cluster for good. It comes again as another
// one of the same name, with an empty disk.
func (w *World) leaveOne() {
	leader := w.raft.leader
	if len(w.nodes) < 4 || leader == nil || !w.raft.leads(leader) || w.rotten != nil {
		return
	}
	view, out := leader.view, 0
	for m := range view.Nodes() {
		if m.Leaving {
			return // one after the other
		}
		out++
	}
	id := w.anyNode().id
	up := func(n protocol.NodeID) bool { return n == leader.id || leader.seesUp(n) }
	if _, member := view.Node(id); !member || out < len(w.nodes) ||
		catalog.MajorityWithout(voters(view), id, up) != nil || len(view.LostWithout(id, up)) > 0 {
		return
	}
	w.log("leave", "%s", id)
	w.meta.call(leader, &catalog.MarkNode{ID: id, Draining: true, Leaving: true}, always, func(catalog.Result) {})
}

// removed takes down a node that is no member any more, with its disk.
func (w *World) removed(n *node) {
	w.log("removed", "%s", n.id)
	for _, s := range w.streams {
		if g := n.known[s.inc]; g != nil {
			n.given[s.inc] = g
		}
	}
	w.empty(n)
}

// empty gives a node a new disk, and with it another life.
func (w *World) empty(n *node) {
	n.mem = vfs.NewMem()
	w.disks++
	n.meta = metaDisk{name: fmt.Sprint("disk-", w.disks), emptied: true, fresh: true}
	clear(n.known)
	if n.up {
		n.down()
	}
}

// recreateOne deletes a stream and makes another one of the same name.
func (w *World) recreateOne() {
	s := w.anyStream()
	if len(w.living()) < w.opts.streams || len(w.streams) > 12 {
		return // one after the other
	}
	w.operate(func(n *node) catalog.Body {
		c, ok := n.view.Stream("/", s.name)
		if !ok || c.Incarnation != s.inc {
			return nil
		}
		w.log("delete", "s%d", s.index)
		return &catalog.DeleteStreams{Streams: []catalog.OldStream{{VHost: "/", Name: s.name, Incarnation: s.inc}}}
	})
}

// drawStream draws a stream that is to be made.
func (w *World) drawStream(name string) *stream {
	s := &stream{
		index: len(w.streams), name: name, inc: chunk.Incarnation(w.rng.Uint64() | 1), settings: w.opts.settings,
		ghost: newGhost(w.opts.settings.Log.Caps),
	}
	w.streams = append(w.streams, s)
	return s
}

// make has a stream made where the leader places it, again until it is.
func (w *World) make(s *stream) {
	again := func() { w.after(w.between(10*millisecond, 100*millisecond), func() { w.make(s) }) }
	n := w.raft.leader
	if s.made || w.failure != nil {
		return
	}
	if n == nil || !w.raft.leads(n) || !n.entered {
		again()
		return
	}
	placer := catalog.NewPlacer(n.view, n.seesUp)
	body, ok := w.place(placer, s, n.id)
	if !ok {
		again()
		return
	}
	life := n.life
	w.log("create", "s%d on %v, preferred %s", s.index, body.Replicas, body.Preferred)
	heard := false
	w.after(second, func() { // whoever asked asks again, with the same incarnation
		if !heard && !n.lives(life) {
			heard = true
			again()
		}
	})
	w.meta.call(n, &catalog.CreateStreams{Streams: []catalog.NewStream{body}}, always, func(r catalog.Result) {
		if !heard {
			heard = true
			if r.Err() != nil {
				again()
			}
		}
	})
}

// place chooses the nodes of a new stream.
func (w *World) place(placer *catalog.Placer, s *stream, local protocol.NodeID) (catalog.NewStream, bool) {
	arguments := catalog.Arguments{InitialClusterSize: catalog.Number{Value: int64(w.opts.replicas), Given: true}}
	p, err := placer.Place(catalog.Wanted{Arguments: arguments, Local: local, Salt: uint64(s.inc)})
	return catalog.NewStream{
		VHost: "/", Name: s.name, Arguments: arguments, Incarnation: s.inc, Replicas: p.Replicas, Preferred: p.Leader,
	}, err == nil
}

// tally keeps what the world knows of streams and nodes level with the catalog.
func (w *World) tally(body catalog.Body, result catalog.Result, before, after *catalog.State) {
	done := func(i int) bool { return result.Outcomes[i].Refusal == nil }
	switch c := body.(type) {
	case *catalog.CreateStreams:
		for i, x := range c.Streams {
			if done(i) {
				w.made(w.streamOf(x.Incarnation), len(x.Replicas))
			}
		}
	case *catalog.DeleteStreams:
		for i, x := range c.Streams {
			if done(i) {
				w.streamOf(x.Incarnation).deleted = true
				w.make(w.drawStream(x.Name))
			}
		}
	case *catalog.AddReplicas:
		for i, x := range c.Replicas {
			if done(i) && x.Instead == "" {
				w.streamOf(x.Stream).want++
			}
		}
	case *catalog.RetireReplicas:
		for i, x := range c.Replicas {
			was, _ := before.Incarnation(x.Stream)
			if r, ok := replicaOf(was, x.Node); done(i) && ok && r.Leaving == x.Stay {
				w.streamOf(x.Stream).want--
			}
		}
	case *catalog.RemoveNode:
		if n := w.node(c.ID); done(0) {
			w.after(w.between(0, 500*millisecond), func() { w.removed(n) })
		}
	case *catalog.PutNode:
		if n := w.node(c.ID); done(0) && n.meta.name == c.Disk && n.meta.emptied {
			n.meta.emptied = false
			w.wiped = w.now
			if _, was := before.Node(c.ID); was {
				w.reach(markDiskReplaced)
			} else {
				w.reach(markNodeJoined)
			}
		}
	}
}

func replicaOf(s *catalog.Stream, id protocol.NodeID) (catalog.Replica, bool) {
	if s == nil {
		return catalog.Replica{}, false
	}
	return s.Replica(id)
}

// made has clients of a stream's name use the new one.
func (w *World) made(s *stream, replicas int) {
	if s.made {
		return
	}
	s.made, s.want = true, replicas
	for _, old := range w.streams {
		if old != s && old.name == s.name {
			w.reach(markRecreated)
			for _, c := range w.clients {
				c.moves(old, s)
			}
		}
	}
}

// markCommand notes what happened in the catalog.
func (w *World) markCommand(body catalog.Body, result catalog.Result) {
	done := 0
	for _, o := range result.Outcomes {
		if o.Refusal == nil {
			done++
		}
	}
	if done == 0 {
		return
	}
	switch c := body.(type) {
	case *catalog.GrantEpochs:
		w.stats.Grants += done
	case *catalog.ChangeVoters:
		w.coverage[markVoterChange] += done
	case *catalog.TransferLeaders:
		w.coverage[markTransfer] += done
	case *catalog.AddReplicas:
		for _, x := range c.Replicas {
			if x.Instead == "" {
				w.reach(markAdded)
			} else {
				w.reach(markMoved)
			}
		}
	case *catalog.RetireReplicas:
		w.reach(markRetire)
	case *catalog.MarkNode:
		switch {
		case c.Leaving:
			w.reach(markNodeLeaves)
		case c.Draining:
			w.reach(markDrained)
		default:
			w.reach(markUndrained)
		}
	case *catalog.RemoveNode:
		w.reach(markNodeRemoved)
	}
}

// misplaced tells what operators asked for and is not so.
func (w *World) misplaced() string {
	truth := w.raft.truth
	if l := w.raft.leader; l == nil || !w.raft.leads(l) {
		return "the metadata has no leader"
	}
	for _, x := range w.asked {
		if !x.answered && x.n.lives(x.life) {
			return "an operator waits"
		}
	}
	for _, n := range w.nodes {
		if w.raft.leader.gone[n.id] {
			return fmt.Sprintf("%s takes %s for gone", w.raft.leader.id, n.id)
		}
		m, member := truth.Node(n.id)
		switch {
		case !n.entered:
			return fmt.Sprintf("%s has not entered", n.id)
		case n.server.applied != len(w.raft.log):
			return fmt.Sprintf("%s has applied %d entries of %d", n.id, n.server.applied, len(w.raft.log))
		case !member:
			return fmt.Sprintf("%s is no member", n.id)
		case m.Leaving:
			return fmt.Sprintf("%s is to leave", n.id)
		}
	}
	for _, s := range w.streams {
		if s.deleted {
			continue
		}
		c, ok := truth.Incarnation(s.inc)
		if !ok {
			return fmt.Sprintf("%s is not made", s)
		}
		if len(c.Replicas) != s.want {
			return fmt.Sprintf("%s has %d replicas, %d are wanted", s, len(c.Replicas), s.want)
		}
		if c.Target != "" && c.Led() {
			return fmt.Sprintf("%s is to be led from %s, it is from %s", s, c.Target, c.Leader.Node)
		}
		if m, ok := truth.Node(c.Leader.Node); ok && m.Draining {
			for _, r := range c.Replicas {
				if other, ok := truth.Node(r.Node); ok && !other.Draining && r.Voter && !r.Aside {
					return fmt.Sprintf("%s is led from %s, which drains", s, c.Leader.Node)
				}
			}
		}
	}
	return ""
}
