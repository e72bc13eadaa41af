package segstore

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/plan"
)

// Truncate cuts the log behind the chunk n, which may be the one before the log
// start (C3). Tracking is folded back exactly (I18). The cut is noted before a
// byte is touched, so a crash inside of it is finished at the next start; the
// files are then read again as they are at a start. Mutator.
//
// Errors: ErrBelowCommit if n is below the known commit (B6), then nothing is
// changed; a *DamageError or what the disk says, then the log takes no chunk until it is opened
// again.
func (l *Log) Truncate(n chunk.LSN) (Recovery, error) {
	if err := l.mayRewrite(); err != nil {
		return Recovery{}, err
	}
	if n >= l.Tail().LSN {
		return Recovery{Tail: l.Durable()}, nil
	}
	if n < l.Commit() || n+1 < l.state.Start.LSN {
		return Recovery{}, l.wrap(fmt.Sprintf("cut to %d", n),
			fmt.Errorf("%w: known commit %d, log start %d", ErrBelowCommit, l.Commit(), l.state.Start.LSN))
	}
	to, err := l.lastChunk(n)
	if damage := (*DamageError)(nil); errors.As(err, &damage) {
		// There is rot before n. Recovery finds n in spite of it, or calls the log
		// damaged: then the leader fills it anew.
		to, err = n, nil
	}
	if err != nil {
		return Recovery{}, l.wrap(fmt.Sprintf("cut to %d", n), err)
	}
	lines, keep := l.Epochs(), min(to, l.Durable().LSN)
	if err := l.records.append(&manifest.Record{Kind: manifest.KindCut, LSN: to}); err != nil {
		return Recovery{}, l.condemn(l.wrap("note the cut", err), err)
	}
	r, err := l.reload(fmt.Sprintf("cut to %d", n), keep)
	if err == nil {
		err = l.unproven()
	}
	if err != nil || to == n {
		return r, err
	}
	// n is missing: what is cut is the chunk behind the gap, and the gap stays.
	lines = slices.DeleteFunc(lines, func(line manifest.EpochLine) bool { return line.LSN <= to || line.LSN > n })
	return r, l.Skip(Gap{Last: n, Lines: lines})
}

// Reset drops the whole log and begins anew at a start above the tail, which a
// leader has proven (C4). Tracking is unknown until a complete snapshot has
// passed. Mutator.
//
// Errors: ErrBelowCommit if the known commit is not below the start, or the
// start is not above the tail.
func (l *Log) Reset(start manifest.Start) (Recovery, error) {
	if err := l.mayRewrite(); err != nil {
		return Recovery{}, err
	}
	if l.Commit() >= start.LSN || l.Tail().LSN >= start.LSN {
		return Recovery{}, l.wrap(fmt.Sprintf("reset to %d", start.LSN),
			fmt.Errorf("%w: known commit %d, tail %s", ErrBelowCommit, l.Commit(), l.Tail()))
	}
	if err := l.records.append(&manifest.Record{Kind: manifest.KindStart, Start: start}); err != nil {
		return Recovery{}, l.condemn(l.wrap("note the reset", err), err)
	}
	return l.reload(fmt.Sprintf("reset to %d", start.LSN), start.LSN-1)
}

// DropDamaged gives up the damaged end of the log: the file that holds it is
// copied to quarantine, then the log is cut behind its last good chunk, and mark
// and known commit are lowered to that. It is for a replica that is set aside
// and about to be filled again by a leader, or for an operator who has nobody
// else; the journal goes on calling the replica damaged. Mutator.
func (l *Log) DropDamaged() (Recovery, error) {
	var d *DamageError
	if err := l.Err(); !errors.As(err, &d) {
		return Recovery{Tail: l.Durable()}, err
	}
	n := l.Tail().LSN
	if d.File != l.dir { // else no file holds what is missing
		if err := l.store.keepCopy(d.File, false); err != nil {
			return Recovery{}, l.wrap("keep a copy of the damaged file", err)
		}
	}
	l.commit.Store(uint64(min(l.Commit(), n)))
	if err := l.records.append(&manifest.Record{Kind: manifest.KindCut, LSN: n}); err != nil {
		return Recovery{}, l.condemn(l.wrap("note the cut", err), err)
	}
	return l.reload("drop the damaged end", n)
}

// mayRewrite lets a damaged log through: cutting and resetting is how one comes
// back.
func (l *Log) mayRewrite() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isClosed {
		return ErrClosed
	}
	return l.poison
}

// reload reads the files anew. Should that fail, the log is known to be durable
// up to keep all the same: Close must not take the failure for a log that never
// had anything, and cut it all away.
func (l *Log) reload(step string, keep chunk.LSN) (Recovery, error) {
	l.reading.Lock()
	r, err := l.recover()
	l.reading.Unlock()
	if err != nil {
		l.mu.Lock()
		l.durable = chunk.Tail{LSN: keep}
		l.mu.Unlock()
		return r, l.condemn(l.wrap(step, err), err)
	}
	return r, nil
}

