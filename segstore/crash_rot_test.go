package segstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// rot flips one bit of a segment file behind a recovery, when all of the log is
// durable, and holds what comes of it against I26 and I27: no damaged byte is
// given out or folded, the damage is named, and a replica whose end is unproven
// says so, also after a restart. It tells which of the two the flip put to the
// test.
func (w *world) rot(out *outcome, seed uint64) (proven []string, err error) {
	disk := powerLoss(w.disk)
	infos := w.log.Segments()
	random := rand.New(rand.NewPCG(seed, 1))
	s := &infos[random.IntN(len(infos))]
	file := path.Join(streamPath, s.Name().String()+".seg")
	var at, bit int
	var hit chunk.LSN // 0: the footer
	err = disk.Edit(file, func(b []byte) []byte {
		at, bit = random.IntN(len(b)), random.IntN(8)
		if at < int(s.Size) {
			_ = eachChunk(b[:s.Size], func(h *chunk.Header, _ []byte, start int) error {
				if start <= at {
					hit = h.LSN
				}
				return nil
			})
		}
		b = bytes.Clone(b)
		b[at] ^= 1 << bit
		return b
	})
	if err != nil {
		return nil, err
	}
	rotten := &world{disk: disk, ghost: w.ghost.clone(), clock: crashTime}
	proven, err = rotten.checkRot(out, hit)
	if err != nil {
		return nil, fmt.Errorf("%w\n  rot     bit %d of byte %d of %s, chunk %d", err, bit, at, file, hit)
	}
	return proven, nil
}

func (w *world) checkRot(out *outcome, hit chunk.LSN) (proven []string, err error) {
	if err := errors.Join(w.start(nil), w.open()); err != nil {
		return nil, fmt.Errorf("I26: the log does not open: %w", err)
	}
	damaged := w.log.Err() != nil
	noticed := damaged || len(w.found.Damage) > 0
	met, err := w.readRotten(out, hit)
	switch {
	case err != nil:
		return nil, err
	case hit == 0 && (noticed || met):
		return nil, fmt.Errorf("I26: a flipped footer is called damage: %+v", w.found)
	case hit > 0 && !noticed && !met:
		return nil, errors.New("I26: the flip was read and not noticed")
	case hit > 0:
		proven = append(proven, "I26")
	}
	if !damaged {
		if fold, _ := w.log.Tracking().AppendCheckpoint(nil); string(fold) != out.tracking {
			return nil, errors.New("I26: tracking has changed")
		}
		return proven, nil
	}
	return append(proven, "I27"), w.checkAside(out)
}

// rotBefore flips a bit in the unsealed file as a crash has left it, before any
// recovery. What that hits is damage if the journal, or a chunk beside it, says
// that it was durable, and must not be cut for a torn tail (I25). It tells
// whether there was anything to flip.
func (g *ghost) rotBefore(state *vfs.Mem, seed uint64) (flipped bool, err error) {
	disk := powerLoss(state)
	file, err := lastSegment(disk)
	if err != nil || file == "" {
		return false, err
	}
	random := rand.New(rand.NewPCG(seed, 2))
	proof := g.markMin
	var hit chunk.LSN
	err = disk.Edit(file, func(b []byte) []byte {
		var ends []int
		var headers []chunk.Header
		_ = eachChunk(b, func(h *chunk.Header, _ []byte, at int) error {
			ends, headers = append(ends, at+h.Length()), append(headers, *h)
			return nil
		})
		if len(ends) == 0 {
			return b
		}
		at := random.IntN(ends[len(ends)-1])
		b[at] ^= 1 << random.IntN(8)
		for i := len(ends) - 1; i >= 0; i-- {
			if begin := ends[i] - headers[i].Length(); begin <= at && at < ends[i] {
				hit = headers[i].LSN
			} else {
				proof = max(proof, headers[i].SyncedLSN)
			}
		}
		return b
	})
	if err != nil || hit == 0 {
		return false, err
	}
	w := &world{disk: disk, ghost: g.clone(), clock: crashTime}
	if err := errors.Join(w.start(nil), w.open()); err != nil {
		return false, fmt.Errorf("I26: the log does not open: %w", err)
	}
	if hit < w.log.LogStart().LSN {
		return false, nil // a file that was given up
	}
	if w.log.Tail().LSN < hit && hit <= proof && (w.log.Err() == nil || w.found.Aside != segstore.AsideDamaged || w.found.Mark < proof) {
		return false, fmt.Errorf("I25: chunk %d of %s was rotten and is called torn, but %d is known durable: %+v", hit, file, proof, w.found)
	}
	met, err := w.readRotten(&outcome{tail: g.now().tail(), start: w.log.LogStart()}, hit)
	if err == nil && !met && w.log.Tail().LSN >= hit {
		err = fmt.Errorf("I26: rot in chunk %d was read and not noticed", hit)
	}
	return true, err
}

