package replication

import (
	"fmt"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// hurt judges damage that was met in a segment while the replica runs (A7).
// Wholly at or below the known commit it is the segment's alone, and a peer mends
// it. Above, nobody else need have those chunks, and what the log claims to hold
// is unproven: the replica is set aside and the run ends, a reign with it. A
// leader that led on could neither serve its followers nor commit again.
func (r *Replica) hurt(of *run) {
	t := &r.turns
	if of != t.run || t.failed != nil || t.stopped != 0 || t.dropWant {
		return
	}
	commit, _ := t.run.protocol.Commit()
	d := t.run.log.DamagedAbove(commit)
	if d == nil {
		return
	}
	t.unproven = later(t.unproven, t.run.protocol.Durable())
	t.dropWant = true
	r.step(protocol.Input{Kind: protocol.InDamaged, Tail: t.unproven})
	r.fail(fmt.Errorf("%s is set aside, with damage above its known commit %d: %w", r.stream.Name, commit, d))
}

func later(a, b chunk.Tail) chunk.Tail {
	if a.Compare(b) < 0 {
		return b
	}
	return a
}

// dropUnproven gives up the damaged segments above the known commit and what is
// behind them, once there is a leader that was elected in spite of the durable
// mark and therefore has it all. Before that nothing is cut. A run that
// has cut ends: its protocol knows of chunks that are gone.
func (r *Replica) dropUnproven() {
	t := &r.turns
	if !t.dropWant || t.failed != nil || t.run == nil || t.run.log.Err() != nil {
		return
	}
	follower, ok := t.run.protocol.Following()
	if !ok || !follower.Opened() {
		return
	}
	commit, _ := t.run.protocol.Commit()
	d, err := t.run.log.CheckAbove(commit)
	switch {
	case err != nil:
		r.fail(err)
	case d == nil:
		t.dropWant = false
	default:
		if _, err := t.run.log.DropFrom(d); err != nil {
			r.fail(err)
			return
		}
		r.fail(fmt.Errorf("%s gives up what was damaged, for its leader to fill it again: %w", r.stream.Name, d))
	}
}
