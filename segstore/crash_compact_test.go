package segstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/plan"
)

// replacement is one piece of compaction as the ghost knows it: out takes the
// place of the chunks from FirstLSN to LastLSN.
type replacement struct {
	// out is the new segment's summary before its chunks are counted.
	out  manifest.Summary
	kind plan.CompactKind
	// installed: the log has said so. One that was only asked for may come back
	// or not.
	installed bool
}

// compacting notes that the log is about to make and install a piece of
// compaction.
func (g *ghost) compacting(infos []segstore.SegmentInfo, job *segstore.Compaction) {
	var old []manifest.Summary
	generation := uint32(0)
	for _, s := range infos[job.From:job.To] {
		old = append(old, s.Summary)
		generation = max(generation, s.Generation)
	}
	r := replacement{out: manifest.Replacing(old, generation+1), kind: job.Kind}
	for i := range g.now().links {
		if l := &g.now().links[i]; r.covers(l.LSN) && l.Type != chunk.User {
			r.out.Drop(&l.Header)
		}
	}
	g.replacements = append(g.replacements[:len(g.replacements):len(g.replacements)], r)
}

// superseded returns the LSN before which no tracking is needed: the first part
// of the second newest snapshot that is complete, durable and committed (E2).
func (g *ghost) superseded() chunk.LSN {
	h, complete := g.now(), 0
	for i := len(h.links) - 1; i >= 0; i-- {
		l := &h.links[i]
		if l.Has(chunk.FlagSnapshotLast) && l.LSN <= min(g.commitMax, h.must) {
			complete++
		}
		if l.Has(chunk.FlagSnapshotFirst) && complete == 2 {
			return l.LSN
		}
	}
	return 0
}

// compacted notes how the newest piece of compaction ended: it is in place, or
// it never will be.
func (g *ghost) compacted(installed bool) {
	last := len(g.replacements) - 1
	g.replacements = slices.Clone(g.replacements)
	if g.replacements[last].installed = installed; !installed {
		g.replacements = g.replacements[:last]
	}
}

func (r *replacement) covers(lsn chunk.LSN) bool {
	return r.out.FirstLSN <= lsn && lsn <= r.out.LastLSN
}

// replacement returns what the ghost knows of a compacted segment.
func (g *ghost) replacement(name manifest.Name) *replacement {
	for i := range g.replacements {
		if g.replacements[i].out.Name() == name {
			return &g.replacements[i]
		}
	}
	return nil
}

// checkLayout: the log's sealed files are those from before a piece of
// compaction or those from after it, and only these after it was installed
// (I19, I20); nothing was dropped that was not committed (C5).
func (w *world) checkLayout(infos []segstore.SegmentInfo) error {
	for i := range infos {
		s := &infos[i]
		known := w.ghost.replacement(s.Name())
		if s.Generation > 0 && (known == nil || known.out.LastLSN != s.LastLSN) {
			return fmt.Errorf("I19: nobody has made segment %s up to %d", s.Name(), s.LastLSN)
		}
		for j := range w.ghost.replacements {
			r := &w.ghost.replacements[j]
			if r.installed && r.covers(s.FirstLSN) && s.Generation < r.out.Generation {
				return fmt.Errorf("I20: segment %s is back, which %s has replaced", s.Name(), r.out.Name())
			}
		}
		if s.DroppedLSN > w.ghost.commitMax {
			return fmt.Errorf("C5: chunk %d was dropped from %s, commit is %d", s.DroppedLSN, s.Name(), w.ghost.commitMax)
		}
	}
	return nil
}

