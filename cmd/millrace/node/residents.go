package node

import (
	"context"
	"errors"
	"fmt"
	"maps"
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
	"github.com/millrace/millrace/tracking"
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
		pauses: map[chunk.Incarnation]time.Duration{},
	}
	r.free = sync.NewCond(&r.mu)
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.work.Go(r.settleAll)
	return r
}

// follow hears of the catalog's changes from now on, starts what is placed here,
// and, once the catalog here is current, puts away what is not: folders of
// streams that the catalog does not know go to quarantine. They may be of a
// catalog that was rolled back.
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

// touch has streams settled.
func (r *residents) touch(streams ...chunk.Incarnation) {
	if len(streams) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, i := range streams {
		if _, at := r.busy[i]; at {
			r.busy[i] = true
			continue
		}
		r.dirty = append(r.dirty, i)
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// settleAll settles what is dirty until the node stops.
func (r *residents) settleAll() {
	for {
		select {
		case <-r.wake:
		case <-r.ctx.Done():
			r.askRest()
			return
		}
		for _, i := range r.takeDirty() {
			if !r.begin(i) {
				continue
			}
			if r.tellRunning(i) {
				r.end(i)
				continue
			}
			select {
			case r.places <- struct{}{}:
			case <-r.ctx.Done():
				r.end(i)
				return
			}
			r.work.Go(func() {
				r.settle(i)
				r.end(i)
				<-r.places
			})
		}
	}
}

// tellRunning is settle where nothing waits for the disk.
func (r *residents) tellRunning(i chunk.Incarnation) bool {
	s, known := r.stream(i)
	if _, runs := r.replicas.Replica(i); !runs || !known || !r.holds(s) {
		return false
	}
	r.tell(s)
	return true
}

// askRest has what was given up last removed by the replicas' close.
func (r *residents) askRest() {
	for _, i := range r.takeDirty() {
		if s, known := r.stream(i); !known || !r.holds(s) {
			r.giveUp(i)
		}
	}
}

func (r *residents) takeDirty() []chunk.Incarnation {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.dirty
	r.dirty = nil
	return list
}

// begin takes a stream to work at it; false if somebody does, who will look
// once more.
func (r *residents) begin(i chunk.Incarnation) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, at := r.busy[i]; at {
		r.busy[i] = true
		return false
	}
	r.busy[i] = false
	return true
}

// await is begin that waits.
func (r *residents) await(i chunk.Incarnation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for {
		if _, at := r.busy[i]; !at {
			break
		}
		r.free.Wait()
	}
	r.busy[i] = false
}

func (r *residents) end(i chunk.Incarnation) {
	r.mu.Lock()
	again := r.busy[i]
	delete(r.busy, i)
	r.free.Broadcast()
	r.mu.Unlock()
	if again {
		r.touch(i)
	}
}

// settlePause is how long a stream rests that failed; twice as long each time
// that it fails again, so that one for which only an operator can do something
// does not fill the log.
const (
	settlePause     = time.Second
	settlePauseMost = 16 * time.Second
)

// later settles a stream after a pause.
func (r *residents) later(i chunk.Incarnation) {
	time.AfterFunc(r.pause(i), func() { r.touch(i) })
}

// pause returns how long a stream that has failed rests now.
func (r *residents) pause(i chunk.Incarnation) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.pauses[i] = min(max(2*r.pauses[i], settlePause), settlePauseMost)
	return r.pauses[i]
}

// settled notes that a stream is as it should be.
func (r *residents) settled(i chunk.Incarnation) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.pauses, i)
}

// settle makes this node's replica of a stream what it should be.
func (r *residents) settle(i chunk.Incarnation) {
	s, known := r.stream(i)
	if !known || !r.holds(s) {
		r.giveUp(i)
		return
	}
	switch err := r.start(s); {
	case err == nil, errors.Is(err, errEnteringAnew):
		r.settled(i)
	case r.ctx.Err() == nil:
		r.log.Warn("start a replica; it will be tried again", "stream", s.Name, "vhost", s.VHost, "error", err)
		r.later(i)
	}
}

// giveUp removes a replica with its files: one after the other, since nobody
// waits for it.
func (r *residents) giveUp(i chunk.Incarnation) {
	r.removing.Lock()
	defer r.removing.Unlock()
	switch err := r.replicas.Remove(r.ctx, i); {
	case err == nil:
		r.settled(i)
	case r.ctx.Err() == nil:
		r.log.Warn("remove a stream's files; it will be tried again", "stream", i.String(), "error", err)
		r.later(i)
	}
}

// open starts a replica that a fence asks for, of the newest known state of the
// stream.
func (r *residents) open(s *catalog.Stream) error {
	s, err := r.hear(s)
	if err != nil {
		return err
	}
	if !r.holds(s) {
		return fmt.Errorf("stream %q has no replica on %s", s.Name, r.node)
	}
	r.await(s.Incarnation)
	defer r.end(s.Incarnation)
	return r.start(s)
}

// errEnteringAnew: a replica has lost its files, and the metadata is asked to
// enter it anew.
var errEnteringAnew = errors.New("the replica has lost its files and is being entered anew")

