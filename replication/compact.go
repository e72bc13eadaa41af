package replication

import (
	"context"
	"sync"
	"time"

	"github.com/millrace/millrace/segstore"
)

// compaction steps the store's Compactor on the node's clock. What must happen
// in a log's turn is an event of its replica; the copying happens here, beside
// all turns. While no log has anything to compact there is no timer.
type compaction struct {
	node      *Node
	compactor *segstore.Compactor

	mu      sync.Mutex // guards the fields below
	running bool
	again   bool // something came while it ran
	closed  bool
	ended   chan struct{} // closed once a run that was on at close has ended
	stop    func() bool   // of the timer
	due     time.Time     // when it fires
}

// newCompaction has the node's logs compacted, unless the rate is negative.
func newCompaction(n *Node, bytesPerSecond int64) *compaction {
	c := &compaction{node: n, ended: make(chan struct{})}
	if bytesPerSecond < 0 {
		c.closed = true
		close(c.ended)
		return c
	}
	c.compactor = n.store.NewCompactor(segstore.CompactorOptions{
		BytesPerSecond: bytesPerSecond, Enter: n.enterLog, Wake: func() { c.arm(0) },
	})
	c.arm(0)
	return c
}

// enterLog has f called in the turn of the replica whose log it is.
func (n *Node) enterLog(l *segstore.Log, f func()) bool {
	r, ok := n.Replica(l.Incarnation())
	return ok && r.post(event{kind: eventCompact, call: f})
}

// arm has a step come after a while, or earlier if one will.
func (c *compaction) arm(wait time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch due := c.node.clock.Now().Add(wait); {
	case c.closed:
	case c.running:
		c.again = true
	case c.stop != nil && !due.Before(c.due):
	default:
		if c.stop != nil {
			c.stop()
		}
		c.due = due
		c.stop = c.node.clock.AfterFunc(wait, c.run)
	}
}

func (c *compaction) run() {
	if !c.begin() {
		return
	}
	wait := c.compactor.Step(c.node.clock.Now())
	if c.end() {
		wait = 0
	}
	if wait < segstore.CompactorIdle {
		c.arm(wait)
	}
}

func (c *compaction) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed || c.running {
		return false
	}
	c.running, c.again, c.stop = true, false, nil
	return true
}

func (c *compaction) end() (again bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.running = false
	if c.closed {
		c.compactor.Stop()
		close(c.ended)
	}
	return c.again
}

// close ends compaction; a step that is on is waited for.
func (c *compaction) close(ctx context.Context) error {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		if c.stop != nil {
			c.stop()
		}
		if !c.running {
			c.compactor.Stop()
			close(c.ended)
		}
	}
	c.mu.Unlock()
	select {
	case <-c.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
