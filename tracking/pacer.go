package tracking

import (
	"fmt"
	"math"

	"github.com/millrace/millrace/segstore/chunk"
)

// Pacing sets the budget and the intervals. A zero field takes the default;
// times are in milliseconds.
type Pacing struct {
	// RatioPPM is the share of user bytes that tracking may take, in millionths:
	// 20,000, i.e. 2 %.
	RatioPPM int64
	// FloorBytesPerSecond accrues beside that: 1,024.
	FloorBytesPerSecond int64
	// TokensMax caps what accrues, and the debt of forced writes: 4 MiB.
	TokensMax int64
	// IntervalMin is the least time between two writes that are not forced: 250.
	IntervalMin int64
	// IntervalMax is the longest that an update waits while tracking keeps to
	// its ratio: 5,000. It grows with the share of tracking, up to
	// IntervalLongest: 60,000.
	IntervalMax     int64
	IntervalLongest int64
	// ShareSpan is the time over which that share is measured: 600,000.
	ShareSpan int64
}

func (c Pacing) orDefault() Pacing {
	set := func(v *int64, d int64) {
		if *v == 0 {
			*v = d
		}
	}
	set(&c.RatioPPM, 20_000)
	set(&c.FloorBytesPerSecond, 1024)
	set(&c.TokensMax, 4<<20)
	set(&c.IntervalMin, 250)
	set(&c.IntervalMax, 5_000)
	set(&c.IntervalLongest, max(60_000, c.IntervalMax))
	set(&c.ShareSpan, 600_000)
	return c
}

// Validate returns what is wrong with the settings, nil if nothing is.
func (c Pacing) Validate() error {
	c = c.orDefault()
	switch {
	case c.RatioPPM < 0 || c.RatioPPM > 1_000_000:
		return fmt.Errorf("tracking: ratio of %d millionths is not within 0 and 1,000,000", c.RatioPPM)
	case c.FloorBytesPerSecond < 0 || c.FloorBytesPerSecond > 1<<30:
		return fmt.Errorf("tracking: floor of %d B/s is not within 0 and 1 GiB/s", c.FloorBytesPerSecond)
	case c.TokensMax < 0 || c.TokensMax > 1<<40:
		return fmt.Errorf("tracking: %d B of tokens are not within 0 and 1 TiB", c.TokensMax)
	case c.IntervalMin < 0 || c.IntervalMin > c.IntervalMax || c.IntervalMax > c.IntervalLongest:
		return fmt.Errorf("tracking: intervals %d, %d, %d ms must rise", c.IntervalMin, c.IntervalMax, c.IntervalLongest)
	case c.IntervalLongest > 24*60*60*1000 || c.ShareSpan < shareSlots || c.ShareSpan > 24*60*60*1000:
		return fmt.Errorf("tracking: no time may exceed a day, and the span not be below %d ms", shareSlots)
	}
	return nil
}

// Action is what to do with the pending updates.
type Action uint8

const (
	// Wait: nothing, until Decision.Until or the next event.
	Wait Action = iota
	// Ride: put them into the trailer of the user chunk being written.
	Ride
	// WriteDelta: write a delta chunk.
	WriteDelta
)

func (a Action) String() string { return [...]string{"wait", "ride", "write delta"}[a] }

// Never is the Until of a decision that no time will change.
const Never chunk.Timestamp = math.MaxInt64

// Decision is the Pacer's answer.
type Decision struct {
	Action Action
	// Until tells, with Wait, when to ask again if nothing happens before.
	Until chunk.Timestamp
}

// Pacer decides when a leader's pending updates are written (design 4.2): with
// a user chunk or, without one, as a delta chunk, as soon as tokens cover them
// and the minimum interval has passed since the last write; at the latest when
// the oldest has waited for Window. A store that moves back, and Flush, write
// everything at once; what that takes beyond the tokens is owed.
//
// Its times are those of a clock that runs evenly, wherever that began: by the
// machine's, which may be set back by hours, a store would wait that much longer
// than Window. What a store is stamped with is another matter.
//
// One cycle of the turn is Decide, then Pending.Take, encode and append the
// chunk, then Written; user chunks are told to UserBytes.
type Pacer struct {
	pacing  Pacing
	pending *Pending
	// now is the latest time seen; a clock that goes back stands still here.
	now chunk.Timestamp
	// milliTokens are bytes times 1,000; below zero they are debt.
	milliTokens int64
	share       share
	since       chunk.Timestamp // the oldest pending update's arrival
	lastWrite   chunk.Timestamp
	forced      bool
}

// NewPacer makes the pacer of a leader at the start of its epoch, without
// tokens.
func NewPacer(c Pacing, pending *Pending, now chunk.Timestamp) *Pacer {
	c = c.orDefault()
	p := &Pacer{pacing: c, pending: pending, now: now, since: now, lastWrite: now - chunk.Timestamp(c.IntervalMin)}
	p.share.span = c.ShareSpan
	return p
}

// Store takes a client's store, made at the stamp; see Pending.Store.
func (p *Pacer) Store(s *State, ref []byte, offset chunk.Offset, stamp, now chunk.Timestamp) Outcome {
	p.arrive(now)
	o := p.pending.Store(s, ref, offset, stamp)
	p.forced = p.forced || o == Back
	return o
}

// Forget takes an operator's deletion, which is written at once.
func (p *Pacer) Forget(s *State, ref []byte, stamp, now chunk.Timestamp) bool {
	p.arrive(now)
	forgotten := p.pending.Forget(s, ref, stamp)
	p.forced = p.forced || forgotten
	return forgotten
}

