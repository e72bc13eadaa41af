package sim

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// client is somebody who uses a stream.
type client interface {
	act()
	// settled tells whether everything it asked for has a result (L2).
	settled() bool
	// moves tells that a stream is deleted and has a successor.
	moves(from, to *stream)
	String() string
}

func (w *World) startClients() {
	for i := range w.opts.publishers {
		p := &publisher{w: w, index: i, stream: w.anyStream(), nextID: 1}
		if w.chance(700) {
			p.reference = fmt.Sprint("p", i)
		}
		w.clients = append(w.clients, p)
	}
	for i := range w.opts.consumers {
		w.clients = append(w.clients, &consumer{w: w, index: i, stream: w.anyStream(), reference: fmt.Sprint("c", i)})
	}
	for _, c := range w.clients {
		w.loop(c)
	}
}

// loop lets a client act again and again.
func (w *World) loop(c client) {
	w.after(w.between(millisecond, 40*millisecond), func() {
		c.act()
		w.loop(c)
	})
}

// leaderOf is where a client looks for a stream's leader: what some node's view
// of the metadata says.
func (w *World) leaderOf(s *stream) *node {
	view := w.anyNode().view
	if view == nil {
		return nil
	}
	c, ok := view.Incarnation(s.inc)
	if !ok || !c.Led() {
		return nil
	}
	return w.node(c.Leader.Node)
}

// publisher publishes under increasing ids. With a reference it sends again what
// it does not know to be stored.
type publisher struct {
	w         *World
	index     int
	stream    *stream
	reference string
	nextID    uint64

	conn    *connection
	pending []message // sent and not confirmed, ascending
	asking  bool
	last    bool // the one message that it sends in the calm phase is sent
}

// message is what one publishing id stands for: one record, or the records of a
// sub-batch under consecutive uids.
type message struct {
	id      uint64
	uid     uint64
	records int
}

// connection is a publisher's session at one life of a node.
type connection struct {
	node    *node
	life    int
	replica *replication.Replica
	right   *replication.Publisher
	lastAt  int64
	dead    bool
	fenced  bool // another session of the reference was declared at the same leader
}

func (p *publisher) moves(from, to *stream) {
	if p.stream == from {
		p.stream, p.asking, p.last = to, false, false
		p.conn, p.pending = nil, nil
	}
}

func (p *publisher) String() string { return fmt.Sprintf("publisher %d %q", p.index, p.reference) }

func (p *publisher) settled() bool { return len(p.pending) == 0 && p.last }

func (p *publisher) act() {
	w := p.w
	switch c := p.conn; {
	case p.asking:
	case c == nil:
		p.connect()
	case c.dead || !c.node.lives(c.life):
		p.hangUp()
	case !w.calm && w.chance(20):
		w.log("client", "%s leaves", p)
		c.right.Close()
		p.hangUp()
	case w.calm && len(p.pending) == 0 && !p.last:
		p.last = true
		p.send([]message{p.fresh()})
	case p.reference != "" && !w.calm && w.chance(15):
		p.takeOver()
	case len(p.pending) < 30 && !w.calm:
		var fresh []message
		for range 1 + w.rng.IntN(4) {
			fresh = append(fresh, p.fresh())
		}
		p.send(fresh)
	}
}

// takeOver declares the reference in a second session while the first still sends
// (F4).
func (p *publisher) takeOver() {
	old := p.conn
	rest := slices.Clone(p.pending)
	p.connect()
	if p.conn == old || p.conn.replica != old.replica || p.conn.life != old.life {
		return
	}
	old.fenced = true
	p.w.log("client", "%s takes over", p)
	if len(rest) > 0 {
		p.sendBy(old, rest)
	}
}

// hangUp forgets the connection; without a reference what is open stays
// unknown.
func (p *publisher) hangUp() {
	p.conn = nil
	if p.reference == "" {
		p.pending = nil
	}
}

