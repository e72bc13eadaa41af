package sim

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

var (
	seedsFlag   = flag.String("seeds", "1..40", "seeds to run: one, or a range a..b")
	traceFlag   = flag.Bool("trace", false, "print the trace of each seed that is run")
	onceFlag    = flag.Bool("once", false, "run each seed once; else twice, for equal traces (I31)")
	resultsFlag = flag.String("results", "", "file to append results to; seeds that are in it are not run again")
	stretchFlag = flag.Int64("stretch", 1, "run so many times longer: another run of the same kind")
	limitFlag   = flag.Int("failures", 3, "failing seeds after which to stop")
)

// TestMain lets garbage pile up to nine times what lives: a run holds some MB
// and throws away hundreds, so that collecting took a quarter of its time.
func TestMain(m *testing.M) {
	debug.SetGCPercent(800)
	os.Exit(m.Run())
}

// seedRange parses a or a..b.
func seedRange(t *testing.T, s string) (from, to uint64) {
	t.Helper()
	first, last, isRange := strings.Cut(s, "..")
	from, err := strconv.ParseUint(first, 10, 64)
	to = from
	if err == nil && isRange {
		to, err = strconv.ParseUint(last, 10, 64)
	}
	if err != nil || to < from {
		t.Fatalf("seeds %q are not a number or a range a..b", s)
	}
	return from, to
}

// TestSeeds runs the seeds, each twice, and prints the trace of one that fails.
func TestSeeds(t *testing.T) {
	from, to := seedRange(t, *seedsFlag)
	if testing.Short() && *seedsFlag == "1..40" {
		to = 10
	}
	done, sum, coverage := readResults(t, *resultsFlag, from, to)
	before := len(done)
	out := openResults(t, *resultsFlag)
	start := time.Now()
	var mu sync.Mutex // guards all below
	next, ran, failures := from, 0, 0
	var work sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		work.Go(func() {
			for {
				mu.Lock()
				for next <= to && done[next] {
					next++
				}
				seed := next
				next++
				stop := seed > to || failures >= *limitFlag
				mu.Unlock()
				if stop {
					return
				}
				r := runTwice(seed)
				mu.Lock()
				ran++
				sum.add(&r.Counts)
				coverage.Add(&r.Coverage)
				if r.Err != nil {
					failures++
					report(t, &r)
				} else if *traceFlag {
					fmt.Print(legend, string(bytes.Join(r.Trace, []byte("\n"))), "\n")
				}
				if out != nil {
					writeResult(out, &r)
				}
				mu.Unlock()
			}
		})
	}
	work.Wait()
	t.Logf("%d seeds of %d..%d, %d of them before, %d failures, %.1f s\n%+v",
		before+ran, from, to, before, failures, time.Since(start).Seconds(), sum)
	t.Logf("how often runs came to what an invariant or a rule is about:\n%s", &coverage)
	if missing := coverage.Missing(); before+ran >= coverageSeeds && failures == 0 && len(missing) > 0 {
		t.Errorf("no seed has shown that: %s", strings.Join(missing, "; "))
	}
}

// coverageSeeds are enough to come to every state that matters.
const coverageSeeds = 1000

// runTwice runs a seed twice and holds the traces against each other.
func runTwice(seed uint64) Result {
	r := Run(seed, *stretchFlag, *traceFlag)
	if *onceFlag {
		return r
	}
	again := Run(seed, *stretchFlag, false)
	if again.Hash != r.Hash {
		a, b := Run(seed, *stretchFlag, true), Run(seed, *stretchFlag, true)
		for i := range a.Trace {
			if i >= len(b.Trace) || !bytes.Equal(a.Trace[i], b.Trace[i]) {
				other := []byte("(nothing)")
				if i < len(b.Trace) {
					other = b.Trace[i]
				}
				r.Err = fmt.Errorf("I31: two runs differ in line %d:\n%s\n%s", i+1, a.Trace[i], other)
				return r
			}
		}
		r.Err = fmt.Errorf("I31: two runs have traces %016x and %016x", r.Hash, again.Hash)
	}
	return r
}

const legend = "      ms   event      what (n = node, s = stream, e = epoch, # = session)\n"

// report prints the end of a failing seed's trace, and how to see all of it.
func report(t *testing.T, r *Result) {
	t.Errorf("seed %d: %v", r.Seed, r.Err)
	lines := Run(r.Seed, *stretchFlag, true).Trace
	if !*traceFlag && len(lines) > 60 {
		lines = lines[len(lines)-60:]
	}
	t.Logf("the end of its trace; all of it: make sim SEED=%d TRACE=1\n%s%s", r.Seed, legend, bytes.Join(lines, []byte("\n")))
}

// result is a line of a results file.
type result struct {
	Seed     uint64
	Hash     string
	Failure  string `json:",omitempty"`
	Counts   Counts
	Coverage Coverage
}

func writeResult(out io.Writer, r *Result) {
	line := result{Seed: r.Seed, Hash: fmt.Sprintf("%016x", r.Hash), Counts: r.Counts, Coverage: r.Coverage}
	if r.Err != nil {
		line.Failure = r.Err.Error()
	}
	b, _ := json.Marshal(line) // numbers and strings only
	_, _ = out.Write(append(b, '\n'))
}

// readResults tells which seeds have passed before, and what they came to.
func readResults(t *testing.T, name string, from, to uint64) (done map[uint64]bool, sum Counts, coverage Coverage) {
	t.Helper()
	done = map[uint64]bool{}
	if name == "" {
		return done, sum, coverage
	}
	b, err := os.ReadFile(name)
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for line := range bytes.Lines(b) {
		var r result
		if json.Unmarshal(line, &r) != nil || r.Failure != "" || r.Seed < from || r.Seed > to || done[r.Seed] {
			continue // a line may be cut where a run was interrupted
		}
		done[r.Seed] = true
		sum.add(&r.Counts)
		coverage.Add(&r.Coverage)
	}
	return done, sum, coverage
}

func openResults(t *testing.T, name string) *os.File {
	t.Helper()
	if name == "" {
		return nil
	}
	f, err := os.OpenFile(name, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	if end, err := f.Seek(0, io.SeekEnd); err == nil && end > 0 {
		_, _ = f.WriteString("\n") // the last line may be cut
	}
	return f
}
