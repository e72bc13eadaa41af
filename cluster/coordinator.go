package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

const (
	// sweepInterval is how often all streams are looked at though nothing is
	// known to have happened.
	sweepInterval = 10 * time.Second
	// stuckPatience is how long a stream may lack a leader before the log says
	// so.
	stuckPatience = 3 * time.Second
	// commandStreamsMax bounds one command; an entry of raft's log is held in
	// memory several times over.
	commandStreamsMax = 16_384
)

// coordinator gives every stream a leader. It runs while this node leads the
// metadata, in one loop: take what has changed, ask catalog.NextSteps, act.
//
// It is debounced by its own work: what changes while a round is busy waits for
// the next one, so a round carries more the more there is to do, and a lone
// change waits for nothing. Everything is looked at again by the sweep, so a
// lost event costs time only.
type coordinator struct {
	c *Cluster

	mu      sync.Mutex // guards the inbox below
	running bool
	agenda  *catalog.Agenda
	events  []func(*catalog.State, *catalog.Sight)
	waiters map[chunk.Incarnation][]*waiter
	gone    map[protocol.NodeID]bool
	wake    chan struct{} // capacity 1: something is in the inbox
}

// waiter is somebody who waits for a stream's leader.
type waiter struct {
	released chan error // capacity 1
	// orStuck: an election that can't succeed now ends the wait too.
	orStuck bool
}

func newCoordinator(c *Cluster) *coordinator {
	return &coordinator{
		c:       c,
		agenda:  catalog.NewAgenda(),
		waiters: make(map[chunk.Incarnation][]*waiter),
		gone:    make(map[protocol.NodeID]bool),
		wake:    make(chan struct{}, 1),
	}
}

// lead follows raft's leadership and runs the coordinator for each reign.
func (c *Cluster) lead() {
	var reign sync.WaitGroup
	end := func() {}
	for {
		select {
		case leads := <-c.meta.leads:
			end()
			reign.Wait()
			if leads {
				ctx, cancel := context.WithCancel(c.done)
				end = cancel
				reign.Go(func() { c.coord.run(ctx) })
				reign.Go(func() { c.voters.run(ctx, c) })
				reign.Go(func() { c.spread.run(ctx, c) })
			}
		case <-c.done.Done():
			end()
			reign.Wait()
			return
		}
	}
}

// changed is told by the machine; it runs on the applying goroutine.
func (k *coordinator) changed(changes []catalog.Change) {
	view := k.c.View()
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.running && k.agenda.Changed(view, changes) {
		k.nudge()
	}
}

// touch expects mu to be held.
func (k *coordinator) touch(i chunk.Incarnation) {
	if !k.running {
		return // a reign begins with all streams
	}
	k.agenda.Touch(i)
	k.nudge()
}

func (k *coordinator) nudge() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// post hands the outcome of a call to the loop.
func (k *coordinator) post(event func(*catalog.State, *catalog.Sight), streams ...chunk.Incarnation) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.running {
		return false
	}
	k.events = append(k.events, event)
	k.agenda.Touch(streams...)
	k.nudge()
	return true
}

// over notes that a leader does not lead any more; false if nobody coordinates
// here.
func (k *coordinator) over(x ended) bool {
	return k.post(func(view *catalog.State, sight *catalog.Sight) {
		s, ok := view.Incarnation(x.Stream)
		switch {
		case !ok:
		case x.Heir != "":
			sight.HandedOver(s, x.Epoch, x.Heir)
		default:
			sight.Over(s, x.Epoch)
		}
	}, x.Stream)
}

// see notes whether a node is there. What it holds is looked at again.
func (k *coordinator) see(node protocol.NodeID, presence catalog.Presence) {
	k.mu.Lock()
	if presence == catalog.Gone {
		k.gone[node] = true
	} else {
		delete(k.gone, node)
	}
	k.mu.Unlock()
	k.post(func(_ *catalog.State, sight *catalog.Sight) { sight.See(node, presence) }, k.c.View().Held(node)...)
}

// restarted notes that a node runs anew: whether its replicas lead is asked
// again.
func (k *coordinator) restarted(node protocol.NodeID) {
	k.post(func(view *catalog.State, sight *catalog.Sight) { sight.Restarted(view, node) }, k.c.View().Held(node)...)
}

