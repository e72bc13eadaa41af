package segstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

const (
	// ScrubPeriodDefault is the time within which every byte is read once.
	ScrubPeriodDefault = 7 * 24 * time.Hour
	// scrubShare is the part of a period, in eighths, in which a round is to be
	// through, so that what is appended meanwhile does not make it late.
	scrubShare = 6
	// scrubRateMin keeps the rounds of small nodes short, in bytes a second.
	scrubRateMin = 256 << 10
	// scrubBurst bounds what is read in one step, in bytes.
	scrubBurst = 1 << 20
	// scrubLook is how soon a scrub looks again that found no log to read: a
	// node's logs are opened after its store.
	scrubLook = time.Minute
)

// ScrubOptions set how a node looks for rot.
type ScrubOptions struct {
	// Period is the time within which everything is read once: 7 days.
	Period time.Duration
	// Found is called for each damage that a scrub finds, from the goroutine that
	// steps it.
	Found func(l *Log, d *DamageError)
}

// Scrubber reads a node's open logs through again and again, and holds every
// byte against its CRCs and every sealed file against its summary: rot is to be
// found while another replica still has the bytes (design 3.7). A sealed segment
// that fails is marked damaged, as if a reader had met it. Rounds begin a period
// apart; within one the rate follows from what there is to read. Logs that are
// opened during a round are read at its end. Where in the logs a round begins
// follows from the time, so that a node that is started again and again does not
// read the first of them each time and the last ones never.
//
// It owns no goroutine: Run is a loop around Step, which one goroutine calls.
type Scrubber struct {
	store  *Store
	period time.Duration
	found  func(*Log, *DamageError)

	// The stepper's own.
	queue  []*segment
	joined map[*Log]bool // the logs of this round
	file   *scrubbed     // the one that is being read
	tokens int64         // bytes that may be read now
	rate   int64         // bytes a second
	last   time.Time

	mu    sync.Mutex // guards stats
	stats ScrubStats
}

// ScrubStats tells how far a Scrubber is and what it has found since it was
// made.
type ScrubStats struct {
	// Rounds that were finished, and when the present or last one began.
	Rounds     uint64
	RoundBegan time.Time
	// RoundBytes are to be read in this round, RoundDone of them were; bytes that
	// went away meanwhile count as done.
	RoundBytes, RoundDone int64
	// Bytes were read in all rounds.
	Bytes uint64
	// Damaged files were found by a scrub, Unread could not be opened.
	Damaged, Unread uint64
	// Last is the newest damage or error.
	Last error
}

// NewScrubber returns a scrubber of the store's logs. Its first round begins with
// the first step.
func (s *Store) NewScrubber(o ScrubOptions) *Scrubber {
	k := &Scrubber{store: s, period: o.Period, found: o.Found}
	if k.period <= 0 {
		k.period = ScrubPeriodDefault
	}
	return k
}

// Run scrubs until the context ends.
func (k *Scrubber) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			k.leave()
			return
		case <-timer.C:
		}
		timer.Reset(k.Step(time.Now()))
	}
}

// Stats returns the figures of now.
func (k *Scrubber) Stats() ScrubStats {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.stats
}

func (k *Scrubber) note(change func(*ScrubStats)) {
	k.mu.Lock()
	defer k.mu.Unlock()
	change(&k.stats)
}

// Step reads what the rate allows since the last one, and returns when to call
// it again.
func (k *Scrubber) Step(now time.Time) time.Duration {
	if k.file == nil && len(k.queue) == 0 {
		if wait := k.begin(now); wait > 0 {
			return wait
		}
	}
	if passed := now.Sub(k.last); passed > 0 {
		k.tokens = min(k.tokens+int64(passed.Seconds()*float64(k.rate)), scrubBurst)
	}
	k.last = now
	for k.tokens > 0 {
		if k.file == nil && !k.next() {
			if k.join() {
				continue
			}
			k.note(func(s *ScrubStats) { s.Rounds++; s.RoundDone = s.RoundBytes })
			return k.begin(now)
		}
		n := int64(0)
		if !k.file.done {
			n = k.file.step()
		}
		k.tokens -= n
		k.note(func(s *ScrubStats) { s.Bytes += uint64(n); s.RoundDone = min(s.RoundDone+n, s.RoundBytes) })
		if k.file.done {
			k.finish()
		}
	}
	return time.Duration(float64(1-k.tokens)/float64(k.rate)*float64(time.Second)) + time.Millisecond
}

