package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/cmd/millrace/config"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// residents keeps the replicas that run here equal to those that the catalog
// places here. Opening is done on demand, by the fence that every stream gets;
// removing follows the catalog's changes.
type residents struct {
	node     protocol.NodeID
	store    *segstore.Store
	replicas *replication.Node
	tracking config.Tracking
	log      hclog.Logger

	ctx    context.Context // ends with stop
	cancel context.CancelFunc
	work   sync.WaitGroup
	// unsubscribe ends the changes; set by follow.
	unsubscribe func()

	mu   sync.Mutex // guards the fields below
	gone []chunk.Incarnation
	// view shows what the changes led to; nil before follow.
	view func() *catalog.State
	// wake has one place: there is something in gone.
	wake chan struct{}
}

func newResidents(c *config.Config, store *segstore.Store, replicas *replication.Node, log hclog.Logger) *residents {
	r := &residents{
		node: protocol.NodeID(c.NodeName), store: store, replicas: replicas, tracking: c.Tracking, log: log, wake: make(chan struct{}, 1),
	}
	r.ctx, r.cancel = context.WithCancel(context.Background())
	r.work.Go(r.removeAll)
	return r
}

// follow hears of the catalog's changes from now on, and settles what changed
// while the node was down: folders of streams that the catalog does not know
// go to quarantine. They may be of a catalog that was rolled back.
func (r *residents) follow(c *cluster.Cluster) {
	r.unsubscribe = c.Subscribe(r.changed)
	r.mu.Lock()
	r.view = c.View
	r.mu.Unlock()
	view := c.View()
	for _, stream := range r.store.List() {
		if now, ok := view.Incarnation(stream.Incarnation); ok {
			r.set(now) // one that runs already may have missed a change
			continue
		}
		r.log.Warn("a stream's folder is unknown to the metadata: moved to quarantine", "stream", stream.Incarnation.String())
		if err := r.store.Quarantine(stream.Incarnation); err != nil {
			r.log.Error("move to quarantine", "stream", stream.Incarnation.String(), "error", err)
		}
	}
}

// changed is told by the goroutine that applies the catalog; it only notes.
func (r *residents) changed(changes []catalog.Change) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, c := range changes {
		if c.Kind != catalog.StreamChanged || c.Before == nil || !r.holds(c.Before) {
			continue
		}
		if c.Stream != nil && r.holds(c.Stream) {
			r.reset(c.Before, c.Stream)
			continue
		}
		r.gone = append(r.gone, c.Before.Incarnation)
	}
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// reset has a replica that runs follow its stream's new arguments. One that does
// not run yet is opened with them.
func (r *residents) reset(before, after *catalog.Stream) {
	if before.Arguments != after.Arguments {
		r.set(after)
	}
}

func (r *residents) set(s *catalog.Stream) {
	if replica, ok := r.replicas.Replica(s.Incarnation); ok {
		replica.SetSettings(settings(s.Arguments, &r.tracking))
	}
}

func (r *residents) holds(s *catalog.Stream) bool {
	_, ok := s.Replica(r.node)
	return ok
}

// removePause is how long a removal that failed rests.
const removePause = time.Second

// removeAll removes what the catalog gave up, one after the other: files go in
// the background, and a few at a time.
func (r *residents) removeAll() {
	for {
		select {
		case <-r.wake:
		case <-r.ctx.Done():
			r.removeGone() // only asks; the replicas' close carries it out
			return
		}
		r.removeGone()
	}
}

func (r *residents) removeGone() {
	for _, stream := range r.takeGone() {
		if err := r.replicas.Remove(r.ctx, stream); err != nil && r.ctx.Err() == nil {
			r.log.Warn("remove a stream's files; it will be tried again", "stream", stream.String(), "error", err)
			r.later(stream)
		}
	}
}

func (r *residents) takeGone() []chunk.Incarnation {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.gone
	r.gone = nil
	return list
}

// later puts a stream back after a pause.
func (r *residents) later(stream chunk.Incarnation) {
	time.AfterFunc(removePause, func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.gone = append(r.gone, stream)
		select {
		case r.wake <- struct{}{}:
		default:
		}
	})
}