// isUp says whether a node may be given something new.
func (k *coordinator) isUp(node protocol.NodeID) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !k.gone[node]
}

// await waits until a stream's leader leads. A stream that is gone is an
// ErrStreamMissing.
func (k *coordinator) await(ctx context.Context, i chunk.Incarnation) error {
	return k.wait(ctx, i, k.expect(false, i)[0])
}

// awaitAll waits until each stream's leader leads, or the stream is gone or
// can't get a leader now.
func (k *coordinator) awaitAll(ctx context.Context, streams []chunk.Incarnation) error {
	var first error
	for n, w := range k.expect(true, streams...) { // to the end: each wait takes its waiter away
		err := k.wait(ctx, streams[n], w)
		if err != nil && !errors.Is(err, catalog.ErrStreamMissing) && !errors.Is(err, ErrNoLeader) && first == nil {
			first = err
		}
	}
	return first
}

// expect enters a waiter for each stream and has the streams looked at.
func (k *coordinator) expect(orStuck bool, streams ...chunk.Incarnation) []*waiter {
	k.mu.Lock()
	defer k.mu.Unlock()
	list := make([]*waiter, len(streams))
	for n, i := range streams {
		list[n] = &waiter{released: make(chan error, 1), orStuck: orStuck}
		if !k.running {
			list[n].released <- errElsewhere
			continue
		}
		k.waiters[i] = append(k.waiters[i], list[n])
		k.touch(i)
	}
	return list
}

// wait returns what releases a waiter.
func (k *coordinator) wait(ctx context.Context, i chunk.Incarnation, w *waiter) error {
	select {
	case err := <-w.released:
		return err
	case <-ctx.Done():
		k.mu.Lock()
		defer k.mu.Unlock()
		k.waiters[i] = slices.DeleteFunc(k.waiters[i], func(x *waiter) bool { return x == w })
		if len(k.waiters[i]) == 0 {
			delete(k.waiters, i)
		}
		return fmt.Errorf("%w: stream %s has no leader yet: %w", ErrUnavailable, i, ctx.Err())
	case <-k.c.done.Done():
		return ErrStopped
	}
}

// release ends waits for a stream; stuckOnly ends those that asked for it.
func (k *coordinator) release(i chunk.Incarnation, err error, stuckOnly bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.waiters[i] = slices.DeleteFunc(k.waiters[i], func(w *waiter) bool {
		if stuckOnly && !w.orStuck {
			return false
		}
		w.released <- err
		return true
	})
	if len(k.waiters[i]) == 0 {
		delete(k.waiters, i)
	}
}

// reign is the state of one run of the loop.
type reign struct {
	*coordinator
	ctx   context.Context
	calls sync.WaitGroup // to replicas, on their way
	sight *catalog.Sight
	start time.Time
	stuck map[chunk.Incarnation]*stuckness
	// passages are the leaders that were asked to make way.
	passages map[chunk.Incarnation]*passage
}

// stuckness is a stream's lack of a leader.
type stuckness struct {
	since  protocol.Tick
	reason string // as last logged
}

// run coordinates until ctx ends.
func (k *coordinator) run(ctx context.Context) {
	if err := k.c.barrier(ctx); err != nil {
		return // the reign is over before it began
	}
	r := &reign{
		coordinator: k, ctx: ctx, sight: catalog.NewSight(), start: time.Now(),
		stuck: make(map[chunk.Incarnation]*stuckness), passages: make(map[chunk.Incarnation]*passage),
	}
	defer r.calls.Wait()
	k.begin(true)
	defer k.begin(false)
	sweep := time.NewTicker(sweepInterval)
	defer sweep.Stop()
	timer := time.NewTimer(sweepInterval)
	defer timer.Stop()
	for {
		timer.Reset(r.untilWake())
		select {
		case <-k.wake:
		case <-timer.C:
		case <-sweep.C:
			k.touchAll()
		case <-ctx.Done():
			return
		}
		r.round()
	}
}

