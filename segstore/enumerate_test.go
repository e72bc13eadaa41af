package segstore_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"strconv"
	"strings"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// The walk over crash states:
//
//	script ─▶ every change of the disk in its last step ─▶ every state that a
//	power loss may leave there ─▶ recovery ─▶ power loss ─▶ recovery, the same
//	                                  └─▶ every change in it ─▶ every state …
//
// and beside that, at every change, the process is killed and nothing is lost,
// and power is lost at every change of the recovery that follows. Scripts that
// differ in their last step only share all that is before, so that walking each
// one's last step walks everything.

// walk says how far the enumerator goes, and counts.
type walk struct {
	// statesMax bounds the states that one policy gives at one place; where
	// there are more, as many are drawn by the place's own seed.
	statesMax, statesMaxDeep int
	// each how many states a recovery is walked too, and the log is gone on with.
	deepEach, goOnEach int
	// each how many scripts the kills are walked too.
	killsEach int
	// each how many states a bit of the recovered log is flipped.
	rotEach int

	// only is the place that a replay visits, and no other.
	only *place

	seen    map[uint64]struct{}
	scripts int
	places  int
	visits  int
	states  int // different ones
	deep    int // of these, within a recovery
	nth     int // different states of this script
	tally   tally
}

// reset begins to count.
func (k *walk) reset() { k.seen, k.tally = map[uint64]struct{}{}, tally{} }

// add counts what another walk has counted too.
func (k *walk) add(other *walk) {
	k.scripts += other.scripts
	k.places += other.places
	k.visits += other.visits
	k.states += other.states
	k.deep += other.deep
	k.tally.merge(other.tally)
}

func (k *walk) String() string {
	return fmt.Sprintf("%d states, %d of them different (%d within a recovery), at %d places of %d scripts, no violation",
		k.visits, k.states, k.deep, k.places, k.scripts)
}

// policies are the ways in which unsynced changes get lost.
var policies = []vfs.Policy{
	{Ordered: true, Tears: vfs.TearAny, BordersMax: 2},
	{Writes: vfs.KeepAny, Names: vfs.KeepAny},
	{Writes: vfs.KeepPrefix, Names: vfs.KeepPrefix, Tears: vfs.TearZero | vfs.TearGarbage, BordersMax: 2, Grown: true},
}

// place names one state, so that it can be visited alone.
type place struct {
	script script
	kill   int // the change at which the process is killed first, 0 = none
	// One crash for each level: at a change (0 = behind the last), under a
	// policy, by these choices.
	crashes []crashAt
}

type crashAt struct {
	change  int
	what    string
	policy  int
	choices []int
}

func (c crashAt) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d/%d/", c.change, c.policy)
	for i, n := range c.choices {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(n))
	}
	return b.String()
}

// String is what -crash.replay takes.
func (p place) String() string {
	parts := []string{p.script.String(), strconv.Itoa(p.kill)}
	for _, c := range p.crashes {
		parts = append(parts, c.String())
	}
	return strings.Join(parts, " ")
}

func parsePlace(text string) (p place, err error) {
	parts := strings.Fields(text)
	if len(parts) < 2 {
		return p, fmt.Errorf("place %q is too short", text)
	}
	if p.script, err = parseScript(parts[0]); err != nil {
		return p, err
	}
	if p.kill, err = strconv.Atoi(parts[1]); err != nil {
		return p, err
	}
	for _, part := range parts[2:] {
		var c crashAt
		fields := strings.Split(part, "/")
		if len(fields) != 3 {
			return p, fmt.Errorf("crash %q", part)
		}
		var errs [2]error
		c.change, errs[0] = strconv.Atoi(fields[0])
		c.policy, errs[1] = strconv.Atoi(fields[1])
		if err := errors.Join(errs[:]...); err != nil || c.policy < 0 || c.policy >= len(policies) {
			return p, fmt.Errorf("crash %q: %w", part, err)
		}
		for _, n := range strings.Split(fields[2], ",") {
			if n == "" {
				continue
			}
			choice, err := strconv.Atoi(n)
			if err != nil {
				return p, err
			}
			c.choices = append(c.choices, choice)
		}
		p.crashes = append(p.crashes, c)
	}
	return p, nil
}

// violation is a broken invariant and where.
type violation struct {
	place place
	err   error
}

