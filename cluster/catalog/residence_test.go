package catalog

import (
	"testing"

	"github.com/millrace/millrace/replication/protocol"
)

// Only who never was on a node begins there empty and counts (D1).
func TestStream_residence(t *testing.T) {
	never := protocol.Registration(0)
	for _, c := range []struct {
		name  string
		entry Replica
		found Found
		want  Residence
	}{
		{"files", Replica{Voter: true}, Found{Files: true, Remembered: true}, OpenFiles},
		{"files under an older entry", Replica{Aside: true, Registration: 5}, Found{Files: true, Remembered: true, Registration: 2}, OpenFiles},
		{"never was here", Replica{Voter: true}, Found{}, MakeEmpty},
		{"files gone", Replica{Voter: true}, Found{Remembered: true}, EnterAnew},
		{"a learner is added", Replica{Aside: true, Registration: 2}, Found{}, JoinEmpty},
		{"added again", Replica{Aside: true, Registration: 5}, Found{Remembered: true, Registration: 2}, JoinEmpty},
		{"a learner's files gone", Replica{Aside: true, Registration: 2}, Found{Remembered: true, Registration: 2}, EnterAnew},
		{"counts, but nothing is here", Replica{Voter: true, Registration: 2}, Found{}, EnterAnew},
	} {
		c.entry.Node = "n1"
		s := &Stream{Replicas: []Replica{c.entry, {Node: "n2", Voter: true}}}
		if got := s.Residence("n1", c.found); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
	alone := &Stream{Replicas: []Replica{{Node: "n1", Voter: true, Registration: never}}}
	if got := alone.Residence("n1", Found{Remembered: true}); got != LostAlone {
		t.Errorf("the only replica's files gone: %d, want LostAlone", got)
	}
}

func TestStream_entry(t *testing.T) {
	for _, c := range []struct {
		name  string
		entry Replica
		found Found
		want  Entry
	}{
		{"as it came", Replica{Voter: true}, Found{}, EntryKnown},
		{"entered anew", Replica{Aside: true, Registration: 3}, Found{Registration: 1}, EntryIsNew},
		{"heard already", Replica{Aside: true, Registration: 3}, Found{Registration: 3}, EntryKnown},
		{"counts, of another", Replica{Voter: true, Registration: 3}, Found{Registration: 1}, EntryOfOther},
		{"waits for its own", Replica{Aside: true, Registration: 3}, Found{Forgotten: true}, EntryKnown},
	} {
		c.entry.Node = "n1"
		s := &Stream{Replicas: []Replica{c.entry}}
		if got := s.Entry("n1", c.found); got != c.want {
			t.Errorf("%s: %d, want %d", c.name, got, c.want)
		}
	}
}
