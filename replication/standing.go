package replication

import (
	"sync/atomic"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Standing is what a replica holds of epochs, for who must judge a frame before
// a turn sees it.
type Standing struct {
	// Promise is the epoch below which the replica takes nothing. It counts from
	// the moment it is given, synced or not.
	Promise chunk.Epoch
	// Leads is the epoch that the replica leads, 0 if it leads none.
	Leads chunk.Epoch
	// Run is the id of the present run.
	Run protocol.RunID
}

// standing is Standing as the last step of the protocol left it. Its parts are
// read one by one: a reader may see the promise of one step and the reign of
// another, and errs by one frame.
type standing struct{ promise, leads, run atomic.Uint64 }

// note is called behind each step, before what the step put out is performed:
// answers to what is sent may come at once.
func (s *standing) note(p *protocol.Replica) {
	put(&s.promise, uint64(p.Promise()))
	leads := uint64(0)
	if leader, ok := p.Leading(); ok {
		leads = uint64(leader.Epoch())
	}
	put(&s.leads, leads)
}

// put stores what is new: most steps change nothing, and sessions read.
func put(to *atomic.Uint64, v uint64) {
	if to.Load() != v {
		to.Store(v)
	}
}

// Standing tells where the replica stands. It costs a few loads.
func (r *Replica) Standing() Standing {
	return Standing{
		Promise: chunk.Epoch(r.standing.promise.Load()), Leads: chunk.Epoch(r.standing.leads.Load()),
		Run: protocol.RunID(r.standing.run.Load()),
	}
}
