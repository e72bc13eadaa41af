package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLayers_readmeAgrees keeps README's table of rooms equal to the one that
// the tests hold the code against.
func TestLayers_readmeAgrees(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	want := readmeTable()
	if !strings.Contains(string(readme), want) {
		t.Errorf("README.md does not hold the table of rooms as the test knows it; it should read\n%s", want)
	}
}

// TestReadme_namesWhatIsThere: a tour that leads to a file that is gone sends
// newcomers away.
func TestReadme_namesWhatIsThere(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile("`([a-z_./]+\\.(?:go|md|yaml))`").FindAllStringSubmatch(string(readme), -1)
	if len(named) < 10 {
		t.Errorf("only %d files are found in README", len(named))
	}
	for _, match := range named {
		if _, err := os.Stat(filepath.Join(root, match[1])); err != nil {
			t.Errorf("README leads to %s: %v", match[1], err)
		}
	}
}

func readmeTable() string {
	var b strings.Builder
	b.WriteString("| room | pure | question it answers | may import (ours) |\n|---|---|---|---|\n")
	for _, r := range house {
		pure, question, may := "", r.question, strings.Join(r.may, ", ")
		if r.pure {
			pure = "P"
		}
		if r.later {
			question += " (not written yet)"
		}
		switch {
		case len(r.may) == 0:
			may = "–"
		case r.may[0] == "*":
			may = "all"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", r.path, pure, question, may)
	}
	return b.String()
}
