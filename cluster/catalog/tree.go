package catalog

import (
	"cmp"
	"iter"
)

// tree is an immutable ordered map, an AVL tree with path copying: put and
// remove return a new tree that shares all but O(log n) nodes with the old one.
// Iteration is in key order, so whatever is derived from a tree is
// deterministic. The zero tree is empty.
type tree[K cmp.Ordered, V any] struct {
	root *treeNode[K, V]
}

// treeNode is never changed once it is reachable from a tree.
// Invariant: heights of left and right differ by at most one.
type treeNode[K cmp.Ordered, V any] struct {
	key         K
	value       V
	left, right *treeNode[K, V]
	height      int
	size        int
}

func (t tree[K, V]) len() int { return size(t.root) }

func (t tree[K, V]) get(key K) (V, bool) {
	for n := t.root; n != nil; {
		switch c := cmp.Compare(key, n.key); {
		case c < 0:
			n = n.left
		case c > 0:
			n = n.right
		default:
			return n.value, true
		}
	}
	var zero V
	return zero, false
}

func (t tree[K, V]) put(key K, value V) tree[K, V] {
	return tree[K, V]{root: put(t.root, key, value)}
}

func (t tree[K, V]) remove(key K) tree[K, V] {
	if _, ok := t.get(key); !ok {
		return t
	}
	return tree[K, V]{root: remove(t.root, key)}
}

// all yields the entries in key order.
func (t tree[K, V]) all() iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { walk(t.root, yield) }
}

// from yields the entries whose key is at or above low, in key order.
func (t tree[K, V]) from(low K) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) { walkFrom(t.root, low, yield) }
}

// min returns the entry of the lowest key.
func (t tree[K, V]) min() (key K, value V, ok bool) {
	for k, v := range t.all() {
		return k, v, true
	}
	return key, value, false
}

func size[K cmp.Ordered, V any](n *treeNode[K, V]) int {
	if n == nil {
		return 0
	}
	return n.size
}

func height[K cmp.Ordered, V any](n *treeNode[K, V]) int {
	if n == nil {
		return 0
	}
	return n.height
}

func walk[K cmp.Ordered, V any](n *treeNode[K, V], yield func(K, V) bool) bool {
	return n == nil || walk(n.left, yield) && yield(n.key, n.value) && walk(n.right, yield)
}

func walkFrom[K cmp.Ordered, V any](n *treeNode[K, V], low K, yield func(K, V) bool) bool {
	if n == nil {
		return true
	}
	if cmp.Less(n.key, low) {
		return walkFrom(n.right, low, yield)
	}
	return walkFrom(n.left, low, yield) && yield(n.key, n.value) && walk(n.right, yield)
}

func put[K cmp.Ordered, V any](n *treeNode[K, V], key K, value V) *treeNode[K, V] {
	if n == nil {
		return &treeNode[K, V]{key: key, value: value, height: 1, size: 1}
	}
	switch c := cmp.Compare(key, n.key); {
	case c < 0:
		return balance(n.key, n.value, put(n.left, key, value), n.right)
	case c > 0:
		return balance(n.key, n.value, n.left, put(n.right, key, value))
	}
	return join(key, value, n.left, n.right)
}

// remove expects the key to be there.
func remove[K cmp.Ordered, V any](n *treeNode[K, V], key K) *treeNode[K, V] {
	switch c := cmp.Compare(key, n.key); {
	case c < 0:
		return balance(n.key, n.value, remove(n.left, key), n.right)
	case c > 0:
		return balance(n.key, n.value, n.left, remove(n.right, key))
	case n.left == nil:
		return n.right
	case n.right == nil:
		return n.left
	}
	next := n.right
	for next.left != nil {
		next = next.left
	}
	return balance(next.key, next.value, n.left, remove(n.right, next.key))
}

// join makes a node of two trees whose heights differ by at most one.
func join[K cmp.Ordered, V any](key K, value V, left, right *treeNode[K, V]) *treeNode[K, V] {
	return &treeNode[K, V]{
		key: key, value: value, left: left, right: right,
		height: 1 + max(height(left), height(right)),
		size:   1 + size(left) + size(right),
	}
}

// balance makes a node of two trees whose heights differ by at most two.
func balance[K cmp.Ordered, V any](key K, value V, left, right *treeNode[K, V]) *treeNode[K, V] {
	switch d := height(left) - height(right); {
	case d > 1 && height(left.left) >= height(left.right):
		return join(left.key, left.value, left.left, join(key, value, left.right, right))
	case d > 1:
		mid := left.right
		return join(mid.key, mid.value,
			join(left.key, left.value, left.left, mid.left), join(key, value, mid.right, right))
	case d < -1 && height(right.right) >= height(right.left):
		return join(right.key, right.value, join(key, value, left, right.left), right.right)
	case d < -1:
		mid := right.left
		return join(mid.key, mid.value,
			join(key, value, left, mid.left), join(right.key, right.value, mid.right, right.right))
	}
	return join(key, value, left, right)
}
