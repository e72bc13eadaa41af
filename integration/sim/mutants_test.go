package sim

import (
	"bytes"
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
	mutantsFlag    = flag.Bool("mutants", false, "try whether the simulator sees rules that are broken")
	mutantSeeds    = flag.String("mutant-seeds", "1..10000", "seeds that each mutant is given")
	mutantsOnly    = flag.String("mutant", "", "try only mutants with this in their names")
	mutantsResults = flag.String("mutant-results", "", "file to append results to; mutants that are in it are not tried again")
)

// mutant is one change of the broker's code that breaks a rule.
type mutant struct {
	name, file, source string
	// net: it is not expected to be seen, since nothing reaches the check while the
	// other rules hold; scripts of the protocol show it alone.
	//
	// The digest says of the whole log what LSN, epoch, offset and the tail before
	// say of its end; as long as these and the CRCs hold, no chunk comes that it
	// alone would refuse.
	//
	// A leader sends its commit only to who has joined; so a commit that comes late
	// meets a log which the search of an earlier session in the same epoch has made
	// equal to the leader's.
	net bool
}

// readMutants returns the mutants of the list, made from the files as they are.
func readMutants(t *testing.T, root string) (all []mutant) {
	t.Helper()
	list, err := os.ReadFile("testdata/mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(`\n`, "\n", `\t`, "\t", `\|`, "|")
	for line := range strings.Lines(string(list)) {
		if line[0] == '#' {
			continue
		}
		fields := strings.Split(strings.TrimSuffix(line, "\n"), " | ")
		if len(fields) != 4 {
			t.Fatalf("%q has %d fields, want 4", line, len(fields))
		}
		m := mutant{name: fields[0], file: filepath.Join(root, fields[1]), net: strings.HasSuffix(fields[0], "(net)")}
		source, err := os.ReadFile(m.file)
		if err != nil {
			t.Fatal(err)
		}
		m.source = strings.Replace(string(source), text.Replace(fields[2]), text.Replace(fields[3]), 1)
		if m.source == string(source) {
			t.Errorf("%s: %s has no %q any more", m.name, fields[1], fields[2])
			continue
		}
		all = append(all, m)
	}
	return all
}

// TestMutants breaks one rule after the other in a copy of its file, and prints
// which seed has seen it by which invariant. Without its flag it sees to it that
// each mutant still fits its file.
func TestMutants(t *testing.T) {
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	all := readMutants(t, root)
	if !*mutantsFlag {
		return
	}
	results := openResults(t, *mutantsResults)
	done := readMutantResults(t, *mutantsResults)
	seen := 0
	for _, m := range all {
		if !strings.Contains(m.name, *mutantsOnly) {
			continue
		}
		line, ok := done[m.name]
		if !ok {
			if line = try(t, root, &m); line == "" {
				continue
			}
			if results != nil {
				_, _ = fmt.Fprintf(results, "%s\t%s\n", m.name, line)
			}
		}
		fmt.Printf("%-40s %s\n", m.name, line)
		switch survived := strings.HasPrefix(line, "survived"); {
		case !survived:
			seen++
		case !m.net:
			t.Errorf("%s: %s", m.name, line)
		}
	}
	fmt.Printf("%d of %d mutants were seen\n", seen, len(all))
}

func readMutantResults(t *testing.T, name string) map[string]string {
	t.Helper()
	done := map[string]string{}
	if name == "" {
		return done
	}
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if mutant, result, ok := strings.Cut(strings.TrimSuffix(line, "\n"), "\t"); ok {
			done[mutant] = result
		}
	}
	return done
}

var firstFailure = regexp.MustCompile(`seed (\d+): ([^:]+): (.*)`)

// try runs the seeds with one file replaced, until one fails, and tells which;
// nothing if the mutant could not be tried.
func try(t *testing.T, root string, m *mutant) string {
	t.Helper()
	dir := t.TempDir()
	replacement, overlay := filepath.Join(dir, "broken.go"), filepath.Join(dir, "overlay.json")
	config, err := json.Marshal(map[string]any{"Replace": map[string]string{m.file: replacement}})
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{replacement: m.source, overlay: string(config)} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	start := time.Now()
	run := exec.Command("go", "test", "-vet=off", "-count=1", "-timeout=0", "-overlay", overlay, "-run", "TestSeeds",
		"./integration/sim", "-args", "-once", "-failures", "1", "-seeds", *mutantSeeds)
	run.Dir = root
	out, err := run.CombinedOutput()
	took := time.Since(start).Round(time.Second)
	switch found := firstFailure.FindSubmatch(out); {
	case err == nil || found == nil && bytes.Contains(out, []byte("no seed has shown")):
		return fmt.Sprintf("survived seeds %s, %s", *mutantSeeds, took)
	case found == nil:
		t.Errorf("%s: %v\n%.2000s", m.name, err, out)
		return ""
	default:
		return fmt.Sprintf("seed %5s  %-6s %.80s", found[1], found[2], found[3])
	}
}
