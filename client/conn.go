package client

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/millrace/millrace/wire"
)

// Conn is an open connection. Its methods may be called by any goroutine, but
// those that wait for an answer not by a callback.
type Conn struct {
	Server Server

	cfg Config
	raw *Raw

	writing sync.Mutex // held while frames are written
	wrote   atomic.Bool

	// urgent is what the reader wants sent; wake tells the tender.
	urgentMu sync.Mutex
	urgent   []byte
	wake     chan struct{}

	// leaving is set when the owner ends the connection: whatever happens next
	// is ErrClosed.
	leaving atomic.Bool

	mu          sync.Mutex // guards what follows, and the choice of ids
	correlation uint32
	pending     map[uint32]chan wire.Command
	err         error // why done is closed
	done        chan struct{}
	loops       sync.WaitGroup

	publishers [256]atomic.Pointer[Publisher]
	consumers  [256]atomic.Pointer[Consumer]

	// The reader's own, reused from frame to frame.
	confirm wire.PublishConfirm
	refused wire.PublishError
	deliver wire.Deliver
}

// Dial connects, authenticates and opens the virtual host.
func Dial(ctx context.Context, cfg Config) (*Conn, error) {
	cfg = cfg.withDefaults()
	ctx, cancel := context.WithTimeout(ctx, cfg.Timeout)
	defer cancel()
	raw, err := dialRaw(ctx, cfg)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { raw.Close() })
	server, err := raw.Handshake(cfg)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		raw.Close()
		return nil, err
	}
	c := &Conn{Server: server, cfg: cfg, raw: raw, wake: make(chan struct{}, 1), correlation: 5,
		pending: map[uint32]chan wire.Command{}, done: make(chan struct{})}
	c.loops.Go(c.read)
	c.loops.Go(c.tend)
	return c, nil
}

// DialLeader connects to the broker that leads the stream: by way of the one
// at cfg.Addr, which may be it. It waits for a leader until ctx ends, at most
// cfg.Timeout; so it does where nobody listens at the leader's address, which has
// ended, and another one is to be elected.
func DialLeader(ctx context.Context, cfg Config, stream string) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, cfg.withDefaults().Timeout)
	defer cancel()
	c, err := Dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	for {
		addr, err := c.awaitLeader(ctx, stream)
		if err == nil && addr == c.Server.AdvertisedAddr {
			return c, nil
		}
		var leader *Conn
		if err == nil {
			cfg.Addr = addr
			leader, err = Dial(ctx, cfg)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) || !pause(ctx) {
			c.Close()
			return leader, err
		}
	}
}

// pause waits before Metadata is asked again; false: ctx has ended.
func pause(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(50 * time.Millisecond):
		return true
	}
}

func (c *Conn) awaitLeader(ctx context.Context, stream string) (string, error) {
	for {
		addr, err := c.Leader(ctx, stream)
		if !errors.Is(err, ErrNoLeader) {
			return addr, err
		}
		if !pause(ctx) {
			return "", fmt.Errorf("stream %q: %w", stream, ErrNoLeader)
		}
	}
}

// Leader returns host:port of the stream's leader, ErrNoLeader if it has none.
func (c *Conn) Leader(ctx context.Context, stream string) (string, error) {
	m, err := c.Metadata(ctx, stream)
	if err != nil {
		return "", err
	}
	for s := range m.Streams.All() {
		if s.Stream != stream {
			continue
		}
		if err := check(wire.KeyMetadata, s.Code); err != nil {
			return "", err
		}
		for b := range m.Brokers.All() {
			if b.Reference == s.Leader {
				return net.JoinHostPort(b.Host, strconv.FormatUint(uint64(b.Port), 10)), nil
			}
		}
	}
	return "", ErrNoLeader
}

