package cluster

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// ends are reigns of replicas on this node that are over, on their way to the
// coordinator: many in one request.
type ends struct {
	mu      sync.Mutex // guards waiting
	waiting map[chunk.Incarnation]ended
	wake    chan struct{} // capacity 1
}

func newEnds() *ends {
	return &ends{waiting: make(map[chunk.Incarnation]ended), wake: make(chan struct{}, 1)}
}

func (e *ends) add(x ended) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if old, ok := e.waiting[x.Stream]; !ok || x.Epoch > old.Epoch || x.Epoch == old.Epoch && x.Heir != "" {
		e.waiting[x.Stream] = x
	}
	select {
	case e.wake <- struct{}{}:
	default:
	}
}

func (e *ends) take() []ended {
	e.mu.Lock()
	defer e.mu.Unlock()
	list := make([]ended, 0, len(e.waiting))
	for _, stream := range slices.Sorted(maps.Keys(e.waiting)) {
		list = append(list, e.waiting[stream])
	}
	clear(e.waiting)
	return list
}

// ended is a reign that is over.
type ended struct {
	Stream chunk.Incarnation `json:"stream"`
	Epoch  chunk.Epoch       `json:"epoch"`
	// Heir has everything, if the leader handed over.
	Heir protocol.NodeID `json:"heir,omitempty"`
}

// carryEnds tells the coordinator, wherever it is. What the catalog has gone
// beyond meanwhile is nobody's business any more.
func (c *Cluster) carryEnds() {
	for {
		select {
		case <-c.ends.wake:
		case <-c.done.Done():
			return
		}
		list := slices.DeleteFunc(c.ends.take(), func(x ended) bool {
			s, ok := c.View().Incarnation(x.Stream)
			return !ok || s.Epoch > x.Epoch
		})
		if len(list) == 0 {
			continue
		}
		ctx, cancel := context.WithTimeout(c.done, createPatience)
		_, err := atLeader(ctx, c, methodOver, list, c.overHere)
		cancel()
		if err != nil {
			for _, x := range list {
				c.ends.add(x)
			}
			if c.pause(c.done, err) != nil {
				return
			}
		}
	}
}

// overHere notes on the leader that reigns are over.
func (c *Cluster) overHere(_ context.Context, list []ended) (nothing, error) {
	for _, x := range list {
		if !c.coord.over(x) {
			return nothing{}, errElsewhere
		}
	}
	return nothing{}, nil
}
