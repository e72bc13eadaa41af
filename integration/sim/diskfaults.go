package sim

import (
	"encoding/binary"
	"fmt"
	"path"
	"slices"
	"strings"
	"syscall"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

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
			if _, _, p := w.node(r.Node).replica(s); r.Node != n.id && (p == nil || p.Aside()) {
				return false // what it holds does not count, though the metadata has not heard
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
