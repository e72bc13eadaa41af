package sim

import (
	"bytes"
	"encoding/binary"
	"slices"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// entries gives the messages of a chunk.
func (w *World) entries(v *segstore.View, each func(uid uint64, body []byte)) {
	data := v.Data
	if file, position, length, ok := v.Section(); ok {
		b := make([]byte, length)
		if _, err := file.ReadAt(b, position); err != nil {
			w.violate("I26", "chunk %v can't be read: %v", v.Header.Tail(), err)
			return
		}
		data = b[chunk.ClientHeaderLength:]
	}
	it := v.Header.EntriesIn(data)
	message := func(body []byte) {
		if len(body) < 8 {
			w.violate("I11", "chunk %v holds a message of %d bytes", v.Header.Tail(), len(body))
			return
		}
		each(binary.BigEndian.Uint64(body), body)
	}
	for it.Next() {
		e := it.Entry()
		if !e.SubBatch {
			message(e.Body)
		} else if err := chunk.Messages(e.Body, e.Records, message); err != nil {
			w.violate("I11", "chunk %v: %v", v.Header.Tail(), err)
		}
	}
	if it.Err() != nil {
		w.violate("I26", "chunk %v: %v", v.Header.Tail(), it.Err())
	}
}

// remembered returns what is known of a node's replica.
func (n *node) remembered(s *stream) *replicaGhost {
	g := n.known[s.inc]
	if g == nil {
		g = &replicaGhost{}
		n.known[s.inc] = g
	}
	return g
}

// checkOpened looks at a replica that has just been opened.
func (w *World) checkOpened(n *node, s *stream, r *replication.Replica) { w.checkReplica(n, r) }

// checkReplica holds a replica against the ghost, after each of its turns.
func (w *World) checkReplica(n *node, r *replication.Replica) {
	log, p := r.Inspect()
	if p == nil || w.failure != nil {
		return
	}
	s := w.streamOf(r.Incarnation())
	g := n.remembered(s)
	if g.run != p {
		w.checkRun(n, s, g, log, p)
	}
	w.observeCommit(n, s)
	w.checkRole(n, s, g, p)
	w.checkChunks(n, s, g, log)
	g.durable = log.Durable().LSN
	if start := log.LogStart().LSN; start != g.start {
		if g.start != 0 {
			w.reach(markStartMoved)
		}
		g.start = start
	}
	if start := log.LogStart().LSN; start > s.ghost.commit+1 {
		w.violate("I23", "%s begins %s at %d, committed is %d", n.id, s, start, s.ghost.commit)
	}
	if g.looked++; g.looked%64 == 0 {
		w.checkFold(n, s, log)
	}
}

// checkRun looks at what a new run has recovered.
func (w *World) checkRun(n *node, s *stream, g *replicaGhost, log *segstore.Log, p *protocol.Replica) {
	tail := log.Tail().LSN
	w.log("run", "%s s%d tail %v durable before %d promise %d aside %v", n.id, s.index, log.Tail(), g.durable, p.Promise(), p.Aside())
	if p.Promise() < g.promise {
		w.violate("I2", "%s has promised epoch %d of %s, and now knows of %d", n.id, g.promise, s, p.Promise())
	}
	aside := p.Aside() && w.rotten == n
	if aside && tail < g.durable {
		w.reach(markRotEnd)
	}
	if g.torn {
		w.reach(markTornRun)
	}
	if commit, _ := p.Commit(); commit > 0 {
		w.reach(markKnownCommit)
	}
	if tail < g.durable && !g.torn && !aside {
		w.violate("I25", "%s had %d durable of %s, and now ends at %d", n.id, g.durable, s, tail)
	}
	if !aside {
		w.checkKept(n, s, g, tail, g.durable)
	}
	g.run, g.commit, g.torn = p, 0, false
	g.loses(s, tail)
	g.epochs = g.epochs[:0]
	w.checkFold(n, s, log)
}

// checkKept: nothing that is committed, and was held durably, goes (I7).
func (w *World) checkKept(n *node, s *stream, g *replicaGhost, tail, held chunk.LSN) {
	for lsn := tail + 1; lsn <= min(held, s.ghost.commit, chunk.LSN(len(g.epochs))); lsn++ {
		if e := g.epochs[lsn-1]; e != 0 && e == s.ghost.at[lsn-1].tail.Epoch {
			w.violate("I7", "%s loses the committed chunk %v of %s, it ends at %d", n.id, s.ghost.at[lsn-1].tail, s, tail)
			return
		}
	}
}

// checkRole looks at who leads, and what is known to be committed.
func (w *World) checkRole(n *node, s *stream, g *replicaGhost, p *protocol.Replica) {
	commit, _ := p.Commit()
	if commit < g.commit {
		w.violate("I8", "%s knew %d committed of %s, and now %d", n.id, g.commit, s, commit)
	}
	g.commit = commit
	if l, leads := p.Leading(); leads {
		switch was := s.ghost.leaders[l.Epoch()]; was {
		case p:
		case nil:
			s.ghost.leaders[l.Epoch()] = p
			w.log("lead", "%s s%d e%d tail %v", n.id, s.index, l.Epoch(), p.Tail())
			w.markLead(n, s, g)
		default:
			w.violate("I1", "%s leads epoch %d of %s, as another replica or run did", n.id, l.Epoch(), s)
		}
	}
	switch {
	case commit > s.ghost.commit:
		w.violate("I4", "%s knows %d committed of %s, %d is", n.id, commit, s, s.ghost.commit)
	case commit > 0 && commit >= p.Tail().LSN && epochAt(p, commit) != s.ghost.at[commit-1].tail.Epoch:
		w.violate("I4", "%s knows %d of epoch %d committed of %s, it is of epoch %d", n.id, commit, epochAt(p, commit), s, s.ghost.at[commit-1].tail.Epoch)
	}
}

func (w *World) markLead(n *node, s *stream, g *replicaGhost) {
	for _, other := range w.nodes {
		if _, _, q := other.replica(s); other != n && q != nil && q.Role() == protocol.Leading {
			w.reach(markTwoLeaders)
		}
	}
	for i := len(g.epochs) - 1; i >= 0; i-- {
		if g.epochs[i] == 0 && chunk.LSN(i) >= g.start {
			w.reach(markGapLeads)
			break
		}
	}
}

// checkChunks looks at the chunks that are new in a replica's log, and at those
// that are gone from its end.
func (w *World) checkChunks(n *node, s *stream, g *replicaGhost, log *segstore.Log) {
	tail, start := log.Tail().LSN, log.LogStart().LSN
	if seen := chunk.LSN(len(g.epochs)); tail < seen {
		w.stats.Truncations++
		w.log("cut", "%s s%d %d to %d", n.id, s.index, seen, tail)
		w.reach(markCutTail)
		if p := g.run; !p.Aside() || w.rotten != n {
			w.checkKept(n, s, g, tail, g.durable)
		}
		g.loses(s, tail)
		g.epochs = g.epochs[:tail]
		if w.checkFold(n, s, log); log.Tracking().Known() {
			w.reach(markFoldAfterCut)
		}
	}
	if seen := chunk.LSN(len(g.epochs)); start > seen+1 {
		if seen > 0 {
			w.stats.LogResets++
			w.reach(markLogReset)
		}
		g.epochs = append(g.epochs, make([]chunk.Epoch, start-1-seen)...)
	}
	if tail == chunk.LSN(len(g.epochs)) {
		return
	}
	reader := log.AttachLSN(chunk.LSN(len(g.epochs)) + 1)
	defer reader.Close()
	for {
		v, ok, err := reader.Next(tail)
		if err != nil && w.opts.diskEvery == 0 && !n.dead && w.rotten != n {
			w.violate("I26", "%s can't read %s from %d on: %v", n.id, s, reader.LSN(), err)
		}
		if !ok || err != nil {
			return
		}
		w.checkChunk(n, s, g, &v.Header)
		v.Release()
		if w.failure != nil {
			return
		}
	}
}

// checkChunk: one place, one chunk (I3), and what is committed is the same
// everywhere (I4).
func (w *World) checkChunk(n *node, s *stream, g *replicaGhost, h *chunk.Header) {
	if missing := h.LSN - 1 - chunk.LSN(len(g.epochs)); missing > 0 {
		w.stats.Gaps++
		w.reach(markGap)
		if h.LSN-1 > s.ghost.commit {
			w.violate("C5", "%s misses chunks of %s up to %d, committed is %d", n.id, s, h.LSN-1, s.ghost.commit)
		}
		g.epochs = append(g.epochs, make([]chunk.Epoch, missing)...)
	}
	g.epochs = append(g.epochs, h.Epoch)
	f := factsOf(h)
	if first, ok := s.ghost.epochOf[h.LSN]; !ok {
		s.ghost.epochOf[h.LSN] = h.Epoch
	} else if first != h.Epoch {
		w.reach(markOtherChunk)
	}
	if was, ok := s.ghost.written[f.tail]; !ok {
		s.ghost.written[f.tail] = f
	} else if w.reach(markSameChunk); was != f {
		w.violate("I3", "%s holds %v of %s as %+v, elsewhere it is %+v", n.id, f.tail, s, f, was)
	}
	if h.LSN <= s.ghost.commit && h.LSN <= g.commit && s.ghost.at[h.LSN-1] != f {
		w.violate("I4", "%s holds %v of %s in place of the committed %v", n.id, f.tail, s, s.ghost.at[h.LSN-1].tail)
	}
}

// checkMajority: what is committed is durable on a majority of those that count.
func (w *World) checkMajority(n *node, s *stream, l *protocol.Leader, commit chunk.LSN) {
	c := l.Adopted()
	holds := 0
	for _, m := range c.Members {
		if !m.Learner && m.Aside {
			w.reach(markAsideCommit)
		}
		if (m.Counts() || c.Voters() == 1) && w.holds(m.Node, s, l.Epoch(), commit) {
			holds++
		}
	}
	if holds < c.Quorum() && !w.justEmptied() {
		w.violate("I5", "%s commits %d of %s in epoch %d, durable on %d of %d voters", n.id, commit, s, l.Epoch(), holds, c.Voters())
	}
	// Whatever majority of the newest voters elects next has a holder in it (I28).
	newest, ok := w.raft.truth.Incarnation(s.inc)
	if !ok || w.justEmptied() {
		return
	}
	n2 := newest.Configuration()
	if n2.Version != c.Version {
		w.reach(markOlderConfig)
	}
	holds = 0
	for _, m := range n2.Members {
		if !m.Learner && w.holds(m.Node, s, l.Epoch(), commit) {
			holds++
		}
	}
	if n2.Voters()-holds >= n2.Quorum() {
		w.violate("I28", "%s commits %d of %s in epoch %d, durable on %d of the %d newest voters", n.id, commit, s, l.Epoch(), holds, n2.Voters())
	}
}

// justEmptied tells whether a disk was emptied and its copies may not have come
// again.
func (w *World) justEmptied() bool {
	return w.now-w.wiped <= 2*second || slices.ContainsFunc(w.nodes, func(n *node) bool { return n.meta.emptied })
}

// holds tells whether a node has a chunk durably, or had it when it gave its
// replica up.
func (w *World) holds(id protocol.NodeID, s *stream, e chunk.Epoch, at chunk.LSN) bool {
	n := w.node(id)
	if _, log, p := n.replica(s); p != nil {
		return log.Durable().LSN >= at && epochAt(p, at) == e
	}
	has := func(g *replicaGhost) bool {
		return g != nil && g.durable >= at && chunk.LSN(len(g.epochs)) >= at && g.epochs[at-1] == e
	}
	return has(n.known[s.inc]) || !w.meta.isMember(s, id) && has(n.given[s.inc])
}

// checkFold: tracking in memory is the fold of the log (I17, I18).
func (w *World) checkFold(n *node, s *stream, log *segstore.Log) {
	fold := tracking.New(s.settings.Log.Caps, log.LogStart().LSN)
	reader := log.AttachLSN(log.LogStart().LSN)
	defer reader.Close()
	tail := log.Tail().LSN
	for {
		v, ok, err := reader.Next(tail)
		if err != nil {
			return // told elsewhere
		}
		if !ok {
			break
		}
		err = fold.Apply(&v.Header, v.Header.TrailerOf(v.Head))
		v.Release()
		if err != nil {
			w.violate("I17", "%s: the log of %s does not fold: %v", n.id, s, err)
			return
		}
	}
	if !fold.Known() {
		return
	}
	w.reach(markFold)
	have := log.Tracking()
	if !have.Known() {
		w.violate("F9", "%s does not know the tracking of %s, though its log tells it", n.id, s)
		return
	}
	count := 0
	for ref, want := range fold.Offsets() {
		count++
		if got, ok := have.Offset([]byte(ref)); !ok || got.Offset != want.Offset || got.Epoch != want.Epoch || got.Version != want.Version {
			w.violate("I17", "%s: tracking of %s has %q at %+v, its log says %+v", n.id, s, ref, got, want)
		}
	}
	for range have.Offsets() {
		count--
	}
	for ref, want := range fold.Publishers() {
		count++
		if got, ok := have.Sequence([]byte(ref)); !ok || got != want {
			w.violate("I17", "%s: tracking of %s has %q at %+v, its log says %+v", n.id, s, ref, got, want)
		}
	}
	for range have.Publishers() {
		count--
	}
	if count != 0 {
		w.violate("I17", "%s: tracking of %s has other references than its log", n.id, s)
	}
}

// checkReport: a report promises (A2), and tells no more than what is durable.
func (w *World) checkReport(n *node, s *stream, r *protocol.Report) {
	g := n.remembered(s)
	if r.Epoch < g.promise {
		w.violate("I2", "%s reports for epoch %d of %s, and has promised %d", n.id, r.Epoch, s, g.promise)
	}
	g.promise = max(g.promise, r.Epoch)
	if kept, _ := n.store.Journal().State(s.inc); kept.Promise < r.Epoch {
		w.violate("I2", "%s reports for epoch %d of %s without the promise in its journal", n.id, r.Epoch, s)
	}
	if _, log, _ := n.replica(s); log != nil && r.Tail.LSN > log.Durable().LSN {
		w.violate("I5", "%s reports %v of %s, durable is %v", n.id, r.Tail, s, log.Durable())
	}
}

// checkSend looks at what a replica says.
func (w *World) checkSend(n *node, f *replication.Frame) {
	m := &f.Message
	s := w.streamOf(f.Stream)
	w.observeCommit(n, s)
	g := n.remembered(s)
	switch m.Kind {
	case protocol.MsgWelcome:
		g.promise = max(g.promise, m.Epoch)
	case protocol.MsgAck:
		if m.Epoch < g.promise {
			w.violate("I2", "%s acks in epoch %d of %s, and has promised %d", n.id, m.Epoch, s, g.promise)
		}
		if _, log, _ := n.replica(s); log != nil && m.LSN > log.Durable().LSN {
			w.violate("I5", "%s acks %d of %s, durable is %v", n.id, m.LSN, s, log.Durable())
		}
	}
}

// checkDelivered: what a consumer gets is committed, whole and without a hole.
func (w *World) checkDelivered(c *consumer, n *node, r *replication.Replica, v *segstore.View) {
	g, h := &c.stream.ghost, &v.Header
	log, _ := r.Inspect()
	if h.BaseOffset > c.next && log != nil && log.First() < h.BaseOffset && !(c.next == 0 && h.BaseOffset == log.First()) {
		w.violate("I9", "%s gets offset %d from %s, it is at %d and the stream begins at %d", c, h.BaseOffset, n.id, c.next, log.First())
		return
	}
	offset := h.BaseOffset
	w.entries(v, func(uid uint64, body []byte) {
		switch {
		case int(offset) >= len(g.uids):
			w.violate("I9", "%s gets offset %d from %s, %d are committed", c, offset, n.id, len(g.uids))
		case g.uids[offset] != uid:
			w.violate("I9", "%s gets message %d at offset %d from %s, committed is %d", c, uid, offset, n.id, g.uids[offset])
		case !w.sameBody(body, uid):
			w.violate("I9", "%s gets message %d with other bytes from %s", c, uid, n.id)
		}
		offset++
	})
	if _, p := r.Inspect(); p != nil && p.Role() == protocol.Following && h.Records > 0 {
		w.reach(markFollowerRead)
	}
	w.stats.Delivered += int(h.Records)
	c.next = h.Next()
}

func (w *World) sameBody(body []byte, uid uint64) bool {
	w.body = w.bodyOf(w.body[:0], uid)
	return bytes.Equal(body, w.body)
}

// checkSequence: the answer holds all that was committed when the question came,
// and nothing that is not committed now (F3, I14, I15).
func (w *World) checkSequence(p *publisher, before, sequence uint64, ok, forgotten bool) {
	if p.conn != nil {
		w.observeCommit(p.conn.node, p.stream)
	}
	now := p.stream.ghost.sequences[p.reference]
	forgotten = forgotten || p.stream.ghost.evicted(p.reference)
	switch {
	case (!ok && before > 0 || ok && sequence < before) && !forgotten:
		w.violate("I15", "%s is told %d, %v; %d was committed before it asked", p, sequence, ok, before)
	case ok && sequence > now:
		w.violate("F3", "%s is told %d; committed is %d", p, sequence, now)
	}
}

// checkStored: a stored offset is one that was stored, not older than what was
// committed when the question came, nor than the last store of this reign.
func (w *World) checkStored(c *consumer, now reign, offset chunk.Offset, ok bool, least int, known bool, most int) {
	index := int(offset & (1<<storeBits - 1))
	switch {
	case !ok && known:
		w.violate("I16", "%s is told of no offset; %d was committed", c, least)
	case !ok:
	case index >= len(c.stores) || c.stores[index] != offset:
		w.violate("I16", "%s is told %d, which it never stored", c, offset)
	case known && index < least:
		w.violate("I16", "%s is told its store %d; store %d was committed", c, index, least)
	case c.last == now && index < most-1:
		w.violate("I16", "%s is told its store %d; it has stored %d with the same leader", c, index, most-1)
	}
}

// holdsAll tells whether a node holds durably all that is committed.
func (w *World) holdsAll(n *node, s *stream) bool {
	_, log, p := n.replica(s)
	c := s.ghost.commit
	return p != nil && !p.Aside() && log.Durable().LSN >= c && (c == 0 || epochAt(p, c) == s.ghost.at[c-1].tail.Epoch)
}
