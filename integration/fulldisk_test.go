package integration

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// A full disk (ST-23): nothing is confirmed that is not stored, readers go on,
// a start and a stop work, and with space again a named publisher gets all of
// its messages in, once.
func TestFullDisk(t *testing.T) {
	disk := smallDisk(t, "24m")
	n := harness.StartIn(t, filepath.Join(disk, "data"), "--disk-free-min", "0") // to the last byte
	f := &fullDisk{t: t, node: n, disk: disk, ledger: harness.NewLedger()}
	conn := f.dial()
	if err := conn.Create(t.Context(), "s", map[string]string{"stream-max-segment-size-bytes": "1000000"}); err != nil {
		t.Fatal(err)
	}
	conn.Close()
	f.publish(1_000)

	f.fill()
	f.publishInVain()
	f.changeMetadata()
	f.read() // on a full disk
	f.release()
	f.publish(1_000)

	f.fill()
	f.publishInVain()
	f.changeMetadata()
	// It may say that there was no room for its last notes, and must end.
	if code := n.Stop(); code != 0 && !strings.Contains(n.Log(), "did not end well") {
		t.Errorf("stopped on a full disk with %d, and no word why", code)
	}
	f.restart()
	f.publish(1_000)
	f.read()
}

// smallDisk mounts a file system of the size.
func smallDisk(t *testing.T, size string) string {
	t.Helper()
	dir := t.TempDir()
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size="+size, "tmpfs", dir).CombinedOutput(); err != nil {
		t.Skipf("mounting a small file system takes root: %v: %s", err, out)
	}
	t.Cleanup(func() {
		if out, err := exec.Command("umount", "-l", dir).CombinedOutput(); err != nil {
			t.Errorf("unmount %s: %v: %s", dir, err, out)
		}
	})
	return dir
}

// fullDisk is one named publisher, and a disk that a ballast fills.
type fullDisk struct {
	t      *testing.T
	node   *harness.Node
	disk   string
	ledger *harness.Ledger
	sent   uint64 // message n has publishing id n
	known  uint64 // the highest id that was confirmed
}

func (f *fullDisk) ballast() string { return filepath.Join(f.disk, "ballast") }

// fill leaves no byte.
func (f *fullDisk) fill() {
	f.t.Helper()
	file, err := os.Create(f.ballast())
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	for page := make([]byte, 4096); err == nil; {
		_, err = file.Write(page)
	}
}

func (f *fullDisk) release() {
	f.t.Helper()
	if err := os.Remove(f.ballast()); err != nil {
		f.t.Error(err)
	}
}

func (f *fullDisk) dial() *client.Conn {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), usableWithin)
	defer cancel()
	conn, err := client.Dial(ctx, client.Config{Addr: f.node.Stream})
	if err != nil {
		f.t.Fatalf("dial: %v", err)
	}
	return conn
}

// declare opens the publisher as soon as the stream has a leader.
func (f *fullDisk) declare(ctx context.Context, conn *client.Conn) *client.Publisher {
	f.t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		pub, err := conn.DeclarePublisher(ctx, client.PublisherConfig{
			Stream: "s", Reference: "p", Confirmed: func(ids []uint64) {
				for _, id := range ids {
					f.ledger.Confirmed(1, id)
				}
			},
		})
		if client.Code(err) != wire.CodeStreamNotAvailable {
			if err != nil {
				f.t.Fatal(err)
			}
			return pub
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			f.t.Fatalf("no leader: %v", ctx.Err())
		}
	}
}

// publish sends what is missing and count more, and has all of it confirmed.
func (f *fullDisk) publish(count uint64) {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), usableWithin)
	defer cancel()
	conn := f.dial()
	defer conn.Close()
	pub := f.declare(ctx, conn)
	if pub.Last() < f.known {
		f.t.Errorf("the node knows %d, and confirmed %d", pub.Last(), f.known)
	}
	upTo := f.sent + count
	for id := f.known + 1; id <= upTo; id++ {
		f.send(pub, id)
	}
	if err := pub.Drain(ctx); err != nil {
		f.t.Fatalf("publish with space: %v", err)
	}
	f.known = upTo
}

func (f *fullDisk) send(pub *client.Publisher, id uint64) {
	f.sent = max(f.sent, id)
	f.ledger.Sent(1, id)
	_ = pub.Send(id, harness.AppendMessage(nil, 1, id, 1_000)) // the node may give up the publisher
}

// publishInVain sends until the node takes nothing any more: it gives up the
// publisher, or keeps it waiting.
func (f *fullDisk) publishInVain() {
	f.t.Helper()
	conn := f.dial()
	defer conn.Abort()
	ctx, cancel := context.WithTimeout(f.t.Context(), usableWithin)
	defer cancel()
	pub := f.declare(ctx, conn)
	for err := error(nil); err == nil; {
		for range 100 {
			f.send(pub, f.sent+1)
		}
		wait, cancel := context.WithTimeout(ctx, time.Second)
		err = pub.Drain(wait)
		cancel()
	}
}

// changeMetadata asks for more than the metadata's file has room for. It is for
// the node to bear that; the answer does not matter.
func (f *fullDisk) changeMetadata() {
	f.t.Helper()
	conn := f.dial()
	defer conn.Abort()
	var names []string
	for i := range 200 {
		names = append(names, fmt.Sprintf("partition-%d", i))
	}
	ctx, cancel := context.WithTimeout(f.t.Context(), time.Second)
	defer cancel()
	if err := conn.CreateSuperStream(ctx, "super", names, names, nil); err == nil {
		f.t.Error("200 streams fit on a full disk")
	}
}

// restart starts the node on a full disk, which has space again once the node
// has said that it needs some: it waits, or ends with a clear message.
func (f *fullDisk) restart() {
	f.t.Helper()
	const waits = "waits for space"
	before := strings.Count(f.node.Log(), waits)
	started, released := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(released)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for strings.Count(f.node.Log(), waits) == before {
			select {
			case <-tick.C:
			case <-started: // it made do with what it had, or ended
				f.release()
				return
			}
		}
		f.release()
	}()
	err := f.node.TryRestart()
	close(started)
	<-released
	if err != nil {
		if !strings.Contains(f.node.Log(), "does not start") || !strings.Contains(f.node.Log(), "no space left on device") {
			f.t.Errorf("no start on a full disk, and no word why: %v", err)
		}
		f.node.Restart()
	}
}

// read holds the stream against the ledger.
func (f *fullDisk) read() {
	f.t.Helper()
	ctx, cancel := context.WithTimeout(f.t.Context(), usableWithin)
	defer cancel()
	conn := f.dial()
	defer conn.Close()
	stats, err := conn.Stats(ctx, "s")
	if err != nil {
		f.t.Fatalf("the stream cannot be read: %v", err)
	}
	reading, err := readAll(ctx, conn, "s", uint64(stats["committed_offset"]+1), f.ledger)
	if err != nil {
		f.t.Fatal(err)
	}
	if err := reading.End(); err != nil {
		f.t.Error(err)
	}
}
