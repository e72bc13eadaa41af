package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/wire"
)

// Counters are read by whoever shows progress.
type Counters struct{ Sent, Confirmed, Consumed atomic.Uint64 }

// Runner runs loads against one broker.
type Runner struct {
	Config  client.Config
	Streams []string // one or more; producers and consumers take turns on them
	Server  *Process // nil: not watched
	// Here has consumers read from the broker at Config.Addr, whether it leads
	// their streams or not.
	Here bool
	Counters
}

// Produce publishes as fast as the window allows, or at the load's rate, and
// waits for all confirms.
func (r *Runner) Produce(ctx context.Context, load Load) (Result, error) {
	result := Result{Kind: "produce", Load: load, Started: time.Now()}
	producers, err := r.producers(ctx, load, &result)
	if err != nil {
		return result, err
	}
	begin := time.Now()
	if err := r.run(ctx, producers, begin); err != nil {
		return result, err
	}
	elapsed := time.Since(begin)
	confirms := newHistogram()
	for _, p := range producers {
		confirms.Merge(p.latency)
		result.Messages += p.confirmed
		result.Refused += p.refused
		p.conn.Close()
	}
	result.Confirm = summary(confirms)
	result.finish(result.Messages*uint64(load.Size), elapsed)
	return result, r.Server.into(&result)
}

// run runs all producers and returns the first failure.
func (r *Runner) run(ctx context.Context, producers []*producer, begin time.Time) error {
	failures := make(chan error, len(producers))
	for _, p := range producers {
		go func() { failures <- p.run(ctx, begin) }()
	}
	var first error
	for range producers {
		if err := <-failures; err != nil && first == nil {
			first = err
		}
	}
	return first
}

// producer publishes on a connection of its own.
type producer struct {
	load  Load // its own share
	conn  *client.Conn
	pub   *client.Publisher
	total *Counters
	body  []byte

	// due holds when each frame in flight was due, by number modulo its length.
	due   []atomic.Int64 // nanoseconds since the epoch
	frame uint64         // number of the frame in the making

	mu                 sync.Mutex // guards what confirms write
	latency            *hdrhistogram.Histogram
	confirmed, refused uint64
}

func (r *Runner) producers(ctx context.Context, load Load, result *Result) ([]*producer, error) {
	var list []*producer
	for i := range load.Producers {
		share := load
		share.Messages = load.Messages / uint64(load.Producers)
		if uint64(i) < load.Messages%uint64(load.Producers) {
			share.Messages++
		}
		share.Rate = load.Rate / load.Producers
		p, err := r.producer(ctx, share, r.Streams[i%len(r.Streams)])
		if err != nil {
			return nil, fmt.Errorf("producer %d: %w", i+1, err)
		}
		list = append(list, p)
	}
	result.Broker = list[0].conn.Server.Properties
	return list, nil
}

func (r *Runner) producer(ctx context.Context, load Load, stream string) (*producer, error) {
	conn, err := client.DialLeader(ctx, r.Config, stream)
	if err != nil {
		return nil, err
	}
	p := &producer{
		load: load, conn: conn, total: &r.Counters, body: make([]byte, max(load.Size, 8)), latency: newHistogram(),
		due: make([]atomic.Int64, load.Window/load.Frame+2),
	}
	p.pub, err = conn.DeclarePublisher(ctx, client.PublisherConfig{
		Stream: stream, FrameMessages: load.Frame, Window: load.Window,
		Confirmed: p.confirm,
		Refused: func(list []wire.PublishingError) {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.refused += uint64(len(list))
		},
	})
	if err != nil {
		conn.Close()
		return nil, err
	}
	return p, nil
}

// confirm records, for each frame that ids touch, how late its confirm is.
// Publishing ids count from 1, so id n is in frame (n − 1) / Frame.
func (p *producer) confirm(ids []uint64) {
	now := time.Now().UnixNano()
	p.mu.Lock()
	defer p.mu.Unlock()
	for i := 0; i < len(ids); {
		frame := (ids[i] - 1) / uint64(p.load.Frame)
		n := i + 1
		for n < len(ids) && (ids[n]-1)/uint64(p.load.Frame) == frame {
			n++
		}
		due := p.due[frame%uint64(len(p.due))].Load()
		record(p.latency, time.Duration(now-due), int64(n-i))
		i = n
	}
	p.confirmed += uint64(len(ids))
	p.total.Confirmed.Add(uint64(len(ids)))
}

func (p *producer) run(ctx context.Context, begin time.Time) error {
	end := begin.Add(p.load.Time)
	for sent := uint64(0); p.load.Messages == 0 || sent < p.load.Messages; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		now := time.Now()
		if p.load.Messages == 0 && !now.Before(end) {
			break
		}
		due := now
		if p.load.Rate > 0 {
			due = begin.Add(time.Duration(float64(sent) / float64(p.load.Rate) * 1e9))
			time.Sleep(due.Sub(now))
		}
		n := uint64(p.load.Frame)
		if p.load.Messages > 0 {
			n = min(n, p.load.Messages-sent)
		}
		if err := p.sendFrame(due, int(n)); err != nil {
			return err
		}
		sent += n
	}
	if err := p.pub.Drain(ctx); err != nil {
		return err
	}
	return nil
}

// sendFrame sends n messages that were due at the time; each begins with it.
func (p *producer) sendFrame(due time.Time, n int) error {
	p.due[p.frame%uint64(len(p.due))].Store(due.UnixNano())
	p.frame++
	binary.BigEndian.PutUint64(p.body, uint64(due.UnixNano()))
	for range n {
		if _, err := p.pub.Publish(p.body[:p.load.Size]); err != nil {
			return err
		}
	}
	p.total.Sent.Add(uint64(n))
	return p.pub.Flush()
}
