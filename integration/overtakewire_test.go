package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/millrace/account"
	"github.com/millrace/millrace/cmd/millrace/node"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// What integration/overtake shows on a clock of its own, over the wire: a small
// quiet stream under many stores. So that a minute does what otherwise takes
// hours, the intervals are a hundredth of the defaults, and a control roll comes
// at 64 KiB instead of 1 MiB. OVERTAKE_WIRE is how long offsets are stored before
// the kills (make overtake-wire: 60 s).

const (
	wireSpanDefault = 2 * time.Second
	wireMessages    = 200_000
	wireReferences  = 1000
	wireConnections = 8
	// wireRollEvery: at least so often a control roll and a compaction must
	// happen, or the test shows nothing.
	wireRollEvery = 6 * time.Second
	wireLongest   = 500 * time.Millisecond // the window's longest
	// wireSlack is what a store may take from its answer to the pacer, and from
	// the pacer's deadline to the file, on a busy machine.
	wireSlack = 250 * time.Millisecond
)

var wireSettings = map[string]string{
	"MILLRACE_TRACKING__INTERVAL_MIN": "10ms", "MILLRACE_TRACKING__INTERVAL_MAX": "50ms",
	"MILLRACE_TRACKING__INTERVAL_LONGEST": wireLongest.String(), "MILLRACE_TRACKING__SHARE_SPAN": "6s",
	"MILLRACE_TRACKING__CONTROL_ROLL_BYTES": "65536",
}

