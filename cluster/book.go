package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"github.com/google/renameio/v2"

	"github.com/millrace/millrace/replication/protocol"
)

// bookFile holds the addresses of the other nodes: after a start the catalog is
// not known before a majority talks, and that takes their addresses.
const bookFile = "nodes.json"

// book is what this node knows of where the others are. The catalog decides; a
// node that has just told where it is now, proven to be it, is believed until
// the catalog hears of it too.
type book struct {
	path string

	mu    sync.Mutex // guards all below
	entry map[protocol.NodeID]entry
	// told are addresses that nodes gave themselves since the catalog last
	// changed them.
	told map[protocol.NodeID]string
	// lost: what is in the file is older than entry.
	lost bool
}

// entry is a member as the catalog had it.
type entry struct {
	Address string `json:"address"`
	Disk    string `json:"disk"`
}

func openBook(dir string) (*book, error) {
	b := &book{path: filepath.Join(dir, bookFile), entry: map[protocol.NodeID]entry{}, told: map[protocol.NodeID]string{}}
	text, err := os.ReadFile(b.path)
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the other nodes' addresses: %w", err)
	}
	// It is a help, not a truth: one that can't be read is made anew.
	_ = json.Unmarshal(text, &b.entry)
	if b.entry == nil {
		b.entry = map[protocol.NodeID]entry{}
	}
	return b, nil
}

// put takes a member as the catalog has it now.
func (b *book) put(node protocol.NodeID, e entry) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.entry[node] != e {
		b.entry[node], b.lost = e, true
		delete(b.told, node)
	}
}

// drop forgets a node that is no member any more.
func (b *book) drop(node protocol.NodeID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if _, ok := b.entry[node]; ok {
		delete(b.entry, node)
		b.lost = true
	}
	delete(b.told, node)
}

// tell takes a node's own word for where it is.
func (b *book) tell(node protocol.NodeID, addr string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if addr != "" && b.entry[node].Address != addr {
		b.told[node] = addr
	}
}

// find returns where a node listens; "" if nobody said.
func (b *book) find(node protocol.NodeID) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	if addr := b.told[node]; addr != "" {
		return addr
	}
	return b.entry[node].Address
}

// disk returns a member's disk.
func (b *book) disk(node protocol.NodeID) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.entry[node].Disk
}

// knows tells whether a node is in the book.
func (b *book) knows(node protocol.NodeID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.entry[node]
	return ok
}

// nodes returns all in order.
func (b *book) nodes() []protocol.NodeID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.entry))
}

// all returns a copy of the members.
func (b *book) all() map[protocol.NodeID]entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.entry)
}

// addresses returns all that is known of where the others are.
func (b *book) addresses() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	var list []string
	for _, e := range b.entry {
		list = append(list, e.Address)
	}
	for _, addr := range b.told {
		list = append(list, addr)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// save writes the file if it is behind.
func (b *book) save() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.lost {
		return nil
	}
	text, err := json.MarshalIndent(b.entry, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the other nodes' addresses: %w", err)
	}
	if err := renameio.WriteFile(b.path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("write the other nodes' addresses: %w", err)
	}
	b.lost = false
	return nil
}

// empty tells whether nobody is known.
func (b *book) empty() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.entry) == 0
}
