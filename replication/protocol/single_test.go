package protocol

import (
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

// kinds lists outputs in short.
func kinds(out []Output) string {
	s := ""
	for i, o := range out {
		if i > 0 {
			s += " "
		}
		s += o.Kind.String()
	}
	return s
}

// TestReplica_alone is the whole life of a group of one, as a driver sees it.
func TestReplica_alone(t *testing.T) {
	r, err := New("a", 7, Limits{}, Recovered{Stream: 9})
	if err != nil {
		t.Fatal(err)
	}
	step := func(in Input, want string) []Output {
		t.Helper()
		out := r.Step(0, in, nil)
		if got := kinds(out); got != want {
			t.Fatalf("%v: got %q, want %q", in.Kind, got, want)
		}
		return out
	}
	p := step(Input{Kind: InFence, Epoch: 1, ID: 3}, "persist")
	rep := step(Input{Kind: InPersisted, ID: p[0].ID}, "report")[0].Report
	cfg := Configuration{Version: 1, Members: []Member{{Node: "a"}}}
	d := SelectLeader(1, []Report{*rep}, cfg)
	if d.Kind != Elected || d.Node != "a" || d.Run != 7 {
		t.Fatalf("decision %+v", d)
	}
	a := Assignment{Stream: 9, Epoch: 1, Node: d.Node, Run: d.Run, Replicas: cfg}
	step(Input{Kind: InAssign, Assignment: &a, Inheritance: &d.Inheritance, Known: true}, "lead")
	l, leading := r.Leading()
	if !leading || l.Accept() != Hold {
		t.Fatalf("leading %v, accept %v before the barrier", leading, l.Accept())
	}
	add := func(c Chunk, want string) []Output {
		t.Helper()
		c.LSN, c.Offset, c.Before = r.Next()
		c.Epoch, c.After, c.Bytes = 1, c.Before, 100
		if c.Type == chunk.User {
			c.After++
		}
		return step(Input{Kind: InAppend, Chunk: c}, want)
	}
	add(Chunk{Type: chunk.Delta, Flags: chunk.FlagEpochStart}, "write sync")
	if l.Accept() != Take || l.Ready() {
		t.Fatalf("accept %v, ready %v after the barrier is written", l.Accept(), l.Ready())
	}
	add(Chunk{Records: 10}, "write")
	add(Chunk{Records: 5}, "write")
	step(Input{Kind: InDurable, LSN: 1}, "sync commit ready propose")
	if lsn, off := r.Commit(); lsn != 1 || off != 0 {
		t.Fatalf("commit %d, offset %d", lsn, off)
	}
	step(Input{Kind: InQuery, ID: 4, LSN: 3}, "")
	out := step(Input{Kind: InDurable, LSN: 3}, "commit answer")
	if out[0].LSN != 3 || out[0].Offset != 15 || out[1].ID != 4 {
		t.Fatalf("commit %+v", out[0])
	}
	if l.Uncommitted() != 0 || !l.Settled() {
		t.Fatalf("uncommitted %d, settled %v", l.Uncommitted(), l.Settled())
	}
	step(Input{Kind: InAssign, Assignment: &a, Known: true}, "refuse")
	step(Input{Kind: InFence, Epoch: 2, ID: 5}, "deposed persist")
	step(Input{Kind: InAppend}, "refuse")
}
