package tracking

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

// paced is a leader on a virtual clock, in milliseconds.
type paced struct {
	*testLog
	pacer     *Pacer
	userBytes int64
	// written are the bytes of stored offsets; early those that no deadline, no
	// move back and no flush demanded.
	written, early int64
	writes         []chunk.Timestamp
}

func newPaced(t testing.TB, c Pacing) *paced {
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	l := newTestLog(t, Caps{})
	return &paced{testLog: l, pacer: NewPacer(c, l.pending, l.now)}
}

func (p *paced) store(ref string, offset chunk.Offset) Outcome {
	return p.pacer.Store(p.state, []byte(ref), offset, p.now, p.now)
}

// turn does what a leader's turn does; userBytes > 0 writes a user chunk.
func (p *paced) turn(userBytes int64) Decision {
	p.t.Helper()
	d := p.pacer.Decide(p.now, userBytes > 0)
	forced := p.pacer.forced || p.pending.Len() > 0 && p.now >= p.pacer.since+chunk.Timestamp(p.pacer.Window())
	var n int64
	switch d.Action {
	case Ride:
		before := len(p.records)
		p.user(p.take())
		n = int64(len(p.records[before].payload))
	case WriteDelta:
		before := len(p.records)
		p.delta()
		n = chunk.HeadLengthMin + int64(len(p.records[before].payload))
	}
	if userBytes > 0 {
		p.pacer.UserBytes(p.now, userBytes)
		p.userBytes += userBytes
		if d.Action == Wait {
			p.user(nil)
		}
	}
	if n > 0 {
		p.pacer.Written(p.now, n)
		p.written += n
		p.writes = append(p.writes, p.now)
		if !forced {
			p.early += n
		}
	}
	return d
}

func TestPacer_rules(t *testing.T) {
	big := func(p *paced) {
		for i := range 200 {
			p.store(fmt.Sprint("consumer-", i), 1)
		}
	}
	tests := []struct {
		name string
		do   func(p *paced) Decision
		want Decision // Until relative to the start
	}{
		{"nothing pending", func(p *paced) Decision { return p.turn(0) }, Decision{Wait, Never}},
		{"nothing pending, user chunk", func(p *paced) Decision { return p.turn(100) }, Decision{Wait, Never}},
		{"no tokens: until the floor covers a delta", func(p *paced) Decision {
			p.store("a", 1) // 6 bytes and a head of 96
			return p.turn(0)
		}, Decision{Wait, 100}},
		{"the floor covers it", func(p *paced) Decision { p.store("a", 1); p.now += 100; return p.turn(0) }, Decision{Action: WriteDelta, Until: 100}},
		{"a trailer is cheaper", func(p *paced) Decision { p.store("a", 1); p.now += 6; return p.turn(1000) }, Decision{Ride, 6}},
		{"user bytes pay", func(p *paced) Decision {
			p.turn(5100)
			p.store("a", 1)
			return p.turn(0)
		}, Decision{WriteDelta, 0}},
		{"within the minimum interval", func(p *paced) Decision {
			p.turn(1 << 20)
			p.store("a", 1)
			p.turn(0)
			p.store("a", 2)
			return p.turn(0)
		}, Decision{Wait, 250}},
		{"after it", func(p *paced) Decision {
			p.turn(1 << 20)
			p.store("a", 1)
			p.turn(0)
			p.store("a", 2)
			p.now += 250
			return p.turn(0)
		}, Decision{WriteDelta, 250}},
		{"the minimum interval holds for trailers", func(p *paced) Decision {
			p.turn(1 << 20)
			p.store("a", 1)
			p.turn(0)
			p.store("a", 2)
			p.now += 249
			return p.turn(1000)
		}, Decision{Wait, 250}},
		{"too big for the floor: at the deadline", func(p *paced) Decision {
			big(p)
			p.pacer.milliTokens = -4 << 20 * 1000
			return p.turn(0)
		}, Decision{Wait, 5000}},
		{"at the deadline without tokens", func(p *paced) Decision {
			big(p)
			p.pacer.milliTokens = -4 << 20 * 1000
			p.now += 5000
			return p.turn(0)
		}, Decision{WriteDelta, 5000}},
		{"the deadline is the oldest store's", func(p *paced) Decision {
			big(p)
			p.pacer.milliTokens = -4 << 20 * 1000
			p.now += 4999
			p.store("consumer-0", 2)
			return p.turn(0)
		}, Decision{Wait, 5000}},
		{"a move back goes at once", func(p *paced) Decision {
			p.turn(1 << 20)
			p.store("a", 5)
			p.turn(0)
			p.store("a", 4)
			return p.turn(0)
		}, Decision{WriteDelta, 0}},
		{"an equal value writes nothing", func(p *paced) Decision {
			p.turn(1 << 20)
			p.store("a", 5)
			p.turn(0)
			p.now += 100_000
			p.store("a", 5)
			return p.turn(0)
		}, Decision{Wait, Never}},
		{"flush", func(p *paced) Decision { p.store("a", 5); p.pacer.Flush(); return p.turn(0) }, Decision{WriteDelta, 0}},
		{"flush of nothing does not stick", func(p *paced) Decision {
			p.pacer.Flush()
			p.turn(0)
			p.store("a", 5)
			return p.turn(0)
		}, Decision{Wait, 100}},
		{"a deletion goes at once", func(p *paced) Decision {
			p.turn(1 << 20)
			p.store("a", 5)
			p.turn(0)
			p.pacer.Forget(p.state, []byte("a"), p.now, p.now)
			return p.turn(0)
		}, Decision{WriteDelta, 0}},
		{"a snapshot carries everything", func(p *paced) Decision {
			p.store("a", 5)
			p.snapshot(0, 0, 0)
			p.pacer.Carried(p.now)
			p.now += 10_000
			return p.turn(0)
		}, Decision{Wait, Never}},
		{"a clock that goes back stands still", func(p *paced) Decision {
			p.store("a", 1)
			p.now += 90
			p.turn(0)
			p.now -= 1000
			d := p.turn(0)
			p.now += 1000 - 90
			return d
		}, Decision{Wait, 100}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPaced(t, Pacing{})
			start := p.now
			d := tt.do(p)
			if d.Until != Never {
				d.Until -= start
			}
			if d != tt.want {
				t.Fatalf("got %v until %d, want %v until %d", d.Action, d.Until, tt.want.Action, tt.want.Until)
			}
		})
	}
}