// lastSegment returns the stream's newest segment file.
func lastSegment(disk vfs.FS) (file string, err error) {
	entries, err := disk.List(streamPath)
	for _, e := range entries {
		if path.Ext(e.Name) == ".seg" {
			file = path.Join(streamPath, e.Name)
		}
	}
	return file, err
}

// readRotten reads all that a log with a flipped bit gives out. met tells that
// the damage was met, and was named.
func (w *world) readRotten(out *outcome, hit chunk.LSN) (met bool, err error) {
	was := w.ghost.histories[out.histories].cut(out.tail.LSN)
	r := w.log.AttachLSN(out.start.LSN)
	defer r.Close()
	for {
		v, ok, err := r.Next(out.tail.LSN)
		var damage *segstore.DamageError
		switch {
		case errors.As(err, &damage):
			if hit < damage.First || hit > damage.Last {
				return true, fmt.Errorf("I26: damage is named as chunks %d to %d", damage.First, damage.Last)
			}
			return true, nil
		case err != nil:
			return false, fmt.Errorf("I26: read: %w", err)
		case !ok:
			return false, nil
		}
		l := was.at(v.Header.LSN)
		good := l != nil && v.Header.LSN != hit && bytes.Equal(v.Data, l.data) &&
			bytes.Equal(chunk.ClientHeaderOf(v.Head), chunk.ClientHeaderOf(l.head))
		v.Release()
		if !good {
			return false, fmt.Errorf("I26: chunk %d was given out", v.Header.LSN)
		}
	}
}

// checkAside: a log whose end is damaged reports no more than it can prove, takes
// no chunk, and a restart does not make it forget why.
func (w *world) checkAside(out *outcome) error {
	whole := w.ghost.histories[out.histories]
	w.epoch = out.tail.Epoch + 1
	for range 2 {
		if w.found.Aside != segstore.AsideDamaged || w.found.Mark != out.tail.LSN {
			return fmt.Errorf("I27: aside %s, mark %d, want that of chunk %d", w.found.Aside, w.found.Mark, out.tail.LSN)
		}
		if s, _ := w.store.Journal().State(crashIncarnation); s.Aside != segstore.AsideDamaged {
			return fmt.Errorf("I27: the journal says %s", s.Aside)
		}
		if d := w.log.Durable(); d.LSN > out.tail.LSN || d != w.log.Tail() {
			return fmt.Errorf("I27: reports %s as durable, its tail is %s", d, w.log.Tail())
		}
		w.ghost.histories = []history{whole.cut(w.log.Tail().LSN)}
		if err := w.append(w.barrier()); err == nil {
			return errors.New("I27: takes a chunk behind damage")
		}
		if err := w.store.Close(); err != nil {
			return fmt.Errorf("I27: %w", err)
		}
		if err := errors.Join(w.start(nil), w.open()); err != nil {
			return fmt.Errorf("I27: again: %w", err)
		}
	}
	found, err := w.disk.List(path.Join(crashDir, "quarantine"))
	if err != nil || len(found) > 0 {
		return fmt.Errorf("I27: damage was moved away: %v (%w)", found, err)
	}
	return nil
}
