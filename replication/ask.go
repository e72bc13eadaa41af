package replication

import (
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// What the coordinator and the metadata ask of replicas. Each question has two
// forms: the one named Begin answers by a callback, from a turn or at once, and
// never blocks; the other waits for it.

// FenceRequest asks for one stream's promise of an epoch (A2).
type FenceRequest struct {
	Stream chunk.Incarnation
	Epoch  chunk.Epoch
}

// FenceResult is a replica's report, or why there is none.
type FenceResult struct {
	Report protocol.Report
	Err    error
}

// BeginFence has a replica promise an epoch and report what it has.
//
// Errors: ErrMissing, *RefusedError, ErrUnavailable, ErrClosed, what the journal
// says.
func (n *Node) BeginFence(q FenceRequest, answer func(FenceResult)) {
	r, ok := n.Replica(q.Stream)
	if !ok {
		answer(FenceResult{Err: fmt.Errorf("fence %s: %w", q.Stream, ErrMissing)})
		return
	}
	e := event{
		kind: eventStep, input: &protocol.Input{Kind: protocol.InFence, Epoch: q.Epoch},
		report: func(report *protocol.Report, err error) {
			result := FenceResult{Err: err}
			if report != nil {
				result.Report = *report
			}
			answer(result)
		},
	}
	if !r.post(e) {
		e.refuse(ErrClosed)
	}
}

// Fence has replicas promise epochs and report what they have. All promises of
// one call share the journal's sync. The results are in the order of requests.
//
// Errors, one for each request: those of BeginFence, the context's.
func (n *Node) Fence(ctx context.Context, requests []FenceRequest) []FenceResult {
	results := make([]FenceResult, len(requests))
	type answer struct {
		request int
		result  FenceResult
	}
	answers := make(chan answer, len(requests))
	for i, q := range requests {
		n.BeginFence(q, func(result FenceResult) { answers <- answer{i, result} })
	}
	open := make([]bool, len(requests))
	for i := range open {
		open[i] = true
	}
	for range requests {
		select {
		case a := <-answers:
			results[a.request], open[a.request] = a.result, false
		case <-ctx.Done():
			for i := range results {
				if open[i] {
					results[i].Err = context.Cause(ctx)
				}
			}
			return results
		}
	}
	return results
}

// BeginAssign makes this node's replica lead an epoch, if it still is what it
// reported (A5); left is what the election's reports leave to it, and may be
// nil. The answer comes when the replica leads or has refused; the barrier's
// commit comes later.
//
// Errors: ErrMissing, *RefusedError, ErrUnavailable, ErrClosed.
func (n *Node) BeginAssign(a protocol.Assignment, left *protocol.Inheritance, done func(error)) {
	n.begin(a.Stream, &protocol.Input{Kind: protocol.InAssign, Assignment: &a, Inheritance: left}, done)
}

// Assign is BeginAssign that waits. Errors: the same, the context's.
func (n *Node) Assign(ctx context.Context, a protocol.Assignment, left *protocol.Inheritance) error {
	return await(ctx, func(done func(error)) { n.BeginAssign(a, left, done) })
}

// BeginConfigure tells a replica the newest configuration of its stream's
// replicas. Errors: as BeginAssign's.
func (n *Node) BeginConfigure(stream chunk.Incarnation, c protocol.Configuration, done func(error)) {
	n.begin(stream, &protocol.Input{Kind: protocol.InConfig, Config: &c}, done)
}

// Configure is BeginConfigure that waits.
func (n *Node) Configure(ctx context.Context, stream chunk.Incarnation, c protocol.Configuration) error {
	return await(ctx, func(done func(error)) { n.BeginConfigure(stream, c, done) })
}

// BeginRegistered tells a replica that asked for it that the metadata has
// entered it anew, and at which epoch that is (D1).
func (n *Node) BeginRegistered(stream chunk.Incarnation, epoch chunk.Epoch, as protocol.Registration, done func(error)) {
	n.begin(stream, &protocol.Input{Kind: protocol.InRegistered, Epoch: epoch, Registration: as}, done)
}

// Registered is BeginRegistered that waits.
func (n *Node) Registered(ctx context.Context, stream chunk.Incarnation, epoch chunk.Epoch, as protocol.Registration) error {
	return await(ctx, func(done func(error)) { n.BeginRegistered(stream, epoch, as, done) })
}

// BeginHandover has the leader stop accepting and commit all that it has, and
// answers nil when the target, "" for whom the leader likes, holds it durably:
// it shall be elected then (D4).
//
// Errors: ErrHandover, *RefusedError, ErrMissing, ErrUnavailable, ErrClosed.
func (n *Node) BeginHandover(stream chunk.Incarnation, to protocol.NodeID, done func(error)) {
	n.begin(stream, &protocol.Input{Kind: protocol.InTransfer, Peer: to}, done)
}

// Handover is BeginHandover that waits.
func (n *Node) Handover(ctx context.Context, stream chunk.Incarnation, to protocol.NodeID) error {
	return await(ctx, func(done func(error)) { n.BeginHandover(stream, to, done) })
}

// begin steps a replica with an input and has done called with its outcome.
func (n *Node) begin(stream chunk.Incarnation, in *protocol.Input, done func(error)) {
	n.post(stream, event{kind: eventStep, input: in, done: done})
}

// post gives a replica an event that ends with its done.
func (n *Node) post(stream chunk.Incarnation, e event) {
	r, ok := n.Replica(stream)
	if !ok {
		e.done(fmt.Errorf("stream %s: %w", stream, ErrMissing))
		return
	}
	if !r.post(e) {
		e.done(ErrClosed)
	}
}

// Join makes the replica of a stream that is new on this node, or of which the
// node has lost everything: the metadata has entered it under a registration at
// an epoch. The replica remembers both before anything else, receives, and
// counts for nothing until it is cleared (D1, D2). Errors: as Open's.
func (n *Node) Join(s Stream, epoch chunk.Epoch, as protocol.Registration) (*Replica, error) {
	made := n.store.Create(s.Name, s.Incarnation)
	if made != nil && !errors.Is(made, segstore.ErrExists) {
		return nil, made
	}
	err := n.store.Remember(s.Incarnation, func(state *segstore.StreamState) {
		if made == nil {
			state.Mark, state.Commit = 0, 0 // of files that are lost
		}
		if uint64(as) <= state.Registration && state.Registration != uint64(protocol.Unregistered) {
			return // it has joined before
		}
		state.Promise = max(state.Promise, epoch)
		state.Registration, state.Aside = uint64(as), segstore.AsideLearner
	})
	if err != nil {
		return nil, err
	}
	return n.Open(s, false)
}

// BeginRemove deletes a replica with its log. It may be repeated until it
// succeeds; a stream that is not here is no error.
func (n *Node) BeginRemove(stream chunk.Incarnation, done func(error)) {
	n.post(stream, event{kind: eventRemove, done: func(err error) {
		if errors.Is(err, ErrMissing) || errors.Is(err, ErrClosed) {
			err = n.store.Remove(stream)
		}
		if err == nil {
			n.mu.Lock()
			delete(n.replicas, stream)
			n.mu.Unlock()
		}
		done(err)
	}})
}

// Remove is BeginRemove that waits.
func (n *Node) Remove(ctx context.Context, stream chunk.Incarnation) error {
	return await(ctx, func(done func(error)) { n.BeginRemove(stream, done) })
}

// await waits for what begin answers. Error: the answer, the context's.
func await(ctx context.Context, begin func(done func(error))) error {
	answered := make(chan error, 1)
	begin(func(err error) { answered <- err })
	select {
	case err := <-answered:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
