package segstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"path"
	"reflect"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// checkDisk holds what a crash left, before anybody has repaired it, against
// I20: each segment that MANIFEST names is there as a whole.
func checkDisk(disk vfs.FS) error {
	b, err := vfs.ReadFile(disk, path.Join(streamPath, "MANIFEST"))
	if err != nil {
		return fmt.Errorf("I20: %w", err)
	}
	records, _, err := manifest.Decode(crashIncarnation, b)
	if err != nil {
		return fmt.Errorf("I20: %w", err)
	}
	state, err := manifest.Fold(crashIncarnation, records)
	if err != nil {
		return fmt.Errorf("I20: %w", err)
	}
	for i := range state.Segments {
		s := &state.Segments[i]
		e, err := disk.Stat(path.Join(streamPath, s.Name().String()+".seg"))
		if err != nil || e.Size != s.FileSize() {
			return fmt.Errorf("I20: MANIFEST names %s of %d bytes, there are %d (%v)", s.Name(), s.FileSize(), e.Size, err)
		}
	}
	return nil
}

// check holds a log that has just been opened after a crash against the ghost.
func (w *world) check() (*outcome, error) {
	if err := w.checkClean(); err != nil {
		return nil, err
	}
	out := &outcome{
		tail: w.log.Tail(), start: w.log.LogStart(), next: w.log.Next(), digest: w.log.Digest(), commit: w.log.Commit(),
	}
	out.journal, _ = w.store.Journal().State(crashIncarnation)
	if err := w.checkHistory(out); err != nil {
		return out, err
	}
	if err := w.checkJournal(out); err != nil {
		return out, err
	}
	return out, w.checkFiles(out)
}

// checkClean: a crash alone is never damage, and nothing is thought unknown
// (I25, I27).
func (w *world) checkClean() error {
	r := &w.found
	lost := w.store.Journal().Lost()
	if w.log.Err() != nil || len(r.Damage) > 0 || r.Aside != segstore.NotAside || lost != nil {
		return fmt.Errorf("I25: a crash is called damage: %v, journal %v, aside %s, found %+v", w.log.Err(), lost, r.Aside, *r)
	}
	if len(r.Quarantined)+len(r.Ignored) > 0 || r.ManifestRebuilt {
		return fmt.Errorf("I25: own files are thought unknown: %+v", *r)
	}
	if d := w.log.Durable(); d != w.log.Tail() || d != r.Tail || r.Mark > d.LSN {
		return fmt.Errorf("I25: durable %s, tail %s, found %s, mark %d", d, w.log.Tail(), r.Tail, r.Mark)
	}
	return nil
}