func (p *publisher) connect() {
	w := p.w
	n := w.leaderOf(p.stream)
	if n == nil || !n.up || n.dead {
		return
	}
	r, ok := n.repl.Replica(p.stream.inc)
	if !ok {
		return
	}
	right, err := r.Declare(p.reference)
	if err != nil {
		return
	}
	w.log("client", "%s at %s", p, n.id)
	c := &connection{node: n, life: n.life, replica: r, right: right}
	p.conn = c
	if p.reference == "" {
		return
	}
	if len(p.pending) > 0 {
		w.reach(markSentAgain)
	}
	if len(p.pending) > 0 && w.chance(500) {
		p.askSequence(c)
		return
	}
	p.resend()
}

func (p *publisher) resend() {
	for rest := p.pending; len(rest) > 0; {
		k := min(len(rest), 1+p.w.rng.IntN(8))
		p.send(slices.Clone(rest[:k])) // pending changes before they are back
		rest = rest[k:]
	}
}

// askSequence learns what is stored, and counts that as confirmed (F3).
func (p *publisher) askSequence(c *connection) {
	w := p.w
	p.asking = true
	w.stats.Queries++
	s, g := p.stream, &p.stream.ghost
	before, forgotten := g.sequences[p.reference], g.evicted(p.reference)
	if _, _, q := c.node.replica(s); q != nil && g.takenIn[p.reference] > 0 && q.Promise() > g.takenIn[p.reference] {
		w.reach(markSequenceLater)
	}
	done := false
	w.after(2*second, func() { // the client loses patience
		if !done && p.stream == s {
			done = true
			p.asking = false
			p.hangUp()
		}
	})
	c.replica.Sequence(p.reference, func(sequence uint64, ok bool, err error) {
		if !c.node.lives(c.life) || done || p.stream != s {
			return
		}
		done = true
		if err == nil {
			w.log("sequence", "%s %d %v", p, sequence, ok)
			w.checkSequence(p, before, sequence, ok, forgotten)
		}
		w.after(w.between(100, 2*millisecond), func() {
			if p.stream != s {
				return
			}
			p.asking = false
			if err != nil {
				p.hangUp()
				return
			}
			for len(p.pending) > 0 && p.pending[0].id <= sequence {
				p.pending = p.pending[1:]
			}
			if p.conn == c {
				p.resend()
			}
		})
	})
}

// fresh makes a message that was never sent.
func (p *publisher) fresh() message {
	w := p.w
	m := message{id: p.nextID, uid: uint64(len(w.uids)), records: 1}
	if w.opts.batchMax > 0 && w.chance(200) {
		m.records = 1 + w.rng.IntN(w.opts.batchMax)
	}
	p.nextID++
	if w.chance(50) {
		p.nextID += uint64(w.rng.IntN(5)) // ids may have gaps
	}
	for part := range m.records {
		w.uids = append(w.uids, published{
			stream: p.stream.index, client: p.index, id: m.id, part: part, reference: p.reference, length: w.rng.IntN(w.opts.bodyMax),
		})
	}
	p.pending = append(p.pending, m)
	w.stats.Published++
	return m
}

// bodyOf is the body of a message: its uid, then bytes that follow from it.
func (w *World) bodyOf(dst []byte, uid uint64) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uid)
	x := uid*0x9E3779B97F4A7C15 + 1
	for n := w.uids[uid].length; n > 0; n -= 8 {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		dst = binary.BigEndian.AppendUint64(dst, x)
	}
	return dst
}

// sink hears what became of one batch.
type sink struct {
	p        *publisher
	c        *connection
	messages []message
	stream   *stream
	late     bool // the session was fenced before this came to the node
	known    int  // messages that were committed before they were sent
}

// send publishes messages in one batch, after the way to the node.
func (p *publisher) send(messages []message) { p.sendBy(p.conn, messages) }

