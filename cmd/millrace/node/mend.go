package node

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// mender looks after the replicas here by what the others hold: it fetches
// damaged segments as soon as damage is found, and compares digests from time to
// time.
type mender struct {
	n    *Node
	work sync.WaitGroup

	// compared counts boundaries, differing those where another replica holds
	// other messages.
	compared, differing atomic.Uint64

	// try is one attempt at a stream; true: nothing is left to do.
	try func(ctx context.Context, stream chunk.Incarnation) bool

	wake chan struct{} // capacity 1

	mu      sync.Mutex // guards all below
	damaged map[chunk.Incarnation]*attempt
	// mending are the streams that are tried now, mendsMax at most.
	mending map[chunk.Incarnation]bool
	// told are differences that the log has been told of.
	told map[difference]bool
}

// attempt is when to try again what has failed, and the wait after that.
type attempt struct {
	at   time.Time
	wait time.Duration
}

type difference struct {
	stream chunk.Incarnation
	node   protocol.NodeID
	lsn    chunk.LSN
}

const (
	// mendFirst and mendMost bound the wait before a damaged segment is fetched
	// once more.
	mendFirst = time.Second
	mendMost  = 10 * time.Minute
	// mendsMax bounds the streams that are mended at a time: one whose peer does
	// not answer keeps none of the others waiting, and what they fetch together
	// leaves room on links and disk.
	mendsMax = 4
	// mendPatience bounds one attempt.
	mendPatience = 10 * time.Minute
	// compareEvery is the time between two comparisons of all replicas here.
	compareEvery = 10 * time.Minute
	// comparePatience bounds one question.
	comparePatience = 10 * time.Second
)

func newMender(n *Node) *mender {
	m := &mender{
		n: n, damaged: map[chunk.Incarnation]*attempt{}, mending: map[chunk.Incarnation]bool{}, told: map[difference]bool{}, wake: make(chan struct{}, 1),
	}
	m.try = m.mend
	return m
}

// start mends and compares until ctx ends.
func (m *mender) start(ctx context.Context) {
	m.work.Go(func() { m.mendAll(ctx) })
	m.work.Go(func() {
		tick := time.NewTicker(compareEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				m.compareAll(ctx)
			case <-ctx.Done():
				return
			}
		}
	})
}

// found hears of a log that is damaged. It does not block.
func (m *mender) found(stream chunk.Incarnation) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.damaged[stream] = &attempt{wait: mendFirst}
	m.look()
}

// look has mendAll look what is due.
func (m *mender) look() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

