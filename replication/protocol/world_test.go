package protocol

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/segstore/chunk"
)

// worldRules are the rules that the protocol's neighbours keep (segstore, its
// plans, tracking, the metadata); the scripts show that the protocol needs them.
type worldRules struct {
	table         bool // C1: compaction drops no epoch line
	compCommitted bool // E2: a superseding snapshot is committed
	compLater     bool // E2: and in a later segment
	retSnapshot   bool // E3: the log start needs a snapshot at or after it
	retCommitted  bool // E3: which is committed
	retDurable    bool // E3: and durable here
	seqTrailer    bool // F1: sequences ride with their own messages
	snapExact     bool // F1: a snapshot knows no later sequence
	pendEpoch     bool // F5: pending updates of older epochs go
	pendVersion   bool // F5: covered pending updates go
	rollback      bool // C3: truncation takes tracking back
	partsComplete bool // E1: a split snapshot counts with all its parts
	trackBase     bool // F9: tracking is answered from a base only
}

func allWorldRules() worldRules {
	return worldRules{true, true, true, true, true, true, true, true, true, true, true, true, true}
}

// update is a pending stored offset.
type update struct {
	off   int
	epoch chunk.Epoch
	ver   uint64
}

func (u update) newer(v update) bool {
	return u.epoch > v.epoch || u.epoch == v.epoch && u.ver > v.ver
}

// packet is a message on its way, with what rides beside it.
type packet struct {
	m    Message
	e    entry
	pend update
}

// waiting is a publish that is not confirmed yet.
type waiting struct {
	msg int
	lsn chunk.LSN // of the chunk, or of a duplicate's original
}

// peer is one node of the scripted world.
type peer struct {
	id     NodeID
	d      *disk
	r      *Replica
	mem    track // tracking in memory
	pend   update
	wait   []waiting
	syncID uint64
	syncs  bool // a sync is asked for
	inbox  []Input
	cur    packet // what the input being stepped brought
	built  entry  // the chunk being appended
	pass   func(Output)
	last   chunk.LSN // highest commit of this run (I8)
	// What the sequence query answered.
	answer   int
	answered uint64 // to this query
}

// world is a scripted cluster: in-memory logs of metadata, wires that deliver
// when told to, an ideal metadata register, and ghosts that know the truth.
type world struct {
	rules rules
	wr    worldRules
	nodes []*peer
	wires map[[2]NodeID][]packet
	cut   map[[2]NodeID]bool
	kept  map[string][]packet
	now   Tick
	run   RunID
	auto  bool // syncs end at once
	calm  bool // the script is about the nets: nothing is a violation any more

	// The metadata.
	epoch     chunk.Epoch
	chosen    *Assignment
	left      Inheritance
	merged    update
	config    Configuration
	settled   bool
	lenient   bool // it takes clearings of deposed leaders: the model's harder register
	proposals []Proposal

	// Ghosts.
	committed []entry // by LSN − 1
	legal     chunk.LSN
	confirmed map[int]bool
	leaders   map[chunk.Epoch]NodeID
	storeOf   map[int]chunk.Epoch

	asked []int // what each query found applied

	log   strings.Builder
	fails []string
}

func newWorld(r rules, w worldRules) *world {
	return &world{
		rules: r, wr: w, wires: map[[2]NodeID][]packet{}, cut: map[[2]NodeID]bool{}, kept: map[string][]packet{},
		auto: true, legal: 1, confirmed: map[int]bool{}, leaders: map[chunk.Epoch]NodeID{}, storeOf: map[int]chunk.Epoch{},
	}
}

func (w *world) say(f string, a ...any) { fmt.Fprintf(&w.log, f+"\n", a...) }

func (w *world) fail(f string, a ...any) {
	if w.calm {
		return
	}
	s := fmt.Sprintf(f, a...)
	w.fails = append(w.fails, s)
	w.say("VIOLATION %s", s)
}

func (w *world) node(id string) *peer {
	i := slices.IndexFunc(w.nodes, func(p *peer) bool { return string(p.id) == id })
	if i < 0 {
		panic("no node " + id)
	}
	return w.nodes[i]
}

func (w *world) add(id string) *peer {
	p := &peer{id: NodeID(id), d: newDisk()}
	w.nodes = append(w.nodes, p)
	return p
}

