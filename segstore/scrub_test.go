package segstore

import (
	"errors"
	"testing"
	"time"

	"github.com/millrace/millrace/segstore/vfs"
)

// scrubbing is a log of three sealed segments and an active one, and a clock.
type scrubbing struct {
	*fixture
	scrubber *Scrubber
	found    []*DamageError
	clock    time.Time
}

func newScrubbing(t *testing.T) *scrubbing {
	s := &scrubbing{fixture: newFixture(t, vfs.NewMem(), "data"), clock: time.Unix(1_700_000_000, 0)}
	s.barrier()
	for range 3 {
		s.publish(10, 100)
		s.roll(true)
	}
	s.publish(5, 100)
	s.sync()
	s.scrubber = s.store.NewScrubber(ScrubOptions{Found: func(_ *Log, d *DamageError) { s.found = append(s.found, d) }})
	return s
}

// round steps until the present round is through, and returns the time it took.
func (s *scrubbing) round() (took time.Duration) {
	s.t.Helper()
	rounds := s.scrubber.Stats().Rounds
	for range 10_000 {
		wait := s.scrubber.Step(s.clock)
		if s.scrubber.Stats().Rounds > rounds {
			s.clock = s.clock.Add(wait)
			return took
		}
		s.clock = s.clock.Add(wait)
		took += wait
	}
	s.t.Fatalf("the round does not end: %+v", s.scrubber.Stats())
	return 0
}

// A round reads every byte once, and the next begins a period later.
func TestScrubber_readsEverythingOnceAPeriod(t *testing.T) {
	s := newScrubbing(t)
	begin := s.clock
	s.round()
	st := s.scrubber.Stats()
	var bytes int64
	for _, info := range s.log.Segments() {
		bytes += info.Size
	}
	if int64(st.Bytes) != bytes || st.RoundBytes != bytes || st.RoundDone != bytes || st.Damaged+st.Unread > 0 {
		t.Errorf("%+v, want %d bytes", st, bytes)
	}
	if s.clock.Sub(begin) < ScrubPeriodDefault {
		t.Errorf("the next round begins after %s", s.clock.Sub(begin))
	}
	s.round()
	if again := s.scrubber.Stats(); int64(again.Bytes) != 2*bytes || !again.RoundBegan.After(st.RoundBegan) {
		t.Errorf("%+v", again)
	}
	if n := s.store.Stats().OpenFiles; n > 4 {
		t.Errorf("%d files are open", n)
	}
}

// A scrub begins with the store, before any log is open: it finds them soon, and
// those that are opened while it reads.
func TestScrubber_logsOpenedLater(t *testing.T) {
	s := newScrubbing(t)
	s.must(s.store.Close())
	s.open()
	s.scrubber = s.store.NewScrubber(ScrubOptions{})
	wait := s.scrubber.Step(s.clock)
	if wait > time.Hour {
		t.Fatalf("nothing is open yet: looks again after %s", wait)
	}
	s.clock = s.clock.Add(wait)
	const second = testIncarnation + 1
	s.must(s.store.Create("second", second))
	early, _, err := s.store.Open(second, s.config)
	s.must(err)
	s.scrubber.Step(s.clock)
	s.openLog()
	s.round()
	var bytes int64
	for _, l := range []*Log{early, s.log} {
		for _, info := range l.Segments() {
			bytes += info.Size
		}
	}
	if st := s.scrubber.Stats(); int64(st.Bytes) != bytes || st.RoundBytes != bytes || st.Rounds != 1 {
		t.Errorf("%+v, want %d bytes", st, bytes)
	}
}

