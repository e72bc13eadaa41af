package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
)

// Methods of the coordinator's requests to replicas.
const (
	methodFence uint16 = groupReplica<<8 + 1 + iota
	methodInstall
	methodHandOver
)

// statusRefused: nothing of the request was done; the body says why.
const statusRefused uint16 = 1

// fencer lets the coordinator reach the replicas: those of this node by a call,
// others by a request over the link.
type fencer struct {
	*residents
	transport *transport
}

var errNoLink = errors.New("this node has no link to others")

// ask sends one request to another node.
func (f fencer) ask(ctx context.Context, to protocol.NodeID, method uint16, body []byte) ([]byte, error) {
	links := f.transport.opened()
	if links == nil {
		return nil, fmt.Errorf("ask node %s: %w", to, errNoLink)
	}
	links.Connect(to)
	answer, err := links.Request(ctx, to, method, body)
	switch {
	case err != nil:
		return nil, fmt.Errorf("ask node %s: %w", to, err)
	case answer.Status != statusDone:
		return nil, fmt.Errorf("node %s: %s", to, answer.Body)
	}
	return answer.Body, nil
}

// Fence is cluster.Fencer's. Many streams go in one frame.
func (f fencer) Fence(ctx context.Context, node protocol.NodeID, requests []catalog.FenceRequest) ([]cluster.FenceAnswer, error) {
	if node == f.node {
		return f.fence(ctx, requests), nil
	}
	var all []cluster.FenceAnswer
	for len(requests) > 0 {
		n := min(len(requests), cluster.FrameStreams)
		body, err := cluster.EncodeFences(requests[:n])
		if err != nil {
			return nil, err
		}
		answer, err := f.ask(ctx, node, methodFence, body)
		if err != nil {
			return nil, err
		}
		list, err := cluster.DecodeFenceAnswers(answer)
		if err != nil {
			return nil, fmt.Errorf("answer of node %s: %w", node, err)
		}
		all, requests = append(all, list...), requests[n:]
	}
	return all, nil
}

// fence has the replicas here promise and report, those that do not run yet
// once they are started.
func (f fencer) fence(ctx context.Context, requests []catalog.FenceRequest) []cluster.FenceAnswer {
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
	return answers
}

// openAll starts the replicas that do not run yet.
func (f fencer) openAll(requests []catalog.FenceRequest, answers []cluster.FenceAnswer) {
	var work sync.WaitGroup
	places := make(chan struct{}, settlesMax)
	for i, q := range requests {
		places <- struct{}{}
		work.Go(func() {
			answers[i].Err = f.open(q.Stream)
			<-places
		})
	}
	work.Wait()
}

// Install is cluster.Fencer's. Frames are bounded, since each winner inherits
// the pending updates of all who reported.
func (f fencer) Install(ctx context.Context, node protocol.NodeID, list []catalog.Installation) ([]error, error) {
	if node == f.node {
		return f.installAll(ctx, list), nil
	}
	var all []error
	for len(list) > 0 {
		n, bytes := 1, cluster.InstallBytes(&list[0])
		for n < len(list) && n < cluster.FrameStreams && bytes < cluster.FrameBytes {
			bytes += cluster.InstallBytes(&list[n])
			n++
		}
		answer, err := f.ask(ctx, node, methodInstall, cluster.EncodeInstalls(list[:n]))
		if err != nil {
			return nil, err
		}
		outcomes, err := cluster.DecodeOutcomes(answer)
		if err != nil {
			return nil, fmt.Errorf("answer of node %s: %w", node, err)
		}
		all, list = append(all, outcomes...), list[n:]
	}
	return all, nil
}

func (f fencer) installAll(ctx context.Context, list []catalog.Installation) []error {
	answers := make([]error, len(list))
	var work sync.WaitGroup
	for i := range list {
		work.Go(func() { answers[i] = f.install(ctx, &list[i]) })
	}
	work.Wait()
	return answers
}

// install tells a replica that it leads. A refusal ends the epoch (A5).
func (f fencer) install(ctx context.Context, i *catalog.Installation) error {
	err := f.replicas.Assign(ctx, i.Assignment, &i.Inheritance)
	var refused *replication.RefusedError
	switch {
	case errors.As(err, &refused) && refused.Reason == protocol.ReasonLeads && f.leads(i):
		return nil
	case errors.As(err, &refused), errors.Is(err, replication.ErrMissing), errors.Is(err, replication.ErrUnavailable):
		return fmt.Errorf("%w: %w", cluster.ErrVoid, err)
	}
	return err
}

// leads tells whether the replica leads the very epoch: it may be told twice.
func (f fencer) leads(i *catalog.Installation) bool {
	r, ok := f.replicas.Replica(i.Stream)
	return ok && r.Standing().Leads == i.Epoch
}

// HandOver is cluster.Fencer's.
func (f fencer) HandOver(ctx context.Context, h catalog.Handover) error {
	if h.From == f.node {
		return f.handOver(ctx, h)
	}
	answer, err := f.ask(ctx, h.From, methodHandOver, cluster.EncodeHandover(h))
	if err != nil {
		return err
	}
	outcomes, err := cluster.DecodeOutcomes(answer)
	if err != nil || len(outcomes) != 1 {
		return fmt.Errorf("answer of node %s: %w", h.From, cluster.ErrRequest)
	}
	return outcomes[0]
}

func (f fencer) handOver(ctx context.Context, h catalog.Handover) error {
	r, ok := f.replicas.Replica(h.Stream)
	if !ok || r.Standing().Leads != h.Epoch {
		return fmt.Errorf("stream %s: epoch %d is not led here: %w", h.Stream, h.Epoch, replication.ErrNotLeader)
	}
	return f.replicas.Handover(ctx, h.Stream, h.To)
}

// answerMargin is left of an asker's time for the answer's way back: what is
// known by then is told.
const answerMargin = 50 * time.Millisecond

// serve answers another node's coordinator.
func (f fencer) serve(ctx context.Context, _ protocol.NodeID, method uint16, body []byte) (uint16, []byte) {
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-answerMargin))
		defer cancel()
	}
	var answer []byte
	var err error
	switch method {
	case methodFence:
		answer, err = f.serveFence(ctx, body)
	case methodInstall:
		var list []catalog.Installation
		if list, err = cluster.DecodeInstalls(body); err == nil {
			answer = cluster.EncodeOutcomes(f.installAll(ctx, list))
		}
	case methodHandOver:
		var h catalog.Handover
		if h, err = cluster.DecodeHandover(body); err == nil {
			answer = cluster.EncodeOutcomes([]error{f.handOver(ctx, h)})
		}
	default:
		return statusUnknown, nil
	}
	if err != nil {
		return statusRefused, []byte(err.Error())
	}
	return statusDone, answer
}

func (f fencer) serveFence(ctx context.Context, body []byte) ([]byte, error) {
	if err := f.entered(); err != nil {
		return nil, err
	}
	requests, err := cluster.DecodeFences(body)
	if err != nil {
		return nil, err
	}
	return cluster.EncodeFenceAnswers(f.fence(ctx, requests)), nil
}

var errNotEntered = errors.New("the node is starting: its membership is not known to it yet")

// entered is nil once the catalog here shows this very data directory as the
// node's: until then nobody knows whether its replicas have lost what they
// acknowledged (D1).
func (r *residents) entered() error {
	r.mu.RLock()
	meta := r.meta
	r.mu.RUnlock()
	if meta == nil || !meta.Entered() {
		return errNotEntered
	}
	return nil
}
