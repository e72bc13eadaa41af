package sim

import (
	"slices"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
)

// link joins two nodes while it is up. A frame that gets lost takes the link
// with it, as on a real connection; its number then tells late frames.
type link struct {
	w      *World
	ends   [2]*node
	up     bool
	number int
	cut    [2]bool  // nothing passes from ends[i]
	doomed bool     // something got lost: it is about to break
	lastAt [2]int64 // arrival of the last frame from ends[i]
	heard  [2]int64 // when ends[i] hears, or has heard, that it broke
}

// heartbeat is how long it takes to see that nothing comes any more.
const heartbeat = 300 * millisecond

func (w *World) link(a, b *node) *link {
	for _, l := range w.links {
		if l.ends == [2]*node{a, b} || l.ends == [2]*node{b, a} {
			return l
		}
	}
	return nil
}

// transport is a node's way to the others in one of its lives.
type transport struct {
	n    *node
	life int
}

func (t transport) Connect(protocol.NodeID) {} // links come by themselves

func (t transport) Send(to protocol.NodeID, f *replication.Frame) {
	n := t.n
	if !n.lives(t.life) {
		return
	}
	w := n.w
	w.checkSend(n, f)
	peer := w.node(to)
	l := w.link(n, peer)
	from := 0
	if l.ends[1] == n {
		from = 1
	}
	if !l.up || l.doomed {
		return
	}
	w.stats.Frames++
	g := copyFrame(f)
	m := &g.Message
	w.log("send", "%s→%s s%d %-8s e%d #%d lsn %d commit %d", n.id, to, w.streamOf(f.Stream).index, m.Kind, m.Epoch, m.Session, max(m.LSN, m.Chunk.LSN), m.Commit)
	if l.cut[from] || !w.calm && w.chance(w.opts.resetPerMille) {
		g.drop()
		l.doom()
		return
	}
	delay := w.between(w.opts.delayMin, w.opts.delayMax)
	if !w.calm && w.chance(w.opts.slowPerMille) {
		delay += w.between(0, 200*millisecond)
	}
	at := max(w.now+delay, l.lastAt[from]+1)
	l.lastAt[from] = at
	number := l.number
	w.after(at-w.now, func() { l.arrive(number, n, peer, g) })
	if !w.calm && w.chance(w.opts.twicePerMille) {
		h := copyFrame(f)
		w.after(at-w.now+w.between(1, 500*millisecond), func() { l.arrive(number, n, peer, h) })
	}
}

// frame is a copy of one on its way.
type frame struct{ replication.Frame }

func copyFrame(f *replication.Frame) *frame {
	g := &frame{*f}
	g.Pending = slices.Clone(f.Pending)
	if f.Chunk != nil {
		g.Chunk = segstore.NewChunk(len(f.Chunk.Data))
		g.Chunk.Head = append(g.Chunk.Head[:0], f.Chunk.Head...)
		g.Chunk.Data = append(g.Chunk.Data[:0], f.Chunk.Data...)
		g.Message.Chunk = protocol.Chunk{LSN: f.Message.Chunk.LSN} // all else is read from the bytes
	}
	return g
}

func (f *frame) drop() {
	if f.Chunk != nil {
		f.Chunk.Release()
		f.Chunk = nil
	}
}

// arrive delivers a frame. One of a broken link is lost, or comes late.
func (l *link) arrive(number int, from, to *node, f *frame) {
	if number != l.number && (l.w.calm || !l.w.chance(l.w.opts.latePerMille)) || !to.up {
		f.drop()
		return
	}
	s := l.w.streamOf(f.Stream)
	l.w.log("recv", "%s→%s s%d %-8s e%d #%d", from.id, to.id, s.index, f.Message.Kind, f.Message.Epoch, f.Message.Session)
	l.w.markFrame(from, to, s, &f.Message)
	to.repl.Deliver(from.id, &f.Frame)
}

// markFrame notes frames that say nothing any more.
func (w *World) markFrame(from, to *node, s *stream, m *protocol.Message) {
	if s.deleted {
		w.reach(markOldIncarnation)
		return
	}
	_, _, p := to.replica(s)
	if p == nil {
		return
	}
	if m.Epoch < p.Promise() {
		w.reach(markBelowPromise)
	}
	if l, leads := p.Leading(); leads && m.Kind == protocol.MsgAck {
		for _, peer := range l.Peers() {
			if peer.Node() == from.id && (m.Epoch != l.Epoch() || m.Session != peer.Session()) {
				w.reach(markOldSession)
			}
		}
	}
}

// doom breaks the link when it is noticed.
func (l *link) doom() {
	if l.doomed {
		return
	}
	l.doomed = true
	number := l.number
	l.w.after(l.w.between(0, heartbeat), func() {
		if l.number == number {
			l.reset()
		}
	})
}

// reset breaks the link; each end hears of it at its own time. It comes again if
// both are there and nothing is cut.
func (l *link) reset() {
	w := l.w
	w.stats.Resets++
	was := l.up
	l.up, l.doomed = false, false
	l.number++
	number := l.number
	for i := range l.ends {
		n, peer := l.ends[i], l.ends[1-i]
		if n.up {
			n.unlinked(l, peer, gonePatience)
		}
		if life := n.life; was && n.up {
			d := w.between(0, 20*millisecond)
			l.heard[i] = w.now + d
			w.after(d, func() {
				if n.lives(life) {
					w.log("link", "%s loses %s", n.id, peer.id)
					n.broken[peer.id] = true
					n.repl.LinkDown(peer.id)
				}
			})
		}
	}
	w.after(max(l.heard[0], l.heard[1], w.now)-w.now+w.between(1, 50*millisecond), func() { l.connect(number) })
}

// connect brings the link up, unless it was reset since.
func (l *link) connect(number int) {
	w := l.w
	if l.number != number || l.up {
		return
	}
	if !l.ends[0].up || !l.ends[1].up {
		return // the start of a node tries again
	}
	// Who comes with an empty disk is linked once it is a member.
	if l.cut[0] || l.cut[1] || l.ends[0].meta.emptied || l.ends[1].meta.emptied {
		w.after(50*millisecond, func() { l.connect(number) })
		return
	}
	l.up, l.doomed = true, false
	for i := range l.ends {
		n, peer, life := l.ends[i], l.ends[1-i], l.ends[i].life
		// Not before it has heard that the one before broke: a link's news come in
		// order.
		w.after(max(l.heard[i]+1-w.now, 0)+w.between(0, 2*millisecond), func() {
			if n.lives(life) && l.number == number {
				w.log("link", "%s has %s", n.id, peer.id)
				n.see(peer.id, catalog.Up)
				n.broken[peer.id] = false
				n.repl.LinkUp(peer.id)
			}
		})
	}
}