// SetLogStart gives up everything before a segment (E3): a leader by its policy,
// a follower because its leader says so. Readers that are there are moved to the
// new start. A start at or below the present one changes nothing. Mutator.
//
// Errors: ErrNotSegmentStart, ErrNoSnapshot, what the disk says.
func (l *Log) SetLogStart(lsn chunk.LSN) error {
	if err := l.Err(); err != nil {
		return err
	}
	if lsn <= l.state.Start.LSN {
		return nil
	}
	in := l.retainInput()
	for i := range in.Segments {
		if in.Segments[i].FirstLSN != lsn {
			continue
		}
		if !plan.MayStart(&in, i) {
			return l.wrap(fmt.Sprintf("log start %d", lsn), fmt.Errorf("%w: commit %d, durable %d", ErrNoSnapshot, in.Commit, in.Durable))
		}
		return l.giveUp(in.Segments, i)
	}
	return l.wrap(fmt.Sprintf("log start %d", lsn), ErrNotSegmentStart)
}

// RaiseLogStart gives up everything before the highest segment start at or below
// lsn that E3 allows now. A follower does so because its leader's log starts at
// lsn: segments that compaction has merged here, or there, may begin elsewhere.
// Mutator. Error: what the disk says.
func (l *Log) RaiseLogStart(lsn chunk.LSN) error {
	if err := l.Err(); err != nil {
		return err
	}
	in := l.retainInput()
	for i := len(in.Segments) - 1; i > 0; i-- {
		if in.Segments[i].FirstLSN <= lsn && plan.MayStart(&in, i) {
			return l.giveUp(in.Segments, i)
		}
	}
	return nil
}

// Retention applies a policy (design 3.6) as far as E3 allows, and tells whether
// the log start moved. Files that could not be removed before are tried again.
// Mutator.
func (l *Log) Retention(policy Policy, now chunk.Timestamp) (moved bool, err error) {
	if err := l.Err(); err != nil {
		return false, err
	}
	l.retryRemovals()
	in := l.retainInput()
	in.Policy, in.Now = policy, now
	n := plan.Retain(&in)
	if n == 0 {
		return false, nil
	}
	return true, l.giveUp(in.Segments, n)
}

// Units tells, without changing anything, what a policy makes of each unit of
// the log now, the oldest first. Mutator.
func (l *Log) Units(policy Policy, now chunk.Timestamp) []Unit {
	in := l.retainInput()
	in.Policy, in.Now = policy, now
	return plan.Units(&in)
}

// RetryRemovals removes files that were given up and could not be removed, or
// were being read. Mutator.
func (l *Log) RetryRemovals() { l.retryRemovals() }

func (l *Log) retainInput() plan.RetainInput {
	in := plan.RetainInput{Segments: l.state.Segments, Commit: l.Commit(), Durable: l.Durable().LSN}
	if l.active != nil {
		in.Segments = append(in.Segments[:len(in.Segments):len(in.Segments)], l.summary)
	}
	return in
}

// giveUp moves the log start to a segment: record, then readers, then files,
// oldest first. A crash in between leaves files that the next start removes.
func (l *Log) giveUp(segments []manifest.Summary, to int) error {
	s := &segments[to]
	start := manifest.Start{LSN: s.FirstLSN, Offset: s.BaseOffset, Digest: s.DigestBefore, Line: l.lineBefore(s.FirstLSN)}
	record := manifest.Record{Kind: manifest.KindStart, Start: start}
	if err := l.records.append(&record); err != nil {
		return l.condemn(l.wrap("move the log start", err), l.records.broken)
	}
	if err := l.state.Apply(&record); err != nil {
		return l.condemn(err, err)
	}
	lay := l.layout.Load()
	gone, kept := lay.segments[:to], lay.segments[to:]
	l.publish(kept)
	for _, g := range gone {
		g.gone.Store(true)
		l.store.handles.drop(g)
		l.removals = append(l.removals, removal{file: segmentFile(g.name)}, removal{file: indexFile(g.name)})
	}
	l.retryRemovals()
	l.compactRecords()
	// What was a small share of all messages may be too much for those that stay.
	l.store.candidates.add(candidate{log: l})
	return nil
}

// lineBefore returns the line of the epoch that holds the LSN before lsn.
func (l *Log) lineBefore(lsn chunk.LSN) (line manifest.EpochLine) {
	for _, e := range l.Epochs() {
		if e.LSN < lsn {
			line = e
		}
	}
	return line
}

// removal is a file that the log has given up. One that was replaced stays as
// long as somebody reads it, so that its bytes are seen where they are.
type removal struct {
	file string
	read *segment // nil if readers don't matter
}

// retryRemovals removes files that the log has given up. What can't be removed
// now is tried again at the next retention or compaction, and at the next start.
func (l *Log) retryRemovals() {
	left := l.removals[:0]
	var pinned int64
	for _, r := range l.removals {
		if r.read != nil && r.read.pins.Load() > 0 {
			pinned += r.read.end.Load()
			left = append(left, r)
			continue
		}
		if err := l.store.fs.Remove(l.file(r.file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			left = append(left, r)
		}
	}
	clear(l.removals[len(left):])
	l.removals = left
	l.mu.Lock()
	defer l.mu.Unlock()
	l.compaction.BytesPinned = pinned
}

// compactRecords rewrites MANIFEST when most of it is history. A failure is
// found by the next append.
func (l *Log) compactRecords() {
	records := l.state.Records()
	if len(l.removals) == 0 && manifest.WorthRewriting(l.records.size, int64(len(manifest.Encode(l.inc, records)))) {
		if l.records.rewrite(records) == nil {
			l.state.Obsolete = nil
		}
	}
}
