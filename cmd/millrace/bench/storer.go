package bench

import (
	"context"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// storer stores the offsets of its references in turn, on a connection of its
// own, and asks for the last one every so often: stores have no answer, but the
// query behind them has.
type storer struct {
	conn    *client.Conn
	stream  string
	total   *Counters
	refs    []string
	offsets []uint64 // last stored, by reference
	rate    float64  // stores a second; 0: as fast as queries are answered
	every   int      // stores for each query

	turn       int // whose turn it is
	unanswered int // stores behind the last query
	frames     []byte

	latency                    *hdrhistogram.Histogram
	accepted, wrong, forgotten uint64
}

// storesAtOnce bounds how many stores go into one write.
const storesAtOnce = 256

// tickEvery is how often a storer with a rate looks what is due.
const tickEvery = time.Millisecond

// storers connects the references.
func (r *Runner) storers(ctx context.Context, load *TrackingLoad, result *TrackingResult) ([]*storer, error) {
	conns := min(load.Connections, load.References)
	var list []*storer
	for i := range conns {
		conn, err := client.DialLeader(ctx, r.Config, r.Streams[0])
		if err != nil {
			return nil, fmt.Errorf("connection %d: %w", i+1, err)
		}
		result.Broker = conn.Server.Properties
		s := &storer{
			conn: conn, stream: r.Streams[0], total: &r.Counters, rate: float64(load.StoreRate) / float64(conns),
			every: load.QueryEvery, latency: newHistogram(),
		}
		for ref := i; ref < load.References; ref += conns {
			s.refs = append(s.refs, fmt.Sprintf("consumer-%d", ref))
		}
		s.offsets = make([]uint64, len(s.refs))
		list = append(list, s)
	}
	return list, nil
}

// storeAll has all storers store for a while, and returns the first failure.
func storeAll(ctx context.Context, storers []*storer, span time.Duration) error {
	if len(storers) == 0 {
		return wait(ctx, span)
	}
	failures := make(chan error, len(storers))
	for _, s := range storers {
		go func() { failures <- s.run(ctx, span) }()
	}
	var first error
	for range storers {
		if err := <-failures; err != nil && first == nil {
			first = err
		}
	}
	return first
}

func (s *storer) run(ctx context.Context, span time.Duration) error {
	begin, sent := time.Now(), 0
	for elapsed := time.Duration(0); elapsed < span; elapsed = time.Since(begin) {
		n := min(storesAtOnce, s.every-s.unanswered)
		if s.rate > 0 {
			n = min(n, int(s.rate*elapsed.Seconds())-sent)
		}
		if n <= 0 {
			if err := wait(ctx, tickEvery); err != nil {
				return err
			}
			continue
		}
		if err := s.store(n); err != nil {
			return err
		}
		sent += n
		if s.unanswered < s.every {
			continue
		}
		if err := s.query(ctx); err != nil {
			return err
		}
	}
	if s.unanswered == 0 {
		return nil
	}
	return s.query(ctx)
}

// store sends stores of the next n references: each at the last message, as
// consumers that keep up would, and further than before.
func (s *storer) store(n int) error {
	s.frames = s.frames[:0]
	confirmed := s.total.Confirmed.Load()
	command := wire.StoreOffset{Stream: s.stream}
	for range n {
		s.turn = (s.turn + 1) % len(s.refs)
		s.offsets[s.turn] = max(s.offsets[s.turn]+1, confirmed)
		command.Reference, command.Offset = s.refs[s.turn], s.offsets[s.turn]
		s.frames = wire.Append(s.frames, &command)
	}
	s.unanswered += n
	return s.conn.SendFrames(s.frames)
}

// query asks for the last store. The broker takes a connection's commands in
// order, so the answer tells that it has taken all.
func (s *storer) query(ctx context.Context) error {
	begin := time.Now()
	offset, err := s.conn.QueryOffset(ctx, s.refs[s.turn], s.stream)
	record(s.latency, time.Since(begin), 1)
	switch {
	case err != nil && client.Code(err) == 0:
		return err // no answer
	case err != nil || offset != s.offsets[s.turn]:
		s.wrong++
	default:
		s.accepted += uint64(s.unanswered)
	}
	s.unanswered = 0
	return nil
}

// verify asks for every reference that has stored something.
func (s *storer) verify(ctx context.Context) error {
	for i, ref := range s.refs {
		if s.offsets[i] == 0 {
			continue
		}
		offset, err := s.conn.QueryOffset(ctx, ref, s.stream)
		if err != nil && client.Code(err) == 0 {
			return err
		}
		if err != nil || offset != s.offsets[i] {
			s.forgotten++
		}
	}
	return nil
}

// reading reads a stream to its end.
type reading struct {
	published uint64
	progress  chan bool  // true once everything was found; a place for one
	ended     chan error // the subscription's; a place for one

	records, first, gaps uint64
	next                 chunk.Offset
	begun                bool
}

func (r *reading) subscribe(ctx context.Context, conn *client.Conn, stream string) error {
	_, err := conn.Subscribe(ctx, client.ConsumerConfig{
		Stream: stream, Offset: wire.OffsetSpec{Type: wire.OffsetFirst}, Deliver: r.deliver, Credit: 100,
		Ended: func(err error) { r.ended <- err },
	})
	return err
}

func (r *reading) deliver(d *client.Delivery) {
	if !r.begun {
		r.begun, r.first, r.next = true, uint64(d.Header.BaseOffset), d.Header.BaseOffset
	}
	r.gaps += uint64(d.Header.BaseOffset - r.next)
	r.next = d.Header.Next()
	r.records += uint64(d.Header.Records)
	select {
	case <-r.progress: // the older word
	default:
	}
	r.progress <- r.records >= r.published
}
