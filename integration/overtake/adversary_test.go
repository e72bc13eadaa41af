package overtake

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/tracking"
)

// adversaries are clients and operators who try to get tracking beyond its
// bound, each by another weakness. Each has a stream of its own to act on for
// some virtual hours; the bound is looked at after every step.
var adversaries = []struct {
	name     string
	settings replication.Settings
	names    int // references
	length   int // bytes of each
	hours    float64
	act      func(s *stream)
}{
	{
		// All stores ride in trailers; there is never a delta to roll for.
		name: "a message now and then", names: 1000, length: 60, hours: 2,
		act: func(s *stream) {
			s.storeAll()
			for range 150 {
				s.publishSome(1)
				s.run(200 * time.Millisecond)
			}
		},
	},
	{
		// Before a stream's first roll there is no snapshot to measure by.
		name: "long references of a new stream", names: 10_000, length: 255, hours: 0.2,
		act: func(s *stream) {
			s.storeAll()
			s.run(30 * time.Second)
		},
	},
	{
		// Nor is there before the stores of one interval, more than the bound.
		name: "many long references of a new stream", names: 60_000, length: 255, hours: 0.05,
		settings: replication.Settings{Log: segstore.Config{Caps: tracking.Caps{Offsets: 60_000}}},
		act: func(s *stream) {
			s.storeAll()
			s.run(time.Minute)
		},
	},
	{
		// The bound shrinks with the newest snapshot, what is on the disk does not.
		name: "references that come and go", names: 10_000, length: 255, hours: 0.05,
		act: func(s *stream) {
			for range 3 {
				s.storeAll()
				s.run(time.Minute)
				s.sampled()
			}
			s.deleteAll()
			s.sampled()
			s.restart()
			for range 8 {
				s.publishSome(1)
				s.run(time.Second)
				s.sampled()
			}
			if st := s.replica.Stats().Log; st.TrackingBytes > 1<<20 {
				s.t.Errorf("%d bytes of tracking stay when all references are gone", st.TrackingBytes)
			}
		},
	},
	{
		// A store that moves back is written at once, whatever the budget says.
		name: "forwards and backwards", names: 1000, length: 200, hours: 0.004,
		act: func(s *stream) {
			s.storeAll()
			s.run(20 * time.Millisecond)
			s.rounds -= 2
		},
	},
	{
		// Each writes a barrier, and what was pending.
		name: "restarts", names: 100, length: 100, hours: 0.02,
		act: func(s *stream) {
			s.storeAll()
			s.run(100 * time.Millisecond)
			s.restart()
		},
	},
	{
		// What is little beside all messages may become too much between two seals,
		// and when age has taken most of them.
		name: "much data that ages", names: 500, length: 60, hours: 3.5,
		settings: replication.Settings{RetainAge: 160 * time.Minute, Log: segstore.Config{SegmentBytes: 150_000_000, MaxAge: 160 * time.Minute}},
		act: func(s *stream) {
			if s.sent == 0 {
				s.fill(1_000_000)
			}
			s.storeAll()
			for range 12 {
				s.publish()
				s.run(5 * time.Second)
			}
		},
	},
	{
		// Each segment begins with a snapshot, however little else is in it.
		name: "tiny segments", names: 5000, length: 255, hours: 0.02,
		settings: replication.Settings{Log: segstore.Config{SegmentBytes: 1}, RetainBytes: 1},
		act: func(s *stream) {
			s.publishSome(500)
			s.storeAll()
			s.run(time.Second)
		},
	},
	{
		name: "age instead of size", names: 5000, length: 255, hours: 0.1,
		settings: replication.Settings{Log: segstore.Config{MaxAge: time.Minute}, RetainAge: time.Minute, Grace: -1},
		act: func(s *stream) {
			s.publishSome(1)
			s.storeAll()
			s.run(7 * time.Second)
		},
	},
}

func TestOvertake_adversaries(t *testing.T) {
	for _, a := range adversaries {
		t.Run(strings.ReplaceAll(a.name, " ", "_"), func(t *testing.T) {
			w := newWorld(t, 0)
			s := w.add("orders", a.settings, a.names)
			for i := range s.names {
				s.names[i] += strings.Repeat("x", max(a.length-len(s.names[i]), 0))
			}
			steps := 0
			for end := time.Duration(a.hours * float64(time.Hour)); w.elapsed() < end && !t.Failed(); steps++ {
				a.act(s)
				s.sampled()
			}
			s.verify()
			t.Logf("FIGURE overtake adversary %q, %d steps, %s: %s", a.name, steps, w.elapsed(), s)
		})
	}
}

// deleteAll has an operator delete each reference's stored offset.
func (s *stream) deleteAll() {
	s.t.Helper()
	changes := make([]replication.TrackingChange, len(s.names))
	for i, name := range s.names {
		changes[i] = replication.TrackingChange{Reference: name, Forget: true}
	}
	s.await(func() error {
		done := make(chan error, 1)
		s.replica.BeginChangeTracking(changes, func(changed []string, err error) {
			if err == nil && len(changed) != len(changes) {
				err = fmt.Errorf("deleted %d of %d", len(changed), len(changes))
			}
			done <- err
		})
		return <-done
	})
}
