package link

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/replication/protocol"
)

// Request is what another node asks of this one.
type Request struct {
	Method   uint16
	Body     []byte // the receiver's
	Deadline time.Time
	conn     *conn
	id       uint64
	bytes    int // of Body
	answered atomic.Bool
}

// Response is an answer. What methods and statuses mean is the callers'; those
// from StatusReserved on are the link's.
type Response struct {
	Status uint16
	Body   []byte
}

// Statuses that the link gives itself.
const (
	StatusReserved = 0xff00
	statusBacklog  = 0xfffe // the answer could not be queued
	statusExpired  = 0xffff // the node did not answer in time
)

// Reply answers, once, from any goroutine. The body must not change any more.
func (r *Request) Reply(status uint16, body []byte) {
	if r.answered.Swap(true) {
		return
	}
	c := r.conn
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return
	}
	delete(c.asks.serving, r.id)
	c.asks.served -= r.bytes
	if len(body) > bodyMax || c.queue.plain.bytes+len(body) > 2*c.b.peer.links.config.RequestBytes {
		status, body = statusBacklog, nil
	}
	c.queue.pushPlain(&control{kind: kindResponse, id: r.id, method: status, body: len(body)}, body)
	c.poke()
}

// asks are the requests of both directions that wait for an answer.
type asks struct {
	last    uint64
	waiting map[uint64]*ask     // by this node
	bytes   int                 // of their bodies
	serving map[uint64]*Request // by the peer
	served  int                 // bytes of their bodies
	room    chan struct{}       // closed when an answer came
}

type ask struct {
	done     func(Response, error) // nil: given up
	bytes    int
	deadline time.Time
}

func (a *asks) init() {
	a.waiting, a.serving, a.room = map[uint64]*ask{}, map[uint64]*Request{}, make(chan struct{})
}

// Ask sends a request without waiting; done hears of the answer once, from a
// goroutine of the link, and must not block. Requests to a node arrive in the
// order asked. The body must not change until then.
func (l *Links) Ask(to protocol.NodeID, method uint16, body []byte, deadline time.Time, done func(Response, error)) error {
	_, err := l.ask(to, method, body, deadline, done)
	return err
}

func (l *Links) ask(to protocol.NodeID, method uint16, body []byte, deadline time.Time, done func(Response, error)) (room chan struct{}, err error) {
	if len(body) > bodyMax {
		return nil, fmt.Errorf("request of %d bytes: %w", len(body), ErrTooLarge)
	}
	p := l.find(to)
	if p == nil {
		return nil, ErrUnreachable
	}
	b := p.up.Load()
	if b == nil {
		return nil, ErrUnreachable
	}
	left := time.Until(deadline).Milliseconds()
	if left <= 0 {
		return nil, ErrTimeout
	}
	c := b.requests()
	c.mu.Lock()
	defer c.mu.Unlock()
	a := &c.asks
	switch {
	case c.closed:
		return nil, ErrUnreachable
	case len(a.waiting) >= l.config.Requests || a.bytes > 0 && a.bytes+len(body) > l.config.RequestBytes:
		return a.room, ErrBacklog
	}
	a.last++
	a.waiting[a.last] = &ask{done, len(body), deadline}
	a.bytes += len(body)
	ctl := control{kind: kindRequest, id: a.last, method: method, timeout: uint32(min(left, 1<<31)), body: len(body)}
	c.queue.pushPlain(&ctl, body)
	c.poke()
	return nil, nil
}

// requestTimeout is the deadline of a request whose context has none.
const requestTimeout = 30 * time.Second

