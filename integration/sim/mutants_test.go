package sim

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
)

var (
	mutantsFlag = flag.Bool("mutants", false, "try whether the simulator sees rules that are broken")
	mutantSeeds = flag.String("mutant-seeds", "1..3000", "seeds that each mutant is given")
)

// TestMutants breaks one rule after the other in a copy of its file, and prints
// which seed has seen it by which invariant.
func TestMutants(t *testing.T) {
	list, err := os.ReadFile("testdata/mutants.txt")
	if err != nil {
		t.Fatal(err)
	}
	root, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(list)) {
		if line[0] == '#' {
			continue
		}
		fields := strings.Split(strings.TrimSuffix(line, "\n"), " | ")
		file := filepath.Join(root, fields[1])
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		broken := strings.Replace(string(source), fields[2], fields[3], 1)
		if broken == string(source) {
			t.Errorf("%s: %s has no %q any more", fields[0], fields[1], fields[2])
		} else if *mutantsFlag {
			try(t, root, fields[0], file, broken)
		}
	}
}

var firstFailure = regexp.MustCompile(`seed (\d+): ([^:]+): (.*)`)

// try runs the seeds with one file replaced, until one fails.
func try(t *testing.T, root, name, file, source string) {
	dir := t.TempDir()
	replacement, overlay := filepath.Join(dir, "broken.go"), filepath.Join(dir, "overlay.json")
	config, err := json.Marshal(map[string]any{"Replace": map[string]string{file: replacement}})
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string]string{replacement: source, overlay: string(config)} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	run := exec.Command("go", "test", "-count=1", "-timeout=0", "-overlay", overlay, "-run", "TestSeeds",
		"./integration/sim", "-args", "-once", "-failures", "1", "-seeds", *mutantSeeds)
	run.Dir = root
	out, err := run.CombinedOutput()
	switch found := firstFailure.FindSubmatch(out); {
	case err == nil:
		t.Errorf("%-36s NOT SEEN in seeds %s", name, *mutantSeeds)
	case found == nil:
		t.Errorf("%s: %v\n%s", name, err, out)
	default:
		fmt.Printf("%-36s seed %4s  %-6s %.90s\n", name, found[1], found[2], found[3])
	}
}
