package replication

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// Duplicates says what happens when a reference is declared that another
// session has (F4).
type Duplicates uint8

const (
	// Takeover fences the older session: its late batches fail with ErrFenced.
	Takeover Duplicates = iota
	// Refuse fails the newcomer with ErrReferenceInUse.
	Refuse
	// Share lets both publish under one sequence, as the ancestor does.
	Share
)

// Publisher is one session's right to publish to a stream, with a reference or
// without. It lasts as long as the leader's epoch.
type Publisher struct {
	home      *publishers
	epoch     chunk.Epoch
	reference *reference // nil: no de-duplication
	// place is the declaration's number among those of the reference.
	place uint64
	state atomic.Uint32
	// holed: a batch was refused that may be sent again. What comes behind it must
	// not be stored, or the refused one would then count as a duplicate (F2).
	holed atomic.Bool
}

// The states of a Publisher. A closed one's batches that are queued already are
// still stored, unless the reference is declared again before their turn; a fenced
// one's are not.
const (
	publisherOpen uint32 = iota
	publisherClosed
	publisherFenced
)

// Reference returns the name that the publisher was declared with.
func (p *Publisher) Reference() string {
	if p.reference == nil {
		return ""
	}
	return p.reference.name
}

// refused notes that a batch was refused for a reason that passes.
func (p *Publisher) refused() {
	if p.reference != nil {
		p.holed.Store(true)
	}
}

// isFenced tells whether another declaration of the reference has voided what of
// this publisher's is not stored yet (F4). That goes for a closed one whatever is to
// become of duplicates: who declares next asks for the sequence, and goes on from
// there.
func (p *Publisher) isFenced() bool {
	switch p.state.Load() {
	case publisherFenced:
		return true
	case publisherClosed:
		return p.reference != nil && p.place < p.reference.declared.Load()
	}
	return false
}

// Close ends the session. Batches published before are still stored.
func (p *Publisher) Close() {
	if p.state.CompareAndSwap(publisherOpen, publisherClosed) && p.reference != nil {
		p.home.closed(p)
	}
}

// reference is a publisher's name on the leader: the sessions that have it, and
// how far it has published.
type reference struct {
	name     string
	sessions []*Publisher  // guarded by publishers.mu
	declared atomic.Uint64 // declarations so far; counted under publishers.mu

	// The turn owns the rest.

	// loaded: the fields below hold what tracking knows.
	loaded bool
	// seen tells that the reference has published before; last is its highest
	// publishing id taken, lsn the chunk that carries it.
	seen bool
	last uint64
	lsn  chunk.LSN
	// building: last is in the chunk that is being built; lsn is an older one.
	building bool
}

// load takes over what the log says of the reference.
func (r *reference) load(state *tracking.State) {
	if r.loaded {
		return
	}
	s, ok := state.Sequence([]byte(r.name))
	r.loaded, r.seen, r.last, r.lsn = true, ok, s.Last, s.LSN
}

// isDuplicate tells whether a publishing id is stored already (F2).
func (r *reference) isDuplicate(id uint64) bool { return r.seen && id <= r.last }

// publishers knows the sessions that publish to a replica while it leads.
type publishers struct {
	duplicates Duplicates
	// unused is told, with nothing locked, of a reference that may have lost its
	// last session.
	unused func(*reference)

	mu    sync.Mutex  // guards the fields below and the sessions of references
	epoch chunk.Epoch // of the reign; 0 while the replica does not lead
	named map[string]*reference
}

// begin opens the declarations of a reign.
func (ps *publishers) begin(epoch chunk.Epoch) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	ps.epoch, ps.named = epoch, nil
}

// end makes every publisher of the reign worthless: its epoch is over.
func (ps *publishers) end() { ps.begin(0) }

func (ps *publishers) declare(name string) (*Publisher, error) {
	if len(name) > tracking.ReferenceLengthMax {
		return nil, fmt.Errorf("declare a reference of %d bytes: %w", len(name), ErrReferenceLength)
	}
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if ps.epoch == 0 {
		return nil, ErrNotLeader
	}
	p := &Publisher{home: ps, epoch: ps.epoch}
	if name == "" {
		return p, nil
	}
	ref := ps.named[name]
	if ref == nil {
		ref = &reference{name: name}
		if ps.named == nil {
			ps.named = make(map[string]*reference)
		}
		ps.named[name] = ref
	}
	if len(ref.sessions) > 0 && ps.duplicates == Refuse {
		return nil, fmt.Errorf("declare %q: %w", name, ErrReferenceInUse)
	}
	if ps.duplicates == Takeover {
		for _, older := range ref.sessions {
			older.state.Store(publisherFenced)
		}
		ref.sessions = ref.sessions[:0]
	}
	ref.sessions = append(ref.sessions, p)
	p.reference, p.place = ref, ref.declared.Add(1)
	return p, nil
}

// closed takes a session from its reference.
func (ps *publishers) closed(p *Publisher) {
	ps.mu.Lock()
	if i := slices.Index(p.reference.sessions, p); i >= 0 {
		p.reference.sessions = slices.Delete(p.reference.sessions, i, i+1)
	}
	ps.mu.Unlock()
	ps.unused(p.reference)
}

// forget drops a reference without sessions; the log remembers it. Only the
// turn calls it, when all of the reference's batches are in the log.
func (ps *publishers) forget(ref *reference) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	if len(ref.sessions) == 0 && ps.named[ref.name] == ref {
		delete(ps.named, ref.name)
	}
}

// find returns a reference that has, or lately had, a session.
func (ps *publishers) find(name string) *reference {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.named[name]
}

// sessions returns how many sessions each reference has.
func (ps *publishers) sessions() map[string]int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	list := make(map[string]int, len(ps.named))
	for name, ref := range ps.named {
		list[name] = len(ref.sessions)
	}
	return list
}

// count returns how many sessions with a reference there are.
func (ps *publishers) count() int {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	n := 0
	for _, ref := range ps.named {
		n += len(ref.sessions)
	}
	return n
}
