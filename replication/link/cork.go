package link

import (
	"net"
	"sync"
)

// cork collects what TLS writes, a record at a time, so that many records leave
// by one system call. Until it is put in, it lets everything through.
type cork struct {
	net.Conn
	mu  sync.Mutex // TLS also writes from reads
	in  bool
	buf []byte
}

const corkBytes = 256 << 10

func (c *cork) put() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in = true
}

func (c *cork) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.in {
		return c.Conn.Write(p)
	}
	c.buf = append(c.buf, p...)
	if len(c.buf) < corkBytes {
		return len(p), nil
	}
	return len(p), c.flush()
}

// Flush sends what was collected.
func (c *cork) Flush() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.flush()
}

func (c *cork) flush() error {
	if len(c.buf) == 0 {
		return nil
	}
	_, err := c.Conn.Write(c.buf)
	c.buf = c.buf[:0]
	return err
}
