package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// describeSettings make rolls, control rolls and compactions of seconds' work.
var describeSettings = []string{
	"MILLRACE_TRACKING__INTERVAL_MIN=5ms", "MILLRACE_TRACKING__INTERVAL_MAX=20ms",
	"MILLRACE_TRACKING__INTERVAL_LONGEST=50ms", "MILLRACE_TRACKING__CONTROL_ROLL_BYTES=4096",
}

const (
	describeReferences = 50
	// What must have happened before the counts are worth a look.
	describeDroppedLeast = 10_000
	describeRetired      = 2_000
)

// TestDescribe_countsExactly: after tracking, compaction, retention and restarts
// `stream describe -o json` says how many messages there are, to the message,
// and what its segments' bytes are for.
func TestDescribe_countsExactly(t *testing.T) {
	t.Parallel()
	d := &describeTest{t: t, node: harness.Start(t, describeSettings...)}
	d.conn = dialNode(t, d.node)
	err := d.conn.Create(t.Context(), "orders", map[string]string{"max-length-bytes": "600000", "stream-max-segment-size-bytes": "65536"})
	if err != nil {
		t.Fatal(err)
	}
	for range 20 { // more than the limit allows
		d.publish()
		d.store()
	}
	d.until("messages are retired", func(s *admin.Stream) bool { return s.FirstOffset >= describeRetired })
	d.until("tracking is compacted", func(s *admin.Stream) bool {
		d.store()
		return s.Compaction.Dropped >= describeDroppedLeast
	})
	d.publish()
	s := d.describe()
	d.check("live")

	d.conn.Close()
	if code := d.node.Stop(); code != 0 {
		t.Errorf("the node ends with %d", code)
	}
	d.offline()
	d.node.Restart()
	d.conn = dialNode(t, d.node)
	d.check("after a restart")
	d.references()

	for range 3 { // behind the restart all goes on
		d.publish()
		d.store()
	}
	d.node.Kill()
	d.node.Restart()
	d.conn = dialNode(t, d.node)
	defer d.conn.Close()
	d.check("after kill -9")
	t.Logf("FIGURE stream describe: counts exact to the message with %d messages retired and %d B of tracking compacted away, live, after SIGTERM and after kill -9",
		s.FirstOffset, s.Compaction.Dropped)
}

type describeTest struct {
	t      *testing.T
	node   *harness.Node
	conn   *client.Conn
	id     uint64
	stored uint64
}

// publish publishes simple entries and a sub-batch, whose records count alone.
func (d *describeTest) publish() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), usableWithin)
	defer cancel()
	pub, err := d.conn.DeclarePublisher(ctx, client.PublisherConfig{Stream: "orders"})
	if err != nil {
		d.t.Fatal(err)
	}
	message := func() []byte { d.id++; return harness.AppendMessage(nil, 1, d.id, 100) }
	for range 400 {
		if err := pub.Send(d.id, message()); err != nil {
			d.t.Fatal(err)
		}
	}
	if err := pub.SendSubBatch(d.id, chunk.CompressionGzip, message(), message(), message(), message(), message(), message(), message()); err != nil {
		d.t.Fatal(err)
	}
	if err := pub.Drain(ctx); err != nil {
		d.t.Fatal(err)
	}
	if err := pub.Close(ctx); err != nil {
		d.t.Fatal(err)
	}
}

// store stores an offset under each reference, and waits until they are written.
func (d *describeTest) store() {
	d.t.Helper()
	d.stored++
	for i := range describeReferences {
		if err := d.conn.StoreOffset(fmt.Sprintf("reader-%02d", i), "orders", d.stored); err != nil {
			d.t.Fatal(err)
		}
	}
	d.until("stored offsets are written", func(s *admin.Stream) bool {
		return s.StoredOffsets == describeReferences && s.StoredOffsetsPending == 0
	})
}

// until waits for what the node tells of the stream.
func (d *describeTest) until(what string, condition func(*admin.Stream) bool) {
	d.t.Helper()
	for deadline := time.Now().Add(usableWithin); ; {
		body, err := d.node.Get("/api/v1/streams/%2F/orders")
		if err != nil {
			d.t.Fatal(err)
		}
		var s admin.Stream
		if err := json.Unmarshal(body, &s); err != nil {
			d.t.Fatal(err)
		}
		if condition(&s) {
			return
		}
		if time.Now().After(deadline) {
			d.t.Fatalf("still not: %s: %+v", what, s)
		}
	}
}

func (d *describeTest) describe() admin.Stream {
	d.t.Helper()
	var s admin.Stream
	d.command(&s, "stream", "describe", "orders", "-o", "json")
	return s
}

// command runs the command line and decodes what it prints.
func (d *describeTest) command(into any, args ...string) {
	d.t.Helper()
	path, err := harness.Binary()
	if err != nil {
		d.t.Fatal(err)
	}
	cmd := exec.CommandContext(d.t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "MILLRACE_ADDR="+d.node.HTTP)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, into)
	}
	if err != nil {
		d.t.Fatalf("millrace %v: %v\n%s", args, err, out)
	}
}