// open starts the stream's replica here if it does not run yet. Before its
// first epoch has had a leader a stream has no file that could be missing.
func (r *residents) open(s *catalog.Stream) error {
	if _, ok := r.replicas.Replica(s.Incarnation); ok {
		return nil
	}
	if !r.holds(s) {
		return fmt.Errorf("stream %s has no replica on %s", s.Incarnation, r.node)
	}
	isNew := s.Epoch <= 1
	_, err := r.replicas.Open(replication.Stream{
		Incarnation: s.Incarnation, Name: LogName(s.VHost, s.Name), Settings: settings(s.Arguments, &r.tracking),
	}, isNew)
	if err == nil {
		r.catchUp(s)
	}
	return err
}

// catchUp sees a change that came while the replica of s was being opened.
func (r *residents) catchUp(s *catalog.Stream) {
	r.mu.Lock()
	view := r.view
	r.mu.Unlock()
	if view == nil {
		return
	}
	if now, ok := view().Incarnation(s.Incarnation); ok {
		r.reset(s, now)
	}
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

// fencer lets the coordinator reach the replicas of this node.
type fencer struct{ *residents }

// errElsewhere: the coordinator asked for a replica on a node that this one
// has no link to.
var errElsewhere = errors.New("no link to that node")

func (f fencer) Fence(ctx context.Context, node protocol.NodeID, requests []catalog.FenceRequest) ([]cluster.FenceAnswer, error) {
	if node != f.node {
		return nil, fmt.Errorf("%w: %s", errElsewhere, node)
	}
	answers := make([]cluster.FenceAnswer, len(requests))
	f.openAll(requests, answers)
	var fences []replication.FenceRequest
	var of []int // the place in answers of each fence
	for i, q := range requests {
		if answers[i].Err == nil {
			fences = append(fences, replication.FenceRequest{Stream: q.Stream.Incarnation, Epoch: q.Stream.Epoch})
			of = append(of, i)
		}
	}
	for k, result := range f.replicas.Fence(ctx, fences) {
		answers[of[k]] = cluster.FenceAnswer{Report: result.Report, Err: result.Err}
	}
	return answers, nil
}

// opensMax bounds the replicas that are opened at a time. To open one is to
// wait for the disk, several times when it is made.
const opensMax = 32

// openAll starts the replicas that do not run yet.
func (f fencer) openAll(requests []catalog.FenceRequest, answers []cluster.FenceAnswer) {
	var work sync.WaitGroup
	places := make(chan struct{}, opensMax)
	for i, q := range requests {
		places <- struct{}{}
		work.Go(func() {
			answers[i].Err = f.open(q.Stream)
			<-places
		})
	}
	work.Wait()
}

func (f fencer) Install(ctx context.Context, node protocol.NodeID, list []catalog.Installation) ([]error, error) {
	if node != f.node {
		return nil, fmt.Errorf("%w: %s", errElsewhere, node)
	}
	answers := make([]error, len(list))
	var work sync.WaitGroup
	for i := range list {
		work.Go(func() { answers[i] = f.install(ctx, &list[i]) })
	}
	work.Wait()
	return answers, nil
}

// HandOver is refused: without a link to another node nobody could take over.
func (f fencer) HandOver(_ context.Context, h catalog.Handover) error {
	return fmt.Errorf("hand stream %s over to %s: %w", h.Stream, h.To, errElsewhere)
}

// install tells a replica that it leads. A refusal ends the epoch (A5).
func (f fencer) install(ctx context.Context, i *catalog.Installation) error {
	err := f.replicas.Assign(ctx, i.Assignment, &i.Inheritance)
	var refused *replication.RefusedError
	switch {
	case errors.As(err, &refused) && refused.Reason == protocol.ReasonLeads:
		return nil
	case errors.As(err, &refused), errors.Is(err, replication.ErrMissing), errors.Is(err, replication.ErrUnavailable):
		return fmt.Errorf("%w: %w", cluster.ErrVoid, err)
	}
	return err
}
