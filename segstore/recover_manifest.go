package segstore

import (
	"fmt"
	"slices"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
)

// rebuild makes MANIFEST anew from the footers: the log starts at the lowest
// file, and where several generations begin at one LSN, the highest with a valid
// footer wins. What was known only to MANIFEST is lost without harm: a log start
// inside of what is there (it moves up again), lines of epochs that left no
// chunk, an open cut (the search for the common point is repeated).
func (r *recovery) rebuild(exists bool) error {
	l := r.l
	r.ManifestRebuilt = true
	if exists {
		if err := r.quarantine(manifestName); err != nil {
			return err
		}
	}
	l.state = manifest.NewState(l.inc)
	if len(r.files) > 0 {
		start, err := r.lowestStart()
		if err != nil {
			return err
		}
		l.state.Start = start
		if start.Line.Epoch > 0 {
			l.state.Lines = []manifest.EpochLine{start.Line}
		}
		if err := r.chain(); err != nil {
			return err
		}
	}
	return l.records.rewrite(l.state.Records())
}

// chain seals, in the state, one segment after the other as footers tell, but
// for a last one: nothing proves that it was synced, and the log goes on in it.
func (r *recovery) chain() error {
	l := r.l
	for {
		end, _, _, _ := l.state.End()
		applied := false
		for _, name := range r.generations(end) {
			sum, ok, err := r.footer(name)
			if err != nil {
				return err
			}
			if ok && r.vouched(&sum) && l.state.Apply(&manifest.Record{Kind: manifest.KindSealed, Summary: sum}) == nil {
				applied = true
				break
			}
		}
		if !applied {
			return nil
		}
	}
}

// generations returns the files that begin at an LSN, the highest generation
// first.
func (r *recovery) generations(first chunk.LSN) []manifest.Name {
	var names []manifest.Name
	for n := range r.files {
		if n.FirstLSN == first {
			names = append(names, n)
		}
	}
	slices.SortFunc(names, compareNames)
	slices.Reverse(names)
	return names
}

// lowestStart returns the log start that the lowest file gives.
func (r *recovery) lowestStart() (manifest.Start, error) {
	lowest := manifest.Name{FirstLSN: ^chunk.LSN(0)}
	for n := range r.files {
		if compareNames(n, lowest) < 0 {
			lowest = n
		}
	}
	if lowest.FirstLSN == 1 {
		return manifest.Start{LSN: 1}, nil
	}
	for _, name := range r.generations(lowest.FirstLSN) {
		if s, ok, err := r.footer(name); err != nil {
			return manifest.Start{}, err
		} else if ok {
			return startBefore(s.FirstLSN, s.BaseOffset, s.DigestBefore, s.FirstEpoch), nil
		}
	}
	f, err := r.l.openFile(lowest, false)
	if err != nil {
		return manifest.Start{}, err
	}
	defer func() { _ = f.Close() }()
	h, _, _, _, err := newWalker(f, r.l.inc, 0, r.files[lowest], false).next()
	if err != nil || h.LSN != lowest.FirstLSN {
		return manifest.Start{}, fmt.Errorf("MANIFEST is lost, and %w", &DamageError{
			File: r.path(segmentFile(lowest)), Segment: lowest, First: lowest.FirstLSN, Cause: err,
		})
	}
	return startBefore(h.LSN, h.BaseOffset, h.DigestBefore, h.Epoch), nil
}

// startBefore is a log start of which only the first chunk is known. Its line
// can't be: that the first chunk's epoch began before is the lowest that is
// certain.
func startBefore(lsn chunk.LSN, offset chunk.Offset, digest chunk.Digest, epoch chunk.Epoch) manifest.Start {
	return manifest.Start{
		LSN: lsn, Offset: offset, Digest: digest,
		Line: manifest.EpochLine{Epoch: epoch, LSN: lsn - 1, Offset: offset},
	}
}
