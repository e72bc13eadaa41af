package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/wire"
)

// rotten is a stream whose files are treated badly while its node is down. All
// messages are of one producer, numbered from 1.
type rotten struct {
	t      *testing.T
	node   *harness.Node
	stream string
	sent   uint64
}

// rot makes a stream of small segments.
func rot(t *testing.T, n *harness.Node, stream string) *rotten {
	t.Helper()
	conn := dialNode(t, n)
	defer conn.Close()
	if err := conn.Create(t.Context(), stream, map[string]string{"stream-max-segment-size-bytes": "65536"}); err != nil {
		t.Fatal(err)
	}
	return &rotten{t: t, node: n, stream: stream}
}

// publish has so many chunks of ten messages confirmed, one after another.
func (r *rotten) publish(chunks, bytes int) {
	r.t.Helper()
	conn := dialNode(r.t, r.node)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(r.t.Context(), usableWithin)
	defer cancel()
	pub, err := r.declare(ctx, conn)
	if err != nil {
		r.t.Fatal(err)
	}
	for range chunks {
		for range 10 {
			r.sent++
			if err := pub.Send(r.sent, harness.AppendMessage(nil, 1, r.sent, bytes)); err != nil {
				r.t.Fatal(err)
			}
		}
		if err := pub.Drain(ctx); err != nil {
			r.t.Fatalf("publish to %s: %v", r.stream, err)
		}
	}
}

func (r *rotten) declare(ctx context.Context, conn *client.Conn) (*client.Publisher, error) {
	return conn.DeclarePublisher(ctx, client.PublisherConfig{Stream: r.stream, Confirmed: func([]uint64) {}})
}

// read reads from a place to the stream's end, or to where it breaks off, and
// checks what comes: no bytes but those that were sent, in their order, with
// dense offsets.
func (r *rotten) read(from wire.OffsetSpec) (messages []uint64, next uint64, err error) {
	r.t.Helper()
	conn := dialNode(r.t, r.node)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(r.t.Context(), usableWithin)
	defer cancel()
	stats, err := conn.Stats(ctx, r.stream)
	if err != nil {
		return nil, 0, err
	}
	end := uint64(stats["committed_offset"] + 1)
	if end == 0 {
		return nil, 0, nil
	}
	done := make(chan error, 2)
	_, err = conn.Subscribe(ctx, client.ConsumerConfig{
		Stream: r.stream, Offset: from, Ended: func(err error) { done <- err },
		Deliver: func(d *client.Delivery) {
			for record, err := range d.Records() {
				if err != nil {
					done <- err
					return
				}
				producer, counter, err := harness.ParseMessage(record.Message)
				offset := uint64(record.Offset)
				n := len(messages)
				if err != nil || producer != 1 || counter == 0 || n > 0 && (counter <= messages[n-1] || offset != next) {
					r.t.Errorf("offset %d holds message %d behind offset %d: %v", offset, counter, next, err)
				}
				messages, next = append(messages, counter), offset+1
			}
			if next >= end {
				done <- nil
			}
		},
	})
	if err != nil {
		return nil, 0, err
	}
	select {
	case err = <-done:
	case <-ctx.Done():
		err = fmt.Errorf("at offset %d of %d: %w", next, end, ctx.Err())
	}
	conn.Close() // Deliver runs no more
	return messages, next, err
}

// wantAll reads everything, and wants the messages from 1 on but for those that
// are lost for good.
func (r *rotten) wantAll(lost ...uint64) {
	r.t.Helper()
	messages, _, err := r.read(wire.OffsetSpec{Type: wire.OffsetFirst})
	if err != nil {
		r.t.Fatalf("read %s: %v", r.stream, err)
	}
	var want []uint64
	for n := uint64(1); n <= r.sent; n++ {
		if !slices.Contains(lost, n) {
			want = append(want, n)
		}
	}
	if !slices.Equal(messages, want) {
		r.t.Fatalf("%s holds %d messages, want %d", r.stream, len(messages), len(want))
	}
}

