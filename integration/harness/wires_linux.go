package harness

import (
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"
)

// Wires is the network between nodes that are machines of their own
// (StartInNamespaces): every node has one plug, and every two nodes a line in
// each direction. What a cut line is given is lost, as on a real network, gossip
// too. Lines may also lose some of it, be long, or be slow.
//
//	n1 ── plug ─┐             ┌─ plug ── n2
//	            ├── Wires ────┤
//	            │  (frames)   └─ plug ── n3
//	         a line each way
type Wires struct {
	t     testing.TB
	rooms []*namespace
	lines map[direction]*line
	ended sync.WaitGroup // one for each plug and line
}

// Behaviour is how a line behaves; the zero value passes everything at once.
type Behaviour struct {
	// Loss is the share of frames that are lost.
	Loss float64
	// Delay is how long each frame is under way.
	Delay time.Duration
	// BytesPerSecond is what it carries; 0: anything.
	BytesPerSecond int
}

const (
	// wiresMTU is a bigger frame than most networks have: each one costs time.
	wiresMTU = 9000
	// ethernetBytes are in front of each packet: two addresses and a type.
	ethernetBytes = 14
	// lineFrames bounds what is under way on a line, and lineBacklog how long a
	// frame may wait for a slow one; a switch drops more too.
	lineFrames  = 4096
	lineBacklog = 200 * time.Millisecond
)

// line is one direction between two nodes.
type line struct {
	frames chan underway
	to     *os.File

	mu     sync.Mutex // guards all below
	cut    bool
	is     Behaviour
	random *rand.Rand
	free   time.Time // when what it has been given is on its way
}

type underway struct {
	due   time.Time
	frame []byte
}

func newLine(to *os.File, seed, number uint64) *line {
	return &line{frames: make(chan underway, lineFrames), to: to, random: rand.New(rand.NewPCG(seed, number))}
}

// joinPlugs strings the lines between rooms.
func joinPlugs(t testing.TB, rooms []*namespace) *Wires {
	w := &Wires{t: t, rooms: rooms, lines: map[direction]*line{}}
	seed := rand.Uint64()
	t.Logf("the wires' seed is %d", seed)
	for i, from := range rooms {
		outgoing := map[byte]*line{}
		for k, to := range rooms {
			if i == k {
				continue
			}
			l := newLine(to.plug, seed, uint64(i*len(rooms)+k))
			w.lines[direction{from.node, to.node}], outgoing[to.mac()[5]] = l, l
			w.ended.Go(l.carry)
		}
		w.ended.Go(func() { from.send(outgoing) })
	}
	return w
}

// send gives each frame that leaves a node to the line that it is for. Plugs
// that are closed end it, and its lines.
func (n *namespace) send(outgoing map[byte]*line) {
	defer func() {
		for _, l := range outgoing {
			close(l.frames)
		}
	}()
	buf := make([]byte, wiresMTU+ethernetBytes)
	for {
		size, err := n.plug.Read(buf)
		if errors.Is(err, os.ErrClosed) {
			return
		}
		if err != nil || size < ethernetBytes { // a plug that is out is no end
			continue
		}
		if l := outgoing[buf[5]]; l != nil && buf[12] == 0x08 && buf[13] == 0 { // IPv4 alone
			l.take(time.Now(), buf[:size])
		}
	}
}

// take decides what becomes of a frame.
func (l *line) take(now time.Time, frame []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cut || l.is.Loss > 0 && l.random.Float64() < l.is.Loss {
		return
	}
	due := now
	if rate := l.is.BytesPerSecond; rate > 0 {
		if l.free.Before(now) {
			l.free = now
		}
		if l.free.Sub(now) > lineBacklog {
			return
		}
		l.free = l.free.Add(time.Duration(len(frame)) * time.Second / time.Duration(rate))
		due = l.free
	}
	select {
	case l.frames <- underway{due.Add(l.is.Delay), append([]byte(nil), frame...)}:
	default: // too many are under way
	}
}

// carry delivers frames, each when it is due.
func (l *line) carry() {
	for f := range l.frames {
		if wait := time.Until(f.due); wait > 0 {
			<-time.After(wait)
		}
		_, _ = l.to.Write(f.frame) // a plug that is out takes nothing
	}
}

// change changes one direction.
func (w *Wires) change(from, to *Node, how func(*line)) {
	l := w.lines[direction{from.Name, to.Name}]
	l.mu.Lock()
	defer l.mu.Unlock()
	how(l)
}

// Cut has all be lost that one node says to another from now on.
func (w *Wires) Cut(from, to *Node) { w.change(from, to, func(l *line) { l.cut = true }) }

// CutBoth has all be lost that two nodes say to each other.
func (w *Wires) CutBoth(a, b *Node) {
	w.Cut(a, b)
	w.Cut(b, a)
}

// Shape gives the line from one node to another a behaviour.
func (w *Wires) Shape(from, to *Node, as Behaviour) { w.change(from, to, func(l *line) { l.is = as }) }

// Unplug pulls a node's plug: unlike behind a cut, it is told so by its system.
func (w *Wires) Unplug(n *Node) { w.link(n, "down") }

func (w *Wires) link(n *Node, state string) {
	w.t.Helper()
	for _, room := range w.rooms {
		if room.node != n.Name {
			continue
		}
		if err := ip("-n", room.name, "link", "set", plugName, state); err != nil {
			w.t.Fatal(err)
		}
		room.out = state == "down"
		if !room.out {
			if err := room.acquaint(w.rooms); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// Heal makes all lines pass everything at once, and puts every plug in.
func (w *Wires) Heal() {
	w.t.Helper()
	for _, l := range w.lines {
		l.mu.Lock()
		l.cut, l.is = false, Behaviour{}
		l.mu.Unlock()
	}
	for _, room := range w.rooms {
		if room.out {
			w.link(&Node{Name: room.node}, "up")
		}
	}
}
