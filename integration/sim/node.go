package sim

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// node is one process with its disk. What it left to happen in an earlier life
// does not happen.
type node struct {
	w     *World
	index int
	id    protocol.NodeID

	mem  *vfs.Mem
	disk *vfs.Faulty
	// rules are the faults that it may still have.
	rules []*vfs.Rule
	up    bool
	life  int
	// dead: the power failed inside of the step that is being taken; what the
	// step still puts out is lost, and the disk is left.
	dead bool
	left *vfs.Mem
	fuse int // changes on the disk until then; 0: none planned

	store   *segstore.Store
	repl    *replication.Node
	ready   []*replication.Replica
	turning bool
	skew    time.Duration
	view    *catalog.State
	settled map[chunk.Incarnation]settlement
	known   map[chunk.Incarnation]*replicaGhost
	asked   map[chunk.Incarnation]bool // a registration is on its way
	// gone is what was known of replicas that this node has given up.
	gone       map[chunk.Incarnation]*replicaGhost
	scrubber   *segstore.Scrubber
	reconciled bool   // what lay here at the start of this life was looked at
	fuseFile   string // the fuse counts only changes of files with this in their names
}

type settlement struct {
	epoch   chunk.Epoch
	version protocol.ConfigVersion
}

func (w *World) node(id protocol.NodeID) *node { return w.nodes[int(id[1]-'1')] }

// lives tells whether what a life began may still do something.
func (n *node) lives(life int) bool { return n.up && n.life == life && !n.dead }

// Now and AfterFunc implement replication.Clock for one life.
type clock struct {
	n    *node
	life int
}

func (c clock) Now() time.Time {
	return epochOfTime.Add(time.Duration(c.n.w.now)*time.Microsecond + c.n.skew)
}

func (c clock) AfterFunc(d time.Duration, f func()) func() bool {
	waiting := true
	c.n.w.after(d.Microseconds()+1, func() {
		if waiting && c.n.lives(c.life) {
			waiting = false
			f()
		}
	})
	return func() bool {
		was := waiting
		waiting = false
		return was
	}
}

// scheduler runs the turns of one life, each as an event.
type scheduler struct {
	n    *node
	life int
}

func (s scheduler) Ready(r *replication.Replica) {
	s.n.ready = append(s.n.ready, r)
	s.n.schedule()
}

func (s scheduler) Close() {}

func (n *node) schedule() {
	if n.turning || len(n.ready) == 0 {
		return
	}
	n.turning = true
	life := n.life
	n.w.after(n.w.between(1, 100), func() {
		if !n.lives(life) {
			return
		}
		n.turning = false
		n.turn()
		n.schedule()
	})
}

// turn lets one replica take its turn, and looks at what came of it.
func (n *node) turn() {
	r := n.ready[0]
	n.ready = slices.Delete(n.ready, 0, 1)
	n.w.stats.Turns++
	if r.Turn() {
		n.ready = append(n.ready, r)
	}
	if n.dead {
		n.die()
		return
	}
	n.w.checkReplica(n, r)
}

