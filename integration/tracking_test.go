package integration

import (
	"context"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// tracked is a node with 500 messages, seen from the command line too.
func tracked(t *testing.T) *describeTest {
	t.Helper()
	n, _ := written(t)
	d := &describeTest{t: t, node: n, conn: dialNode(t, n)}
	t.Cleanup(func() { d.conn.Close() })
	return d
}

// kill ends the node by SIGKILL and starts it again.
func (d *describeTest) kill() {
	d.t.Helper()
	d.node.Kill()
	d.node.Restart()
	d.conn = dialNode(d.t, d.node)
}

func (d *describeTest) wantStored(when, reference string, want uint64) {
	d.t.Helper()
	if got, err := d.conn.QueryOffset(d.t.Context(), reference, "orders"); err != nil || got != want {
		d.t.Errorf("%s: %s has stored %d, %v; want %d", when, reference, got, err, want)
	}
}

func (d *describeTest) wantNothing(when, reference string) {
	d.t.Helper()
	if got, err := d.conn.QueryOffset(d.t.Context(), reference, "orders"); client.Code(err) != wire.CodeNoOffset {
		d.t.Errorf("%s: %s is answered %d, %v; want code %d", when, reference, got, err, wire.CodeNoOffset)
	}
}

func (d *describeTest) mustStore(reference string, offset uint64) {
	d.t.Helper()
	if err := d.conn.StoreOffset(reference, "orders", offset); err != nil {
		d.t.Fatal(err)
	}
	d.wantStored("stored", reference, offset)
}

// What an operator was told to be deleted or moved is so after kill -9 at once,
// and what clients stored before does not come back.
func TestTracking_changesAreForGood(t *testing.T) {
	d := tracked(t)
	for _, reference := range []string{"gone", "back", "forth", "kept"} {
		d.mustStore(reference, 300)
	}
	var moved admin.MovedOffset
	d.command(&moved, "tracking", "set", "orders", "kept", "301", "--yes", "-o", "json") // all is written by it
	d.mustStore("gone", 310)                                                             // in memory alone
	d.mustStore("back", 310)
	var gone admin.Reference
	d.command(&gone, "tracking", "delete", "orders", "gone", "--yes", "-o", "json")
	d.command(&moved, "tracking", "set", "orders", "back", "100", "--yes", "-o", "json")
	if moved.Before == nil || *moved.Before != 310 || moved.Value != 100 {
		t.Errorf("moved back: %+v", moved)
	}
	// The last one before the kill: nothing behind it has it written too.
	d.command(&moved, "tracking", "set", "orders", "forth", "next", "--yes", "-o", "json")
	d.kill()
	d.wantNothing("killed", "gone")
	d.wantStored("killed", "back", 100)
	d.wantStored("killed", "forth", 499)
	d.wantStored("killed", "kept", 301)

	d.mustStore("gone", 5) // it may begin anew
	d.command(&moved, "tracking", "copy", "orders", "gone", "twin", "-o", "json")
	d.command(&gone, "tracking", "delete", "orders", "gone", "--yes", "-o", "json")
	if code := d.node.Stop(); code != 0 {
		t.Errorf("the node ends with %d", code)
	}
	d.node.Restart()
	d.conn = dialNode(t, d.node)
	d.wantNothing("stopped", "gone")
	d.wantStored("stopped", "twin", 5)
}

// Any 64 bits are a value: 0, and what lies far behind the stream's end. Such a
// reader's lag is 0, it is shown as ahead, and to a consumer there goes what comes.
func TestTracking_specialValues(t *testing.T) {
	d := tracked(t)
	values := map[string]uint64{"zero": 0, "last": 499, "far": 1 << 63, "farthest": 1<<64 - 1}
	for reference, value := range values {
		d.mustStore(reference, value)
	}
	var moved admin.MovedOffset
	d.command(&moved, "tracking", "set", "orders", "middle", "250", "-o", "json")
	values["middle"] = 250
	d.kill()
	for reference, value := range values {
		d.wantStored("killed", reference, value)
	}
	var list []admin.Reference
	d.command(&list, "tracking", "list", "orders", "--kind", "offset", "-o", "json")
	lags := map[string]uint64{"zero": 499, "middle": 249, "last": 0, "far": 0, "farthest": 0}
	for _, r := range list {
		if ahead := r.Value > 499; r.Value != values[r.Reference] || *r.Lag != lags[r.Reference] || r.Ahead != ahead || r.Stale {
			t.Errorf("%s is listed as %+v with a lag of %d", r.Reference, r, *r.Lag)
		}
	}
	if len(list) != len(values) {
		t.Errorf("%d references are listed, want %d", len(list), len(values))
	}
	d.id = 500
	for _, at := range []uint64{500, 1 << 63, 1<<64 - 1} {
		if got, want := d.firstFrom(at), d.id; got != want {
			t.Errorf("a consumer at %d gets offset %d first, want %d", at, got, want)
		}
		d.id++
	}
}

// firstFrom subscribes at an offset, publishes a message, and returns the offset
// of the first that the node sends; a client may leave out what it did not ask
// for.
func (d *describeTest) firstFrom(at uint64) uint64 {
	d.t.Helper()
	conn := dialNode(d.t, d.node)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(d.t.Context(), usableWithin)
	defer cancel()
	came := make(chan uint64, 10)
	_, err := conn.Subscribe(ctx, client.ConsumerConfig{
		Stream: "orders", Offset: wire.FromOffset(at), Ended: func(error) {},
		Deliver: func(delivery *client.Delivery) {
			came <- uint64(delivery.Header.BaseOffset)
		},
	})
	if err != nil {
		d.t.Fatal(err)
	}
	publishMore(d.t, d.conn, harness.NewLedger(), 9, 1)
	select {
	case offset := <-came:
		return offset
	case <-ctx.Done():
		d.t.Fatalf("a consumer at %d gets nothing", at)
	}
	panic("unreachable")
}

// A reader that retention has overtaken is shown as stale, its lag counts what it
// has missed, and every question about it gets one answer until the grace ends;
// then it is gone, and stays so.
func TestTracking_stale(t *testing.T) {
	rows := []struct {
		grace string
		stays bool
	}{{"24h", true}, {"0s", false}}
	for _, row := range rows {
		t.Run(row.grace, func(t *testing.T) {
			t.Setenv("MILLRACE_TRACKING__GRACE", row.grace)
			d := &describeTest{t: t, node: harness.Start(t)}
			d.conn = dialNode(t, d.node)
			t.Cleanup(func() { d.conn.Close() })
			err := d.conn.Create(t.Context(), "orders", map[string]string{"max-length-bytes": "100000", "stream-max-segment-size-bytes": "65536"})
			if err != nil {
				t.Fatal(err)
			}
			d.publish()
			d.mustStore("slow", 10)
			for range 8 {
				d.publish()
			}
			d.until("the reader is overtaken", func(s *admin.Stream) bool { return s.FirstOffset > 11 })
			d.publishUntilRolled()
			check := func(when string) {
				t.Helper()
				if !row.stays {
					d.wantNothing(when, "slow")
					return
				}
				d.wantStored(when, "slow", 10)
				var r admin.Reference
				d.command(&r, "tracking", "get", "orders", "slow", "-o", "json")
				if !r.Stale || *r.Lag != d.id-1-10 {
					t.Errorf("%s: shown as %+v with a lag of %d, want stale, %d", when, r, *r.Lag, d.id-1-10)
				}
			}
			check("rolled")
			d.kill()
			check("killed")
			d.publishUntilRolled()
			check("rolled again")
		})
	}
}

// publishUntilRolled publishes until a snapshot was taken after the call.
func (d *describeTest) publishUntilRolled() {
	d.t.Helper()
	newest := func() string {
		var list []admin.Segment
		d.command(&list, "segment", "list", "orders", "-o", "json")
		return list[len(list)-1].File
	}
	before := newest()
	for deadline := time.Now().Add(usableWithin); newest() == before; {
		d.publish()
		if time.Now().After(deadline) {
			d.t.Fatal("the log does not roll")
		}
	}
}
