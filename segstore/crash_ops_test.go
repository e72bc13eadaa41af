package segstore_test

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// op is one step of a script. do tells whether it changed anything: a script
// with an idle step is the same as one without it.
type op struct {
	letter byte
	name   string
	do     func(w *world) (bool, error)
}

// The steps that scripts are made of.
var ops = []op{
	{'a', "append a user chunk", func(w *world) (bool, error) { return true, w.append(w.message()) }},
	{'b', "append three chunks at once", func(w *world) (bool, error) {
		return true, w.append(w.message(), w.message(), w.message())
	}},
	{'d', "append a delta", func(w *world) (bool, error) {
		return true, w.append(w.control(chunk.Delta, 0, tracking.EncodeDelta(nil, []tracking.Update{w.update()})))
	}},
	{'e', "begin an epoch", func(w *world) (bool, error) {
		w.epoch++
		return true, w.append(w.barrier())
	}},
	{'s', "sync", func(w *world) (bool, error) {
		return w.log.Durable() != w.log.Tail(), w.sync()
	}},
	{'f', "sync, in flight", func(w *world) (bool, error) {
		idle := w.log.Durable() == w.log.Tail()
		w.syncInFlight()
		return !idle, nil
	}},
	{'c', "commit what is durable, and save it", func(w *world) (bool, error) {
		idle := w.log.Commit() == w.log.Durable().LSN
		w.commit()
		return !idle, w.saveProgress()
	}},
	{'r', "roll, a new unit", func(w *world) (bool, error) { return true, w.append(w.snapshot(true, 0)...) }},
	{'v', "roll within the unit", func(w *world) (bool, error) { return true, w.append(w.snapshot(false, 0)...) }},
	{'w', "roll, with a snapshot of parts", func(w *world) (bool, error) {
		chunks := w.snapshot(false, 48)
		for i, c := range chunks {
			if err := w.append(c); err != nil {
				return true, err
			}
			if i == 0 && len(chunks) == 1 {
				return false, nil
			}
		}
		return true, nil
	}},
	{'t', "truncate as deep as allowed", func(w *world) (bool, error) {
		n := max(w.log.Commit(), w.log.LogStart().LSN-1)
		return n < w.log.Tail().LSN, w.truncate(n)
	}},
	{'q', "truncate the last chunk", func(w *world) (bool, error) {
		n := w.log.Tail().LSN - 1
		if n < w.log.Commit() || n+1 < w.log.LogStart().LSN || w.log.Tail().LSN == 0 {
			return false, nil
		}
		return true, w.truncate(n)
	}},
	{'m', "truncate to the end of a sealed segment", func(w *world) (bool, error) {
		infos := w.log.Segments()
		for i := len(infos) - 1; i >= 0; i-- {
			if n := infos[i].LastLSN; infos[i].Sealed && n >= w.log.Commit() && n < w.log.Tail().LSN {
				return true, w.truncate(n)
			}
		}
		return false, nil
	}},
	{'R', "move the log start up", func(w *world) (bool, error) { return w.setStart() }},
	{'X', "reset above the tail", func(w *world) (bool, error) { return true, w.reset() }},
	{'p', "promise an epoch", func(w *world) (bool, error) {
		return w.ghost.promiseMin < w.epoch+1, w.promise()
	}},
	{'P', "promise for two streams by one sync", func(w *world) (bool, error) {
		w.syncer.Hold()
		inFlight := errors.New("no answer")
		w.store.Journal().Promise(growIncarnation+1, w.epoch+1, func(err error) { inFlight = err })
		idle := w.ghost.promiseMin >= w.epoch+1
		err := w.promise()
		w.syncer.Resume()
		return !idle, errors.Join(err, inFlight)
	}},
	{'C', "compact", (*world).compact},
	{'B', "copy what a compaction keeps", (*world).beginCompaction},
	{'I', "install the compaction", (*world).install},
	{'H', "compact files that are held", (*world).compactPinned},
	{'o', "stop in order and start", func(w *world) (bool, error) { return true, w.restart() }},
	{'k', "kill and start", func(w *world) (bool, error) { return true, w.kill() }},
}

// rareOps stand only in scripts that name them.
var rareOps = []op{
	{'K', "hear of a commit that is ahead of the disk, and save it", func(w *world) (bool, error) {
		tail := w.ghost.now().tail().LSN
		w.ghost.commitMax = max(w.ghost.commitMax, tail)
		w.log.SetCommit(tail)
		return w.log.Durable().LSN < tail, w.saveProgress()
	}},
	{'Z', "die behind the rename of a MANIFEST, and start", func(w *world) (bool, error) { return true, w.dieAtRename() }},
}

func opOf(letter byte) (op, error) {
	for _, o := range slices.Concat(ops, rareOps) {
		if o.letter == letter {
			return o, nil
		}
	}
	return op{}, fmt.Errorf("no step %q", letter)
}

// script is a list of steps; what is before the colon is set-up, in which
// crashes are not walked. A capital in front of the set-up stands for an image: J
// and M for a journal or a MANIFEST that is about to be rewritten, D and G for a
// log that is worth a drop or a merge, N for D and M together.
type script struct{ setup, steps string }

func (s script) String() string { return s.setup + ":" + s.steps }

func parseScript(text string) (script, error) {
	setup, steps, ok := strings.Cut(text, ":")
	if !ok {
		return script{}, fmt.Errorf("script %q has no colon", text)
	}
	return script{setup, steps}, nil
}

