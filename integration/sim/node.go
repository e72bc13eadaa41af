package sim

import (
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
