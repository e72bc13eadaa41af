package vfs

import (
	"cmp"
	"maps"
	"slices"
)

// Keep says which of some unsynced changes may survive a crash.
type Keep uint8

// The ways of keeping. Each of a file's writes, and of a directory's changes of
// names, is one change.
const (
	KeepNone      Keep = iota // nothing unsynced survives
	KeepAll                   // everything does, as when only the process died
	KeepNoneOrAll             // the one or the other, file by file
	KeepPrefix                // what came before some moment, file by file
	KeepAny                   // any subset: the disk has its own order
)

// Tears says what may stand behind the border at which the last surviving write
// of a file was cut, as a set of bits.
type Tears uint8

// What a torn write leaves of its rest.
const (
	TearOld     Tears = 1 << iota // what was there before
	TearZero                      // zeros
	TearGarbage                   // bytes of something else

	TearAny = TearOld | TearZero | TearGarbage
)

// sectorBytes is the unit that a disk writes wholly or not at all; its
// multiples include the 4 KiB of pages.
const sectorBytes = 512

// Policy bounds the states that Crash chooses from. Its zero value leaves one:
// everything unsynced is lost.
type Policy struct {
	Writes Keep  // of each file
	Names  Keep  // of each directory
	Tears  Tears // of the last surviving write of a file
	// BordersMax bounds the borders tried in one torn write, spread over it;
	// 0 tries each multiple of 512 bytes.
	BordersMax int
	// Grown adds the outcome that a file has its new size but of its unsynced
	// bytes none: zeros.
	Grown bool
	// Ordered keeps what came before one moment for the whole file system, in
	// place of Writes and Names.
	Ordered bool
}

// Crash returns the file system as a power loss at this moment could leave it;
// which of the states that the policy allows, choose decides. The file system
// itself goes on unharmed, and locks are not carried over.
func (m *Mem) Crash(policy Policy, choose Choose) *Mem {
	m.mu.Lock()
	defer m.mu.Unlock()
	c := &crash{
		Policy: policy, choose: choose,
		nodes: map[*node]*node{}, kept: map[*nameOp]bool{},
	}
	if policy.Ordered {
		c.moment = c.chooseMoment(m.root)
	}
	after := NewMem()
	after.root = c.directory(m.root)
	after.capacity = m.capacity
	for _, n := range c.nodes {
		after.used += int64(len(n.seen))
	}
	return after
}

// crash is one walk over the tree.
type crash struct {
	Policy
	choose Choose
	moment uint64           // with Ordered: the last sequence that survives
	nodes  map[*node]*node  // before → after
	kept   map[*nameOp]bool // decided already, in the other directory
}

// chooseMoment picks the last change that survives, or none.
func (c *crash) chooseMoment(root *node) uint64 {
	moments := []uint64{0}
	seen := map[*node]bool{}
	var walk func(n *node)
	walk = func(n *node) {
		if seen[n] {
			return
		}
		seen[n] = true
		for _, p := range n.pending {
			moments = append(moments, p.sequence)
		}
		for _, op := range n.ops {
			if !op.madeDurable {
				moments = append(moments, op.sequence)
			}
		}
		for _, of := range []names{n.entries, n.durable} {
			for _, name := range slices.Sorted(maps.Keys(of)) {
				walk(of[name])
			}
		}
	}
	walk(root)
	slices.Sort(moments)
	moments = slices.Compact(moments)
	return moments[c.choose(len(moments))]
}

// directory returns what survives of a directory and of all below it.
func (c *crash) directory(n *node) *node {
	if after := c.nodes[n]; after != nil {
		return after
	}
	after := newDir()
	c.nodes[n] = after
	surviving := maps.Clone(n.durable)
	for i, keep := range c.keepNames(n.ops) {
		op := n.ops[i]
		if !keep || op.madeDurable {
			continue
		}
		if op.fromDir == n {
			delete(surviving, op.from)
		}
		if op.toDir == n {
			surviving[op.to] = op.child
		}
	}
	for _, name := range slices.Sorted(maps.Keys(surviving)) {
		child := surviving[name]
		if child.mode.IsDir() {
			after.durable[name] = c.directory(child)
		} else {
			after.durable[name] = c.file(child)
		}
	}
	after.entries = maps.Clone(after.durable)
	return after
}

// keepNames decides for each pending change of names whether it survives.
func (c *crash) keepNames(ops []*nameOp) []bool {
	sequences := make([]uint64, len(ops))
	for i, op := range ops {
		sequences[i] = op.sequence
	}
	keep := c.keep(c.Names, sequences)
	for i, op := range ops {
		if decided, ok := c.kept[op]; ok {
			keep[i] = decided
		}
		c.kept[op] = keep[i]
	}
	return keep
}

