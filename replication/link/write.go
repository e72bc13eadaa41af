package link

import (
	"net"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
)

var noTime time.Time

// writer is what write keeps between batches.
type writer struct {
	batch   []item
	control []byte
	runs    net.Buffers // of the batch; WriteTo eats its slice, not its memory
	eaten   net.Buffers
	staged  []byte
}

// write sends what is queued until the connection breaks; it returns why.
func (c *conn) write() error {
	w := &writer{}
	every := time.NewTicker(c.b.peer.links.config.HeartbeatEvery)
	defer every.Stop()
	if c.cork != nil {
		c.cork.put()
	}
	for {
		select {
		case <-c.wake:
		case <-every.C:
			c.tick()
		case <-c.b.broken:
			return c.b.err
		}
		for {
			more, err := c.flush(w)
			if err != nil {
				return err
			}
			if !more {
				break
			}
		}
	}
}

// tick says that this end is there, if it has said nothing else, and tells what
// it owes. Streams at rest cost nothing.
func (c *conn) tick() {
	c.mu.Lock()
	c.flow.tick(func(s chunk.Incarnation, n int) {
		c.control = appendControl(c.control, &control{kind: kindCredit, stream: s, bytes: uint32(n)})
	})
	if !c.written.Swap(false) && len(c.control) == 0 {
		c.control = appendControl(c.control, &control{kind: kindHeartbeat})
	}
	c.mu.Unlock()
	if c.serves {
		c.expire(time.Now())
	}
}

// flush writes one batch; false if nothing was there.
func (c *conn) flush(w *writer) (bool, error) {
	c.mu.Lock()
	w.control, c.control = c.control, w.control[:0]
	w.batch = c.queue.batch(w.batch[:0])
	c.mu.Unlock()
	if len(w.control)+len(w.batch) == 0 {
		return false, nil
	}
	bytes := w.gather()
	config := &c.b.peer.links.config
	err := c.net.SetWriteDeadline(time.Now().Add(config.HeartbeatTimeout + time.Duration(bytes)*time.Second/slowestBytes))
	if err == nil {
		err = c.put(w)
	}
	c.written.Store(true)
	for i := range w.batch {
		if h := w.batch[i].held; h != nil {
			h.Release()
		}
	}
	c.mu.Lock()
	up := c.queue.done(w.batch)
	c.mu.Unlock()
	clear(w.batch)
	clear(w.runs)
	for _, s := range up {
		c.b.peer.links.handler.StreamUp(c.b.peer.node, s)
	}
	c.b.peer.links.sent.Add(int64(bytes))
	return true, err
}

// gather lists the batch's runs of bytes, in order.
func (w *writer) gather() (bytes int) {
	w.runs = w.runs[:0]
	add := func(p []byte) {
		if len(p) > 0 {
			w.runs = append(w.runs, p)
			bytes += len(p)
		}
	}
	add(w.control)
	for i := range w.batch {
		it := &w.batch[i]
		add(it.header[:it.size])
		add(it.large)
		add(it.head)
		add(it.data)
	}
	return bytes
}

// stagedMax is what is copied together for TLS, which takes one run at a time.
const stagedMax = 16 << 10

// put writes the runs: as they are where the kernel takes many at once, else
// the small ones together.
func (c *conn) put(w *writer) error {
	if c.plain {
		w.eaten = w.runs
		_, err := w.eaten.WriteTo(c.net)
		return err
	}
	w.staged = w.staged[:0]
	for _, p := range w.runs {
		if len(w.staged)+len(p) > stagedMax && len(w.staged) > 0 {
			if _, err := c.net.Write(w.staged); err != nil {
				return err
			}
			w.staged = w.staged[:0]
		}
		if len(p) < stagedMax {
			w.staged = append(w.staged, p...)
			continue
		}
		if _, err := c.net.Write(p); err != nil {
			return err
		}
	}
	if len(w.staged) > 0 {
		if _, err := c.net.Write(w.staged); err != nil {
			return err
		}
	}
	return c.cork.Flush()
}
