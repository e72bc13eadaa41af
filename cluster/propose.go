package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
)

// Propose has one command carried out and returns its answer. An attempt whose
// outcome stays unknown is repeated under the same request id, so the command
// is carried out once. The error is about reaching the metadata; refusals are
// in the result.
func (c *Cluster) Propose(ctx context.Context, body catalog.Body) (catalog.Result, error) {
	results, err := c.proposeAll(ctx, []catalog.Body{body})
	if err != nil {
		return catalog.Result{}, err
	}
	return results[0], nil
}

// do is Propose that takes the first refusal for the error.
func (c *Cluster) do(ctx context.Context, body catalog.Body) error {
	result, err := c.Propose(ctx, body)
	if err != nil {
		return err
	}
	return result.Err()
}

// proposal is commands on their way to the leader.
type proposal struct {
	Commands [][]byte `json:"commands"`
}

// proposeAll has commands carried out in order, with one sync for all of them
// if raft so pleases.
func (c *Cluster) proposeAll(ctx context.Context, bodies []catalog.Body) ([]catalog.Result, error) {
	var p proposal
	for _, body := range bodies {
		command := catalog.Command{Request: draw(), At: chunk.Timestamp(time.Now().UnixMilli()), Body: body}
		p.Commands = append(p.Commands, command.Encode())
	}
	return atLeader(ctx, c, methodPropose, p, c.proposeHere)
}

// proposeHere is proposeAll on the leader. What it would not understand itself
// it does not let in, since every node would stop at it.
func (c *Cluster) proposeHere(ctx context.Context, p proposal) ([]catalog.Result, error) {
	for _, command := range p.Commands {
		if _, err := catalog.Decode(command); err != nil {
			return nil, err
		}
	}
	results, err := c.attempt(ctx, p.Commands)
	if !c.meta.store.latched.alone.Load() {
		// Clients of all nodes look for a stream's new leader in this moment.
		c.spread.upTo(c.meta.shown.at())
	}
	return results, err
}

// enqueueTimeout bounds the wait for a place in raft's queue, not for the
// commit.
const enqueueTimeout = time.Second

// attempt hands commands to raft and waits for their answers.
func (c *Cluster) attempt(ctx context.Context, commands [][]byte) ([]catalog.Result, error) {
	var results []catalog.Result
	err := c.withRaft(ctx, func(r *instance) error {
		futures := make([]raft.ApplyFuture, len(commands))
		for i, command := range commands {
			futures[i] = r.Apply(command, enqueueTimeout)
		}
		answers, err := gather(futures)
		results = answers
		return err
	})
	if err != nil {
		return nil, err // a call that goes on for nobody may still write results
	}
	return results, nil
}

// gather waits for all futures, whatever becomes of the first.
func gather(futures []raft.ApplyFuture) (results []catalog.Result, err error) {
	for _, f := range futures {
		if e := f.Error(); e != nil {
			err = errors.Join(err, e)
			continue
		}
		switch answer := f.Response().(type) {
		case catalog.Result:
			results = append(results, answer)
		case error:
			err = errors.Join(err, answer)
		}
	}
	return results, err
}

// barrier waits until this node leads and all entries before are applied.
func (c *Cluster) barrier(ctx context.Context) error {
	for {
		err := c.withRaft(ctx, func(r *instance) error { return r.Barrier(0).Error() })
		if err == nil || !retryable(err) {
			return err
		}
		if err := c.pause(ctx, err); err != nil {
			return err
		}
	}
}

// withRaft runs a call on the present raft instance, which is not stopped
// before the call is over: raft forgets what waits in its queue when it stops.
// If ctx ends first, the call goes on for nobody.
func (c *Cluster) withRaft(ctx context.Context, call func(*instance) error) error {
	done := make(chan error, 1)
	go func() { // raft's futures can't be waited for together with a context
		c.meta.gate.RLock()
		defer c.meta.gate.RUnlock()
		if c.done.Err() != nil {
			done <- ErrStopped
			return
		}
		done <- call(c.meta.instance())
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		if full := c.meta.store.latched.reason(); full != nil {
			return fmt.Errorf("%w: the outcome is unknown: %w: %w", ErrUnavailable, full, ctx.Err())
		}
		return fmt.Errorf("%w: the outcome is unknown: %w", ErrUnavailable, ctx.Err())
	}
}
