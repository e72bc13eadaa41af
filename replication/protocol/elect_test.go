package protocol

import (
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

// voters makes a configuration; a name in capitals is set aside, one with a
// minus is a learner.
func voters(names ...string) Configuration {
	c := Configuration{Version: 1}
	for _, n := range names {
		m := Member{Node: NodeID(lower(n)), Aside: lower(n) != n}
		if n[0] == '-' {
			m = Member{Node: NodeID(n[1:]), Learner: true}
		}
		c.Members = append(c.Members, m)
	}
	return c
}

func report(n string, e chunk.Epoch, lsn chunk.LSN) Report {
	return Report{Epoch: 9, Node: NodeID(n), Run: RunID(n[0]), Tail: chunk.Tail{Epoch: e, LSN: lsn}}
}

func with(r Report, f func(*Report)) Report { f(&r); return r }

func TestSelectLeader(t *testing.T) {
	aside := func(r *Report) { r.Aside = true }
	damaged := func(e chunk.Epoch, n chunk.LSN) func(*Report) {
		return func(r *Report) { r.Damaged, r.Aside, r.Mark = true, true, chunk.Tail{Epoch: e, LSN: n} }
	}
	for _, c := range []struct {
		name    string
		config  Configuration
		reports []Report
		prefer  []NodeID
		want    string
	}{
		{"nobody reported", voters("a", "b", "c"), nil, nil, "wait [a b c]"},
		{"one of three", voters("a", "b", "c"), []Report{report("a", 1, 5)}, nil, "wait [b c]"},
		{"epoch before LSN", voters("a", "b", "c"), []Report{report("a", 1, 50), report("b", 2, 3)}, nil, "elected b"},
		{"LSN within an epoch", voters("a", "b", "c"), []Report{report("a", 2, 4), report("b", 2, 3)}, nil, "elected a"},
		{"order breaks a tie", voters("a", "b", "c"), []Report{report("c", 2, 3), report("b", 2, 3)}, nil, "elected b"},
		{"preference breaks a tie", voters("a", "b", "c"), []Report{report("b", 2, 3), report("c", 2, 3)}, []NodeID{"c", "b"}, "elected c"},
		{"preference beats no tail", voters("a", "b", "c"), []Report{report("b", 2, 4), report("c", 2, 3)}, []NodeID{"c"}, "elected b"},
		{"other epochs say nothing", voters("a", "b", "c"),
			[]Report{report("a", 2, 3), with(report("b", 2, 4), func(r *Report) { r.Epoch = 8 })}, nil, "wait [b c]"},
		{"the last report counts", voters("a", "b", "c"),
			[]Report{report("a", 2, 9), report("b", 2, 4), report("a", 2, 3)}, nil, "elected b"},
		{"strangers and learners say nothing", voters("a", "b", "-l"),
			[]Report{report("l", 9, 9), report("x", 9, 9), report("a", 2, 3)}, nil, "wait [b]"},
		{"set aside by the metadata", voters("A", "b", "c"), []Report{report("a", 9, 9), report("b", 2, 3)}, nil, "wait [c]"},
		{"set aside by itself", voters("a", "b", "c"), []Report{with(report("a", 9, 9), aside), report("b", 2, 3), report("c", 2, 2)}, nil, "elected b"},
		{"another registration", voters("a", "b", "c"),
			[]Report{with(report("a", 9, 9), func(r *Report) { r.Registration = 1 }), report("b", 2, 3), report("c", 2, 2)}, nil, "elected b"},
		{"stay in the denominator", voters("A", "B", "c"), []Report{report("a", 1, 1), report("b", 1, 1), report("c", 1, 1)}, nil, "lost []"},
		{"damage above the clean ones waits", voters("a", "b", "c", "d", "e"),
			[]Report{with(report("a", 2, 3), damaged(2, 8)), report("b", 2, 6), report("c", 2, 7), report("d", 2, 7)}, nil, "wait [e]"},
		{"and is lost with all present", voters("a", "b", "c"),
			[]Report{with(report("a", 2, 3), damaged(2, 8)), report("b", 2, 6), report("c", 2, 7)}, nil, "lost [] 2/7 to 2/8"},
		{"damage that is covered does not matter", voters("a", "b", "c"),
			[]Report{with(report("a", 2, 3), damaged(2, 7)), report("b", 2, 6), report("c", 2, 7)}, nil, "elected c"},
		{"covered by a newer epoch", voters("a", "b", "c"),
			[]Report{with(report("a", 2, 3), damaged(2, 8)), report("b", 3, 6), report("c", 2, 7)}, nil, "elected b"},
		{"alone", voters("a"), []Report{report("a", 0, 0)}, nil, "elected a"},
		{"alone without its journal", voters("a"), []Report{with(report("a", 3, 4), aside)}, nil, "elected a"},
		{"alone and emptied", voters("a"), []Report{with(report("a", 0, 0), aside)}, nil, "lost []"},
		{"alone and damaged", voters("a"), []Report{with(report("a", 3, 4), damaged(3, 9))}, nil, "lost [] 0/0 to 3/9"},
	} {
		d := SelectLeader(9, c.reports, c.config, c.prefer...)
		got := d.Kind.String()
		switch d.Kind {
		case Elected:
			got += " " + string(d.Node)
			if d.Run != RunID(d.Node[0]) {
				t.Errorf("%s: run %d of %s", c.name, d.Run, d.Node)
			}
		default:
			got += fmt.Sprintf(" %v", d.Missing)
			if d.Kind == Lost && d.Mark != (chunk.Tail{}) {
				got += fmt.Sprintf(" %v to %v", d.Tail, d.Mark)
			}
		}
		if got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

// TestSelectLeader_leavesAnInheritance: the highest log start and all pending
// updates, those of set-aside voters too (A6, F5).
func TestSelectLeader_leavesAnInheritance(t *testing.T) {
	give := func(start chunk.LSN, p string) func(*Report) {
		return func(r *Report) { r.LogStart, r.Pending = start, []byte(p) }
	}
	d := SelectLeader(9, []Report{
		with(report("a", 2, 3), give(5, "x")), with(report("b", 2, 3), give(9, "")), with(report("c", 1, 3), give(7, "z")),
	}, voters("a", "b", "C"))
	if d.Kind != Elected || d.Inheritance.LogStart != 9 || len(d.Inheritance.Pending) != 2 {
		t.Errorf("%+v", d)
	}
}

// TestSelectLeader_orderDoesNotMatter: any order of the reports gives the same.
func TestSelectLeader_orderDoesNotMatter(t *testing.T) {
	reports := []Report{report("a", 2, 3), report("b", 3, 1), report("c", 3, 1), report("d", 1, 9)}
	want := SelectLeader(9, reports, voters("a", "b", "c", "d", "e"))
	for range 24 {
		reports = append(reports[1:], reports[0])
		if i := len(reports) - 2; reports[i].Node < reports[0].Node {
			slices.Reverse(reports)
		}
		if got := SelectLeader(9, reports, voters("a", "b", "c", "d", "e")); got.Node != want.Node {
			t.Errorf("%v: %s, want %s", reports, got.Node, want.Node)
		}
	}
}