// TestPacer_budget: over random hours, what was written early never exceeds
// what has accrued, the early writes keep the minimum interval, no update waits
// longer than the window of the moment, and waiting until Until is enough.
func TestPacer_budget(t *testing.T) {
	for seed := range int64(20) {
		r := rand.New(rand.NewSource(seed))
		p := newPaced(t, Pacing{})
		start := p.now
		waiting := chunk.Timestamp(-1)
		ids, rate := 1+r.Intn(300), r.Intn(40_000)
		for range 10_000 {
			p.now += chunk.Timestamp(1 + r.Intn(50))
			if r.Intn(400) == 0 {
				ids, rate = 1+r.Intn(300), r.Intn(3)*r.Intn(40_000)
			}
			p.store(fmt.Sprint("consumer-", r.Intn(ids)), chunk.Offset(p.now)) // never back
			if waiting < 0 && p.pending.Len() > 0 {
				waiting = p.now
			}
			user := int64(0)
			if rate > 0 && r.Intn(3) == 0 {
				user = int64(r.Intn(rate + 1))
			}
			window := p.pacer.Window()
			if p.turn(user).Action != Wait {
				waiting = -1
			} else if waiting >= 0 && int64(p.now-waiting) > window {
				t.Fatalf("seed %d: an update waits for %d ms, the window is %d", seed, p.now-waiting, window)
			}
			elapsed := int64(p.now - start)
			accrued := p.userBytes*2/100 + elapsed*1024/1000 + 1
			if p.early > accrued {
				t.Fatalf("seed %d: %d bytes early, %d accrued", seed, p.early, accrued)
			}
		}
		for i := 1; i < len(p.writes); i++ {
			if p.writes[i]-p.writes[i-1] < 250 {
				t.Fatalf("seed %d: writes %d ms apart", seed, p.writes[i]-p.writes[i-1])
			}
		}
		if len(p.writes) < 50 {
			t.Fatalf("seed %d: only %d writes", seed, len(p.writes))
		}
	}
}

