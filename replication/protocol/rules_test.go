package protocol

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
)

// notShown are the rules without a script that fails, with the reason.
var notShown = map[string]string{
	"keepcommitted": "a net: never reached while the other rules hold",
}

// TestRules plays each script that names a rule with that rule off: an
// invariant must break. It prints the table.
func TestRules(t *testing.T) {
	shown := map[string]bool{}
	var table []string
	for _, s := range scripts(t) {
		for _, name := range s.rules {
			r, w, ok := withoutRule(name)
			if !ok {
				t.Errorf("%s: no rule %q", s.name, name)
				continue
			}
			shown[name] = true
			why := broken(s, r, w)
			if why == "" {
				t.Errorf("%s holds without %s", s.name, name)
				why = "nothing"
			}
			table = append(table, fmt.Sprintf("%-14s %-26s fails: %s", name, s.name, why))
		}
	}
	for _, v := range []any{allRules(), allWorldRules()} {
		for i := range reflect.TypeOf(v).NumField() {
			name := lower(reflect.TypeOf(v).Field(i).Name)
			if notShown[name] == "" && !shown[name] {
				t.Errorf("rule %s has no script", name)
			}
		}
	}
	slices.Sort(table)
	for _, l := range table {
		t.Log(l)
	}
}

// broken is the first invariant that a script breaks; a panic of an assertion
// counts as one.
func broken(s script, r rules, w worldRules) (why string) {
	defer func() {
		if e := recover(); e != nil {
			why = fmt.Sprint(e)
		}
	}()
	if world, _ := s.run(r, w); len(world.fails) > 0 {
		return world.fails[0]
	}
	return ""
}

func lower(s string) string {
	b := []byte(s)
	for i := range b {
		if 'A' <= b[i] && b[i] <= 'Z' {
			b[i] += 'a' - 'A'
		}
	}
	return string(b)
}
