package client

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// ConsumerConfig says what to read, and how. Stream, Offset and Deliver are
// needed.
type ConsumerConfig struct {
	Stream string
	Offset wire.OffsetSpec
	// Deliver hears of each chunk.
	Deliver func(*Delivery)
	// Credit is how many chunks may be on their way; default 10.
	Credit uint16
	// ManualCredit leaves it to the owner to call Consumer.Credit. Else each
	// chunk is paid for when Deliver returns.
	ManualCredit bool
	// Properties go with Subscribe: name, single-active-consumer, filter.0, …
	Properties map[string]string
	// SkipCRC leaves the data of chunks unchecked.
	SkipCRC bool
	// Update, if set, answers the broker's ConsumerUpdate; without it, a member
	// that becomes active reads from Offset.
	Update func(active bool) wire.OffsetSpec
	// CreditRefused and Ended, if set, hear of refused credits, and of an end
	// that did not come by Close; ErrClosed is that of the connection.
	CreditRefused func(wire.ResponseCode)
	Ended         func(error)
}

// Consumer is a subscription.
type Consumer struct {
	conn  *Conn
	id    uint8
	cfg   ConsumerConfig
	ended atomic.Bool
	// delivery is the reader's own, reused from chunk to chunk; its from is the
	// offset that was asked for.
	delivery Delivery
}

// Subscribe opens a consumer.
func (c *Conn) Subscribe(ctx context.Context, cfg ConsumerConfig) (*Consumer, error) {
	if err := checkNames(cfg.Stream); err != nil {
		return nil, err
	}
	if cfg.Credit == 0 {
		cfg.Credit = 10
	}
	s := &Consumer{conn: c, cfg: cfg}
	s.readFrom(cfg.Offset)
	var err error
	if s.id, err = freeID(c, &c.consumers, s); err != nil {
		return nil, err
	}
	err = c.plain(ctx, func(id uint32) wire.Command {
		return &wire.Subscribe{Correlation: id, SubscriptionID: s.id, Stream: cfg.Stream, Offset: cfg.Offset,
			Credit: cfg.Credit, Properties: wire.PropertiesFrom(cfg.Properties)}
	})
	if err != nil {
		c.consumers[s.id].CompareAndSwap(s, nil)
		return nil, err
	}
	return s, nil
}

// ID is the subscription's id on the wire.
func (s *Consumer) ID() uint8 { return s.id }

// Credit allows n more chunks. It may be called by Deliver.
func (s *Consumer) Credit(n uint16) {
	s.conn.sendSoon(&wire.Credit{SubscriptionID: s.id, Credit: n})
}

// Close unsubscribes. Chunks already on their way are dropped.
func (s *Consumer) Close(ctx context.Context) error {
	s.ended.Store(true)
	if s.conn.consumers[s.id].Load() != s {
		return nil // gone, and the id may be another's
	}
	err := s.conn.plain(ctx, func(id uint32) wire.Command {
		return &wire.Unsubscribe{Correlation: id, SubscriptionID: s.id}
	})
	s.conn.consumers[s.id].CompareAndSwap(s, nil)
	return err
}

func (s *Consumer) end(err error) {
	if !s.ended.Swap(true) && s.cfg.Ended != nil {
		s.cfg.Ended(err)
	}
}

func (s *Consumer) readFrom(spec wire.OffsetSpec) {
	s.delivery.from = 0
	if spec.Type == wire.OffsetAt {
		s.delivery.from = chunk.Offset(spec.Offset)
	}
}

// update answers a ConsumerUpdate.
func (s *Consumer) update(active bool) wire.OffsetSpec {
	var spec wire.OffsetSpec
	if s.cfg.Update != nil {
		spec = s.cfg.Update(active)
	}
	switch {
	case !active:
	case spec.Type == wire.OffsetNone:
		s.readFrom(s.cfg.Offset)
	default:
		s.readFrom(spec)
	}
	return spec
}

// receive checks a chunk and hands it on.
func (s *Consumer) receive(d *wire.Deliver) error {
	if s.ended.Load() {
		return nil
	}
	header, err := chunk.DecodeClient(d.Chunk)
	data := d.Chunk[wire.ChunkHeaderSize:]
	switch {
	case err != nil:
	case !s.cfg.SkipCRC:
		err = header.VerifyData(data)
	case len(data) != int(header.DataLength):
		err = chunk.ErrLength
	}
	if err != nil {
		return fmt.Errorf("chunk at offset %d of %q: %w", header.BaseOffset, s.cfg.Stream, err)
	}
	s.delivery.Header, s.delivery.Data, s.delivery.Committed = header, data, chunk.Offset(d.CommittedChunkID)
	s.cfg.Deliver(&s.delivery)
	if !s.cfg.ManualCredit {
		s.Credit(1)
	}
	return nil
}

// Delivery is one chunk. It is valid during the call to Deliver only.
type Delivery struct {
	Header chunk.Header
	Data   []byte
	// Committed is the base offset of the last committed chunk that the broker
	// knows of; 0 with Deliver version 1.
	Committed chunk.Offset

	from   chunk.Offset
	unpack unpacker
}

// Record is one message. Message is valid until the next one.
type Record struct {
	Offset    chunk.Offset
	Timestamp chunk.Timestamp // the chunk's
	Message   []byte
}

// Records yields the records from the offset asked for on, those of sub-batches
// unpacked. After an error it ends.
func (d *Delivery) Records() iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		going := true
		give := func(offset chunk.Offset, message []byte) {
			if going && offset >= d.from {
				going = yield(Record{Offset: offset, Timestamp: d.Header.Timestamp, Message: message}, nil)
			}
		}
		entries := d.Header.EntriesIn(d.Data)
		for going && entries.Next() {
			e := entries.Entry()
			if !e.SubBatch {
				give(e.Offset, e.Body)
				continue
			}
			if e.Offset+chunk.Offset(e.Records) <= d.from {
				continue
			}
			if err := d.messages(&e, give); err != nil {
				if going {
					yield(Record{Offset: e.Offset}, err)
				}
				return
			}
		}
		if err := entries.Err(); going && err != nil {
			yield(Record{}, err)
		}
	}
}

// messages gives those of a sub-batch.
func (d *Delivery) messages(e *chunk.Entry, give func(chunk.Offset, []byte)) error {
	body, err := d.unpack.unpack(e.Compression, e.Body, int(e.Uncompressed))
	if err != nil {
		return fmt.Errorf("sub-batch at offset %d: %w", e.Offset, err)
	}
	offset := e.Offset
	return chunk.Messages(body, e.Records, func(message []byte) {
		give(offset, message)
		offset++
	})
}
