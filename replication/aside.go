package replication

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
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
		t.ageWant = true // a leader seals an unsealed segment, so that it can be fetched again
		return
	}
	r.distrust()
	r.fail(fmt.Errorf("%s is set aside, with damage above its known commit %d: %w", r.stream.Name, commit, d))
}

// distrust sets the replica aside: what its log holds above the known commit is
// unproven, up to where it was durable.
func (r *Replica) distrust() {
	t := &r.turns
	t.unproven = later(t.unproven, t.run.protocol.Durable())
	t.dropWant = true
	r.step(protocol.Input{Kind: protocol.InDamaged, Tail: t.unproven})
}

func later(a, b chunk.Tail) chunk.Tail {
	if a.Compare(b) < 0 {
		return b
	}
	return a
}

// opened tells whether a leader has opened a session with this replica. One that
// is damaged lets nobody before it is entered anew.
func (r *Replica) opened() bool {
	t := &r.turns
	if t.failed != nil || t.run == nil {
		return false
	}
	follower, ok := t.run.protocol.Following()
	return ok && follower.Opened()
}

// dropDamage gives up the damaged end of the log, which a start has found, once a
// leader is there to fill it again: it was elected in spite of the durable mark
// and therefore has it all (A7). Before that nothing is cut, and the only replica
// of a stream keeps its damage, which every start finds and names.
func (r *Replica) dropDamage() {
	t := &r.turns
	if !errors.Is(t.run.log.Err(), segstore.ErrDamaged) {
		return
	}
	found, err := t.run.log.DropDamaged()
	if err == nil && found.Tail != t.run.protocol.Tail() {
		// The segment before is damaged too, which was not read until the log
		// ended in it: the protocol must not go on with a tail that is not there.
		err = fmt.Errorf("%s has lost more than the end of its log: %w", r.stream.Name, segstore.ErrDamaged)
	}
	if err != nil {
		r.fail(err)
	}
}

// dropUnproven does the same for what is damaged above the known commit although
// the log's end is good. A run that has cut ends: its protocol knows of chunks
// that are gone.
func (r *Replica) dropUnproven() {
	t := &r.turns
	if !t.dropWant || t.failed != nil || t.run.log.Err() != nil {
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