// start opens the disk and all replicas that are on it.
func (n *node) start() {
	w := n.w
	n.life++
	n.up, n.dead, n.turning, n.fuse = true, false, false, 0
	n.ready = nil
	n.settled = map[chunk.Incarnation]settlement{}
	n.asked = map[chunk.Incarnation]bool{}
	life := n.life
	w.log("start", "%s life %d", n.id, n.life)
	w.stats.Starts++
	n.mem.Observe(n.burn)
	n.disk, n.rules = vfs.NewFaulty(n.mem), nil
	syncer := vfs.NewInlineSyncer()
	syncer.Defer(func(sync func()) {
		w.after(w.between(20, w.opts.syncMax), func() {
			if n.lives(life) {
				sync()
				if n.dead {
					n.die()
				}
			}
		})
	})
	store, err := segstore.NewStore(segstore.Options{FS: n.disk, Dir: "d", Syncer: syncer, CacheBytes: w.opts.cache, HandlesMax: 8})
	if n.dead {
		n.die()
		return
	}
	if err != nil {
		w.violate("I25", "%s does not start: %v", n.id, err)
		return
	}
	n.store = store
	n.repl = replication.NewNode(replication.Config{
		ID: n.id, Store: store, Clock: clock{n, life}, Scheduler: scheduler{n, life}, Transport: transport{n, life},
		Limits: w.opts.limits, RetainEvery: 500 * time.Millisecond, CompactBytesPerSecond: w.opts.compactRate,
		RunID:   func() protocol.RunID { return protocol.RunID(w.rng.Uint64()) },
		Propose: func(inc chunk.Incarnation, p protocol.Proposal) { n.propose(life, inc, p) },
		Lost:    func(inc chunk.Incarnation, err error) { n.lost(life, inc, err) },
		Yield: func(inc chunk.Incarnation, e chunk.Epoch, heir protocol.NodeID) {
			w.meta.handedOver(inc, e, heir)
		},
	})
	n.scrubber = store.NewScrubber(segstore.ScrubOptions{Period: 2 * time.Second})
	n.housekeep(life)
	for _, l := range w.links {
		if l.ends[0] == n || l.ends[1] == n {
			number := l.number
			w.after(w.between(0, 20*millisecond), func() { l.connect(number) })
		}
	}
	if n.view == nil {
		n.view = w.meta.state
	}
	n.reconciled = false
	n.reconcile()
	n.reconciled = true
}

// housekeep lets scrubber and repair work now and then.
func (n *node) housekeep(life int) {
	w := n.w
	w.after(w.between(10*millisecond, 100*millisecond), func() {
		if !n.lives(life) {
			return
		}
		if w.rotten == n && !n.dead {
			n.scrubber.Step(clock{n, life}.Now())
			n.mend()
		}
		if n.dead {
			n.die()
			return
		}
		n.housekeep(life)
	})
}

// scrubbed reads all files through and tells whether any was found damaged, also
// of those that are not sealed yet and can't be repaired before they are.
func (n *node) scrubbed() bool {
	now := clock{n, n.life}.Now()
	for until := n.scrubber.Stats().Rounds + 2; n.scrubber.Stats().Rounds < until; {
		now = now.Add(100 * time.Millisecond)
		n.scrubber.Step(now)
		if n.scrubber.Stats().RoundBytes == 0 {
			break // no log is open
		}
	}
	return n.scrubber.Stats().Damaged > 0
}

// mend repairs damaged segments from other replicas, as a node does that has
// found some.
func (n *node) mend() {
	for _, s := range n.w.living() {
		_, log, p := n.replica(s)
		if p == nil || log.Err() != nil {
			continue
		}
		for _, name := range log.Damaged() {
			repair, err := log.Repair(name)
			if err != nil {
				continue
			}
			if err := repair.Fetch(context.Background(), source{n, s}); err != nil || n.dead {
				repair.Abandon()
				continue
			}
			if err := log.InstallRepair(repair); err == nil {
				n.w.log("mend", "%s s%d %s", n.id, s.index, name)
				n.w.reach(markRotRepaired)
			}
		}
	}
}

// source is where a node finds good chunks: the first other replica that gives
// them.
type source struct {
	n *node
	s *stream
}

func (x source) ReadRange(_ context.Context, _ chunk.Incarnation, from, last chunk.LSN, most int) ([]byte, chunk.LSN, error) {
	err := segstore.ErrMissing
	for _, other := range x.n.w.nodes {
		_, log, p := other.replica(x.s)
		if other == x.n || p == nil {
			continue
		}
		var b []byte
		var next chunk.LSN
		if b, next, err = log.ReadRange(from, last, most); err == nil {
			return b, next, nil
		}
	}
	return nil, 0, err
}

// burn counts the changes on the disk down to the planned power loss.
func (n *node) burn(_ vfs.Op, name string) {
	if n.fuse == 0 || n.dead || !strings.Contains(name, n.fuseFile) {
		return
	}
	if n.fuse--; n.fuse == 0 {
		if strings.Contains(name, "MANIFEST") {
			n.w.reach(markTornSwap)
		}
		n.blow()
	}
}

