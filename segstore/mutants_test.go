package segstore_test

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

var (
	mutantsFlag = flag.Bool("mutants", false, "try whether the walks notice broken code")
	mutantsOnly = flag.String("mutants.only", "", "try only mutants whose name holds this")
)

// mutant is one change that makes the code wrong.
type mutant struct{ name, file, old, broken, harmless string }

var unescape = strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\|`, "|")

func mutants(t *testing.T) (all []mutant) {
	list, err := os.ReadFile("testdata/mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		if line[0] == '#' {
			continue
		}
		fields := strings.Split(strings.TrimSuffix(line, "\n"), " | ")
		if len(fields) < 4 || len(fields) > 5 {
			t.Fatalf("%d fields in %q", len(fields), line)
		}
		all = append(all, mutant{fields[0], fields[1], unescape.Replace(fields[2]), unescape.Replace(fields[3]), strings.Join(fields[4:], "")})
	}
	return all
}

// Each mutant is noticed by a walk over crash states, faults or flipped bits, or
// at least by another test. Without -mutants only the list is held against the
// code.
func TestMutants(t *testing.T) {
	for _, m := range mutants(t) {
		source, err := os.ReadFile(m.file)
		if err != nil {
			t.Fatal(err)
		}
		switch n := strings.Count(string(source), m.old); {
		case n != 1:
			t.Errorf("%s: stands %d times in %s: %q", m.name, n, m.file, m.old)
		case !*mutantsFlag || !strings.Contains(m.name, *mutantsOnly):
		case m.harmless != "":
			fmt.Printf("FIGURE mutant %-52s harmless: %s\n", m.name, m.harmless)
		default:
			m.try(t, strings.Replace(string(source), m.old, m.broken, 1))
		}
	}
}

// try runs the walks with one file replaced, and then, if none of them has
// failed, all tests.
func (m *mutant) try(t *testing.T, source string) {
	dir := t.TempDir()
	file, err := filepath.Abs(m.file)
	if err != nil {
		t.Fatal(err)
	}
	replacement, overlay := filepath.Join(dir, "broken.go"), filepath.Join(dir, "overlay.json")
	config, err := json.Marshal(map[string]any{"Replace": map[string]string{file: replacement}})
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string]string{replacement: source, overlay: string(config)} {
		if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	run := func(arguments ...string) (out []byte, failed bool) {
		arguments = append([]string{"test", "-count=1", "-timeout=15m", "-failfast", "-overlay", overlay}, arguments...)
		out, err := exec.Command("go", arguments...).CombinedOutput()
		return out, err != nil
	}
	by := "the walks"
	out, failed := run("-run", "^TestCrash_|^TestFaults_", ".", "-args", "-crash.full")
	if !failed {
		by = "another test"
		out, failed = run("-skip", "^TestMutants$|^TestCrash_|^TestFaults_", "./...")
	}
	took := time.Since(begin).Round(time.Second)
	switch found := noticed.FindSubmatch(out); {
	case !failed:
		t.Errorf("%-52s NOT NOTICED (%s)", m.name, took)
	case found == nil:
		t.Errorf("%s: %s", m.name, out)
	default:
		fmt.Printf("FIGURE mutant %-52s noticed by %s in %s: %.90s\n", m.name, by, took, found[1])
	}
}

var noticed = regexp.MustCompile(`(?m)^\s*(?:.*_test\.go:\d+: |panic: |fatal error: )(.*)$`)
