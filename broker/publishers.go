package broker

import (
	"fmt"
	"sync/atomic"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// referenceMax is the longest reference, of publishers and consumers alike.
const referenceMax = 255

// publisher is one declared publisher of a connection. A number that is used
// again gets a new one, so that late confirms find the old and are dropped.
type publisher struct {
	session   *session
	id        uint8
	reference string
	tie       *tie
	handle    handle
	epoch     chunk.Epoch // of the leader that it was declared with

	// gone is set when the id no longer means this publisher; fenced when
	// another session took its reference over; holed when a batch was refused that
	// may be sent again.
	gone, fenced, holed atomic.Bool
	// Entries, for operators.
	published, confirmed, errored atomic.Uint64
}

func (s *session) declarePublisher(q *wire.DeclarePublisher) error {
	if err := s.addPublisher(q); err != nil {
		s.refuse(q, err)
		return nil
	}
	s.respond(q.Key(), q.Correlation, wire.CodeOK)
	s.still(s.may(catalog.Write, q.Stream))
	return nil
}

// addPublisher checks in the order in which clients are used to the codes.
func (s *session) addPublisher(q *wire.DeclarePublisher) error {
	if s.broker.alarms.on() {
		return errAlarm
	}
	s.mu.Lock()
	count := len(s.publishers)
	_, used := s.publishers[q.PublisherID]
	s.mu.Unlock()
	mayWrite := s.may(catalog.Write, q.Stream)
	switch {
	case count >= s.limits.Publishers:
		return fmt.Errorf("%w: stream.publishers_per_connection is %d", errTooMany, s.limits.Publishers)
	case len(q.Reference) > referenceMax && mayWrite:
		return errReferenceTooLong
	case !mayWrite:
		return errAccess
	case used:
		return errPublisherInUse
	case q.Reference != "" && s.declared(q.Stream, q.Reference):
		return errReferenceInUse
	}
	return s.awaitLeader(func() error { return s.openPublisher(q) })
}

// openPublisher declares the publisher with the stream's leader.
func (s *session) openPublisher(q *wire.DeclarePublisher) error {
	stream, leader, err := s.leader(q.Stream)
	if err != nil {
		return err
	}
	t, err := s.tieTo(q.Stream)
	if err != nil {
		return err
	}
	handle, err := leader.declare(q.Reference)
	if err != nil {
		s.abandon(t)
		return err
	}
	p := &publisher{session: s, id: q.PublisherID, reference: q.Reference, tie: t, handle: handle, epoch: stream.Epoch}
	if !s.attach(t, func() { s.publishers[p.id] = p; t.publishers++ }) {
		handle.close()
		return errStreamMissing
	}
	s.broker.stats.publishers.Add(1)
	// An election that was told before the publisher was there is seen here.
	if now, ok := s.broker.directory.View().Incarnation(stream.Incarnation); !ok || now.Epoch != p.epoch {
		if s.removePublisher(p) {
			s.loosen(t)
		}
		return errUnavailable
	}
	return nil
}

// declared says whether this connection has a publisher of the stream with the
// reference already.
func (s *session) declared(stream, reference string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range s.publishers {
		if p.reference == reference && p.tie.stream.Name == stream {
			return true
		}
	}
	return false
}

func (s *session) deletePublisher(q *wire.DeletePublisher) error {
	s.mu.Lock()
	p := s.publishers[q.PublisherID]
	s.mu.Unlock()
	if p == nil || !s.removePublisher(p) {
		s.respond(q.Key(), q.Correlation, wire.CodePublisherDoesNotExist)
		return nil
	}
	s.loosen(p.tie)
	s.respond(q.Key(), q.Correlation, wire.CodeOK)
	return nil
}

// removePublisher frees the publisher's id. It says false where somebody else
// has done so.
func (s *session) removePublisher(p *publisher) bool {
	s.mu.Lock()
	mine := s.publishers[p.id] == p
	if mine {
		delete(s.publishers, p.id)
		p.tie.publishers--
	}
	s.mu.Unlock()
	if mine {
		p.close()
	}
	return mine
}

// close ends the publisher; its id is free already.
func (p *publisher) close() {
	p.gone.Store(true)
	p.handle.close()
	p.session.broker.stats.publishers.Add(-1)
}

// fence frees the id of a publisher whose reference was taken over.
func (s *session) fence(p *publisher) {
	p.fenced.Store(true)
	if s.removePublisher(p) {
		s.loosen(p.tie)
	}
}

// endPublishers takes a stream's publishers away, one of which has a hole, and
// tells the client, which looks where they stand and declares them anew: clients
// take the message for all of them.
func (s *session) endPublishers(stream chunk.Incarnation) {
	s.dropTie(stream, loss{
		publisher:    func(*publisher) bool { return true },
		subscription: func(*subscription) bool { return false },
	})
}

// hears says whether confirms and errors of the publisher's batches mean
// something to the client: also after it was fenced, until somebody else has its id.
func (p *publisher) hears() bool {
	if !p.gone.Load() {
		return true
	}
	p.session.mu.Lock()
	defer p.session.mu.Unlock()
	return p.fenced.Load() && p.session.publishers[p.id] == nil
}

// queryPublisherSequence answers the last publishing id of a reference, 0 where
// none is known. The replica asks its majority first, so the answer may take a
// moment; the connection's other commands wait for it.
func (s *session) queryPublisherSequence(q *wire.QueryPublisherSequence) error {
	var sequence uint64
	err := s.awaitLeader(func() (err error) {
		sequence, err = s.sequence(q.Stream, q.Reference)
		return err
	})
	if err != nil {
		s.refuse(q, err)
		return nil
	}
	s.answer(&wire.QueryPublisherSequenceResponse{Correlation: q.Correlation, Code: wire.CodeOK, Sequence: sequence})
	return nil
}

func (s *session) sequence(stream, reference string) (uint64, error) {
	if !s.may(catalog.Read, stream) {
		return 0, errAccess
	}
	_, leader, err := s.leader(stream)
	if err != nil {
		return 0, err
	}
	return leader.sequence(reference)
}