// blow takes the disk as the power loss leaves it; from now on nothing of the
// step that is being taken is seen by anybody.
func (n *node) blow() {
	n.dead = true
	n.left = n.mem.Crash(n.w.opts.policy, n.w.choose)
}

// die ends the life whose power failed.
func (n *node) die() {
	w := n.w
	w.stats.PowerLosses++
	w.log("power", "%s fails", n.id)
	n.mem = n.left
	n.left = nil
	for _, g := range n.known {
		g.torn = true
	}
	n.down()
}

// crash ends the process; what it wrote stays.
func (n *node) crash() {
	w := n.w
	w.stats.Crashes++
	w.log("crash", "%s", n.id)
	n.mem = n.mem.Crash(vfs.Policy{Writes: vfs.KeepAll, Names: vfs.KeepAll}, w.choose)
	n.down()
}

// down cleans up behind a life and plans the next.
func (n *node) down() {
	w := n.w
	n.up, n.dead, n.fuse = false, false, 0
	n.repl, n.store, n.scrubber, n.ready = nil, nil, nil, nil
	for _, l := range w.links {
		if l.ends[0] == n || l.ends[1] == n {
			l.reset()
		}
	}
	for _, s := range w.streams {
		if g := n.known[s.inc]; g != nil {
			g.endRun()
		}
	}
	w.meta.nodeDown(n)
	pause := w.between(10*millisecond, w.opts.downMax)
	if w.calm {
		pause = 10 * millisecond
	}
	life := n.life
	w.after(pause, func() {
		if !n.up && n.life == life {
			n.start()
		}
	})
}

// reconcile opens, tells and removes replicas by the node's view of the
// metadata, as the process around a node does.
func (n *node) reconcile() {
	for _, s := range n.w.streams {
		n.reconcileStream(s)
		if n.dead {
			n.die()
			return
		}
	}
}

func (n *node) has(inc chunk.Incarnation) bool {
	return slices.ContainsFunc(n.store.List(), func(s segstore.Stream) bool { return s.Incarnation == inc })
}

func (n *node) reconcileStream(s *stream) {
	c, ok := n.view.Incarnation(s.inc)
	if !ok {
		n.putAway(s)
		return
	}
	entry, member := c.Replica(n.id)
	_, open := n.repl.Replica(s.inc)
	switch {
	case !member && (open || n.has(s.inc)):
		n.w.log("remove", "%s s%d", n.id, s.index)
		n.remove(s)
		return
	case !member:
		return
	case !open && n.has(s.inc):
		if !n.open(s, false) {
			return
		}
	case !open && entry.Registration > 0 && !entry.Voter:
		n.join(s, c.Epoch, entry.Registration)
	case !open && c.Epoch > 1, !open && c.Led():
		n.register(s) // it should be here, and is not
		return
	case !open:
		return // the fence makes it
	}
	if _, ok := n.repl.Replica(s.inc); !ok {
		return
	}
	n.repl.BeginConfigure(s.inc, c.Configuration(), func(error) {})
	kept, _ := n.store.Journal().State(s.inc)
	if registered := protocol.Registration(kept.Registration); registered != protocol.Unregistered && registered < entry.Registration {
		n.repl.BeginRegistered(s.inc, c.Epoch, entry.Registration, func(error) {})
	}
	for _, x := range c.Replicas {
		if x.Voter && x.Leaving && c.Leader.Node == n.id {
			at := n.settled[s.inc]
			n.w.meta.wish(n, s.inc, protocol.Proposal{Kind: protocol.ProposeSettled, Node: n.id, Epoch: at.epoch, Config: at.version})
			break
		}
	}
}

// putAway deals with what is here of a stream that the metadata does not know: it
// was deleted, since nothing comes here that the node's view has not shown. At a
// start, where that is not sure, it is only moved out of the way (I29).
func (n *node) putAway(s *stream) {
	_, open := n.repl.Replica(s.inc)
	switch {
	case !open && !n.has(s.inc):
	case !open && !n.reconciled:
		n.w.reach(markQuarantine)
		n.w.log("put away", "%s s%d", n.id, s.index)
		if err := n.store.Quarantine(s.inc); err != nil {
			n.later(s)
		}
	default:
		n.w.log("delete", "%s s%d", n.id, s.index)
		n.remove(s)
	}
}

