package broker

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/wire"
)

// A single active consumer is a subscription that is a member of a group. The
// catalog says who of a group is active; what a connection does about it follows
// from that alone, and is looked at again whenever the group changes (align):
//
//	          role active: ConsumerUpdate(1)        answer: attach a reader
//	waiting ──────────────────────────→ activating ────────────────────→ active
//	   ↑                                    │ role not active:              │
//	   │ answer: say "stopped"              │ ConsumerUpdate(0)             │
//	   └────────────────── stopping ←───────┴───────────────────────────────┘
//
// The reader is closed before the member is told to stop, and the catalog makes
// nobody else active before its answer, or the end of its connection, is there.
// A node that has been out of contact for half the time after which others go on
// without it stands aloof: it delivers to no member, until it has seen what was
// decided meanwhile. So two do not read at once.

// membership is a subscription's part in a group.
type membership struct {
	group     catalog.GroupRef
	id        catalog.MemberID
	partition int
	spec      wire.OffsetSpec // of Subscribe

	// Guarded by session.mu.
	stage memberStage
	// told: Subscribe is answered, so the client may hear more.
	told bool
	// saying: a change is on its way to the metadata. Until it is answered
	// nothing else begins, so that a late one finds what it was meant for.
	saying bool
	// asked is the ConsumerUpdate that waits for an answer until due; a zero due:
	// none does.
	asked uint32
	due   time.Time
}

type memberStage uint8

const (
	waiting memberStage = iota
	activating
	active
	stopping
)

var (
	errGroupUnknown = errors.New("the metadata did not say in time whether the consumer is in its group")
	errNoUpdate     = errors.New("the client did not answer ConsumerUpdate")
)

// membershipOf reads a Subscribe's part in a group; nil is a plain one.
func (s *session) membershipOf(q *wire.Subscribe) (*membership, error) {
	if sac, _ := q.Properties.Get(propertySAC); sac != "true" {
		return nil, nil
	}
	name, named := q.Properties.Get(propertyName)
	if !named {
		return nil, errNameMissing
	}
	if err := catalog.GroupName(name); err != nil {
		return nil, err
	}
	m := &membership{
		group:     catalog.GroupRef{VHost: s.vhost, Stream: q.Stream, Name: name},
		id:        catalog.MemberAt(s.broker.config.NodeName, s.name, q.SubscriptionID),
		partition: catalog.Plain, spec: q.Offset,
	}
	if super, ok := q.Properties.Get(propertySuperStream); ok {
		m.partition = s.broker.directory.View().PartitionIndex(s.vhost, super, q.Stream)
	}
	return m, nil
}

func (m *membership) change(do catalog.GroupAct) catalog.GroupChange {
	return catalog.GroupChange{Do: do, Group: m.group, Partition: m.partition, Member: m.id}
}

// join has a new subscription enter its group. An errGroupUnknown ends the
// connection: this node and the catalog may not differ about who is in.
func (s *session) join(sub *subscription) error {
	m := sub.member
	answer := make(chan error, 1)
	s.broker.groups.add(sub)
	s.broker.directory.ChangeGroups([]catalog.GroupChange{m.change(catalog.Join)}, func(_ int, err error) { answer <- err })
	late := time.NewTimer(s.limits.RequestTimeout)
	defer late.Stop()
	var err error
	select {
	case err = <-answer:
	case <-late.C:
		err = errGroupUnknown
	case <-s.leaving:
		return errLeaving
	case <-s.dying:
		return errEnded
	}
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.subscriptions[sub.id] != sub {
			return errStreamMissing // meanwhile
		}
		return nil
	}
	if _, refused := errors.AsType[*catalog.Refusal](err); !refused {
		return fmt.Errorf("%w: %w", errGroupUnknown, err)
	}
	s.forgo(sub)
	return err
}

// forgo takes back a subscription whose group refused it.
func (s *session) forgo(sub *subscription) {
	s.broker.groups.remove(sub)
	s.mu.Lock()
	mine := s.subscriptions[sub.id] == sub
	if mine {
		delete(s.subscriptions, sub.id)
		sub.tie.subscriptions--
	}
	s.mu.Unlock()
	if mine {
		sub.closeAlone()
		s.loosen(sub.tie)
	}
}

// welcome lets a member hear of its part, behind the answer to its Subscribe.
func (s *session) welcome(sub *subscription) {
	s.mu.Lock()
	sub.member.told = true
	s.mu.Unlock()
	s.align(sub)
}

