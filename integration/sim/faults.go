package sim

import (
	"syscall"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/vfs"
)

// plan has each kind of fault come now and then, as long as it is not calm.
func (w *World) plan() {
	o := &w.opts
	for _, f := range []struct {
		every int64
		do    func()
	}{
		{o.crashEvery, w.crashOne}, {o.powerEvery, w.powerOne}, {o.cutEvery, w.cutOne},
		{o.resetEvery, w.resetOne}, {o.moveEvery, w.moveOne}, {o.handoverEvery, w.handOverOne},
		{o.doubtEvery, w.doubtOne}, {o.diskEvery, w.disturbOne}, {o.wipeEvery, w.wipeOne},
	} {
		if f.every > 0 {
			w.again(f.every, f.do)
		}
	}
}

func (w *World) again(every int64, do func()) {
	w.after(w.between(every/4, 2*every), func() {
		if w.calm {
			return
		}
		do()
		w.again(every, do)
	})
}

func (w *World) anyNode() *node { return w.nodes[w.rng.IntN(len(w.nodes))] }

func (w *World) crashOne() {
	if n := w.anyNode(); n.up {
		n.crash()
	}
}

// powerOne takes the power from a node, or from all, now or inside of a step
// that is to come.
func (w *World) powerOne() {
	if w.chance(100) {
		for _, n := range w.nodes {
			w.fail(n)
		}
		return
	}
	w.fail(w.anyNode())
}

func (w *World) fail(n *node) {
	switch {
	case !n.up:
	case w.chance(w.opts.midTurnPerMille):
		n.fuse = 1 + w.rng.IntN(20)
	default:
		n.blow()
		n.die()
	}
}

// cutOne stops what one node says to another, or to all, for a while.
func (w *World) cutOne() {
	if len(w.links) == 0 {
		return
	}
	w.stats.Cuts++
	cut := func(l *link, from int) {
		w.log("cut", "%s→%s", l.ends[from].id, l.ends[1-from].id)
		l.cut[from] = true
		l.doom()
		w.after(w.between(50*millisecond, 2*second), func() { l.cut[from] = false })
	}
	n := w.anyNode()
	switch w.rng.IntN(3) {
	case 0: // one way, one link
		l := w.links[w.rng.IntN(len(w.links))]
		cut(l, w.rng.IntN(2))
	case 1: // one way, all links of a node
		out := w.rng.IntN(2)
		for _, l := range w.links {
			for i := range l.ends {
				if l.ends[i] == n {
					cut(l, i^out)
				}
			}
		}
	default: // a node alone
		for _, l := range w.links {
			if l.ends[0] == n || l.ends[1] == n {
				cut(l, 0)
				cut(l, 1)
			}
		}
	}
}

func (w *World) resetOne() {
	if len(w.links) > 0 {
		if l := w.links[w.rng.IntN(len(w.links))]; l.up {
			l.reset()
		}
	}
}

func (w *World) anyStream() *stream { return w.streams[w.rng.IntN(len(w.streams))] }

// moveOne moves a replica to a node that has none of the stream.
func (w *World) moveOne() {
	s := w.anyStream()
	to := w.anyNode()
	members := w.meta.members(s)
	if w.meta.isMember(s, to.id) || len(members) == 0 {
		return
	}
	from := members[w.rng.IntN(len(members))]
	w.stats.Moves++
	w.log("move", "s%d %s→%s", s.index, from, to.id)
	w.meta.propose(&catalog.AddReplicas{Replicas: []catalog.Added{{Stream: s.inc, Node: to.id, Instead: from}}}, nil)
}

func (w *World) handOverOne() {
	s := w.anyStream()
	to := w.anyNode()
	w.log("transfer", "s%d to %s", s.index, to.id)
	w.meta.propose(&catalog.TransferLeaders{Transfers: []catalog.Transfer{{Stream: s.inc, To: to.id}}}, nil)
}

// doubtOne makes the coordinator believe wrongly that a node is gone, or lets
// another one go on without what it knew.
func (w *World) doubtOne() {
	if w.chance(300) {
		w.log("doubt", "new coordinator")
		w.meta.sight = catalog.NewSight()
		w.meta.soon()
		return
	}
	n := w.anyNode()
	w.log("doubt", "%s", n.id)
	w.meta.sight.See(n.id, catalog.Gone)
	w.meta.soon()
	w.after(w.between(10*millisecond, second), func() {
		w.meta.sight.See(n.id, catalog.Up)
		w.meta.soon()
	})
}

// disturbOne fails an operation of a node's disk.
func (w *World) disturbOne() {
	n := w.anyNode()
	if !n.up {
		return
	}
	w.stats.DiskFaults++
	rule := vfs.Rule{After: w.rng.IntN(6), Times: 1, Fault: vfs.Fault{Err: syscall.EIO}}
	switch w.rng.IntN(3) {
	case 0:
		rule.Ops = vfs.OpSync
		rule.Sync = []vfs.SyncFailure{vfs.BytesStayDirty, vfs.BytesLostAtCrash, vfs.BytesDropped}[w.rng.IntN(3)]
		rule.Path = "*.seg"
	case 1:
		rule.Ops, rule.Path = vfs.OpWrite, "*.seg"
		rule.Short = w.rng.IntN(100)
	default:
		rule.Ops = vfs.OpSync // of the journal, of MANIFEST too
	}
	w.log("disk", "%s fails %v", n.id, rule.Ops)
	n.rules = append(n.rules, n.disk.Add(rule))
}

// heal ends the faults of a node's disk.
func (n *node) heal() {
	for _, rule := range n.rules {
		n.disk.Lift(rule)
	}
	n.rules = nil
}

// wipeOne empties a node's disk, if the others can do without it.
func (w *World) wipeOne() {
	n := w.anyNode()
	if len(w.nodes) < 3 || !n.up || !w.mayWipe(n) {
		return
	}
	w.log("wipe", "%s", n.id)
	w.wiped = w.now
	n.mem = vfs.NewMem()
	for _, s := range w.streams {
		delete(n.known, s.inc)
	}
	n.down()
}

// mayWipe: more copies must not be lost than a majority can do without. A wipe
// is taken only where every member counts and nobody else is down.
func (w *World) mayWipe(n *node) bool {
	for _, other := range w.nodes {
		if !other.up {
			return false
		}
	}
	for _, s := range w.streams {
		c, ok := w.meta.state.Incarnation(s.inc)
		if !ok || !c.Led() {
			return false
		}
		for _, r := range c.Replicas {
			if !r.Voter || r.Aside {
				return false
			}
			if r.Node != n.id && !w.holdsAll(w.node(r.Node), s) {
				return false
			}
		}
	}
	return true
}