func (v *violation) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v\n  steps   %s\n", v.err, v.place.script.tell())
	if v.place.kill > 0 {
		fmt.Fprintf(&b, "  killed  before change %d of the last step\n", v.place.kill)
	}
	for i, c := range v.place.crashes {
		in := "the last step"
		if i > 0 || v.place.kill > 0 {
			in = "the recovery"
		}
		at := "behind the last change"
		if c.change > 0 {
			at = fmt.Sprintf("before change %d, %s,", c.change, c.what)
		}
		fmt.Fprintf(&b, "  crash   %s of %s, policy %+v, choices %v\n", at, in, policies[c.policy], c.choices)
	}
	fmt.Fprintf(&b, "  replay  go test ./segstore -run TestCrash_everyState -crash.replay %q", v.place.String())
	return b.String()
}

func (v *violation) Unwrap() error { return v.err }

// script walks one script.
func (k *walk) script(s script) error {
	w, changes, idle, err := s.run(nil, 0)
	if err != nil {
		return &violation{place{script: s}, fmt.Errorf("without a crash: %w", err)}
	}
	if idle {
		return nil
	}
	k.scripts++
	k.nth = 0
	clear(k.seen) // states of different scripts differ in the journal's id
	if err := w.expectTail(); err != nil {
		return &violation{place{script: s}, err}
	}
	if k.only != nil && k.only.kill > 0 {
		return k.kill(s, k.only.kill)
	}
	if err := k.crashes(s); err != nil {
		return err
	}
	if k.killsEach == 0 || hashOf(s)%uint64(k.killsEach) != 0 {
		return nil
	}
	for kill := 1; kill <= changes; kill++ {
		if err := k.kill(s, kill); err != nil {
			return err
		}
	}
	return nil
}

// run takes all steps of a script. before is called before each change of the
// last step; with kill > 0 the process dies at that change. It returns how many
// changes the last step makes; idle tells that some step does nothing.
func (s script) run(before func(w *world, n int, what string), kill int) (w *world, changes int, idle bool, err error) {
	if w, idle, err = s.setUp(false); err != nil || idle {
		return w, 0, idle, err
	}
	for i := range len(s.steps) {
		last := i == len(s.steps)-1
		base, process := w.process.n, w.process
		// A step may end the process and start others; changes count on.
		ended := 0
		if last {
			w.process.killAt = 0
			if kill > 0 {
				w.process.killAt = base + kill
			}
			w.process.before = func(n int, what string) {
				if w.process != process && n == 1 {
					ended, base, process = changes, 0, w.process
					if kill > changes {
						w.process.killAt = kill - changes
					}
				}
				changes = ended + n - base
				if before != nil {
					before(w, changes, what)
				}
			}
		}
		does, err := w.step(s.steps[i])
		w.process.before = nil
		if last && kill > 0 && w.process.dead {
			return w, changes, false, nil
		}
		if err != nil || !does {
			return w, changes, !does, err
		}
	}
	return w, changes, false, nil
}

// crashes walks the power losses in a script's last step.
func (k *walk) crashes(s script) error {
	var found error
	visit := func(w *world, n int, what string) {
		if found == nil {
			found = k.crashHere(w, place{script: s}, n, what, k.statesMax)
		}
	}
	w, _, _, err := s.run(visit, 0)
	if err != nil {
		return err
	}
	visit(w, 0, "")
	return found
}

// kill walks the power losses in the recovery after a kill.
func (k *walk) kill(s script, kill int) error {
	w, _, _, err := s.run(nil, kill)
	if err != nil {
		return err
	}
	at := place{script: s, kill: kill}
	var found error
	out, err := w.recover(func(n int, what string) {
		if found == nil {
			found = k.crashHere(w, at, n, what, k.statesMaxDeep)
		}
	})
	if found != nil {
		return found
	}
	if err != nil {
		return &violation{at, fmt.Errorf("after the kill: %w", err)}
	}
	if err := errors.Join(w.sameAfterPowerLoss(out), w.goesOn(out)); err != nil {
		return &violation{at, err}
	}
	return nil
}

// crashHere walks the states that a power loss may leave at this moment.
func (k *walk) crashHere(w *world, at place, change int, what string, statesMax int) error {
	k.places++
	ghost := w.ghost.clone()
	mem := w.disk.(*vfs.Mem)
	for policy := range policies {
		only := k.crashOnly(at)
		if only != nil && (only.change != change || only.policy != policy) {
			continue
		}
		var found error
		visit := func(choose vfs.Choose) {
			if found != nil {
				return
			}
			crash := crashAt{change: change, what: what, policy: policy}
			state := mem.Crash(policies[policy], func(n int) int {
				choice := choose(n)
				crash.choices = append(crash.choices, choice)
				return choice
			})
			p := at
			p.crashes = append(at.crashes[:len(at.crashes):len(at.crashes)], crash)
			found = k.judge(state, ghost, p)
		}
		runs, complete := 0, true
		if only != nil {
			visit(only.again())
		} else {
			runs, complete = vfs.Enumerate(statesMax, visit)
		}
		if !complete {
			choose := vfs.Seeded(hashOf(at, change, policy))
			for range statesMax {
				visit(choose)
			}
		}
		if found != nil || runs == 1 && policies[policy].Ordered {
			return found // with nothing unsynced there is nothing to choose
		}
	}
	return nil
}