// role is what the catalog says of a member.
func (b *Broker) role(m *membership) (role catalog.Role, present bool) {
	g, ok := b.directory.View().Group(m.group.VHost, m.group.Stream, m.group.Name)
	if !ok {
		return catalog.Waiting, false
	}
	member, ok := g.Member(m.id)
	switch {
	case !ok:
		return catalog.Waiting, false
	case member.Role == catalog.Active && member.Reach == catalog.PresumedDown:
		return catalog.Waiting, true // others went on
	}
	return member.Role, true
}

// align does what follows for a member from what the catalog says now.
func (s *session) align(sub *subscription) {
	m := sub.member
	var over *segstore.Reader
	var say catalog.GroupAct
	s.mu.Lock()
	_, exists := s.broker.directory.View().Incarnation(sub.tie.stream.Incarnation)
	if s.subscriptions[sub.id] != sub || !m.told || !exists { // what ends with its stream is not told to stop
		s.mu.Unlock()
		return
	}
	role, present := s.broker.role(m)
	switch {
	case (m.stage == active || m.stage == activating) && role != catalog.Active:
		over = s.askMember(sub, false)
	case m.saying || m.stage != waiting || !present:
	case role == catalog.Active:
		s.askMember(sub, true)
	case role == catalog.Stopping:
		say = catalog.Stopped
	}
	if !present && !m.saying { // taken out by somebody else
		say = catalog.Join
	}
	m.saying = m.saying || say != ""
	s.mu.Unlock()
	if over != nil {
		over.Close()
	}
	if say != "" {
		s.say(sub, say)
	}
}

// say tells the metadata, and looks again once that is known.
func (s *session) say(sub *subscription, do catalog.GroupAct) {
	m := sub.member
	s.broker.directory.ChangeGroups([]catalog.GroupChange{m.change(do)}, func(_ int, err error) {
		s.mu.Lock()
		m.saying = false
		s.mu.Unlock()
		if err != nil && do == catalog.Join {
			s.lost(sub, err)
			return
		}
		s.align(sub)
	})
}

// askMember sends a ConsumerUpdate; the answer to an earlier one counts no more.
// It expects mu to be held, and returns a reader that is to be closed.
func (s *session) askMember(sub *subscription, begin bool) (over *segstore.Reader) {
	m := sub.member
	s.ignoreLocked(sub)
	m.asked = s.nextUpdate
	s.nextUpdate++
	s.updates[m.asked] = sub
	m.due = time.Now().Add(s.limits.ConsumerUpdateTimeout)
	update := &wire.ConsumerUpdate{Correlation: m.asked, SubscriptionID: sub.id, Active: begin}
	if begin {
		m.stage = activating
		s.out.answer(update)
		return nil
	}
	m.stage = stopping
	return s.out.retire(sub, update)
}

// consumerUpdated takes the answer to a ConsumerUpdate; one that nothing waits
// for is ignored, and so is a guess that comes before the question goes out: the
// turn that the question follows is still running.
func (s *session) consumerUpdated(q *wire.ConsumerUpdateResponse) error {
	s.mu.Lock()
	sub := s.updates[q.Correlation]
	if sub == nil || s.out.owesFarewell(sub) {
		s.mu.Unlock()
		return nil
	}
	delete(s.updates, q.Correlation)
	m := sub.member
	m.due = time.Time{}
	begin := m.stage == activating
	if !begin {
		m.stage = waiting
	}
	s.mu.Unlock()
	if q.Code != wire.CodeOK {
		s.broker.config.Log.Debug("a client answered ConsumerUpdate with an error, which changes nothing",
			"connection", s.name, "subscription", sub.id, "code", q.Code)
	}
	if begin {
		s.beginMember(sub, q.Offset)
	}
	s.align(sub)
	return nil
}

// beginMember lets a member read from where its client wants to.
func (s *session) beginMember(sub *subscription, from wire.OffsetSpec) {
	m := sub.member
	if from.Type == wire.OffsetNone {
		from = m.spec
	}
	reader, err := sub.replica.Attach(placeOf(from))
	if err != nil {
		s.lost(sub, err)
		return
	}
	s.mu.Lock()
	role, _ := s.broker.role(m)
	begun := s.subscriptions[sub.id] == sub && m.stage == activating && role == catalog.Active
	if begun {
		m.stage = active
		begun = s.out.begin(sub, reader)
	}
	s.mu.Unlock()
	if !begun {
		reader.Close()
	}
}

