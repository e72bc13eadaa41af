package integration

import (
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"slices"
	"strings"
	"testing"
)

// orderFree marks, in a comment on the line or the one above, a walk over a map
// whose outcome does not depend on the order.
const orderFree = "order-free:"

// TestLayers_pureRoomsWalkMapsInOrder: the order of a map differs from run to
// run, so a simulator could not replay a decision that depends on it. Sort the
// keys (slices.Sorted(maps.Keys(m))), or say why the order does not matter.
func TestLayers_pureRoomsWalkMapsInOrder(t *testing.T) {
	fset := token.NewFileSet()
	from := importer.ForCompiler(fset, "source", nil)
	for _, r := range house {
		if !r.pure {
			continue
		}
		var files []*ast.File
		for _, src := range sources(t, r.path, fset) {
			if !src.test {
				files = append(files, src.file)
			}
		}
		info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
		if _, err := (&types.Config{Importer: from}).Check(r.path, fset, files, info); err != nil {
			t.Fatalf("%s: %v", r.path, err)
		}
		for _, file := range files {
			reasons := commentLines(fset, file)
			ast.Inspect(file, func(n ast.Node) bool {
				at := walksMap(info, n)
				if at == nil {
					return true
				}
				if line := fset.Position(at.Pos()).Line; !reasons[line] && !reasons[line-1] {
					t.Errorf("%s: a walk over a map in no order: sort the keys, or say in a comment \"%s why\"", fset.Position(at.Pos()), orderFree)
				}
				return true
			})
		}
	}
}

// walksMap returns the place where n begins to walk over a map in no order, or
// nil. Sorting the keys right away is fine.
func walksMap(info *types.Info, n ast.Node) ast.Node {
	switch n := n.(type) {
	case *ast.RangeStmt:
		if _, isMap := info.Types[n.X].Type.Underlying().(*types.Map); isMap {
			return n
		}
		if call, ok := n.X.(*ast.CallExpr); ok && mapsFunction(info, call) {
			return n
		}
	case *ast.CallExpr:
		// A sequence that is not sorted on the spot may be walked anywhere.
		if ofPackage(info, n, "slices", "Collect", "AppendSeq") && len(n.Args) > 0 {
			if call, ok := n.Args[len(n.Args)-1].(*ast.CallExpr); ok && mapsFunction(info, call) {
				return n
			}
		}
	}
	return nil
}

func mapsFunction(info *types.Info, call *ast.CallExpr) bool {
	return ofPackage(info, call, "maps", "Keys", "Values", "All")
}

// ofPackage reports whether the call is of one of the package's functions.
func ofPackage(info *types.Info, call *ast.CallExpr, path string, names ...string) bool {
	selector, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return false
	}
	object := info.Uses[selector.Sel]
	if object == nil || object.Pkg() == nil || object.Pkg().Path() != path {
		return false
	}
	for _, name := range names {
		if object.Name() == name {
			return true
		}
	}
	return false
}

// commentLines are the lines that hold an order-free comment.
func commentLines(fset *token.FileSet, file *ast.File) map[int]bool {
	lines := map[int]bool{}
	for _, group := range file.Comments {
		for _, c := range group.List {
			if strings.Contains(c.Text, orderFree) {
				lines[fset.Position(c.End()).Line] = true
				lines[fset.Position(group.End()).Line] = true
			}
		}
	}
	return lines
}

// TestLayers_mapWalksAreSeen holds the finder against walks that it must see
// and others that it must let pass.
func TestLayers_mapWalksAreSeen(t *testing.T) {
	const text = `package p
import ("maps"; "slices")
func f(m map[int]int, s []int) {
	for range m {}                     // 1
	for k := range maps.Keys(m) { _ = k } // 2
	_ = slices.Collect(maps.Values(m)) // 3
	for range s {}
	for _, k := range slices.Sorted(maps.Keys(m)) { _ = k }
	clear(m)
}`
	fset := token.NewFileSet()
	file, err := parser.ParseFile(fset, "p.go", text, 0)
	if err != nil {
		t.Fatal(err)
	}
	info := &types.Info{Types: map[ast.Expr]types.TypeAndValue{}, Uses: map[*ast.Ident]types.Object{}}
	from := importer.ForCompiler(fset, "source", nil)
	if _, err := (&types.Config{Importer: from}).Check("p", fset, []*ast.File{file}, info); err != nil {
		t.Fatal(err)
	}
	var lines []int
	ast.Inspect(file, func(n ast.Node) bool {
		if at := walksMap(info, n); at != nil {
			lines = append(lines, fset.Position(at.Pos()).Line)
		}
		return true
	})
	if want := []int{4, 5, 6}; !slices.Equal(lines, want) {
		t.Errorf("walks over maps are seen in lines %v, want %v", lines, want)
	}
}
