package protocol

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
)

var rewrite = flag.Bool("rewrite", false, "write the traces of the scripts anew")

// A script is a file of commands, each followed by a line of dashes and what
// came of it. Lines before the first command that start with # tell the story;
// "# rule: name" names a rule without which the script must break an invariant.
type script struct {
	name  string
	head  []string
	rules []string
	steps []scriptStep
}

type scriptStep struct {
	comment []string
	line    string
	want    string
}

func scripts(t testing.TB) []script {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scripts: %v", err)
	}
	var all []script
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, parseScript(strings.TrimSuffix(filepath.Base(f), ".txt"), string(b)))
	}
	return all
}

func parseScript(name, text string) script {
	s := script{name: name}
	var comment []string
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		l := lines[i]
		switch {
		case strings.HasPrefix(l, "#"):
			comment = append(comment, l)
			if r, ok := strings.CutPrefix(l, "# rule: "); ok {
				s.rules = append(s.rules, strings.Fields(r)...)
			}
		case l == "":
			if len(s.steps) == 0 && len(comment) > 0 && s.head == nil {
				s.head, comment = comment, nil
			}
		default:
			st := scriptStep{comment: comment, line: l}
			comment = nil
			if i+1 < len(lines) && lines[i+1] == "----" {
				for i += 2; i < len(lines) && lines[i] != ""; i++ {
					st.want += lines[i] + "\n"
				}
			}
			s.steps = append(s.steps, st)
		}
	}
	return s
}

// run plays a script; got are the traces of its steps.
func (s script) run(r rules, wr worldRules) (w *world, got []string) {
	w = newWorld(r, wr)
	states := map[NodeID]string{}
	for _, st := range s.steps {
		w.log.Reset()
		w.command(strings.Fields(st.line))
		w.check()
		for _, p := range w.nodes {
			if now := w.state(p); states[p.id] != now {
				states[p.id] = now
				w.say("  %s %s", p.id, now)
			}
		}
		got = append(got, w.log.String())
	}
	return w, got
}

// state is a node in one line, in the notation of the model.
func (w *world) state(p *peer) string {
	var b strings.Builder
	if l, ok := p.r.Leading(); ok {
		fmt.Fprintf(&b, "L%d", l.Epoch())
	}
	if p.r.Role() == Stopped {
		b.WriteString("X")
	}
	if p.r.Aside() {
		b.WriteString("~")
	}
	c, _ := p.r.Commit()
	fmt.Fprintf(&b, "p%d c%d %v", p.r.Promise(), c, p.d)
	if p.pend.off != 0 {
		fmt.Fprintf(&b, "+%d/e%d", p.pend.off, p.pend.epoch)
	}
	return b.String()
}

var (
	only = flag.String("script", "", "tell the trace of this script")
	off  = flag.String("off", "", "with this rule off")
)

// TestTell prints one script's trace, perhaps with a rule off:
// go test -run Tell -v -script two_changes -off onechange
func TestTell(t *testing.T) {
	for _, s := range scripts(t) {
		if s.name != *only {
			continue
		}
		r, w, _ := withoutRule(*off)
		_, got := s.run(r, w)
		for i, st := range s.steps {
			t.Logf("%s\n%s", st.line, got[i])
		}
	}
}

func TestScripts(t *testing.T) {
	for _, s := range scripts(t) {
		t.Run(s.name, func(t *testing.T) {
			w, got := s.run(allRules(), allWorldRules())
			for _, f := range w.fails {
				t.Errorf("violation: %s", f)
			}
			if *rewrite {
				s.write(t, got)
				return
			}
			for i, st := range s.steps {
				if got[i] != st.want {
					t.Errorf("%s\n got: %swant: %s", st.line, indent(got[i]), indent(st.want))
				}
			}
		})
	}
}

func indent(s string) string { return strings.ReplaceAll("\n"+s, "\n", "\n      ") + "\n" }

func (s script) write(t *testing.T, got []string) {
	var b strings.Builder
	for _, l := range s.head {
		fmt.Fprintln(&b, l)
	}
	for i, st := range s.steps {
		fmt.Fprintln(&b)
		for _, l := range st.comment {
			fmt.Fprintln(&b, l)
		}
		fmt.Fprintf(&b, "%s\n----\n%s", st.line, got[i])
	}
	if err := os.WriteFile("testdata/"+s.name+".txt", []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// withoutRule switches one rule off, of the protocol or of its neighbours.
func withoutRule(name string) (rules, worldRules, bool) {
	r, w := allRules(), allWorldRules()
	for _, v := range []reflect.Value{reflect.ValueOf(&r).Elem(), reflect.ValueOf(&w).Elem()} {
		for i := range v.NumField() {
			if strings.EqualFold(v.Type().Field(i).Name, name) {
				*(*bool)(v.Field(i).Addr().UnsafePointer()) = false
				return r, w, true
			}
		}
	}
	return r, w, false
}

// args are the words of a command: positional ones and key=value.
type args struct {
	pos []string
	kv  map[string]string
}

func parseArgs(words []string) args {
	a := args{kv: map[string]string{}}
	for _, w := range words {
		if k, v, ok := strings.Cut(w, "="); ok {
			a.kv[k] = v
		} else {
			a.pos = append(a.pos, w)
		}
	}
	return a
}

func (a args) has(word string) bool { return slices.Contains(a.pos, word) }

func (a args) num(key string, or int) int {
	s, ok := a.kv[key]
	if !ok {
		return or
	}
	n, err := strconv.Atoi(s)
	if err != nil {
		panic(err)
	}
	return n
}
