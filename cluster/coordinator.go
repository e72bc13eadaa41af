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
			c.meta.pace(leads)
			end()
			reign.Wait()
			if leads {
				ctx, cancel := context.WithCancel(c.done)
				end = cancel
				reign.Go(func() { c.coord.run(ctx) })
				reign.Go(func() { c.voters.run(ctx, c) })
				reign.Go(func() { c.spread.run(ctx, c) })
				reign.Go(func() { c.tendGroups(ctx) })
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
