package vfs

import (
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"
)

// Mem is a file system in memory that knows what a power loss would leave.
//
// Each file has the content that programs see, the content that is durable, and
// the ordered list of changes that lead from the one to the other since its last
// sync. Each directory has the same for its names: what is seen, what is durable,
// and the operations since its last SyncDir.
//
//	           write, truncate                     Datasync
//	seen    ─────────────────────▶ pending changes ─────────▶ durable
//	                                     │
//	                                     └─ Crash keeps some of these
//
// Mem is stricter than usual systems: syncing a file does not make its name
// durable, and nothing becomes durable on its own.
type Mem struct {
	// mu guards the whole tree: tests want simple truth, not speed.
	mu       sync.Mutex
	root     *node
	sequence uint64 // numbers every pending change, over all files and names
	locks    map[string]bool
	capacity int64 // bytes of content; 0 = no bound
	used     int64
	observe  func(op Op, name string)
}

var _ FS = (*Mem)(nil)

// node is one file or directory, whatever names lead to it.
type node struct {
	mode    fs.FileMode
	content           // of a file
	entries names     // of a directory, as seen
	durable names     // of a directory, as after a power loss
	ops     []*nameOp // Invariant: entries = durable + ops in order
}

type names map[string]*node

// nameOp is one pending change of names: a creation has only to, a removal only
// from, a renaming both. A renaming between two directories stands in the ops of
// both and happens in both or in neither.
type nameOp struct {
	sequence       uint64
	fromDir, toDir *node
	from, to       string
	child          *node
	madeDurable    bool
}

func (op *nameOp) apply() {
	if op.fromDir != nil {
		delete(op.fromDir.durable, op.from)
	}
	if op.toDir != nil {
		op.toDir.durable[op.to] = op.child
	}
	op.madeDurable = true
}

func newDir() *node {
	return &node{mode: fs.ModeDir | 0o755, entries: names{}, durable: names{}}
}

// NewMem returns an empty file system. Its root is durable.
func NewMem() *Mem {
	return &Mem{root: newDir(), locks: map[string]bool{}}
}

// Limit bounds the bytes of all content; writes beyond it fail with ENOSPC.
// Zero lifts the bound.
func (m *Mem) Limit(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.capacity = bytes
}

// Observe has f called before every operation of OpChange, with nothing locked,
// so that f may call Crash: the states between any two operations. A nil f ends
// it.
func (m *Mem) Observe(f func(op Op, name string)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.observe = f
}

// begin calls the observer and locks.
func (m *Mem) begin(op Op, name string) {
	m.mu.Lock()
	observe := m.observe
	if observe == nil || op&OpChange == 0 {
		return
	}
	m.mu.Unlock()
	observe(op, name)
	m.mu.Lock()
}

// Edit replaces the content of a file, seen and durable alike, behind the back
// of whoever uses it: rot, cuts, files taken from elsewhere.
func (m *Mem) Edit(name string, change func(content []byte) []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.find("edit", name)
	if err != nil {
		return err
	}
	if n.mode.IsDir() {
		return &fs.PathError{Op: "edit", Path: name, Err: syscall.EISDIR}
	}
	edited := change(slices.Clone(n.seen))
	m.used += int64(len(edited) - len(n.seen))
	n.content = content{seen: edited, kept: slices.Clone(edited)}
	return nil
}

// Walk shows all files as programs see them, by name. show must not change the
// content, nor keep it.
func (m *Mem) Walk(show func(name string, content []byte)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.root.walk("", show)
}

func (n *node) walk(name string, show func(name string, content []byte)) {
	if !n.mode.IsDir() {
		show(name, n.seen)
		return
	}
	for _, base := range slices.Sorted(maps.Keys(n.entries)) {
		n.entries[base].walk(path.Join(name, base), show)
	}
}

