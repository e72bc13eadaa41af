package sim

import (
	"time"

	"github.com/millrace/millrace/cluster/catalog"
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
		{o.rotEvery, w.rotOne}, {o.journalEvery, w.loseJournalOne}, {o.clockEvery, w.setClockOne},
		{o.recreateEvery, w.recreateOne}, {o.strandEvery, w.strandOne}, {o.visitEvery, w.visit},
		{o.drainEvery, w.drainOne}, {o.balanceEvery, w.balanceOne}, {o.leaveEvery, w.leaveOne},
		{o.replaceEvery, w.replaceOne},
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
		n.fuse, n.fuseFile = 1+w.rng.IntN(20), ""
		if w.chance(300) {
			n.fuse, n.fuseFile = 1+w.rng.IntN(4), "MANIFEST"
		}
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
	cut := func(l *link, from int) { w.cut(l, from, w.between(50*millisecond, 2*second)) }
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
		w.isolate(n, w.between(50*millisecond, 2*second))
	}
}

// cut lets nothing pass from one end of a link for a while.
func (w *World) cut(l *link, from int, d int64) {
	w.log("cut", "%s→%s", l.ends[from].id, l.ends[1-from].id)
	l.cut[from] = true
	l.doom()
	w.after(d, func() { l.cut[from] = false })
}

func (w *World) isolate(n *node, d int64) {
	for _, l := range w.links {
		if l.ends[0] == n || l.ends[1] == n {
			w.cut(l, 0, d)
			w.cut(l, 1, d)
		}
	}
}

// strandOne leaves a leader alone with its publishers while another one is
// elected, and brings it back when that one seems to be gone: the election then
// chooses between many chunks of an old epoch and few of a newer one (A4).
func (w *World) strandOne() {
	s := w.anyStream()
	c, ok := w.raft.truth.Incarnation(s.inc)
	if !ok || !c.Led() || len(w.links) == 0 {
		return
	}
	n, d := w.node(c.Leader.Node), w.between(200*millisecond, 1500*millisecond)
	if w.raft.leader == n {
		w.deposeOne() // who leads the metadata must not go with it
	}
	w.log("strand", "%s s%d", n.id, s.index)
	w.isolate(n, d)
	w.doubt(n, d)
	w.after(d-w.between(0, 60*millisecond), func() {
		if c, ok := w.raft.truth.Incarnation(s.inc); ok && c.Led() && c.Leader.Node != n.id && !w.calm {
			if l := w.raft.leader; l != nil && l.server != nil {
				l.see(n.id, catalog.Up)
			}
			w.doubt(w.node(c.Leader.Node), w.between(50*millisecond, 500*millisecond))
		}
	})
}

func (w *World) resetOne() {
	if len(w.links) > 0 {
		if l := w.links[w.rng.IntN(len(w.links))]; l.up {
			l.reset()
		}
	}
}

func (w *World) anyStream() *stream {
	if living := w.living(); len(living) > 0 {
		return living[w.rng.IntN(len(living))]
	}
	return w.streams[len(w.streams)-1] // not made yet
}

// doubtOne makes the coordinator believe wrongly that a node is gone, or has
// another node lead the metadata, whose coordinator knows nothing of what the
// last one has begun.
func (w *World) doubtOne() {
	if w.chance(400) {
		w.deposeOne()
		return
	}
	w.doubt(w.anyNode(), w.between(10*millisecond, second))
}

// deposeOne has the metadata led by another node.
func (w *World) deposeOne() {
	if w.raft.leader != nil {
		w.raft.depose("it is told to")
	}
}

// doubt makes whoever leads the metadata take a node for gone for a while.
func (w *World) doubt(n *node, d int64) {
	l := w.raft.leader
	if l == nil || !w.raft.leads(l) || l == n {
		return
	}
	w.log("doubt", "%s", n.id)
	life := l.life
	l.see(n.id, catalog.Gone)
	w.after(d, func() {
		if l.lives(life) && w.reaches(l, n) {
			l.see(n.id, catalog.Up)
		}
	})
}

// setClockOne sets a node's clock, forth or back.
func (w *World) setClockOne() {
	n := w.anyNode()
	d := time.Duration(w.between(-5000, 5000)) * time.Millisecond
	if w.chance(100) {
		d = 2 * time.Hour
	}
	if d < 0 {
		// Not to before the life began: what passes is measured by a steady clock
		// on a machine, and by this one here.
		if (clock{n, n.life}).Now().Add(d).Before(n.began) {
			return
		}
		w.reach(markClockBack)
	}
	w.log("clock", "%s %v", n.id, d)
	n.skew += d
}
