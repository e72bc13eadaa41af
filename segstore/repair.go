package segstore

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

var (
	// ErrSound refuses to repair a segment that is not known to be damaged.
	ErrSound = errors.New("segstore: segment is not damaged")
	// ErrBusy refuses to rewrite a segment while the log is rewriting one.
	ErrBusy = errors.New("segstore: another segment is being rewritten")
	// ErrNotYet refuses to repair a segment behind which nothing is committed and
	// durable yet.
	ErrNotYet = errors.New("segstore: what follows the segment is not committed and durable yet")
	// ErrForeign reports bytes from a Source that are not those of the segment.
	ErrForeign = errors.New("segstore: the source's chunks are not those of the segment")
)

// Source is where the good bytes of a damaged segment come from: another
// replica's log, over a link. Each call is one request, so that a link carries it
// in its request lane with credit and deadline, and the other end answers it by
// Log.ReadRange.
type Source interface {
	// ReadRange returns whole chunks of a stream, head and data as in a segment
	// file, back to back: from the first at or above from on, those up to last
	// that fit in about max bytes, at least one if there is any. next is the LSN
	// to ask for then; above last it means that this was all. What compaction
	// has taken there is missing: control chunks, trailers. The bytes are the
	// caller's, who believes none of them unproven.
	ReadRange(ctx context.Context, stream chunk.Incarnation, from, last chunk.LSN, max int) (chunks []byte, next chunk.LSN, err error)
}

// repairRead is how many bytes a Repair asks for at a time.
const repairRead = 1 << 20

// Repair fetches one damaged sealed segment from another replica (design 3.7).
//
//	rep := log.Repair(name)          in the log's turn
//	rep.Fetch(ctx, source)           anywhere, while the log goes on
//	log.InstallRepair(rep)           in the log's turn; or rep.Abandon()
//
// The new file is of the next generation and takes the damaged one's place as a
// compacted file does. Two replicas' files differ, since each writes its own
// synced LSNs and compacts when it likes; what must agree is the digest chain
// over the user chunks, and the counts in MANIFEST's summary. So a fetched file
// is right if every chunk is whole, follows the one before from the neighbour's
// digest to the neighbour's digest, and all together are what was summed up when
// the segment was sealed here.
//
// A Repair is used by one goroutine at a time.
type Repair struct {
	rewriting
	// strip: user chunks are kept without their trailers, and no others.
	// mayStrip: the log needs none of the segment's tracking (E1).
	strip, mayStrip bool

	next   chunk.Offset
	digest chunk.Digest
	before chunk.Tail // the chunk before
	last   chunk.Timestamp
}

// Damaged lists the sealed segments that are known to be damaged, ascending.
func (l *Log) Damaged() (names []manifest.Name) {
	lay := l.layout.Load()
	if lay == nil {
		return nil // it is being opened
	}
	for _, s := range lay.segments {
		if s.summary.Load() != nil && s.harm() != nil {
			names = append(names, s.name)
		}
	}
	return names
}

// Repair begins to repair a damaged sealed segment. A chunk behind it must be
// committed and durable, so that neither a cut nor a power loss ever makes it the
// last one again. Mutator.
//
// Errors: ErrMissing, ErrSound, ErrBusy, ErrNotYet; ErrClosed, ErrPoisoned.
func (l *Log) Repair(name manifest.Name) (*Repair, error) {
	step := "repair segment " + name.String()
	if err := l.mayRewrite(); err != nil {
		return nil, l.wrap(step, err)
	}
	i := slices.IndexFunc(l.state.Segments, func(s manifest.Summary) bool { return s.Name() == name })
	if i < 0 {
		return nil, l.wrap(step, ErrMissing)
	}
	segments := l.layout.Load().segments
	safe := min(l.Commit(), l.Durable().LSN)
	switch {
	case segments[i].harm() == nil:
		return nil, l.wrap(step, ErrSound)
	case l.rewriting():
		return nil, l.wrap(step, ErrBusy)
	case safe <= l.state.Segments[i].LastLSN:
		return nil, l.wrap(step, ErrNotYet)
	}
	r := &Repair{mayStrip: l.snapshotBehind(i, safe)}
	l.rewrite(&r.rewriting, segments[i:i+1], slices.Clone(l.state.Segments[i:i+1]))
	// What compaction or a gap has taken here can't be had back from one who
	// still has it: the summary would say otherwise.
	r.strip = r.old[0].Generation > 0 || r.old[0].DroppedLSN != 0
	return r, nil
}