// start has the stream's replica run here, and tells it what the metadata says.
// The caller has begun with the stream.
func (r *residents) start(s *catalog.Stream) error {
	if _, runs := r.replicas.Replica(s.Incarnation); !runs {
		if err := r.openFiles(s); err != nil {
			return err
		}
	}
	r.tell(s)
	return nil
}

// openFiles opens the replica's files, or makes them.
func (r *residents) openFiles(s *catalog.Stream) error {
	entry, _ := s.Replica(r.node)
	of := replication.Stream{Incarnation: s.Incarnation, Name: LogName(s.VHost, s.Name), Settings: settings(s.Arguments, &r.tracking)}
	var err error
	switch s.Residence(r.node, r.found(s.Incarnation)) {
	case catalog.OpenFiles:
		_, err = r.replicas.Open(of, false)
	case catalog.MakeEmpty:
		_, err = r.replicas.Open(of, true)
	case catalog.JoinEmpty:
		_, err = r.replicas.Join(of, s.Epoch, entry.Registration)
	case catalog.LostAlone:
		return fmt.Errorf("%w: they were the only ones of %q; put them back from a backup, or delete the stream", segstore.ErrMissing, s.Name)
	case catalog.EnterAnew:
		r.log.Warn("a replica's files are gone; it is entered anew and filled by its leader", "stream", s.Name, "vhost", s.VHost)
		r.propose(s.Incarnation)
		return errEnteringAnew
	}
	return err
}

// found is what is on this node's disk of a replica.
func (r *residents) found(i chunk.Incarnation) catalog.Found {
	state, remembered := r.store.Journal().State(i)
	return catalog.Found{
		Files: r.store.Has(i), Remembered: remembered, Registration: protocol.Registration(state.Registration),
		Forgotten: state.Aside == segstore.AsideJournalLost,
	}
}

// propose has this node's replica of a stream entered anew.
func (r *residents) propose(i chunk.Incarnation) {
	r.mu.RLock()
	meta := r.meta
	r.mu.RUnlock()
	if meta != nil {
		meta.Proposed(i, protocol.Proposal{Kind: protocol.ProposeRegister, Node: r.node})
	}
}

// tell brings a replica what the metadata says of it: its entry, if that is
// newer than the one it knows itself by, the configuration, and how the stream
// is kept. A replica that waits to be entered anew hears of that by registered
// alone.
func (r *residents) tell(s *catalog.Stream) {
	switch s.Entry(r.node, r.found(s.Incarnation)) {
	case catalog.EntryIsNew:
		entry, _ := s.Replica(r.node)
		r.replicas.BeginRegistered(s.Incarnation, s.Epoch, entry.Registration, ignore)
	case catalog.EntryOfOther:
		r.propose(s.Incarnation)
	case catalog.EntryKnown:
	}
	r.replicas.BeginConfigure(s.Incarnation, s.Configuration(), ignore)
	if replica, ok := r.replicas.Replica(s.Incarnation); ok {
		replica.SetSettings(settings(s.Arguments, &r.tracking))
		r.endOldReign(s, replica)
	}
}

func ignore(error) {}

// endOldReign gives up an epoch that an earlier run of this node's replica led:
// a leader never goes on in an epoch after a restart (A5).
func (r *residents) endOldReign(s *catalog.Stream, replica *replication.Replica) {
	r.mu.RLock()
	meta := r.meta
	r.mu.RUnlock()
	if meta != nil && s.Leader.Node == r.node && s.Leader.Run != replica.Standing().Run {
		meta.LeaderOver(s.Incarnation, s.Epoch)
	}
}

// registered hears that the metadata has entered a replica of this node anew, as
// it was asked to. It does not block.
func (r *residents) registered(i chunk.Incarnation, epoch chunk.Epoch, as protocol.Registration) {
	if _, runs := r.replicas.Replica(i); runs {
		r.replicas.BeginRegistered(i, epoch, as, ignore)
		return
	}
	r.touch(i) // the catalog here shows the entry, now or soon, and is followed
}

// settings is how a stream with the arguments is kept.
func settings(a catalog.Arguments, t *config.Tracking) replication.Settings {
	s := replication.Settings{
		Log: segstore.Config{
			SegmentBytes: a.SegmentSize(), ControlBytes: t.ControlRollBytes,
			Caps: tracking.Caps{Offsets: t.StoredOffsets, Publishers: t.Publishers},
		},
		FilterLength: a.FilterSize(), Pacing: t.Pacing(), Grace: t.Grace,
	}
	if t.Grace == 0 {
		s.Grace = -1 // none, where the zero value is the default
	}
	if bytes, ok := a.MaxLength(); ok {
		s.RetainBytes = bytes
	}
	if seconds, ok := a.MaxAgeSeconds(); ok {
		s.RetainAge = time.Duration(seconds) * time.Second
		s.Log.MaxAge = s.RetainAge
	}
	return s
}

func (r *residents) stop() {
	if r.unsubscribe != nil {
		r.unsubscribe()
	}
	r.cancel()
	r.work.Wait()
}