// boot starts a node's replica from its disk.
func (w *world) boot(p *peer) {
	w.run++
	rec := Recovered{
		Stream: 1, Journal: p.d.journal, Lines: slices.Clone(p.d.lines), Start: p.d.start, Tail: p.d.tail(),
		Next: p.d.next, Digest: p.d.digest, Commit: p.d.commit, Proof: p.d.proof(),
	}
	r, err := newReplica(p.id, w.run, Limits{}, rec, w.rules)
	if err != nil {
		panic(err)
	}
	*p = peer{id: p.id, d: p.d, r: r, mem: p.d.fold(p.d.tail(), w.wr)}
	if p.r.journal.Mark != p.d.journal.Mark {
		w.fail("%s has lost what it knew to be committed: %d, tail %d", p.id, p.d.commit, p.d.tail())
	}
	for key := range w.wires { // its connections are gone
		if key[0] == p.id || key[1] == p.id {
			delete(w.wires, key)
		}
	}
	if p.d.tail() > p.d.durable { // recovery syncs what it found
		p.d.durable = p.d.tail()
	}
}

// down tells the others that a node's connections broke, and up that they are
// back.
func (w *world) reconnect(p *peer) {
	for _, q := range w.nodes {
		if q != p && !w.cut[[2]NodeID{q.id, p.id}] {
			w.step(q, Input{Kind: InDisconnected, Peer: p.id}, packet{})
			w.step(q, Input{Kind: InConnected, Peer: p.id}, packet{})
		}
	}
}

// step feeds an input to a node and does what comes out, and what follows from
// that on the same node.
func (w *world) step(p *peer, in Input, with packet) {
	p.cur = with
	w.act(p, p.r.Step(w.now, in, nil))
	for len(p.inbox) > 0 {
		next := p.inbox[0]
		p.inbox = p.inbox[1:]
		p.cur = packet{}
		w.act(p, p.r.Step(w.now, next, nil))
	}
}

func (w *world) act(p *peer, out []Output) {
	for i := range out {
		w.do(p, &out[i])
	}
	if p.syncs && w.auto {
		w.sync(p)
	}
}

// sync ends the sync that is asked for: all written is durable.
func (w *world) sync(p *peer) {
	p.syncs = false
	p.d.durable = p.d.tail()
	p.inbox = append(p.inbox, Input{Kind: InDurable, ID: p.syncID, LSN: p.d.durable})
}

func (w *world) do(p *peer, o *Output) {
	later := func(in Input) { p.inbox = append(p.inbox, in) }
	switch o.Kind {
	case OutPersist:
		p.d.journal = o.Journal
		later(Input{Kind: InPersisted, ID: o.ID})
	case OutReport, OutPropose, OutTransfer, OutRefuse, OutAnswer, OutTransferFailed:
		w.told(p, o)
	case OutLead:
		w.lead(p, o)
	case OutReady:
		w.say("%s: ready, commit %d", p.id, o.LSN)
	case OutDeposed:
		p.wait = nil
		w.say("%s: deposed of epoch %d", p.id, o.Epoch)
	case OutStopped:
		w.say("%s: stopped, %v", p.id, o.Reason)
		w.fail("alarm at %s: %v", p.id, o.Reason)
	case OutGap:
		for _, l := range o.Gap.Lines {
			if w.rules.gapEpochs {
				p.d.line(l)
			}
		}
		for _, s := range o.Gap.Segments {
			p.d.segs[s.LSN] = true
		}
		w.say("%s: gap to %d, lines %v", p.id, o.LSN, o.Gap.Lines)
	case OutWrite:
		w.write(p, o)
	case OutSync:
		p.syncs, p.syncID = true, o.ID
	case OutTruncate:
		w.truncate(p, o.LSN)
		later(Input{Kind: InTruncated, LSN: o.LSN, Offset: p.d.next, Digest: p.d.digest})
	case OutReset:
		w.say("%s: reset to %d", p.id, o.Start.LSN)
		p.d.reset(o.Start)
		p.mem = p.d.fold(p.d.tail(), w.wr)
		p.last = 0
		later(Input{Kind: InReset})
	case OutLogStart:
		c, _ := p.r.Commit()
		if n := p.d.cutStart(o.LSN, c, w.wr); n > p.d.start.LSN {
			w.retire(p, n)
		}
	case OutHold:
		if o.First {
			p.pend = update{}
		}
		if u := p.cur.pend; u.off != 0 && u.newer(p.pend) {
			p.pend = u
		}
	case OutCommit:
		w.commit(p, o.LSN)
	case OutFlush:
		if p.pend.off != 0 {
			w.append(p, entry{c: Chunk{Type: chunk.Delta}, off: p.pend.off, ver: p.pend.ver})
		}
		later(Input{Kind: InFlushed, LSN: p.d.tail()})
	case OutConnect:
		if !w.cut[[2]NodeID{p.id, o.Peer}] {
			later(Input{Kind: InConnected, Peer: o.Peer})
		}
	case OutRead:
		w.read(p, o)
	case OutSend:
		w.send(p, o)
	}
}

