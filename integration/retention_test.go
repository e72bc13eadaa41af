package integration

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/wire"
)

// Age works on a stream that nobody writes to (RT-01). Here even the newest
// messages go, since a segment ends by age too; numbering goes on behind them.
func TestRetention_ageOfAQuietStream(t *testing.T) {
	t.Parallel()
	r := newRetained(t)
	r.create("s", "max-age", "1s")
	r.units("s", 20)
	if first, next := r.stats("s"); first > next-unitMessages {
		t.Errorf("offsets %d up to %d: the newest are gone at once", first, next)
	}
	eventually(t, "only one segment is left", func() bool { return len(r.node.Segments()) == 1 })
	eventually(t, "all messages are gone", func() bool { return r.describe("s").Messages == 0 })
	r.publish("s", 1)
	if first := r.read("s", fromFirst); first != 20*unitMessages {
		t.Errorf("the next message has offset %d, want %d", first, 20*unitMessages)
	}
}

// What goes is judged by its last message (RT-02): on a slow stream nothing
// younger than the limit ever goes.
func TestRetention_takesNothingTooYoung(t *testing.T) {
	t.Parallel()
	const limit = time.Second
	r := newRetained(t)
	r.create("s", "max-age", "1s")
	var sent []time.Time
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for len(sent) < 50 {
		<-tick.C
		sent = append(sent, time.Now())
		r.publish("s", 1)
		first, _ := r.stats("s")
		now := time.Now()
		// Timestamps are cut to milliseconds.
		if first > 0 && now.Sub(sent[first-1])+time.Millisecond < limit {
			t.Fatalf("message %d is gone after %s", first-1, now.Sub(sent[first-1]))
		}
	}
	if first, _ := r.stats("s"); first == 0 {
		t.Error("nothing has gone in 2.5 s")
	}
}

// A limit that is changed is in force at once, and stays so over rolls and
// restarts; it may be raised above the one at the creation (RT-03).
func TestRetention_changedLimitStays(t *testing.T) {
	t.Parallel()
	const unit = unitMessages * messageBytes
	r := newRetained(t)
	r.create("s", "max-length-bytes", fmt.Sprint(20*unit))
	r.units("s", 30)
	held := func(when string, units int) {
		t.Helper()
		// The newest unit may have just begun; a unit goes when its end is safe.
		eventually(t, fmt.Sprintf("%s: at most %d units are kept", when, units), func() bool {
			first, next := r.stats("s")
			return next-first <= units*unitMessages
		})
		if first, next := r.stats("s"); next-first < (units-1)*unitMessages {
			t.Errorf("%s: only %d of %d messages are kept", when, next-first, units*unitMessages)
		}
		first, _ := r.stats("s")
		if read := r.read("s", fromFirst); read < first {
			t.Errorf("%s: read from %d, the first is %d", when, read, first)
		}
	}
	held("as created", 20)
	r.limit("s", "max-length-bytes", fmt.Sprint(5*unit+unit/2))
	held("lowered", 5)
	r.units("s", 50)
	held("after ten times as much", 5)
	r.restart(func() { r.node.Stop() })
	held("after a stop", 5)
	r.restart(r.node.Kill)
	r.units("s", 10)
	held("after a kill", 5)
	r.limit("s", "max-length-bytes", fmt.Sprint(25*unit+unit/2))
	r.units("s", 40)
	held("raised above the creation's", 25)
	r.limit("s", "max-length-bytes", "")
	r.units("s", 10)
	if first, next := r.stats("s"); next-first < 34*unitMessages {
		t.Errorf("without a limit %d messages are kept", next-first)
	}
	// Whoever declares the stream as it was created still has it.
	err := r.conn.Create(r.context(), "s", map[string]string{"stream-max-segment-size-bytes": fmt.Sprint(smallSegment), "max-length-bytes": fmt.Sprint(20 * unit)})
	if client.Code(err) != wire.CodeStreamAlreadyExists {
		t.Errorf("declared again: %v", err)
	}
}