func (m *mender) mendAll(ctx context.Context) {
	for {
		due, rest := m.due(time.Now())
		for stream, try := range due {
			m.work.Go(func() { m.over(stream, try, m.try(ctx, stream)) })
		}
		timer := time.NewTimer(rest)
		select {
		case <-m.wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// due returns the streams whose time has come, as many as may be mended beside
// those that are, and how long none's will come. They count as being mended.
func (m *mender) due(now time.Time) (due map[chunk.Incarnation]*attempt, rest time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	due, rest = map[chunk.Incarnation]*attempt{}, mendMost
	for stream, p := range m.damaged {
		if m.mending[stream] {
			continue // its end is told
		}
		if wait := p.at.Sub(now); wait > 0 {
			rest = min(rest, wait)
			continue
		}
		if len(m.mending) == mendsMax {
			continue // an end is told
		}
		due[stream], m.mending[stream] = p, true
	}
	return due, rest
}

// over ends an attempt, and forgets the stream's damage if it is mended, unless
// more was found since the attempt began.
func (m *mender) over(stream chunk.Incarnation, try *attempt, mended bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.mending, stream)
	switch {
	case !mended:
		try.at, try.wait = time.Now().Add(try.wait), min(2*try.wait, mendMost)
	case m.damaged[stream] == try:
		delete(m.damaged, stream)
	}
	m.look()
}

// mend tries once to fetch what is damaged in a stream's log here. True: it is
// whole again, gone, or beyond help.
func (m *mender) mend(ctx context.Context, stream chunk.Incarnation) bool {
	ctx, cancel := context.WithTimeout(ctx, mendPatience)
	defer cancel()
	done, err := figures{m.n}.Repair(ctx, stream)
	for _, file := range done.Repaired {
		m.n.log.Info("a damaged segment was fetched from another replica", "stream", stream.String(), "file", file)
	}
	alone := errors.Is(err, admin.ErrNoPeer) && m.alone(stream)
	if err == nil && len(done.Damaged) == 0 || errors.Is(err, admin.ErrNoReplica) || errors.Is(err, catalog.ErrStreamMissing) || alone {
		return true
	}
	m.n.log.Warn("a log is damaged still; it will be tried again", "stream", stream.String(), "left", len(done.Damaged), "error", err)
	return false
}

func (m *mender) alone(stream chunk.Incarnation) bool {
	s, ok := m.n.cluster.View().Incarnation(stream)
	return !ok || len(s.Replicas) <= 1
}

// compareAll holds the replicas here that follow against their leaders'.
func (m *mender) compareAll(ctx context.Context) {
	view := m.n.cluster.View()
	m.mu.Lock()
	maps.DeleteFunc(m.told, func(d difference, _ bool) bool {
		_, exists := view.Incarnation(d.stream)
		return !exists
	})
	m.mu.Unlock()
	m.n.replicas.Replicas(func(r *replication.Replica) {
		s, ok := m.n.cluster.View().Incarnation(r.Incarnation())
		if !ok || s.Leader.Node == "" || string(s.Leader.Node) == m.n.config.NodeName || ctx.Err() != nil {
			return
		}
		if err := m.compare(ctx, s, r); err != nil {
			m.n.log.Debug("compare with the leader's replica", "stream", s.Name, "error", err)
		}
	})
}

// compare holds one replica against its leader's, where both have a boundary.
func (m *mender) compare(ctx context.Context, s *catalog.Stream, r *replication.Replica) error {
	ctx, cancel := context.WithTimeout(ctx, comparePatience)
	defer cancel()
	answer, err := m.n.ask(ctx, s.Leader.Node, methodBoundaries, binary.BigEndian.AppendUint64(nil, uint64(s.Incarnation)))
	if err != nil {
		return err
	}
	theirs, err := decodeBoundaries(answer)
	if err != nil {
		return fmt.Errorf("answer of node %s: %w", s.Leader.Node, err)
	}
	compared, differ := compareBoundaries(r.Boundaries(), theirs)
	m.compared.Add(uint64(compared))
	for _, b := range differ {
		m.differs(s, b)
	}
	return nil
}

// differs tells of a difference, once.
func (m *mender) differs(s *catalog.Stream, b replication.Boundary) {
	d := difference{s.Incarnation, s.Leader.Node, b.LSN}
	m.mu.Lock()
	known := m.told[d]
	m.told[d] = true
	m.mu.Unlock()
	if known {
		return
	}
	m.differing.Add(1)
	m.n.log.Error("this replica and its leader's hold other messages", "stream", s.Name, "vhost", s.VHost, "leader", s.Leader.Node,
		"before chunk", uint64(b.LSN), "offset", uint64(b.Offset), "try", "millrace segment verify "+s.Name+" on both nodes")
}

// compareBoundaries counts the boundaries that both logs have, and returns those
// of the first that differ.
func compareBoundaries(ours, theirs []replication.Boundary) (compared int, differ []replication.Boundary) {
	for _, b := range ours {
		for len(theirs) > 0 && theirs[0].LSN < b.LSN {
			theirs = theirs[1:]
		}
		if len(theirs) == 0 {
			break
		}
		if theirs[0].LSN == b.LSN {
			compared++
			if theirs[0] != b {
				differ = append(differ, b)
			}
		}
	}
	return compared, differ
}

// methodBoundaries asks where the segments of a stream's log begin:
//
//	request  stream u64
//	answer   for each, ascending: LSN u64 | offset u64 | digest u64
const methodBoundaries uint16 = groupRepair<<8 + 2

const boundaryBytes = 24

// errAnswer: an answer of another node is not what it should be.
var errAnswer = errors.New("malformed answer")

func encodeBoundaries(list []replication.Boundary) []byte {
	out := make([]byte, 0, boundaryBytes*len(list))
	for _, b := range list {
		out = binary.BigEndian.AppendUint64(out, uint64(b.LSN))
		out = binary.BigEndian.AppendUint64(out, uint64(b.Offset))
		out = binary.BigEndian.AppendUint64(out, uint64(b.Digest))
	}
	return out
}

func decodeBoundaries(b []byte) ([]replication.Boundary, error) {
	if len(b)%boundaryBytes != 0 {
		return nil, fmt.Errorf("%w: %d bytes", errAnswer, len(b))
	}
	be := binary.BigEndian
	list := make([]replication.Boundary, len(b)/boundaryBytes)
	for i := range list {
		at := b[i*boundaryBytes:]
		list[i] = replication.Boundary{
			LSN: chunk.LSN(be.Uint64(at)), Offset: chunk.Offset(be.Uint64(at[8:])), Digest: chunk.Digest(be.Uint64(at[16:])),
		}
		if i > 0 && list[i].LSN <= list[i-1].LSN {
			return nil, fmt.Errorf("%w: out of order", errAnswer)
		}
	}
	return list, nil
}
