package broker

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore/chunk"
)

// leader is the leading replica of a stream as a session uses it, on this node
// (local) or on another (remote).
type leader interface {
	declare(reference string) (handle, error)
	sequence(reference string) (uint64, error)
	storeOffset(reference string, offset chunk.Offset) error
	queryOffset(reference string) (offset chunk.Offset, known bool, err error)
}

// handle is a publisher declared with a leader.
type handle interface {
	// publish hands over a batch, made of the accepted entries of a frame. Its
	// Sink has it back, perhaps at once; with an error, which ends the
	// connection, the caller keeps it.
	publish(b *replication.Batch, frame []byte) error
	close()
}

// leader finds a stream and who leads it.
func (s *session) leader(name string) (*catalog.Stream, leader, error) {
	b := s.broker
	stream, ok := b.directory.View().Stream(s.vhost, name)
	switch {
	case !ok:
		return nil, nil, errStreamMissing
	case !stream.Led():
		return nil, nil, errUnavailable
	case string(stream.Leader.Node) == b.config.NodeName:
		replica, ok := b.replicas.Replica(stream.Incarnation)
		if !ok {
			return nil, nil, errUnavailable
		}
		return stream, &local{s, replica}, nil
	case b.peers == nil:
		return nil, nil, errLedElsewhere
	}
	return stream, &remote{s, b.lane(string(stream.Leader.Node)), stream.Incarnation, stream.Epoch}, nil
}

// local is a leader on this node.
type local struct {
	session *session
	replica Replica
}

func (l *local) declare(reference string) (handle, error) {
	p, err := l.replica.Declare(reference)
	if err != nil {
		return nil, err
	}
	return &localPublisher{replica: l.replica, publisher: p, named: reference != ""}, nil
}

func (l *local) sequence(reference string) (uint64, error) {
	type result struct {
		sequence uint64
		err      error
	}
	answer := make(chan result, 1)
	l.replica.Sequence(reference, func(sequence uint64, known bool, err error) {
		if !known {
			sequence = 0
		}
		answer <- result{sequence, err}
	})
	ctx, cancel := l.session.request()
	defer cancel()
	select {
	case got := <-answer:
		return got.sequence, got.err
	case <-ctx.Done():
		return 0, errUnavailable
	case <-l.session.dying:
		return 0, errEnded
	}
}

func (l *local) storeOffset(reference string, offset chunk.Offset) error {
	return l.replica.StoreOffset(reference, offset)
}

func (l *local) queryOffset(reference string) (chunk.Offset, bool, error) {
	return l.replica.QueryOffset(reference)
}

type localPublisher struct {
	replica   Replica
	publisher *replication.Publisher
	named     bool
	// holed: a guest's batch was not taken, and those behind it must not be.
	holed atomic.Bool
}

func (p *localPublisher) publish(b *replication.Batch, _ []byte) error {
	b.Publisher = p.publisher
	p.replica.Publish(b)
	return nil
}

func (p *localPublisher) close() { p.publisher.Close() }

// remote is a leader on another node, in the epoch that this node knows.
type remote struct {
	session *session
	lane    *lane
	stream  chunk.Incarnation
	epoch   chunk.Epoch
}

// later makes an error of the way to the leader one that is worth waiting for:
// this node may know soon who leads, or how to reach it.
func later(err error) error {
	if errors.Is(err, ErrPeerGone) || errors.Is(err, ErrPeerBusy) || errors.Is(err, errPeerLate) || errors.Is(err, errPeer) || errors.Is(err, replication.ErrUnavailable) {
		return errors.Join(errUnavailable, err)
	}
	return err
}

func (r *remote) declare(reference string) (handle, error) {
	p := &remotePublisher{session: r.session, lane: r.lane, stream: r.stream}
	r.lane.add(p)
	r.lane.sendClosed() // one of them may have the reference
	d := declaration{r.stream, r.epoch, p.number, reference}
	if _, err := r.lane.call(r.session, methodDeclare, d.append(nil)); err != nil {
		r.lane.close(p) // the node may have it
		return nil, later(err)
	}
	return p, nil
}

func (r *remote) sequence(reference string) (uint64, error) {
	value, _, err := r.ask(methodSequence, reference)
	return value, err
}

func (r *remote) queryOffset(reference string) (chunk.Offset, bool, error) {
	late := time.Now().Add(r.lane.broker.config.RequestTimeout)
	for !r.lane.sendStores(true) { // the answer shall know them
		if time.Now().After(late) {
			return 0, false, later(errPeerLate)
		}
		if err := r.session.pause(nil, lanePause); err != nil {
			return 0, false, err
		}
	}
	value, known, err := r.ask(methodOffset, reference)
	return chunk.Offset(value), known, err
}

func (r *remote) ask(method Method, reference string) (uint64, bool, error) {
	q := question{r.stream, r.epoch, reference}
	body, err := r.lane.call(r.session, method, q.append(nil))
	if err != nil {
		return 0, false, later(err)
	}
	return decodeKnown(body)
}

// storeOffset waits, and with it the connection, where too many wait already.
func (r *remote) storeOffset(reference string, offset chunk.Offset) error {
	for {
		news := r.lane.room.next()
		if r.lane.store(r.stream, r.epoch, reference, offset) {
			return nil
		}
		if err := r.session.pause(news, 0); err != nil {
			return err
		}
	}
}

// remotePublisher is a publisher declared on another node.
type remotePublisher struct {
	session *session
	lane    *lane
	stream  chunk.Incarnation
	number  uint64
	// broken: the node does not know it any more. Its client is told by
	// MetadataUpdate.
	broken atomic.Bool
}

func (p *remotePublisher) publish(b *replication.Batch, frame []byte) error {
	if p.broken.Load() {
		b.Sink.Failed(b, errPublisherUnknown)
		return nil
	}
	body := appendPublish(make([]byte, 0, publishHead+len(frame)), p.number, len(b.IDs), frame)
	return p.lane.publish(p.session, p.stream, body, func(status Status, err error) { p.settle(b, status, err) })
}

// settle gives a batch back with what the node answered. Where there is no
// answer nobody knows what is stored.
func (p *remotePublisher) settle(b *replication.Batch, status Status, err error) {
	switch {
	case err != nil:
		err = errors.Join(errPublisherUnknown, err)
	default:
		err = errorOf(status)
	}
	if err == nil {
		b.Sink.Confirmed(b)
		return
	}
	if errors.Is(err, errPublisherUnknown) && !p.broken.Swap(true) {
		p.lane.sweepLater()
	}
	b.Sink.Failed(b, err)
}

func (p *remotePublisher) close() { p.lane.close(p) }