// A kill right behind a roll takes nothing that was confirmed, and numbering
// goes on (RT-05).
func TestRetention_killBehindARoll(t *testing.T) {
	t.Parallel()
	r := newRetained(t)
	r.create("s", "max-length-bytes", "1")
	for round := range 6 {
		r.units("s", 2)
		r.publish("s", 1) // rolls, and has retention take all before it
		r.restart(r.node.Kill)
		eventually(t, "the stream has a leader", func() bool { return r.describe("s").Leader != "" })
		if _, next := r.stats("s"); next != r.next["s"] {
			t.Fatalf("round %d: the next offset is %d, want %d", round, next, r.next["s"])
		}
		if first := r.read("s", fromFirst); first >= r.next["s"] {
			t.Fatalf("round %d: nothing can be read", round)
		}
	}
	if first, _ := r.stats("s"); first == 0 {
		t.Error("nothing has gone: the test shows nothing")
	}
}

// Streams come and go beside others at their limits: those are held, and nothing
// is said to have gone wrong (RT-06).
func TestRetention_besideDeletions(t *testing.T) {
	t.Parallel()
	const streams, limit = 8, 4 * smallSegment
	r := newRetained(t)
	for i := range streams {
		r.create(fmt.Sprint("kept", i), "max-length-bytes", fmt.Sprint(limit))
	}
	deadline := time.Now().Add(1500 * time.Millisecond)
	var work sync.WaitGroup
	for w := range 2 {
		conn := dialNode(t, r.node)
		defer conn.Abort()
		work.Go(func() {
			for i := 0; time.Now().Before(deadline); i++ {
				name := fmt.Sprintf("passing%d.%d", w, i)
				if err := passBy(r, conn, name); err != nil {
					t.Errorf("%s: %v", name, err)
					return
				}
			}
		})
	}
	last := fmt.Sprint("kept", streams-1)
	for time.Now().Before(deadline) || r.next[last] <= 3*limit/messageBytes { // else no limit is at work
		for i := range streams {
			r.units(fmt.Sprint("kept", i), 1)
		}
	}
	work.Wait()
	for i := range streams {
		name := fmt.Sprint("kept", i)
		eventually(t, name+" is within its limit and a segment", func() bool {
			return r.describe(name).Bytes.User <= limit+smallSegment
		})
		r.read(name, fromFirst)
	}
	r.wantQuietLog()
}

// passBy makes a stream, fills it beyond its limit, and deletes it.
func passBy(r *retained, conn *client.Conn, name string) error {
	ctx := r.context()
	if err := conn.Create(ctx, name, map[string]string{"stream-max-segment-size-bytes": fmt.Sprint(smallSegment), "max-length-bytes": "1"}); err != nil {
		return err
	}
	other := &retained{t: r.t, conn: conn, next: map[string]int{}}
	for range 3 {
		if err := other.tryPublish(ctx, name, unitMessages); err != nil {
			return err
		}
	}
	return conn.Delete(ctx, name)
}

// StreamStats, the API, the metrics and a reader agree on the first offset, at
// once after a start (RT-07).
func TestRetention_firstOffsetAfterARestart(t *testing.T) {
	t.Parallel()
	r := newRetained(t)
	r.create("s", "max-length-bytes", fmt.Sprint(3*smallSegment))
	r.units("s", 10)
	eventually(t, "the stream is trimmed", func() bool { first, _ := r.stats("s"); return first == 8*unitMessages })
	before, _ := r.stats("s")
	for name, stop := range map[string]func(){"stop": func() { r.node.Stop() }, "kill": r.node.Kill} {
		r.restart(stop)
		first, next := r.stats("s")
		metric, err := r.node.Metric("/metrics/streams", `millrace_stream_first_offset{vhost="/",stream="s"}`)
		r.must(err)
		described, read := r.describe("s"), r.read("s", fromFirst)
		if first != before || int(metric) != first || int(described.FirstOffset) != first || read != first || next != r.next["s"] {
			t.Errorf("after a %s: StreamStats %d, API %d, metrics %v, reader %d; before it was %d", name, first, described.FirstOffset, metric, read, before)
		}
	}
}

