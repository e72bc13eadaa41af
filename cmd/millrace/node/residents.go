package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/cmd/millrace/config"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// residents keeps the replicas that run here equal to those that the catalog
// places here.
//
// It is level-triggered: whatever happens to a stream, its incarnation is put
// into dirty, and settle looks at where the stream stands. A fence may be ahead
// of this node's catalog; it brings the stream along, and what is newer counts.
//
//	not here, files          → open
//	not here, never was      → make, or join as the metadata has entered it (D1)
//	not here, files are lost → have it entered anew (D1)
//	here                     → tell the newest configuration
//	placed elsewhere, gone   → remove the files
type residents struct {
	node     protocol.NodeID
	store    *segstore.Store
	replicas *replication.Node
	tracking config.Tracking
	log      hclog.Logger
	// forgot: the node was a member, and its journal is gone.
	forgot bool
	// patience is with streams that only fences have told of.
	patience time.Duration

	ctx    context.Context // ends with stop
	cancel context.CancelFunc
	work   sync.WaitGroup
	// unsubscribe ends the changes; set by follow.
	unsubscribe func()
	// places bounds the streams that are settled at a time: to open one is to
	// wait for the disk, several times when it is made.
	places   chan struct{}
	removing sync.Mutex

	mu   sync.RWMutex // guards all below
	meta *cluster.Cluster
	// heard are streams as fences brought them, while that is newer than the
	// catalog here. deleted are those that the catalog has given up since the
	// start: a late fence must not bring one back.
	heard   map[chunk.Incarnation]*catalog.Stream
	deleted map[chunk.Incarnation]time.Time
	// busy are the streams that somebody works at; true: look once more.
	busy map[chunk.Incarnation]bool
	free *sync.Cond // on mu: busy has shrunk
	// dirty are to be settled.
	dirty []chunk.Incarnation
	// wake has one place: there is something in dirty.
	wake chan struct{}
	// pauses are how long the streams rested that failed last.
	pauses map[chunk.Incarnation]time.Duration
}

// settlesMax bounds the streams that are settled at a time.
const settlesMax = 32

func newResidents(c *config.Config, store *segstore.Store, replicas *replication.Node, log hclog.Logger) *residents {
	r := &residents{
		node: protocol.NodeID(c.NodeName), store: store, replicas: replicas, tracking: c.Tracking, log: log,
		places: make(chan struct{}, settlesMax), wake: make(chan struct{}, 1),
		heard: map[chunk.Incarnation]*catalog.Stream{}, deleted: map[chunk.Incarnation]time.Time{}, busy: map[chunk.Incarnation]bool{},
		pauses: map[chunk.Incarnation]time.Duration{}, patience: heardPatience,
	}
	r.free = sync.NewCond(&r.mu)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.work.Go(r.settleAll)
	return r
}

// follow hears of the catalog's changes from now on, starts what is placed here,
// and, once the catalog here is current, puts away what is not: folders of
// streams that the catalog does not know, and not as deleted either, go to
// quarantine. They may be of a catalog that was rolled back.
func (r *residents) follow(c *cluster.Cluster) {
	r.mu.Lock()
	r.meta = c
	r.mu.Unlock()
	r.unsubscribe = c.Subscribe(r.changed)
	var here []chunk.Incarnation
	for s := range c.View().Streams() {
		if !r.holds(s) {
			continue
		}
		if r.forgot {
			r.forget(s.Incarnation)
		}
		here = append(here, s.Incarnation)
	}
	r.touch(here...)
	r.work.Go(func() { r.putAway(c) })
	r.work.Go(func() { r.lookUpHeard(c) })
}

// heardPatience is how long a stream that a fence brought may be unknown to the
// catalog here before it is looked up, at most twice that.
const heardPatience = time.Second

// lookUpHeard gives up streams that a fence brought and that the catalog has no
// more. Their deletion is told like any other, but where the catalog was taken
// from a snapshot: that tells nothing of a stream that came and went.
func (r *residents) lookUpHeard(c *cluster.Cluster) {
	tick := time.NewTicker(r.patience)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.ctx.Done():
			return
		}
		unknown := r.heardAlone(c.View())
		if len(unknown) == 0 || c.Current(r.ctx) != nil {
			continue // nobody to ask: at a later tick
		}
		view := c.View() // it has all that fences before the question were about
		unknown = slices.DeleteFunc(unknown, func(i chunk.Incarnation) bool {
			_, known := view.Incarnation(i)
			return known
		})
		r.mu.Lock()
		for _, i := range unknown {
			delete(r.heard, i)
			r.bury(i)
		}
		r.mu.Unlock()
		r.touch(unknown...)
	}
}

// heardAlone are the streams that a fence brought and a view does not know.
func (r *residents) heardAlone(view *catalog.State) []chunk.Incarnation {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var unknown []chunk.Incarnation
	for i := range r.heard {
		if _, known := view.Incarnation(i); !known {
			unknown = append(unknown, i)
		}
	}
	return unknown
}

