package harness

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// Copy is what one replica holds of a stream's messages, as its files or the
// clients of its node tell: a line for each user chunk.
type Copy struct {
	// Where it was seen, for the words of problems.
	Where       string
	First, Next chunk.Offset
	Chunks      []Line
	// Problem is what is wrong with it taken alone.
	Problem error
}

// Line stands for a user chunk: it holds all that the running digest covers, so
// that equal lines are equal messages.
type Line struct {
	Base    chunk.Offset
	Records uint32
	Time    chunk.Timestamp
	Epoch   chunk.Epoch
	CRC     uint32 // of the data, which is checked where the line is made
}

func newCopy(where string, first chunk.Offset) Copy {
	return Copy{Where: where, First: first, Next: first}
}

// add takes the next user chunk: offsets are dense.
func (c *Copy) add(h *chunk.Header) {
	if h.BaseOffset != c.Next {
		c.fail("K2: a chunk begins at offset %d where %d is due", h.BaseOffset, c.Next)
	}
	c.Chunks = append(c.Chunks, Line{h.BaseOffset, h.Records, h.Timestamp, h.Epoch, h.DataCRC})
	c.Next = h.Next()
}

func (c *Copy) fail(format string, args ...any) {
	c.Problem = errors.Join(c.Problem, fmt.Errorf(c.Where+": "+format, args...))
}

// from are the chunks that begin at an offset or above.
func (c *Copy) from(o chunk.Offset) []Line {
	for i := range c.Chunks {
		if c.Chunks[i].Base >= o {
			return c.Chunks[i:]
		}
	}
	return nil
}

// SameMessages compares two copies from the later of their log starts on, which
// may differ.
func (c *Copy) SameMessages(other *Copy) error {
	if c.Next != other.Next {
		return fmt.Errorf("replicas differ in their ends: offset %d %s, %d %s", c.Next, c.Where, other.Next, other.Where)
	}
	first := max(c.First, other.First)
	a, b := c.from(first), other.from(first)
	for i := range max(len(a), len(b)) {
		switch {
		case i >= len(a):
			return fmt.Errorf("replicas differ: %s lacks chunk %+v, which is %s", c.Where, b[i], other.Where)
		case i >= len(b):
			return fmt.Errorf("replicas differ: %s lacks chunk %+v, which is %s", other.Where, a[i], c.Where)
		case a[i] != b[i]:
			return fmt.Errorf("replicas differ in a chunk: %+v %s, %+v %s", a[i], c.Where, b[i], other.Where)
		}
	}
	return nil
}

// ReadCopy has a client read what a node's replica of a stream holds, from one
// offset up to another.
func (n *Node) ReadCopy(stream string, first, next uint64) Copy {
	return n.ReadCopyWithin(stream, first, next, time.Minute)
}

// ReadCopyWithin is ReadCopy with a bound on how long it may take.
func (n *Node) ReadCopyWithin(stream string, first, next uint64, patience time.Duration) Copy {
	c := newCopy(fmt.Sprintf("as readers of node %s see it", n.Name), chunk.Offset(first))
	if first == next {
		return c
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	conn, err := client.Dial(ctx, client.Config{Addr: n.Stream, Name: "checker"})
	if err != nil {
		c.fail("dial: %w", err)
		return c
	}
	defer conn.Abort()
	done := make(chan error, 1)
	end := func(err error) {
		select {
		case done <- err:
		default:
		}
	}
	_, err = conn.Subscribe(ctx, client.ConsumerConfig{
		Stream: stream, Offset: wire.FromOffset(first), Ended: end, // CRCs are checked by the client
		Deliver: func(d *client.Delivery) {
			if len(c.Chunks) == 0 { // retention may have gone on
				c.First, c.Next = d.Header.BaseOffset, d.Header.BaseOffset
			}
			c.add(&d.Header)
			if uint64(c.Next) >= next {
				end(nil)
			}
		},
	})
	if err == nil {
		select {
		case err = <-done:
		case <-conn.Done():
			err = conn.Err()
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	conn.Abort() // from here on nothing is delivered any more
	if err != nil {
		c.fail("reading ended at offset %d of %d: %w", c.Next, next, err)
	}
	return c
}