// expected returns what a reader of all chunks must find of a chunk: itself,
// without its trailer where its segment was compacted, or nothing, ok false, of
// a control chunk there.
func expected(infos []segstore.SegmentInfo, l *link) (head []byte, ok bool) {
	i := slices.IndexFunc(infos, func(s segstore.SegmentInfo) bool { return s.FirstLSN <= l.LSN && l.LSN <= s.LastLSN })
	if i < 0 || infos[i].Generation == 0 {
		return l.head, true
	}
	return bytes.Join([][]byte{l.head[:chunk.StorageHeaderLength], l.FilterOf(l.head), chunk.ClientHeaderOf(l.head)}, nil), l.Type == chunk.User
}

// sameHead compares a head that was read with the one that is expected: of a
// stripped one, all but the trailer's length, the flag that says so, and the CRC.
func sameHead(got *chunk.Header, head, want []byte, l *link) bool {
	if len(want) == len(l.head) {
		return bytes.Equal(head, want)
	}
	const flags, trailerLength, crc = 6, 36, 44 // of the storage header
	want = bytes.Clone(want)
	if len(head) != len(want) || got.TrailerLength != 0 || got.Flags != l.Flags|chunk.FlagStripped {
		return false
	}
	for _, field := range [][2]int{{flags, 2}, {trailerLength, 4}, {crc, 4}} {
		copy(want[field[0]:], head[field[0]:field[0]+field[1]])
	}
	return bytes.Equal(head, want)
}

// beginCompaction makes the new file of the next piece of compaction, up to its
// last sync. It tells whether there is a piece.
func (w *world) beginCompaction() (bool, error) {
	if w.job != nil {
		return false, nil
	}
	job, _ := w.log.Compact()
	if job == nil {
		return false, nil
	}
	w.ghost.compacting(w.log.Segments(), job)
	made := &w.ghost.replacements[len(w.ghost.replacements)-1]
	if safe := w.ghost.superseded(); made.out.LastLSN >= safe {
		return true, fmt.Errorf("E2: chunks up to %d are to be compacted, the second newest committed snapshot is at %d", made.out.LastLSN, safe)
	}
	for done := false; !done; {
		var err error
		if _, done, err = job.Step(1); err != nil {
			job.Abandon()
			return true, err
		}
	}
	w.job = job
	return true, nil
}

// install puts a finished piece of compaction in place. One that retention or a
// cut has overtaken is dropped.
func (w *world) install() (bool, error) {
	if w.job == nil {
		return false, nil
	}
	job := w.job
	w.job = nil
	err := w.log.Install(job)
	switch {
	case errors.Is(err, segstore.ErrStale):
		w.ghost.compacted(false)
		err = nil
	case err == nil:
		w.ghost.compacted(true)
	}
	return true, err
}

func (w *world) compact() (bool, error) {
	if does, err := w.beginCompaction(); !does || err != nil {
		return does, err
	}
	return w.install()
}

// compactPinned compacts while the replaced files can't be removed, as when
// somebody reads them.
func (w *world) compactPinned() (bool, error) {
	w.process.pinned = true
	does, err := w.compact()
	w.process.pinned = false
	return does, err
}

// growDroppable makes five sealed segments of one unit: one without a user
// chunk, and some that are worth merging once their tracking is gone.
func (w *world) growDroppable() error { return w.take("eavdvavavavasc") }

// growMergeable drops all tracking from these, so that a merge is next.
func (w *world) growMergeable() error {
	if err := w.growDroppable(); err != nil {
		return err
	}
	for {
		if does, err := w.beginCompaction(); err != nil || !does {
			return errors.Join(err, errors.New("no merge is due"))
		}
		if w.job.Kind == plan.CompactMerge {
			w.job.Abandon()
			w.job = nil
			w.ghost.compacted(false)
			return nil
		}
		if _, err := w.install(); err != nil {
			return err
		}
	}
}

// take takes steps that must all do something.
func (w *world) take(steps string) error {
	for i := range len(steps) {
		does, err := w.step(steps[i])
		if err != nil || !does {
			return errors.Join(err, fmt.Errorf("step %d of %s, does %v", i+1, steps, does))
		}
	}
	return nil
}