// OpenFile implements FS.
func (m *Mem) OpenFile(name string, flag int, _ fs.FileMode) (File, error) {
	create := flag&os.O_CREATE != 0
	op := OpOpen
	if create {
		op |= OpCreate
	}
	m.begin(op, name)
	defer m.mu.Unlock()
	dir, base, err := m.parent("open", name)
	if err != nil {
		return nil, err
	}
	n, exists := dir.entries[base]
	switch {
	case exists && n.mode.IsDir():
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.EISDIR}
	case exists && create && flag&os.O_EXCL != 0:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrExist}
	case !exists && !create:
		return nil, &fs.PathError{Op: "open", Path: name, Err: fs.ErrNotExist}
	case !exists:
		n = &node{mode: 0o644}
		m.change(&nameOp{toDir: dir, to: base, child: n})
	case flag&os.O_TRUNC != 0 && len(n.seen) > 0:
		m.truncate(n, 0)
	}
	return &memFile{mem: m, node: n, name: name, flag: flag}, nil
}

// Remove implements FS.
func (m *Mem) Remove(name string) error {
	m.begin(OpRemove, name)
	defer m.mu.Unlock()
	dir, base, err := m.parent("remove", name)
	if err != nil {
		return err
	}
	n, ok := dir.entries[base]
	if !ok {
		return &fs.PathError{Op: "remove", Path: name, Err: fs.ErrNotExist}
	}
	if len(n.entries) > 0 {
		return &fs.PathError{Op: "remove", Path: name, Err: syscall.ENOTEMPTY}
	}
	m.used -= int64(len(n.seen))
	m.change(&nameOp{fromDir: dir, from: base, child: n})
	return nil
}

// Rename implements FS.
func (m *Mem) Rename(oldName, newName string) error {
	m.begin(OpRename, oldName)
	defer m.mu.Unlock()
	fromDir, from, err := m.parent("rename", oldName)
	if err != nil {
		return err
	}
	toDir, to, err := m.parent("rename", newName)
	if err != nil {
		return err
	}
	n, ok := fromDir.entries[from]
	if !ok {
		return &fs.PathError{Op: "rename", Path: oldName, Err: fs.ErrNotExist}
	}
	if target, ok := toDir.entries[to]; ok {
		if target == n {
			return nil
		}
		if target.mode.IsDir() || n.mode.IsDir() {
			return &fs.PathError{Op: "rename", Path: newName, Err: fs.ErrExist}
		}
		m.used -= int64(len(target.seen))
	}
	m.change(&nameOp{fromDir: fromDir, from: from, toDir: toDir, to: to, child: n})
	return nil
}

// change makes a change of names seen and pending.
func (m *Mem) change(op *nameOp) {
	m.sequence++
	op.sequence = m.sequence
	if op.fromDir != nil {
		delete(op.fromDir.entries, op.from)
		op.fromDir.ops = append(op.fromDir.ops, op)
	}
	if op.toDir != nil {
		op.toDir.entries[op.to] = op.child
		if op.toDir != op.fromDir {
			op.toDir.ops = append(op.toDir.ops, op)
		}
	}
}

// MkdirAll implements FS.
func (m *Mem) MkdirAll(dir string, _ fs.FileMode) error {
	m.begin(OpMkdir, dir)
	defer m.mu.Unlock()
	n := m.root
	for _, element := range split(dir) {
		child, ok := n.entries[element]
		if !ok {
			child = newDir()
			m.change(&nameOp{toDir: n, to: element, child: child})
		}
		if !child.mode.IsDir() {
			return &fs.PathError{Op: "mkdir", Path: dir, Err: syscall.ENOTDIR}
		}
		n = child
	}
	return nil
}

// List implements FS.
func (m *Mem) List(dir string) ([]Entry, error) {
	m.begin(OpList, dir)
	defer m.mu.Unlock()
	n, err := m.find("list", dir)
	if err != nil {
		return nil, err
	}
	if !n.mode.IsDir() {
		return nil, &fs.PathError{Op: "list", Path: dir, Err: syscall.ENOTDIR}
	}
	var entries []Entry
	for _, name := range slices.Sorted(maps.Keys(n.entries)) {
		entries = append(entries, n.entries[name].entry(name))
	}
	return entries, nil
}

