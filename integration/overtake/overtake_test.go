package overtake

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// hours is how long the worlds last: 24 by `make overtake`, less in every run of
// all tests.
func hours(t testing.TB) time.Duration { return hoursOf(t, "OVERTAKE_HOURS", 1) }

// manyHours is how long 100,000 references last: a minute of theirs takes a
// tenth of a second. 24 by `make overtake-long`, 3 by `make overtake`.
func manyHours(t testing.TB) time.Duration { return hoursOf(t, "OVERTAKE_MANY_HOURS", 1.0/8) }

func hoursOf(t testing.TB, variable string, otherwise float64) time.Duration {
	text := os.Getenv(variable)
	if text == "" {
		return time.Duration(otherwise * float64(time.Hour))
	}
	h, err := strconv.ParseFloat(text, 64)
	if err != nil || h <= 0 {
		t.Fatalf("%s=%q", variable, text)
	}
	return time.Duration(h * float64(time.Hour))
}

// The headline's stream: 20 MB in segments of 500 KB.
func smallStream() replication.Settings {
	return replication.Settings{Log: segstore.Config{SegmentBytes: 500_000}, RetainBytes: 20_000_000}
}

const headlineMessages = 200_000

// fill publishes messages in frames.
func (s *stream) fill(messages int) {
	s.t.Helper()
	for range messages / frameMessages {
		s.publish()
		s.run(time.Millisecond)
	}
	s.run(10 * time.Second)
}

// heard has each reference store, and waits until the pacer has let all of them
// be heard.
func (s *stream) heard() {
	s.t.Helper()
	s.storeAll()
	for waited := time.Duration(0); ; waited += time.Second {
		s.run(time.Second)
		if s.replica.Stats().PendingOffsets == 0 {
			return
		}
		if waited > 2*time.Minute {
			s.t.Fatalf("after %s %d offsets still wait", waited, s.replica.Stats().PendingOffsets)
		}
	}
}

// TestOvertake_quiet is the headline: a stream as full as its limit allows, no
// publisher, and 1,000 references that store as fast as they are heard.
func TestOvertake_quiet(t *testing.T) {
	begin := time.Now()
	w := newWorld(t, 0)
	s := w.add("orders", smallStream(), 1000)
	s.fill(headlineMessages)
	end := hours(t)
	restarts := 0
	s.heard()
	s.verify()
	for w.elapsed() < end {
		s.heard()
		s.sampled()
		s.underBudget()
		if w.elapsed() > time.Duration(restarts+1)*end/5 {
			restarts++
			s.verify()
			if restarts%2 == 1 {
				w.restart()
			} else {
				w.powerOff()
			}
			s.verify()
			s.answers()
		}
	}
	w.restart()
	first := s.verify()
	s.answers()
	if n := s.count(); first != 0 || n != headlineMessages {
		t.Errorf("read %d of %d messages, from offset %d on", n, headlineMessages, first)
	}
	if s.window[1] != 60_000 {
		t.Errorf("the window went from %d to %d ms, want 60 s without user data", s.window[0], s.window[1])
	}
	s.busy(end)
	t.Logf("FIGURE overtake quiet, %s in %s: %s", end, time.Since(begin).Round(100*time.Millisecond), s)
}

// busy checks that what the test is about has happened.
func (s *stream) busy(end time.Duration) {
	s.t.Helper()
	least := uint64(end / time.Hour) // a control roll each quarter of an hour or so
	if s.drops < least || s.rolls < least {
		s.t.Errorf("too little happened: %d rolls, %d drops, %d merges", s.rolls, s.drops, s.merges)
	}
}

// TestOvertake_publisher: as the headline with a publisher, beside a stream that
// gets the same messages and no stores. Both keep exactly the same, and the
// window follows the share of tracking.
func TestOvertake_publisher(t *testing.T) {
	begin := time.Now()
	w := newWorld(t, 0)
	tiny := smallStream()
	tiny.RetainBytes = 300_000 // less than a segment
	pairs := [][2]*stream{
		{w.add("orders", smallStream(), 1000), w.add("orders, no stores", smallStream(), 0)},
		{w.add("tiny", tiny, 100), w.add("tiny, no stores", tiny, 0)},
	}
	same := func() {
		t.Helper()
		for _, p := range pairs {
			a, b := p[0].replica.Stats().Log, p[1].replica.Stats().Log
			if a.First != b.First || a.Next != b.Next || a.Records != b.Records || a.UserBytes != b.UserBytes {
				t.Fatalf("after %s %s holds %d to %d, without stores %d to %d (I21)", w.elapsed(), p[0].about.Name, a.First, a.Next, b.First, b.Next)
			}
			p[0].sampled()
		}
	}
	phase := func(d time.Duration, frames int, every, stores time.Duration) {
		t.Helper()
		stored := time.Duration(0)
		for until := w.elapsed() + d; w.elapsed() < until; {
			for range frames {
				for _, p := range pairs {
					p[0].publish()
					p[1].publish()
				}
			}
			if w.elapsed() >= stored {
				stored = w.elapsed() + stores
				for _, p := range pairs {
					p[0].storeAll()
				}
			}
			w.run(every)
			same()
		}
	}
	window := func(want int64) {
		t.Helper()
		if got := pairs[0][0].replica.Stats().WindowMilliseconds; got != want {
			t.Errorf("after %s the window is %d ms, want %d", w.elapsed(), got, want)
		}
	}
	// The share of tracking is measured over ten minutes.
	phase(11*time.Minute, 10, time.Second, 20*time.Second)
	window(5_000)
	phase(20*time.Minute, 0, 5*time.Second, 5*time.Second)
	window(60_000)
	phase(11*time.Minute, 10, time.Second, 20*time.Second)
	window(5_000)
	if orders := pairs[0][0].replica.Stats().Log; orders.First == 0 {
		t.Errorf("log start never moved: %d bytes are kept, the limit is %d", orders.UserBytes, smallStream().RetainBytes)
	}
	w.powerOff()
	phase(hours(t)-w.elapsed(), 1, 10*time.Second, 10*time.Second)
	w.run(2 * time.Minute)
	w.restart()
	same()
	for _, p := range pairs {
		if a, b := p[0].verify(), p[1].verify(); a != b {
			t.Errorf("%s begins at %d, without stores at %d", p[0].about.Name, a, b)
		}
		p[0].answers()
		t.Logf("FIGURE overtake publisher, %s in %s: %s", hours(t), time.Since(begin).Round(100*time.Millisecond), p[0])
	}
	pairs[0][0].busy(hours(t))
}

