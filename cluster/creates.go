package cluster

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
)

const (
	// createsMax bounds the creates that wait for their command. It is far
	// above what clients have in flight; one beyond it waits for its turn.
	createsMax = 1_024
	// createPatience bounds the wait for a command that carries creates.
	createPatience = 10 * time.Second
)

// creates collects the creates that arrive while a command is on its way, so
// that the next command carries them all: placed one after the other, synced
// once.
type creates struct {
	queue chan *creation
}

// creation is one create and its answer.
type creation struct {
	ctx     context.Context // of who waits for it
	request CreateStream
	// over is set by who comes first: the answer, or the end of the wait for it.
	over atomic.Bool
	// answered is closed when err is set.
	answered chan struct{}
	err      error
}

func newCreates() *creates { return &creates{queue: make(chan *creation, createsMax)} }

// errGivenUp: who asked for a create waits no longer, and its command is on its way.
var errGivenUp = fmt.Errorf("%w: the outcome is unknown", ErrUnavailable)

// ask queues a create and waits until it is in the catalog, or refused. Given up
// before its command is on the way, it is never made; later, it is taken back
// once it is (hand), and the error is errGivenUp.
func (q *creates) ask(ctx, stopped context.Context, request CreateStream) error {
	x := &creation{ctx: ctx, request: request, answered: make(chan struct{})}
	select {
	case q.queue <- x:
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	case <-stopped.Done():
		return ErrStopped
	}
	select {
	case <-x.answered:
		return x.err
	case <-ctx.Done():
		if !x.over.CompareAndSwap(false, true) {
			<-x.answered
			return x.err
		}
		return fmt.Errorf("%w: %w", errGivenUp, ctx.Err())
	case <-stopped.Done():
		return ErrStopped
	}
}

// next waits for a create and takes all that wait with it; nil is the stop.
func (q *creates) next(stopped context.Context) []*creation {
	var batch []*creation
	select {
	case x := <-q.queue:
		batch = append(batch, x)
	case <-stopped.Done():
		return nil
	}
	for len(batch) < createsMax {
		select {
		case x := <-q.queue:
			batch = append(batch, x)
		default:
			return batch
		}
	}
	return batch
}

// create carries creates out, batch by batch.
func (c *Cluster) create() {
	for batch := c.creates.next(c.done); batch != nil; batch = c.creates.next(c.done) {
		c.createBatch(batch)
		c.hand(batch)
	}
}

// hand gives who asked for a batch its outcomes, and takes back the streams
// that were made for nobody.
func (c *Cluster) hand(batch []*creation) {
	command := &catalog.DeleteStreams{}
	for _, x := range batch {
		waits := x.over.CompareAndSwap(false, true)
		close(x.answered)
		if x.err == nil && !waits {
			command.Streams = append(command.Streams, x.request.old())
		}
	}
	if len(command.Streams) == 0 {
		return
	}
	if err := c.undo(c.done, command); err != nil {
		c.log.Warn("streams that nobody waited for were made, and stay", "first", command.Streams[0].Name, "streams", len(command.Streams), "error", err)
	}
}

// createBatch places streams and proposes all of them in one command.
func (c *Cluster) createBatch(batch []*creation) {
	placer := catalog.NewPlacer(c.View(), c.coord.isUp)
	command := &catalog.CreateStreams{}
	var asked []*creation
	for _, x := range batch {
		if x.ctx.Err() != nil {
			x.err = errGivenUp
			continue
		}
		stream, err := c.newStream(placer, x.request)
		if err != nil {
			x.err = err
			continue
		}
		command.Streams = append(command.Streams, stream)
		asked = append(asked, x)
	}
	if len(asked) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(c.done, createPatience)
	defer cancel()
	result, err := c.Propose(ctx, command)
	for i, x := range asked {
		if x.err = err; err == nil {
			x.err = result.Outcomes[i].Err()
		}
	}
}

// newStream draws an incarnation and chooses nodes. A name that is taken is
// left to the command to refuse, even if no node could hold it.
func (c *Cluster) newStream(placer *catalog.Placer, request CreateStream) (catalog.NewStream, error) {
	place, err := placer.Place(catalog.Wanted{
		Arguments: request.Arguments, Local: request.Local, Salt: uint64(request.Incarnation),
	})
	if _, taken := c.View().Stream(request.VHost, request.Name); err != nil && !taken {
		return catalog.NewStream{}, err
	}
	return catalog.NewStream{
		VHost: request.VHost, Name: request.Name, Arguments: request.Arguments, Creator: request.Creator,
		Incarnation: request.Incarnation, Replicas: place.Replicas, Preferred: place.Leader,
	}, nil
}

// drawIncarnation returns 64 random bits, but not 0.
func drawIncarnation() chunk.Incarnation {
	var b [8]byte
	for {
		rand.Read(b[:]) // never fails
		if i := binary.BigEndian.Uint64(b[:]); i != 0 {
			return chunk.Incarnation(i)
		}
	}
}
