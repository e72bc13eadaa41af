package sim

import (
	"fmt"
	"math/rand/v2"
	"path"
	"runtime/debug"
	"slices"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// Result is what a run came to.
type Result struct {
	Seed   uint64
	Err    error  // the violation
	Hash   uint64 // of the trace
	Counts Counts
	// Coverage tells which of the states that matter it came to.
	Coverage Coverage
	Trace    [][]byte // if it was asked for
}

// Run runs a seed.
func Run(seed uint64, stretch int64, trace bool) Result {
	w := &World{seed: seed, stretch: stretch, rng: rand.New(rand.NewPCG(seed, 0x5eed)), wiped: -100 * second}
	w.trace.keep = trace
	w.live()
	return Result{seed, w.failure, w.trace.hash, w.stats, w.coverage, w.trace.lines}
}

// live is the run; a panic in it is a violation like others.
func (w *World) live() {
	defer func() {
		if what := recover(); what != nil {
			w.violate("panic", "%v\n%s", what, debug.Stack())
		}
	}()
	w.draw()
	w.build()
	w.startClients()
	w.plan()
	w.run(w.opts.length, nil)
	w.settle()
}

// build makes nodes, links and streams.
func (w *World) build() {
	o := &w.opts
	w.log("world", "seed %d: %d nodes, %d streams of %d replicas, %d publishers, %d consumers", w.seed, o.nodes, o.streams, o.replicas, o.publishers, o.consumers)
	w.meta, w.raft = &metadata{w: w}, newRaft(w)
	w.found(&catalog.CreateVHost{Name: "/"})
	for i := range o.nodes {
		n := &node{w: w, index: i, id: nodeID(i), mem: vfs.NewMem(), known: map[chunk.Incarnation]*replicaGhost{}, given: map[chunk.Incarnation]*replicaGhost{}, skew: w.drawSkew()}
		n.meta = metaDisk{name: string(n.id), fresh: true}
		w.nodes = append(w.nodes, n)
		w.found(&catalog.PutNode{ID: n.id, Disk: n.meta.name})
		for _, other := range w.nodes[:i] {
			w.links = append(w.links, &link{w: w, ends: [2]*node{other, n}})
		}
	}
	placer := catalog.NewPlacer(w.raft.truth, func(protocol.NodeID) bool { return true })
	body := &catalog.CreateStreams{}
	for i := range o.streams {
		x, _ := w.place(placer, w.drawStream(fmt.Sprint("stream-", i)), nodeID(w.rng.IntN(o.nodes)))
		body.Streams = append(body.Streams, x)
	}
	w.found(body)
	for _, n := range w.nodes {
		n.start()
	}
	w.raft.tick()
}

// found has a command carried out before anything begins.
func (w *World) found(body catalog.Body) { w.raft.commit(w.meta.encode(body)) }

// living are the streams that are made and not deleted.
func (w *World) living() []*stream {
	return slices.DeleteFunc(slices.Clone(w.streams), func(s *stream) bool { return s.deleted || !s.made })
}

const (
	// calmMost bounds how long it may take after the last fault until everything
	// is as it should be (L1): many times what an election and a catch-up take.
	calmMost = 60 * second
	calmLook = 50 * millisecond
)

// settle ends the faults, and waits until all is well.
func (w *World) settle() {
	if w.failure != nil {
		return
	}
	w.log("calm", "")
	w.calm = true
	for _, l := range w.links {
		l.cut = [2]bool{}
	}
	for _, n := range w.nodes {
		n.fuse = 0
		if n.up {
			n.heal()
		}
	}
	w.wakeUp()
	end := w.now + calmMost
	why := ""
	for w.failure == nil && w.now < end {
		w.run(w.now+calmLook, nil)
		if why = w.unsettled(); why == "" && w.isQuiet() {
			w.finish()
			return
		}
		if why == "" {
			why = "leaders still change though all is well"
		}
		w.wakeUp()
	}
	w.violate("L1", "after %d s of calm: %s", calmMost/second, why)
}

// quiet is how long nothing may change once all is as it should be.
const quiet = 300 * millisecond

// isQuiet: who looks at all streams again finds nothing to do (L3).
func (w *World) isQuiet() bool {
	elections, grants := w.stats.Elections, w.stats.Grants
	w.wakeUp()
	w.run(w.now+quiet, nil)
	return w.failure != nil || w.stats.Elections == elections && w.stats.Grants == grants && w.unsettled() == ""
}

// wakeUp has the coordinator sweep.
func (w *World) wakeUp() {
	if r := w.meta.reign; r != nil && r.lives() {
		r.touchAll()
	}
}

// unsettled tells what is not as it should be.
func (w *World) unsettled() string {
	for _, n := range w.nodes {
		if !n.up {
			return fmt.Sprintf("%s is down", n.id)
		}
	}
	if why := w.misplaced(); why != "" {
		return why
	}
	for _, s := range w.streams {
		if s.deleted {
			continue
		}
		if why := w.unequal(s); why != "" {
			return fmt.Sprintf("%s: %s", s, why)
		}
	}
	for _, n := range w.nodes {
		for _, s := range w.streams {
			if s.deleted && n.has(s.inc) {
				return fmt.Sprintf("%s still has the deleted %s", n.id, s)
			}
		}
	}
	for _, c := range w.clients {
		if !c.settled() {
			return fmt.Sprintf("%s waits", c)
		}
	}
	return ""
}

// unequal tells what a stream lacks: a leader, or a replica that is level.
func (w *World) unequal(s *stream) string {
	c, ok := w.raft.truth.Incarnation(s.inc)
	if !ok || !c.Led() {
		return "no leader"
	}
	_, leaderLog, lead := w.node(c.Leader.Node).replica(s)
	if lead == nil {
		return fmt.Sprintf("leader %s does not run", c.Leader.Node)
	}
	l, leads := lead.Leading()
	if !leads || !l.Ready() || l.Epoch() != c.Epoch {
		return fmt.Sprintf("%s does not lead epoch %d: %v", c.Leader.Node, c.Epoch, lead.Role())
	}
	for _, r := range c.Replicas {
		_, log, p := w.node(r.Node).replica(s)
		switch {
		case p == nil:
			return fmt.Sprintf("%s does not run: %s", r.Node, w.node(r.Node).whyNot(s))
		case r.Aside || !r.Voter || r.Leaving:
			return fmt.Sprintf("%s is not what it is to be: %+v", r.Node, r)
		case log.Tail() != leaderLog.Tail() || log.Durable() != log.Tail():
			return fmt.Sprintf("%s is at %v, durable %v, the leader %s at %v", r.Node, log.Tail(), log.Durable(), c.Leader.Node, leaderLog.Tail())
		}
		if commit, _ := p.Commit(); commit != leaderLog.Tail().LSN {
			return fmt.Sprintf("%s knows %d committed of %d", r.Node, commit, leaderLog.Tail().LSN)
		}
	}
	return ""
}

// whyNot tells why a replica does not run.
func (n *node) whyNot(s *stream) string {
	if r, ok := n.repl.Replica(s.inc); ok {
		return fmt.Sprint(r.Stats().Err)
	}
	return "there is none"
}

// finish holds every log, as it is in the end, against the ghost.
func (w *World) finish() {
	if w.opts.faultless && w.stats.Elections > len(w.streams) {
		w.violate("L3", "%d elections without a fault for %d streams", w.stats.Elections, len(w.streams))
	}
	for _, s := range w.living() {
		for _, id := range w.meta.members(s) {
			n := w.node(id)
			_, log, _ := n.replica(s)
			w.checkFold(n, s, log)
			w.checkWhole(n, s, log)
			w.checkFiles(n, s)
		}
	}
}

// checkWhole reads a log from its beginning: all committed messages from the log
// start on are there (I4, I19), and retention has taken no more than it may
// (I21).
func (w *World) checkWhole(n *node, s *stream, log *segstore.Log) {
	g := &s.ghost
	next := log.First()
	reader := log.AttachLSN(log.LogStart().LSN)
	defer reader.Close()
	for w.failure == nil {
		v, ok, err := reader.Next(g.commit)
		if err != nil {
			switch {
			case w.rotten == n && !n.scrubbed() && len(log.Damaged()) == 0:
				w.violate("I26", "%s reads rot of %s that nobody has noticed: %v", n.id, s, err)
			case w.opts.diskEvery == 0 && w.rotten != n:
				w.violate("I26", "%s: %v", n.id, err)
			}
			return
		}
		if !ok {
			break
		}
		if v.Header.Type == chunk.User {
			if v.Header.BaseOffset != next {
				w.violate("I4", "%s has a hole in %s at offset %d", n.id, s, next)
			}
			w.entries(&v, func(uid uint64, _ []byte) {
				if int(next) >= len(g.uids) || g.uids[next] != uid {
					w.violate("I4", "%s holds message %d of %s at offset %d", n.id, uid, s, next)
				}
				next++
			})
		}
		v.Release()
	}
	if w.failure == nil && int(next) != len(g.uids) {
		w.violate("I4", "%s holds %s up to offset %d, %d are committed", n.id, s, next, len(g.uids))
	}
	for _, x := range log.Segments() {
		if x.Generation > 0 {
			w.reach(markCompactedRead)
		}
	}
	if log.First() > 0 {
		w.reach(markRetired)
	}
	most := s.settings.RetainBytes
	if most > 0 {
		most = max(most-g.lostBytes, 1)
	}
	if kept := g.kept(most); log.First() > kept {
		for _, u := range g.units {
			w.log("unit", "s%d from %d: %d bytes", s.index, u.first, u.bytes)
		}
		for _, x := range log.Segments() {
			w.log("segment", "%s s%d from %d at %d: %d bytes, unit start %v", n.id, s.index, x.BaseOffset, x.FirstLSN, x.UserBytes, x.UnitStart)
		}
		w.violate("I21", "%s has given up %s up to offset %d, its retention of %d bytes takes %d", n.id, s, log.First(), s.settings.RetainBytes, kept)
	}
}

// checkFiles holds the files against MANIFEST, whole and neighbour to neighbour
// (I24).
func (w *World) checkFiles(n *node, s *stream) {
	if w.failure != nil || w.rotten == n || w.opts.diskEvery > 0 {
		return
	}
	for _, d := range n.store.List() {
		if d.Incarnation != s.inc {
			continue
		}
		in, err := segstore.Inspect(n.mem, path.Join("d/streams", fmt.Sprintf("%s-%s", d.Hash, d.Incarnation)), s.inc)
		if err != nil {
			w.violate("I24", "%s: %s: %v", n.id, s, err)
			return
		}
		for _, x := range in.Segments {
			if len(x.Problems) > 0 {
				w.violate("I24", "%s: %s: segment %s: %v", n.id, s, x.File, x.Problems)
			}
		}
		if len(in.Segments) > 1 {
			w.reach(markInspected)
		}
	}
}

// kept is the first offset that retention by user bytes alone would keep.
func (g *ghost) kept(most int64) chunk.Offset {
	if len(g.units) == 0 || most == 0 {
		return 0
	}
	i := len(g.units) - 1
	bytes := g.units[i].bytes
	for i > 0 && bytes+g.units[i-1].bytes <= most {
		i--
		bytes += g.units[i].bytes
	}
	return g.units[i].first
}
