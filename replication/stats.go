package replication

import (
	"errors"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// Role says what a replica does now.
type Role uint8

// The roles.
const (
	// RoleFollowing: it leads nothing.
	RoleFollowing Role = iota
	// RoleElected: it leads, but its barrier is not committed yet.
	RoleElected
	RoleLeading
	// RoleStopped: it takes nothing; Stats.Err tells why.
	RoleStopped
)

func (r Role) String() string {
	return [...]string{"following", "elected", "leading", "stopped"}[r]
}

// Stats describes a replica in figures. Counts are since the node's start.
type Stats struct {
	Role  Role
	Epoch chunk.Epoch // led; 0 if not leading
	Err   error       // why the last run ended, or what went wrong since
	Runs  uint64

	Commit    chunk.LSN
	Next      chunk.Offset // behind the last committed record
	Published uint64       // entries that were stored
	Bytes     uint64       // of their data
	Confirmed uint64       // entries, duplicates among them
	Duplicate uint64       // entries that were stored already
	Refused   uint64       // entries refused for want of a majority or of memory
	Chunks    uint64       // user chunks
	Controls  uint64       // deltas, snapshots and barriers
	Rolls     uint64
	Syncs     uint64
	Turns     uint64
	Stores    uint64 // offsets stored by clients
	Retained  uint64 // times that the log start was moved

	// Followers are what a leader knows of the others; nobody else does.
	Followers []Follower
	// Starved: too many of their disks are low, so that publishers are stopped.
	Starved bool
	// QueuedBytes were published and are not in the log.
	QueuedBytes int64
	Publishers  int // sessions with a reference
	// PendingOffsets are stored and not in the log; they reach it within
	// WindowMilliseconds.
	PendingOffsets     int
	WindowMilliseconds int64
	Tracking           tracking.Stats
	Log                segstore.Stats
}

// Follower is a leader's view of another replica.
type Follower struct {
	Node protocol.NodeID
	// Linked: chunks flow. Behind is how many chunks of the log are not known to
	// be durable there; of one that is not linked, all.
	Linked bool
	Behind uint64
}

// counters are what turns and sessions count.
type counters struct {
	published, bytes, confirmed, duplicates, refused                 atomic.Uint64
	chunks, controls, rolls, syncs, turns, runs, malformed, retained atomic.Uint64

	mu       sync.Mutex // guards the fields below
	role     Role
	epoch    chunk.Epoch
	err      error
	pending  int
	outlook  tracking.Outlook // of the pacer; zero while there is none
	tracking tracking.Stats
	// followers have the leader's tail less the LSN that is durable there.
	followers []Follower
}

// follow notes how far the others are.
func (c *counters) follow(p *protocol.Replica) {
	leader, leads := p.Leading()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.followers = c.followers[:0]
	if !leads {
		return
	}
	tail := p.Tail().LSN
	peers := leader.Peers()
	for i := range peers {
		f := &peers[i]
		c.followers = append(c.followers, Follower{f.Node(), f.Streaming(), uint64(tail - min(f.Acked(), tail))})
	}
}

func (c *counters) appended(h *chunk.Header) {
	if h.Type != chunk.User {
		c.controls.Add(1)
		return
	}
	c.chunks.Add(1)
	c.published.Add(uint64(h.Entries))
	c.bytes.Add(uint64(h.DataLength))
}

func (c *counters) setRole(role Role, epoch chunk.Epoch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.role, c.epoch = role, epoch
}

// begin notes the start of a run, and the damage that it begins with.
func (c *counters) begin(found segstore.Recovery) {
	c.runs.Add(1)
	c.setRole(RoleFollowing, 0)
	var damage []error
	for _, d := range found.Damage {
		damage = append(damage, d)
	}
	if err := errors.Join(damage...); err != nil {
		c.fail(err)
	}
}

// fail notes an error for operators.
func (c *counters) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// look notes how full tracking is, with all that was taken from the stores.
func (c *counters) look(state *tracking.State, pending *tracking.Pending, pacer *tracking.Pacer, from *stores) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tracking, c.pending = state.Stats(), pending.Len()
	from.counted()
	c.outlook = tracking.Outlook{}
	if pacer != nil {
		c.outlook = pacer.Outlook()
	}
}

// stop notes that no run is on.
func (c *counters) stop(err error) {
	c.fail(err)
	c.setRole(RoleStopped, 0)
}

// Stats returns the figures of now.
func (r *Replica) Stats() Stats {
	c := &r.counters
	st := Stats{
		Runs: c.runs.Load(), Published: c.published.Load(), Bytes: c.bytes.Load(), Confirmed: c.confirmed.Load(),
		Duplicate: c.duplicates.Load(), Refused: c.refused.Load(), Chunks: c.chunks.Load(), Controls: c.controls.Load(),
		Rolls: c.rolls.Load(), Syncs: c.syncs.Load(), Turns: c.turns.Load(), QueuedBytes: r.queued.Load(), Publishers: r.publishers.count(),
		Stores: r.stores.stored(), Retained: c.retained.Load(),
	}
	st.Commit, st.Next = r.progress.get()
	st.Starved = r.starved.Load()
	c.mu.Lock()
	st.Role, st.Epoch, st.Err = c.role, c.epoch, c.err
	st.PendingOffsets, st.Tracking = c.pending+r.stores.waiting(), c.tracking
	st.Followers = slices.Clone(c.followers)
	// An idle stream has no turns, and its window falls all the same.
	st.WindowMilliseconds = c.outlook.Window(chunk.Timestamp(r.node.steady(r.node.clock.Now()).Milliseconds()))
	c.mu.Unlock()
	if log := r.log.Load(); log != nil {
		st.Log = log.Stats()
	}
	return st
}

// Segments describes the segments of the present run's log. Error:
// ErrUnavailable.
func (r *Replica) Segments() ([]segstore.SegmentFigures, error) {
	log := r.log.Load()
	if log == nil {
		return nil, ErrUnavailable
	}
	return log.SegmentFigures(), nil
}

// TimestampAt returns when the record with an offset was written, up to which
// offset others were with it, and whether it is in the log. Errors:
// ErrUnavailable, those of segstore.Log.TimestampAt.
func (r *Replica) TimestampAt(o chunk.Offset) (at chunk.Timestamp, until chunk.Offset, ok bool, err error) {
	log := r.log.Load()
	if log == nil {
		return 0, 0, false, ErrUnavailable
	}
	return log.TimestampAt(o)
}