func (p *publisher) sendBy(c *connection, messages []message) {
	w := p.w
	to := &sink{p: p, c: c, messages: messages, stream: p.stream}
	b := &replication.Batch{Publisher: c.right, Sink: to}
	var pack []byte
	for _, m := range messages {
		b.IDs = append(b.IDs, m.id)
		pack = pack[:0]
		for part := range m.records {
			w.uids[m.uid+uint64(part)].sent++
			w.body = w.bodyOf(w.body[:0], m.uid+uint64(part))
			pack = chunk.AppendSimple(pack, w.body)
		}
		if m.records == 1 {
			b.Data = append(b.Data, pack...)
		} else {
			b.Data = chunk.AppendSubBatch(b.Data, 0, uint16(m.records), uint32(len(pack)), pack)
		}
		b.Ends = append(b.Ends, uint32(len(b.Data)))
		b.Records = append(b.Records, uint32(m.records))
		if w.uids[m.uid].committed {
			to.known++
		}
	}
	at := max(w.now+w.between(100, 3*millisecond), c.lastAt+1)
	c.lastAt = at
	w.after(at-w.now, func() {
		if c.node.lives(c.life) {
			to.late = c.fenced
			w.log("publish", "%s ids %d to %d at %s", p, b.IDs[0], b.IDs[len(b.IDs)-1], c.node.id)
			c.replica.Publish(b)
		}
	})
}

func (s *sink) Confirmed(*replication.Batch) {
	w := s.p.w
	if !s.c.node.lives(s.c.life) {
		return
	}
	if s.late {
		w.violate("F4", "%s: id %d confirmed to a session that was fenced before it came", s.p, s.messages[0].id)
	}
	w.coverage[markDuplicate] += s.known
	for _, m := range s.messages {
		w.stats.Confirmed++
		if !w.uids[m.uid].committed {
			// The commit may be known to the leader before the observer looked.
			w.observeCommit(s.c.node, s.stream)
		}
		if !w.uids[m.uid].committed {
			w.violate("I10", "%s: id %d confirmed by %s and not committed", s.p, m.id, s.c.node.id)
		}
	}
	w.after(w.between(100, 3*millisecond), func() {
		kept := s.p.pending[:0]
		for _, m := range s.p.pending {
			confirmed := false
			for _, x := range s.messages {
				confirmed = confirmed || x == m
			}
			if !confirmed {
				kept = append(kept, m)
			}
		}
		s.p.pending = kept
	})
}

func (s *sink) Failed(_ *replication.Batch, err error) {
	w := s.p.w
	if !s.c.node.lives(s.c.life) {
		return
	}
	if s.late {
		w.reach(markFenced)
	}
	if errors.Is(err, replication.ErrBacklog) {
		w.reach(markBacklog)
	}
	w.log("failed", "%s ids %d to %d: %v", s.p, s.messages[0].id, s.messages[len(s.messages)-1].id, err)
	late := 3 * millisecond
	if errors.Is(err, replication.ErrBacklog) && w.chance(500) {
		late = second // some clients look up late, and have sent more by then
	}
	w.after(w.between(100, late), func() {
		s.c.dead = true
		if s.p.reference == "" && s.p.conn == s.c {
			s.p.hangUp()
		}
	})
}

// consumer reads a stream from wherever, and stores how far it is.
type consumer struct {
	w         *World
	index     int
	stream    *stream
	reference string
	next      chunk.Offset
	stores    []chunk.Offset // every value ever stored, unique; its index is in its low bits
	last      reign          // of the last store
	asking    bool
}

// reign names a leader's reign at one life of a node.
type reign struct {
	node  *node
	life  int
	epoch chunk.Epoch
}

func (c *consumer) moves(from, to *stream) {
	if c.stream == from {
		c.stream, c.next, c.stores, c.last, c.asking = to, 0, nil, reign{}, false
	}
}

func (c *consumer) String() string { return fmt.Sprintf("consumer %d", c.index) }

func (c *consumer) settled() bool { return !c.asking }

func (c *consumer) act() {
	switch c.w.rng.IntN(4) {
	case 0, 1:
		c.read()
	case 2:
		c.store()
	default:
		c.query()
	}
}

