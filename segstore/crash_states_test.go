package segstore_test

import (
	"flag"
	"runtime/debug"
	"testing"
	"time"
)

var (
	crashReplay = flag.String("crash.replay", "", "visit the one place that a violation named")
	crashLong   = flag.Bool("crash.long", false, "walk all scripts of -crash.from to -crash.to, and each wider")
	crashFrom   = flag.Int("crash.from", 0, "first script of a long walk")
	crashTo     = flag.Int("crash.to", 0, "script behind the last one of a long walk, 0 for all")
)

// statesMin is the least that a walk over the short scripts must see.
const statesMin = 50_000

// setups are what scripts start from: an empty log, a little one, one of two
// sealed segments that are committed, one with an uncommitted end, and journal
// and MANIFEST about to be rewritten.
var setups = []string{"", "eas", "earbrasc", "earascbrb", "Jea", "Mearbrasc"}

// scriptAt returns the script with a number: all of one step first, for each
// set-up, then all of two, and so on.
func scriptAt(n int) script {
	for length, count := 1, len(ops); ; length, count = length+1, count*len(ops) {
		if n < count*len(setups) {
			s := script{setup: setups[n%len(setups)]}
			n /= len(setups)
			for range length {
				s.steps = string(ops[n%len(ops)].letter) + s.steps
				n /= len(ops)
			}
			return s
		}
		n -= count * len(setups)
	}
}

func scriptsUpTo(length int) (n int) {
	for count := len(ops); length > 0; length, count = length-1, count*len(ops) {
		n += count * len(setups)
	}
	return n
}

// A log comes back from a crash at any moment with everything that was durable,
// nothing that was not appended, and no guess.
func TestCrash_everyState(t *testing.T) {
	k := &walk{statesMax: 6, statesMaxDeep: 2, deepEach: 64, goOnEach: 8, killsEach: 8, seen: map[uint64]struct{}{}}
	if *crashReplay != "" {
		p, err := parsePlace(*crashReplay)
		if err != nil {
			t.Fatal(err)
		}
		k.only, k.goOnEach = &p, 1
		if err := k.script(p.script); err != nil {
			t.Fatal(err)
		}
		t.Logf("no violation at %s", p)
		return
	}
	from, to := 0, scriptsUpTo(2)
	if *crashLong {
		from, to = *crashFrom, *crashTo
		if to == 0 {
			to = scriptsUpTo(3)
		}
		k.statesMax, k.statesMaxDeep, k.deepEach, k.killsEach = 64, 4, 8, 1
	}
	// The heap is tiny: the default would collect it all the time.
	defer debug.SetGCPercent(debug.SetGCPercent(1000))
	begin := time.Now()
	for n := from; n < to; n += raceFactor {
		s := scriptAt(n)
		if !*crashLong && len(s.steps) > 1 && grown[(s.setup + " ")[0]] != nil {
			continue // big files: each state takes long
		}
		if err := k.script(s); err != nil {
			t.Errorf("script %d: %v", n, err)
			break
		}
		if *crashLong && n%100 == 99 {
			t.Logf("up to script %d: %d states", n, k.states)
		}
	}
	if !t.Failed() && !*crashLong && k.states < statesMin/raceFactor {
		t.Errorf("only %d states", k.states)
	}
	t.Logf("%d states, %d of them different (%d within a recovery) at %d places of %d scripts, numbers %d to %d, in %s",
		k.visits, k.states, k.deep, k.places, k.scripts, from, to-1, time.Since(begin).Round(time.Millisecond))
}