// checkHistory: one of the histories came back, no shorter than what was
// reported (I7, I25), with the very bytes that were appended (I11, I26), and
// tracking is the fold of exactly these (I17, I18).
func (w *world) checkHistory(out *outcome) error {
	var problems []error
	for i := range w.ghost.histories {
		err := w.matches(&w.ghost.histories[i], out)
		if err == nil {
			out.histories = i
			return nil
		}
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

func (w *world) matches(h *history, out *outcome) error {
	if out.start.LSN < h.from.LSN {
		return fmt.Errorf("I18: log starts at %d, below the history that starts at %d", out.start.LSN, h.from.LSN)
	}
	if want, err := h.startAt(out.start.LSN); err != nil || out.start != want {
		return fmt.Errorf("I23: log starts at %+v, want %+v (%v)", out.start, want, err)
	}
	if w.ghost.startMin > out.start.LSN || out.start.LSN > max(w.ghost.startMax, h.from.LSN) {
		return fmt.Errorf("I23: log starts at %d, reported %d, asked for %d", out.start.LSN, w.ghost.startMin, w.ghost.startMax)
	}
	if out.tail.LSN < h.must || out.tail.LSN > h.tail().LSN {
		return fmt.Errorf("I25: tail %s, but %d was reported durable and %s appended", out.tail, h.must, h.tail())
	}
	was := h.cut(out.tail.LSN)
	if was.tail() != out.tail || was.next() != out.next || was.digest() != out.digest {
		return fmt.Errorf("I11: log ends at %s, offset %d, digest %s, want %s, %d, %s",
			out.tail, out.next, out.digest, was.tail(), was.next(), was.digest())
	}
	if err := w.matchChunks(&was, out); err != nil {
		return err
	}
	lines := was.lines(out.start.LSN, out.tail.LSN)
	if got := w.log.Epochs(); !reflect.DeepEqual(got, lines) && len(got)+len(lines) > 0 {
		return fmt.Errorf("C1: epoch table %v, want %v", got, lines)
	}
	return w.matchTracking(&was, out)
}

func (w *world) matchTracking(was *history, out *outcome) error {
	fold, ok := w.log.Tracking().AppendCheckpoint(nil)
	want, wantOK := was.foldAt()
	out.tracking = string(fold)
	if was.from.LSN == 1 && !w.log.Tracking().Known() { // a reset may make it so (F9)
		return errors.New("I17: tracking is unknown")
	}
	if ok != wantOK || !bytes.Equal(fold, want) {
		return fmt.Errorf("I17: tracking is not the fold of the log: %s, want %s", w.log.Tracking(), was.fold())
	}
	return nil
}

// matchChunks reads every chunk through a Reader.
func (w *world) matchChunks(was *history, out *outcome) error {
	r := w.log.AttachLSN(out.start.LSN)
	defer r.Close()
	infos := w.log.Segments()
	var hash maphash.Hash
	hash.SetSeed(crashSeed)
	for lsn := out.start.LSN; lsn <= out.tail.LSN; lsn++ {
		l := was.at(lsn)
		if l == nil {
			return fmt.Errorf("I11: chunk %d was never appended", lsn)
		}
		head, ok := expected(infos, l)
		if !ok {
			continue
		}
		v, ok, err := r.Next(out.tail.LSN)
		if err != nil || !ok {
			return fmt.Errorf("I26: read chunk %d: %v %w", lsn, ok, err)
		}
		if !sameHead(&v.Header, v.Head, head, l) || !bytes.Equal(v.Data, l.data) {
			v.Release()
			return fmt.Errorf("I11: chunk %d has other bytes than were appended", lsn)
		}
		hash.Write(v.Head)
		hash.Write(v.Data)
		v.Release()
	}
	if _, ok, err := r.Next(out.tail.LSN + 1); ok || err != nil {
		return fmt.Errorf("I11: something is behind the tail: %v %w", ok, err)
	}
	out.chunks = fmt.Sprint(hash.Sum64())
	return nil
}

// checkJournal: promise, commit and mark are no lower than what was reported
// and no higher than what is true.
func (w *world) checkJournal(out *outcome) error {
	g, s := w.ghost, out.journal
	switch {
	case s.Promise < g.promiseMin || s.Promise > g.promiseMax:
		return fmt.Errorf("A2: promised %d, reported %d, asked for %d", s.Promise, g.promiseMin, g.promiseMax)
	case s.Mark < g.markMin || s.Mark > out.tail.LSN:
		return fmt.Errorf("I25: mark %d, reported %d, tail %s", s.Mark, g.markMin, out.tail)
	case out.commit < g.commitMin || out.commit > max(g.commitMax, g.startMax-1) || out.commit > out.tail.LSN:
		return fmt.Errorf("B5: commit %d, reported %d, told %d, tail %s", out.commit, g.commitMin, g.commitMax, out.tail)
	case s.Commit > s.Mark:
		return fmt.Errorf("B5: commit %d above the mark %d", s.Commit, s.Mark)
	}
	if other, ok := w.store.Journal().State(otherIncarnation); !ok || other.Promise != otherPromise || other.Aside != segstore.NotAside {
		return fmt.Errorf("A2: another stream's record is %+v, %v", other, ok)
	}
	return nil
}

// checkFiles: the directory holds what the log says and nothing else (I20), and
// each summary is what a scan of its file gives (I24).
func (w *world) checkFiles(out *outcome) error {
	expected := map[string]bool{"MANIFEST": true, "CHECKPOINT": true}
	infos := w.log.Segments()
	if err := w.checkLayout(infos); err != nil {
		return err
	}
	next, offset, digest, epoch := out.start.LSN, out.start.Offset, out.start.Digest, out.start.Line.Epoch
	for i := range infos {
		s := &infos[i]
		name := s.Name().String()
		expected[name+".seg"], expected[name+".idx"] = true, true
		if s.FirstLSN != next || s.BaseOffset != offset || s.DigestBefore != digest || s.Sealed != (i < len(infos)-1) {
			return fmt.Errorf("I24: segment %s (sealed %v) does not follow at chunk %d, offset %d", name, s.Sealed, next, offset)
		}
		if err := w.checkSegment(s, epoch); err != nil {
			return err
		}
		next, offset, digest, epoch = s.LastLSN+1, s.NextOffset, s.DigestAfter, s.LastEpoch
		out.boundaries += name + " "
	}
	found, err := w.disk.List(streamPath)
	if err != nil {
		return err
	}
	for _, e := range found {
		if !expected[e.Name] {
			return fmt.Errorf("I20: %s is left over", e.Name)
		}
	}
	for _, dir := range []string{"quarantine", "streams"} {
		found, err := w.disk.List(path.Join(crashDir, dir))
		if err != nil || len(found) != map[string]int{"quarantine": 0, "streams": 2}[dir] {
			return fmt.Errorf("I29: %s holds %v (%w)", dir, found, err)
		}
	}
	return nil
}

func (w *world) checkSegment(s *segstore.SegmentInfo, epoch chunk.Epoch) error {
	name := s.Name().String()
	b, err := vfs.ReadFile(w.disk, path.Join(streamPath, name+".seg"))
	if err != nil {
		return fmt.Errorf("I24: %w", err)
	}
	want := s.Size
	if s.Sealed {
		want = s.FileSize()
	}
	if int64(len(b)) != want {
		return fmt.Errorf("I24: %s has %d bytes, want %d", name, len(b), want)
	}
	var scan *manifest.Summary
	if s.Generation == 0 {
		scan, err = scanFile(b[:s.Size], epoch)
	} else {
		scan, err = scanCompacted(b[:s.Size], w.ghost.replacement(s.Name()).out)
	}
	if err != nil {
		return fmt.Errorf("I24: scan %s: %w", name, err)
	}
	if !reflect.DeepEqual(*scan, s.Summary) {
		return fmt.Errorf("I24: summary of %s\n  is   %+v\n  scan %+v", name, s.Summary, *scan)
	}
	return nil
}

// scanFile summarises a file's chunks.
func scanFile(b []byte, epoch chunk.Epoch) (*manifest.Summary, error) {
	var sum *manifest.Summary
	err := eachChunk(b, func(h *chunk.Header, head []byte, _ int) error {
		if sum == nil {
			s := manifest.NewSummary(crashIncarnation, 0, h)
			sum = &s
		}
		sum.Add(h, epoch)
		sum.AddSequences(h, tracking.SequenceBytes(h, h.TrailerOf(head)))
		epoch = h.Epoch
		return nil
	})
	if err == nil && sum == nil {
		err = errors.New("no chunk")
	}
	return sum, err
}

// scanCompacted counts the chunks of a compacted file into the summary that it
// had before its first one.
func scanCompacted(b []byte, sum manifest.Summary) (*manifest.Summary, error) {
	err := eachChunk(b, func(h *chunk.Header, _ []byte, _ int) error {
		if h.Type != chunk.User || h.TrailerLength > 0 {
			return fmt.Errorf("chunk %d carries tracking", h.LSN)
		}
		sum.Keep(h)
		return nil
	})
	return &sum, err
}

// eachChunk verifies a file's chunks and shows each with its place.
func eachChunk(b []byte, show func(h *chunk.Header, head []byte, at int) error) error {
	for at := 0; at < len(b); {
		head, data, err := chunk.Peek(b[at:])
		if err != nil {
			return err
		}
		if head+data > len(b)-at {
			return chunk.ErrShort
		}
		h, err := chunk.Verify(crashIncarnation, b[at:at+head], b[at+head:at+head+data])
		if err != nil {
			return err
		}
		if err := show(&h, b[at:at+head], at); err != nil {
			return err
		}
		at += head + data
	}
	return nil
}

// goOn appends and syncs behind what a recovery left, as the next leader does.
func (w *world) goOn(out *outcome) error {
	h := w.ghost.histories[out.histories].cut(out.tail.LSN)
	var made []replacement
	for _, s := range w.log.Segments() {
		if r := w.ghost.replacement(s.Name()); r != nil {
			made = append(made, *r)
			made[len(made)-1].installed = true
		}
	}
	w.ghost = &ghost{
		replacements: made,
		histories:    []history{h}, startMin: out.start.LSN, startMax: out.start.LSN,
		commitMax: out.commit, promiseMin: out.journal.Promise, promiseMax: out.journal.Promise,
	}
	w.ghost.now().must = out.tail.LSN
	w.epoch = out.tail.Epoch + 1
	w.clock = max(w.clock, h.timestamp())
	if err := w.append(w.barrier()); err != nil {
		return fmt.Errorf("go on: %w", err)
	}
	if err := w.append(w.message()); err != nil {
		return fmt.Errorf("go on: %w", err)
	}
	if err := w.append(w.snapshot(true, 0)...); err != nil {
		return fmt.Errorf("go on: %w", err)
	}
	return w.sync()
}

var crashSeed = maphash.MakeSeed()

// hashDisk tells states of a disk apart.
func hashDisk(disk *vfs.Mem, with string) uint64 {
	var h maphash.Hash
	h.SetSeed(crashSeed)
	h.WriteString(with)
	disk.Walk(func(name string, content []byte) {
		if path.Base(name) != "LOCK" {
			h.WriteString(name)
			h.WriteByte(0)
			h.Write(content)
			h.WriteByte(1)
		}
	})
	return h.Sum64()
}