// snapshotBehind tells whether a later segment begins with a complete snapshot
// up to an LSN.
func (l *Log) snapshotBehind(i int, safe chunk.LSN) bool {
	later := l.state.Segments[i+1:]
	if l.active != nil {
		later = append(slices.Clone(later), l.summary)
	}
	return slices.ContainsFunc(later, func(s manifest.Summary) bool {
		return s.SnapshotLast.LSN != 0 && s.SnapshotLast.LSN <= safe
	})
}

// Fetch gets the segment's chunks and makes a file of them that is whole and
// durable; the damaged file is copied to quarantine then. After an error only
// Abandon may follow.
//
// Errors: ErrForeign; ErrNoSnapshot where the source has no tracking any more
// that this log still needs; ErrClosed; what source and disk say.
func (r *Repair) Fetch(ctx context.Context, source Source) error {
	err := errCompacted
	if !r.strip {
		err = r.fetch(ctx, source)
	}
	switch r.strip = true; {
	case !errors.Is(err, errCompacted):
	case !r.mayStrip:
		err = fmt.Errorf("%w: %w", ErrNoSnapshot, err)
	default:
		err = r.fetch(ctx, source)
	}
	if err == nil {
		err = r.keepDamaged()
	}
	if err != nil {
		return r.log.wrap("repair segment "+r.old[0].Name().String(), err)
	}
	return nil
}

// errCompacted: source or log have compacted the segment.
var errCompacted = errors.New("segstore: its tracking has been dropped")

func (r *Repair) fetch(ctx context.Context, source Source) error {
	old := &r.old[0]
	r.begin()
	r.next, r.digest, r.last = old.BaseOffset, old.DigestBefore, 0
	r.before = chunk.Tail{Epoch: old.FirstEpoch, LSN: old.FirstLSN - 1}
	for lsn := old.FirstLSN; lsn <= old.LastLSN; {
		if r.log.closed() {
			return ErrClosed
		}
		chunks, next, err := source.ReadRange(ctx, r.log.inc, lsn, old.LastLSN, repairRead)
		if err != nil {
			return err
		}
		if next <= lsn {
			return fmt.Errorf("%w: asked for chunk %d, sent on to %d", ErrForeign, lsn, next)
		}
		if err := r.takeAll(chunks); err != nil {
			return err
		}
		lsn = next
	}
	return r.complete()
}

// takeAll verifies and keeps chunks that lie back to back.
func (r *Repair) takeAll(chunks []byte) error {
	for len(chunks) > 0 {
		head, data, err := chunk.Peek(chunks)
		if err == nil && len(chunks) < head+data {
			err = fmt.Errorf("%w: %d bytes for %d", chunk.ErrShort, len(chunks), head+data)
		}
		if err != nil {
			return fmt.Errorf("%w: behind chunk %d: %w", ErrForeign, r.before.LSN, err)
		}
		if err := r.take(chunks[:head], chunks[head:head+data]); err != nil {
			return err
		}
		chunks = chunks[head+data:]
	}
	return nil
}

// take verifies one chunk as a follower does and keeps it.
func (r *Repair) take(head, data []byte) error {
	h, err := chunk.Verify(r.log.inc, head, data)
	if err == nil && h.Type == chunk.User {
		err = h.ValidateEntries(data)
	}
	if err == nil {
		err = r.follows(&h)
	}
	if err != nil {
		return fmt.Errorf("%w: behind chunk %d: %w", ErrForeign, r.before.LSN, err)
	}
	if !r.strip && (h.LSN != r.before.LSN+1 || h.Has(chunk.FlagStripped)) {
		return fmt.Errorf("%w: chunk %d behind %d", errCompacted, h.LSN, r.before.LSN)
	}
	r.before, r.next, r.digest, r.last = h.Tail(), h.Next(), h.DigestAfter(), h.Timestamp
	if r.strip && h.Type != chunk.User {
		r.out.Drop(&h)
		return nil
	}
	// Everything up to the segment's end was durable here when it was sealed. The
	// source's own mark says nothing about this disk.
	h.SyncedLSN = r.old[0].FirstLSN - 1
	h.HeadCRC = chunk.Restamp(r.log.inc, head, h.SyncedLSN)
	if r.strip {
		err = r.keepStripped(&h, head, data)
	} else {
		err = r.keep(&h, head, data)
	}
	if err == nil && r.out.Size > r.old[0].Size {
		err = fmt.Errorf("%w: they are more than %d bytes", ErrForeign, r.old[0].Size)
	}
	return err
}