// overdue says, once, that a member's answer is late.
func (s *session) overdue(sub *subscription, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if due := sub.member.due; due.IsZero() || !now.After(due) {
		return false
	}
	s.ignoreLocked(sub)
	return true
}

// ignore has an answer that is still to come count for nothing.
func (s *session) ignore(sub *subscription) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ignoreLocked(sub)
}

func (s *session) ignoreLocked(sub *subscription) {
	m := sub.member
	if !m.due.IsZero() {
		delete(s.updates, m.asked)
		m.due = time.Time{}
	}
}

// groupIndex finds this node's members of groups.
type groupIndex struct {
	// mu guards the fields below. It is held over the call that hands a change to
	// the metadata, so that changes of one member go out in the order in which
	// they happen here.
	mu      sync.Mutex
	members map[catalog.GroupRef]map[*subscription]struct{}
	// leaving are changes on their way, so that none is told twice.
	leaving map[leaver]bool
	left    broadcast // announces that none is left in leaving
}

type leaver struct {
	group catalog.GroupRef
	id    catalog.MemberID
}

func (x *groupIndex) init() {
	x.members = map[catalog.GroupRef]map[*subscription]struct{}{}
	x.leaving = map[leaver]bool{}
}

func (x *groupIndex) add(sub *subscription) {
	x.mu.Lock()
	defer x.mu.Unlock()
	group := x.members[sub.member.group]
	if group == nil {
		group = map[*subscription]struct{}{}
		x.members[sub.member.group] = group
	}
	group[sub] = struct{}{}
}

func (x *groupIndex) remove(sub *subscription) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.removeLocked(sub)
}

func (x *groupIndex) removeLocked(sub *subscription) {
	group := x.members[sub.member.group]
	delete(group, sub)
	if len(group) == 0 {
		delete(x.members, sub.member.group)
	}
}

// of returns this node's members of a group.
func (x *groupIndex) of(group catalog.GroupRef) []*subscription {
	x.mu.Lock()
	defer x.mu.Unlock()
	list := make([]*subscription, 0, len(x.members[group]))
	for sub := range x.members[group] {
		list = append(list, sub)
	}
	return list
}

func (x *groupIndex) all() (list []*subscription) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, group := range x.members {
		for sub := range group {
			list = append(list, sub)
		}
	}
	return list
}

// leaveGroups has closed subscriptions leave their groups, all at once: none of
// a dead connection is chosen in place of another.
func (b *Broker) leaveGroups(subs ...*subscription) {
	x := &b.groups
	x.mu.Lock()
	defer x.mu.Unlock()
	var changes []catalog.GroupChange
	for _, sub := range subs {
		if sub.member != nil {
			x.removeLocked(sub)
			changes = append(changes, sub.member.change(catalog.Leave))
		}
	}
	b.leaveLocked(changes)
}

func (b *Broker) leaveLocked(changes []catalog.GroupChange) {
	if len(changes) == 0 {
		return
	}
	x := &b.groups
	for i := range changes {
		x.leaving[leaver{changes[i].Group, changes[i].Member}] = true
	}
	b.directory.ChangeGroups(changes, func(i int, _ error) {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.leaving, leaver{changes[i].Group, changes[i].Member})
		if len(x.leaving) == 0 {
			x.left.announce()
		}
	})
}

// groupChanged follows a group's change in the catalog: this node's members are
// told, and those that it has no subscription for any more, as after a start,
// leave.
func (b *Broker) groupChanged(group catalog.GroupRef) {
	if g, ok := b.directory.View().Group(group.VHost, group.Stream, group.Name); ok {
		b.leaveDead(group, g)
	}
	for _, sub := range b.groups.of(group) {
		sub.session.align(sub)
	}
}

func (b *Broker) leaveDead(group catalog.GroupRef, g *catalog.Group) {
	x := &b.groups
	x.mu.Lock()
	defer x.mu.Unlock()
	living := map[catalog.MemberID]bool{}
	for sub := range x.members[group] {
		living[sub.member.id] = true
	}
	var changes []catalog.GroupChange
	for _, m := range g.Members {
		dead := string(m.Node) == b.config.NodeName && !living[m.MemberID]
		if dead && !x.leaving[leaver{group, m.MemberID}] {
			changes = append(changes, catalog.GroupChange{Do: catalog.Leave, Group: group, Member: m.MemberID})
		}
	}
	b.leaveLocked(changes)
}