// tell names the steps.
func (s script) tell() string {
	var names []string
	for _, letter := range s.setup + s.steps {
		if o, err := opOf(byte(letter)); err == nil {
			names = append(names, o.name)
		}
	}
	return strings.Join(names, " | ")
}

// setUp makes the world and takes the steps of the set-up. idle tells that one
// of them did nothing. faulty puts a disk below that can fail.
func (s script) setUp(faulty bool) (w *world, idle bool, err error) {
	setup := s.setup
	if setup != "" && grown[setup[0]] != nil {
		w, err = fromImage(setup[0], faulty)
		setup = setup[1:]
	} else {
		w, err = create(vfs.NewMem(), faulty)
	}
	for i := 0; err == nil && i < len(setup); i++ {
		var does bool
		does, err = w.step(setup[i])
		idle = idle || !does
	}
	if err != nil {
		return nil, idle, fmt.Errorf("set-up: %w", err)
	}
	return w, idle, nil
}

// grown are the beginnings of a set-up that take long to make.
var grown = map[byte]func(*world) error{
	'J': (*world).growJournal, 'M': (*world).growManifest,
	'D': (*world).growDroppable, 'G': (*world).growMergeable, 'N': (*world).growDroppableManifest,
}

// big tells whether a set-up makes big files, so that each state takes long.
func (s script) big() bool { return s.setup != "" && strings.Contains("JMN", s.setup[:1]) }

// images are worlds after them, ended in order, each made once.
var (
	images      = map[byte]*world{}
	imagesGuard sync.Mutex
)

func imageOf(letter byte) (*world, error) {
	imagesGuard.Lock()
	defer imagesGuard.Unlock()
	if images[letter] != nil {
		return images[letter], nil
	}
	w, err := create(vfs.NewMem(), false)
	if err == nil {
		err = grown[letter](w)
	}
	if err == nil {
		err = w.store.Close()
	}
	if err != nil {
		return nil, fmt.Errorf("image %c: %w", letter, err)
	}
	w.reported(w.ghost.now().tail())
	images[letter] = w
	return w, nil
}

func fromImage(letter byte, faulty bool) (*world, error) {
	image, err := imageOf(letter)
	if err != nil {
		return nil, err
	}
	w := &world{
		disk: powerLoss(image.disk), ghost: image.ghost.clone(),
		epoch: image.epoch, version: image.version, clock: image.clock, user: image.user,
	}
	if faulty {
		w.faulty = vfs.NewFaulty(w.disk)
	}
	if err := w.start(nil); err != nil {
		return nil, err
	}
	return w, w.open()
}

// powerLoss returns what a disk surely keeps.
func powerLoss(disk vfs.FS) *vfs.Mem {
	return disk.(*vfs.Mem).Crash(vfs.Policy{}, func(int) int { return 0 })
}

func (w *world) step(letter byte) (does bool, err error) {
	o, err := opOf(letter)
	if err != nil {
		return false, err
	}
	return o.do(w)
}

// rewriteAt is the size from which journal and MANIFEST are rewritten when most
// of them is history.
const rewriteAt = 64 << 10

// growJournal writes records until the next one or two make the journal worth
// rewriting.
func (w *world) growJournal() error {
	for epoch := chunk.Epoch(1); w.store.Stats().Journal.Bytes < rewriteAt-60; epoch++ {
		err := wait(func(done func(error)) { w.store.Journal().Promise(growIncarnation, epoch, done) })
		if err != nil {
			return err
		}
	}
	return nil
}

const growIncarnation chunk.Incarnation = 0x1111111111111111

// growManifest lengthens MANIFEST by a long segment that was cut away, until a
// few records more make it worth rewriting.
func (w *world) growManifest() error { return w.lengthenManifest(2700) }

// growDroppableManifest makes a log whose MANIFEST the next piece of compaction
// makes worth rewriting.
func (w *world) growDroppableManifest() error {
	if err := w.lengthenManifest(2610); err != nil {
		return err
	}
	if err := w.comeBack(); err != nil {
		return err
	}
	return w.growDroppable()
}

// lengthenManifest adds a long segment that was cut away, of so many epochs.
func (w *world) lengthenManifest(epochs int) error {
	name := path.Join(streamPath, "MANIFEST")
	b, err := vfs.ReadFile(w.disk, name)
	if err != nil {
		return err
	}
	const bytes = 100 // a line takes 24 bytes, a record of a step some 300
	long := manifest.Summary{
		Incarnation: crashIncarnation, FirstLSN: 1, LastLSN: chunk.LSN(epochs), FirstEpoch: 1, LastEpoch: chunk.Epoch(epochs),
		DeltaChunks: uint64(epochs), DeltaBytes: int64(epochs) * bytes, Size: int64(epochs) * bytes,
	}
	for i := range long.LastEpoch {
		long.Lines = append(long.Lines, manifest.EpochLine{Epoch: i + 1, LSN: chunk.LSN(i + 1)})
	}
	for _, r := range []manifest.Record{
		{Kind: manifest.KindSealed, Summary: long}, {Kind: manifest.KindCut}, {Kind: manifest.KindCutDone},
	} {
		b = manifest.AppendRecord(b, crashIncarnation, &r)
	}
	return vfs.WriteFileSynced(w.disk, name, b, 0o644)
}
