package protocol

import "github.com/millrace/millrace/segstore/chunk"

// lead is a new leader's start: what the model calls complete must hold, then
// the barrier is written with the merged pending update (A6, F5).
func (w *world) lead(p *peer, o *Output) {
	w.say("%s: leads epoch %d", p.id, o.Epoch)
	if n, ok := w.leaders[o.Epoch]; ok && n != p.id {
		w.fail("%s and %s both lead epoch %d", n, p.id, o.Epoch)
	}
	w.leaders[o.Epoch] = p.id
	u := p.pend
	if w.merged.newer(u) {
		u = w.merged
	}
	tail, mem := p.d.epochAt(p.d.tail()), p.mem
	covered := mem.off != 0 && w.storeOf[mem.off] == u.epoch && u.off <= mem.off
	if w.wr.pendEpoch && u.epoch < tail || w.wr.pendVersion && u.epoch == tail && covered {
		u = update{}
	}
	if u.off != 0 {
		mem.off = u.off
	}
	w.complete(p, mem)
	if w.rules.barrier {
		w.append(p, entry{c: Chunk{Type: chunk.Delta, Flags: chunk.FlagEpochStart}, off: u.off})
	}
	p.pend = update{}
}

// complete: a new leader holds all that is committed (I6), tracking included
// (I16).
func (w *world) complete(p *peer, mem track) {
	g := chunk.LSN(len(w.committed))
	if p.d.tail() < g {
		w.fail("new leader %s lacks committed LSN %d", p.id, g)
		return
	}
	if p.d.start.LSN > w.legal {
		w.fail("new leader %s starts at %d, above the legal log start %d", p.id, p.d.start.LSN, w.legal)
	}
	for l := p.d.start.LSN; l <= g; l++ {
		w.match(p, l)
	}
	t := w.truth(g)
	switch {
	case !mem.ok:
		w.fail("new leader %s does not know its tracking", p.id)
	case mem.seq < t.seq:
		w.fail("new leader %s has sequence %d, committed is %d", p.id, mem.seq, t.seq)
	case w.older(mem.off, t.off):
		w.fail("new leader %s has stored offset %d, committed is %d", p.id, mem.off, t.off)
	}
}

// match: what a node holds at a committed LSN is what was committed (I3, I4).
func (w *world) match(p *peer, l chunk.LSN) {
	g, e := w.committed[l-1], p.d.at(l)
	switch {
	case p.d.epochAt(l) != g.c.Epoch:
		w.fail("%s has epoch %d at committed LSN %d of epoch %d", p.id, p.d.epochAt(l), l, g.c.Epoch)
	case e.hole && g.c.Type == chunk.User:
		w.fail("%s lacks committed message %d", p.id, g.msg)
	case !e.hole && !e.same(g):
		w.fail("%s differs at committed LSN %d", p.id, l)
	}
}

// truth is the tracking of the committed log.
func (w *world) truth(n chunk.LSN) track {
	t := track{ok: true}
	for l := chunk.LSN(1); l <= n; l++ {
		t.apply(&w.committed[l-1], l, allWorldRules())
	}
	return t
}

// older orders stores by the epoch that accepted them, then by number (F8).
func (w *world) older(a, b int) bool {
	return w.storeOf[a] < w.storeOf[b] || w.storeOf[a] == w.storeOf[b] && a < b
}

// commit: a node says that all up to n is committed.
func (w *world) commit(p *peer, n chunk.LSN) {
	if n < p.last {
		w.fail("%s: commit goes back from %d to %d", p.id, p.last, n) // I8
	}
	p.last = n
	if l, leading := p.r.Leading(); leading {
		w.decide(p, l, n)
		w.confirm(p, n)
	} else if n > chunk.LSN(len(w.committed)) {
		w.fail("%s follows to commit %d, nobody committed more than %d", p.id, n, len(w.committed))
	}
	for l := p.d.start.LSN; l <= min(n, chunk.LSN(len(w.committed))); l++ {
		w.match(p, l)
	}
}

