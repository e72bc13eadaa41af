package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// Three real processes that lose what they hold, while their streams are written:
// a disk that is empty when its node comes back, and a bit that flips below a
// node that runs.

// refills is how many nodes lose their disk, one after the other; none in
// `go test ./...`, which has no time for it.
func refills(t *testing.T) int {
	t.Helper()
	n := number(t, "REFILLS", 0)
	if n == 0 {
		t.Skip("refills take long; make cluster-test has two, make refill-long more")
	}
	return n
}

// fillAll puts what REFILL_BYTES says into the streams, before the traffic.
func (c *clusterTest) fillAll() {
	c.t.Helper()
	for _, s := range c.streams {
		c.fill(s, number(c.t, "REFILL_BYTES", fillDefault)/len(c.streams))
	}
}

// TestRefill_emptiedNodes takes the whole data directory of one node, and then of
// another. Each comes back under its name, is filled, and counts for nothing
// before: neither does it lead, nor is a majority one with it.
func TestRefill_emptiedNodes(t *testing.T) {
	rounds := refills(t)
	c := newClusterTest(t)
	c.fillAll()
	c.start()
	for round := range rounds {
		victim := c.cluster.MetaLeader()
		if round%2 == 1 {
			victim = c.cluster.Leader(c.streams[round%len(c.streams)].name)
		}
		c.gap()
		c.killed(victim)
		c.flows()
		gap := c.gap()
		if err := os.RemoveAll(victim.DataDir); err != nil {
			t.Fatal(err)
		}
		took := c.refill(victim)
		t.Logf("FIGURE refill: %s comes back with an empty disk and counts again for all streams after %d ms; longest gap %d ms, goal %d ms",
			victim.Name, took.Milliseconds(), max(gap, c.gap()).Milliseconds(), gapMax.Milliseconds())
		if gap > gapMax {
			t.Errorf("the longest gap is %v", gap)
		}
	}
	c.finish()
}

// killed kills a node and tells the traffic.
func (c *clusterTest) killed(n *harness.Node) {
	now := time.Now()
	for _, s := range c.streams {
		s.traffic.Killed(now)
	}
	n.Kill()
}

// refill starts a node whose disk is empty, and watches its replicas until all
// count. None may count before it holds what was there when the node began.
func (c *clusterTest) refill(victim *harness.Node) time.Duration {
	c.t.Helper()
	asked := c.cluster.Others(victim)[0]
	had := map[*clusterStream]uint64{}
	for _, s := range c.streams {
		had[s] = c.figures(c.cluster.Leader(s.name), s).NextOffset
	}
	begin := time.Now()
	ready := make(chan error, 1)
	go func() { ready <- victim.TryRestart() }()
	for counting := 0; counting < len(c.streams); {
		if time.Since(begin) > followWithin {
			c.t.Fatalf("%s does not count again after %v", victim.Name, followWithin)
		}
		counting = 0
		for _, s := range c.streams {
			list := c.replicas(asked, s)
			at := slices.IndexFunc(list, func(r admin.Replica) bool { return r.Node == victim.Name })
			r := list[at]
			if r.State == "down" || !r.Voter || r.NextOffset == nil {
				continue
			}
			if *r.NextOffset < had[s] {
				c.t.Fatalf("%s: the emptied replica on %s counts with %d of %d messages", s.name, victim.Name, *r.NextOffset, had[s])
			}
			counting++
		}
	}
	took := time.Since(begin)
	if err := <-ready; err != nil {
		c.t.Fatalf("start %s: %v", victim.Name, err)
	}
	for _, s := range c.streams {
		c.level(s)
	}
	return took
}

// emptyFor is how long an emptied node and another are left to themselves; raft
// and the coordinator would have elected somebody several times over.
const emptyFor = 4 * time.Second

// TestRefill_isNoMajority empties the disk of one node and stops another: the
// third must not take the emptied one for a second voter, neither of the metadata
// nor of a stream. When the other is back all goes on, and nothing is lost.
func TestRefill_isNoMajority(t *testing.T) {
	refills(t)
	c := newClusterTest(t)
	c.start()
	victim := c.cluster.Nodes[1]
	others := c.cluster.Others(victim)
	away, third := others[0], others[1]
	window := c.window()
	now := time.Now()
	for _, s := range c.streams {
		s.traffic.KilledAll(now, window)
	}
	victim.Kill()
	away.Kill()
	if err := os.RemoveAll(victim.DataDir); err != nil {
		t.Fatal(err)
	}
	ready := make(chan error, 1)
	go func() { ready <- victim.TryRestart() }()
	time.Sleep(2 * harness.StoreWindow) // what was on its way comes in
	before := c.confirmed()
	time.Sleep(time.Until(now.Add(emptyFor)))
	if n := c.confirmed() - before; n > 0 {
		t.Errorf("%d messages were confirmed by one node and an empty one", n)
	}
	if conn, err := c.dialWithin(third, time.Second); err == nil {
		if err := conn.Create(t.Context(), "made-by-a-minority", nil); err == nil {
			t.Error("a stream was created by one node and an empty one")
		}
		conn.Abort()
	}
	c.cluster.Restart(away)
	if err := <-ready; err != nil {
		t.Fatalf("start %s: %v", victim.Name, err)
	}
	c.flows()
	for _, s := range c.streams {
		c.await("the emptied replica counts again", s, counts(victim))
		c.level(s)
	}
	c.finish()
}