// begin opens or closes the inbox.
func (k *coordinator) begin(running bool) {
	k.mu.Lock()
	k.running = running
	k.agenda = catalog.NewAgenda()
	k.events = nil
	if !running { // whoever waits asks the next leader
		for _, waiters := range k.waiters {
			for _, w := range waiters {
				w.released <- errElsewhere
			}
		}
		clear(k.waiters)
	}
	if running {
		gone := maps.Clone(k.gone)
		k.events = append(k.events, func(_ *catalog.State, sight *catalog.Sight) {
			for node := range gone {
				sight.See(node, catalog.Gone)
			}
		})
	}
	k.mu.Unlock()
	if running {
		k.touchAll()
	}
}

func (k *coordinator) touchAll() {
	view := k.c.View()
	k.mu.Lock()
	defer k.mu.Unlock()
	for s := range view.Streams() {
		k.touch(s.Incarnation)
	}
	for i := range k.waiters { // of streams that may be gone
		k.touch(i)
	}
}

// tick is the reign's clock; it never stands at 0.
func (r *reign) tick() protocol.Tick { return protocol.Tick(time.Since(r.start).Milliseconds()) + 1 }

func (r *reign) untilWake() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	wake, now := r.agenda.Wake(), r.tick()
	if wake == 0 {
		return sweepInterval
	}
	return time.Duration(max(wake, now)-now) * time.Millisecond
}

// round looks once at all that has changed.
func (r *reign) round() {
	streams, events := r.take()
	view := r.c.View() // not older than the events
	for _, event := range events {
		event(view, r.sight)
	}
	steps := catalog.NextSteps(view, r.sight, streams, r.tick())
	for _, f := range steps.Fences {
		r.calls.Go(func() { r.fence(f) })
	}
	for _, i := range steps.Installs {
		r.calls.Go(func() { r.install(i) })
	}
	for _, h := range steps.Handovers { // each for itself: a slow one must not keep the others silent
		r.passages[h.Stream] = &passage{from: h.From, epoch: h.Epoch + 1, begun: time.Now()}
		r.calls.Go(func() { r.handOver(h) })
	}
	r.passing(view, streams, &steps)
	r.note(view, streams, &steps)
	r.command(&steps)
}

// command proposes what a round decided, each kind in one command.
func (r *reign) command(steps *catalog.Steps) {
	for grants := range slices.Chunk(steps.Grants, commandStreamsMax) {
		r.propose(&catalog.GrantEpochs{Streams: grants}, func(i int) chunk.Incarnation { return grants[i].Stream })
	}
	for leaders := range slices.Chunk(steps.Elected, commandStreamsMax) {
		r.propose(&catalog.AssignLeaders{Leaders: leaders}, func(i int) chunk.Incarnation { return leaders[i].Stream })
	}
	for added := range slices.Chunk(steps.Added, commandStreamsMax) {
		r.propose(&catalog.AddReplicas{Replicas: added}, func(i int) chunk.Incarnation { return added[i].Stream })
	}
	for retired := range slices.Chunk(steps.Retired, commandStreamsMax) {
		r.propose(&catalog.RetireReplicas{Replicas: retired}, func(i int) chunk.Incarnation { return retired[i].Stream })
	}
	for removed := range slices.Chunk(steps.Removed, commandStreamsMax) {
		r.propose(&catalog.RemoveReplicas{Replicas: removed}, func(i int) chunk.Incarnation { return removed[i].Stream })
	}
}

// take empties the inbox.
func (r *reign) take() ([]chunk.Incarnation, []func(*catalog.State, *catalog.Sight)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	streams := r.agenda.Take(r.tick())
	events := r.events
	r.events = nil
	return streams, events
}

// note keeps what a round came to: who waits, who is stuck, who is led.
func (r *reign) note(view *catalog.State, streams []chunk.Incarnation, steps *catalog.Steps) {
	r.mu.Lock()
	r.agenda.Keep(steps)
	r.mu.Unlock()
	for _, s := range steps.Stuck {
		r.complain(s)
		r.release(s.Stream.Incarnation, fmt.Errorf("%w: stream %q: %s", ErrNoLeader, s.Stream.Name, s.Reason), true)
	}
	for _, i := range streams {
		s, ok := view.Incarnation(i)
		switch {
		case !ok:
			delete(r.stuck, i)
			r.release(i, fmt.Errorf("%w: incarnation %s", catalog.ErrStreamMissing, i), false)
		case r.sight.IsInstalled(i, s.Epoch):
			if x := r.stuck[i]; x != nil && x.reason != "" {
				r.c.log.Info("stream has a leader again", "stream", s.Name, "vhost", s.VHost, "leader", s.Leader.Node, "epoch", s.Epoch)
			}
			delete(r.stuck, i)
			r.release(i, nil, false)
		}
	}
}