// decide: the leader commits up to n (I5).
func (w *world) decide(p *peer, l *Leader, n chunk.LSN) {
	if n <= chunk.LSN(len(w.committed)) {
		return
	}
	have := 0
	for _, m := range l.Adopted().Members {
		q := w.node(string(m.Node)).d
		if !m.Learner && q.durable >= n && q.epochAt(n) == p.d.epochAt(n) {
			have++
		}
	}
	if have < l.Adopted().Quorum() {
		w.fail("%s commits %d, durable on %d of %d voters", p.id, n, have, l.Adopted().Voters())
	}
	for k := chunk.LSN(len(w.committed)) + 1; k <= n; k++ {
		e := *p.d.at(k)
		if e.hole {
			w.fail("%s commits LSN %d, which it has dropped before", p.id, k)
			e = entry{c: Chunk{Epoch: p.d.epochAt(k), Type: chunk.Delta}}
		}
		before := w.truth(k - 1)
		switch {
		case e.c.Type == chunk.Snapshot && e.seq > before.seq:
			w.fail("committed snapshot has sequence %d, the data only %d", e.seq, before.seq)
		case e.c.Type == chunk.Snapshot && e.seq < before.seq:
			w.fail("committed sequence goes back from %d to %d", before.seq, e.seq)
		case (e.off != 0 || e.snapshot()) && w.older(e.off, before.off):
			w.fail("committed stored offset goes back from %d to %d", before.off, e.off)
		}
		w.committed = append(w.committed, e)
	}
}

// confirm tells clients about what they wait for (I10).
func (w *world) confirm(p *peer, n chunk.LSN) {
	var still []waiting
	for _, x := range p.wait {
		if x.lsn > n {
			still = append(still, x)
			continue
		}
		w.confirmOne(p, x.msg)
	}
	p.wait = still
}

func (w *world) confirmOne(p *peer, msg int) {
	w.say("%s: confirms message %d", p.id, msg)
	w.confirmed[msg] = true
	for _, e := range w.committed {
		if e.msg == msg {
			return
		}
	}
	w.fail("message %d is confirmed and not committed", msg)
}

// check is done after every command.
func (w *world) check() {
	for _, p := range w.nodes {
		g := chunk.LSN(len(w.committed))
		c, _ := p.r.Commit()
		n := min(c, p.d.tail(), g)
		if t, truth := p.d.fold(n, w.wr), w.truth(n); (t.ok || !w.wr.trackBase) && (t.seq != truth.seq || t.off != truth.off) {
			w.fail("%s would answer tracking %d,%d; committed up to %d is %d,%d", p.id, t.seq, t.off, n, truth.seq, truth.off)
		}
		if g > 0 && p.d.tail() >= g && p.d.epochAt(g) == w.committed[g-1].c.Epoch && !p.mem.ok {
			w.fail("%s holds all that is committed and does not know its tracking", p.id)
		}
		if t := p.d.fold(p.d.tail(), w.wr); p.mem.ok && w.wr.rollback && w.wr.seqTrailer && p.mem != t {
			w.fail("tracking of %s drifted from its log: %+v, %+v", p.id, p.mem, t) // I17, I18
		}
		if p.d.start.LSN-1 > p.d.durable {
			w.fail("the log of %s begins at %d, above its durable end %d", p.id, p.d.start.LSN, p.d.durable)
		}
		for _, q := range w.nodes {
			w.twins(p, q)
		}
		if p.r.tail != p.d.tail() || p.r.next != p.d.next || p.r.digest != p.d.digest {
			w.fail("%s and its log disagree: %d/%d, %d/%d", p.id, p.r.tail, p.d.tail(), p.r.next, p.d.next)
		}
	}
}

// twins: the same epoch and LSN is the same chunk everywhere (I3).
func (w *world) twins(p, q *peer) {
	for l := max(p.d.start.LSN, q.d.start.LSN); l <= min(p.d.tail(), q.d.tail()); l++ {
		a, b := p.d.at(l), q.d.at(l)
		if a.hole || b.hole || a.c.Epoch != b.c.Epoch {
			continue
		}
		if c := *a; !c.same(*b) && !b.same(c) {
			w.fail("LSN %d of epoch %d is %v on %s and %v on %s", l, a.c.Epoch, a, p.id, b, q.id)
		}
	}
}

// same: the replicas have come to hold the same, up to the same commit.
func (w *world) same() {
	var first *peer
	for _, m := range w.config.Members {
		p := w.node(string(m.Node))
		if first == nil {
			first = p
		}
		if a, _ := p.r.Commit(); a != p.d.tail() || a != first.d.tail() {
			w.fail("%s is at %d of %d, %s has %d", p.id, a, p.d.tail(), first.id, first.d.tail())
			continue
		}
		for l := p.d.start.LSN; l <= p.d.tail(); l++ {
			w.match(p, l)
		}
	}
	w.say("all hold the same")
}