// Close takes leave of the broker and ends the connection. It is nil if the
// connection had ended already.
func (c *Conn) Close() error {
	defer c.loops.Wait()
	if c.Err() != nil {
		return nil
	}
	c.leaving.Store(true)
	ctx, cancel := context.WithTimeout(context.Background(), c.cfg.Timeout)
	defer cancel()
	id := c.nextID()
	_, err := c.call(ctx, id, &wire.Close{Correlation: id, Code: wire.CodeOK, Reason: "OK"})
	c.fail(ErrClosed)
	return err
}

// Abort drops the connection without a word, as a killed process does.
func (c *Conn) Abort() {
	c.leaving.Store(true)
	c.fail(ErrClosed)
	c.loops.Wait()
}

// Done is closed when the connection has ended; Err then says why.
func (c *Conn) Done() <-chan struct{} { return c.done }

// Err is nil while the connection lives.
func (c *Conn) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// fail ends the connection and everything on it; the first reason stays.
func (c *Conn) fail(err error) {
	if c.leaving.Load() {
		err = ErrClosed
	}
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	close(c.done)
	c.mu.Unlock()
	c.raw.Close()
	for i := range c.publishers {
		if p := c.publishers[i].Load(); p != nil {
			p.end(err)
		}
		if s := c.consumers[i].Load(); s != nil {
			s.end(err)
		}
	}
}

// write sends whole frames. It waits while the broker does not read.
func (c *Conn) write(frames []byte) error {
	c.writing.Lock()
	_, err := c.raw.Write(frames)
	c.writing.Unlock()
	c.wrote.Store(true)
	if err != nil {
		c.fail(err)
		return c.Err()
	}
	return nil
}

// SendCommand sends a command that is not answered, or whose answer is dropped.
func (c *Conn) SendCommand(command wire.Command) error { return c.write(wire.Append(nil, command)) }

// SendFrames sends frames that the caller has encoded with wire.Append, all in
// one write.
func (c *Conn) SendFrames(frames []byte) error { return c.write(frames) }

func (c *Conn) nextID() uint32 {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.correlation = (c.correlation + 1) & 0x7fffffff
	return c.correlation
}

// call sends a request with the correlation id and waits for the answer.
func (c *Conn) call(ctx context.Context, id uint32, request wire.Command) (wire.Command, error) {
	if _, set := ctx.Deadline(); !set {
		bounded, cancel := context.WithTimeout(ctx, c.cfg.Timeout)
		defer cancel()
		ctx = bounded
	}
	answer := make(chan wire.Command, 1)
	c.mu.Lock()
	c.pending[id] = answer
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		delete(c.pending, id)
		c.mu.Unlock()
	}()
	if err := c.write(wire.Append(nil, request)); err != nil {
		return nil, fmt.Errorf("%s: %w", request.Key(), err)
	}
	select {
	case a := <-answer:
		return a, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("%s: no answer: %w", request.Key(), ctx.Err())
	case <-c.done:
	}
	select { // the answer may have come just before the end
	case a := <-answer:
		return a, nil
	default:
		return nil, fmt.Errorf("%s: %w", request.Key(), c.Err())
	}
}

// read is the reading goroutine.
func (c *Conn) read() {
	for {
		payload, err := c.raw.Next()
		if err == nil {
			err = c.receive(payload)
		}
		if err != nil {
			c.fail(err)
			return
		}
	}
}

// receive handles one frame; the frequent ones without an allocation.
func (c *Conn) receive(payload []byte) error {
	switch key, _ := wire.Header(payload); key {
	case wire.KeyPublishConfirm:
		if err := c.confirm.Decode(payload); err != nil {
			return err
		}
		if p := c.publishers[c.confirm.PublisherID].Load(); p != nil {
			p.confirmed(c.confirm.IDs)
		}
		return nil
	case wire.KeyPublishError:
		if err := c.refused.Decode(payload); err != nil {
			return err
		}
		if p := c.publishers[c.refused.PublisherID].Load(); p != nil {
			p.refused(c.refused.Errors)
		}
		return nil
	case wire.KeyDeliver:
		if err := c.deliver.Decode(payload); err != nil {
			return err
		}
		if s := c.consumers[c.deliver.SubscriptionID].Load(); s != nil {
			return s.receive(&c.deliver)
		}
		return nil
	}
	command, err := wire.FromServer(payload)
	if err != nil {
		return err
	}
	return c.receiveCommand(command, payload)
}