// keep decides which of some changes, in order, survive.
func (c *crash) keep(how Keep, sequences []uint64) []bool {
	keep := make([]bool, len(sequences))
	if len(keep) == 0 {
		return keep
	}
	count := 0
	switch {
	case c.Ordered:
		for i, s := range sequences {
			keep[i] = s <= c.moment
		}
		return keep
	case how == KeepAny:
		for i := range keep {
			keep[i] = c.choose(2) == 1
		}
		return keep
	case how == KeepAll:
		count = len(keep)
	case how == KeepNoneOrAll:
		count = c.choose(2) * len(keep)
	case how == KeepPrefix:
		count = c.choose(len(keep) + 1)
	}
	for i := range count {
		keep[i] = true
	}
	return keep
}

// file returns what survives of a file.
func (c *crash) file(n *node) *node {
	if after := c.nodes[n]; after != nil {
		return after
	}
	after := &node{mode: n.mode}
	c.nodes[n] = after
	bytes := n.kept
	n.keptShared = true
	var pending []change
	for _, p := range n.pending {
		if !p.lost {
			pending = append(pending, p)
		}
	}
	if len(pending) > 0 {
		bytes = c.bytes(slices.Clone(n.kept), pending, int64(len(n.seen)))
	}
	after.content = content{seen: bytes, kept: bytes, seenShared: true, keptShared: true}
	return after
}

// bytes applies to the durable bytes of a file what survives of its pending
// changes.
func (c *crash) bytes(kept []byte, pending []change, size int64) []byte {
	if c.Grown && size > int64(len(kept)) && c.choose(2) == 1 {
		return resize(kept, size)
	}
	sequences := make([]uint64, len(pending))
	for i, p := range pending {
		sequences[i] = p.sequence
	}
	last := -1
	durable := int64(len(kept))
	keep := c.keep(c.Writes, sequences)
	for i := range keep {
		if keep[i] {
			last = i
		}
	}
	for i, p := range pending {
		switch {
		case !keep[i]:
		case i == last && !p.truncate:
			kept = c.torn(p, kept[:durable]).applyTo(kept)
		default:
			kept = p.applyTo(kept)
			durable = min(durable, int64(len(kept)))
		}
	}
	return kept
}

// torn returns a write as it may have reached the disk: whole, or cut at a
// border between sectors. Where it goes over bytes that are durable its rest
// leaves them old, for a sector that was there is written or it is not; only a
// new one may come out as anything.
func (c *crash) torn(w change, durable []byte) change {
	var rests []Tears
	for _, rest := range []Tears{TearOld, TearZero, TearGarbage} {
		if c.Tears&rest != 0 {
			rests = append(rests, rest)
		}
	}
	borders := c.borders(w)
	pick := c.choose(1 + len(borders)*len(rests))
	if pick == 0 {
		return w
	}
	border := borders[(pick-1)/len(rests)]
	rest := rests[(pick-1)%len(rests)]
	fresh := max(border, int64(len(durable))-w.at)
	if rest == TearOld || fresh >= int64(len(w.bytes)) {
		w.bytes = w.bytes[:border]
		return w
	}
	w.bytes = slices.Clone(w.bytes)
	if fresh > border {
		copy(w.bytes[border:fresh], durable[w.at+border:])
	}
	for i := fresh; i < int64(len(w.bytes)); i++ {
		w.bytes[i] = 0
		if rest == TearGarbage {
			w.bytes[i] = garbage(w.at + i)
		}
	}
	return w
}

// borders returns where, counted from its start, a write may be cut.
func (c *crash) borders(w change) []int64 {
	if c.Tears == 0 {
		return nil
	}
	var all []int64
	first := sectorBytes - w.at%sectorBytes
	for b := first; b < int64(len(w.bytes)); b += sectorBytes {
		all = append(all, b)
	}
	limit := cmp.Or(c.BordersMax, len(all))
	if len(all) <= limit {
		return all
	}
	spread := make([]int64, 0, limit)
	for i := range limit {
		spread = append(spread, all[i*(len(all)-1)/max(limit-1, 1)])
	}
	return spread
}

// garbage is a byte of something else, the same in each run; its top bit tells
// it from text.
func garbage(position int64) byte {
	x := uint64(position)*0x9e3779b97f4a7c15 + 0x7f4a7c15
	return byte(x>>56) | 0x80
}
