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
	began   time.Time // of this life, by the node's clock

	meta   metaDisk
	server *server
	// view is what the node shows of the catalog; it stays while the node is down.
	view *catalog.State
	// entered: the view shows all that was committed when this life began.
	entered  bool
	gone     map[protocol.NodeID]bool // whom this node sees as gone
	broken   map[protocol.NodeID]bool // to whom its link has broken
	wishes   *catalog.Wishes
	carrying bool // wishes are on their way
	// heard are streams as fences brought them, while that is newer than the view;
	// deleted are those that the view has given up in this life.
	heard   map[chunk.Incarnation]*catalog.Stream
	deleted map[chunk.Incarnation]bool

	known map[chunk.Incarnation]*replicaGhost
	// given is what was known of replicas that this node has given up.
	given    map[chunk.Incarnation]*replicaGhost
	scrubber *segstore.Scrubber
	fuseFile string // the fuse counts only changes of files with this in their names
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
	n.began = clock{n, n.life}.Now()
	n.entered, n.carrying = false, false
	n.gone, n.broken = map[protocol.NodeID]bool{}, map[protocol.NodeID]bool{}
	n.wishes = catalog.NewWishes(n.id)
	n.heard, n.deleted = map[chunk.Incarnation]*catalog.Stream{}, map[chunk.Incarnation]bool{}
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
			if n.lives(life) {
				n.ended(inc, e, heir)
			}
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
	for _, l := range w.links {
		for i := range l.ends {
			if l.ends[i] == n && !l.up {
				n.unlinked(l, l.ends[1-i], firstPatience)
			}
		}
	}
	n.openServer()
	w.meta.enter(n)
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
	n.repl, n.store, n.scrubber, n.ready, n.server = nil, nil, nil, nil, nil
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

// follow begins, once the node is entered, to keep its replicas equal to those
// that the catalog places here; and puts away what was given up while it was
// down. A journal that was made anew has forgotten what the node promised.
func (n *node) follow() {
	if n.entered {
		return
	}
	n.entered = true
	n.w.log("entered", "%s at %d", n.id, n.server.applied)
	var waits []chunk.Incarnation
	for s := range n.view.Streams() {
		if _, holds := s.Replica(n.id); !holds || !n.store.Journal().Made() || n.meta.fresh {
			continue
		}
		if _, known := n.store.Journal().State(s.Incarnation); !known {
			waits = append(waits, s.Incarnation)
		}
	}
	n.meta.fresh = false
	life := n.life
	for _, i := range waits {
		n.store.Journal().Change(i, func(s *segstore.StreamState) { s.Aside = segstore.AsideJournalLost }, func(error) {
			n.w.after(1, func() {
				if n.lives(life) {
					n.reconcileStream(n.w.streamOf(i))
				}
			})
		})
	}
	for _, d := range n.store.List() {
		s := n.w.streamOf(d.Incarnation)
		if _, known := n.stream(s.inc); known {
			continue
		}
		n.w.reach(markQuarantine)
		n.w.log("put away", "%s s%d", n.id, s.index)
		if err := n.store.Quarantine(s.inc); err != nil {
			n.later(s)
		}
	}
	for _, s := range n.w.streams {
		if !slices.Contains(waits, s.inc) {
			n.reconcileStream(s)
		}
		if n.dead {
			n.die()
			return
		}
	}
}

// changed hears of changes that the view shows.
func (n *node) changed(changes []catalog.Change) {
	if r := n.w.meta.reign; r != nil && r.n == n {
		r.changed(changes)
	}
	if n.wishes.Changed(changes) {
		n.carrySoon()
	}
	for _, c := range changes {
		if c.Kind != catalog.StreamChanged {
			continue
		}
		if c.Stream == nil {
			delete(n.heard, c.Before.Incarnation)
			n.deleted[c.Before.Incarnation] = true
			n.reconcileStream(n.w.streamOf(c.Before.Incarnation))
		} else {
			if !newer(n.heard[c.Stream.Incarnation], c.Stream) {
				delete(n.heard, c.Stream.Incarnation)
			}
			n.reconcileStream(n.w.streamOf(c.Stream.Incarnation))
		}
		if n.dead {
			return
		}
	}
}

