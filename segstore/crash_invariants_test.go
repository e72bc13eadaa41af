package segstore_test

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// invariants are those that the walk holds against every state, numbered as in
// the simulator's list.
var invariants = map[string]string{
	"I7":  "no recovery takes a chunk that was committed",
	"I11": "every chunk has the bytes that were appended",
	"I17": "tracking is the fold of exactly the log's chunks",
	"I18": "a cut takes back the tracking that came with what it cuts",
	"I19": "compaction changes no user chunk, offset or order",
	"I20": "the files that MANIFEST names are wholly old or wholly new",
	"I23": "the log start is one that was asked for, at a segment's head",
	"I24": "summaries equal a scan, segments and digests join",
	"I25": "recovery again finds the same, and nothing durable is missing",
	"I26": "a flipped bit is noticed, and never given out or folded",
	"I27": "a replica with a damaged end reports only what it can prove",
}

// tally counts, for each invariant, the states in which it could have been
// broken: those with a commit for I7, with a cut for I18, and so on.
type tally map[string]int

func (t tally) add(ids ...string) {
	for _, id := range ids {
		t[id]++
	}
}

func (t tally) merge(other tally) {
	for id, n := range other {
		t[id] += n
	}
}

// held notes a state whose recovery has passed all checks.
func (t tally) held(g *ghost, out *outcome) {
	t.add("I20", "I25")
	if g.commitMin > 0 {
		t.add("I7")
	}
	if out.tail.LSN >= out.start.LSN {
		t.add("I11", "I17")
	}
	if out.tail.LSN < g.histories[out.histories].tail().LSN || len(g.histories) > 1 {
		t.add("I18")
	}
	if strings.Contains(out.boundaries, ".1 ") || strings.Contains(out.boundaries, ".2 ") {
		t.add("I19")
	}
	if out.start.LSN > 1 {
		t.add("I23")
	}
	if strings.Count(out.boundaries, " ") > 1 {
		t.add("I24")
	}
}

// print shows the table. Each invariant must have been put to the test.
func (t tally) print(tb testing.TB) {
	number := func(id string) int { n, _ := strconv.Atoi(id[1:]); return n }
	ids := slices.SortedFunc(maps.Keys(invariants), func(a, b string) int { return cmp.Compare(number(a), number(b)) })
	for _, id := range ids {
		fmt.Printf("FIGURE crash states: %-3s %8d states, %s\n", id, t[id], invariants[id])
		if t[id] == 0 {
			tb.Errorf("%s was never put to the test", id)
		}
	}
}