// begin starts a round if one is due; else it returns the time until then.
func (k *Scrubber) begin(now time.Time) (wait time.Duration) {
	if began := k.Stats().RoundBegan; !began.IsZero() && now.Before(began.Add(k.period)) {
		return began.Add(k.period).Sub(now)
	}
	k.queue, k.joined = k.queue[:0], map[*Log]bool{}
	k.note(func(s *ScrubStats) { s.RoundBytes, s.RoundDone = 0, 0 })
	if !k.join() {
		return min(k.period, scrubLook)
	}
	k.turn(now)
	k.last = now
	k.note(func(s *ScrubStats) { s.RoundBegan = now })
	return 0
}

// join takes the logs into the round that are open and not in it yet; false if
// there is none with anything to read.
func (k *Scrubber) join() bool {
	total, before := k.Stats().RoundBytes, len(k.queue)
	for _, l := range k.store.openLogs() {
		lay := l.layout.Load()
		if lay == nil || k.joined[l] {
			continue
		}
		k.joined[l] = true
		for _, s := range lay.segments {
			k.queue = append(k.queue, s)
			total += s.synced.Load()
		}
	}
	k.rate = max(total*8/scrubShare/max(int64(k.period/time.Second), 1), scrubRateMin)
	k.note(func(s *ScrubStats) { s.RoundBytes = total })
	return len(k.queue) > before
}

// turn has a round begin with the segment at which one would be now that is
// through in a round's share of the period and begins again at once.
func (k *Scrubber) turn(now time.Time) {
	span := k.period * scrubShare / 8
	part := float64(now.UnixNano()%int64(span)) / float64(span)
	at := int64(part * float64(k.Stats().RoundBytes))
	for i, s := range k.queue {
		if at -= s.synced.Load(); at < 0 {
			k.queue = slices.Concat(k.queue[i:], k.queue[:i])
			return
		}
	}
}

// openLogs returns the logs that are open now, in the order of incarnations.
func (s *Store) openLogs() []*Log {
	s.mu.Lock()
	defer s.mu.Unlock()
	logs := make([]*Log, 0, len(s.logs))
	for _, l := range s.logs {
		logs = append(logs, l)
	}
	slices.SortFunc(logs, func(a, b *Log) int { return cmp.Compare(a.inc, b.inc) })
	return logs
}

// next opens the next file; false at the end of the round.
func (k *Scrubber) next() bool {
	for len(k.queue) > 0 {
		s := k.queue[0]
		k.queue = k.queue[1:]
		if s.gone.Load() || s.damage.Load() != nil || s.log.closed() {
			continue
		}
		f, err := openScrubbed(s)
		if err == nil {
			k.file = f
			return true
		}
		if !s.gone.Load() {
			k.note(func(st *ScrubStats) { st.Unread++; st.Last = fmt.Errorf("scrub %s: %w", s.path(), err) })
		}
	}
	return false
}

// Check reads one segment through as a scrub does and returns the damage in it,
// which is noted as if the scrub had found it; nil if all is well, or the
// segment is not the log's any more. Errors: ErrMissing, what the disk says.
func (l *Log) Check(file string) (*DamageError, error) {
	for _, s := range l.layout.Load().segments {
		if segmentFile(s.name) != file {
			continue
		}
		f, err := openScrubbed(s)
		if err != nil {
			return nil, err
		}
		defer f.release()
		for !f.done {
			f.step()
		}
		return f.damage(), nil
	}
	return nil, fmt.Errorf("check %s: %w", file, ErrMissing)
}