// newer tells whether a is a later state of the stream than b.
func newer(a, b *catalog.Stream) bool {
	return a != nil && (b == nil || a.Epoch > b.Epoch || a.ConfigVersion > b.ConfigVersion)
}

// stream is the newest that is known here of a stream.
func (n *node) stream(i chunk.Incarnation) (*catalog.Stream, bool) {
	s, _ := n.view.Incarnation(i)
	if h := n.heard[i]; newer(h, s) {
		s = h
	}
	return s, s != nil
}

var (
	errNotEntered = errors.New("the node does not know its membership yet")
	errNotHere    = errors.New("the stream has no replica here")
)

// openFor starts a replica that a fence asks for, of the newest known state of
// the stream, which the fence may have brought.
func (n *node) openFor(s *stream, brought *catalog.Stream) error {
	if !n.entered {
		return errNotEntered
	}
	known, ok := n.stream(s.inc)
	if !ok || newer(brought, known) {
		if n.deleted[s.inc] {
			return catalog.ErrStreamMissing
		}
		n.w.reach(markFenceAhead)
		n.heard[s.inc], known = brought, brought
		if !ok && len(n.heard) == 1 {
			n.w.reach(markHeardAlone)
			n.lookUpHeard()
		}
	}
	if _, holds := known.Replica(n.id); !holds {
		return errNotHere
	}
	n.startReplica(s, known)
	return nil
}

// heardPatience is how long a stream that a fence brought may be unknown to the
// view before it is looked up.
const heardPatience = second

// lookUpHeard gives up streams that a fence brought and that are not in the
// catalog any more. A snapshot in place of entries tells nothing of a stream that
// came and went between.
func (n *node) lookUpHeard() {
	life := n.life
	on := func() bool { return n.lives(life) }
	n.w.after(heardPatience, func() {
		leader := n.w.raft.leader
		switch {
		case !on() || len(n.heard) == 0:
		case leader == nil || !n.w.raft.leads(leader) || !n.w.reaches(n, leader):
			n.lookUpHeard()
		default:
			n.w.meta.seen(n, len(n.w.raft.log), on, func() {
				for _, s := range n.w.streams {
					if _, known := n.view.Incarnation(s.inc); n.heard[s.inc] != nil && !known {
						delete(n.heard, s.inc)
						n.deleted[s.inc] = true
						n.reconcileStream(s)
					}
				}
				if len(n.heard) > 0 {
					n.lookUpHeard()
				}
			})
		}
	})
}

// reconcileAll looks at all streams.
func (n *node) reconcileAll() {
	for _, s := range n.w.streams {
		n.reconcileStream(s)
		if n.dead {
			n.die()
			return
		}
	}
}

func (n *node) has(inc chunk.Incarnation) bool { return n.store.Has(inc) }

// reconcileStream makes this node's replica of a stream what it should be.
func (n *node) reconcileStream(s *stream) {
	if !n.entered || n.dead {
		return
	}
	c, ok := n.stream(s.inc)
	if ok {
		if _, holds := c.Replica(n.id); holds {
			n.startReplica(s, c)
			return
		}
	}
	if _, open := n.repl.Replica(s.inc); open || n.has(s.inc) {
		n.w.log("remove", "%s s%d", n.id, s.index)
		n.remove(s)
	}
}

// found is what is on this node's disk of a replica.
func (n *node) found(i chunk.Incarnation) catalog.Found {
	state, remembered := n.store.Journal().State(i)
	return catalog.Found{
		Files: n.has(i), Remembered: remembered, Registration: protocol.Registration(state.Registration),
		Forgotten: state.Aside == segstore.AsideJournalLost,
	}
}

