package protocol

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/segstore/chunk"
)

// command does one line of a script.
func (w *world) command(words []string) {
	a := parseArgs(words[1:])
	switch words[0] {
	case "new":
		w.found(a)
		return
	case "elect":
		w.elect(a.pos[0], a.kv["prefer"])
		return
	case "start":
		if w.chosen != nil {
			w.start(w.node(string(w.chosen.Node)))
		}
		return
	case "run":
		w.settle(a)
		return
	case "meta":
		w.meta(a)
		return
	case "change":
		w.change(a)
		return
	case "replay":
		for _, k := range w.kept[a.pos[0]] {
			w.receive(NodeID(a.pos[1]), w.node(a.pos[2]), k)
		}
		return
	case "tick":
		n, _ := strconv.Atoi(a.pos[0])
		w.now += Tick(n)
		for _, p := range w.nodes {
			w.step(p, Input{Kind: InTick}, packet{})
		}
		return
	case "same":
		w.same()
		return
	case "calm": // the worst has happened; only the nets are left
		w.calm = true
		return
	}
	w.nodeCommand(words[0], w.node(a.pos[0]), a)
}

func (w *world) nodeCommand(cmd string, p *peer, a args) {
	switch cmd {
	case "lead":
		w.elect(a.kv["by"], string(p.id))
		if w.chosen != nil && w.chosen.Node == p.id {
			w.start(p)
		}
	case "resume":
		w.start(p)
	case "talk":
		w.talk(p, w.node(a.pos[1]), a.num("chunks", 1<<30))
	case "deliver":
		w.deliver(p, w.node(a.pos[1]), a.num("n", 1<<30))
	case "keep":
		key := [2]NodeID{p.id, NodeID(a.pos[1])}
		w.kept[a.pos[2]] = w.wires[key]
		delete(w.wires, key)
	case "inject":
		w.inject(p, w.node(a.pos[1]), a)
	case "sync":
		w.sync(p)
		w.step(p, Input{Kind: InTick}, packet{})
	case "journal":
		p.d.commit = p.r.Persistable()
	case "publish":
		w.publish(p, a)
	case "flush":
		w.append(p, entry{c: Chunk{Type: chunk.Delta}, off: p.pend.off, ver: p.pend.ver})
	case "store":
		w.store(p)
	case "roll":
		w.roll(p, a)
	case "compact":
		w.compact(p)
	case "retain":
		n, _ := strconv.Atoi(a.pos[1])
		c, _ := p.r.Commit()
		if got := p.d.cutStart(chunk.LSN(n), c, w.wr); got == chunk.LSN(n) {
			w.retire(p, got)
			w.step(p, Input{Kind: InTick}, packet{})
		} else {
			w.say("%s: may not retire to %d", p.id, n)
		}
	case "query":
		w.query(p)
	case "transfer":
		target := NodeID("")
		if len(a.pos) > 1 {
			target = NodeID(a.pos[1])
		}
		w.step(p, Input{Kind: InTransfer, Peer: target}, packet{})
	case "config":
		w.step(p, Input{Kind: InConfig, Config: ptr(w.config)}, packet{})
	case "damage":
		w.step(p, Input{Kind: InDamaged, Tail: p.r.Durable()}, packet{})
		p.d.truncate(chunk.LSN(a.num("to", 0)))
		p.d.journal.Mark = p.r.journal.Mark
		w.boot(p)
		w.register(p)
	case "fail":
		w.calm = true
		w.step(p, Input{Kind: InFailed}, packet{})
	case "crash", "powerloss", "wipe", "lose", "cut", "heal":
		w.harm(cmd, p, a)
	default:
		panic("no command " + cmd)
	}
}

func ptr[T any](v T) *T { return &v }

// found makes the cluster: voters, then learners and strangers.
func (w *world) found(a args) {
	w.auto = a.kv["sync"] != "manual"
	w.lenient = a.has("lenient")
	w.config.Version = 1
	for _, id := range a.kv["voters"] {
		w.config.Members = append(w.config.Members, Member{Node: NodeID(id)})
		w.add(string(id))
	}
	for _, id := range a.kv["others"] {
		w.add(string(id)).d.journal = Journal{Registration: Unregistered, Aside: true}
	}
	for _, p := range w.nodes {
		w.boot(p)
	}
	w.settled = true
}