func (n *node) entry(name string) Entry {
	return Entry{Name: name, Size: int64(len(n.seen)), Mode: n.mode}
}

// Stat implements FS.
func (m *Mem) Stat(name string) (Entry, error) {
	m.begin(OpStat, name)
	defer m.mu.Unlock()
	n, err := m.find("stat", name)
	if err != nil {
		return Entry{}, err
	}
	return n.entry(path.Base(name)), nil
}

// SyncDir implements FS.
func (m *Mem) SyncDir(dir string) error {
	m.begin(OpSyncDir, dir)
	defer m.mu.Unlock()
	n, err := m.find("syncdir", dir)
	if err != nil {
		return err
	}
	n.makeNamesDurable(nil)
	return nil
}

// makeNamesDurable applies the pending changes of names up to and with last, or
// all of them. A renaming shared with another directory takes along what that
// one did before it.
func (n *node) makeNamesDurable(last *nameOp) {
	for len(n.ops) > 0 {
		op := n.ops[0]
		n.ops = n.ops[1:]
		if !op.madeDurable {
			op.madeDurable = true
			for _, other := range []*node{op.fromDir, op.toDir} {
				if other != nil && other != n {
					other.makeNamesDurable(op)
				}
			}
			op.apply()
		}
		if op == last {
			return
		}
	}
}

// FreeSpace implements FS: what is left of Limit.
func (m *Mem) FreeSpace(dir string) (uint64, error) {
	m.begin(OpFreeSpace, dir)
	defer m.mu.Unlock()
	if m.capacity == 0 {
		return 1 << 40, nil
	}
	return uint64(max(m.capacity-m.used, 0)), nil
}

// Capacity implements FS: Limit.
func (m *Mem) Capacity(dir string) (uint64, error) {
	m.begin(OpFreeSpace, dir)
	defer m.mu.Unlock()
	if m.capacity == 0 {
		return 1 << 40, nil
	}
	return uint64(m.capacity), nil
}

// Lock implements FS.
func (m *Mem) Lock(name string) (io.Closer, error) {
	m.begin(OpLock, name)
	defer m.mu.Unlock()
	dir, base, err := m.parent("lock", name)
	if err != nil {
		return nil, err
	}
	if _, ok := dir.entries[base]; !ok {
		m.change(&nameOp{toDir: dir, to: base, child: &node{mode: 0o600}})
	}
	name = path.Clean("/" + name)
	if m.locks[name] {
		return nil, fmt.Errorf("lock %s: %w", name, ErrLocked)
	}
	m.locks[name] = true
	return &memLock{mem: m, name: name}, nil
}

type memLock struct {
	mem  *Mem
	name string
}

func (l *memLock) Close() error {
	l.mem.mu.Lock()
	defer l.mem.mu.Unlock()
	delete(l.mem.locks, l.name)
	return nil
}

func split(name string) []string {
	name = path.Clean("/" + name)
	return strings.FieldsFunc(name, func(r rune) bool { return r == '/' })
}

func (m *Mem) find(op, name string) (*node, error) {
	n := m.root
	for _, element := range split(name) {
		if !n.mode.IsDir() {
			return nil, &fs.PathError{Op: op, Path: name, Err: syscall.ENOTDIR}
		}
		child, ok := n.entries[element]
		if !ok {
			return nil, &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
		}
		n = child
	}
	return n, nil
}

// parent finds the directory of a name, and the name's last element.
func (m *Mem) parent(op, name string) (*node, string, error) {
	elements := split(name)
	if len(elements) == 0 {
		return nil, "", &fs.PathError{Op: op, Path: name, Err: fs.ErrInvalid}
	}
	last := len(elements) - 1
	dir, err := m.find(op, strings.Join(elements[:last], "/"))
	if err != nil {
		return nil, "", &fs.PathError{Op: op, Path: name, Err: fs.ErrNotExist}
	}
	if !dir.mode.IsDir() {
		return nil, "", &fs.PathError{Op: op, Path: name, Err: syscall.ENOTDIR}
	}
	return dir, elements[last], nil
}