// Request asks and waits for the answer; for room too, where too many wait.
func (l *Links) Request(ctx context.Context, to protocol.NodeID, method uint16, body []byte) (Response, error) {
	deadline, has := ctx.Deadline()
	if !has {
		deadline = time.Now().Add(requestTimeout)
	}
	type outcome struct {
		r   Response
		err error
	}
	came := make(chan outcome, 1)
	for {
		room, err := l.ask(to, method, body, deadline, func(r Response, err error) { came <- outcome{r, err} })
		if err == nil {
			break
		}
		if !errors.Is(err, ErrBacklog) {
			return Response{}, err
		}
		select {
		case <-room:
		case <-ctx.Done():
			return Response{}, fmt.Errorf("%w: %w", ErrBacklog, ctx.Err())
		}
	}
	select {
	case o := <-came:
		return o.r, o.err
	case <-ctx.Done():
		return Response{}, fmt.Errorf("%w: %w", ErrTimeout, ctx.Err())
	}
}

// answered takes a response.
func (c *conn) answered(ctl *control) error {
	body, err := c.body(ctl.body)
	if err != nil {
		return err
	}
	c.mu.Lock()
	a := c.asks.waiting[ctl.id]
	if a == nil {
		c.mu.Unlock()
		return fmt.Errorf("response %d to nothing: %w", ctl.id, ErrFrame)
	}
	delete(c.asks.waiting, ctl.id)
	c.asks.bytes -= a.bytes
	close(c.asks.room)
	c.asks.room = make(chan struct{})
	done := a.done
	c.mu.Unlock()
	if done == nil {
		return nil
	}
	switch ctl.method {
	case statusExpired:
		done(Response{}, ErrTimeout)
	case statusBacklog:
		done(Response{}, ErrBacklog)
	default:
		done(Response{ctl.method, body}, nil)
	}
	return nil
}

func (c *conn) body(n int) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	if c.reader.Buffered() < n {
		c.in.allow(n)
	}
	return c.grow(n)
}

// asked takes a request. More than the peer has credit for breaks the link.
func (c *conn) asked(ctl *control) error {
	config := &c.b.peer.links.config
	c.mu.Lock()
	a := &c.asks
	over := len(a.serving) >= config.Requests || a.served > 0 && a.served+ctl.body > config.RequestBytes
	_, twice := c.asks.serving[ctl.id]
	c.mu.Unlock()
	if over || twice {
		return fmt.Errorf("request %d, %d wait: %w", ctl.id, config.Requests, ErrCredit)
	}
	body, err := c.body(ctl.body)
	if err != nil {
		return err
	}
	r := &Request{
		Method: ctl.method, Body: body, conn: c, id: ctl.id, bytes: len(body),
		Deadline: time.Now().Add(time.Duration(ctl.timeout) * time.Millisecond),
	}
	c.mu.Lock()
	c.asks.serving[ctl.id] = r
	c.asks.served += len(body)
	c.mu.Unlock()
	c.b.peer.links.handler.Serve(c.b.peer.node, r)
	return nil
}

// expire gives up what has waited beyond its deadline, in both directions.
func (c *conn) expire(now time.Time) {
	var late []*Request
	var given []func(Response, error)
	c.mu.Lock()
	for _, a := range c.asks.waiting {
		if a.done != nil && now.After(a.deadline) {
			given = append(given, a.done)
			a.done = nil // its credit is free when the peer answers
		}
	}
	for _, r := range c.asks.serving {
		if now.After(r.Deadline) {
			late = append(late, r)
		}
	}
	c.mu.Unlock()
	for _, r := range late {
		r.Reply(statusExpired, nil)
	}
	for _, done := range given {
		done(Response{}, ErrTimeout)
	}
}

// failAsks tells everyone who waits that no answer will come.
func (c *conn) failAsks(err error) {
	c.mu.Lock()
	waiting := c.asks.waiting
	c.asks.waiting, c.asks.serving = map[uint64]*ask{}, map[uint64]*Request{}
	close(c.asks.room)
	c.asks.room = make(chan struct{})
	c.mu.Unlock()
	for _, a := range waiting {
		if a.done != nil {
			a.done(Response{}, fmt.Errorf("%w: %w", ErrUnreachable, err))
		}
	}
}