// groupTick is how often members' deadlines and this node's contact are looked at.
const groupTick = 250 * time.Millisecond

// tendGroups ends connections of members that do not answer, and lets members go
// on once this node is in contact again.
func (b *Broker) tendGroups() {
	tick := time.NewTicker(groupTick)
	defer tick.Stop()
	for {
		select {
		case <-b.context.Done():
			return
		case now := <-tick.C:
			for _, sub := range b.groups.all() {
				if sub.session.overdue(sub, now) {
					sub.session.unanswered(sub)
				}
			}
			if b.standsAloof() && b.catchUp() {
				for _, sub := range b.groups.all() {
					sub.session.align(sub)
				}
				b.lookedNow()
				b.aloof.Store(false)
				for _, sub := range b.groups.all() { // with those that have begun meanwhile
					sub.session.out.resume(sub)
				}
			}
			b.lookedNow()
		}
	}
}

// standsAloof: this node has been out of contact with the metadata for so long
// that its members may have been passed over. That holds, be it in contact again,
// until it has caught up. A process that was stopped has had contact with nobody
// either, though the first thing that it finds may be the leader's word.
func (b *Broker) standsAloof() bool {
	if b.aloof.Load() {
		return true
	}
	most := b.config.GroupPatience / 2
	if b.directory.Contact() <= most && time.Since(b.began)-time.Duration(b.looked.Load()) <= most {
		return false
	}
	b.aloof.Store(true)
	return true
}

// lookedNow notes that tendGroups is at work.
func (b *Broker) lookedNow() { b.looked.Store(int64(time.Since(b.began))) }

// catchUpPatience bounds one attempt to hear what was decided meanwhile.
const catchUpPatience = 2 * time.Second

// catchUp says whether View shows all that was decided while this node was out of
// contact.
func (b *Broker) catchUp() bool {
	ctx, cancel := context.WithTimeout(b.context, catchUpPatience)
	defer cancel()
	return b.directory.Current(ctx) == nil && b.directory.Contact() <= b.config.GroupPatience/2
}

// unanswered ends a connection whose client leaves a group waiting.
func (s *session) unanswered(sub *subscription) {
	m := sub.member
	s.broker.stats.unanswered.Add(1)
	s.broker.config.Log.Warn("a single active consumer did not answer in time; its connection is closed, the next one has its turn",
		"connection", s.name, "stream", m.group.Stream, "group", m.group.Name, "subscription", sub.id,
		"error", errNoUpdate, "limit", s.limits.ConsumerUpdateTimeout)
	s.kill()
}

// awaitLeft waits until no member's leaving is on its way any more.
func (b *Broker) awaitLeft(until <-chan struct{}) {
	late := time.NewTimer(lastWordsTime)
	defer late.Stop()
	for {
		news := b.groups.left.next()
		b.groups.mu.Lock()
		none := len(b.groups.leaving) == 0
		b.groups.mu.Unlock()
		if none {
			return
		}
		select {
		case <-news:
		case <-late.C:
			return
		case <-until:
			return
		}
	}
}

// begin lets a member be delivered to. False: its subscription is closed, or a
// turn with its last reader is running, which is the writer's until the farewell.
func (o *outbox) begin(sub *subscription, reader *segstore.Reader) bool {
	o.mu.Lock()
	if sub.closed || o.dead || sub.phase == running {
		o.mu.Unlock()
		return false
	}
	sub.reader, sub.jumps = reader, 0
	o.startLocked(sub)
	o.mu.Unlock()
	signal(o.wake)
	return true
}

// retire ends a member's deliveries; the notice follows the last of them. It
// returns the reader, if there is one that the writer is not using.
func (o *outbox) retire(sub *subscription, notice wire.Command) (over *segstore.Reader) {
	o.mu.Lock()
	if !o.leaveLocked(sub) {
		sub.farewell = notice
		o.mu.Unlock()
		return nil
	}
	if !o.dead {
		o.answers = wire.Append(o.answers, notice)
	}
	over, sub.reader = sub.reader, nil
	o.mu.Unlock()
	signal(o.wake)
	return over
}

// owesFarewell: retire's notice still waits for the turn that is running.
func (o *outbox) owesFarewell(sub *subscription) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return sub.farewell != nil
}

// resume has a member looked at again.
func (o *outbox) resume(sub *subscription) {
	o.mu.Lock()
	woken := o.enqueueLocked(sub)
	o.mu.Unlock()
	if woken {
		signal(o.wake)
	}
}
