package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/millrace/inspect"
	"github.com/millrace/millrace/cmd/millrace/node"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// smallSegments is a node that rolls and compacts within seconds, with a stream
// of the smallest segments.
func smallSegments(t *testing.T, settings ...string) *describeTest {
	t.Helper()
	d := &describeTest{t: t, node: harness.Start(t, slices.Concat(describeSettings, settings)...)}
	d.conn = dialNode(t, d.node)
	t.Cleanup(func() { d.conn.Close() })
	if err := d.conn.Create(t.Context(), "orders", map[string]string{"stream-max-segment-size-bytes": "65536"}); err != nil {
		t.Fatal(err)
	}
	return d
}

func (d *describeTest) lastOffset() int64 {
	d.t.Helper()
	stats, err := d.conn.Stats(d.t.Context(), "orders")
	if err != nil {
		d.t.Fatal(err)
	}
	return stats["committed_offset"]
}

// A stored offset reaches the disk with nobody publishing, and takes no offset
// (TR-02).
func TestStored_reachTheDiskWithoutPublisher(t *testing.T) {
	t.Parallel()
	d := smallSegments(t)
	d.publish()
	for round := range uint64(6) {
		last := d.lastOffset()
		d.mustStore("reader", 10+round)
		d.until("the stored offset is written", func(s *admin.Stream) bool { return s.StoredOffsetsPending == 0 && s.StoredOffsets == 1 })
		d.kill()
		d.wantStored(fmt.Sprintf("kill %d", round), "reader", 10+round)
		publishMore(t, d.conn, harness.NewLedger(), 1, 1)
		if got := d.lastOffset(); got != last+1 {
			t.Errorf("the message behind offset %d and a stored offset has offset %d", last, got)
		}
	}
}

const (
	publishersKept    = 255
	publishersEvicted = 50
)

// Beyond the cap the least recently writing publishers go; who stays is
// de-duplicated as before, over rolls, a stop and a kill (TR-04).
func TestStored_publisherCap(t *testing.T) {
	t.Parallel()
	d := smallSegments(t, fmt.Sprint("MILLRACE_TRACKING__PUBLISHERS=", publishersKept))
	send := func(i int) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), usableWithin)
		defer cancel()
		pub, err := d.conn.DeclarePublisher(ctx, client.PublisherConfig{Stream: "orders", Reference: fmt.Sprintf("publisher-%03d", i)})
		if err != nil {
			t.Fatal(err)
		}
		err = pub.Send(uint64(1000+i), harness.AppendMessage(nil, uint32(i), 1, 600))
		if err == nil {
			err = pub.Drain(ctx)
		}
		if err == nil {
			err = pub.Close(ctx)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	check := func(when string) {
		t.Helper()
		for i := range publishersEvicted + publishersKept {
			want := uint64(1000 + i)
			if i < publishersEvicted {
				want = 0
			}
			got, err := d.conn.QuerySequence(t.Context(), fmt.Sprintf("publisher-%03d", i), "orders")
			if err != nil || got != want {
				t.Fatalf("%s: publisher %d is at %d, %v; want %d", when, i, got, err, want)
			}
		}
	}
	for i := range publishersEvicted + publishersKept {
		send(i)
		if i == publishersKept/2 {
			d.kill()
		}
	}
	check("live")
	if s := d.describe(); s.Segments < 3 {
		t.Errorf("%d segments: it did not roll", s.Segments)
	}
	d.kill()
	check("killed")
	d.conn.Close()
	if code := d.node.Stop(); code != 0 {
		t.Errorf("the node ends with %d", code)
	}
	d.node.Restart()
	d.conn = dialNode(t, d.node)
	check("stopped")
	last := d.lastOffset()
	for i := publishersEvicted; i < publishersEvicted+publishersKept; i += 20 {
		send(i) // once more
	}
	if got := d.lastOffset(); got != last {
		t.Errorf("messages sent again were stored: the last offset went from %d to %d", last, got)
	}
	check("sent again")
}

// A snapshot that has rotted costs no stored offset in silence: it is answered as
// before, or the node says that the stream is not available; never that nothing
// is stored (TR-10).
func TestStored_damagedSnapshot(t *testing.T) {
	t.Parallel()
	for newest, name := range []string{"newest", "one before"} {
		t.Run(name, func(t *testing.T) {
			d := storedOften(t)
			d.conn.Close()
			if code := d.node.Stop(); code != 0 {
				t.Errorf("the node ends with %d", code)
			}
			d.startsWithDamage(newest)
		})
	}
}

// The same behind a kill, where no checkpoint stands in for the snapshot. A kill
// takes stores that wait to be written, so that the test waits until none does.
func TestStored_damagedSnapshotKilled(t *testing.T) {
	if number(t, "STORED_KILLS", 0) == 0 {
		t.Skip("stores take seconds to be written; make kill-test has it")
	}
	t.Parallel()
	for newest, name := range []string{"newest", "one before"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := storedOften(t)
			for end := time.Now().Add(usableWithin); d.describe().StoredOffsetsPending > 0; time.Sleep(20 * time.Millisecond) {
				if time.Now().After(end) {
					t.Fatal("stores wait for ever")
				}
			}
			d.publish() // its confirm tells that what is before it is durable
			d.conn.Close()
			d.node.Kill()
			d.startsWithDamage(newest)
		})
	}
}

// storedOften has a stream of many segments, each of which begins with a snapshot
// of every reader's offset.
func storedOften(t *testing.T) *describeTest {
	t.Helper()
	d := smallSegments(t)
	for range 6 {
		d.publish()
		d.store()
	}
	return d
}

