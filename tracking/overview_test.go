package tracking

import (
	"fmt"
	"math/rand"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

func TestReferences_pendingOnTopOfTheState(t *testing.T) {
	l := newTestLog(t, Caps{})
	for _, ref := range []string{"written", "moved", "refreshed", "gone", "going"} {
		l.store(ref, 5)
	}
	l.delta()
	l.pending.Forget(l.state, []byte("gone"), l.now)
	l.delta()
	at := l.now
	l.now += 1000
	l.store("moved", 6)
	l.store("refreshed", 5)
	l.pending.Forget(l.state, []byte("going"), l.now)
	l.store("new", 0)
	want := map[string]Reference{
		"written":   {"written", 5, at, false},
		"moved":     {"moved", 6, l.now, true},
		"refreshed": {"refreshed", 5, l.now, false},
		"new":       {"new", 0, l.now, true},
	}
	list := l.pending.References(l.state)
	if len(list) != len(want) {
		t.Errorf("listed %+v", list)
	}
	for _, got := range list {
		if got != want[got.Ref] {
			t.Errorf("%+v, want %+v", got, want[got.Ref])
		}
	}
	for _, ref := range []string{"gone", "going", "never"} {
		if got, ok := l.pending.Reference(l.state, []byte(ref)); ok {
			t.Errorf("%s: %+v", ref, got)
		}
	}
}

// TestReferences_areWhatQueriesAnswer: the list, the single look-up and Current
// agree at any moment, and after a snapshot nothing is pending.
func TestReferences_areWhatQueriesAnswer(t *testing.T) {
	for seed := range int64(30) {
		r := rand.New(rand.NewSource(seed))
		l := newTestLog(t, Caps{Offsets: 5})
		for range 200 {
			l.step(r)
			listed := map[string]Reference{}
			for _, e := range l.pending.References(l.state) {
				if _, twice := listed[e.Ref]; twice {
					t.Fatalf("seed %d: %s is listed twice", seed, e.Ref)
				}
				listed[e.Ref] = e
			}
			for n := range 12 {
				ref := fmt.Sprintf("ref%d", n)
				if n%2 != 0 {
					ref = fmt.Sprintf("a-long-reference-%d", n)
				}
				offset, ok := l.pending.Current(l.state, []byte(ref))
				single, has := l.pending.Reference(l.state, []byte(ref))
				in, is := listed[ref]
				if ok != has || ok != is || single != in || ok && in.Offset != offset {
					t.Fatalf("seed %d: %s is %d %v, alone %+v %v, listed %+v %v", seed, ref, offset, ok, single, has, in, is)
				}
			}
		}
		l.snapshot(chunk.Offset(0), GraceDefault, 0)
		for _, e := range l.pending.References(l.state) {
			if e.Pending {
				t.Fatalf("seed %d: %s is pending after a snapshot", seed, e.Ref)
			}
		}
	}
}