// read reads on at any replica.
func (c *consumer) read() {
	w, s := c.w, c.stream
	n := w.anyNode()
	if !n.up || n.dead {
		return
	}
	r, ok := n.repl.Replica(s.inc)
	if !ok {
		return
	}
	spec := segstore.Spec{Kind: segstore.AtOffset, Offset: c.next}
	if w.chance(50) {
		spec, c.next = segstore.Spec{Kind: segstore.First}, 0
	}
	reader, err := r.Attach(spec)
	if err != nil {
		return
	}
	defer reader.Close()
	for range 20 {
		commit, _ := r.Committed()
		view, ok, err := reader.Next(commit)
		if err != nil {
			if w.opts.diskEvery == 0 && !n.dead && w.rotten != n {
				w.violate("I26", "%s reads at %s: %v", c, n.id, err)
			}
			return
		}
		if !ok {
			return
		}
		w.checkDelivered(c, n, r, &view)
		view.Release()
		if w.failure != nil {
			return
		}
	}
}

// at is the leader, if the client finds it.
func (c *consumer) at() (*node, *replication.Replica, chunk.Epoch) {
	n := c.w.leaderOf(c.stream)
	if n == nil || !n.up || n.dead {
		return nil, nil, 0
	}
	r, ok := n.repl.Replica(c.stream.inc)
	if !ok {
		return nil, nil, 0
	}
	_, p := r.Inspect()
	if p == nil {
		return nil, nil, 0
	}
	l, leads := p.Leading()
	if !leads {
		return nil, nil, 0
	}
	return n, r, l.Epoch()
}

// storeBits of a stored value number it, so that each is known again.
const storeBits = 20

func (c *consumer) store() {
	w := c.w
	n, r, e := c.at()
	if n == nil || w.calm {
		return
	}
	base := c.next
	if w.chance(100) {
		base /= 2 // back
	}
	value := base<<storeBits | chunk.Offset(len(c.stores))
	if err := r.StoreOffset(c.reference, value); err != nil {
		return
	}
	w.stats.Stores++
	c.stores = append(c.stores, value)
	c.last = reign{n, n.life, e}
}

func (c *consumer) query() {
	w := c.w
	n, r, e := c.at()
	if n == nil || c.asking {
		return
	}
	ref := c.reference
	g := &c.stream.ghost
	least, known := g.stored(ref)
	// A leader that was superseded and does not know may answer what was once
	// true: such queries ask no majority (F3).
	known = known && e >= g.at[g.commit-1].tail.Epoch
	most := len(c.stores)
	now := reign{n, n.life, e}
	if c.last.epoch > 0 && c.last.epoch < e {
		w.reach(markOffsetLater)
	}
	s := c.stream
	c.asking = true
	done := false
	w.after(2*second, func() {
		if !done && c.stream == s {
			done, c.asking = true, false
		}
	})
	w.stats.Queries++
	r.BeginQueryOffset(ref, func(offset chunk.Offset, ok bool, err error) {
		if done || c.stream != s {
			return
		}
		done, c.asking = true, false
		if !n.lives(now.life) || err != nil {
			if errors.Is(err, replication.ErrTrackingUnknown) {
				w.violate("A6", "the leader %s of %s does not know its tracking", n.id, c.stream)
			}
			return
		}
		w.log("query", "%s at %s e%d: %d.%d %v", c, n.id, e, offset>>storeBits, offset&(1<<storeBits-1), ok)
		w.checkStored(c, now, offset, ok, least, known, most)
	})
}

// visitsOf numbers visitors above all publishers.
const visitsOf = 1000

// visit has somebody publish one message under a reference that never comes
// again, so that tracking must forget some (I15).
func (w *World) visit() {
	w.visitors++
	p := &publisher{
		w: w, index: visitsOf + w.visitors, stream: w.anyStream(), reference: fmt.Sprint("v", w.visitors), nextID: 1, last: true,
	}
	if p.connect(); p.conn != nil {
		p.send([]message{p.fresh()})
	}
}