// confirmed counts what publishers have had confirmed.
func (c *clusterTest) confirmed() (n uint64) {
	for _, s := range c.streams {
		_, of := s.ledger.Counts()
		n += of
	}
	return n
}

// mendWithin bounds how long the scrub and a fetch may take.
const mendWithin = time.Minute

// scrubOften has all of a disk read again and again, for tests with little on it.
var scrubOften = []string{"--scrub-period", "1s"}

// TestRefill_flippedBit flips bits in sealed segments of nodes that run, under
// load: of a follower that nobody reads from, where the scrub finds it, and of a
// leader whose readers may be quicker. The segment is fetched from a peer, and no
// reader meets anything but what was published, or an error.
func TestRefill_flippedBit(t *testing.T) {
	refills(t)
	c := newClusterTest(t, scrubOften...)
	s := c.streams[0]
	c.fill(s, number(t, "REFILL_BYTES", fillDefault)/len(c.streams))
	c.start()
	for _, who := range []string{"follower", "leader"} {
		victim := c.cluster.Leader(s.name)
		if who == "follower" {
			victim = c.cluster.Others(victim)[0]
		}
		c.until("segments are sealed", func() bool { return c.figures(victim, s).Segments > 3 })
		c.gap()
		begin := time.Now()
		mended := strings.Count(victim.Log(), mendedLine)
		flipped := c.flip(victim, s, begin.UnixNano())
		readings := 0
		for strings.Count(victim.Log(), mendedLine) == mended || c.figures(victim, s).DamagedSegments > 0 {
			if time.Since(begin) > mendWithin {
				t.Fatalf("%s: bit %s is not mended after %v", who, flipped, mendWithin)
			}
			if who == "leader" {
				c.readDamaged(victim, s)
				readings++
			} else {
				time.Sleep(20 * time.Millisecond)
			}
		}
		took := time.Since(begin)
		if n, err := victim.Metric("/metrics", "millrace_scrub_damaged_files_total"); readings == 0 && (err != nil || n != 1) {
			t.Errorf("the scrub says that it found %v damaged files (%v)", n, err)
		}
		for _, r := range c.replicas(victim, s) {
			if r.Damaged == nil || *r.Damaged != 0 {
				t.Errorf("replica list says of %s: %+v", r.Node, r)
			}
		}
		c.flows()
		t.Logf("FIGURE refill: a bit flipped in a sealed segment of a %s under load: found, and fetched from a peer after %d ms; %d readings beside; longest gap %d ms",
			who, took.Milliseconds(), readings, c.gap().Milliseconds())
	}
	c.finish()
}

const mendedLine = "a damaged segment was fetched"

// flip inverts one bit in the middle of a sealed segment of a node that runs, and
// says which.
func (c *clusterTest) flip(n *harness.Node, s *clusterStream, seed int64) string {
	c.t.Helper()
	files, err := filepath.Glob(filepath.Join(n.DataDir, "streams", segstore.Hash(s.name)+"-"+c.figures(n, s).Incarnation, "*.seg"))
	if err != nil || len(files) < 3 {
		c.t.Fatalf("segments %v, %v", files, err)
	}
	slices.Sort(files)
	file := files[1] // sealed, and of big chunks (fill), so that the bit is a message's
	info, err := os.Stat(file)
	if err != nil {
		c.t.Fatal(err)
	}
	bit := 4*info.Size() + seed%1000
	if err := harness.Flip(file, bit); err != nil {
		c.t.Fatal(err)
	}
	return fmt.Sprintf("%d of %s", bit, filepath.Base(file))
}

// readDamaged reads a stream from its first message on a node that holds damage:
// what comes must be right, or an error.
func (c *clusterTest) readDamaged(n *harness.Node, s *clusterStream) {
	c.t.Helper()
	f := c.figures(n, s)
	got := n.ReadCopyWithin(s.name, f.FirstOffset, f.NextOffset, time.Second)
	want := c.cluster.Others(n)[0].ReadCopy(s.name, f.FirstOffset, f.NextOffset)
	if want.Problem != nil {
		c.t.Fatalf("a replica without damage: %v", want.Problem)
	}
	right := map[chunk.Offset]harness.Line{}
	for _, l := range want.Chunks {
		right[l.Base] = l
	}
	for _, l := range got.Chunks {
		if right[l.Base] != l && l.Base < want.Next {
			c.t.Fatalf("a reader on %s got %+v where %+v is", n.Name, l, right[l.Base])
		}
	}
}
