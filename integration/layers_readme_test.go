package integration

import (
	"fmt"
	"os"
	"path/filepath"
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
