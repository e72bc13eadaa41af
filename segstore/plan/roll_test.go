package plan

import "testing"

func TestRoll(t *testing.T) {
	base := RollInput{
		Holds: true, SegmentBytes: 1000, ControlBytesMin: 100, ControlPerMille: 20, HeldBound: 1 << 30,
		Now: 10_000, MaxAge: 4000, UnitFirst: 9500, UnitUsed: true,
	}
	for _, c := range []struct {
		name   string
		change func(*RollInput)
		want   RollKind
	}{
		{"nothing to do", func(*RollInput) {}, RollNone},
		{"one byte short of the size", func(in *RollInput) { in.UnitUserBytes = 999 }, RollNone},
		{"the size", func(in *RollInput) { in.UnitUserBytes = 1000 }, RollSize},
		{"the size, right behind a control roll", func(in *RollInput) { in.UnitUserBytes, in.Holds = 1000, false }, RollSize},
		{"no unit is full before its first chunk", func(in *RollInput) { in.SegmentBytes, in.UnitUsed, in.Holds = 0, false, false }, RollNone},
		{"a quarter of the age", func(in *RollInput) { in.UnitFirst = 9000 }, RollNone},
		{"older than a quarter", func(in *RollInput) { in.UnitFirst = 8999 }, RollAge},
		{"old, right behind a control roll", func(in *RollInput) { in.UnitFirst, in.Holds = 8999, false }, RollAge},
		{"old, but without a user chunk", func(in *RollInput) { in.UnitFirst, in.UnitUsed = 0, false }, RollNone},
		{"old, but no age limit", func(in *RollInput) { in.UnitFirst, in.MaxAge = 0, 0 }, RollNone},
		{"a clock that went back", func(in *RollInput) { in.Now = 1 }, RollNone},
		{"the least of control bytes", func(in *RollInput) { in.ControlBytes = 100 }, RollNone},
		{"more control bytes", func(in *RollInput) { in.ControlBytes = 101 }, RollControl},
		{"fewer than a snapshot takes", func(in *RollInput) { in.ControlBytes, in.SnapshotBytes = 500, 500 }, RollNone},
		{"less than the share of user bytes", func(in *RollInput) { in.ControlBytes, in.UserBytes = 200, 10_000 }, RollNone},
		{"more than the share", func(in *RollInput) { in.ControlBytes, in.UserBytes = 201, 10_000 }, RollControl},
		{"size goes before control", func(in *RollInput) { in.ControlBytes, in.UnitUserBytes = 1<<40, 1<<40 }, RollSize},
		{"a delta begins no unit by size", func(in *RollInput) { in.Appending, in.UnitUserBytes = AppendingDelta, 1<<40 }, RollNone},
		{"nor by age", func(in *RollInput) { in.Appending, in.UnitFirst = AppendingDelta, 0 }, RollNone},
		{"it may follow on a control roll", func(in *RollInput) { in.Appending, in.ControlBytes, in.UnitUserBytes = AppendingDelta, 101, 1<<40 }, RollControl},
		{"age needs no append", func(in *RollInput) { in.Appending, in.UnitFirst = AppendingNothing, 0 }, RollAge},
		{"also where the unit is full", func(in *RollInput) { in.Appending, in.UnitFirst, in.UnitUserBytes = AppendingNothing, 0, 1<<40 }, RollAge},
		{"control bytes don't roll without one", func(in *RollInput) { in.Appending, in.ControlBytes = AppendingNothing, 1<<40 }, RollNone},
		{"what is held is near the bound", func(in *RollInput) { in.HeldBytes, in.HeldBound = 3001, 4000 }, RollControl},
		{"what is held is not", func(in *RollInput) { in.HeldBytes, in.HeldBound = 3000, 4000 }, RollNone},
		{"nor does it roll without an append", func(in *RollInput) { in.Appending, in.HeldBytes = AppendingNothing, 1<<40 }, RollNone},
		{"nor behind a snapshot alone", func(in *RollInput) { in.Holds, in.HeldBytes = false, 1<<40 }, RollNone},
		{"damage, though nothing is appended", func(in *RollInput) { in.Appending, in.Damaged = AppendingNothing, true }, RollControl},
		{"damage of a snapshot alone", func(in *RollInput) { in.Holds, in.Damaged = false, true }, RollNone},
		{"huge counts", func(in *RollInput) { in.ControlBytes, in.UserBytes = 1<<50, 1<<62 }, RollNone},
	} {
		t.Run(c.name, func(t *testing.T) {
			in := base
			c.change(&in)
			if got := Roll(&in); got != c.want {
				t.Errorf("got %s, want %s", got, c.want)
			}
		})
	}
	for k, want := range map[RollKind]bool{RollNone: false, RollSize: true, RollAge: true, RollControl: false} {
		if k.StartsUnit() != want {
			t.Errorf("%s starts a unit: %v", k, k.StartsUnit())
		}
	}
}
