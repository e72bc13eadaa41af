package broker

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// argumentsMax bounds the arguments of a create: clients know six.
const argumentsMax = 256

func (s *session) create(q *wire.Create) error {
	if err := s.createStream(q.Stream, q.Arguments); err != nil {
		s.refuse(q, err)
		return nil
	}
	s.respond(q.Key(), q.Correlation, wire.CodeOK)
	return nil
}

// createStream makes a stream and returns once its leader can be found, since
// clients go on with Metadata at once.
func (s *session) createStream(given string, properties wire.Properties) error {
	name, err := catalog.StreamName(given)
	if err != nil {
		return err
	}
	if !s.may(catalog.Configure, name) {
		return errAccess
	}
	if properties.Len() > argumentsMax {
		return fmt.Errorf("%w: %d, at most %d", errArguments, properties.Len(), argumentsMax)
	}
	arguments, err := catalog.ParseArguments(properties.Map())
	if err != nil {
		return err
	}
	if err := s.roomForStreams(name, 1); err != nil {
		return err
	}
	ctx, cancel := s.request()
	defer cancel()
	if err := s.broker.directory.CreateStream(ctx, CreateStream{
		VHost: s.vhost, Name: name, Arguments: arguments, Creator: s.user,
	}); err != nil {
		return err
	}
	s.broker.awaitLeaders(s.vhost, []string{name}, time.Now().Add(s.limits.MetadataWait), s.leaving, s.dying)
	return nil
}

// roomForStreams says whether so many more streams may be made. What is there
// already is for the catalog to refuse.
func (s *session) roomForStreams(name string, more int) error {
	view := s.broker.directory.View()
	_, exists := view.Stream(s.vhost, name)
	most := s.limits.Streams * max(view.NodeCount(), 1)
	if !exists && view.StreamCount()+more > most {
		return fmt.Errorf("%w (%d)", errStreams, most)
	}
	return nil
}

// delete removes a stream. The client has the answer before it is told, by
// MetadataUpdate, of what it had on the stream.
func (s *session) delete(q *wire.Delete) error {
	release := s.out.hold()
	defer release()
	incarnation, err := s.deleteStream(q.Stream)
	if err != nil {
		s.refuse(q, err)
		return nil
	}
	s.respond(q.Key(), q.Correlation, wire.CodeOK)
	s.dropTie(incarnation, everything)
	return nil
}

func (s *session) deleteStream(name string) (chunk.Incarnation, error) {
	if !s.may(catalog.Configure, name) {
		return 0, errAccess
	}
	stream, ok := s.broker.directory.View().Stream(s.vhost, name)
	if !ok {
		return 0, errStreamMissing
	}
	ctx, cancel := s.request()
	defer cancel()
	return stream.Incarnation, s.broker.directory.DeleteStream(ctx, s.vhost, name)
}

// metadata says where streams are. For one without a leader, as during an
// election, the answer is held for a moment: clients take "no leader" badly, and
// connect in vain to one that is gone.
func (s *session) metadata(q *wire.Metadata) error {
	seen := map[string]bool{}
	var names []string
	for name := range q.Streams.All() {
		if !seen[name] {
			seen[name] = true
			names = append(names, name)
		}
	}
	s.broker.awaitLeaders(s.vhost, names, time.Now().Add(s.limits.MetadataWait), s.leaving, s.dying)
	view := s.broker.directory.View()
	nodes := &places{broker: s.broker, secure: s.tls != nil, numbers: map[string]uint16{}}
	streams := make([]wire.StreamMetadata, 0, len(names))
	for _, name := range names {
		streams = append(streams, s.streamMetadata(view, nodes, name))
	}
	s.answer(&wire.MetadataResponse{
		Correlation: q.Correlation,
		Brokers:     wire.BrokersOf(nodes.brokers...),
		Streams:     wire.StreamsMetadataOf(streams...),
	})
	return nil
}

func (s *session) streamMetadata(view *catalog.State, nodes *places, name string) wire.StreamMetadata {
	m := wire.StreamMetadata{Stream: name, Code: wire.CodeOK, Leader: wire.NoLeader}
	if !view.Allowed(s.vhost, s.user, catalog.Read, name) && !view.Allowed(s.vhost, s.user, catalog.Write, name) {
		m.Code = wire.CodeAccessRefused
		return m
	}
	stream, ok := view.Stream(s.vhost, name)
	if !ok {
		m.Code = wire.CodeStreamDoesNotExist
		return m
	}
	for _, replica := range stream.Replicas {
		leads := replica.Node == stream.Leader.Node
		member, ok := view.Node(replica.Node)
		if !ok || !leads && (!replica.Voter || member.Draining || !s.broker.directory.Up(string(replica.Node))) {
			continue // no place to connect to, or one that has not all yet
		}
		reference, ok := nodes.reference(member)
		switch {
		case !ok:
		case leads:
			m.Leader = reference
		default:
			m.Replicas = append(m.Replicas, reference)
		}
	}
	return m
}

// places numbers the nodes that one Metadata answer mentions.
type places struct {
	broker  *Broker
	secure  bool              // the client came by TLS
	numbers map[string]uint16 // by endpoint
	brokers []wire.Broker
}

// reference returns the number of a node that clients can connect to. Nodes
// with one endpoint have one number.
func (p *places) reference(member *catalog.Node) (uint16, bool) {
	host, port, ok := p.broker.endpoint(member, p.secure)
	if !ok {
		return 0, false
	}
	key := fmt.Sprintf("%s:%d", host, port)
	if number, known := p.numbers[key]; known {
		return number, true
	}
	number := uint16(len(p.brokers))
	p.numbers[key] = number
	p.brokers = append(p.brokers, wire.Broker{Reference: number, Host: host, Port: uint32(port)})
	return number, true
}
