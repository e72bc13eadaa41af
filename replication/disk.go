package replication

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/segstore"
)

// DiskConfig has a node watch the free space of its disk. The zero value
// watches nothing.
type DiskConfig struct {
	Rule segstore.DiskRule
	// Every is the time between two measurements: 1 s.
	Every time.Duration
	// Changed hears of each new level. It is called by one goroutine at a time.
	Changed func(DiskStatus)
}

// DiskStatus is the last measurement of the disk and what it came to.
type DiskStatus struct {
	Level       segstore.DiskLevel
	Since       time.Time // when the level was reached
	Free, Total uint64    // bytes
	Limits      segstore.DiskLimits
	Err         error // of the last measurement; Free is then of an older one
}

const diskEveryDefault = time.Second

// diskWatch measures the disk from time to time. When it is low, retention runs
// in all replicas first; only if that does not help are publishers stopped. Below
// the floor no batch becomes a chunk any more: between two measurements the bytes
// that are written are counted.
type diskWatch struct {
	node    *Node
	rule    segstore.DiskRule
	every   time.Duration
	changed func(DiskStatus)
	watched bool

	// room is how many bytes may be written before the floor; short tells that
	// somebody found none left.
	room  atomic.Int64
	short atomic.Bool

	checking sync.Mutex // held by the goroutine that measures

	mu     sync.Mutex // guards the fields below
	status DiskStatus
	round  diskRound
	closed bool
	stop   func() bool // of the timer
}

// diskRound is one run of retention over all replicas for a low disk.
type diskRound struct {
	began   time.Time // zero: none since the disk is low
	waiting int       // replicas that have not had their turn
}

func newDiskWatch(n *Node, c DiskConfig) *diskWatch {
	d := &diskWatch{node: n, rule: c.Rule, every: c.Every, changed: c.Changed}
	if d.every <= 0 {
		d.every = diskEveryDefault
	}
	d.watched = c.Rule.FreeMin > 0 || c.Rule.FreeMinPercent > 0
	if d.watched {
		d.status.Since = n.clock.Now()
		d.room.Store(1) // until it was measured
		d.check()
	}
	return d
}

// Disk returns how the node's disk is; ok is false if it is not watched.
func (n *Node) Disk() (status DiskStatus, ok bool) {
	d := n.disk
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.status, d.watched
}

// full tells whether no message may be written. Whoever is told so is woken when
// that is over.
func (d *diskWatch) full() bool {
	if !d.watched || d.room.Load() > 0 {
		return false
	}
	if !d.short.Swap(true) {
		d.arm(0) // what is counted since the last measurement may be wrong
	}
	return true
}

// wrote counts bytes that a chunk took.
func (d *diskWatch) wrote(bytes int) {
	if d.watched {
		d.room.Add(-int64(bytes))
	}
}

// check measures, and does what follows.
func (d *diskWatch) check() {
	d.checking.Lock()
	defer d.checking.Unlock()
	free, err := d.node.store.FreeSpace()
	var total uint64
	if err == nil {
		total, err = d.node.store.Capacity()
	}
	now := d.node.clock.Now()

	d.mu.Lock()
	if d.closed { // the disk has hung, and the node has not waited
		d.mu.Unlock()
		return
	}
	before := d.status.Level
	d.status.Err = err
	begin := false
	if err == nil {
		d.status.Free, d.status.Total, d.status.Limits = free, total, d.rule.Limits(total)
		begin = d.judge(now)
	}
	status := d.status
	d.mu.Unlock()

	if err == nil {
		d.refill(&status)
	}
	if status.Level != before && d.changed != nil {
		d.changed(status)
	}
	d.arm(d.every)
	if begin {
		d.retain() // which may have a measurement come earlier
	}
}

// judge finds the level, and tells whether retention should run. It is called
// with mu held.
func (d *diskWatch) judge(now time.Time) (begin bool) {
	s := &d.status
	// A disk that hangs must not keep publishers going: after the time between
	// two measurements a round counts as over.
	retained := !d.round.began.IsZero() && (d.round.waiting == 0 || now.Sub(d.round.began) >= d.every)
	level := s.Limits.Next(s.Level, s.Free, retained)
	if level != s.Level {
		s.Level, s.Since = level, now
	}
	if level == segstore.DiskRoomy {
		d.round.began = time.Time{}
		return false
	}
	// At the start there are no replicas yet, and no publishers.
	begin = d.node.hasReplicas() && (d.round.began.IsZero() || now.Sub(d.round.began) >= d.node.retainEvery)
	if begin {
		d.round.began = now
	}
	return begin
}

// refill counts anew how much may be written, and wakes those who found that
// nothing may.
func (d *diskWatch) refill(s *DiskStatus) {
	room := max(int64(min(s.Free, 1<<62))-int64(min(s.Limits.Floor, 1<<62)), 0)
	d.room.Store(room)
	if room > 0 && d.short.Swap(false) {
		d.node.Replicas((*Replica).wake)
	}
}

// retain has every replica give up what its bounds allow, and compaction look.
// When all had their turn, the disk is measured again.
func (d *diskWatch) retain() {
	var list []*Replica
	d.node.Replicas(func(r *Replica) { list = append(list, r) })
	d.mu.Lock()
	d.round.waiting = len(list) + 1
	d.mu.Unlock()
	for _, r := range list {
		r.Retention(RetentionQuery{Run: true}, func(*RetentionReport, error) { d.retained() })
	}
	d.retained() // the one more: not before all were asked
	d.node.compaction.arm(0)
}

// retained counts a replica that had its turn.
func (d *diskWatch) retained() {
	d.mu.Lock()
	d.round.waiting--
	last := d.round.waiting == 0
	d.mu.Unlock()
	if last {
		d.arm(0)
	}
}

// arm has the next measurement come after a while, in place of the one that was
// to come.
func (d *diskWatch) arm(wait time.Duration) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return
	}
	if d.stop != nil {
		d.stop()
	}
	d.stop = d.node.clock.AfterFunc(wait, d.check)
}

func (d *diskWatch) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closed = true
	if d.stop != nil {
		d.stop()
	}
}
