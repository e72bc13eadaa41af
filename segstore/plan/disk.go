package plan

// DiskLimits are the free bytes of a disk below which a node changes what it
// does. Invariant: Floor <= Alarm <= Low; all zero: the disk is not watched.
type DiskLimits struct {
	// Low: retention runs, so that publishers need not be stopped.
	Low uint64
	// Alarm: publishers are stopped, until there are Low bytes again.
	Alarm uint64
	// Floor: no message is written any more, whoever sent it, so that metadata,
	// truncation and deletion always have room.
	Floor uint64
}

// DiskRule says how limits follow from the size of a disk.
type DiskRule struct {
	FreeMin        int64 // bytes
	FreeMinPercent int   // of the disk; the higher of the two is DiskLimits.Alarm
	LowPercent     int   // of DiskLimits.Alarm, from 100 on
	FloorPercent   int   // of DiskLimits.Alarm, up to 100
}

// Limits returns the limits for a disk of so many bytes.
func (r DiskRule) Limits(total uint64) DiskLimits {
	alarm := max(uint64(max(r.FreeMin, 0)), share(total, r.FreeMinPercent))
	return DiskLimits{
		Low:   max(share(alarm, r.LowPercent), alarm),
		Alarm: alarm,
		Floor: min(share(alarm, r.FloorPercent), alarm),
	}
}

// share is percent of n; it does not overflow.
func share(n uint64, percent int) uint64 {
	p := uint64(max(percent, 0))
	return n/100*p + n%100*p/100
}

// DiskLevel is how full a disk is.
type DiskLevel uint8

// The levels.
const (
	// DiskRoomy: there is enough room.
	DiskRoomy DiskLevel = iota
	// DiskLow: retention should make some.
	DiskLow
	// DiskAlarm: publishers are stopped.
	DiskAlarm
)

func (l DiskLevel) String() string { return [...]string{"ok", "low", "alarm"}[l] }

// Next returns the level that follows from a measurement. Between Alarm and Low
// an alarm stays, lest publishers be stopped and let go all the time. retained
// tells that retention has run since the disk became low: publishers are not
// stopped before, if they leave it the time, that is above the floor.
func (d DiskLimits) Next(level DiskLevel, free uint64, retained bool) DiskLevel {
	switch {
	case free >= d.Low:
		return DiskRoomy
	case free < d.Alarm && (retained || free < d.Floor):
		return DiskAlarm
	case level == DiskAlarm:
		return DiskAlarm
	}
	return DiskLow
}