// elect fences the named nodes for a new epoch and chooses.
func (w *world) elect(who, prefer string) {
	w.epoch++
	w.chosen, w.settled = nil, false
	var reports []Report
	w.merged = update{}
	for _, id := range who {
		p := w.node(string(id))
		p.pass = func(o Output) {
			if o.Kind == OutReport {
				reports = append(reports, *o.Report)
				if p.pend.newer(w.merged) {
					w.merged = p.pend
				}
			}
		}
		w.step(p, Input{Kind: InFence, Epoch: w.epoch, ID: uint64(w.epoch)}, packet{})
		p.pass = nil
	}
	d := selectLeader(w.epoch, reports, w.config, []NodeID{NodeID(prefer)}, w.rules)
	if d.Kind != Elected {
		w.say("epoch %d: %v, missing %v, mark %v", w.epoch, d.Kind, d.Missing, d.Mark)
		return
	}
	w.say("epoch %d: elected %s with tail %v", w.epoch, d.Node, d.Tail)
	w.left = d.Inheritance
	w.chosen = &Assignment{Stream: 1, Epoch: w.epoch, Node: d.Node, Run: d.Run, Replicas: w.config}
}

func (w *world) start(p *peer) {
	if w.chosen == nil {
		return
	}
	w.chosen.Replicas = w.config
	in := Input{Kind: InAssign, Assignment: w.chosen, Inheritance: &w.left, Known: p.mem.ok || !w.wr.trackBase}
	w.step(p, in, packet{})
}

// talk carries messages both ways until none is left, but at most so many
// chunks from p to q; what is behind the next chunk waits with it.
func (w *world) talk(p, q *peer, chunks int) {
	for {
		there, back := w.wires[[2]NodeID{p.id, q.id}], w.wires[[2]NodeID{q.id, p.id}]
		switch {
		case len(there) > 0 && (there[0].m.Kind != MsgChunk || chunks > 0):
			if there[0].m.Kind == MsgChunk {
				chunks--
			}
			w.deliver(p, q, 1)
		case len(back) > 0:
			w.deliver(q, p, 1)
		default:
			return
		}
	}
}

func (w *world) deliver(p, q *peer, n int) {
	key := [2]NodeID{p.id, q.id}
	for ; n > 0 && len(w.wires[key]) > 0; n-- {
		k := w.wires[key][0]
		w.wires[key] = w.wires[key][1:]
		w.receive(p.id, q, k)
	}
}

func (w *world) receive(from NodeID, q *peer, k packet) {
	w.say("%s > %s %s", from, q.id, short(&k.m))
	w.step(q, Input{Kind: InMessage, Peer: from, Message: &k.m}, k)
}

// short is a message in one line.
func short(m *Message) string {
	s := fmt.Sprintf("%v e%d s%d", m.Kind, m.Epoch, m.Session)
	switch m.Kind {
	case MsgFind, MsgFound:
		s += fmt.Sprintf(" %v", m.Tail)
	case MsgChunk:
		s += fmt.Sprintf(" %v", m.Chunk.Tail())
		if m.First {
			s += fmt.Sprintf(" after %v", m.Tail)
		}
	case MsgJoined, MsgAck:
		s += fmt.Sprintf(" %d", m.LSN)
	case MsgCommit:
		s += fmt.Sprintf(" %d start %d", m.Commit, m.Start.LSN)
	case MsgRefuse:
		s += fmt.Sprintf(", %v", m.Reason)
	}
	return s
}

// settle runs until nothing moves among the named nodes, syncs included.
func (w *world) settle(a args) {
	among := func(id NodeID) bool { return len(a.pos) == 0 || strings.Contains(a.pos[0], string(id)) }
	for moved := true; moved; {
		moved = false
		for _, p := range w.nodes {
			if p.syncs && among(p.id) {
				w.sync(p)
				w.step(p, Input{Kind: InTick}, packet{})
				moved = true
			}
			for _, q := range w.nodes {
				if among(p.id) && among(q.id) && len(w.wires[[2]NodeID{p.id, q.id}]) > 0 {
					w.deliver(p, q, 1<<30)
					moved = true
				}
			}
		}
	}
}

// inject makes a message that no correct node would send now.
func (w *world) inject(p, q *peer, a args) {
	k := packet{m: Message{Kind: MsgCommit, Epoch: p.r.Promise(), Session: 1, Start: LogStart{LSN: 1}}}
	if l, ok := p.r.Leading(); ok && l.peer(q.id) != nil {
		k.m.Session = l.peer(q.id).session
	}
	k.m.Commit, _ = p.r.Commit()
	if n := a.num("chunk", 0); n > 0 {
		k.e = *p.d.at(chunk.LSN(n))
		k.m.Kind, k.m.Chunk = MsgChunk, k.e.c
	}
	w.receive(p.id, q, k)
}