// TestOvertake_leaderChanges: as the headline, with a new epoch each minute.
func TestOvertake_leaderChanges(t *testing.T) {
	begin := time.Now()
	w := newWorld(t, 0)
	s := w.add("orders", smallStream(), 1000)
	s.fill(headlineMessages)
	end := hours(t)
	for w.elapsed() < end {
		s.storeAll()
		w.run(45 * time.Second)
		s.sampled()
		s.lead()
		w.run(15 * time.Second)
		s.sampled()
	}
	w.run(2 * time.Minute)
	s.answers()
	w.restart()
	s.answers()
	if first := s.verify(); first != 0 || s.count() != headlineMessages {
		t.Errorf("read %d of %d messages, from offset %d on", s.count(), headlineMessages, first)
	}
	t.Logf("FIGURE overtake leader changes, %s, %d epochs in %s: %s", end, s.epoch, time.Since(begin).Round(100*time.Millisecond), s)
}

// TestOvertake_manyReferences: 100,000 references, whose snapshot is more than
// twice as big as a segment.
func TestOvertake_manyReferences(t *testing.T) {
	begin := time.Now()
	w := newWorld(t, 0)
	settings := replication.Settings{
		Log:         segstore.Config{SegmentBytes: 1_000_000, Caps: tracking.Caps{Offsets: 100_000}},
		RetainBytes: 20_000_000,
	}
	s, without := w.add("orders", settings, 100_000), w.add("orders, no stores", settings, 0)
	s.fill(headlineMessages)
	without.fill(headlineMessages)
	end := manyHours(t)
	for w.elapsed() < end {
		s.storeAll()
		w.run(30 * time.Second)
		s.publish()
		without.publish()
		s.sampled()
		w.run(30 * time.Second)
		s.sampled()
	}
	w.run(5 * time.Minute)
	s.answers()
	w.restart()
	s.answers()
	if a, b := s.verify(), without.verify(); a != b {
		t.Errorf("it begins at offset %d, without stores at %d (I21)", a, b)
	}
	t.Logf("FIGURE overtake 100,000 references, %s in %s: %s", end, time.Since(begin).Round(100*time.Millisecond), s)
}

// TestOvertake_lossWindow: a power loss takes stored offsets back by one window
// at most, never further, and the window is the one that is shown.
func TestOvertake_lossWindow(t *testing.T) {
	w := newWorld(t, 0)
	s := w.add("orders", smallStream(), 1000)
	s.fill(1000)
	random := rand.New(rand.NewPCG(4, 4))
	var worst time.Duration
	for loss := range 30 {
		type round struct {
			at     time.Duration
			offset int64 // of the first reference
		}
		var history []round
		store := func() {
			s.storeAll()
			history = append(history, round{w.elapsed(), int64(s.stored[0])})
		}
		store()
		s.run(2 * time.Minute)
		for range random.IntN(100) {
			store()
			w.run(time.Duration(random.IntN(3000)) * time.Millisecond)
			if loss%3 == 0 && random.IntN(4) == 0 {
				s.publish()
			}
		}
		at := w.elapsed()
		window := time.Duration(s.replica.Stats().WindowMilliseconds) * time.Millisecond
		w.powerOff()
		for i, got := range s.offsets() {
			got -= int64(i % 10)
			lost := time.Duration(0)
			for j := len(history) - 1; j > 0 && history[j].offset > got; j-- {
				lost = at - history[j].at
			}
			worst = max(worst, lost)
			if most := window + 300*time.Millisecond; lost > most || got > int64(s.stored[0]) {
				t.Fatalf("loss %d: %s is at %d, %s behind; the window was %s", loss, s.names[i], got, lost, window)
			}
			s.stored[i] = chunk.Offset(got + int64(i%10))
		}
	}
	t.Logf("FIGURE overtake: 30 power losses took stored offsets back by %s at most", worst)
	if worst < time.Second {
		t.Errorf("no power loss took more than %s back", worst)
	}
}
