package broker_test

import (
	"errors"
	"fmt"
	"syscall"
	"testing"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/wire"
)

// One sync or write of a stream's file fails and all later ones succeed. What it
// was for is not confirmed, nor what came behind it; the log ends where the last
// sync before it did; the publisher hears of a new leader and sends again. Another
// stream on the same disk, of the same connection, notices nothing.
func TestDisk_oneFailureIsOneStreams(t *testing.T) {
	for name, rule := range map[string]vfs.Rule{
		"sync, bytes stay":    {Ops: vfs.OpSync, Fault: vfs.Fault{Err: syscall.EIO}},
		"sync, bytes at risk": {Ops: vfs.OpSync, Fault: vfs.Fault{Err: syscall.EIO, Sync: vfs.BytesLostAtCrash}},
		"sync, bytes dropped": {Ops: vfs.OpSync, Fault: vfs.Fault{Err: syscall.EIO, Sync: vfs.BytesDropped}},
		"full":                {Ops: vfs.OpWrite, Fault: vfs.Fault{Err: syscall.ENOSPC}},
		"full, a part fits":   {Ops: vfs.OpWrite, Fault: vfs.Fault{Err: syscall.ENOSPC, Short: 30}},
	} {
		t.Run(name, func(t *testing.T) {
			disk := vfs.NewMem()
			faulty := vfs.NewFaulty(disk)
			node := newRealNode(t, faulty, "data")
			h := startBroker(t, node, node, nil)
			bad, good := h.open(t), h.open(t)
			bad.create("bad")
			good.create("good")
			bad.declare(1, "p", "bad")
			bad.declare(2, "p", "good")
			bad.publish(1, 1, "safe")
			bad.wantConfirms(1, 1, 1)

			release := make(chan struct{})
			rule.Path = fmt.Sprintf("data/streams/%s-*/*.seg", segstore.Hash("bad"))
			rule.Hang, rule.Times = release, 1
			struck := faulty.Add(rule)
			bad.publish(1, 2, "lost")
			eventually(t, "the disk is asked", func() bool { return faulty.Hits(struck) == 1 })
			bad.publish(1, 3, "behind it") // what is done for this one would succeed
			bad.publish(2, 1, "of another stream")
			bad.wantConfirms(2, 1, 1) // and nothing of the first
			close(release)
			eventually(t, "the run ends", func() bool { return len(node.lost) == 1 })
			if err := <-node.lost; !errors.Is(err, rule.Err) {
				t.Fatalf("the run ended by %v", err)
			}
			node.depose(t, "bad") // as the coordinator does then
			bad.publish(2, 2, "goes on")
			bad.wantConfirms(2, 2, 1)
			node.lead(t, "bad")
			if update, ok := bad.read().(*wire.MetadataUpdate); !ok || update.Stream != "bad" || update.Code != wire.CodeStreamNotAvailable {
				t.Fatalf("got %+v", update)
			}
			sequence, ok := bad.ask(&wire.QueryPublisherSequence{Correlation: bad.next(), Reference: "p", Stream: "bad"}).(*wire.QueryPublisherSequenceResponse)
			if !ok || sequence.Code != wire.CodeOK || sequence.Sequence != 1 {
				t.Fatalf("sequence %+v, want 1", sequence)
			}
			bad.wantCode(&wire.Response{Code: bad.declare(1, "p", "bad")}, wire.CodeOK)
			bad.publish(1, 2, "again")
			bad.wantConfirms(1, 2, 1)

			for stream, want := range map[string][]string{"bad": {"safe", "again"}, "good": {"of another stream", "goes on"}} {
				reader := h.open(t)
				reader.subscribe(0, stream, first, 10)
				for offset, message := range want {
					if got := reader.wantDeliver(); got.first != uint64(offset) || len(got.messages) != 1 || got.messages[0] != message {
						t.Errorf("%s: at offset %d is %q, want %q", stream, got.first, got.messages, message)
					}
				}
			}
		})
	}
}
