package integration

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// retained is a node whose streams' limits are at work: the smallest segments,
// and a short time between two looks. Every message says its offset, since one
// publisher writes a stream, so each read proves what it reads.
type retained struct {
	t    *testing.T
	node *harness.Node
	conn *client.Conn
	next map[string]int // offset of the stream's next message
}

const (
	smallSegment = 64 << 10 // the least that a segment may be
	messageBytes = 1000
	// unitMessages fill a segment and no more: the next message begins another.
	unitMessages = smallSegment/messageBytes + 1
)

var retainOften = []string{"--retention-interval", "100ms"}

func newRetained(t *testing.T, args ...string) *retained {
	t.Helper()
	r := &retained{t: t, node: harness.Start(t, append(retainOften, args...)...), next: map[string]int{}}
	r.connect()
	return r
}

func (r *retained) connect() {
	r.t.Helper()
	r.conn = dialNode(r.t, r.node)
	conn := r.conn
	r.t.Cleanup(func() { conn.Abort() })
}

// restart starts the node again after stop has ended it.
func (r *retained) restart(stop func()) {
	r.t.Helper()
	r.conn.Abort()
	stop()
	r.node.Restart()
	r.connect()
}

func (r *retained) context() context.Context {
	ctx, cancel := context.WithTimeout(r.t.Context(), usableWithin)
	r.t.Cleanup(cancel)
	return ctx
}

func (r *retained) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// create makes a stream of small segments; pairs are its other arguments.
func (r *retained) create(stream string, pairs ...string) {
	r.t.Helper()
	arguments := map[string]string{"stream-max-segment-size-bytes": strconv.Itoa(smallSegment)}
	for i := 0; i < len(pairs); i += 2 {
		arguments[pairs[i]] = pairs[i+1]
	}
	r.must(r.conn.Create(r.context(), stream, arguments))
}

// message is what the record at an offset holds.
func message(offset int) []byte {
	return fmt.Appendf(nil, "%d %s", offset, strings.Repeat("x", messageBytes-10))
}

// publish writes messages and has them confirmed.
func (r *retained) publish(stream string, count int) {
	r.t.Helper()
	r.must(r.tryPublish(r.context(), stream, count))
}

func (r *retained) tryPublish(ctx context.Context, stream string, count int) error {
	pub, err := r.conn.DeclarePublisher(ctx, client.PublisherConfig{Stream: stream})
	if err != nil {
		return err
	}
	for range count {
		if _, err := pub.Publish(message(r.next[stream])); err != nil {
			return err
		}
		r.next[stream]++
	}
	if err := pub.Drain(ctx); err != nil {
		return err
	}
	return pub.Close(ctx)
}

// units writes whole units, one after the other.
func (r *retained) units(stream string, count int) {
	r.t.Helper()
	for range count {
		r.publish(stream, unitMessages)
	}
}

// stats returns the first offset that is there and the one behind the last. An
// empty stream tells -1 on the wire, for both.
func (r *retained) stats(stream string) (first, next int) {
	r.t.Helper()
	stats, err := r.conn.Stats(r.context(), stream)
	r.must(err)
	if stats["first_chunk_id"] < 0 {
		s := r.describe(stream)
		return int(s.FirstOffset), int(s.NextOffset)
	}
	return int(stats["first_chunk_id"]), int(stats["committed_offset"]) + 1
}

func (r *retained) describe(stream string) (s admin.Stream) {
	r.t.Helper()
	r.must(r.node.Call("GET", "/api/v1/streams/%2F/"+stream, nil, &s))
	return s
}

// limit changes one limit of a stream.
func (r *retained) limit(stream, key, value string) {
	r.t.Helper()
	r.must(r.node.Call("PUT", "/api/v1/streams/%2F/"+stream+"/retention", map[string]string{key: value}, nil))
}

// read returns the offset of the first record that a reader from a place gets,
// having read up to the stream's end.
func (r *retained) read(stream string, from wire.OffsetSpec) (first int) {
	r.t.Helper()
	first, _, err := readDense(r.context(), r.conn, stream, from, r.next[stream])
	r.must(err)
	return first
}

var fromFirst = wire.OffsetSpec{Type: wire.OffsetFirst}

func fromOffset(o int) wire.OffsetSpec {
	return wire.OffsetSpec{Type: wire.OffsetAt, Offset: uint64(o)}
}

// readDense reads from a place up to an offset, and proves that no record is
// missing, doubled or another's. jumps counts where records were left out.
func readDense(ctx context.Context, conn *client.Conn, stream string, from wire.OffsetSpec, end int) (first, jumps int, err error) {
	first = -1
	due := -1
	done := make(chan error, 1)
	finish := func(err error) {
		select {
		case done <- err:
		default:
		}
	}
	over := false
	consumer, err := conn.Subscribe(ctx, client.ConsumerConfig{
		Stream: stream, Offset: from, Ended: finish,
		Deliver: func(d *client.Delivery) {
			for record, err := range d.Records() {
				if err != nil {
					finish(err)
					return
				}
				offset := int(record.Offset)
				text, _, _ := strings.Cut(string(record.Message), " ")
				switch said, err := strconv.Atoi(text); {
				case over:
					return
				case err != nil || said != offset:
					finish(fmt.Errorf("the record at offset %d says %.20q", offset, record.Message))
					return
				case offset < due:
					finish(fmt.Errorf("offset %d comes behind %d", offset, due-1))
					return
				case first < 0:
					first = offset
				case offset > due:
					jumps++
				}
				due = offset + 1
				if due >= end {
					over = true
					finish(nil)
					return
				}
			}
		},
	})
	if err != nil {
		return 0, 0, err
	}
	select {
	case err = <-done:
	case <-ctx.Done():
		err = fmt.Errorf("read %s to offset %d: %w", stream, end, ctx.Err())
	}
	return first, jumps, errorsOf(err, consumer.Close(ctx))
}

// errorsOf is the first error: what is closed after a failure fails too.
func errorsOf(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// wantQuietLog finds no line of the level error.
func (r *retained) wantQuietLog() {
	r.t.Helper()
	for line := range strings.Lines(r.node.Log()) {
		if strings.Contains(line, "[ERROR]") {
			r.t.Errorf("the node complains: %s", line)
		}
	}
}