// hashOf makes a seed, the same in each run.
func hashOf(what ...any) uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, what...)
	return h.Sum64()
}

// crashOnly returns the crash that a replay wants behind those of at.
func (k *walk) crashOnly(at place) *crashAt {
	if k.only == nil {
		return nil
	}
	if n := len(at.crashes); n < len(k.only.crashes) {
		return &k.only.crashes[n]
	}
	return &crashAt{change: -1}
}

// again makes the same choices.
func (c *crashAt) again() vfs.Choose {
	left := c.choices
	return func(n int) int {
		if len(left) == 0 || left[0] >= n {
			panic(fmt.Sprintf("crash %s chooses among other alternatives by now", c))
		}
		choice := left[0]
		left = left[1:]
		return choice
	}
}

// judge recovers one state, and holds what comes of it against the ghost.
func (k *walk) judge(state *vfs.Mem, ghost *ghost, at place) error {
	k.visits++
	key := hashDisk(state, ghost.key())
	if _, ok := k.seen[key]; ok {
		return nil
	}
	k.seen[key] = struct{}{}
	k.states++
	k.nth++
	if err := checkDisk(state); err != nil {
		return &violation{at, err}
	}
	if k.rotEach > 0 && k.nth%k.rotEach == k.rotEach/2 && len(ghost.histories) == 1 && len(at.crashes) == 1 && at.kill == 0 {
		flipped, err := ghost.rotBefore(state, hashOf(at))
		if err != nil {
			return &violation{at, err}
		}
		if flipped {
			k.tally.add("I26")
		}
	}
	w := &world{disk: state, ghost: ghost.clone(), clock: crashTime}
	var found error
	var before func(n int, what string)
	if len(at.crashes) > 1 || at.kill > 0 {
		k.deep++
	} else if k.deepEach > 0 && k.nth%k.deepEach == 0 || k.only != nil {
		before = func(n int, what string) {
			if found == nil {
				found = k.crashHere(w, at, n, what, k.statesMaxDeep)
			}
		}
	}
	out, err := w.recover(before)
	if found != nil {
		return found
	}
	if err != nil {
		return &violation{at, err}
	}
	if err := w.sameAfterPowerLoss(out); err != nil {
		return &violation{at, err}
	}
	k.tally.held(ghost, out)
	if k.rotEach > 0 && k.nth%k.rotEach == 0 && len(w.log.Segments()) > 0 {
		proven, err := w.rot(out, hashOf(at))
		if err != nil {
			return &violation{at, err}
		}
		k.tally.add(proven...)
	}
	if k.goOnEach > 0 && k.nth%k.goOnEach == 0 {
		if err := w.goesOn(out); err != nil {
			return &violation{at, err}
		}
	}
	return nil
}

// recover starts a process, opens the log and checks everything about it.
func (w *world) recover(before func(n int, what string)) (*outcome, error) {
	if err := w.start(before); err != nil {
		return nil, fmt.Errorf("recovery: %w", err)
	}
	if err := w.open(); err != nil {
		return nil, fmt.Errorf("recovery: %w", err)
	}
	w.process.before = nil
	return w.check()
}

// sameAfterPowerLoss: what a recovery has come to, a power loss right behind it
// can't change (I25).
func (w *world) sameAfterPowerLoss(out *outcome) error {
	again := &world{disk: powerLoss(w.disk), ghost: w.ghost.clone(), clock: crashTime}
	second, err := again.recover(nil)
	if err != nil {
		return fmt.Errorf("I25: recovery again: %w", err)
	}
	if *second != *out {
		return fmt.Errorf("I25: recovery again comes to\n  %+v, not\n  %+v", *second, *out)
	}
	return nil
}

// goesOn appends behind the recovered log, loses power, and finds all of it.
func (w *world) goesOn(out *outcome) error {
	if err := w.goOn(out); err != nil {
		return err
	}
	again := &world{disk: powerLoss(w.disk), ghost: w.ghost.clone(), clock: crashTime}
	second, err := again.recover(nil)
	if err != nil {
		return fmt.Errorf("after going on: %w", err)
	}
	if want := (chunk.Tail{Epoch: out.tail.Epoch + 1, LSN: w.ghost.now().tail().LSN}); second.tail != want {
		return fmt.Errorf("after going on: tail %s, want %s", second.tail, want)
	}
	return nil
}