func TestOvertakeWire(t *testing.T) {
	span := wireSpanDefault
	if text := os.Getenv("OVERTAKE_WIRE"); text != "" {
		var err error
		if span, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	for name, value := range wireSettings {
		t.Setenv(name, value)
	}
	w := &wireTest{t: t, node: harness.Start(t), ledger: harness.NewLedger(), rolled: map[string]bool{}, compacted: map[string]bool{}}
	w.fill()
	w.storeFor(span, nil)
	w.settle("after the stores")
	if least := int(span / wireRollEvery); w.rolls() < max(least, 1) || len(w.compacted) < least {
		t.Errorf("too little happened: %d control rolls and %d compactions in %s, want %d", w.rolls(), len(w.compacted), span, max(least, 1))
	}
	if code := w.node.Stop(); code != 0 {
		t.Errorf("the node ends with %d", code)
	}
	w.node.Restart()
	w.settle("after a restart")
	w.answers("after a restart", time.Now(), -1)
	kills := max(1, int(span/(20*time.Second)))
	for kill := range kills {
		var killed time.Time
		w.storeFor(time.Second+time.Duration(kill)*170*time.Millisecond, func() {
			killed = time.Now()
			w.node.Kill()
		})
		w.revive(killed)
	}
	w.onDisk()
	t.Logf("FIGURE overtake over the wire, %s: %d of %d messages, %d stores accepted (%.0f/s), tracking at most %.1f %% of its bound, %d control rolls, %d compactions, window %d to %d ms",
		span, w.readable, wireMessages, w.stores, float64(w.stores)/w.storing.Seconds(), 100*w.worst, w.rolls(), len(w.compacted), w.window[0], w.window[1])
	t.Logf("FIGURE overtake over the wire: after %d kills of kill -9 every message was there, and stored offsets were at most %d ms old (window %d ms)",
		kills, w.oldest.Milliseconds(), wireLongest.Milliseconds())
}

type wireTest struct {
	t      *testing.T
	node   *harness.Node
	ledger *harness.Ledger

	groups   []*wireGroup // of references, each on a connection of its own
	readable int
	stores   int
	storing  time.Duration

	filled map[string]bool // first LSNs of the segments that the messages are in
	rolled map[string]bool // first LSNs of segments seen
	// compacted are files seen that took the place of others.
	compacted map[string]bool
	worst     float64 // share of the bound
	window    [2]int64
	oldest    time.Duration
}

// wireGroup is the references of one connection. Round after round all of them
// store the round's number.
type wireGroup struct {
	conn       *client.Conn
	references []string
	round      uint64
	taken      []time.Time // when a round was known to be taken, by number less one
}

func (w *wireTest) fill() {
	w.t.Helper()
	conn := dialNode(w.t, w.node)
	defer conn.Close()
	arguments := map[string]string{"max-length-bytes": "20000000", "stream-max-segment-size-bytes": "500000"}
	if err := conn.Create(w.t.Context(), "orders", arguments); err != nil {
		w.t.Fatal(err)
	}
	pub, err := conn.DeclarePublisher(w.t.Context(), client.PublisherConfig{Stream: "orders", Confirmed: func(ids []uint64) {
		for _, id := range ids {
			w.ledger.Confirmed(1, id)
		}
	}})
	if err != nil {
		w.t.Fatal(err)
	}
	for counter := uint64(1); counter <= wireMessages; counter++ {
		w.ledger.Sent(1, counter)
		if err := pub.Send(counter, harness.AppendMessage(nil, 1, counter, 90)); err != nil {
			w.t.Fatal(err)
		}
	}
	ctx, cancel := context.WithTimeout(w.t.Context(), usableWithin)
	defer cancel()
	if err := pub.Drain(ctx); err != nil {
		w.t.Fatal(err)
	}
	for i := range wireConnections {
		g := &wireGroup{}
		for ref := i; ref < wireReferences; ref += wireConnections {
			g.references = append(g.references, fmt.Sprintf("consumer-%04d-%s", ref, strings.Repeat("x", 48)))
		}
		w.groups = append(w.groups, g)
	}
	w.sample()
	w.filled, w.rolled = w.rolled, map[string]bool{}
}

// rolls counts the segments that began since the stream was filled: as nobody
// publishes, each is a control roll.
func (w *wireTest) rolls() int { return len(w.rolled) }

// storeFor has all references store for a while, and looks at the stream
// meanwhile. If kill is given it is called at the end, while they still store.
func (w *wireTest) storeFor(span time.Duration, kill func()) {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	var work sync.WaitGroup
	var killed atomic.Bool
	for _, g := range w.groups {
		g.conn = dialNode(w.t, w.node)
	}
	begin, before := time.Now(), w.rounds()
	for _, g := range w.groups {
		work.Go(func() {
			defer g.conn.Abort()
			if err := g.run(ctx); err != nil && !killed.Load() {
				w.t.Errorf("store: %v", err)
			}
		})
	}
	tick, over := time.NewTicker(200*time.Millisecond), time.After(span)
	defer tick.Stop()
	for going := true; going; {
		select {
		case <-tick.C:
			w.sample()
		case <-over:
			going = false
		}
	}
	if kill != nil {
		killed.Store(true)
		kill()
	}
	cancel()
	work.Wait()
	w.storing += time.Since(begin)
	w.stores += (w.rounds() - before) * wireReferences / wireConnections
}

// rounds counts those of all groups that were taken.
func (w *wireTest) rounds() (n int) {
	for _, g := range w.groups {
		n += len(g.taken)
	}
	return n
}

// roundEvery is the pace of a group.
const roundEvery = 10 * time.Millisecond

func (g *wireGroup) run(ctx context.Context) error {
	pace := time.NewTicker(roundEvery)
	defer pace.Stop()
	var frames []byte
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-pace.C:
		}
		g.round++
		frames = frames[:0]
		for _, ref := range g.references {
			frames = wire.Append(frames, &wire.StoreOffset{Reference: ref, Stream: "orders", Offset: g.round})
		}
		if err := g.conn.SendFrames(frames); err != nil {
			return err
		}
		// A connection's commands are taken in order. The answer is waited for
		// even when the time is over: every round is taken or fails.
		got, err := g.conn.QueryOffset(context.WithoutCancel(ctx), g.references[len(g.references)-1], "orders")
		if err != nil {
			return err
		}
		if got != g.round {
			return fmt.Errorf("%d was stored and %d is answered", g.round, got)
		}
		g.taken = append(g.taken, time.Now())
	}
}

// describe is what `millrace stream describe` says.
func (w *wireTest) describe() (s admin.Stream) {
	w.t.Helper()
	binary, err := harness.Binary()
	if err != nil {
		w.t.Fatal(err)
	}
	out, err := exec.Command(binary, "stream", "describe", "orders", "--addr", w.node.HTTP, "-o", "json").Output()
	if err == nil {
		err = json.Unmarshal(out, &s)
	}
	if err != nil {
		w.t.Fatalf("stream describe: %v\n%s", err, out)
	}
	return s
}

// sample looks at the stream: the number of its messages, and what tracking takes
// of its bound (design 1).
func (w *wireTest) sample() {
	w.t.Helper()
	if s := w.describe(); s.Messages != wireMessages {
		w.t.Fatalf("stream describe says %d messages, want %d", s.Messages, wireMessages)
	} else if s.WindowMS > 0 {
		if w.window[0] == 0 {
			w.window[0] = s.WindowMS
		}
		w.window = [2]int64{min(w.window[0], s.WindowMS), max(w.window[1], s.WindowMS)}
	}
	var user, tracking, snapshot uint64
	for _, s := range w.segments() {
		user, tracking = user+s.Bytes.User, tracking+s.Bytes.Tracking()
		if s.Bytes.Snapshot > 0 {
			snapshot = s.Bytes.Snapshot
		}
		lsn, generation, _ := strings.Cut(strings.TrimSuffix(s.File, ".seg"), ".")
		if !w.filled[lsn] {
			w.rolled[lsn] = true
		}
		if generation != "0" {
			w.compacted[s.File] = true
		}
	}
	bound := max(user/20, 9*snapshot+4<<20)
	w.worst = max(w.worst, float64(tracking)/float64(bound))
	if tracking > bound {
		w.t.Fatalf("bound broken: tracking takes %d bytes, may take %d", tracking, bound)
	}
}

