package sim

import (
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
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

// wipeOne empties a node's disk, if a majority can do without it. The others need
// not hold all that is committed: a majority without the emptied one, which counts
// for nothing (D1), has one among it that does.
func (w *World) wipeOne() {
	n := w.anyNode()
	if len(w.nodes) < 3 || !n.up || !w.maySpareDisk(n) {
		return
	}
	w.wipe(n)
}

func (w *World) wipe(n *node) {
	w.log("wipe", "%s", n.id)
	w.wiped = w.now
	w.empty(n)
}

// maySpareDisk: no more copies must be lost than a majority can do without. That is
// one, where every member counts and nobody else is down.
func (w *World) maySpareDisk(n *node) bool {
	for _, other := range w.nodes {
		if _, member := w.raft.truth.Node(other.id); !other.up || !other.entered || other.meta.emptied || !member {
			return false
		}
	}
	if w.rotten != nil && w.rotten != n {
		return false // that is where the one bad copy may be
	}
	for _, s := range w.living() {
		c, ok := w.raft.truth.Incarnation(s.inc)
		if !ok {
			return false
		}
		for _, r := range c.Replicas {
			if !r.Voter || r.Aside {
				return false
			}
			if _, holds := c.Replica(n.id); holds && len(c.Replicas) < 3 {
				return false
			}
		}
	}
	return true
}

// replaceOne empties the disk of one of the few that a commit rests on: beside it
// and the leader only so many replicas hear the leader as a majority takes. Then
// the leader goes too. If who comes back with nothing counted (D1), it and those
// that have heard nothing would be a majority.
func (w *World) replaceOne() {
	s := w.anyStream()
	c, ok := w.raft.truth.Incarnation(s.inc)
	if !ok || !c.Led() || len(c.Replicas) < 3 {
		return
	}
	leader := w.node(c.Leader.Node)
	others := slices.DeleteFunc(slices.Clone(c.Replicas), func(r catalog.Replica) bool { return r.Node == leader.id })
	w.rng.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
	n, d := w.node(others[0].Node), w.between(500*millisecond, 2*second)
	for _, r := range others[c.Configuration().Quorum()-1:] {
		l := w.link(leader, w.node(r.Node))
		w.cut(l, 0, d)
		w.cut(l, 1, d)
	}
	w.after(w.between(10*millisecond, 200*millisecond), func() {
		if !w.calm && n.up && w.maySpareDisk(n) {
			w.wipe(n)
			w.after(w.between(100*millisecond, second), func() {
				if !w.calm && leader.up {
					leader.crash()
				}
			})
		}
	})
}

// mayDamage: all others also hold durably what is committed, and a leader is there.
func (w *World) mayDamage(n *node) bool {
	if !w.maySpareDisk(n) {
		return false
	}
	for _, s := range w.living() {
		c, _ := w.raft.truth.Incarnation(s.inc)
		if !c.Led() {
			return false
		}
		for _, r := range c.Replicas {
			if r.Node != n.id && !w.holdsAll(w.node(r.Node), s) {
				return false
			}
		}
	}
	return true
}

// rotOne flips a bit in a segment file, always of the same node: one copy of
// everything stays good. In the file that is being written to a start finds it, or
// the scrub.
func (w *World) rotOne() {
	n := w.rotten
	if n == nil {
		if n = w.anyNode(); len(w.nodes) < 3 || !n.up || !w.mayDamage(n) {
			return
		}
	}
	var files []string
	newest := map[string]bool{}
	for _, s := range w.living() {
		dir := ""
		dirs, _ := n.mem.List("d/streams")
		for _, d := range dirs {
			if strings.HasSuffix(d.Name, s.inc.String()) {
				dir = path.Join("d/streams", d.Name)
			}
		}
		list, _ := n.mem.List(dir)
		last := ""
		for _, f := range list {
			if !strings.HasSuffix(f.Name, ".seg") || f.Size == 0 {
				continue
			}
			var first chunk.LSN
			_, _ = fmt.Sscanf(f.Name, "%d.", &first)
			if last != "" && first-1 > s.ghost.commit {
				files = files[:len(files)-1] // what is not committed may be nowhere else
			}
			last = path.Join(dir, f.Name)
			files = append(files, last)
		}
		newest[last] = true
	}
	if len(files) == 0 {
		return
	}
	file := files[w.rng.IntN(len(files))]
	if newest[file] && !w.othersHold(n) {
		return
	}
	if n.up && newest[file] && w.chance(500) {
		n.crash()
	}
	at, bit := w.rng.Uint64(), byte(1)<<w.rng.IntN(8)
	hit := false
	err := n.mem.Edit(file, func(b []byte) []byte {
		good := uint64(len(b))
		if newest[file] {
			good = provenBytes(b)
		}
		if hit = good > 0; hit {
			at %= good
			b[at] ^= bit
		}
		return b
	})
	if err != nil || !hit {
		return
	}
	w.rotten = n
	w.reach(markRot)
	w.log("rot", "%s %s byte %d", n.id, file, at)
}

// loseJournalOne takes a node's journal from it, or a bit of it, if the others
// can do without the node.
func (w *World) loseJournalOne() {
	n := w.anyNode()
	if len(w.nodes) < 3 || !n.up || !w.mayDamage(n) {
		return
	}
	w.reach(markJournalLost)
	w.log("journal", "%s", n.id)
	n.crash()
	const journal = "d/journal/JOURNAL"
	if w.chance(500) {
		_ = n.mem.Remove(journal)
		_ = n.mem.SyncDir("d/journal")
	} else {
		at := w.rng.Uint64()
		_ = n.mem.Edit(journal, func(b []byte) []byte {
			b[at%uint64(len(b))] ^= 4
			return b
		})
	}
	w.wiped = w.now
	for _, s := range w.streams {
		delete(n.known, s.inc)
	}
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

// othersHold tells whether all others have what a node has durably. If they had
// not, and its end rotted, A7 would have the stream wait for an operator.
func (w *World) othersHold(n *node) bool {
	for _, s := range w.living() {
		g := n.known[s.inc]
		if g == nil || g.durable == 0 {
			continue
		}
		for _, id := range w.meta.members(s) {
			_, log, p := w.node(id).replica(s)
			if id == n.id {
				continue
			}
			if p == nil || log.Durable().LSN < g.durable {
				return false
			}
			if at := int(g.durable) - 1; at < len(g.epochs) && g.epochs[at] != 0 && g.epochs[at] != epochAt(p, g.durable) {
				return false
			}
		}
	}
	return true
}

// provenBytes is how much of an unsealed file is known to have been synced by
// what stands behind it: chunks say how far the log was durable when they were
// written. What rots above that can't be told from a torn tail.
func provenBytes(b []byte) uint64 {
	type place struct {
		end         uint64
		lsn, synced chunk.LSN
	}
	var places []place
	for at := uint64(0); at < uint64(len(b)); {
		head, data, err := chunk.Peek(b[at:])
		if err != nil {
			break
		}
		lsn, synced := binary.BigEndian.Uint64(b[at+8:]), binary.BigEndian.Uint64(b[at+16:])
		at += uint64(head + data)
		places = append(places, place{at, chunk.LSN(lsn), chunk.LSN(synced)})
	}
	synced := chunk.LSN(0)
	for i := len(places) - 1; i >= 0; i-- {
		if places[i].lsn <= synced {
			return places[i].end
		}
		synced = max(synced, places[i].synced)
	}
	return 0
}
