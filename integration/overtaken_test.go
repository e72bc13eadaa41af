package integration

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/wire"
)

// A consumer that retention overtakes goes on at the first message that is left:
// it sees that by the offsets, and the node counts it and tells of it.
func TestOvertaken_slowConsumer(t *testing.T) {
	t.Parallel()
	r := newRetained(t)
	r.create("s", "max-length-bytes", fmt.Sprint(3_000_000), "stream-max-segment-size-bytes", fmt.Sprint(1_000_000))
	r.publish("s", 10)
	r.publish("s", 2_000)
	reader := dialNode(t, r.node)
	defer reader.Abort()
	chunks := make(chan [2]int, 1000) // first offset of each, and the next
	consumer, err := reader.Subscribe(r.context(), client.ConsumerConfig{
		Stream: "s", Offset: fromFirst, Credit: 1, ManualCredit: true,
		Deliver: func(d *client.Delivery) {
			first, next := -1, -1
			for record := range d.Records() {
				if first < 0 {
					first = int(record.Offset)
				}
				next = int(record.Offset) + 1
				if !strings.HasPrefix(string(record.Message), fmt.Sprintf("%d ", record.Offset)) {
					t.Errorf("the record at offset %d says %.20q", record.Offset, record.Message)
				}
			}
			chunks <- [2]int{first, next}
		},
	})
	r.must(err)
	receive := func() [2]int {
		t.Helper()
		select {
		case c := <-chunks:
			return c
		case <-r.context().Done():
			t.Fatal("no chunk comes")
		}
		panic("unreachable")
	}
	begin := receive()
	if begin[0] != 0 {
		t.Fatalf("the first chunk begins at %d", begin[0])
	}
	r.publish("s", 75_000) // more than is kept in memory
	eventually(t, "what it has to read next is gone", func() bool { first, _ := r.stats("s"); return first > 70_000 })
	first, _ := r.stats("s")
	due := begin[1]
	jumps := 0
	for due < r.next["s"] {
		consumer.Credit(1)
		c := receive()
		if c[0] != due {
			if jumps++; jumps > 1 || due != begin[1] || c[0] != first {
				t.Fatalf("jump from %d to %d, the first offset is %d", due, c[0], first)
			}
		}
		due = c[1]
	}
	if jumps != 1 {
		t.Errorf("%d jumps", jumps)
	}
	if n, err := r.node.Metric("/metrics", "millrace_overtaken_subscriptions_total"); err != nil || n != 1 {
		t.Errorf("%v subscriptions were overtaken, %v", n, err)
	}
	if want := fmt.Sprintf("from=%d to=%d", begin[1], first); !strings.Contains(r.node.Log(), want) {
		t.Errorf("the log does not say %q", want)
	}
}

// Readers that attach and read at the very place where retention takes files
// away always get on, and nothing is called an error (RT-10 for readers; those
// of replicas come with several nodes).
func TestOvertaken_attachWhileFilesGo(t *testing.T) {
	t.Parallel()
	r := newRetained(t)
	r.create("s", "max-length-bytes", "1")
	deadline := time.Now().Add(2 * time.Second)
	r.units("s", 2)
	var work sync.WaitGroup
	reads := make([]int, 3)
	for i, from := range []wire.OffsetSpec{fromFirst, fromOffset(0), {Type: wire.OffsetTimestamp, Timestamp: 1}} {
		conn := dialNode(t, r.node)
		defer conn.Abort()
		work.Go(func() {
			last := -1
			for time.Now().Before(deadline) {
				ctx, cancel := context.WithTimeout(t.Context(), usableWithin)
				first, _, err := readDense(ctx, conn, "s", from, 1) // its first record ends the reading
				cancel()
				if err != nil {
					t.Error(err)
					return
				}
				if first < last {
					t.Errorf("the first offset went back from %d to %d", last, first)
					return
				}
				last = first
				reads[i]++
			}
			if last == 0 {
				t.Error("the first offset never moved")
			}
		})
	}
	for time.Now().Before(deadline) {
		r.units("s", 1)
	}
	work.Wait()
	for i, n := range reads {
		if n < 3 {
			t.Errorf("reader %d has read only %d times", i, n)
		}
	}
	r.wantQuietLog()
}

// However readers leave, nothing of them stays: no descriptor, no goroutine, and
// no file that was given up is held open (RT-09).
func TestOvertaken_readersLeaveNothing(t *testing.T) {
	t.Parallel()
	r := newRetained(t)
	r.create("s", "max-length-bytes", fmt.Sprint(4*smallSegment))
	r.units("s", 4)
	r.read("s", fromFirst)
	before := r.owned()
	const rounds = 40
	for i := range rounds {
		for way, leave := range []func(*client.Conn, *client.Consumer, string){
			func(_ *client.Conn, c *client.Consumer, _ string) { r.must(c.Close(r.context())) },
			func(conn *client.Conn, _ *client.Consumer, _ string) { conn.Close() },
			func(conn *client.Conn, _ *client.Consumer, _ string) { conn.Abort() },
			func(_ *client.Conn, _ *client.Consumer, stream string) { r.must(r.conn.Delete(r.context(), stream)) },
		} {
			stream := "s"
			if way == 3 {
				stream = fmt.Sprint("passing", i)
				r.create(stream)
				r.publish(stream, 3)
			}
			conn := dialNode(t, r.node)
			got := make(chan struct{}, 1000)
			consumer, err := conn.Subscribe(r.context(), client.ConsumerConfig{
				Stream: stream, Offset: fromFirst, Credit: 1, ManualCredit: true, // it stays in the middle of the log
				Deliver: func(*client.Delivery) { got <- struct{}{} },
			})
			r.must(err)
			<-got
			leave(conn, consumer, stream)
			conn.Abort()
		}
		r.units("s", 1) // what they were reading goes
	}
	eventually(t, "descriptors and goroutines are as before", func() bool {
		now := r.owned()
		return now.descriptors <= before.descriptors+2 && now.goroutines <= before.goroutines+3
	})
	eventually(t, "no file is open that is gone", func() bool { return len(r.openAndGone()) == 0 })
	// The fifth way: the reader's node stops.
	conn := dialNode(t, r.node)
	defer conn.Abort()
	ended := make(chan error, 1)
	_, err := conn.Subscribe(r.context(), client.ConsumerConfig{
		Stream: "s", Offset: fromFirst, Credit: 1, ManualCredit: true,
		Deliver: func(*client.Delivery) {}, Ended: func(err error) { ended <- err },
	})
	r.must(err)
	if code := r.node.Stop(); code != 0 {
		t.Errorf("the node ends with %d while somebody reads", code)
	}
	<-ended
}

type owned struct{ descriptors, goroutines int }

// owned counts what the node's process has.
func (r *retained) owned() owned {
	r.t.Helper()
	list, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", r.node.PID()))
	r.must(err)
	goroutines, err := r.node.Metric("/metrics", "go_goroutines")
	r.must(err)
	return owned{len(list), int(goroutines)}
}

// openAndGone lists segment files that the node holds open though they are
// deleted.
func (r *retained) openAndGone() (files []string) {
	r.t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", r.node.PID())
	list, err := os.ReadDir(dir)
	r.must(err)
	for _, entry := range list {
		if name, err := os.Readlink(filepath.Join(dir, entry.Name())); err == nil && strings.HasSuffix(name, " (deleted)") {
			files = append(files, name)
		}
	}
	return files
}
