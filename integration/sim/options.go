package sim

import (
	"time"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// options are a seed's kinds of faults and their rates: each kind is on in about
// half of the seeds, one seed in ten has none.
type options struct {
	nodes, replicas, streams, publishers, consumers int

	length int64 // microseconds of the first phase

	delayMin, delayMax int64 // of frames
	slowPerMille       int   // frames that take much longer
	resetPerMille      int   // frames that break their link
	twicePerMille      int   // frames that come twice
	latePerMille       int   // frames of a broken link that come all the same
	syncMax            int64 // a sync's longest time
	metaMax            int64 // the metadata's longest delay
	metaLossPerMille   int
	lagPerMille        int // of the times that a node would hear of commits
	midwayPerMille     int // of the commands at which the metadata's leader ends
	snapshotEvery      int // entries of raft's log

	// The mean time between two faults of a kind; 0: none of them.
	crashEvery, powerEvery, cutEvery, resetEvery, moveEvery int64
	handoverEvery, doubtEvery, diskEvery, wipeEvery         int64
	rotEvery, journalEvery, clockEvery, recreateEvery       int64
	strandEvery, drainEvery, balanceEvery, leaveEvery       int64
	replaceEvery                                            int64
	midTurnPerMille                                         int // of crashes
	downMax                                                 int64
	policy                                                  vfs.Policy

	bodyMax     int
	batchMax    int // records of a sub-batch; 0: there are none
	visitEvery  int64
	limits      protocol.Limits
	cache       int64
	compactRate int64 // bytes a second; negative: nothing is compacted
	faultless   bool
	settings    streamSettings
}

type streamSettings struct {
	replication.Settings
}

// draw draws a seed's options.
func (w *World) draw() {
	o := &w.opts
	switch d := w.rng.IntN(100); {
	case d < 55:
		o.nodes = 3
	case d < 92:
		o.nodes = 5
	default:
		o.nodes = 1
	}
	o.replicas = o.nodes
	if o.nodes == 5 && w.chance(700) {
		o.replicas = 3
	}
	o.streams = 1 + w.rng.IntN(3)
	o.publishers = 1 + w.rng.IntN(4)
	o.consumers = 1 + w.rng.IntN(3)
	o.length = w.stretch * w.between(2*second, 6*second)
	if w.chance(30) {
		o.length *= 4
	}
	o.delayMin, o.delayMax = 100*microsecond, w.between(500*microsecond, 20*millisecond)
	o.syncMax = w.between(200*microsecond, 10*millisecond)
	o.metaMax = w.between(millisecond, 50*millisecond)
	o.snapshotEvery = int(w.between(2, 30))
	o.downMax = w.between(100*millisecond, 3*second)
	o.policy = w.drawPolicy()
	o.bodyMax = 64
	if w.chance(300) {
		o.bodyMax = 12_000
	}
	// All or nothing: what a full cache drops follows from the capacity of pooled
	// buffers, which is not the same in two runs.
	o.cache = 256 << 20
	if w.chance(400) {
		o.cache = 1
	}
	o.compactRate = -1
	if w.chance(400) {
		o.compactRate = w.between(10_000, 2_000_000)
	}
	o.limits = protocol.Limits{RetryAfter: 200, TransferAfter: 1000, HoldAfter: 400}
	if w.chance(300) {
		o.limits.WindowChunks = 1 + w.rng.IntN(8)
	}
	if w.chance(200) {
		o.limits.UncommittedBytes = w.between(1000, 100_000)
	}
	o.settings.Pacing = tracking.Pacing{IntervalMin: w.between(20, 250), IntervalMax: w.between(100, 2000)}
	o.settings.Log = segstore.Config{SegmentBytes: 1, CheckpointBytes: w.between(1000, 200_000)}
	if w.chance(600) {
		o.settings.Log.ControlBytes = w.between(200, 4000)
	}
	if w.chance(400) {
		o.settings.RetainBytes = w.between(1, 300_000)
	}
	if w.chance(400) {
		o.batchMax = 2 + w.rng.IntN(6)
	}
	if w.chance(300) {
		o.settings.Log.Caps.Publishers = int(w.between(5, 8))
		o.visitEvery = w.between(20*millisecond, 200*millisecond)
	}
	if w.chance(300) {
		w.drawTracking()
	}
	if w.chance(100) {
		o.faultless = true
		return
	}
	w.drawFaults()
}

// drawTracking has much tracking written and compacted away soon, so that who was
// away meets gaps.
func (w *World) drawTracking() {
	o := &w.opts
	o.compactRate = 20_000_000
	o.consumers = int(w.between(3, 6))
	o.settings.Pacing = tracking.Pacing{IntervalMin: 20, IntervalMax: 40}
	o.settings.Log.ControlBytes = w.between(200, 800)
}

// drawSkew draws how far a node's clock is from the others'.
func (w *World) drawSkew() time.Duration {
	if w.opts.clockEvery == 0 {
		return 0
	}
	return time.Duration(w.between(-3600, 3600)) * time.Second
}

func (w *World) drawFaults() {
	o := &w.opts
	maybe := func(v *int64, low, high int64) {
		if w.chance(500) {
			*v = w.between(low, high)
		}
	}
	rate := func(v *int, most int64) {
		if w.chance(500) {
			*v = int(w.between(1, most))
		}
	}
	maybe(&o.crashEvery, 500*millisecond, 5*second)
	maybe(&o.powerEvery, 500*millisecond, 5*second)
	maybe(&o.cutEvery, 500*millisecond, 4*second)
	maybe(&o.resetEvery, 200*millisecond, 3*second)
	maybe(&o.handoverEvery, 500*millisecond, 4*second)
	maybe(&o.doubtEvery, 500*millisecond, 4*second)
	if w.chance(300) {
		o.diskEvery = w.between(500*millisecond, 4*second)
	}
	if w.chance(250) {
		o.wipeEvery = w.between(2*second, 8*second)
	}
	if w.chance(200) {
		o.rotEvery = w.between(500*millisecond, 3*second)
	}
	if w.chance(150) {
		o.journalEvery = w.between(2*second, 8*second)
	}
	if w.chance(300) {
		o.clockEvery = w.between(200*millisecond, 2*second)
	}
	if w.chance(150) {
		o.recreateEvery = w.between(500*millisecond, 3*second)
	}
	if w.chance(300) {
		o.strandEvery = w.between(500*millisecond, 3*second)
	}
	if o.replicas < o.nodes {
		maybe(&o.moveEvery, 500*millisecond, 3*second)
		maybe(&o.balanceEvery, 500*millisecond, 3*second)
		if w.chance(300) {
			o.leaveEvery = w.between(second, 4*second)
		}
	}
	if w.chance(300) {
		o.drainEvery = w.between(500*millisecond, 3*second)
	}
	rate(&o.lagPerMille, 700)
	rate(&o.midwayPerMille, 100)
	rate(&o.slowPerMille, 50)
	rate(&o.resetPerMille, 10)
	rate(&o.twicePerMille, 20)
	rate(&o.latePerMille, 500)
	rate(&o.metaLossPerMille, 100)
	rate(&o.midTurnPerMille, 1000)
	if o.nodes > 1 && w.seed%8 == 5 { // not drawn: the other seeds stay what they were
		o.replaceEvery = w.between(500*millisecond, 3*second)
	}
}

func (w *World) drawPolicy() vfs.Policy {
	keeps := []vfs.Keep{vfs.KeepNone, vfs.KeepNoneOrAll, vfs.KeepPrefix, vfs.KeepAny}
	p := vfs.Policy{Writes: keeps[w.rng.IntN(len(keeps))], Names: keeps[w.rng.IntN(len(keeps))], BordersMax: 4}
	if w.chance(500) {
		p.Tears = vfs.TearAny
	}
	p.Grown = w.chance(300)
	p.Ordered = w.chance(200)
	return p
}
