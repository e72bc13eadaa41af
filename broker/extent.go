package broker

import (
	"errors"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// readable is a replica as questions about a stream's places use it, on this node
// (localLog) or on another (remoteLog).
type readable interface {
	extent() (extent, error)
	// resolve tells where a subscription would begin; errNoOffset where that can't
	// be found out.
	resolve(segstore.Spec) (chunk.Offset, error)
}

// streamStats answers −1 for what an empty stream does not have. Of one that
// had messages, the last offset is told still.
func (s *session) streamStats(q *wire.StreamStats) error {
	var e extent
	err := s.awaitLeader(func() error {
		log, err := s.readable(q.Stream)
		if err == nil {
			e, err = log.extent()
		}
		return err
	})
	if err != nil {
		s.refuse(q, err)
		return nil
	}
	s.answer(&wire.StreamStatsResponse{
		Correlation: q.Correlation, Code: wire.CodeOK,
		Stats: wire.StatsOf(
			wire.Stat{Name: wire.StatFirstChunkID, Value: e.first},
			wire.Stat{Name: wire.StatLastChunkID, Value: e.last},
			wire.Stat{Name: wire.StatCommittedChunkID, Value: e.last},
			wire.Stat{Name: wire.StatCommittedOffset, Value: e.next - 1},
		),
	})
	return nil
}

// resolveOffsetSpec tells where a subscription would begin, by beginning one
// and looking.
func (s *session) resolveOffsetSpec(q *wire.ResolveOffsetSpec) error {
	var offset chunk.Offset
	err := s.awaitLeader(func() error {
		log, err := s.readable(q.Stream)
		if err == nil {
			offset, err = log.resolve(placeOf(q.Offset))
		}
		return err
	})
	if err != nil {
		s.refuse(q, err)
		return nil
	}
	s.answer(&wire.ResolveOffsetSpecResponse{
		Correlation: q.Correlation, Code: wire.CodeOK, Offset: uint64(offset),
	})
	return nil
}

// readable finds a replica of a stream that the user may read: the one here, else
// the leader, else one on a node that is up.
func (s *session) readable(name string) (readable, error) {
	if !s.may(catalog.Read, name) {
		return nil, errAccess
	}
	b := s.broker
	replica, err := b.local(s.vhost, name)
	if err == nil {
		return localLog{replica}, nil
	}
	stream, ok := b.directory.View().Stream(s.vhost, name)
	if !ok || b.peers == nil {
		return nil, err
	}
	node, ok := b.readableOn(stream)
	if !ok {
		return nil, errUnavailable
	}
	return &remoteLog{s, b.lane(node), stream.Incarnation}, nil
}

// readableOn picks another node that has a replica.
func (b *Broker) readableOn(stream *catalog.Stream) (node string, ok bool) {
	if leader := string(stream.Leader.Node); stream.Led() && leader != b.config.NodeName && b.directory.Up(leader) {
		return leader, true
	}
	for _, replica := range stream.Replicas {
		if node := string(replica.Node); node != b.config.NodeName && b.directory.Up(node) {
			return node, true
		}
	}
	return "", false
}

// extent is which committed chunks a stream has, by their base offsets, -1 where
// there is none, and the offset behind the last record that it ever had.
type extent struct{ first, last, next int64 }

type localLog struct{ replica Replica }

// extent looks where readers of the first and of the last chunk would begin. A
// chunk that is not committed yet is none.
func (l localLog) extent() (extent, error) {
	first, err := l.begin(segstore.Spec{Kind: segstore.First})
	if err != nil {
		return extent{}, err
	}
	last, err := l.begin(segstore.Spec{Kind: segstore.Last})
	if err != nil {
		return extent{}, err
	}
	_, next := l.replica.Committed() // last, so that it is behind the chunks found
	if first >= next {
		return extent{-1, -1, int64(next)}, nil
	}
	return extent{int64(first), int64(last), int64(next)}, nil
}

func (l localLog) resolve(spec segstore.Spec) (chunk.Offset, error) {
	offset, err := l.begin(spec)
	if errors.Is(err, replication.ErrUnavailable) {
		return 0, errors.Join(errUnavailable, err) // it is being opened
	}
	if err != nil {
		return 0, errors.Join(errNoOffset, err)
	}
	return offset, nil
}

// begin tells where a reader would.
func (l localLog) begin(spec segstore.Spec) (chunk.Offset, error) {
	reader, err := l.replica.Attach(spec)
	if err != nil {
		return 0, err
	}
	defer reader.Close()
	return reader.Offset(), nil
}

// remoteLog is a replica on another node.
type remoteLog struct {
	session *session
	lane    *lane
	stream  chunk.Incarnation
}

func (r *remoteLog) extent() (extent, error) {
	body, err := r.lane.call(r.session, methodExtent, appendStream(nil, r.stream))
	if err != nil {
		return extent{}, later(err)
	}
	return decodeExtent(body)
}

func (r *remoteLog) resolve(spec segstore.Spec) (chunk.Offset, error) {
	p := place{r.stream, spec}
	body, err := r.lane.call(r.session, methodPlace, p.append(nil))
	if err != nil {
		return 0, later(err)
	}
	return decodeOffset(body)
}

// tellExtent and tellPlace answer another node. They read the disk, so each has
// a goroutine; the link bounds how many there are.
func (b *Broker) tellExtent(body []byte, reply func(Status, []byte)) {
	stream, err := decodeStream(body)
	b.tellOf(stream, err, reply, func(log localLog) ([]byte, error) {
		e, err := log.extent()
		return e.append(nil), err
	})
}

func (b *Broker) tellPlace(body []byte, reply func(Status, []byte)) {
	p, err := decodePlace(body)
	b.tellOf(p.stream, err, reply, func(log localLog) ([]byte, error) {
		offset, err := log.resolve(p.spec)
		return appendOffset(nil, offset), err
	})
}

func (b *Broker) tellOf(
	stream chunk.Incarnation, err error, reply func(Status, []byte), look func(localLog) ([]byte, error),
) {
	replica, ok := b.replicas.Replica(stream)
	if err == nil && !ok {
		err = replication.ErrMissing
	}
	if err != nil {
		reply(statusOf(err), nil)
		return
	}
	go func() {
		answer, err := look(localLog{replica})
		if err != nil {
			answer = nil
		}
		reply(statusOf(err), answer)
	}()
}