func (w *world) publish(p *peer, a args) {
	msg, seq := a.num("m", 0), a.num("seq", 0)
	if a.has("next") { // as the sequence query told
		seq = p.answer + 1
	}
	if a.has("told") {
		for _, q := range w.nodes {
			if q.answered > 0 {
				seq = q.answer + 1
			}
		}
		if seq == 0 {
			w.say("the publisher waits for its sequence")
			return
		}
	}
	if seq > 0 && seq <= p.mem.seq {
		w.say("%s: message %d is a duplicate", p.id, msg)
		if p.r.Confirmable(p.mem.lsn) {
			w.confirmOne(p, msg)
		} else {
			p.wait = append(p.wait, waiting{msg, p.mem.lsn})
		}
		return
	}
	if l, ok := p.r.Leading(); ok && l.Accept() != Take && w.rules.barrier {
		w.say("%s: message %d, %v", p.id, msg, l.Accept())
		return
	}
	p.wait = append(p.wait, waiting{msg, p.d.tail() + 1})
	w.append(p, entry{msg: msg, seq: seq})
}

func (w *world) store(p *peer) {
	l, ok := p.r.Leading()
	if !ok {
		w.say("%s: does not lead", p.id)
		return
	}
	op := len(w.storeOf) + 1
	w.storeOf[op] = l.Epoch()
	p.pend = update{op, l.Epoch(), uint64(op)}
	w.step(p, Input{Kind: InStored, ID: uint64(op)}, packet{})
}

// roll begins a segment with a snapshot, whole or in two parts.
func (w *world) roll(p *peer, a args) {
	e := entry{seq: p.mem.seq, seqLSN: p.mem.lsn, off: p.mem.off}
	if n := a.num("queued", 0); n > 0 && !w.wr.snapExact {
		e.seq, e.seqLSN = n, p.d.tail()+1 // ahead of the data it describes
	}
	if p.pend.off != 0 {
		e.off, e.ver = p.pend.off, p.pend.ver
	}
	e.c = Chunk{Type: chunk.Snapshot, Flags: chunk.FlagSegmentStart | chunk.FlagSnapshotFirst | chunk.FlagSnapshotLast}
	if a.has("parts") {
		first := e
		first.c.Flags &^= chunk.FlagSnapshotLast
		first.part = true
		w.append(p, first)
		e.c.Flags, e.split = chunk.FlagSnapshotLast, true
		if a.has("half") {
			return
		}
	}
	w.append(p, e)
}

func (w *world) compact(p *peer) {
	n := p.d.compact(p.r.Persistable(), w.wr)
	p.d.commit = max(p.d.commit, p.r.Persistable())
	if !w.wr.table {
		p.d.lines = p.d.linesOfChunks()
		p.r.table.lines = slices.Clone(p.d.lines)
	}
	w.say("%s: compacts %d", p.id, n)
}

// query asks for the publisher's sequence; the answer is what is applied now.
func (w *world) query(p *peer) {
	seq := p.mem.seq
	if !w.rules.queryApplied {
		c, _ := p.r.Commit()
		seq = p.d.fold(c, w.wr).seq
	}
	w.asked = append(w.asked, seq)
	w.step(p, Input{Kind: InQuery, ID: uint64(len(w.asked)), LSN: p.mem.lsn}, packet{})
}

// harm does what befalls a node; it is back at once.
func (w *world) harm(cmd string, p *peer, a args) {
	switch cmd {
	case "cut", "heal":
		q := w.node(a.pos[1])
		for _, key := range [][2]NodeID{{p.id, q.id}, {q.id, p.id}} {
			w.cut[key] = cmd == "cut"
			delete(w.wires, key)
		}
		kind := InConnected
		if cmd == "cut" {
			kind = InDisconnected
		}
		w.step(p, Input{Kind: kind, Peer: q.id}, packet{})
		w.step(q, Input{Kind: kind, Peer: p.id}, packet{})
		return
	case "powerloss":
		p.d.truncate(max(p.d.durable, p.d.start.LSN-1))
	case "lose": // the disk, and nobody notices
		p.d = newDisk()
	case "wipe":
		old := p.d.journal
		p.d = newDisk()
		p.d.journal = Journal{Registration: Unregistered, Aside: true}
		if !w.rules.emptiedAside {
			p.d.journal = Journal{Registration: old.Registration}
		}
	}
	if !w.rules.promise && cmd != "wipe" {
		p.d.journal.Promise = p.d.epochAt(p.d.tail())
	}
	w.boot(p)
	if cmd == "wipe" {
		w.register(p)
	}
	w.reconnect(p)
}
