package harness

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/wire"
)

// Watcher is a reader on one node that reads a stream as it grows, whatever
// happens to the node's links, and remembers what it saw at each offset. What a
// reader has seen must not vanish, and must not change.
type Watcher struct {
	node, stream string
	seed         maphash.Seed
	cancel       context.CancelFunc
	done         chan struct{}

	mu       sync.Mutex // guards all below
	seen     []uint64   // hashes, by offset
	problems []error
	// reached is closed when seen has as many records as target says.
	target  uint64
	reached chan struct{} // nil: nobody waits
}

// Watch begins to read a stream on a node, from its first record.
func Watch(n *Node, stream string, seed maphash.Seed) *Watcher {
	ctx, cancel := context.WithCancel(context.Background())
	w := &Watcher{node: n.Name, stream: stream, seed: seed, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		for ctx.Err() == nil {
			w.read(ctx, n.Stream)
			select {
			case <-ctx.Done():
			case <-time.After(redial):
			}
		}
	}()
	return w
}

// read reads over one connection, as long as it lasts.
func (w *Watcher) read(ctx context.Context, addr string) {
	attempt, cancel := context.WithTimeout(ctx, dialPatience)
	defer cancel()
	conn, err := client.Dial(attempt, client.Config{Addr: addr, Name: "watcher", Timeout: dialPatience})
	if err != nil {
		return
	}
	defer conn.Abort()
	ended := make(chan struct{})
	var once sync.Once
	_, err = conn.Subscribe(attempt, client.ConsumerConfig{
		Stream: w.stream, Offset: wire.FromOffset(w.Next()),
		Ended: func(error) { once.Do(func() { close(ended) }) },
		Deliver: func(d *client.Delivery) {
			for record, err := range d.Records() {
				if err != nil {
					w.problem(err)
					return
				}
				w.Record(uint64(record.Offset), record.Message)
			}
		},
	})
	if err != nil {
		return
	}
	select {
	case <-ended:
	case <-conn.Done():
	case <-ctx.Done():
	}
}

// Record takes a record that the reader got.
func (w *Watcher) Record(offset uint64, body []byte) {
	w.mu.Lock()
	defer w.mu.Unlock()
	hash := maphash.Bytes(w.seed, body)
	switch next := uint64(len(w.seen)); {
	case offset == next:
		w.seen = append(w.seen, hash)
		w.arrived()
	case offset > next:
		w.fail(fmt.Errorf("offset %d where %d is due", offset, next))
	case w.seen[offset] != hash:
		w.fail(fmt.Errorf("offset %d holds something else than before", offset))
	}
}

func (w *Watcher) problem(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.fail(err)
}

// fail expects mu to be held.
func (w *Watcher) fail(err error) {
	if len(w.problems) < problemsMax {
		w.problems = append(w.problems, fmt.Errorf("reader of %s on %s: %w", w.stream, w.node, err))
	}
}

// Next is the offset that the reader waits for.
func (w *Watcher) Next() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return uint64(len(w.seen))
}

// arrived expects mu to be held.
func (w *Watcher) arrived() {
	if w.reached != nil && uint64(len(w.seen)) >= w.target {
		close(w.reached)
		w.reached = nil
	}
}

// Await waits until the reader has seen all before an offset. One caller at a
// time.
func (w *Watcher) Await(ctx context.Context, next uint64) error {
	w.mu.Lock()
	reached := make(chan struct{})
	w.target, w.reached = next, reached
	w.arrived()
	w.mu.Unlock()
	select {
	case <-reached:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("reader of %s on %s is at offset %d, and not at %d: %w", w.stream, w.node, w.Next(), next, ctx.Err())
	}
}

// Stop ends the reading.
func (w *Watcher) Stop() {
	w.cancel()
	<-w.done
}

// Against holds what was seen against what is there at the end, read by final.
func (w *Watcher) Against(final *Watcher) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	final.mu.Lock()
	defer final.mu.Unlock()
	problems := append([]error(nil), w.problems...)
	for offset, hash := range w.seen {
		switch {
		case offset >= len(final.seen):
			problems = append(problems, fmt.Errorf("reader of %s on %s saw %d records, and %d are there", w.stream, w.node, len(w.seen), len(final.seen)))
		case final.seen[offset] != hash:
			problems = append(problems, fmt.Errorf("reader of %s on %s saw something else at offset %d than is there", w.stream, w.node, offset))
		default:
			continue
		}
		break
	}
	return errors.Join(problems...)
}