// complain logs a stream that lacks a leader for long, once for each reason.
func (r *reign) complain(s catalog.Stuck) {
	x := r.stuck[s.Stream.Incarnation]
	if x == nil {
		x = &stuckness{since: r.tick()}
		r.stuck[s.Stream.Incarnation] = x
	}
	if x.reason != s.Reason && r.tick()-x.since >= protocol.Tick(stuckPatience.Milliseconds()) {
		x.reason = s.Reason
		r.c.log.Warn("stream has no leader", "stream", s.Stream.Name, "vhost", s.Stream.VHost, "epoch", s.Stream.Epoch, "reason", s.Reason)
	}
}

// propose has a command for many streams carried out. Those that were refused
// are looked at again: they stand elsewhere than was thought.
func (r *reign) propose(body catalog.Body, stream func(i int) chunk.Incarnation) {
	result, err := r.c.Propose(r.ctx, body)
	if err != nil {
		return // the reign is over, or the metadata failed; the next one begins anew
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, o := range result.Outcomes {
		if o.Refusal != nil {
			r.touch(stream(i))
		}
	}
}

// fence asks one node and posts its answers.
func (r *reign) fence(f catalog.NodeFences) {
	ctx, cancel := context.WithTimeout(r.ctx, fenceTimeout)
	defer cancel()
	answers, err := r.c.config.Fencer.Fence(ctx, f.Node, f.Requests)
	if err == nil && len(answers) != len(f.Requests) {
		err = fmt.Errorf("%d answers to %d fences", len(answers), len(f.Requests))
	}
	streams := make([]chunk.Incarnation, len(f.Requests))
	for i, q := range f.Requests {
		streams[i] = q.Stream.Incarnation
	}
	r.post(func(_ *catalog.State, sight *catalog.Sight) {
		for i, q := range f.Requests {
			failure := err
			if failure == nil {
				failure = answers[i].Err
			}
			if failure == nil {
				sight.Reported(answers[i].Report)
				continue
			}
			sight.FenceFailed(q.Stream.Incarnation, q.Stream.Epoch, f.Node, failure.Error(), r.tick())
		}
	}, streams...)
}

// install tells one node's new leaders and posts their answers.
func (r *reign) install(n catalog.NodeInstalls) {
	ctx, cancel := context.WithTimeout(r.ctx, installTimeout)
	defer cancel()
	answers, err := r.c.config.Fencer.Install(ctx, n.Node, n.Assignments)
	if err == nil && len(answers) != len(n.Assignments) {
		err = fmt.Errorf("%d answers to %d installations", len(answers), len(n.Assignments))
	}
	streams := make([]chunk.Incarnation, len(n.Assignments))
	for i, a := range n.Assignments {
		streams[i] = a.Stream
	}
	r.post(func(view *catalog.State, sight *catalog.Sight) {
		for i, a := range n.Assignments {
			failure := err
			if failure == nil {
				failure = answers[i]
			}
			switch s, ok := view.Incarnation(a.Stream); {
			case failure == nil:
				sight.Installed(a.Stream, a.Epoch)
			case errors.Is(failure, ErrVoid) && ok:
				sight.Over(s, a.Epoch)
			default:
				sight.InstallFailed(a.Stream, a.Epoch, r.tick())
			}
		}
	}, streams...)
}

// handOver asks one leader to make way and posts its answer.
func (r *reign) handOver(h catalog.Handover) {
	ctx, cancel := context.WithTimeout(r.ctx, handoverTimeout)
	defer cancel()
	err := r.c.config.Fencer.HandOver(ctx, h)
	r.post(func(view *catalog.State, sight *catalog.Sight) {
		if s, ok := view.Incarnation(h.Stream); ok && err == nil {
			if p := r.passages[h.Stream]; p != nil {
				p.reached(0, time.Now())
			}
			sight.HandedOver(s, h.Epoch, h.To)
			return
		}
		delete(r.passages, h.Stream)
		sight.HandoverFailed(h.Stream, h.Epoch, r.tick())
	}, h.Stream)
}
