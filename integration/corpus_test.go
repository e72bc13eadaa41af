package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz\w+)\(f \*testing\.F\)`)

// Each fuzz target has inputs beside it that every test run goes through.
func TestFuzz_everyTargetHasACorpus(t *testing.T) {
	targets := 0
	err := filepath.WalkDir("..", func(file string, entry os.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(file, "_test.go") {
			return err
		}
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		for _, found := range fuzzTarget.FindAllSubmatch(source, -1) {
			targets++
			corpus := filepath.Join(filepath.Dir(file), "testdata", "fuzz", string(found[1]))
			if inputs, err := os.ReadDir(corpus); err != nil || len(inputs) == 0 {
				t.Errorf("%s: %s has no input in %s (%v)", file, found[1], corpus, err)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if targets < 20 {
		t.Errorf("only %d targets were found", targets)
	}
}
