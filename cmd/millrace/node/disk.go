package node

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
)

// diskAlarm stops publishers for a low disk. The disk is watched before there is
// a broker.
type diskAlarm struct {
	mu     sync.Mutex // guards all below
	on     bool
	broker *broker.Broker
}

// alarmReason is the alarm's name for the broker.
const alarmReason = "disk"

// set tells whether the alarm was on.
func (a *diskAlarm) set(on bool) (was bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was, a.on = a.on, on
	if a.broker != nil {
		a.broker.SetAlarm(alarmReason, on)
	}
	return was
}

func (a *diskAlarm) attach(b *broker.Broker) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.broker = b
	b.SetAlarm(alarmReason, a.on)
}

// diskChanged follows the level of the disk: one line each way.
func (n *Node) diskChanged(s replication.DiskStatus) {
	stopped := n.alarm.set(s.Level == segstore.DiskAlarm)
	n.metadata.tell(func(c *cluster.Cluster) { c.SetLow(s.Level == segstore.DiskAlarm) })
	figures := []any{
		"free", humanize.IBytes(s.Free), "alarm_below", humanize.IBytes(s.Limits.Alarm), "low_below", humanize.IBytes(s.Limits.Low),
		"settings", "disk.free_min, disk.free_min_percent, disk.low_water_percent",
	}
	switch {
	case s.Level == segstore.DiskAlarm:
		n.log.Error("disk alarm: publishers are stopped; readers and deletions go on", figures...)
	case s.Level == segstore.DiskLow:
		n.log.Warn("the disk is getting low: retention runs now", figures...)
	case stopped:
		n.log.Info("disk alarm is over: publishers go on", figures...)
	default:
		n.log.Info("the disk has room again", figures...)
	}
}

// lowDisks are the other nodes whose disks stop publishers, for the replicas that
// are led here. A turn asks for every voter: nothing is asked where none is low.
type lowDisks struct {
	low atomic.Pointer[map[protocol.NodeID]bool] // nil: none
	up  func(protocol.NodeID) bool               // set before low
}

func (l *lowDisks) neighbour(node protocol.NodeID) replication.Neighbour {
	low := l.low.Load()
	switch {
	case low == nil:
		return replication.NeighbourWell
	case !l.up(node):
		return replication.NeighbourGone
	case (*low)[node]:
		return replication.NeighbourLow
	}
	return replication.NeighbourWell
}

// lowChanged hears which nodes' disks are low now.
func (n *Node) lowChanged() {
	n.metadata.tell(func(c *cluster.Cluster) {
		low := c.Low()
		delete(low, c.Node()) // its own has stopped all publishers here
		if len(low) == 0 {
			n.lows.low.Store(nil)
			n.log.Info("no other node's disk is low any more")
		} else {
			n.lows.low.Store(&low)
			n.log.Warn("disks of other nodes are low: publishers of streams led here wait where no majority has room",
				"nodes", slices.Sorted(maps.Keys(low)))
		}
		n.replicas.DisksChanged()
	})
}

// diskStatus is the disk as operators see it.
func (n *Node) diskStatus() admin.Disk {
	s, watched := n.replicas.Disk()
	d := admin.Disk{
		Watched: watched, Level: s.Level.String(), FreeBytes: s.Free, TotalBytes: s.Total,
		LowBelowBytes: s.Limits.Low, AlarmBelowBytes: s.Limits.Alarm, FloorBytes: s.Limits.Floor,
	}
	if !s.Since.IsZero() {
		since := s.Since.UTC()
		d.Since = &since
	}
	if s.Err != nil {
		d.Error = s.Err.Error()
	}
	if watched && s.Err == nil {
		return d
	}
	free, err := n.store.FreeSpace()
	if err == nil {
		d.FreeBytes = free
		d.TotalBytes, err = n.store.Capacity()
	}
	if err != nil {
		d.Error = err.Error()
	}
	return d
}