// follows holds a chunk against the one before it, over what is missing between.
func (r *Repair) follows(h *chunk.Header) error {
	if h.LSN <= r.before.LSN || h.LSN > r.old[0].LastLSN || h.Epoch > r.old[0].LastEpoch {
		return fmt.Errorf("%w: chunk %d of epoch %d", ErrNotContiguous, h.LSN, h.Epoch)
	}
	before := chunk.Tail{Epoch: r.before.Epoch, LSN: h.LSN - 1}
	return continues(h, before, r.next, r.digest, r.last)
}

// complete holds all chunks together against the summary of the damaged file,
// and makes the new one durable.
func (r *Repair) complete() error {
	old := &r.old[0]
	if !r.strip && r.before.LSN != old.LastLSN {
		return fmt.Errorf("%w: the last chunk is %d, not %d", errCompacted, r.before.LSN, old.LastLSN)
	}
	if r.strip {
		r.out.Drop(&chunk.Header{LSN: old.LastLSN})
	} else if !sameContent(&r.out, old) {
		return fmt.Errorf("%w: together they are not what was sealed", ErrForeign)
	}
	if err := errors.Join(r.out.Check(), r.out.Replaces(r.old)); err != nil {
		return fmt.Errorf("%w: %w", ErrForeign, err)
	}
	return r.finish()
}

// sameContent tells whether two files hold the same chunks but for the synced
// LSNs in them.
func sameContent(a, b *manifest.Summary) bool {
	c := *a
	c.Generation, c.Chain = b.Generation, b.Chain
	return sameSummary(&c, b)
}

// keepDamaged copies the damaged file to quarantine, as far as it can be read.
func (r *Repair) keepDamaged() error {
	err := r.log.store.keepCopy(r.sources[0].path(), true)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // it is what is missing
	}
	return err
}

// Abandon drops the work and its file. It may be called after any error, and
// does nothing after InstallRepair.
func (r *Repair) Abandon() {
	r.abandon()
	r.log.store.candidates.add(candidate{log: r.log})
}

// InstallRepair makes a fetched segment part of the log, in the place of the
// damaged one. Mutator.
//
// Errors: ErrStale, then the segment is not the log's any more; what the disk
// says.
func (l *Log) InstallRepair(r *Repair) error {
	if err := l.install(&r.rewriting); err != nil {
		return err
	}
	l.mu.Lock()
	l.repaired++
	l.mu.Unlock()
	l.store.candidates.add(candidate{log: l})
	return nil
}

// ReadRange returns chunks of the log for another replica's Repair: see Source.
// Only what is committed is given, and data that was not checked since the start
// is checked.
//
// Errors: ErrNotYet for chunks above the commit; ErrMissing for those below the
// log start; a *DamageError; ErrClosed; what the disk says.
func (l *Log) ReadRange(from, last chunk.LSN, max int) (chunks []byte, next chunk.LSN, err error) {
	step := fmt.Sprintf("read chunks %d to %d", from, last)
	if commit := l.Commit(); last > commit {
		return nil, 0, l.wrap(step, fmt.Errorf("%w: commit %d", ErrNotYet, commit))
	}
	r := l.AttachLSN(from)
	defer r.Close()
	for len(chunks) < max || len(chunks) == 0 {
		v, ok, err := r.Next(last)
		if err != nil {
			return nil, 0, l.wrap(step, err)
		}
		if !ok {
			break
		}
		chunks = append(append(chunks, v.Head...), v.Data...)
		v.Release()
	}
	// Checked behind the reading: retention may have come between.
	if start := l.LogStart().LSN; from < start {
		return nil, 0, l.wrap(step, fmt.Errorf("%w: the log starts at %d", ErrMissing, start))
	}
	return chunks, r.LSN(), nil
}
