package node

import (
	"sync"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/replication"
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