// startsWithDamage flips a bit in a snapshot, counted from the newest, and starts
// the node.
func (d *describeTest) startsWithDamage(newest int) {
	t := d.t
	t.Helper()
	file, position := snapshotPlace(t, d.node.DataDir, newest)
	if err := harness.Flip(file, (position+48+20)*8); err != nil {
		t.Fatal(err)
	}
	if err := d.node.TryRestart(); err != nil {
		t.Logf("the node says so and does not start: %v", err)
		return
	}
	d.conn = dialNode(t, d.node)
	for i := range describeReferences {
		got, err := d.conn.QueryOffset(t.Context(), fmt.Sprintf("reader-%02d", i), "orders")
		switch code := client.Code(err); {
		case err == nil && got == d.stored:
		case code == wire.CodeStreamNotAvailable:
			if !strings.Contains(d.node.Log(), "damage") {
				t.Errorf("the stream is not available, and the log does not say why")
			}
			return
		default:
			t.Fatalf("reader %d is answered %d, %v; stored was %d", i, got, err, d.stored)
		}
	}
}

// snapshotPlace finds the nth newest head snapshot in a stopped node's files.
func snapshotPlace(t *testing.T, dataDir string, nth int) (file string, position int64) {
	t.Helper()
	folders, err := inspect.Find(dataDir, node.LogName("/", "orders"))
	if err != nil || len(folders) != 1 {
		t.Fatalf("%d folders, %v", len(folders), err)
	}
	list, err := folders[0].Segments()
	if err != nil {
		t.Fatal(err)
	}
	for i := len(list) - 1; i >= 0; i-- {
		chunks, err := folders[0].Chunks(list[i].File)
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range chunks {
			if c.Type != "snapshot" {
				continue
			}
			if nth == 0 {
				return filepath.Join(folders[0].Path(), list[i].File), c.Position
			}
			nth--
		}
	}
	t.Fatal("there is no such snapshot")
	return "", 0
}

// After compaction every offset is found where it is, the end that is told can be
// reached, and kills in the midst of it leave files that touch without overlap
// (ST-17, ST-19, ST-20).
func TestCompacted_placesAndEnd(t *testing.T) {
	t.Parallel()
	d := smallSegments(t)
	for range 8 {
		d.publish()
		d.store()
	}
	d.until("tracking is compacted", func(s *admin.Stream) bool {
		d.store()
		return s.Compaction.Drops >= 2
	})
	d.places()
	d.check("compacted")
	for kill := range 5 {
		d.publish()
		d.store()
		wait, cancel := context.WithTimeout(t.Context(), rand.N(400*time.Millisecond))
		for n := uint64(0); wait.Err() == nil; n++ {
			for i := range describeReferences {
				if err := d.conn.StoreOffset(fmt.Sprintf("reader-%02d", i), "orders", d.stored+n); err != nil {
					t.Fatal(err)
				}
			}
			d.mustStore("reader-49", d.stored+n)
		}
		cancel()
		d.stored += 1 << 20 // above all of them
		d.kill()
		d.filesTouch(fmt.Sprintf("kill %d", kill))
		d.check(fmt.Sprintf("kill %d", kill))
	}
	d.places()
}

// places subscribes at offsets all over the stream, and holds the first chunk
// against the offset and against what ResolveOffsetSpec says.
func (d *describeTest) places() {
	d.t.Helper()
	ctx, cancel := context.WithTimeout(d.t.Context(), 2*usableWithin)
	defer cancel()
	last := uint64(d.lastOffset())
	for o := uint64(0); o <= last; o += 1 + last/150 {
		first := make(chan [2]uint64, 1)
		consumer, err := d.conn.Subscribe(ctx, client.ConsumerConfig{
			Stream: "orders", Offset: wire.FromOffset(o), Credit: 1, ManualCredit: true,
			Deliver: func(delivery *client.Delivery) {
				select {
				case first <- [2]uint64{uint64(delivery.Header.BaseOffset), uint64(delivery.Header.Next())}:
				default:
				}
			},
		})
		if err != nil {
			d.t.Fatal(err)
		}
		var got [2]uint64
		select {
		case got = <-first:
		case <-ctx.Done():
			d.t.Fatalf("a consumer at %d gets nothing", o)
		}
		if err := consumer.Close(ctx); err != nil {
			d.t.Fatal(err)
		}
		if got[0] > o || o >= got[1] {
			d.t.Fatalf("a consumer at %d gets the offsets %d up to %d", o, got[0], got[1])
		}
		if base, err := d.conn.ResolveOffset(ctx, "orders", wire.FromOffset(o)); err != nil || base != got[0] {
			d.t.Fatalf("offset %d resolves to %d, %v; a consumer there begins at %d", o, base, err, got[0])
		}
	}
}

// filesTouch looks at the files: nothing is left behind, and each segment goes on
// where the one before ends.
func (d *describeTest) filesTouch(when string) {
	d.t.Helper()
	if left, err := filepath.Glob(filepath.Join(d.node.DataDir, "streams", "*", "*.tmp")); err != nil || len(left) > 0 {
		d.t.Errorf("%s: left behind: %s (error %v)", when, left, err)
	}
	var list []admin.Segment
	d.command(&list, "segment", "list", "orders", "-o", "json")
	for i, s := range list {
		if i > 0 && (s.FirstLSN != list[i-1].LastLSN+1 || s.FirstOffset != list[i-1].NextOffset) {
			d.t.Errorf("%s: %s begins at LSN %d, offset %d; the one before ends at %d, %d",
				when, s.File, s.FirstLSN, s.FirstOffset, list[i-1].LastLSN, list[i-1].NextOffset)
		}
	}
}
