package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// PublisherConfig says what to publish to, and how. Only Stream is needed.
type PublisherConfig struct {
	Stream string
	// Reference makes the broker drop what it has already; publishing ids then
	// go on behind the last one that it knows.
	Reference string
	// FrameMessages is how many messages go into a frame; default 100.
	FrameMessages int
	// Window is how many messages may be neither confirmed nor refused before
	// publishing waits; default 10,000.
	Window int
	// Confirmed and Refused, if set, hear of messages frame by frame, in the
	// order of arrival. The slices are valid during the call only.
	Confirmed func(ids []uint64)
	Refused   func(refused []wire.PublishingError)
}

// Publisher gathers messages into frames. Its sending methods are for one
// goroutine. A message is on its way once its frame is full, or flushed.
type Publisher struct {
	conn *Conn
	id   uint8
	cfg  PublisherConfig
	pack packer

	frame   wire.PublishBuilder
	buf     []byte
	version uint16 // of the frame being built
	last    uint64 // the last publishing id that Publish has given

	mu      sync.Mutex // guards what follows
	changed sync.Cond
	open    int // sent, neither confirmed nor refused
	err     error
}

// DeclarePublisher opens a publisher.
func (c *Conn) DeclarePublisher(ctx context.Context, cfg PublisherConfig) (*Publisher, error) {
	if err := checkNames(cfg.Stream, cfg.Reference); err != nil {
		return nil, err
	}
	if cfg.FrameMessages <= 0 {
		cfg.FrameMessages = 100
	}
	if cfg.Window <= 0 {
		cfg.Window = 10_000
	}
	p := &Publisher{conn: c, cfg: cfg}
	p.changed.L = &p.mu
	var err error
	if p.id, err = freeID(c, &c.publishers, p); err != nil {
		return nil, err
	}
	err = c.plain(ctx, func(id uint32) wire.Command {
		return &wire.DeclarePublisher{Correlation: id, PublisherID: p.id, Reference: cfg.Reference, Stream: cfg.Stream}
	})
	if err != nil {
		c.publishers[p.id].CompareAndSwap(p, nil)
		return nil, err
	}
	if cfg.Reference != "" {
		if p.last, err = c.QuerySequence(ctx, cfg.Reference, cfg.Stream); err != nil {
			return nil, errors.Join(err, p.Close(ctx))
		}
	}
	return p, nil
}

// ID is the publisher's id on the wire.
func (p *Publisher) ID() uint8 { return p.id }

// Last is the publishing id that Publish gave last: for a reference, at first,
// the last that the broker knows.
func (p *Publisher) Last() uint64 { return p.last }

// Publish adds a message under the next publishing id, which it returns.
func (p *Publisher) Publish(message []byte) (uint64, error) {
	p.last++
	return p.last, p.Send(p.last, message)
}

// Send adds a message under a publishing id of the caller's choice.
func (p *Publisher) Send(id uint64, message []byte) error {
	if p.version != 1 || p.frame.Count() == 0 || p.frame.Size()+len(message)+12 > p.frameMax() {
		if err := p.begin(1, 12+len(message)); err != nil {
			return err
		}
	}
	p.frame.Add(id, message)
	return p.flushIfFull()
}

// SendFiltered adds a message with a filter value.
func (p *Publisher) SendFiltered(id uint64, filter string, message []byte) error {
	if err := checkNames(filter); err != nil {
		return err
	}
	if err := p.begin(2, 14+len(filter)+len(message)); err != nil {
		return err
	}
	p.frame.AddFiltered(id, filter, message)
	return p.flushIfFull()
}

// SendSubBatch adds messages as one entry under one publishing id.
func (p *Publisher) SendSubBatch(id uint64, compression chunk.Compression, messages ...[]byte) error {
	if len(messages) > math.MaxUint16 {
		return fmt.Errorf("sub-batch of %d messages: %w", len(messages), ErrTooLarge)
	}
	packed, size, err := p.pack.pack(compression, messages)
	if err != nil {
		return err
	}
	if err := p.begin(1, 19+len(packed)); err != nil {
		return err
	}
	p.frame.AddSubBatch(id, uint8(compression), uint16(len(messages)), uint32(size), packed)
	return p.flushIfFull()
}

func (p *Publisher) frameMax() int {
	if p.conn.Server.FrameMax == 0 {
		return math.MaxInt32
	}
	return int(p.conn.Server.FrameMax)
}

// begin sees to it that a frame of the version is open with room for size
// bytes.
func (p *Publisher) begin(version uint16, size int) error {
	if size+wire.PublishOverhead-12 > p.frameMax() {
		return fmt.Errorf("%w: entry of %d bytes in frames of %d", ErrTooLarge, size, p.frameMax())
	}
	if p.frame.Count() > 0 && (p.version != version || p.frame.Size()+size > p.frameMax()) {
		if err := p.Flush(); err != nil {
			return err
		}
	}
	if p.frame.Count() == 0 {
		p.version = version
		p.frame.Begin(p.buf[:0], version, p.id)
	}
	return nil
}

func (p *Publisher) flushIfFull() error {
	if p.frame.Count() < p.cfg.FrameMessages {
		return nil
	}
	return p.Flush()
}

// Flush sends the messages gathered so far, when the window has room for them.
func (p *Publisher) Flush() error {
	n := p.frame.Count()
	if n == 0 {
		return p.Err()
	}
	p.buf = p.frame.End()
	p.frame = wire.PublishBuilder{}
	if err := p.reserve(n); err != nil {
		return err
	}
	return p.conn.write(p.buf)
}

// reserve waits until n more messages fit into the window; a frame larger than
// the window waits until nothing is open.
func (p *Publisher) reserve(n int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.err == nil && p.open > 0 && p.open+n > p.cfg.Window {
		p.changed.Wait()
	}
	if p.err != nil {
		return p.err
	}
	p.open += n
	return nil
}

// Drain flushes, and waits until every message is confirmed or refused.
func (p *Publisher) Drain(ctx context.Context) error {
	if err := p.Flush(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.changed.Broadcast()
	})
	defer stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.err == nil && p.open > 0 && ctx.Err() == nil {
		p.changed.Wait()
	}
	if p.err == nil && p.open > 0 {
		return fmt.Errorf("%d messages not confirmed: %w", p.open, ctx.Err())
	}
	return p.err
}

// Unconfirmed is how many messages were sent and neither confirmed nor refused.
func (p *Publisher) Unconfirmed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.open
}

// Err is nil while the publisher can send.
func (p *Publisher) Err() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

// Close deletes the publisher. What is not flushed is dropped.
func (p *Publisher) Close(ctx context.Context) error {
	p.end(ErrClosed)
	if p.conn.publishers[p.id].Load() != p {
		return nil // gone, and the id may be another's
	}
	err := p.conn.plain(ctx, func(id uint32) wire.Command {
		return &wire.DeletePublisher{Correlation: id, PublisherID: p.id}
	})
	p.conn.publishers[p.id].CompareAndSwap(p, nil)
	return err
}

func (p *Publisher) confirmed(ids []uint64) {
	if p.cfg.Confirmed != nil {
		p.cfg.Confirmed(ids)
	}
	p.settle(len(ids))
}

func (p *Publisher) refused(refused []wire.PublishingError) {
	if p.cfg.Refused != nil {
		p.cfg.Refused(refused)
	}
	p.settle(len(refused))
}

func (p *Publisher) settle(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.open -= n
	p.changed.Broadcast()
}

func (p *Publisher) end(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.err == nil {
		p.err = err
	}
	p.changed.Broadcast()
}
