package sim

import (
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// ghost is the truth about a stream: what is committed, and what was ever said.
type ghost struct {
	commit chunk.LSN
	at     []facts // of the committed chunks, by LSN − 1
	// written are all chunks that any replica ever held: one place, one chunk (I3).
	written   map[chunk.Tail]facts
	leaders   map[chunk.Epoch]*protocol.Replica
	uids      []uint64          // of the committed records, by offset
	sequences map[string]uint64 // committed, by reference
	order     map[int]uint64    // last committed id of each publisher
	tracking  *tracking.State   // fold of the committed chunks
	units     []unit
	// recency is, for each reference, the LSN of the last chunk with a sequence of
	// it; window is how many of them tracking keeps (I15).
	recency map[string]chunk.LSN
	window  int
	// takenIn is the epoch that a reference's last sequence was committed in.
	takenIn map[string]chunk.Epoch
	// lostBytes is the most that a replica ever had above where it was cut. Its
	// retention had counted that too.
	lostBytes int64
	parts     map[int]int               // of each publisher's last id
	epochOf   map[chunk.LSN]chunk.Epoch // first epoch that was written at an LSN
}

// facts are what must be the same wherever a chunk is.
type facts struct {
	tail    chunk.Tail
	kind    chunk.Type
	base    chunk.Offset
	records uint32
	digest  chunk.Digest // after
	dataCRC uint32
	bytes   int64 // of a user chunk, as retention counts
}

// unit is a run of user bytes that retention takes as a whole (I21).
type unit struct {
	first chunk.Offset
	bytes int64
}

func newGhost(caps tracking.Caps) ghost {
	return ghost{
		written: map[chunk.Tail]facts{}, leaders: map[chunk.Epoch]*protocol.Replica{},
		sequences: map[string]uint64{}, order: map[int]uint64{},
		tracking: tracking.New(caps, 1),
		recency:  map[string]chunk.LSN{}, window: caps.Publishers, takenIn: map[string]chunk.Epoch{},
		parts: map[int]int{}, epochOf: map[chunk.LSN]chunk.Epoch{},
	}
}

func factsOf(h *chunk.Header) facts {
	f := facts{h.Tail(), h.Type, h.BaseOffset, h.Records, h.DigestAfter(), h.DataCRC, 0}
	if h.Type == chunk.User {
		f.bytes = h.UserBytes()
	}
	return f
}

// stored returns the index of a reference's committed stored offset.
func (g *ghost) stored(ref string) (index int, ok bool) {
	s, ok := g.tracking.Offset([]byte(ref))
	return int(s.Offset & (1<<storeBits - 1)), ok
}

// replicaGhost is what the observer remembers of one replica, beyond its lives.
type replicaGhost struct {
	run     *protocol.Replica
	promise chunk.Epoch // answered for (A2)
	commit  chunk.LSN   // of this run
	durable chunk.LSN
	// epochs are those of the chunks that were looked at, by LSN − 1; 0 for what
	// is missing.
	epochs []chunk.Epoch
	// torn: the last life ended inside of a step, which may have cut the log.
	torn   bool
	looked int
	start  chunk.LSN // log start at the last look
}

// loses notes what goes above a tail.
func (g *replicaGhost) loses(s *stream, tail chunk.LSN) {
	var bytes int64
	for lsn := tail + 1; lsn <= chunk.LSN(len(g.epochs)); lsn++ {
		bytes += s.ghost.written[chunk.Tail{Epoch: g.epochs[lsn-1], LSN: lsn}].bytes
	}
	s.ghost.lostBytes = max(s.ghost.lostBytes, bytes)
}

func (g *replicaGhost) endRun() { g.run = nil }

func (w *World) streamOf(inc chunk.Incarnation) *stream {
	for _, s := range w.streams {
		if s.inc == inc {
			return s
		}
	}
	panic("sim: unknown stream")
}

// replica returns the running replica of a stream on a node, if there is one.
func (n *node) replica(s *stream) (*replication.Replica, *segstore.Log, *protocol.Replica) {
	if !n.up || n.dead {
		return nil, nil, nil
	}
	r, ok := n.repl.Replica(s.inc)
	if !ok {
		return nil, nil, nil
	}
	log, p := r.Inspect()
	return r, log, p
}

// epochAt is the epoch of an LSN in a replica's log.
func epochAt(p *protocol.Replica, n chunk.LSN) chunk.Epoch {
	var e chunk.Epoch
	for _, l := range p.Epochs() {
		if l.LSN <= n {
			e = l.Epoch
		}
	}
	return e
}

// observeCommit takes what a leader has committed into the ghost. One that was
// deposed in the same turn may have committed before.
func (w *World) observeCommit(n *node, s *stream) {
	_, log, p := n.replica(s)
	if p == nil || w.failure != nil {
		return
	}
	l, leads := p.Leading()
	commit, _ := p.Commit()
	g := &s.ghost
	if commit <= g.commit || !leads && (l.Epoch() == 0 || g.leaders[l.Epoch()] != p) {
		return
	}
	if e := epochAt(p, commit); e != l.Epoch() {
		w.violate("I5", "%s commits %d of epoch %d in epoch %d", n.id, commit, e, l.Epoch())
		return
	}
	if !s.deleted { // else others may have thrown away what they acked
		w.checkMajority(n, s, l, commit)
	}
	if l.Epoch() > 1 && g.commit < commit && (g.commit == 0 || g.at[g.commit-1].tail.Epoch < l.Epoch()) {
		w.reach(markBarrier)
		if epochAt(p, g.commit+1) < l.Epoch() {
			w.reach(markOlderEpochs)
		}
	}
	if g.commit > 0 && (p.Tail().LSN < g.commit || log.LogStart().LSN <= g.commit && epochAt(p, g.commit) != g.at[g.commit-1].tail.Epoch) {
		w.violate("I6", "%s leads epoch %d of %s without the committed chunk %v", n.id, l.Epoch(), s, g.at[g.commit-1].tail)
		return
	}
	w.take(n, s, log, commit)
	w.log("commit", "s%d %d by %s e%d", s.index, g.commit, n.id, l.Epoch())
}

// take reads committed chunks from the log of the leader that committed them.
// What its retention took in the same turn is read from another.
func (w *World) take(n *node, s *stream, log *segstore.Log, commit chunk.LSN) {
	g := &s.ghost
	for g.commit < commit {
		v, ok := w.chunkAt(log, g.commit+1)
		for i := 0; !ok && i < len(w.nodes); i++ {
			if _, other, p := w.nodes[i].replica(s); p != nil && p.Tail().LSN > g.commit && epochAt(p, g.commit+1) == epochOf(log, g.commit+1) {
				v, ok = w.chunkAt(other, g.commit+1)
			}
		}
		if !ok {
			if w.opts.diskEvery == 0 && !n.dead && w.rotten == nil {
				w.violate("I6", "%s has committed chunk %d of %s, and nobody has it", n.id, g.commit+1, s)
			}
			return
		}
		w.committed(s, &v)
		v.Release()
	}
}

func (w *World) chunkAt(log *segstore.Log, lsn chunk.LSN) (segstore.View, bool) {
	reader := log.AttachLSN(lsn)
	defer reader.Close()
	v, ok, err := reader.Next(lsn)
	if err != nil || !ok {
		return segstore.View{}, false
	}
	if v.Header.LSN != lsn {
		v.Release()
		return segstore.View{}, false
	}
	return v, true
}

func epochOf(log *segstore.Log, n chunk.LSN) chunk.Epoch {
	var e chunk.Epoch
	for _, l := range log.Epochs() {
		if l.LSN <= n {
			e = l.Epoch
		}
	}
	return e
}

// committed takes one chunk into the ghost.
func (w *World) committed(s *stream, v *segstore.View) {
	g, h := &s.ghost, &v.Header
	w.stats.Committed++
	g.at = append(g.at, factsOf(h))
	g.commit = h.LSN
	if err := g.tracking.Apply(h, h.TrailerOf(v.Head)); err != nil {
		w.violate("I17", "tracking of committed chunk %v: %v", h.Tail(), err)
	}
	if h.Type != chunk.User {
		return
	}
	if int(h.BaseOffset) != len(g.uids) {
		w.violate("I4", "committed chunk %v begins at offset %d, %d are committed", h.Tail(), h.BaseOffset, len(g.uids))
		return
	}
	if n := len(g.units); n == 0 || g.units[n-1].bytes >= segstore.SegmentBytesMin {
		g.units = append(g.units, unit{first: h.BaseOffset})
	}
	g.units[len(g.units)-1].bytes += h.UserBytes()
	// Eviction looks at the chunk as a whole, so what is told apart here are the
	// references before it.
	evicted := map[string]bool{}
	w.entries(v, func(uid uint64, _ []byte) {
		if uid < uint64(len(w.uids)) {
			if ref := w.uids[uid].reference; ref != "" {
				if _, seen := evicted[ref]; !seen {
					evicted[ref] = g.evicted(ref)
				}
			}
		}
	})
	w.entries(v, func(uid uint64, _ []byte) {
		w.committedRecord(s, uid, h, evicted)
	})
	if g.window > 0 && len(g.recency) > g.window {
		w.reach(markWindow)
	}
}

// evicted tells whether tracking may have forgotten a reference: as many as it
// keeps have published since. Those of the same chunk count as later.
func (g *ghost) evicted(ref string) bool {
	at, known := g.recency[ref]
	if g.window == 0 || !known {
		return false
	}
	later := 0
	for other, lsn := range g.recency {
		if other != ref && lsn >= at {
			later++
		}
	}
	return later >= g.window
}

func (w *World) committedRecord(s *stream, uid uint64, h *chunk.Header, evicted map[string]bool) {
	g := &s.ghost
	if uid >= uint64(len(w.uids)) || w.uids[uid].stream != s.index {
		w.violate("I11", "%s holds a message that nobody published there: %d", s, uid)
		return
	}
	u := &w.uids[uid]
	// What tracking had to forget may come again, from the id on that it then has.
	forgotten := evicted[u.reference]
	last, part := g.order[u.client], g.parts[u.client]
	follows := u.id > last && u.part == 0 || u.id == last && u.part == part+1
	if u.committed && !follows && !forgotten {
		w.violate("I13", "message %d (id %d of publisher %d) is committed twice in %s", uid, u.id, u.client, s)
		return
	}
	if u.sent > 1 {
		w.reach(markStoredAgain)
	}
	if u.part > 0 {
		w.reach(markSubBatch)
	}
	u.committed, u.offset = true, chunk.Offset(len(g.uids))
	g.uids = append(g.uids, uid)
	if !follows && !forgotten {
		w.violate("I12", "id %d (%d) of publisher %d behind its id %d (%d) in %s", u.id, u.part, u.client, last, part, s)
	}
	g.order[u.client], g.parts[u.client] = u.id, u.part
	if u.reference != "" {
		if e := g.takenIn[u.reference]; e != 0 && e < h.Epoch {
			w.reach(markLaterLeader)
		}
		g.sequences[u.reference], g.recency[u.reference], g.takenIn[u.reference] = u.id, h.LSN, h.Epoch
	}
}
