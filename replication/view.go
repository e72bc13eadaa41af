package replication

import (
	"slices"
	"sync"

	"github.com/millrace/millrace/segstore/chunk"
)

// progress is what anybody may read of a replica's commit.
type progress struct {
	mu     sync.Mutex // guards the fields below
	commit chunk.LSN
	next   chunk.Offset // behind the last committed record
}

func (p *progress) get() (chunk.LSN, chunk.Offset) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.commit, p.next
}

// set moves the commit; it tells whether there are new records to read.
func (p *progress) set(commit chunk.LSN, next chunk.Offset) (records bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	records = next > p.next
	p.commit, p.next = commit, max(next, p.next)
	return records
}

// watchers are told when there are new committed records. Control chunks wake
// nobody: a stored offset must not wake every reader of the stream.
type watchers struct {
	mu   sync.Mutex // guards list; the slice itself is never changed in place
	list []*watcher
}

type watcher struct{ call func() }

func (ws *watchers) add(call func()) (cancel func()) {
	w := &watcher{call}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	ws.list = append(slices.Clip(ws.list), w)
	return func() { ws.remove(w) }
}

func (ws *watchers) remove(w *watcher) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if i := slices.Index(ws.list, w); i >= 0 {
		ws.list = slices.Concat(ws.list[:i], ws.list[i+1:])
	}
}

func (ws *watchers) tell() {
	ws.mu.Lock()
	list := ws.list
	ws.mu.Unlock()
	for _, w := range list {
		w.call()
	}
}