func (n *node) remove(s *stream) {
	if g := n.known[s.inc]; g != nil {
		n.gone[s.inc] = g
	}
	delete(n.known, s.inc)
	n.repl.BeginRemove(s.inc, func(err error) {
		if err != nil {
			n.later(s)
		}
	})
}

// later has a stream looked at again.
func (n *node) later(s *stream) {
	life := n.life
	n.w.after(100*millisecond, func() {
		if n.lives(life) {
			if n.reconcileStream(s); n.dead {
				n.die()
			}
		}
	})
}

func (n *node) spec(s *stream) replication.Stream {
	return replication.Stream{Incarnation: s.inc, Name: s.name, Settings: s.settings.Settings}
}

// open starts a replica.
func (n *node) open(s *stream, isNew bool) bool {
	r, err := n.repl.Open(n.spec(s), isNew)
	return n.opened(s, r, err)
}

func (n *node) opened(s *stream, r *replication.Replica, err error) bool {
	if n.dead {
		return false
	}
	if err != nil {
		if n.w.opts.diskEvery > 0 || errors.Is(err, segstore.ErrMissing) {
			// The disk failed just now; the process would be started again.
			n.w.log("open", "%s s%d: failed", n.id, s.index)
			life := n.life
			n.w.after(100*millisecond, func() {
				if n.lives(life) {
					n.reconcile()
				}
			})
			return false
		}
		n.w.violate("I25", "%s does not open %s: %v", n.id, s, err)
		return false
	}
	n.w.checkOpened(n, s, r)
	return true
}

// join makes a learner's replica, or an emptied one's.
func (n *node) join(s *stream, e chunk.Epoch, as protocol.Registration) {
	n.w.log("join", "%s s%d as %d at e%d", n.id, s.index, as, e)
	delete(n.known, s.inc)
	delete(n.gone, s.inc)
	r, err := n.repl.Join(n.spec(s), e, as)
	if n.opened(s, r, err) {
		n.repl.BeginConfigure(s.inc, n.configuration(s), func(error) {})
	}
}

func (n *node) configuration(s *stream) protocol.Configuration {
	c, _ := n.view.Incarnation(s.inc)
	return c.Configuration()
}

// register has the metadata enter a replica anew that the disk does not have.
func (n *node) register(s *stream) {
	if n.asked[s.inc] {
		return
	}
	n.asked[s.inc] = true
	n.w.meta.register(n, s)
}

// propose takes a replica's wish.
func (n *node) propose(life int, inc chunk.Incarnation, p protocol.Proposal) {
	if !n.lives(life) {
		return
	}
	n.w.log("propose", "%s s%d %s %s e%d v%d", n.id, n.w.streamOf(inc).index, p.Kind, p.Node, p.Epoch, p.Config)
	if p.Kind == protocol.ProposeSettled {
		n.settled[inc] = settlement{p.Epoch, p.Config}
	}
	n.w.meta.wish(n, inc, p)
}

// lost hears that a run ended; after damage or an alarm it says why.
func (n *node) lost(life int, inc chunk.Incarnation, err error) {
	if !n.lives(life) {
		return
	}
	s := n.w.streamOf(inc)
	n.w.log("lost", "%s s%d", n.id, s.index)
	if g := n.known[inc]; g != nil {
		g.endRun()
		g.torn = true // what failed may have been a cut
	}
	if errors.Is(err, replication.ErrUnavailable) {
		n.w.violate("alarm", "%s stops %s: %v", n.id, s, err)
	} else if n.w.opts.diskEvery == 0 && n.w.rotten != n {
		n.w.violate("disk", "%s loses a run of %s without a fault: %v", n.id, s, err)
	}
	n.w.meta.leaderLost(n, inc)
}
