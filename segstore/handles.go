package segstore

import (
	"container/list"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/millrace/millrace/segstore/vfs"
)

// handlesMaxDefault bounds the open segment files of a node.
const handlesMaxDefault = 1024

// handles opens segment files on demand and closes the least recently used
// ones, and those that nobody has used for a while, so that neither idle streams
// nor idle readers own a descriptor. A handle in use, or one with bytes that are
// not synced, stays.
type handles struct {
	fs     vfs.FS
	syncer *vfs.Syncer
	max    int

	// mu guards everything below, and the handles' refs and rounds.
	mu    sync.Mutex
	open  map[*segment]*handle
	lru   list.List // of *handle; the front was used last
	round uint64    // calls of closeUnused
}

// handle is one open segment file.
type handle struct {
	vfs.File
	segment *segment
	refs    int
	round   uint64 // of the table, when a use began last
	gone    bool   // out of the map: the last release closes
	element *list.Element
}

// use adds a use of a handle. mu is held.
func (hs *handles) use(h *handle) {
	h.refs++
	h.round = hs.round
	h.segment.pins.Add(1)
}

// acquire returns the segment's open file; release must follow.
func (hs *handles) acquire(s *segment) (*handle, error) {
	hs.mu.Lock()
	if h := hs.open[s]; h != nil {
		hs.use(h)
		hs.lru.MoveToFront(h.element)
		hs.mu.Unlock()
		return h, nil
	}
	hs.mu.Unlock()
	f, err := hs.openFile(s)
	if err != nil {
		return nil, fmt.Errorf("open segment %s: %w", s.name, err)
	}
	return hs.adopt(s, f), nil
}

func (hs *handles) openFile(s *segment) (vfs.File, error) {
	flag := os.O_RDONLY
	if s.summary.Load() == nil {
		flag = os.O_RDWR
	}
	f, err := hs.fs.OpenFile(s.path(), flag, 0)
	if errors.Is(err, syscall.EMFILE) {
		hs.mu.Lock()
		hs.shrink(0)
		hs.mu.Unlock()
		f, err = hs.fs.OpenFile(s.path(), flag, 0)
	}
	return f, err
}

// adopt takes an open file into the table, unless another one was quicker.
func (hs *handles) adopt(s *segment, f vfs.File) *handle {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h := hs.open[s]; h != nil {
		hs.use(h)
		_ = f.Close() // nothing was written by it
		return h
	}
	h := &handle{File: f, segment: s}
	hs.use(h)
	if s.gone.Load() { // removed since: serve this one use
		h.gone = true
		return h
	}
	h.element = hs.lru.PushFront(h)
	hs.open[s] = h
	hs.shrink(hs.max)
	return h
}

// shrink closes the least recently used files that can be, until at most most
// are open. mu is held.
func (hs *handles) shrink(most int) {
	for e := hs.lru.Back(); e != nil && len(hs.open) > most; {
		h := e.Value.(*handle)
		e = e.Prev()
		if h.refs == 0 && !h.segment.dirty() {
			hs.take(h)
			hs.close(h)
		}
	}
}

// closeUnused closes the files of which no use has begun since the last call.
func (hs *handles) closeUnused() {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	for e := hs.lru.Back(); e != nil; {
		h := e.Value.(*handle)
		if h.round == hs.round {
			break // so have all in front of it
		}
		e = e.Prev()
		if h.refs == 0 && !h.segment.dirty() {
			hs.take(h)
			hs.close(h)
		}
	}
	hs.round++
}

func (hs *handles) take(h *handle) {
	delete(hs.open, h.segment)
	hs.lru.Remove(h.element)
	h.gone = true
}

// close drops the file. Nothing can be lost by an error here: what counts was
// synced before.
func (hs *handles) close(h *handle) {
	hs.syncer.Forget(h.File)
	_ = h.File.Close()
}

// release ends the use of a handle.
func (hs *handles) release(h *handle) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	h.refs--
	h.segment.pins.Add(-1)
	switch {
	case h.gone && h.refs == 0:
		hs.close(h)
	case len(hs.open) > hs.max:
		hs.shrink(hs.max) // it could not be done while the others were in use
	}
}

// drop closes the segment's file once nobody uses it; later uses open it anew.
func (hs *handles) drop(s *segment) {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	if h := hs.open[s]; h != nil {
		hs.take(h)
		if h.refs == 0 {
			hs.close(h)
		}
	}
}

func (hs *handles) count() int {
	hs.mu.Lock()
	defer hs.mu.Unlock()
	return len(hs.open)
}
