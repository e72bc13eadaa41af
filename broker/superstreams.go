package broker

import (
	"errors"
	"fmt"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

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

// partitionsMax is the most partitions of a super stream.
const partitionsMax = 1000

func (s *session) createSuperStream(q *wire.CreateSuperStream) error {
	request, err := s.wantedSuperStream(q)
	if err == nil {
		ctx, cancel := s.request()
		defer cancel()
		err = s.broker.directory.CreateSuperStream(ctx, request)
	}
	switch {
	case errors.Is(err, catalog.ErrStreamExists), errors.Is(err, catalog.ErrStreamDiffers):
		err = catalog.ErrSuperStreamExists // whatever the partition's arguments
	case err == nil:
		s.respond(q.Key(), q.Correlation, wire.CodeOK)
		return nil
	}
	s.refuse(q, err)
	return nil
}

// wantedSuperStream checks a request before anything is made. Bad arguments are
// an internal error here, as clients are used to.
func (s *session) wantedSuperStream(q *wire.CreateSuperStream) (CreateSuperStream, error) {
	request := CreateSuperStream{VHost: s.vhost, Creator: s.user}
	var err error
	if request.Name, err = catalog.StreamName(q.Name); err != nil {
		return request, err
	}
	streams, keys := q.Partitions.Slice(), q.BindingKeys.Slice()
	for i, stream := range streams { // the rights count on what is stored
		if streams[i], err = catalog.StreamName(stream); err != nil {
			return request, err
		}
	}
	if !s.mayOwn(request.Name, streams) {
		return request, errAccess
	}
	if len(streams) != len(keys) || len(streams) > partitionsMax {
		return request, fmt.Errorf("%w: %d partitions and %d binding keys, at most %d", errPartitions, len(streams), len(keys), partitionsMax)
	}
	for i, stream := range streams {
		request.Partitions = append(request.Partitions, catalog.Partition{Stream: stream, Key: keys[i]})
	}
	request.Arguments, err = catalog.ParseArguments(q.Arguments.Map())
	if err != nil || q.Arguments.Len() > argumentsMax {
		return request, fmt.Errorf("create super stream %q: arguments: %v", request.Name, err)
	}
	return request, s.roomForStreams(request.Name, len(streams))
}

// mayOwn says whether the user may make or remove a super stream.
func (s *session) mayOwn(name string, partitions []string) bool {
	if !s.may(catalog.Configure, name) || !s.may(catalog.Read, name) {
		return false
	}
	for _, partition := range partitions {
		if !s.may(catalog.Configure, partition) || !s.may(catalog.Write, partition) {
			return false
		}
	}
	return true
}

// deleteSuperStream removes a super stream. The client has the answer before it
// is told of what it had on the partitions.
func (s *session) deleteSuperStream(q *wire.DeleteSuperStream) error {
	release := s.out.hold()
	defer release()
	partitions, err := s.removeSuperStream(q.Name)
	if err != nil {
		s.refuse(q, err)
		return nil
	}
	s.respond(q.Key(), q.Correlation, wire.CodeOK)
	for _, partition := range partitions {
		s.dropTie(partition, everything)
	}
	return nil
}

func (s *session) removeSuperStream(name string) ([]chunk.Incarnation, error) {
	if !s.may(catalog.Configure, name) {
		return nil, errAccess
	}
	view := s.broker.directory.View()
	super, ok := view.SuperStream(s.vhost, name)
	if !ok {
		return nil, catalog.ErrSuperStreamMissing
	}
	streams := super.Streams()
	if !s.mayOwn(name, streams) {
		return nil, errAccess
	}
	var partitions []chunk.Incarnation
	for _, name := range streams {
		if stream, ok := view.Stream(s.vhost, name); ok {
			partitions = append(partitions, stream.Incarnation)
		}
	}
	ctx, cancel := s.request()
	defer cancel()
	return partitions, s.broker.directory.DeleteSuperStream(ctx, s.vhost, name)
}
