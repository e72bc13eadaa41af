package replication

import (
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// The turn.
//
// Everything that changes a replica happens in its turns: one pass over what
// has come since the last one. The order of a pass is what makes batches form
// by themselves:
//
//	turn:
//	    what was synced  → protocol → commit → Sinks, watchers
//	    links            → protocol: a follower appends, a leader hears acks
//	    batches          → copied into the chunk that is being built; a full
//	                       one is appended at once
//	    other events     → protocol, queries, settings
//	    stored offsets   → pacer
//	    write            → append the chunk being built if no sync is in flight,
//	                       or if it is big enough to be worth a write meanwhile;
//	                       a delta if the pacer says so
//	    sync             → ask the Syncer, once
//	    readings         → chunks that followers lack, read and sent
//	    rest             → the next alarm
//
// While a sync is in flight (0.5 to 5 ms), publishers go on; what they send
// collects in the assembler and becomes the next chunk the moment the disk is
// free. So an idle stream confirms a message after one sync, and a busy one
// pays one sync for thousands of messages: no timer, no batch size to tune.
//
// Two invariants carry it:
//
//   - There is at most one sync in flight for a log, and protocol knows it; what
//     is appended meanwhile is covered by the next. A confirm follows from a
//     durable tail that the Syncer reported, never from an append.
//   - Only the turn steps the protocol, and performing an output never steps it
//     again: what an output leads to is noted and done by the same turn. So the
//     protocol sees one input at a time, as in the simulator.
//
// The obvious way, a goroutine for each stream that waits for batches on a
// channel and syncs itself, fails on the number of streams (10,000 stacks, and
// as many syncs), on allocation (a message a batch), and on order: the sync's
// end, the alarm and the fence would each need the same lock. Here the inbox is
// the only lock that publishers meet, held for one append.

// turns is what a replica's turns own.
type turns struct {
	run   *run // nil between runs
	now   time.Time
	stamp chunk.Timestamp // of chunks written in this turn
	// even is the time by which stored offsets are paced, in milliseconds of a
	// steady clock. It goes on where stamp stands still, since the machine's clock
	// was set back.
	even chunk.Timestamp
	// failed: a write or sync failed, and the run must end with this turn.
	// stopped: the protocol has ended it.
	failed  error
	stopped protocol.Reason
	// unproven is up to where the log was durable when damage set the replica
	// aside; dropWant: there may be damaged segments above the known commit, to
	// be dropped when a leader fills the log again (A7).
	unproven chunk.Tail
	dropWant bool

	batches []*Batch
	events  []event
	stored  []storedOffset
	outputs []protocol.Output
	// answers are the disk's to outputs that were performed at once.
	answers []protocol.Input

	arrivals []arrival
	// parked are chunks that wait for room on the disk.
	parked  []arrival
	arrived *Frame // whose message the protocol is stepped with
	frame   Frame  // that is being sent
	encoded []byte
	reads   []reading // OutRead has come
	// current is the chunk that OutSend of MsgChunk means.
	current *segstore.Chunk

	assembler assembler
	// held are batches that the protocol does not want appended yet.
	held queue[*Batch]
	// waiting are batches whose chunks are in the log and not committed.
	waiting queue[waiting]
	// growing is the chunk whose buffers the assembler fills; writing the one
	// that the protocol has been told of and that OutWrite shall append.
	growing, writing *segstore.Chunk
	dataGuess        int // bytes of data that user chunks have had of late

	epoch     chunk.Epoch // led; 0 if not leading
	lead      bool        // OutLead has come: begin the reign
	syncWant  bool        // OutSync has come: ask for it at the end of the turn
	syncID    uint64
	flushWant bool // OutFlush has come

	pending   *tracking.Pending
	pacer     *tracking.Pacer
	urgent    bool            // stored offsets must not wait for a user chunk
	lastUser  chunk.Timestamp // even, at the last user chunk in this reign
	sequences []tracking.SequenceUpdate
	updates   []tracking.Update
	trailer   []byte

	// requests and queries are answers that the protocol owes, by the IDs that
	// they were asked under.
	requests map[uint64]request
	queries  map[uint64]query
	lastID   uint64

	startWant  chunk.LSN // OutLogStart has come
	rolled     chunk.LSN // the last roll's snapshot, until it is committed
	retainWant bool      // retention may allow something
	ageWant    bool      // the log may be due to roll by age, or for its damage
	asked      []retentionAsk
	unused     []*reference // that may have lost their last session
	// evictedTold and evictedAt are of the last time that evictions were told.
	evictedTold uint64
	evictedAt   time.Time
	owed        []owedChange // of operators, in the order of their places

	closing, removing []func(error)
	active            time.Time     // when something was last committed
	marked            chunk.LSN     // the durable mark that the journal has
	startedAt         time.Time     // of the run
	retryAt           time.Time     // without a run: when to try to start one
	retryIn           time.Duration // the last such wait
	condemned         *segstore.Log // without a run: must be closed before the next one
}

// Turn handles what has come since the last one, and reports whether more has
// come meanwhile. The node's Scheduler calls it, once at a time.
func (r *Replica) Turn() (again bool) {
	t := &r.turns
	t.batches, t.events, t.arrivals = r.inbox.collect(t.batches, t.events, t.arrivals)
	r.counters.turns.Add(1)
	t.now = r.node.clock.Now()
	t.stamp = r.node.stamp(t.stamp, t.now)
	t.even = chunk.Timestamp(r.node.steady(t.now).Milliseconds())

	r.lookAround()
	r.hearSynced()
	r.hearLinks()
	r.takeBatches()
	r.hearEvents()
	if len(t.closing) > 0 {
		r.takeBatches() // what a full disk has held back is refused now
	}
	r.hearTime()
	r.takeStores()
	r.write()
	r.sync()
	r.serveReads()
	r.settle()
	r.rest()
	return r.inbox.leave()
}

// step gives the protocol one input and performs what it puts out.
func (r *Replica) step(in protocol.Input) {
	t := &r.turns
	if t.run == nil {
		return
	}
	t.outputs = t.run.protocol.Step(r.node.tick(t.now), in, t.outputs[:0])
	r.standing.note(t.run.protocol)
	for i := range t.outputs {
		r.perform(&t.outputs[i])
	}
	clear(t.outputs)
	for len(t.answers) > 0 {
		in := t.answers[0]
		t.answers = t.answers[1:]
		r.step(in)
	}
}

// hearTime lets the protocol repeat what was not answered.
func (r *Replica) hearTime() {
	t := &r.turns
	if t.run == nil {
		return
	}
	if now := r.node.tick(t.now); r.due(now) {
		r.step(protocol.Input{Kind: protocol.InTick})
	}
}

func (r *Replica) due(now protocol.Tick) bool {
	at, ok := r.turns.run.protocol.Deadline()
	return ok && at <= now
}

// hearSynced takes the ends of syncs first: confirms go out before anything
// new is begun.
func (r *Replica) hearSynced() {
	t := &r.turns
	for i := range t.events {
		e := &t.events[i]
		if e.kind != eventSynced || e.run != t.run {
			continue
		}
		t.run.syncing = false
		if e.err != nil {
			r.fail(e.err)
			continue
		}
		r.counters.syncs.Add(1)
		r.step(protocol.Input{Kind: protocol.InDurable, ID: e.id, LSN: e.tail.LSN})
	}
}

// takeBatches moves entries from batches into chunks.
func (r *Replica) takeBatches() {
	t := &r.turns
	for _, b := range t.batches {
		t.held.push(b)
	}
	clear(t.batches)
	t.batches = t.batches[:0] // a turn that closes takes a second time
	for t.held.len() > 0 {
		switch r.accept() {
		case protocol.Hold:
			return
		case protocol.Refuse:
			b := t.held.pop()
			r.counters.refused.Add(uint64(len(b.IDs)))
			b.Publisher.refused()
			r.giveBack(b, ErrBacklog)
		default:
			r.take(t.held.pop())
		}
	}
}

// accept tells what to do with the next batch.
func (r *Replica) accept() protocol.Accept {
	t := &r.turns
	if t.epoch == 0 || t.failed != nil {
		return protocol.Take // take refuses it
	}
	leader, leads := t.run.protocol.Leading()
	if !leads {
		return protocol.Take
	}
	if (r.node.disk.full() || r.starved.Load()) && len(t.closing)+len(t.removing) == 0 {
		return protocol.Hold // take refuses it where nothing will end the wait
	}
	return leader.Accept()
}

// take moves one batch's entries into chunks, duplicates apart (F2).
func (r *Replica) take(b *Batch) {
	t := &r.turns
	if err := r.refusal(b.Publisher); err != nil {
		r.giveBack(b, err)
		return
	}
	ref := b.Publisher.reference
	if ref != nil {
		ref.load(t.run.log.Tracking())
	}
	placed := false
	for i := 0; i < len(b.IDs); {
		if ref != nil && ref.isDuplicate(b.IDs[i]) {
			i++
			r.counters.duplicates.Add(1)
			continue
		}
		j := t.assembler.run(b, i)
		if j == i {
			if !r.finishChunk() {
				r.giveBack(b, r.refusal(b.Publisher))
				return
			}
			continue
		}
		r.makeRoom(int(b.Ends[j-1] - b.start(i)))
		t.assembler.append(b, i, j)
		placed = true
		i = j
	}
	switch {
	case placed || ref != nil && ref.building:
		t.assembler.batches = append(t.assembler.batches, b)
	case ref != nil && !t.run.protocol.Confirmable(ref.lsn):
		r.queued.Add(-int64(len(b.Data)))
		t.waiting.push(waiting{b, ref.lsn})
	default:
		r.giveBack(b, nil)
	}
}

// refusal tells why nothing of a publisher's may be stored; nil if it may.
func (r *Replica) refusal(p *Publisher) error {
	t := &r.turns
	switch {
	case t.failed != nil:
		return ErrUnavailable
	case t.epoch == 0 || p.epoch != t.epoch:
		return ErrNotLeader
	case p.isFenced():
		return ErrFenced
	case p.holed.Load():
		return ErrBacklog
	case len(t.closing) > 0 || len(t.removing) > 0:
		return ErrClosed
	}
	return nil
}

// giveBack returns a batch that is not in the log to its sink.
func (r *Replica) giveBack(b *Batch, err error) {
	r.queued.Add(-int64(len(b.Data)))
	r.give(b, err)
}

// give returns a batch to its sink.
func (r *Replica) give(b *Batch, err error) {
	if err != nil {
		b.Sink.Failed(b, err)
		return
	}
	r.counters.confirmed.Add(uint64(len(b.IDs)))
	b.Sink.Confirmed(b)
}