// forget remembers that what a replica promised here is not known any more, so
// that one without files is not taken for one that never was.
func (r *residents) forget(i chunk.Incarnation) {
	if _, known := r.store.Journal().State(i); known {
		return
	}
	err := r.store.Remember(i, func(s *segstore.StreamState) { s.Aside = segstore.AsideJournalLost })
	if err != nil {
		r.log.Error("remember that a replica was lost", "stream", i.String(), "error", err)
	}
}

// putAway settles what lies here and was given up while the node was down.
func (r *residents) putAway(c *cluster.Cluster) {
	if err := c.Current(r.ctx); err != nil {
		return // stopped, or the metadata failed
	}
	for _, stream := range r.store.List() {
		s, known := r.stream(stream.Incarnation)
		switch {
		case known && r.holds(s):
		case known:
			r.giveUp(stream.Incarnation)
		case c.Deleted(stream.Incarnation): // and the node was killed before it was through
			r.giveUp(stream.Incarnation)
		default:
			r.log.Warn("a stream's folder is unknown to the metadata: moved to quarantine", "stream", stream.Incarnation.String())
			if err := r.store.Quarantine(stream.Incarnation); err != nil {
				r.log.Error("move to quarantine", "stream", stream.Incarnation.String(), "error", err)
			}
		}
	}
}

// changed is told by the goroutine that applies the catalog; it only notes.
func (r *residents) changed(changes []catalog.Change) {
	var here []chunk.Incarnation
	r.mu.Lock()
	for _, c := range changes {
		if c.Kind != catalog.StreamChanged {
			continue
		}
		was, is := c.Before != nil && r.holds(c.Before), c.Stream != nil && r.holds(c.Stream)
		switch {
		case c.Stream == nil:
			delete(r.heard, c.Before.Incarnation)
			r.bury(c.Before.Incarnation)
			if was {
				here = append(here, c.Before.Incarnation)
			}
		case is || was:
			here = append(here, c.Stream.Incarnation)
		}
		if c.Stream != nil && !newer(r.heard[c.Stream.Incarnation], c.Stream) {
			delete(r.heard, c.Stream.Incarnation)
		}
	}
	r.mu.Unlock()
	r.touch(here...)
}

// A deletion is remembered for longer than a fence is on its way, and for ever
// while they are few.
const (
	deletedFor  = time.Minute
	deletedFree = 4096
)

// bury expects mu to be held.
func (r *residents) bury(i chunk.Incarnation) {
	now := time.Now()
	if len(r.deleted) >= deletedFree {
		maps.DeleteFunc(r.deleted, func(_ chunk.Incarnation, at time.Time) bool { return now.Sub(at) > deletedFor })
	}
	r.deleted[i] = now
}

// newer tells whether a is a later state of the stream than b.
func newer(a, b *catalog.Stream) bool {
	return a != nil && (b == nil || a.Epoch > b.Epoch || a.ConfigVersion > b.ConfigVersion)
}

// stream is the newest that is known here of a stream.
func (r *residents) stream(i chunk.Incarnation) (*catalog.Stream, bool) {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var s *catalog.Stream
	if r.meta != nil {
		s, _ = r.meta.View().Incarnation(i)
	}
	if h := r.heard[i]; newer(h, s) {
		s = h
	}
	return s, s != nil
}

// hear takes a stream that a fence brought, and returns the newest.
func (r *residents) hear(s *catalog.Stream) (*catalog.Stream, error) {
	known, ok := r.stream(s.Incarnation)
	if ok && !newer(s, known) {
		return known, nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, gone := r.deleted[s.Incarnation]; gone {
		return nil, fmt.Errorf("%w: %q was deleted", catalog.ErrStreamMissing, s.Name)
	}
	if newer(s, r.heard[s.Incarnation]) {
		r.heard[s.Incarnation] = s
	}
	return r.heard[s.Incarnation], nil
}

// standing is what this node knows of a stream and of a node that sent a frame
// of it. What was promised here counts from the moment on.
func (r *residents) standing(stream chunk.Incarnation, from protocol.NodeID) link.Standing {
	var out link.Standing
	if replica, ok := r.replicas.Replica(stream); ok {
		at := replica.Standing()
		out.Epoch, out.Leads = at.Promise, at.Leads
	}
	s, ok := r.stream(stream)
	if !ok {
		return out
	}
	out.Known = true
	_, out.Replica = s.Replica(from)
	if out.Epoch <= s.Epoch {
		out.Epoch, out.Leader = s.Epoch, s.Leader.Node
	}
	return out
}

func (r *residents) holds(s *catalog.Stream) bool {
	_, ok := s.Replica(r.node)
	return ok
}

func (r *residents) stop() {
	if r.unsubscribe != nil {
		r.unsubscribe()
	}
	r.cancel()
	r.work.Wait()
}