func (c *Conn) receiveCommand(command wire.Command, payload []byte) error {
	switch x := command.(type) {
	case *wire.Heartbeat:
	case *wire.CreditResponse:
		if s := c.consumers[x.SubscriptionID].Load(); s != nil && s.cfg.CreditRefused != nil {
			s.cfg.CreditRefused(x.Code)
		}
	case *wire.MetadataUpdate:
		c.streamGone(x)
	case *wire.ConsumerUpdate:
		answer := &wire.ConsumerUpdateResponse{Correlation: x.Correlation, Code: wire.CodeOK}
		if s := c.consumers[x.SubscriptionID].Load(); s != nil {
			answer.Offset = s.update(x.Active)
		}
		c.sendSoon(answer)
	case *wire.Close:
		_ = c.raw.SetDeadline(time.Now().Add(time.Second))
		_ = c.SendCommand(&wire.Response{To: wire.KeyClose, Correlation: x.Correlation, Code: wire.CodeOK})
		return &ClosedError{Code: x.Code, Reason: x.Reason}
	default:
		if !command.Key().IsAnswer() {
			return fmt.Errorf("unexpected %s", command.Key())
		}
		id := binary.BigEndian.Uint32(payload[wire.HeaderSize:])
		c.mu.Lock()
		waiting := c.pending[id]
		delete(c.pending, id)
		c.mu.Unlock()
		if waiting != nil {
			waiting <- command
		}
	}
	return nil
}

// streamGone ends what the broker says is gone.
func (c *Conn) streamGone(m *wire.MetadataUpdate) {
	err := fmt.Errorf("%w: %q", ErrStreamUnavailable, m.Stream)
	for i := range c.publishers {
		if p := c.publishers[i].Load(); p != nil && p.cfg.Stream == m.Stream {
			c.publishers[i].CompareAndSwap(p, nil)
			p.end(err)
		}
		if s := c.consumers[i].Load(); s != nil && s.cfg.Stream == m.Stream {
			c.consumers[i].CompareAndSwap(s, nil)
			s.end(err)
		}
	}
	if c.cfg.MetadataUpdate != nil {
		c.cfg.MetadataUpdate(m.Stream, m.Code)
	}
}

// sendSoon has the tender send a command; the reader never waits for writing.
func (c *Conn) sendSoon(command wire.Command) {
	c.urgentMu.Lock()
	c.urgent = wire.Append(c.urgent, command)
	c.urgentMu.Unlock()
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// tend is the goroutine that sends what is urgent and keeps the heartbeats.
func (c *Conn) tend() {
	var ticks <-chan time.Time
	if c.Server.Heartbeat > 0 {
		ticker := time.NewTicker(c.Server.Heartbeat / 2)
		defer ticker.Stop()
		ticks = ticker.C
	}
	var frames []byte
	silent := 0 // half intervals
	for {
		select {
		case <-c.done:
			return
		case <-c.wake:
			c.urgentMu.Lock()
			frames, c.urgent = c.urgent, frames[:0]
			c.urgentMu.Unlock()
			if c.write(frames) != nil {
				return
			}
		case <-ticks:
			if silent++; c.raw.heard.Swap(false) {
				silent = 0
			}
			if silent > 4 {
				c.fail(ErrSilent)
				return
			}
			if !c.wrote.Swap(false) && c.SendCommand(&wire.Heartbeat{}) != nil {
				return
			}
		}
	}
}

// freeID puts x under the lowest id that is free.
func freeID[T any](c *Conn, in *[256]atomic.Pointer[T], x *T) (uint8, error) {
	for i := range in {
		if in[i].CompareAndSwap(nil, x) {
			return uint8(i), nil
		}
	}
	return 0, ErrIDs
}