// check holds what is told of the stream and its segments against each other and
// against a full read.
func (d *describeTest) check(when string) {
	d.t.Helper()
	s := d.describe()
	var segments []admin.Segment
	d.command(&segments, "segment", "list", "orders", "-o", "json")
	read := d.read(s.NextOffset)
	if s.NextOffset != d.id || s.Messages != s.NextOffset-s.FirstOffset || s.Messages != read {
		d.t.Errorf("%s: %d published, told %d messages from %d up to %d; a full read finds %d",
			when, d.id, s.Messages, s.FirstOffset, s.NextOffset, read)
	}
	d.sums(when, &s, segments)
	if s.TrackingBytes > s.TrackingBound || s.TrackingBytes == 0 {
		d.t.Errorf("%s: tracking takes %d of %d bytes", when, s.TrackingBytes, s.TrackingBound)
	}
}

// sums: what is told of the stream is what is told of its segments, and what
// lies on the disk.
func (d *describeTest) sums(when string, s *admin.Stream, segments []admin.Segment) {
	d.t.Helper()
	var sum admin.Bytes
	var records, droppable, files uint64
	for _, g := range segments {
		sum.User += g.Bytes.User
		sum.Trailer += g.Bytes.Trailer
		sum.Delta += g.Bytes.Delta
		sum.Snapshot += g.Bytes.Snapshot
		sum.Filter += g.Bytes.Filter
		sum.Index += g.Bytes.Index
		records += g.Records
		droppable += g.Droppable
		files += g.Bytes.Disk
	}
	sum.Disk = s.Bytes.Disk // without the footers
	if sum != s.Bytes || records != s.Messages || len(segments) != s.Segments || droppable != s.Compaction.Droppable {
		d.t.Errorf("%s: the stream has %d messages, %d segments, %+v, %+v; its segments %d, %d, %+v, %d droppable",
			when, s.Messages, s.Segments, s.Bytes, s.Compaction, records, len(segments), sum, droppable)
	}
	found, err := filepath.Glob(filepath.Join(d.node.DataDir, "streams", "*", "*.seg"))
	if err != nil {
		d.t.Fatal(err)
	}
	var bytes uint64
	for _, name := range found {
		if info, err := os.Stat(name); err == nil {
			bytes += uint64(info.Size())
		}
	}
	if bytes != files {
		d.t.Errorf("%s: the files have %d bytes, segment list tells %d", when, bytes, files)
	}
}

// offline: the files of the stopped node say the same.
func (d *describeTest) offline() {
	d.t.Helper()
	var segments []admin.Segment
	d.command(&segments, "segment", "list", "orders", "--data-dir", d.node.DataDir, "-o", "json")
	records, first := uint64(0), segments[0].FirstOffset
	for _, g := range segments {
		records += g.Records
	}
	if first+records != d.id {
		d.t.Errorf("the files hold %d messages from %d on, %d were published", records, first, d.id)
	}
}

// references: each answers its last value, with its exact lag.
func (d *describeTest) references() {
	d.t.Helper()
	var list []admin.Reference
	d.command(&list, "tracking", "list", "orders", "-o", "json")
	if len(list) != describeReferences {
		d.t.Errorf("%d references, want %d", len(list), describeReferences)
	}
	for _, r := range list {
		if r.Value != d.stored || r.Lag == nil || *r.Lag != d.id-1-d.stored || r.LagMS == nil {
			d.t.Errorf("%+v, want value %d and lag %d", r, d.stored, d.id-1-d.stored)
		}
	}
}

// read counts the messages that a consumer gets up to the offset end.
func (d *describeTest) read(end uint64) uint64 {
	d.t.Helper()
	conn := dialNode(d.t, d.node)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(d.t.Context(), usableWithin)
	defer cancel()
	var n uint64
	done := make(chan error, 1)
	var once sync.Once
	finish := func(err error) { once.Do(func() { done <- err }) }
	_, err := conn.Subscribe(ctx, client.ConsumerConfig{
		Stream: "orders", Offset: wire.OffsetSpec{Type: wire.OffsetFirst}, Ended: finish,
		Deliver: func(delivery *client.Delivery) {
			for record, err := range delivery.Records() {
				if err != nil {
					finish(err)
					return
				}
				n++
				if uint64(record.Offset)+1 == end {
					finish(nil)
				}
			}
		},
	})
	if err != nil {
		d.t.Fatal(err)
	}
	select {
	case err := <-done:
		conn.Close() // Deliver runs no more
		if err != nil {
			d.t.Fatal(err)
		}
	case <-ctx.Done():
		d.t.Fatalf("read %d messages, not up to %d", n, end)
	}
	return n
}
