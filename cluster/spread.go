package cluster

import (
	"context"
	"sync"
)

// spread has followers hear of commits at once: raft tells them with the next
// entry, and who asked through a follower waits there to see what it did. One
// more entry, a barrier, is under way at most.
type spread struct {
	mu     sync.Mutex // guards the two below
	wanted uint64     // index
	done   uint64
	wake   chan struct{} // capacity 1
}

func newSpread() *spread { return &spread{wake: make(chan struct{}, 1)} }

// upTo has followers hear of what is applied at an index.
func (s *spread) upTo(index uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if index <= s.wanted {
		return
	}
	s.wanted = index
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// next returns whether something is still to be told, and takes it on.
func (s *spread) next() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done >= s.wanted {
		return false
	}
	s.done = s.wanted
	return true
}

// run works while this node leads.
func (s *spread) run(ctx context.Context, c *Cluster) {
	for {
		select {
		case <-s.wake:
		case <-ctx.Done():
			return
		}
		for s.next() {
			if _, err := c.barrierHere(ctx, nothing{}); err != nil {
				break // the commit timeout does it
			}
		}
	}
}