// startReplica has a stream's replica run here, and tells it what the metadata
// says.
func (n *node) startReplica(s *stream, c *catalog.Stream) {
	if _, runs := n.repl.Replica(s.inc); !runs {
		entry, _ := c.Replica(n.id)
		switch c.Residence(n.id, n.found(s.inc)) {
		case catalog.OpenFiles:
			n.open(s, false)
		case catalog.MakeEmpty:
			n.open(s, true)
		case catalog.JoinEmpty:
			n.join(s, c.Epoch, entry.Registration)
		case catalog.EnterAnew:
			n.w.log("anew", "%s s%d", n.id, s.index)
			n.wishFor(s.inc, protocol.Proposal{Kind: protocol.ProposeRegister, Node: n.id})
		case catalog.LostAlone:
			n.w.violate("D1", "%s has lost the only replica of %s", n.id, s)
		}
	}
	if r, runs := n.repl.Replica(s.inc); runs && !n.dead {
		n.tell(s, c, r)
	}
}

// tell brings a replica its entry, if that is newer than the one it knows itself
// by, and the configuration. An epoch that an earlier run led is over (A5).
func (n *node) tell(s *stream, c *catalog.Stream, r *replication.Replica) {
	switch c.Entry(n.id, n.found(s.inc)) {
	case catalog.EntryIsNew:
		entry, _ := c.Replica(n.id)
		n.repl.BeginRegistered(s.inc, c.Epoch, entry.Registration, func(error) {})
	case catalog.EntryOfOther:
		n.wishFor(s.inc, protocol.Proposal{Kind: protocol.ProposeRegister, Node: n.id})
	case catalog.EntryKnown:
	}
	n.repl.BeginConfigure(s.inc, c.Configuration(), func(error) {})
	if c.Leader.Node == n.id && c.Leader.Run != r.Standing().Run {
		n.ended(s.inc, c.Epoch, "")
	}
}

// registered hears that the metadata has entered a replica of this node anew.
func (n *node) registered(s *stream, e chunk.Epoch, as protocol.Registration) {
	if _, runs := n.repl.Replica(s.inc); runs {
		n.repl.BeginRegistered(s.inc, e, as, func(error) {})
		return
	}
	n.reconcileStream(s)
}

func (n *node) remove(s *stream) {
	if g := n.known[s.inc]; g != nil {
		n.given[s.inc] = g
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
					n.reconcileAll()
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
	delete(n.given, s.inc)
	r, err := n.repl.Join(n.spec(s), e, as)
	n.opened(s, r, err)
}

// propose takes a replica's wish.
func (n *node) propose(life int, inc chunk.Incarnation, p protocol.Proposal) {
	if !n.lives(life) {
		return
	}
	n.w.log("propose", "%s s%d %s %s e%d v%d", n.id, n.w.streamOf(inc).index, p.Kind, p.Node, p.Epoch, p.Config)
	n.wishFor(inc, p)
}

// lost hears that a run ended; after damage or an alarm it says why.
func (n *node) lost(life int, inc chunk.Incarnation, err error) {
	if !n.lives(life) {
		return
	}
	s := n.w.streamOf(inc)
	n.w.log("lost", "%s s%d", n.id, s.index)
	n.w.observeCommit(n, s) // of the same turn
	if g := n.known[inc]; g != nil {
		g.endRun()
		g.torn = true // what failed may have been a cut
	}
	if errors.Is(err, replication.ErrUnavailable) {
		n.w.violate("alarm", "%s stops %s: %v", n.id, s, err)
	} else if n.w.opts.diskEvery == 0 && n.w.rotten != n {
		n.w.violate("disk", "%s loses a run of %s without a fault: %v", n.id, s, err)
	}
	if c, ok := n.stream(inc); ok && c.Leader.Node == n.id {
		n.ended(inc, c.Epoch, "")
	}
	// The view may show only later that the run led: it is looked at once more.
	n.w.after(second, func() {
		if n.lives(life) {
			n.reconcileStream(s)
		}
	})
}