// Nodes are started anew within a period. What their scrubs begin with goes
// round with the time.
func TestScrubber_beginsWhereTheTimeIs(t *testing.T) {
	s := newScrubbing(t)
	segments := s.log.layout.Load().segments
	for _, of := range segments {
		of.synced.Store(1000)
	}
	span := ScrubPeriodDefault * scrubShare / 8
	start := s.clock.Add(-time.Duration(s.clock.UnixNano() % int64(span)))
	for i := range segments {
		again := s.store.NewScrubber(ScrubOptions{})
		again.Step(start.Add(span*time.Duration(i)/4 + time.Hour))
		if again.file != nil || len(again.queue) != len(segments) || again.queue[0] != segments[i] {
			t.Errorf("after %d quarters of a round it does not begin with segment %d", i, i)
		}
	}
}

// Every flipped byte of a sealed segment, footer included, is found and named;
// the log goes on, and readers are told.
func TestScrubber_findsEveryFlippedByte(t *testing.T) {
	s := newScrubbing(t)
	info := s.log.Segments()[1]
	name := segmentOf(info.FirstLSN)
	for at := int64(0); at < info.FileSize(); at += 7 {
		flip := func(b []byte) []byte { b[at] ^= 1 << (at % 8); return b }
		s.edit(name, flip)
		s.found = nil
		s.round()
		if len(s.found) != 1 || s.found[0].Segment != info.Name() || s.found[0].Last != info.LastLSN {
			t.Fatalf("byte %d of %d: found %v", at, info.FileSize(), s.found)
		}
		if d := s.log.Segments()[1].Damage; d == nil || !errors.Is(d, ErrDamaged) || s.log.Err() != nil {
			t.Fatalf("byte %d: damage %v, log %v", at, d, s.log.Err())
		}
		s.edit(name, flip)
		s.log.layout.Load().segments[1].damage.Store(nil)
	}
	if st := s.scrubber.Stats(); st.Damaged == 0 || !errors.Is(st.Last, ErrDamaged) {
		t.Errorf("%+v", st)
	}
	s.publish(1, 10)
	s.sync()
}

// Rot in the unsealed file is told; what is not synced yet is none.
func TestScrubber_unsealedFile(t *testing.T) {
	s := newScrubbing(t)
	s.publish(3, 100) // not synced
	s.round()
	if len(s.found) != 0 {
		t.Fatalf("found %v", s.found)
	}
	active := s.log.Segments()[3]
	s.edit(segmentOf(active.FirstLSN), func(b []byte) []byte { b[100] ^= 4; return b })
	s.round()
	if len(s.found) != 1 || s.found[0].First < active.FirstLSN || s.found[0].Last != 0 {
		t.Errorf("found %v", s.found)
	}
}

// What retention, a cut or a removal takes during a round is no damage.
func TestScrubber_isOvertaken(t *testing.T) {
	for name, overtake := range map[string]func(s *scrubbing){
		"retention":  func(s *scrubbing) { s.must(s.log.SetLogStart(s.log.Segments()[3].FirstLSN)) },
		"truncation": func(s *scrubbing) { _, err := s.log.Truncate(s.log.Tail().LSN - 1); s.must(err) },
		"removal":    func(s *scrubbing) { s.must(s.store.Remove(testIncarnation)) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newScrubbing(t)
			s.publish(3, 100) // above the commit
			s.must(s.log.syncNow())
			s.scrubber.Step(s.clock)
			s.clock = s.clock.Add(time.Millisecond)
			s.scrubber.Step(s.clock)
			overtake(s)
			s.round()
			if st := s.scrubber.Stats(); len(s.found) > 0 || st.Damaged+st.Unread > 0 || st.RoundDone != st.RoundBytes {
				t.Errorf("found %v, %+v", s.found, st)
			}
		})
	}
}

// A big node is read at the rate that its size asks for.
func TestScrubber_rate(t *testing.T) {
	s := newScrubbing(t)
	s.log.layout.Load().segments[0].synced.Store(100e9)
	s.scrubber.Step(s.clock)
	if rate := s.scrubber.rate; rate < 100e9/int64(ScrubPeriodDefault/time.Second) || rate > 300_000 {
		t.Errorf("%d bytes a second", rate)
	}
}
