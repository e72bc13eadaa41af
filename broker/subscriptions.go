package broker

import (
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// subscription is one consumer of a connection: a reader of the log and the
// chunks that the client still wants.
//
//	         Credit, new data
//	idle ─────────────────────→ queued ─→ running (the writer delivers)
//	  ↑                            ↑          │
//	  └──── no credit or no data ──┴── both ──┘
type subscription struct {
	session    *session
	id         uint8
	tie        *tie
	replica    Replica // on this node
	properties map[string]string
	matcher    chunk.Matcher
	filtered   bool
	// member is its part in a group; nil: it is not in one.
	member *membership

	// Guarded by session.out.mu.
	phase  phase
	credit int
	closed bool
	// attached: it is delivered to. A member of a group is while it is active.
	attached bool
	// farewell goes out behind the turn that is running, which is the last one
	// with this reader.
	farewell wire.Command

	// The writer's own while the phase is running; else guarded by session.out.mu.
	// Nil while a member of a group is not active.
	reader  *segstore.Reader
	jumps   uint64    // of the reader that were noted
	notedAt time.Time // when a jump was last logged

	// For operators.
	creditsLeft atomic.Int64
	consumed    atomic.Uint64 // records
	last        atomic.Int64  // last offset sent, -1: none
}

type phase uint8

const (
	idle phase = iota
	queued
	running
)

// The properties of a subscription that mean something.
const (
	propertyName        = "name"
	propertySAC         = "single-active-consumer"
	propertySuperStream = "super-stream"
	propertyFilter      = "filter."
	propertyUnmatched   = "match-unfiltered"
)

const (
	// propertiesMax bounds a subscription's properties, filter values among them.
	propertiesMax = 1024
	// shownBytesMax bounds what is kept of them for operators.
	shownBytesMax = 4 << 10
)

func (s *session) subscribe(q *wire.Subscribe) error {
	sub, err := s.addSubscription(q)
	if err == nil && sub.member != nil {
		err = s.join(sub)
	}
	switch {
	case errors.Is(err, errGroupUnknown), errors.Is(err, errLeaving), errors.Is(err, errEnded):
		return err
	case err != nil:
		s.refuse(q, err)
		return nil
	}
	s.respond(q.Key(), q.Correlation, wire.CodeOK)
	// Only now, so that the answer leaves before the first Deliver.
	s.out.start(sub, min(int(q.Credit), s.limits.Credit))
	s.still(s.may(catalog.Read, q.Stream))
	if sub.member != nil {
		s.welcome(sub)
	}
	return nil
}

// addSubscription checks in the order in which clients are used to the codes.
func (s *session) addSubscription(q *wire.Subscribe) (*subscription, error) {
	s.mu.Lock()
	count := len(s.subscriptions)
	_, used := s.subscriptions[q.SubscriptionID]
	s.mu.Unlock()
	name, _ := q.Properties.Get(propertyName)
	mayRead := s.may(catalog.Read, q.Stream)
	switch {
	case count >= s.limits.Subscriptions:
		return nil, fmt.Errorf("%w: stream.subscriptions_per_connection is %d", errTooMany, s.limits.Subscriptions)
	case len(name) > referenceMax && mayRead:
		return nil, errReferenceTooLong
	case q.Properties.Len() > propertiesMax && mayRead:
		return nil, fmt.Errorf("%w: %d properties of a subscription, at most %d", errTooMany, q.Properties.Len(), propertiesMax)
	case !mayRead:
		return nil, errAccess
	}
	var replica Replica
	if err := s.awaitLeader(func() (err error) {
		replica, err = s.broker.local(s.vhost, q.Stream)
		return err
	}); err != nil {
		return nil, err
	}
	t, err := s.tieTo(q.Stream)
	if err != nil {
		return nil, err
	}
	var member *membership
	if err = errSubscriptionInUse; !used {
		member, err = s.membershipOf(q)
	}
	if err != nil {
		s.abandon(t)
		return nil, err
	}
	return s.openSubscription(q, t, replica, member)
}

func (s *session) openSubscription(q *wire.Subscribe, t *tie, replica Replica, member *membership) (*subscription, error) {
	sub := &subscription{session: s, id: q.SubscriptionID, tie: t, replica: replica, properties: shown(q.Properties), member: member}
	if member == nil { // a member reads once it is active
		var err error
		if sub.reader, err = replica.Attach(placeOf(q.Offset)); err != nil {
			s.abandon(t)
			return nil, err
		}
	}
	sub.matcher, sub.filtered = matcherOf(q.Properties)
	sub.last.Store(-1)
	if !s.attach(t, func() {
		s.subscriptions[sub.id] = sub
		t.subscriptions++
		if t.unwatch == nil {
			t.unwatch = replica.Watch(t.advanced)
		}
	}) {
		if sub.reader != nil {
			sub.reader.Close()
		}
		return nil, errStreamMissing
	}
	s.broker.stats.consumers.Add(1)
	return sub, nil
}

// shown is what operators see of a subscription's properties: not the filter
// values, and no more than a bound.
func shown(properties wire.Properties) map[string]string {
	kept, size := map[string]string{}, 0
	for key, value := range properties.All() {
		size += len(key) + len(value)
		if size > shownBytesMax {
			break
		}
		if !strings.HasPrefix(key, propertyFilter) {
			kept[strings.Clone(key)] = strings.Clone(value)
		}
	}
	return kept
}

// placeOf says where in the log a client's offset specification is.
func placeOf(spec wire.OffsetSpec) segstore.Spec {
	switch spec.Type {
	case wire.OffsetFirst:
		return segstore.Spec{Kind: segstore.First}
	case wire.OffsetLast:
		return segstore.Spec{Kind: segstore.Last}
	case wire.OffsetAt:
		return segstore.Spec{Kind: segstore.AtOffset, Offset: chunk.Offset(spec.Offset)}
	case wire.OffsetTimestamp:
		return segstore.Spec{Kind: segstore.AtTimestamp, Timestamp: chunk.Timestamp(spec.Timestamp)}
	}
	return segstore.Spec{Kind: segstore.Next}
}

// matcherOf reads a subscription's filter; without a value there is none.
func matcherOf(properties wire.Properties) (matcher chunk.Matcher, filtered bool) {
	var values [][]byte
	unfiltered := false
	for key, value := range properties.All() {
		switch {
		case strings.HasPrefix(key, propertyFilter):
			values = append(values, []byte(value))
		case key == propertyUnmatched:
			unfiltered = value == "true"
		}
	}
	if len(values) == 0 {
		return chunk.Matcher{}, false
	}
	return chunk.NewMatcher(values, unfiltered), true
}

// credit allows more chunks. It is answered only where it can't count.
func (s *session) credit(q *wire.Credit) error {
	s.mu.Lock()
	sub := s.subscriptions[q.SubscriptionID]
	s.mu.Unlock()
	if sub == nil {
		s.broker.stats.count(wire.CodeSubscriptionIDDoesNotExist)
		s.answer(&wire.CreditResponse{Code: wire.CodeSubscriptionIDDoesNotExist, SubscriptionID: q.SubscriptionID})
		return nil
	}
	if s.out.allow(sub, int(q.Credit), s.limits.Credit) || sub.member == nil {
		return nil
	}
	// It counts all the same, once the member is active.
	s.broker.stats.count(wire.CodePreconditionFailed)
	s.answer(&wire.CreditResponse{Code: wire.CodePreconditionFailed, SubscriptionID: q.SubscriptionID})
	return nil
}

func (s *session) unsubscribe(q *wire.Unsubscribe) error {
	s.mu.Lock()
	sub := s.subscriptions[q.SubscriptionID]
	if sub != nil {
		delete(s.subscriptions, q.SubscriptionID)
		sub.tie.subscriptions--
	}
	s.mu.Unlock()
	if sub == nil {
		s.respond(q.Key(), q.Correlation, wire.CodeSubscriptionIDDoesNotExist)
		return nil
	}
	sub.close()
	s.loosen(sub.tie)
	s.respond(q.Key(), q.Correlation, wire.CodeOK)
	return nil
}

// close ends deliveries, and the part in a group; the subscription's id is free
// already.
func (sub *subscription) close() {
	sub.closeAlone()
	sub.session.broker.leaveGroups(sub)
}

// closeAlone is close without the group. What the writer holds of the
// subscription the writer closes.
func (sub *subscription) closeAlone() {
	if reader := sub.session.out.leave(sub); reader != nil {
		reader.Close()
	}
	if sub.member != nil {
		sub.session.ignore(sub)
	}
	sub.session.broker.stats.consumers.Add(-1)
}

// advanced hears that the stream has new committed records. It is called from a
// replica's turn.
func (t *tie) advanced() {
	o := &t.session.out
	woken := false
	o.mu.Lock()
	t.advances++
	for _, sub := range t.readers {
		woken = o.enqueueLocked(sub) || woken
	}
	o.mu.Unlock()
	if woken {
		signal(o.wake)
	}
}

// start gives a subscription its credit and lets it be delivered to, if it has a
// reader.
func (o *outbox) start(sub *subscription, credit int) {
	o.mu.Lock()
	if !sub.closed {
		sub.credit = credit
		sub.creditsLeft.Store(int64(credit))
		if sub.reader != nil {
			o.startLocked(sub)
		}
	}
	o.mu.Unlock()
	signal(o.wake)
}

func (o *outbox) startLocked(sub *subscription) {
	sub.attached = true
	sub.tie.readers = append(sub.tie.readers, sub)
	o.enqueueLocked(sub)
}

// allow adds credit, up to the most that a subscription may have, and says
// whether it is delivered to.
func (o *outbox) allow(sub *subscription, credit, most int) (attached bool) {
	o.mu.Lock()
	sub.credit = min(sub.credit+credit, most)
	sub.creditsLeft.Store(int64(sub.credit))
	woken := o.enqueueLocked(sub)
	attached = sub.attached
	o.mu.Unlock()
	if woken {
		signal(o.wake)
	}
	return attached
}

// leave takes a subscription out for good. It returns its reader if that is now
// the caller's to close; else the writer is using it and will.
func (o *outbox) leave(sub *subscription) *segstore.Reader {
	o.mu.Lock()
	defer o.mu.Unlock()
	sub.closed = true
	if !o.leaveLocked(sub) {
		return nil
	}
	return sub.reader
}

// leaveLocked ends deliveries, but for a turn that is running: then it says false.
func (o *outbox) leaveLocked(sub *subscription) bool {
	sub.attached = false
	sub.tie.readers = without(sub.tie.readers, sub)
	if sub.phase == queued {
		o.ready = without(o.ready, sub)
		sub.phase = idle
	}
	return sub.phase != running
}

func without(list []*subscription, sub *subscription) []*subscription {
	for i, other := range list {
		if other == sub {
			return append(list[:i], list[i+1:]...)
		}
	}
	return list
}

// enqueueLocked puts an idle subscription with credit behind those that wait.
func (o *outbox) enqueueLocked(sub *subscription) bool {
	if sub.phase != idle || sub.credit == 0 || sub.closed || !sub.attached || o.dead {
		return false
	}
	sub.phase = queued
	o.ready = append(o.ready, sub)
	return true
}

// next takes the subscription whose turn it is, with the credit it may use and
// the advances it will have seen.
func (o *outbox) next() (sub *subscription, credit int, seen uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.ready) == 0 || o.dead {
		return nil, 0, 0
	}
	sub = o.ready[0]
	copy(o.ready, o.ready[1:])
	o.ready = o.ready[:len(o.ready)-1]
	sub.phase = running
	return sub, sub.credit, sub.tie.advances
}

// served ends a subscription's turn, in which it used some credit. It waits
// again where it came to the end of what was committed when its turn began. over:
// that was its last turn with this reader.
func (o *outbox) served(sub *subscription, used int, seen uint64, atEnd bool) (over bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	sub.credit -= used
	sub.creditsLeft.Store(int64(sub.credit))
	sub.phase = idle
	if !atEnd || sub.tie.advances != seen {
		o.enqueueLocked(sub)
	}
	if sub.farewell == nil || sub.closed {
		return sub.closed
	}
	if !o.dead {
		o.answers = wire.Append(o.answers, sub.farewell)
		signal(o.wake)
	}
	sub.farewell, sub.reader = nil, nil
	return true
}
