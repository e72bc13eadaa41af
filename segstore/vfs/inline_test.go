package vfs

import (
	"errors"
	"slices"
	"syscall"
	"testing"
)

func TestInlineSyncer_answersInSubmit(t *testing.T) {
	m := NewMem()
	faulty := NewFaulty(m)
	faulty.Add(Rule{Ops: OpSync, After: 2, Times: 1, Fault: Fault{Err: syscall.EIO}})
	f := create(t, faulty, "/a", "x")
	s := NewInlineSyncer()
	var answers []error
	submit := func() { s.Submit(f, func(err error) { answers = append(answers, err) }) }
	submit()
	// A request from inside an answer is taken by the same loop.
	s.Submit(f, func(error) { submit() })
	submit()
	submit()
	if len(answers) != 4 || answers[0] != nil || answers[1] == nil {
		t.Fatalf("answers %v", answers)
	}
	if !errors.Is(answers[3], ErrPoisoned) {
		t.Errorf("after a failed sync: %v", answers[3])
	}
	must(t, s.Close())
}

func TestInlineSyncer_holdsOneRequest(t *testing.T) {
	m := NewMem()
	a, b := create(t, m, "/a", "x"), create(t, m, "/b", "x")
	s := NewInlineSyncer()
	var order []string
	submit := func(f File, name string) { s.Submit(f, func(error) { order = append(order, name) }) }
	s.Hold()
	submit(a, "a1")
	submit(b, "b1")
	submit(a, "a2") // covers a1
	s.Hold()
	submit(b, "b2")
	s.Forget(b) // a file with requests is not forgotten
	s.Resume()
	if want := []string{"b1", "a1", "a2", "b2"}; !slices.Equal(order, want) {
		t.Errorf("answered %v, want %v", order, want)
	}
	if st := s.Stats(); st.Syncs != 3 || st.Requests != 4 || st.Waiting != 0 {
		t.Errorf("stats %+v", st)
	}
}
