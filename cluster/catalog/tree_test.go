package catalog

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
)

func TestTree_equalsMap(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	var tr tree[uint64, int]
	want := map[uint64]int{}
	for step := range 20_000 {
		k := r.Uint64N(300)
		old, oldLen := tr, tr.len()
		if r.IntN(3) == 0 {
			tr = tr.remove(k)
			delete(want, k)
		} else {
			tr = tr.put(k, step)
			want[k] = step
		}
		if old.len() != oldLen {
			t.Fatal("a change touched the old tree")
		}
		if got, ok := tr.get(k); ok != (want[k] != 0 || mapHas(want, k)) || got != want[k] {
			t.Fatalf("step %d: key %d is %d, %v", step, k, got, ok)
		}
		if step%500 == 0 {
			checkTree(t, tr, want)
		}
	}
}

func mapHas(m map[uint64]int, k uint64) bool { _, ok := m[k]; return ok }

func checkTree(t *testing.T, tr tree[uint64, int], want map[uint64]int) {
	t.Helper()
	var keys []uint64
	for k, v := range tr.all() {
		keys = append(keys, k)
		if want[k] != v {
			t.Fatalf("key %d is %d, want %d", k, v, want[k])
		}
	}
	if sorted := slices.Sorted(maps.Keys(want)); !slices.Equal(keys, sorted) || tr.len() != len(sorted) {
		t.Fatalf("keys %v, want %v", keys, sorted)
	}
	var from []uint64
	for k := range tr.from(100) {
		from = append(from, k)
	}
	at, _ := slices.BinarySearch(keys, 100)
	if !slices.Equal(from, keys[at:]) {
		t.Fatalf("from 100: %v", from)
	}
	checkNode(t, tr.root)
}

func checkNode(t *testing.T, n *treeNode[uint64, int]) {
	t.Helper()
	if n == nil {
		return
	}
	if d := height(n.left) - height(n.right); d < -1 || d > 1 {
		t.Fatalf("node %d leans by %d", n.key, d)
	}
	checkNode(t, n.left)
	checkNode(t, n.right)
}

func TestTree_oldVersionsStay(t *testing.T) {
	var versions []tree[uint64, int]
	var tr tree[uint64, int]
	for i := range uint64(200) {
		versions = append(versions, tr)
		tr = tr.put(i*7919%200, int(i))
	}
	for i := range uint64(200) {
		versions = append(versions, tr)
		tr = tr.remove(i * 104729 % 200)
	}
	for i, v := range versions {
		if want := min(i, 400-i); v.len() != want {
			t.Fatalf("version %d holds %d, want %d", i, v.len(), want)
		}
	}
}