// TestPacer_windowFollowsTheShare: 5 s with a publisher that pays for the
// tracking, 60 s without one, and 5 s again once it is back; and the rate of a
// tracking-only stream is what the floor and the longest interval allow.
func TestPacer_windowFollowsTheShare(t *testing.T) {
	p := newPaced(t, Pacing{})
	offset := chunk.Offset(0)
	var names []string
	for i := range 250 {
		names = append(names, fmt.Sprint("consumer-", i))
	}
	run := func(seconds int, user int64) (written int64) {
		before := p.written
		for range seconds {
			p.now += 1000
			offset++
			for _, name := range names {
				p.store(name, offset)
			}
			p.turn(user)
		}
		return p.written - before
	}
	if run(60, 10<<20); p.pacer.Window() != 5000 {
		t.Fatalf("with a publisher the window is %d", p.pacer.Window())
	}
	run(1200, 0)
	if p.pacer.Window() != 60_000 {
		t.Fatalf("without one it is %d", p.pacer.Window())
	}
	// An hour of what the floor pays for, and at most a forced delta a minute.
	left := max(p.pacer.Tokens(), 0) // from the publisher's time
	hour := run(3600, 0)
	if most := left + 3600*1024 + 61*(96+250*20); hour > most || hour < 60*250*14 {
		t.Fatalf("%d bytes in an hour, at most %d", hour, most)
	}
	run(1200, 10<<20)
	if p.pacer.Window() != 5000 {
		t.Fatalf("with the publisher back it is %d", p.pacer.Window())
	}
	// Between the two the interval rises in proportion.
	p.pacer.share = share{span: 600_000}
	s := p.pacer.share.slot(p.now)
	s.user, s.tracking = 1_000_000, 80_000
	if p.pacer.Window() != 20_000 {
		t.Fatalf("at four times the ratio it is %d", p.pacer.Window())
	}
}

// TestPacer_debtIsPaid: what moves back write beyond the tokens holds the early
// writes up afterwards.
func TestPacer_debtIsPaid(t *testing.T) {
	p := newPaced(t, Pacing{})
	for i := range 50 {
		p.now += 10
		p.store("a", chunk.Offset(1000-i))
		p.turn(0)
	}
	if p.pacer.Tokens() > -3000 {
		t.Fatalf("tokens %d", p.pacer.Tokens())
	}
	p.now += 250
	p.store("a", 2000)
	if d := p.turn(0); d.Action != Wait {
		t.Fatalf("got %v in debt", d.Action)
	}
}

func TestPacer_smallIntervals(t *testing.T) {
	p := newPaced(t, Pacing{IntervalMin: 1, IntervalMax: 50, IntervalLongest: 500, ShareSpan: 1000})
	for range 3000 {
		p.now++
		for i := range 50 {
			p.store(fmt.Sprint("consumer-", i), chunk.Offset(p.now))
		}
		p.turn(0)
	}
	if n := len(p.writes); n < 5 || n > 70 {
		t.Fatalf("%d writes in 3 s", n)
	}
	if w := p.pacer.Window(); w != 500 {
		t.Fatalf("window %d", w)
	}
}

func TestPacing_validate(t *testing.T) {
	for name, c := range map[string]Pacing{
		"ratio":        {RatioPPM: 1_000_001},
		"floor":        {FloorBytesPerSecond: -1},
		"tokens":       {TokensMax: -1},
		"min above":    {IntervalMin: 6000},
		"max above":    {IntervalMax: 10, IntervalMin: 1, IntervalLongest: 9},
		"a day":        {IntervalLongest: 24*60*60*1000 + 1},
		"span":         {ShareSpan: 19},
		"negative min": {IntervalMin: -1},
	} {
		if c.Validate() == nil {
			t.Errorf("%s passes", name)
		}
	}
	if err := (Pacing{}).Validate(); err != nil {
		t.Error(err)
	}
}

// TestOutlook_isTheWindowToCome: while nothing is written, an outlook tells at
// each later moment what the pacer does, and falls to the least.
func TestOutlook_isTheWindowToCome(t *testing.T) {
	p := newPaced(t, Pacing{IntervalMax: 1000, IntervalLongest: 20_000, ShareSpan: 60_000})
	for i := range 600 { // a minute of tracking and next to no messages
		p.now += 100
		p.store("a", chunk.Offset(i))
		p.turn(int64(i % 2))
	}
	o := p.pacer.Outlook()
	if got := o.Window(p.now); got != 20_000 || got != p.pacer.Window() {
		t.Fatalf("window %d, outlook %d, want 20000", p.pacer.Window(), got)
	}
	if got := o.Window(p.now - 50_000); got != 20_000 {
		t.Fatalf("at a clock that went back the outlook is %d", got)
	}
	for range 70 {
		p.now += 1000
		p.pacer.Decide(p.now, false)
		if got, want := o.Window(p.now), p.pacer.Window(); got != want {
			t.Fatalf("outlook %d, window %d", got, want)
		}
	}
	if got := o.Window(p.now); got != 1000 {
		t.Fatalf("after all it is %d", got)
	}
	var none Outlook
	if got := none.Window(p.now); got != 0 {
		t.Fatalf("of nothing it is %d", got)
	}
}
