package bench

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// Consume reads each consumer's stream from the first record on until it has
// read load.Messages, which must be there.
func (r *Runner) Consume(ctx context.Context, load Load) (Result, error) {
	result := Result{Kind: "consume", Load: load, Started: time.Now()}
	begin := time.Now()
	consumers, err := r.consumers(ctx, load, wire.OffsetSpec{Type: wire.OffsetFirst}, nil)
	if err != nil {
		return result, err
	}
	result.Broker = consumers[0].conn.Server.Properties
	bytes, err := r.collect(ctx, consumers, &result)
	if err != nil {
		return result, err
	}
	result.finish(bytes, time.Since(begin))
	return result, r.Server.into(&result)
}

// collect waits until all consumers have read their share.
func (r *Runner) collect(ctx context.Context, consumers []*consumer, result *Result) (bytes uint64, err error) {
	for _, c := range consumers {
		select {
		case err := <-c.done:
			if err != nil {
				return 0, err
			}
		case <-ctx.Done():
			return 0, ctx.Err()
		}
	}
	for _, c := range consumers {
		c.conn.Close() // deliver runs no more behind this
		result.Messages += c.taken
		result.OutOfOrder += c.disorder
		bytes += c.bytes
	}
	return bytes, nil
}

// consumer reads on a connection of its own.
type consumer struct {
	conn     *client.Conn
	total    *Counters
	messages uint64 // stop after so many
	done     chan error
	latency  *hdrhistogram.Histogram // nil: only chunks are looked at

	taken, bytes, disorder uint64
	next                   chunk.Offset
	begun, ended           bool
}

func (r *Runner) consumers(ctx context.Context, load Load, from wire.OffsetSpec, latencies func() *hdrhistogram.Histogram) ([]*consumer, error) {
	var list []*consumer
	for i := range load.Consumers {
		stream := r.Streams[i%len(r.Streams)]
		conn, err := r.dialReplica(ctx, stream)
		if err != nil {
			return nil, fmt.Errorf("consumer %d: %w", i+1, err)
		}
		c := &consumer{conn: conn, total: &r.Counters, messages: load.Messages, done: make(chan error, 1)}
		if latencies != nil {
			c.latency = latencies()
		}
		if _, err := conn.Subscribe(ctx, client.ConsumerConfig{
			Stream: stream, Offset: from, Deliver: c.deliver, Credit: 100,
			Ended: func(err error) { c.end(fmt.Errorf("consumer %d: %w", i+1, err)) },
		}); err != nil {
			return nil, fmt.Errorf("consumer %d: %w", i+1, err)
		}
		list = append(list, c)
	}
	return list, nil
}

// dialReplica connects to a broker from which a stream is read.
func (r *Runner) dialReplica(ctx context.Context, stream string) (*client.Conn, error) {
	if r.Here {
		return client.Dial(ctx, r.Config)
	}
	return client.DialLeader(ctx, r.Config, stream)
}

func (c *consumer) deliver(d *client.Delivery) {
	if c.ended {
		return
	}
	if c.begun && d.Header.BaseOffset != c.next {
		c.disorder++
	}
	c.begun, c.next = true, d.Header.Next()
	n := uint64(d.Header.Records)
	c.bytes += uint64(d.Header.DataLength)
	if c.latency != nil {
		if err := c.measure(d); err != nil {
			c.end(err)
			return
		}
	}
	c.taken += n
	c.total.Consumed.Add(n)
	if c.messages > 0 && c.taken >= c.messages {
		c.end(nil)
	}
}

// measure records how late each record of the chunk is.
func (c *consumer) measure(d *client.Delivery) error {
	now := time.Now().UnixNano()
	for m, err := range d.Records() {
		if err != nil {
			return err
		}
		if len(m.Message) < 8 {
			return errors.New("a message that the benchmark did not send")
		}
		due := int64(binary.BigEndian.Uint64(m.Message))
		record(c.latency, time.Duration(now-due), 1)
	}
	return nil
}

// end tells once that the consumer is done. It runs on the connection's
// goroutine alone.
func (c *consumer) end(err error) {
	if !c.ended {
		c.ended = true
		c.done <- err
	}
}

// EndToEnd publishes at a fixed rate and measures from when a message was due
// to when a consumer has it.
func (r *Runner) EndToEnd(ctx context.Context, load Load) (Result, error) {
	result := Result{Kind: "e2e", Load: load, Started: time.Now()}
	if load.Messages == 0 {
		load.Messages = uint64(load.Time.Seconds() * float64(load.Rate))
	}
	expected := load
	expected.Messages = load.Messages / uint64(len(r.Streams))
	consumers, err := r.consumers(ctx, expected, wire.OffsetSpec{Type: wire.OffsetNext}, newHistogram)
	if err != nil {
		return result, err
	}
	producers, err := r.producers(ctx, load, &result)
	if err != nil {
		return result, err
	}
	begin := time.Now()
	if err := r.run(ctx, producers, begin); err != nil {
		return result, err
	}
	bytes, err := r.collect(ctx, consumers, &result)
	if err != nil {
		return result, err
	}
	confirms, latency := newHistogram(), newHistogram()
	for _, p := range producers {
		confirms.Merge(p.latency)
		result.Refused += p.refused
		p.conn.Close()
	}
	for _, c := range consumers {
		latency.Merge(c.latency)
	}
	result.Confirm, result.EndToEnd = summary(confirms), summary(latency)
	result.finish(bytes, time.Since(begin))
	return result, r.Server.into(&result)
}