// A reader at or before a moving first offset goes on at the new one (RT-11).
func TestRetention_readersAtAMovingFirstOffset(t *testing.T) {
	t.Parallel()
	r := newRetained(t)
	r.create("s", "max-age", "1s")
	r.publish("s", unitMessages)
	r.must(r.conn.StoreOffset("r", "s", 3))
	for round := range 3 {
		r.units("s", 5)
		before, _ := r.stats("s")
		eventually(t, "the first offset moves", func() bool { first, _ := r.stats("s"); return first > before })
		if round%2 == 0 {
			r.restart(r.node.Kill)
		} else {
			r.restart(func() { r.node.Stop() })
		}
		stored, err := r.conn.QueryOffset(r.context(), "r", "s")
		r.must(err)
		if stored != 3 {
			t.Errorf("the stored offset is %d", stored)
		}
		first, _ := r.stats("s")
		if first <= int(stored) {
			t.Fatalf("the first offset is %d: nothing was overtaken", first)
		}
		r.publish("s", 5)
		for name, from := range map[string]wire.OffsetSpec{"first": fromFirst, "offset 0": fromOffset(0), "the stored offset": fromOffset(int(stored))} {
			if got := r.read("s", from); got < first || got > r.next["s"]-5 {
				t.Errorf("round %d: a reader at %s begins with %d, the first is %d", round, name, got, first)
			}
		}
	}
}

// Every argument is checked when a stream is created; each create has one answer
// and the connection goes on (RT-12).
func TestRetention_badArguments(t *testing.T) {
	t.Parallel()
	r := newRetained(t)
	for key, values := range map[string][]string{
		"max-age":                       {"D", "10", "-1s", "1000000000Y", "", "5 s", "0s", "1.5h", "PT1H", "7d"},
		"max-length-bytes":              {"-1", "1e6", "9999999999999999999", "", "0", " 5", "5MB"},
		"stream-max-segment-size-bytes": {"-1", "1e6", "9999999999999999999", "0", "3000000001"},
		"stream-filter-size-bytes":      {"15", "256", "x", "-16"},
	} {
		for _, value := range values {
			err := r.conn.Create(r.context(), "bad", map[string]string{key: value})
			if client.Code(err) != wire.CodePreconditionFailed {
				t.Errorf("%s = %q: %v", key, value, err)
			}
		}
	}
	for i, good := range []map[string]string{
		{"max-age": "100000000Y"}, {"stream-filter-size-bytes": "16"}, {"stream-filter-size-bytes": "255"},
		{"max-length-bytes": "9223372036854775807"}, {"nobody-knows-this": "x"},
	} {
		if err := r.conn.Create(r.context(), fmt.Sprint("good", i), good); err != nil {
			t.Errorf("%v: %v", good, err)
		}
	}
	if list := r.streams(); list != "good0 good1 good2 good3 good4" {
		t.Errorf("streams: %s", list)
	}
	// What is fixed at creation can't be changed later.
	r.create("s")
	if err := r.node.Call("PUT", "/api/v1/streams/%2F/s/retention", map[string]string{"stream-max-segment-size-bytes": "100000"}, nil); err == nil || !strings.Contains(err.Error(), "400") {
		t.Errorf("the size of segments was changed: %v", err)
	}
}

func (r *retained) streams() string {
	r.t.Helper()
	var list []admin.Stream
	r.must(r.node.Call("GET", "/api/v1/streams", nil, &list))
	var names []string
	for _, s := range list {
		names = append(names, s.Name)
	}
	return strings.Join(names, " ")
}