// finish judges the file that was read.
func (k *Scrubber) finish() {
	f := k.file
	k.leave()
	d := f.damage()
	if d == nil {
		return
	}
	k.note(func(st *ScrubStats) { st.Damaged++; st.Last = d })
	if k.found != nil {
		k.found(f.segment.log, d)
	}
}

// damage notes what is wrong with a file that was read, and returns it.
func (f *scrubbed) damage() *DamageError {
	if f.err == nil || f.overtaken() {
		return nil
	}
	s := f.segment
	d := &DamageError{File: s.path(), Position: f.walk.position, Segment: s.name, First: f.next, Offset: f.offset, Cause: f.err}
	if f.sealed != nil {
		d.Last, d.Next = f.sealed.LastLSN, f.sealed.NextOffset
		s.note(&s.damage, d)
	} else {
		s.note(&s.found, d)
	}
	return d
}

func (k *Scrubber) leave() {
	if k.file != nil {
		k.file.release()
		k.file = nil
	}
}

// scrubbed is a file that is being read through.
type scrubbed struct {
	segment *segment
	handle  *handle
	sealed  *manifest.Summary // nil for the unsealed one, of which synced bytes are read
	cuts    uint64
	walk    *walker
	sum     manifest.Summary
	next    chunk.LSN // the chunk that is due, and its first record
	offset  chunk.Offset
	done    bool
	err     error
}

// openScrubbed begins to read a file. One that is not there is damaged, although
// a descriptor of it may be open still. Error: what the disk says.
func openScrubbed(s *segment) (*scrubbed, error) {
	store := s.log.store
	_, err := store.fs.Stat(s.path())
	if errors.Is(err, fs.ErrNotExist) {
		f := newScrubbed(s, nil)
		f.done, f.err = true, err
		return f, nil
	}
	if err != nil {
		return nil, err
	}
	h, err := store.handles.acquire(s)
	if err != nil {
		return nil, err
	}
	return newScrubbed(s, h), nil
}

func (f *scrubbed) release() {
	if f.handle != nil {
		f.segment.log.store.handles.release(f.handle)
	}
}

func newScrubbed(s *segment, h *handle) *scrubbed {
	f := &scrubbed{segment: s, handle: h, sealed: s.summary.Load(), cuts: s.log.cuts.Load(), next: s.name.FirstLSN, offset: s.base}
	limit := s.synced.Load()
	if f.sealed != nil {
		limit = f.sealed.Size
	}
	f.walk = newWalker(h, s.log.inc, 0, limit, true)
	return f
}

// overtaken: the file is not the log's any more, or was cut meanwhile.
func (f *scrubbed) overtaken() bool {
	return f.segment.gone.Load() || f.cuts != f.segment.log.cuts.Load() || f.segment.log.closed()
}

// step reads one chunk, or at the end the footer, and returns the bytes it took.
func (f *scrubbed) step() int64 {
	if f.overtaken() {
		f.done = true
		return 0
	}
	h, _, _, _, err := f.walk.next()
	switch {
	case errors.Is(err, io.EOF):
		f.done, f.err = true, f.judge()
		return 0
	case err != nil:
		f.done, f.err = true, err
		return 0
	}
	f.sum.Add(&h, h.Epoch)
	f.next, f.offset = h.LSN+1, h.Next()
	return int64(h.Length())
}

// judge holds a sealed file as a whole against what MANIFEST says of it.
func (f *scrubbed) judge() error {
	want := f.sealed
	if want == nil {
		return nil
	}
	footer, err := readFooter(f.handle, f.segment.log.inc, want.FileSize())
	switch {
	case err != nil:
		return err
	case !sameSummary(&footer, want):
		return errors.New("footer differs from MANIFEST")
	case f.sum.Size != want.Size || f.sum.Chain != want.Chain || f.sum.UserBytes != want.UserBytes || f.sum.Records != want.Records:
		return errors.New("chunks and MANIFEST's counts differ")
	}
	return nil
}
