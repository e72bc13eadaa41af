package replication

import (
	"sync"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// inbox is where events wait for a replica's turn.
type inbox struct {
	mu sync.Mutex // guards the fields below
	// scheduled: the replica is in the run queue or in a turn.
	scheduled bool
	// closed: no turn comes any more; batches are refused.
	closed bool
	// woken: a turn is asked for without an event, as time has passed.
	woken   bool
	batches []*Batch
	events  []event
	// arrivals came over links.
	arrivals []arrival
}

// event is anything but a batch that a turn must hear of.
type event struct {
	kind      eventKind
	run       *run            // whose event it is; nil: whichever run is on
	reference *reference      // eventForget
	name      string          // eventSequence, eventOffset
	id        uint64          // eventPersisted: of the request
	tail      chunk.Tail      // eventSynced: what is durable
	input     *protocol.Input // eventStep
	err       error           // eventSynced, eventPersisted
	settings  *Settings       // eventSettings
	call      func()          // eventCompact
	operate   func(error)     // eventOperate: nil in a turn, else why none comes
	sequence  func(uint64, bool, error)
	offset    func(chunk.Offset, bool, error)
	report    func(*protocol.Report, error)
	done      func(error)
}

type eventKind uint8

const (
	// eventWake: look what there is to do; time has passed.
	eventWake eventKind = iota
	// eventSynced: a sync of the log ended.
	eventSynced
	// eventPersisted: the journal has answered.
	eventPersisted
	// eventStep: an input for the protocol; report or done hears what it came to.
	eventStep
	// eventForget: a reference may have lost its last session.
	eventForget
	// eventSequence and eventOffset: a client's queries.
	eventSequence
	eventOffset
	// eventOperate: an operator looks at tracking or changes it.
	eventOperate
	// eventSettings: the stream's settings have changed.
	eventSettings
	// eventRetain: give up what retention allows.
	eventRetain
	// eventCompact: plan or install a piece of compaction.
	eventCompact
	// eventHurt: damage was met in a segment.
	eventHurt
	// eventClose: flush and close; eventRemove: delete.
	eventClose
	eventRemove
)

// post puts an event into the inbox and has a turn come. It returns false, and
// the event is lost, once the replica is closed.
func (r *Replica) post(e event) bool {
	in := &r.inbox
	in.mu.Lock()
	if in.closed {
		in.mu.Unlock()
		return false
	}
	if e.kind == eventWake {
		in.woken = true
	} else {
		in.events = append(in.events, e)
	}
	r.schedule()
	return true
}

func (r *Replica) wake() { r.post(event{kind: eventWake}) }

// enqueue puts a batch into the inbox; false as post.
func (r *Replica) enqueue(b *Batch) bool {
	in := &r.inbox
	in.mu.Lock()
	if in.closed {
		in.mu.Unlock()
		return false
	}
	in.batches = append(in.batches, b)
	r.schedule()
	return true
}

// schedule has a turn come, unless one will. It is entered with inbox.mu held
// and lets it go.
func (r *Replica) schedule() {
	wake := !r.inbox.scheduled
	r.inbox.scheduled = true
	r.inbox.mu.Unlock()
	if wake {
		r.node.queue.Ready(r)
	}
}

// collect moves what has come into the given slices, whose memory the inbox
// gets in exchange.
func (in *inbox) collect(batches []*Batch, events []event, arrivals []arrival) ([]*Batch, []event, []arrival) {
	clear(batches)
	clear(events)
	clear(arrivals)
	in.mu.Lock()
	defer in.mu.Unlock()
	batches, in.batches = in.batches, batches[:0]
	events, in.events = in.events, events[:0]
	arrivals, in.arrivals = in.arrivals, arrivals[:0]
	in.woken = false
	return batches, events, arrivals
}

// leave ends a turn; it tells whether more has come meanwhile.
func (in *inbox) leave() (more bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.scheduled = !in.closed && (in.woken || len(in.batches)+len(in.events)+len(in.arrivals) > 0)
	return in.scheduled
}

// open has turns come; nothing was scheduled before.
func (in *inbox) open() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.scheduled = false
}

func (in *inbox) isClosed() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.closed
}

// close lets nothing more in, and returns what came too late.
func (in *inbox) close() ([]*Batch, []event, []arrival) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.closed = true
	return in.batches, in.events, in.arrivals
}
