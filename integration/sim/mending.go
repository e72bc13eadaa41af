package sim

import (
	"context"
	"time"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// housekeep lets scrubber and repair work now and then.
func (n *node) housekeep(life int) {
	w := n.w
	w.after(w.between(10*millisecond, 100*millisecond), func() {
		if !n.lives(life) {
			return
		}
		if w.rotten == n && !n.dead {
			n.scrubber.Step(clock{n, life}.Now())
			n.mend()
		}
		if n.dead {
			n.die()
			return
		}
		n.housekeep(life)
	})
}

// scrubbed reads all files through and tells whether any was found damaged, also
// of those that are not sealed yet and can't be repaired before they are.
func (n *node) scrubbed() bool {
	now := clock{n, n.life}.Now()
	for until := n.scrubber.Stats().Rounds + 2; n.scrubber.Stats().Rounds < until; {
		now = now.Add(100 * time.Millisecond)
		n.scrubber.Step(now)
		if n.scrubber.Stats().RoundBytes == 0 {
			break // no log is open
		}
	}
	return n.scrubber.Stats().Damaged > 0
}

// mend repairs damaged segments from other replicas, as a node does that has
// found some.
func (n *node) mend() {
	for _, s := range n.w.living() {
		_, log, p := n.replica(s)
		if p == nil || log.Err() != nil {
			continue
		}
		for _, name := range log.Damaged() {
			repair, err := log.Repair(name)
			if err != nil {
				continue
			}
			if err := repair.Fetch(context.Background(), source{n, s}); err != nil || n.dead {
				repair.Abandon()
				continue
			}
			if err := log.InstallRepair(repair); err == nil {
				n.w.log("mend", "%s s%d %s", n.id, s.index, name)
				n.w.reach(markRotRepaired)
			}
		}
	}
}

// source is where a node finds good chunks: the first other replica that gives
// them.
type source struct {
	n *node
	s *stream
}

func (x source) ReadRange(_ context.Context, _ chunk.Incarnation, from, last chunk.LSN, most int) ([]byte, chunk.LSN, error) {
	err := segstore.ErrMissing
	for _, other := range x.n.w.nodes {
		_, log, p := other.replica(x.s)
		if other == x.n || p == nil {
			continue
		}
		var b []byte
		var next chunk.LSN
		if b, next, err = log.ReadRange(from, last, most); err == nil {
			return b, next, nil
		}
	}
	return nil, 0, err
}
