package broker

import (
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// storeOffset is never answered: what can't be stored is dropped.
func (s *session) storeOffset(q *wire.StoreOffset) error {
	if len(q.Reference) > referenceMax {
		return nil
	}
	stream, replica, err := s.broker.led(s.vhost, q.Stream)
	if err != nil || !s.subscribed(stream.Incarnation) && !s.may(catalog.Read, q.Stream) {
		return nil
	}
	if replica.StoreOffset(q.Reference, chunk.Offset(q.Offset)) == nil {
		s.consult(stream)
	}
	return nil
}

func (s *session) queryOffset(q *wire.QueryOffset) error {
	var offset chunk.Offset
	err := s.awaitLeader(func() (err error) {
		offset, err = s.storedOffset(q)
		return err
	})
	if err != nil {
		s.refuse(q, err)
		return nil
	}
	s.answer(&wire.QueryOffsetResponse{Correlation: q.Correlation, Code: wire.CodeOK, Offset: uint64(offset)})
	return nil
}

func (s *session) storedOffset(q *wire.QueryOffset) (chunk.Offset, error) {
	if !s.may(catalog.Read, q.Stream) {
		return 0, errAccess
	}
	stream, replica, err := s.broker.led(s.vhost, q.Stream)
	if err != nil {
		return 0, err
	}
	s.consult(stream)
	offset, known, err := replica.QueryOffset(q.Reference)
	if err == nil && !known {
		err = errNoOffset
	}
	return offset, err
}

// subscribed says whether the connection reads the stream.
func (s *session) subscribed(stream chunk.Incarnation) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.ties[stream]
	return t != nil && t.subscriptions > 0
}

// consult notes that the connection relies on the stream's leader, so that it
// is told when that one goes.
func (s *session) consult(stream *catalog.Stream) {
	s.mu.Lock()
	t := s.ties[stream.Incarnation]
	known := t != nil && t.consulted
	s.mu.Unlock()
	if known {
		return
	}
	if t, err := s.tieTo(stream.Name); err == nil {
		s.attach(t, func() { t.consulted = true })
	}
}
