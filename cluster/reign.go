package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

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
