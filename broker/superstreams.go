package broker

import (
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/wire"
)

// Super streams can be looked up as far as the catalog knows any. Making and
// removing them is for a later version; until then the one is refused like any
// create that can't be carried out, and there is nothing for the other to find.

func (s *session) route(q *wire.Route) error {
	streams, err := s.routed(q)
	if err != nil {
		s.refuse(q, err)
		return nil
	}
	s.answer(&wire.RouteResponse{Correlation: q.Correlation, Code: wire.CodeOK, Streams: wire.StringsOf(streams...)})
	return nil
}

func (s *session) routed(q *wire.Route) ([]string, error) {
	if !s.may(catalog.Write, q.SuperStream) {
		return nil, errAccess
	}
	super, ok := s.broker.directory.View().SuperStream(s.vhost, q.SuperStream)
	if !ok {
		return nil, catalog.ErrSuperStreamMissing
	}
	streams := super.Route(q.RoutingKey)
	for _, stream := range streams {
		if !s.may(catalog.Write, stream) {
			return nil, errAccess
		}
	}
	return streams, nil
}

func (s *session) partitions(q *wire.Partitions) error {
	streams, err := s.partitionsOf(q.SuperStream)
	if err != nil {
		s.refuse(q, err)
		return nil
	}
	s.answer(&wire.PartitionsResponse{Correlation: q.Correlation, Code: wire.CodeOK, Streams: wire.StringsOf(streams...)})
	return nil
}

func (s *session) partitionsOf(name string) ([]string, error) {
	if !s.maySee(name) {
		return nil, errAccess
	}
	super, ok := s.broker.directory.View().SuperStream(s.vhost, name)
	if !ok {
		return nil, catalog.ErrSuperStreamMissing
	}
	streams := super.Streams()
	for _, stream := range streams {
		if !s.maySee(stream) {
			return nil, errAccess
		}
	}
	return streams, nil
}

func (s *session) maySee(name string) bool {
	return s.may(catalog.Read, name) || s.may(catalog.Write, name)
}

func (s *session) createSuperStream(q *wire.CreateSuperStream) error {
	s.refuse(q, s.refusalOfSuperStream(q))
	return nil
}

// refusalOfSuperStream says why a super stream is not made: what is wrong with
// the request comes first.
func (s *session) refusalOfSuperStream(q *wire.CreateSuperStream) error {
	if _, err := catalog.StreamName(q.Name); err != nil {
		return err
	}
	if !s.may(catalog.Configure, q.Name) {
		return errAccess
	}
	return errSuperStreams
}

func (s *session) deleteSuperStream(q *wire.DeleteSuperStream) error {
	if !s.may(catalog.Configure, q.Name) {
		s.refuse(q, errAccess)
		return nil
	}
	if _, ok := s.broker.directory.View().SuperStream(s.vhost, q.Name); !ok {
		s.refuse(q, catalog.ErrSuperStreamMissing)
		return nil
	}
	s.refuse(q, errSuperStreams)
	return nil
}