// dir is the stream's folder.
func (r *rotten) dir() string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(r.node.DataDir, "streams", segstore.Hash(r.stream)+"-*"))
	if err != nil || len(found) != 1 {
		r.t.Fatalf("folders of %s: %v, %v", r.stream, found, err)
	}
	return found[0]
}

// files are the stream's files of a kind, oldest first.
func (r *rotten) files(suffix string) []string {
	r.t.Helper()
	found, err := filepath.Glob(filepath.Join(r.dir(), "*"+suffix))
	if err != nil || len(found) == 0 {
		r.t.Fatalf("no %s files: %v", suffix, err)
	}
	slices.Sort(found)
	return found
}

func (r *rotten) must(err error) {
	r.t.Helper()
	if err != nil {
		r.t.Fatal(err)
	}
}

// stop ends the node in order.
func (r *rotten) stop() {
	r.t.Helper()
	if code := r.node.Stop(); code != 0 {
		r.t.Errorf("the node ended with %d", code)
	}
}

// wantRefused checks that a stream whose end is damaged takes nothing and says
// so, and that another stream is as well as ever.
func (r *rotten) wantRefused(other *rotten) {
	r.t.Helper()
	conn := dialNode(r.t, r.node)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(r.t.Context(), usableWithin)
	defer cancel()
	if _, err := r.declare(ctx, conn); client.Code(err) != wire.CodeStreamNotAvailable {
		r.t.Errorf("declare: %v, want stream not available", err)
	}
	if !slices.ContainsFunc(strings.Split(r.node.LogSinceStart(), "\n"), func(line string) bool {
		return strings.Contains(line, "a log is damaged") && strings.Contains(line, filepath.Base(r.dir()))
	}) {
		r.t.Error("the log does not name the damage")
	}
	if other != nil {
		other.publish(1, 100)
		other.wantAll()
	}
}

// rotChunk is what counts here of a chunk in a file.
type rotChunk struct {
	end         int64 // position behind it
	lsn, synced chunk.LSN
	next        chunk.Offset
}

// chunks lists a file's chunks.
func (r *rotten) chunks(file string) (list []rotChunk) {
	r.t.Helper()
	r.must(segstore.DumpFile(vfs.OS{}, file, r.incarnation(), func(d *segstore.DumpedChunk) error {
		if d.Err != nil {
			return d.Err
		}
		list = append(list, rotChunk{d.Position + d.Bytes, d.Header.LSN, d.Header.SyncedLSN, d.Header.Next()})
		return nil
	}))
	return list
}

func (r *rotten) incarnation() chunk.Incarnation {
	r.t.Helper()
	_, inc, ok := segstore.ParseDirName(filepath.Base(r.dir()))
	if !ok {
		r.t.Fatal(r.dir())
	}
	return inc
}

// mark is the durable mark that the node's journal holds, read from a copy.
func (r *rotten) mark() chunk.LSN {
	r.t.Helper()
	const name = "journal/JOURNAL"
	b, err := os.ReadFile(filepath.Join(r.node.DataDir, name))
	r.must(err)
	dir := r.t.TempDir()
	r.must(os.Mkdir(filepath.Join(dir, "journal"), 0o700))
	r.must(os.WriteFile(filepath.Join(dir, name), b, 0o600))
	store, err := segstore.NewStore(segstore.Options{Dir: dir})
	r.must(err)
	state, ok := store.Journal().State(r.incarnation())
	if err := store.Journal().Lost(); err != nil || !ok {
		r.t.Fatalf("the journal knows nothing of %s: %v", r.stream, err)
	}
	r.must(store.Close())
	return state.Mark
}

// waitForMark waits until the journal covers all that was published, as it does
// after a second without traffic.
func (r *rotten) waitForMark() {
	r.t.Helper()
	list := r.chunks(r.files(".seg")[0])
	last := list[len(list)-1].lsn
	deadline := time.Now().Add(usableWithin)
	for tick := time.NewTicker(100 * time.Millisecond); r.mark() < last; <-tick.C {
		if time.Now().After(deadline) {
			r.t.Fatalf("%s: the mark is %d, want %d", r.stream, r.mark(), last)
		}
	}
}

// with is the same stream under a subtest.
func (r *rotten) with(t *testing.T) *rotten { c := *r; c.t = t; return &c }
