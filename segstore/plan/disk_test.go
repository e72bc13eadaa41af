package plan

import (
	"math"
	"testing"
)

func TestDiskRule_Limits(t *testing.T) {
	const gib = 1 << 30
	standard := DiskRule{FreeMin: 2 * gib, FreeMinPercent: 5, LowPercent: 125, FloorPercent: 25}
	for _, c := range []struct {
		name  string
		rule  DiskRule
		total uint64
		want  DiskLimits
	}{
		{"small disk: bytes", standard, 20 * gib, DiskLimits{5 * gib / 2, 2 * gib, gib / 2}},
		{"big disk: percent", standard, 1000 * gib, DiskLimits{125 * gib / 2, 50 * gib, 25 * gib / 2}},
		{"the biggest", standard, math.MaxUint64, DiskLimits{1152921504606846975, 922337203685477580, 230584300921369395}},
		{"not watched", DiskRule{LowPercent: 125, FloorPercent: 25}, gib, DiskLimits{}},
		{"low below alarm", DiskRule{FreeMin: 100, LowPercent: 50, FloorPercent: 200}, gib, DiskLimits{100, 100, 100}},
	} {
		if got := c.rule.Limits(c.total); got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}

func TestDiskLimits_Next(t *testing.T) {
	limits := DiskLimits{Low: 100, Alarm: 80, Floor: 20}
	for _, c := range []struct {
		level    DiskLevel
		free     uint64
		retained bool
		want     DiskLevel
	}{
		{DiskRoomy, 100, false, DiskRoomy},
		{DiskRoomy, 99, false, DiskLow},
		{DiskRoomy, 79, false, DiskLow}, // retention first
		{DiskLow, 79, false, DiskLow},
		{DiskLow, 79, true, DiskAlarm},
		{DiskLow, 80, true, DiskLow},
		{DiskRoomy, 19, false, DiskAlarm}, // there is no time for it
		{DiskAlarm, 81, true, DiskAlarm},
		{DiskAlarm, 99, true, DiskAlarm},
		{DiskAlarm, 100, true, DiskRoomy},
		{DiskAlarm, 50, false, DiskAlarm},
		{DiskLow, 100, true, DiskRoomy},
	} {
		if got := limits.Next(c.level, c.free, c.retained); got != c.want {
			t.Errorf("%s with %d bytes free, retained %v: %s, want %s", c.level, c.free, c.retained, got, c.want)
		}
	}
	if got := (DiskLimits{}).Next(DiskRoomy, 0, true); got != DiskRoomy {
		t.Errorf("a disk that is not watched is %s", got)
	}
}
