package integration

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// shownBy finds what CASES.md calls a test or a script.
var shownBy = regexp.MustCompile("`([a-z/]+)\\.(Test\\w+|Fuzz\\w+)`|`([a-z/]+/[a-z_]+\\.txtar)`")

// TestCases_namesExist: every test that CASES.md names is in the tree.
func TestCases_namesExist(t *testing.T) {
	text, err := os.ReadFile("CASES.md")
	if err != nil {
		t.Fatal(err)
	}
	sources := map[string]string{}
	found := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| case ") {
			continue
		}
		for _, name := range shownBy.FindAllStringSubmatch(line, -1) {
			found++
			folder, test, script := name[1], name[2], name[3]
			if script != "" {
				if _, err := os.Stat(filepath.Join("..", script)); err != nil {
					t.Error(err)
				}
				continue
			}
			if _, ok := sources[folder]; !ok {
				sources[folder] = testSources(t, folder)
			}
			if !strings.Contains(sources[folder], "func "+test+"(") {
				t.Errorf("there is no %s in %s", test, folder)
			}
		}
	}
	if found < 5 {
		t.Errorf("only %d tests are named", found)
	}
}

func testSources(t *testing.T, folder string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join("..", folder, "*_test.go"))
	if err != nil || len(files) == 0 {
		t.Errorf("%s has no tests, %v", folder, err)
	}
	var all strings.Builder
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(text)
	}
	return all.String()
}