// segments are the stream's files. One that compaction replaced while it was
// looked at is not there; the next look is whole.
func (w *wireTest) segments() (list []admin.Segment) {
	w.t.Helper()
	for giveUp := time.Now().Add(usableWithin); ; {
		list = nil
		body, err := w.node.Get("/api/v1/streams/%2F/orders/segments")
		if err == nil {
			err = json.Unmarshal(body, &list)
		}
		gone := func(s admin.Segment) bool { return s.State == "damaged" }
		if err == nil && !slices.ContainsFunc(list, gone) {
			return list
		}
		if time.Now().After(giveUp) {
			w.t.Fatalf("list the segments: %v\n%+v", err, list)
		}
	}
}

// settle reads the whole stream and holds it against what was published, and
// the number of messages against what is described.
func (w *wireTest) settle(when string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), time.Minute)
	defer cancel()
	conn := dialNode(w.t, w.node)
	defer conn.Close()
	stats, err := conn.Stats(ctx, "orders")
	if err != nil || stats["committed_offset"] != wireMessages-1 {
		w.t.Fatalf("%s: the last offset is %d (error %v)", when, stats["committed_offset"], err)
	}
	reading, err := readAll(ctx, conn, "orders", wireMessages, w.ledger)
	if err == nil {
		err = reading.End()
	}
	if err != nil {
		w.t.Fatalf("%s: %v", when, err)
	}
	if w.readable = reading.Count(); w.readable != wireMessages {
		w.t.Errorf("%s: %d of %d messages are left", when, w.readable, wireMessages)
	}
	w.sample()
}

// answers asks for every stored offset: none may be ahead of what was stored,
// nor have been overtaken longer than allowed before the moment end.
func (w *wireTest) answers(when string, end time.Time, allowed time.Duration) {
	w.t.Helper()
	conn := dialNode(w.t, w.node)
	defer conn.Close()
	for _, g := range w.groups {
		taken := uint64(len(g.taken))
		for _, ref := range g.references {
			got, err := conn.QueryOffset(w.t.Context(), ref, "orders")
			if err != nil && client.Code(err) != wire.CodeNoOffset {
				w.t.Fatal(err)
			}
			if got > g.round {
				w.t.Fatalf("%s: %s is at %d, stored %d", when, ref, got, g.round)
			}
			if got >= taken {
				continue
			}
			age := end.Sub(g.taken[got]) // of the first round that is lost
			w.oldest = max(w.oldest, age)
			if age > allowed {
				w.t.Fatalf("%s: %s is at %d, which was overtaken %s before; %s is allowed", when, ref, got, age, allowed)
			}
		}
	}
}

// revive starts the node after a kill and judges.
func (w *wireTest) revive(killed time.Time) {
	w.t.Helper()
	w.node.Restart()
	w.settle("after kill -9")
	w.answers("after kill -9", killed, wireLongest+wireSlack)
	for _, g := range w.groups { // what was not taken is stored over by the next round
		for uint64(len(g.taken)) < g.round {
			g.taken = append(g.taken, killed)
		}
	}
}

// onDisk holds the lengths of a stopped node's files against the bound: nothing
// but messages, tracking and a little beside is there.
func (w *wireTest) onDisk() {
	w.t.Helper()
	if code := w.node.Stop(); code != 0 {
		w.t.Errorf("the node ends with %d", code)
	}
	a, err := account.Of(w.node.DataDir, node.LogName("/", "orders"), "orders")
	if err != nil {
		w.t.Fatal(err)
	}
	if a.Messages != wireMessages {
		w.t.Errorf("the files hold %d messages, want %d", a.Messages, wireMessages)
	}
	bound := max(a.UserBytes/20, 9*a.SnapshotBytes/int64(max(a.SnapshotChunks, 1))+4<<20)
	if rest := a.DiskBytes - a.UserBytes; rest > bound+a.UserBytes/20 {
		w.t.Errorf("the files are %d bytes longer than the messages in them; tracking may take %d: %+v", rest, bound, a)
	}
	if left, _ := filepath.Glob(filepath.Join(a.Folder, "*.tmp")); len(left) > 0 {
		w.t.Errorf("left behind: %s", left)
	}
}
