package plan

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

const (
	minute = 60_000
	hour   = 60 * minute
	day    = 24 * hour
)

// A reading is what the clocks say, and what shall be made of it. Times are
// relative to noon of some day; the steady clock starts at 0.
type reading struct {
	wall, steady int64
	evidence     Evidence
	now          int64
	doubted      bool
}

const noon = 1_700_000_000_000

func newest(at int64) Evidence { return Evidence{Newest: chunk.Timestamp(noon + at)} }

func others(at ...int64) (e Evidence) {
	for _, a := range at {
		e.Others = append(e.Others, chunk.Timestamp(noon+a))
	}
	return e
}

func TestAgeClock(t *testing.T) {
	for _, c := range []struct {
		name     string
		readings []reading
	}{
		{"runs", []reading{{wall: 0}, {minute, minute, Evidence{}, minute, false}, {day, day, Evidence{}, day, false}}},
		{"is corrected by seconds", []reading{
			{wall: 0}, {minute - 3000, minute, Evidence{}, minute - 3000, false}, {2*minute + 5000, 2 * minute, Evidence{}, 2*minute + 5000, false},
		}},
		{"an hour ahead is believed", []reading{{wall: 0}, {minute + hour, minute, Evidence{}, minute + hour, false}}},
		{"jumps forward, and is believed after ten minutes", []reading{
			{wall: 0},
			{30 * day, minute, Evidence{}, minute, true},
			{30*day + 9*minute, 10 * minute, Evidence{}, 10 * minute, true},
			{30*day + 10*minute, 11 * minute, Evidence{}, 30*day + 10*minute, false},
		}},
		{"jumps forward, and back", []reading{
			{wall: 0}, {30 * day, minute, Evidence{}, minute, true}, {2 * minute, 2 * minute, Evidence{}, 2 * minute, false},
		}},
		{"jumps again and again", []reading{
			{wall: 0},
			{30 * day, minute, Evidence{}, minute, true},
			{60 * day, 8 * minute, Evidence{}, 8 * minute, true},
			{60*day + 9*minute, 17 * minute, Evidence{}, 17 * minute, true},
			{60*day + 10*minute, 18 * minute, Evidence{}, 60*day + 10*minute, false},
		}},
		{"is set back: time stands still", []reading{
			{wall: 0}, {-day, minute, Evidence{}, 0, true}, {-day + 10*minute, 11 * minute, Evidence{}, 0, false},
			{-day + hour, hour + minute, Evidence{}, 0, false},
		}},
		{"is set back, and right again", []reading{
			{wall: 0}, {-day, minute, Evidence{}, 0, true}, {2 * minute, 2 * minute, Evidence{}, 2 * minute, false},
		}},
		{"is set back a little", []reading{{wall: 0}, {-10 * minute, minute, Evidence{}, 0, false}, {-9 * minute, 2 * minute, Evidence{}, 0, false}}},
		{"a second voter says the same", []reading{{wall: 0}, {30 * day, minute, others(30*day - 1000), 30 * day, false}}},
		{"one of two voters says the same", []reading{{wall: 0}, {30 * day, minute, others(30*day, minute), 30 * day, false}}},
		{"one of three voters says the same", []reading{{wall: 0}, {30 * day, minute, others(30*day, minute, minute), minute, true}}},
		{"the others say that it is wrong", []reading{{wall: 0}, {30 * day, minute, others(minute, minute), minute, true}}},
		{"starts right behind the newest record", []reading{{minute, 0, newest(0), minute, false}}},
		{"starts long after the newest record", []reading{
			{day, 0, newest(0), 0, true}, {day + 9*minute, 9 * minute, newest(0), 9 * minute, true},
			{day + 10*minute, 10 * minute, newest(0), day + 10*minute, false},
		}},
		{"starts long after the newest record, others know", []reading{{day, 0, Evidence{Newest: noon, Others: []chunk.Timestamp{noon + day}}, day, false}}},
		{"starts before the newest record, and is set right", []reading{{-30 * day, 0, newest(0), -30 * day, false}, {minute, minute, newest(0), minute, false}}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var clock AgeClock
			for i, r := range c.readings {
				now, doubted := clock.Now(chunk.Timestamp(noon+r.wall), r.steady, r.evidence)
				if now != chunk.Timestamp(noon+r.now) || doubted != r.doubted {
					t.Errorf("reading %d: %s, doubted %v; want %s, %v", i, span(int64(now)-noon), doubted, span(r.now), r.doubted)
				}
			}
		})
	}
}

func span(ms int64) string {
	return fmt.Sprintf("%dd %dm %dms", ms/day, ms%day/minute, ms%minute)
}
