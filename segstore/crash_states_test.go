package segstore_test

import (
	"flag"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"
	"time"
)

var (
	crashReplay = flag.String("crash.replay", "", "visit the one place that a violation named")
	crashFull   = flag.Bool("crash.full", false, "walk all short scripts, not only some")
	crashLong   = flag.Bool("crash.long", false, "walk all scripts of -crash.from to -crash.to, and each wider")
	crashFrom   = flag.Int("crash.from", 0, "first script of a long walk")
	crashTo     = flag.Int("crash.to", 0, "script behind the last one of a long walk, 0 for all")
	crashEnough = flag.Int("crash.states", 0, "end a long walk after so many different states, 0 for no end")
)

const (
	// statesMin is the least that a full walk over the short scripts must see,
	// all different.
	statesMin = 50_000
	// sampleEach: where neither -crash.full nor -crash.long asks for more, each
	// how many scripts are walked.
	sampleEach = 5
)

// setups are what scripts start from: an empty log, a little one, one of two
// sealed segments that are committed, one with an uncommitted end, one that is
// worth compacting, one worth merging, and journal and MANIFEST about to be
// rewritten.
var setups = []string{"", "eas", "earbrasc", "earascbrb", "D", "G", "Jea", "Mearbrasc", "N"}

// pointed are scripts of three steps that the short walk takes too: compaction
// that retention, a cut, a restart or another compaction comes across.
var pointed = []string{
	"easa:K", "easaK:a", "easbK:k", "easbs:a", "easbs:b", "easbsa:d", "earascbrbZ:t", "earascbrbZ:m", "earascbrbZ:r", "earascbrbZ:R", "earascbrbZ:X", "DZ:C", "GZ:C", "DZ:R",
	"Gvs:C", "D:BRI", "D:BaqI", "D:BaI", "D:BrR", "D:HRo", "D:HaR", "D:HoC", "D:HrC", "D:CrR", "D:CCC", "D:CCR",
	"D:CkC", "G:BRI", "G:BrR", "G:HkC", "G:HR", "G:CaR", "G:CX", "G:CarC", "G:Cetc", "N:C", "N:H", "N:CC", "N:BI",
}

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

// shortScripts are those that are walked for every change: the pointed ones, all
// of one step, and each second of two, without those that have big files.
func shortScripts(t *testing.T) (scripts []script) {
	for _, text := range pointed {
		s, err := parseScript(text)
		if err != nil {
			t.Fatal(err)
		}
		scripts = append(scripts, s)
	}
	for n := range scriptsUpTo(1) {
		scripts = append(scripts, scriptAt(n))
	}
	for n := scriptsUpTo(1); n < scriptsUpTo(2); n += 2 {
		if s := scriptAt(n); !s.big() {
			scripts = append(scripts, s)
		}
	}
	return scripts
}

// A log comes back from a crash at any moment with everything that was durable,
// nothing that was not appended, and no guess.
func TestCrash_everyState(t *testing.T) {
	// The heap is tiny: the default would collect it all the time.
	defer debug.SetGCPercent(debug.SetGCPercent(1000))
	how := walk{statesMax: 6, statesMaxDeep: 2, deepEach: 64, goOnEach: 8, killsEach: 8, rotEach: 8}
	switch {
	case *crashReplay != "":
		replay(t, how)
	case *crashLong:
		how.statesMax, how.statesMaxDeep, how.deepEach, how.killsEach = 64, 4, 8, 1
		walkLong(t, how)
	default:
		scripts := shortScripts(t)
		each := sampleEach * raceFactor
		if *crashFull {
			each = raceFactor
		}
		var some []script
		for n := 0; n < len(scripts); n += each {
			some = append(some, scripts[n])
		}
		begin := time.Now()
		all, err := how.walkAll(some)
		if err != nil {
			t.Fatal(err)
		}
		t.Log(all.String(), time.Since(begin).Round(time.Millisecond))
		if all.states < statesMin/each {
			t.Errorf("only %d states", all.states)
		}
		if each == 1 {
			fmt.Printf("FIGURE crash states: %s\n", all)
			all.tally.print(t)
		}
	}
}

func replay(t *testing.T, k walk) {
	p, err := parsePlace(*crashReplay)
	if err != nil {
		t.Fatal(err)
	}
	k.only, k.goOnEach, k.rotEach = &p, 1, 1
	k.reset()
	if err := k.script(p.script); err != nil {
		t.Fatal(err)
	}
	t.Logf("no violation at %s", p)
}

// walkLong walks scripts by their numbers, a hundred at a time, so that an
// interrupted walk can go on at the number it has told last.
func walkLong(t *testing.T, how walk) {
	const batch = 100
	to := *crashTo
	if to == 0 {
		to = scriptsUpTo(3)
	}
	var all walk
	all.reset()
	begin := time.Now()
	for n := *crashFrom; n < to && (*crashEnough == 0 || all.states < *crashEnough); n += batch {
		var scripts []script
		for i := n; i < min(n+batch, to); i++ {
			scripts = append(scripts, scriptAt(i))
		}
		some, err := how.walkAll(scripts)
		if err != nil {
			t.Fatalf("of the scripts %d to %d: %v", n, n+len(scripts)-1, err)
		}
		all.add(some)
		fmt.Printf("up to script %d of %d: %s, in %s\n", n+len(scripts)-1, to, &all, time.Since(begin).Round(time.Second))
	}
	fmt.Printf("FIGURE crash states from script %d on: %s, in %s\n", *crashFrom, &all, time.Since(begin).Round(time.Second))
	all.tally.print(t)
}

// walkAll walks scripts on all processors; they share nothing.
func (k walk) walkAll(scripts []script) (*walk, error) {
	var all walk
	all.reset()
	var mu sync.Mutex // guards all, next and found
	next := 0
	var found error
	take := func() (s script, ok bool) {
		mu.Lock()
		defer mu.Unlock()
		if found != nil || next == len(scripts) {
			return s, false
		}
		next++
		return scripts[next-1], true
	}
	var workers sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			own := k
			own.reset()
			var err error
			for s, ok := take(); ok && err == nil; s, ok = take() {
				err = own.script(s)
			}
			mu.Lock()
			defer mu.Unlock()
			all.add(&own)
			if err != nil && found == nil {
				found = err
			}
		})
	}
	workers.Wait()
	return &all, found
}