// told are outputs to coordinator, metadata and clients.
func (w *world) told(p *peer, o *Output) {
	switch o.Kind {
	case OutPropose:
		w.say("%s: proposes %v of %s in epoch %d, version %d", p.id, o.Proposal.Kind, o.Proposal.Node, o.Proposal.Epoch, o.Proposal.Config)
		w.proposals = append(w.proposals, o.Proposal)
	case OutTransfer:
		w.say("%s: hand over to %s at %d", p.id, o.Peer, o.LSN)
	case OutTransferFailed:
		w.say("%s: transfer to %s failed", p.id, o.Peer)
	case OutRefuse:
		w.say("%s: refuses, %v", p.id, o.Reason)
	case OutAnswer:
		p.answer, p.answered = w.asked[o.ID-1], o.ID
		w.say("%s: answers sequence %d", p.id, p.answer)
	}
	if p.pass != nil {
		p.pass(*o)
	}
}

// write puts the chunk that was built here, or that came with the input.
func (w *world) write(p *peer, o *Output) {
	e := p.built
	if p.r.Role() != Leading {
		e = p.cur.e
	}
	e.c = o.Chunk
	for l := p.d.tail() + 1; l < e.c.LSN; l++ {
		p.mem.ok = false
	}
	p.d.put(e)
	p.mem.apply(&e, e.c.LSN, w.wr)
	if e.seq > 0 && !w.wr.seqTrailer && e.c.Type == chunk.User { // it rides in a later delta instead
		p.d.at(e.c.LSN).seq = 0
	}
	switch u := p.pend; {
	case u.off == 0:
	case w.wr.pendEpoch && e.c.Epoch > u.epoch,
		w.wr.pendVersion && e.c.Epoch == u.epoch && e.off != 0 && e.ver >= u.ver:
		p.pend = update{}
	}
}

// append has the leader append a chunk.
func (w *world) append(p *peer, e entry) {
	l, leading := p.r.Leading()
	if !leading {
		w.say("%s: does not lead", p.id)
		return
	}
	e.c.LSN, e.c.Offset, e.c.Before = p.r.Next()
	e.c.Epoch, e.c.After, e.c.Bytes = l.Epoch(), e.c.Before, 100
	if e.c.Type == chunk.User {
		e.c.Records = 1
		e.c.After = e.c.Before*31 + chunk.Digest(e.c.Epoch)<<16 + chunk.Digest(e.msg)
	}
	p.built = e
	w.step(p, Input{Kind: InAppend, Chunk: e.c}, p.cur)
}

func (w *world) truncate(p *peer, n chunk.LSN) {
	for l := n + 1; l <= min(p.d.tail(), chunk.LSN(len(w.committed))); l++ {
		if e := *p.d.at(l); l <= p.d.durable && !e.hole && e.same(w.committed[l-1]) {
			w.fail("%s cuts committed LSN %d", p.id, l)
		}
	}
	w.say("%s: cut to %d", p.id, n)
	p.d.truncate(n)
	if w.wr.rollback {
		p.mem = p.d.fold(n, w.wr)
	}
}

func (w *world) retire(p *peer, n chunk.LSN) {
	s := p.d.startAt(n)
	p.d.retire(s)
	p.d.commit = max(p.d.commit, p.r.Persistable())
	w.legal = max(w.legal, n)
	w.say("%s: log start %d", p.id, n)
	p.inbox = append(p.inbox, Input{Kind: InLogStart, Start: &s})
}

func (w *world) read(p *peer, o *Output) {
	var marks []SegmentMark
	for l := o.LSN; l <= o.Limit && l <= p.d.tail(); l++ {
		e := p.d.at(l)
		if e.hole {
			if p.d.segs[l] {
				marks = append(marks, SegmentMark{LSN: l})
			}
			continue
		}
		p.inbox = append(p.inbox, Input{Kind: InRead, Peer: o.Peer, ID: o.ID, Chunk: e.c, Segments: marks})
		marks = nil
	}
	p.inbox = append(p.inbox, Input{Kind: InReadEnd, Peer: o.Peer, ID: o.ID})
}

func (w *world) send(p *peer, o *Output) {
	k := packet{m: o.Message}
	if k.m.Kind == MsgChunk {
		k.e = *p.d.at(k.m.Chunk.LSN)
	}
	if k.m.Kind == MsgPending && p.pend.ver > k.m.ID {
		k.pend = p.pend
	}
	if key := [2]NodeID{p.id, o.Peer}; !w.cut[key] {
		w.wires[key] = append(w.wires[key], k)
	}
}