func (p *Pacer) arrive(now chunk.Timestamp) {
	p.advance(now)
	if p.pending.Len() == 0 {
		p.since = p.now
	}
}

// Flush makes the next decision write whatever is pending then: for a leader
// transfer, a shutdown, or a caller that waits.
func (p *Pacer) Flush() { p.forced = true }

// UserBytes counts the bytes of a user chunk's client header and data.
func (p *Pacer) UserBytes(now chunk.Timestamp, n int64) {
	p.advance(now)
	p.earn(n * p.pacing.RatioPPM / 1000)
	p.share.slot(p.now).user += n
}

// Decide says what to do now; userChunk tells that one is about to be written.
func (p *Pacer) Decide(now chunk.Timestamp, userChunk bool) Decision {
	p.advance(now)
	if p.pending.Len() == 0 {
		p.forced = false
		return Decision{Wait, Never}
	}
	cost := int64(p.pending.Bytes())
	if !userChunk {
		cost += chunk.HeadLengthMin
	}
	deadline := p.since + chunk.Timestamp(p.Window())
	early := max(p.lastWrite+chunk.Timestamp(p.pacing.IntervalMin), p.now+chunk.Timestamp(p.untilCovered(cost)))
	switch {
	case !p.forced && p.now < deadline && p.now < early:
		return Decision{Wait, min(deadline, early)}
	case userChunk:
		return Decision{Ride, p.now}
	default:
		return Decision{WriteDelta, p.now}
	}
}

// untilCovered returns after how many milliseconds the floor alone will have
// the tokens cover the cost: 0 if they do, and a day at most.
func (p *Pacer) untilCovered(cost int64) int64 {
	missing := cost*1000 - p.milliTokens
	const day = 24 * 60 * 60 * 1000
	if missing <= 0 {
		return 0
	}
	if cost > p.pacing.TokensMax || p.pacing.FloorBytesPerSecond == 0 {
		return day
	}
	floor := p.pacing.FloorBytesPerSecond
	return min((missing+floor-1)/floor, day)
}

// Written counts a write of stored offsets: their part of a trailer, or a whole
// delta chunk. If more is pending, the decision that led here stands for it.
func (p *Pacer) Written(now chunk.Timestamp, n int64) {
	p.advance(now)
	p.earn(-n * 1000)
	p.share.slot(p.now).tracking += n
	p.lastWrite = p.now
	p.forced = p.pending.Len() > 0
	p.since = p.now
}

// Carried notes that a snapshot has carried everything; Pending.Clear is the
// caller's.
func (p *Pacer) Carried(now chunk.Timestamp) {
	p.advance(now)
	p.lastWrite, p.since, p.forced = p.now, p.now, false
}

// Window returns the present maximum interval in milliseconds: what a crash of
// the whole cluster can lose of the stored offsets.
func (p *Pacer) Window() int64 { return window(&p.pacing, &p.share, p.now) }

// Outlook is a Pacer's window at later moments too, as long as nothing is
// written: what was, leaves the span.
type Outlook struct {
	pacing Pacing
	share  share
	from   chunk.Timestamp
}

// Outlook returns the present one.
func (p *Pacer) Outlook() Outlook { return Outlook{p.pacing, p.share, p.now} }

// Window returns what Pacer.Window will return at a moment. Of the zero value it
// is 0.
func (o *Outlook) Window(now chunk.Timestamp) int64 {
	if o.share.span == 0 {
		return 0
	}
	return window(&o.pacing, &o.share, max(now, o.from))
}

func window(c *Pacing, s *share, now chunk.Timestamp) int64 {
	user, tracking := s.sums(now)
	if tracking == 0 {
		return c.IntervalMax
	}
	if c.RatioPPM == 0 || user == 0 {
		return c.IntervalLongest
	}
	w := float64(c.IntervalMax) * (float64(tracking) / float64(user)) / (float64(c.RatioPPM) / 1e6)
	return int64(min(max(w, float64(c.IntervalMax)), float64(c.IntervalLongest)))
}

// Share returns the bytes of user data and of stored offsets that were written
// within the last ShareSpan, at its grain.
func (p *Pacer) Share() (user, tracking int64) { return p.share.sums(p.now) }

// Tokens returns the bytes that may be written early; debt is negative.
func (p *Pacer) Tokens() int64 { return p.milliTokens / 1000 }

func (p *Pacer) advance(now chunk.Timestamp) {
	if now <= p.now {
		return
	}
	// Longer than a day fills any budget, and might overflow.
	elapsed := min(int64(now-p.now), 24*60*60*1000)
	p.now = now
	p.earn(elapsed * p.pacing.FloorBytesPerSecond)
}

func (p *Pacer) earn(milli int64) {
	most := p.pacing.TokensMax * 1000
	p.milliTokens = min(max(p.milliTokens+milli, -most), most)
}

const shareSlots = 20

// share keeps sums over the last span in slots of a twentieth of it.
type share struct {
	span  int64 // milliseconds
	slots [shareSlots]shareSlot
}

type shareSlot struct {
	number         int64 // time divided by the slot's length
	user, tracking int64
}

func (s *share) slot(now chunk.Timestamp) *shareSlot {
	n := int64(now) / (s.span / shareSlots)
	at := &s.slots[uint64(n)%shareSlots]
	if at.number != n {
		*at = shareSlot{number: n}
	}
	return at
}

func (s *share) sums(now chunk.Timestamp) (user, tracking int64) {
	n := int64(now) / (s.span / shareSlots)
	for i := range s.slots {
		if at := &s.slots[i]; at.number > n-shareSlots && at.number <= n {
			user += at.user
			tracking += at.tracking
		}
	}
	return user, tracking
}
