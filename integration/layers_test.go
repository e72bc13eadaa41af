package integration

import (
	"fmt"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// root is the module's root, seen from this package's folder.
const root = ".."

// A source is one parsed file of a room.
type source struct {
	name string // path below the root
	test bool
	file *ast.File
	fset *token.FileSet
}

func TestLayers_everyFolderIsARoom(t *testing.T) {
	known := map[string]bool{}
	for _, r := range house {
		known[r.path] = true
	}
	for _, dir := range goFolders(t) {
		if !known[dir] && !below(dir, "integration", "cmd/millrace") && !testRoom(dir) {
			t.Errorf("%s holds Go code but is no room of the house: give it a row (with its question and reason) or move its code into the room that asks the same question", dir)
		}
	}
}

func TestLayers_everyRoomIsThere(t *testing.T) {
	folders := goFolders(t)
	for _, r := range house {
		switch exists := slices.Contains(folders, r.path); {
		case !exists && !r.later:
			t.Errorf("room %s is in the table but gone from the tree: take its row out or bring it back", r.path)
		case exists && r.later:
			t.Errorf("room %s has code now: take its mark \"later\" away", r.path)
		}
	}
}

func TestLayers_importsPointDown(t *testing.T) {
	for _, r := range house {
		for _, src := range sources(t, r.path, token.NewFileSet()) {
			for _, imp := range src.file.Imports {
				path := strings.Trim(imp.Path.Value, `"`)
				if problem := r.judge(path, src.test); problem != "" {
					t.Errorf("%s imports %s: %s", src.name, path, problem)
				}
			}
		}
	}
}

// judge says what is wrong with an import, or "".
func (r room) judge(path string, test bool) string {
	if ours, is := strings.CutPrefix(path, moduleName+"/"); is {
		allowed := slices.Contains(r.may, "*") || slices.Contains(r.may, ours) || ours == r.path ||
			test && (slices.Contains(r.testsMay, ours) || testRoom(ours))
		if allowed {
			return ""
		}
		return fmt.Sprintf("%s may import %v of ours; %s", r.path, r.may, r.reason)
	}
	standard := !strings.Contains(strings.Split(path, "/")[0], ".")
	switch {
	case r.pure && !test && !standard:
		return "a pure room uses the standard library alone"
	case r.pure && !test && impureReason(path) != "":
		return "a pure room has no " + impureReason(path)
	case !standard && !test && r.libraries == "" && !strings.HasPrefix(path, "golang.org/x/"):
		return "this room uses the standard library and golang.org/x alone: every module in it is one more thing to audit on the data path"
	}
	return ""
}

func impureReason(path string) string {
	for bad, why := range impureImports {
		if path == bad || strings.HasSuffix(bad, "/") && strings.HasPrefix(path, bad) {
			return why
		}
	}
	return ""
}

func TestLayers_pureRoomsStartNothing(t *testing.T) {
	for _, r := range house {
		if !r.pure {
			continue
		}
		for _, src := range sources(t, r.path, token.NewFileSet()) {
			if src.test {
				continue
			}
			ast.Inspect(src.file, func(n ast.Node) bool {
				if what := concurrent(n); what != "" {
					t.Errorf("%s: a pure room has no %s", src.fset.Position(n.Pos()), what)
				}
				return true
			})
		}
	}
}

// concurrent names the construct if n starts, feeds or awaits a goroutine.
func concurrent(n ast.Node) string {
	switch n := n.(type) {
	case *ast.GoStmt:
		return "goroutine"
	case *ast.ChanType:
		return "channel"
	case *ast.SelectStmt:
		return "select"
	case *ast.SendStmt:
		return "send on a channel"
	case *ast.UnaryExpr:
		if n.Op == token.ARROW {
			return "receive from a channel"
		}
	}
	return ""
}

// TestLayers_judge holds the judge itself against imports that must fail, so
// that an empty tree or a broken rule cannot pass for a clean house.
func TestLayers_judge(t *testing.T) {
	rows := []struct {
		room, path string
		test, ok   bool
	}{
		{"segstore/chunk", "encoding/binary", false, true},
		{"segstore/chunk", "time", false, false},
		{"segstore/chunk", "math/rand/v2", false, false},
		{"segstore/chunk", "time", true, true},
		{"segstore/chunk", moduleName + "/tracking", false, false},
		{"segstore/chunk", "golang.org/x/sync/errgroup", false, false},
		{"segstore", moduleName + "/replication", false, false},
		{"segstore", "golang.org/x/sys/unix", false, true},
		{"segstore", "github.com/hashicorp/go-hclog", false, false},
		{"broker", moduleName + "/cluster", false, false},
		{"broker", moduleName + "/client", false, false},
		{"broker", moduleName + "/client", true, true},
		{"cmd/millrace", moduleName + "/broker", false, true},
	}
	for _, row := range rows {
		r := roomNamed(t, row.room)
		if problem := r.judge(row.path, row.test); (problem == "") != row.ok {
			t.Errorf("%s importing %s (test file: %v): judged %q", row.room, row.path, row.test, problem)
		}
	}
}

// TestLayers_tablePointsDown keeps the table itself honest: a row may name
// only rows above it.
func TestLayers_tablePointsDown(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range house {
		for _, may := range r.may {
			if may != "*" && !seen[may] {
				t.Errorf("%s may import %s, which stands at or below it in the table", r.path, may)
			}
		}
		seen[r.path] = true
	}
}

func roomNamed(t *testing.T, path string) room {
	t.Helper()
	for _, r := range house {
		if r.path == path {
			return r
		}
	}
	t.Fatalf("no room %q", path)
	return room{}
}

// sources parses the Go files that lie directly in the room's folder. A room
// with sub-packages that are no rooms themselves (cmd/millrace, integration)
// answers for those too.
func sources(t *testing.T, path string, fset *token.FileSet) []source {
	t.Helper()
	var out []source
	for _, dir := range goFolders(t) {
		if dir != path && !(below(path, "integration", "cmd/millrace") && strings.HasPrefix(dir, path+"/")) {
			continue
		}
		entries, err := os.ReadDir(filepath.Join(root, dir))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if filepath.Ext(e.Name()) != ".go" {
				continue
			}
			name := filepath.Join(dir, e.Name())
			file, err := parser.ParseFile(fset, filepath.Join(root, name), nil, parser.ParseComments)
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, source{name: name, test: strings.HasSuffix(name, "_test.go"), file: file, fset: fset})
		}
	}
	return out
}

// goFolders lists the folders of this module that hold Go files, leaving out
// testdata and modules nested in it.
func goFolders(t *testing.T) []string {
	t.Helper()
	var out []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !d.IsDir() {
			return err
		}
		if path != root {
			name := d.Name()
			if strings.HasPrefix(name, ".") || strings.HasPrefix(name, "millrace-") || name == "testdata" || name == "build" || name == "bin" {
				return filepath.SkipDir
			}
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
				return filepath.SkipDir
			}
		}
		if pkg, err := build.ImportDir(path, 0); err == nil || pkg != nil && len(pkg.GoFiles)+len(pkg.TestGoFiles) > 0 {
			rel, err := filepath.Rel(root, path)
			if err != nil {
				return err
			}
			out = append(out, filepath.ToSlash(rel))
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// below reports whether dir is one of tops or lies under one.
func below(dir string, tops ...string) bool {
	return slices.ContainsFunc(tops, func(top string) bool {
		return dir == top || strings.HasPrefix(dir, top+"/")
	})
}

// testRoom reports whether dir is a package that only tests import: by
// convention its name ends in "test", like net/http/httptest.
func testRoom(dir string) bool { return strings.HasSuffix(dir, "test") }
