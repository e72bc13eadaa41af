package cluster

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Proposed takes what a replica of this node wants of the metadata (D1, D2,
// D3). It never blocks. A wish that comes to nothing is dropped: the replica
// has it again as long as it holds. Only what it says once is seen through here:
// a registration, before which it does nothing, and that its voters are settled.
func (c *Cluster) Proposed(stream chunk.Incarnation, p protocol.Proposal) { c.wishes.add(stream, p) }

// wishes are the replicas' proposals on their way to the metadata, many in one
// command.
type wishes struct {
	mu   sync.Mutex // guards all
	all  *catalog.Wishes
	wake chan struct{} // capacity 1: something waits
}

func newWishes(node protocol.NodeID) *wishes {
	return &wishes{all: catalog.NewWishes(node), wake: make(chan struct{}, 1)}
}

func (w *wishes) add(stream chunk.Incarnation, p protocol.Proposal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.all.Add(stream, p)
	w.nudge()
}

func (w *wishes) nudge() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// changed runs on the applying goroutine.
func (w *wishes) changed(changes []catalog.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.all.Changed(changes) {
		w.nudge()
	}
}

func (w *wishes) take() []catalog.Wish {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.all.Take()
}

// wishPause is before a wish that must not be dropped is tried again.
const wishPause = 100 * time.Millisecond

// carry hands the replicas' wishes to the metadata.
func (c *Cluster) carry() {
	for {
		select {
		case <-c.wishes.wake:
		case <-c.done.Done():
			return
		}
		list := c.wishes.take()
		c.register(list)
		c.clear(list)
		c.changeVoters(list)
	}
}

// register enters replicas of this node anew, and tells them the promise to make
// (D1).
func (c *Cluster) register(list []catalog.Wish) {
	body, asked := catalog.Registrations(c.View(), c.config.Node, list)
	if len(asked) == 0 {
		return
	}
	result, err := c.wishFor(body)
	for i, x := range asked {
		switch {
		case err != nil, errors.Is(result.Outcomes[i].Err(), catalog.ErrStaleVersion):
			c.again([]catalog.Wish{x})
		case result.Outcomes[i].Refusal == nil && c.config.Registered != nil:
			c.config.Registered(x.Stream, result.Outcomes[i].Epoch, result.Outcomes[i].Registration)
		}
	}
}

// again puts wishes back after a pause.
func (c *Cluster) again(list []catalog.Wish) {
	if len(list) == 0 {
		return
	}
	time.AfterFunc(wishPause, func() {
		for _, x := range list {
			c.wishes.add(x.Stream, x.Proposal)
		}
	})
}

// clear lets replicas count again (D2).
func (c *Cluster) clear(list []catalog.Wish) {
	if body := catalog.Clearings(list); len(body.Replicas) > 0 {
		c.wishFor(body)
	}
}

// changeVoters changes voters of streams that this node leads (D3).
func (c *Cluster) changeVoters(list []catalog.Wish) {
	body, settled, later := catalog.VoterChanges(c.View(), c.config.Node, list, c.reached)
	if len(body.Changes) > 0 {
		if _, err := c.wishFor(body); err != nil {
			later = append(later, settled...)
		}
	}
	c.again(later)
}

// reached says whether a node can be counted on now: Up has patience with one
// whose link has only just broken.
func (c *Cluster) reached(node protocol.NodeID) bool { return c.Up(node) && !c.presence.broken(node) }

// wishFor proposes within the usual time.
func (c *Cluster) wishFor(body catalog.Body) (catalog.Result, error) {
	ctx, cancel := context.WithTimeout(c.done, createPatience)
	defer cancel()
	return c.Propose(ctx, body)
}
