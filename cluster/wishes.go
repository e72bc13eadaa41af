package cluster

import (
	"cmp"
	"context"
	"errors"
	"slices"
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
	node protocol.NodeID

	mu sync.Mutex // guards all below
	// waiting holds at most one wish of a kind for each replica.
	waiting map[wish]protocol.Proposal
	// settled is the newest configuration that a stream's leader on this node
	// called settled, and its epoch.
	settled map[chunk.Incarnation]settlement
	wake    chan struct{} // capacity 1: something waits
}

type wish struct {
	stream chunk.Incarnation
	kind   protocol.ProposalKind
	node   protocol.NodeID
}

type settlement struct {
	epoch   chunk.Epoch
	version protocol.ConfigVersion
}

func newWishes(node protocol.NodeID) *wishes {
	return &wishes{
		node: node, waiting: make(map[wish]protocol.Proposal),
		settled: make(map[chunk.Incarnation]settlement), wake: make(chan struct{}, 1),
	}
}

func (w *wishes) add(stream chunk.Incarnation, p protocol.Proposal) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.Kind == protocol.ProposeSettled {
		w.settled[stream] = settlement{p.Epoch, p.Config}
	}
	w.put(stream, p)
}

// put expects mu to be held.
func (w *wishes) put(stream chunk.Incarnation, p protocol.Proposal) {
	w.waiting[wish{stream, p.Kind, p.Node}] = p
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// changed looks again at streams that this node leads and that somebody is to
// leave; it runs on the applying goroutine.
func (w *wishes) changed(changes []catalog.Change) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, x := range changes {
		switch {
		case x.Kind != catalog.StreamChanged:
		case x.Stream == nil:
			delete(w.settled, x.Before.Incarnation)
		case x.Stream.Leader.Node == w.node && slices.ContainsFunc(x.Stream.Replicas, leavingVoter):
			at := w.settled[x.Stream.Incarnation]
			w.put(x.Stream.Incarnation, protocol.Proposal{Kind: protocol.ProposeSettled, Node: w.node, Epoch: at.epoch, Config: at.version})
		}
	}
}

func leavingVoter(r catalog.Replica) bool { return r.Voter && r.Leaving }

// take empties the queue, in the order of streams.
func (w *wishes) take() []taken {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]taken, 0, len(w.waiting))
	for key, p := range w.waiting {
		list = append(list, taken{key, p, w.settled[key.stream]})
	}
	clear(w.waiting)
	slices.SortFunc(list, func(a, b taken) int {
		return cmp.Or(cmp.Compare(a.stream, b.stream), cmp.Compare(a.kind, b.kind), cmp.Compare(a.node, b.node))
	})
	return list
}

// taken is a wish with what its stream's leader called settled.
type taken struct {
	wish
	protocol.Proposal
	settlement
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

// register enters emptied and damaged replicas of this node anew, and tells
// them the promise to make (D1).
func (c *Cluster) register(list []taken) {
	view := c.View()
	body := &catalog.RegisterReplicas{Node: c.config.Node}
	var asked []taken
	for _, t := range list {
		if t.kind != protocol.ProposeRegister {
			continue
		}
		s, ok := view.Incarnation(t.stream)
		if !ok {
			continue
		}
		if r, ok := s.Replica(c.config.Node); ok {
			body.Streams = append(body.Streams, catalog.Registered{Stream: t.stream, From: r.Registration})
			asked = append(asked, t)
		}
	}
	if len(asked) == 0 {
		return
	}
	result, err := c.wishFor(body)
	for i, t := range asked {
		switch {
		case err != nil, errors.Is(result.Outcomes[i].Err(), catalog.ErrStaleVersion):
			c.again(t)
		case result.Outcomes[i].Refusal == nil && c.config.Registered != nil:
			c.config.Registered(t.stream, result.Outcomes[i].Epoch, result.Outcomes[i].Registration)
		}
	}
}

// again puts a wish back after a pause.
func (c *Cluster) again(t taken) {
	time.AfterFunc(wishPause, func() { c.wishes.add(t.stream, t.Proposal) })
}

// clear lets replicas count again that have caught up (D2).
func (c *Cluster) clear(list []taken) {
	body := &catalog.ClearReplicas{}
	for _, t := range list {
		if t.kind == protocol.ProposeClear {
			body.Replicas = append(body.Replicas, catalog.Cleared{
				Stream: t.stream, Node: t.wish.node, Registration: t.Registration, Epoch: t.Epoch,
			})
		}
	}
	if len(body.Replicas) > 0 {
		c.wishFor(body) // what is refused, the leader wishes again if it is still true
	}
}

// changeVoters takes in who has caught up and lets go who is to go, one voter
// of a stream at a time and only where the leader has settled (D3).
func (c *Cluster) changeVoters(list []taken) {
	view := c.View()
	body := &catalog.ChangeVoters{}
	changing := make(map[chunk.Incarnation]bool)
	var settled []taken
	for _, t := range list {
		s, ok := view.Incarnation(t.stream)
		if !ok || t.settlement.epoch != s.Epoch || changing[t.stream] {
			continue
		}
		var change catalog.VoterChange
		switch t.kind {
		case protocol.ProposePromote:
			change = catalog.VoterChange{
				Stream: t.stream, Epoch: t.settlement.epoch, Version: t.settlement.version,
				Node: t.wish.node, Registration: t.Registration, Voter: true,
			}
		case protocol.ProposeSettled:
			if change, ok = catalog.NextChange(s, c.config.Node, t.settlement.version); !ok {
				continue
			}
			settled = append(settled, t)
		default:
			continue
		}
		changing[t.stream] = true
		body.Changes = append(body.Changes, change)
	}
	if len(body.Changes) == 0 {
		return
	}
	if _, err := c.wishFor(body); err != nil {
		// What is refused, something newer stands against, and changed looks at
		// that; what was not heard, nobody would say again.
		for _, t := range settled {
			c.again(t)
		}
	}
}

// wishFor proposes within the usual time.
func (c *Cluster) wishFor(body catalog.Body) (catalog.Result, error) {
	ctx, cancel := context.WithTimeout(c.done, createPatience)
	defer cancel()
	return c.Propose(ctx, body)
}
