package broker

import (
	"unsafe"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// storing is the stream that a session stored an offset of last. Consumers store
// often and in the same stream, so what was found out about it holds until the
// metadata changes.
type storing struct {
	command wire.StoreOffset // reused; its strings are the frame's
	view    *catalog.State   // nil: nothing is known
	stream  string
	leader  leader
}

// storeOffset is never answered: what can't be stored is dropped.
func (s *session) storeOffset(payload []byte) error {
	q := &s.storing.command
	// The string is the frame's own memory, which stays as it is until the next
	// frame is read; nobody keeps a part of it.
	text := unsafe.String(unsafe.SliceData(payload), len(payload))
	if err := wire.DecodeStoreOffset(payload, text, q); err != nil {
		return violation{wire.CodeUnknownFrame, err}
	}
	if len(q.Reference) > referenceMax {
		return nil
	}
	to := &s.storing
	if to.view == nil || to.view != s.broker.directory.View() || to.stream != q.Stream {
		s.storeFirst(q)
	} else if to.leader.storeOffset(q.Reference, chunk.Offset(q.Offset)) != nil {
		to.view = nil
	}
	return nil
}

// storeFirst stores an offset of a stream about which nothing is known.
func (s *session) storeFirst(q *wire.StoreOffset) {
	s.storing.view = nil
	view := s.broker.directory.View() // what follows may know newer metadata, never older
	stream, leader, err := s.leader(q.Stream)
	allowed := s.may(catalog.Read, q.Stream)
	if err != nil || !allowed && !s.subscribed(stream.Incarnation) {
		return
	}
	if leader.storeOffset(q.Reference, chunk.Offset(q.Offset)) != nil {
		return
	}
	s.consult(stream)
	if allowed { // a subscription's right ends with it
		s.storing.view, s.storing.stream, s.storing.leader = view, stream.Name, leader
	}
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
	stream, leader, err := s.leader(q.Stream)
	if err != nil {
		return 0, err
	}
	s.consult(stream)
	offset, known, err := leader.queryOffset(q.Reference)
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
