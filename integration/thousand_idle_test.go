package integration

import (
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

const (
	// idleWindow is how long an idle node's work is measured.
	idleWindow = 12 * time.Second
	// settleMax bounds the wait for what follows from the last event: an epoch's
	// barriers, the marks that are written after a second.
	settleMax = 30 * time.Second
	// idleGoal is the share of one core in per cent that an idle node may need.
	idleGoal = 3.0
	// closedMax bounds the wait for files to be closed that nobody uses.
	closedMax = 30 * time.Second
	// descriptorsMore is by how many descriptors nodes may differ for reasons that
	// are not streams: a connection more, a raft snapshot being written.
	descriptorsMore = 24
)

// usage is what a node needs.
type usage struct {
	descriptors    int
	resident, heap int64
}

// usage measures each node, once idle streams have given up their files: when a
// node has at most so many descriptors, or closedMax later.
func (c *thousandTest) usage(most int) (all []usage) {
	c.t.Helper()
	more := func(n *harness.Node) bool { return n.Descriptors() > most }
	for end := time.Now().Add(closedMax); time.Now().Before(end) && slices.ContainsFunc(c.cluster.Nodes, more); {
		time.Sleep(100 * time.Millisecond)
	}
	for _, n := range c.cluster.Nodes {
		u := usage{resident: n.Resident(), heap: n.Heap(), descriptors: n.Descriptors()}
		all = append(all, u)
	}
	return all
}

// settle waits until the nodes are nearly idle; what comes then shows in the
// figure.
func (c *thousandTest) settle() {
	c.t.Helper()
	for end := time.Now().Add(settleMax); time.Now().Before(end); {
		if slices.Max(c.shares(2*time.Second)) < 2*idleGoal {
			return
		}
	}
}

// shares are what each node needs of one core, in per cent.
func (c *thousandTest) shares(window time.Duration) (shares []float64) {
	before := make([]time.Duration, len(c.cluster.Nodes))
	for i, n := range c.cluster.Nodes {
		before[i] = n.CPU()
	}
	begin := time.Now()
	time.Sleep(window)
	took := time.Since(begin)
	for i, n := range c.cluster.Nodes {
		shares = append(shares, 100*float64(n.CPU()-before[i])/float64(took))
	}
	return shares
}

// idle prints what idle nodes need of a core.
func (c *thousandTest) idle(with string) {
	c.t.Helper()
	c.settle()
	shares := c.shares(idleWindow)
	c.t.Logf("FIGURE thousand: CPU of idle nodes with %s: %.1f %% of a core; goal %.0f %%", with, shares, idleGoal)
	if slices.Max(shares) > farBeyond*idleGoal {
		c.t.Errorf("idle nodes with %s need %.1f %% of a core", with, shares)
	}
}

// TestThousand_idle counts what idle streams cost: to make, in descriptors, in
// memory and in processor time; fresh, with messages, and with consumers that
// wait (OP-08, RP-16).
func TestThousand_idle(t *testing.T) {
	c, streams := newThousandTest(t)
	c.create(fewStreams)
	few := c.open()
	c.writeAll(few, time.Now(), time.Minute)
	quiet := c.roundTrip(few)
	few.close()
	c.idle(fmt.Sprintf("%d streams", fewStreams))
	before := c.usage(math.MaxInt)

	took := c.create(streams)
	c.goal(fmt.Sprintf("%d streams with 3 replicas each made by %d connections", streams-fewStreams, creatorConns), took, 30*time.Second)
	c.even("after the creates")
	c.idle(fmt.Sprintf("%d streams", streams))
	c.compare(before, "")

	d := c.open()
	begin := time.Now()
	took = c.writeAll(d, begin, time.Minute)
	t.Logf("FIGURE thousand: a message to each of %d streams, %d at once: %d ms", streams, 4*doorsEach, took.Milliseconds())
	busy := c.roundTrip(d)
	t.Logf("FIGURE thousand: one message to one idle stream is confirmed after %.1f ms, among %d streams %.1f ms; goal 2 x", ms(quiet), fewStreams, ms(busy))
	if busy > farBeyond*2*quiet {
		t.Errorf("one message is confirmed after %v, among few streams %v", busy, quiet)
	}
	d.close()
	c.idle(fmt.Sprintf("%d streams that have had a message", streams))
	c.compare(before, " that has had a message")

	readers := c.read()
	c.idle(fmt.Sprintf("%d streams and as many consumers", streams))
	for _, conn := range readers {
		conn.Abort()
	}
	victim := c.cluster.Nodes[1]
	victim.Kill()
	c.cluster.Restart(victim)
	c.goal(fmt.Sprintf("a node with %d streams starts", streams), victim.Ready, time.Minute)
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// compare prints what a stream costs, and fails if it costs descriptors.
func (c *thousandTest) compare(few []usage, which string) {
	c.t.Helper()
	many := c.usage(few[0].descriptors)
	more := int64(len(c.names) - fewStreams)
	for i, n := range c.cluster.Nodes {
		c.t.Logf("FIGURE thousand: node %s: %d descriptors with %d streams, %d with %d; memory %.1f MB, then %.1f MB: %.1f KB for each idle stream%s; live heap %.1f MB, then %.1f MB: %.1f KB",
			n.Name, few[i].descriptors, fewStreams, many[i].descriptors, len(c.names),
			mb(few[i].resident), mb(many[i].resident), float64((many[i].resident-few[i].resident)/more)/1000, which,
			mb(few[i].heap), mb(many[i].heap), float64((many[i].heap-few[i].heap)/more)/1000)
		if many[i].descriptors > few[i].descriptors+descriptorsMore {
			c.t.Errorf("node %s has %d descriptors with %d streams and %d with %d", n.Name, few[i].descriptors, fewStreams, many[i].descriptors, len(c.names))
		}
		if heap := (many[i].heap - few[i].heap) / more; heap > heapStreamMax {
			c.t.Errorf("node %s has %d bytes of heap for each stream", n.Name, heap)
		}
	}
}

// heapStreamMax is what an idle stream may hold of a node's heap, in bytes.
const heapStreamMax = 100_000

func mb(bytes int64) float64 { return float64(bytes) / 1e6 }

// roundTrip is the median time of writes to idle streams, one after the other.
func (c *thousandTest) roundTrip(d *doors) time.Duration {
	c.t.Helper()
	var all []time.Duration
	for i := range 3 * fewStreams {
		begin := time.Now()
		if err := d.write(c.t.Context(), i, c.names[i%fewStreams]); err != nil {
			c.t.Fatal(err)
		}
		all = append(all, time.Since(begin))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// read attaches a consumer to the end of each stream, spread over the nodes.
func (c *thousandTest) read() (conns []*client.Conn) {
	c.t.Helper()
	const each = 200 // below what a connection may have
	for i, name := range c.names {
		if i%each == 0 {
			conns = append(conns, c.dial(c.cluster.Nodes[len(conns)%len(c.cluster.Nodes)]))
		}
		_, err := conns[len(conns)-1].Subscribe(c.t.Context(), client.ConsumerConfig{
			Stream: name, Offset: wire.OffsetSpec{Type: wire.OffsetNext}, Deliver: func(*client.Delivery) {},
		})
		if err != nil {
			c.t.Fatalf("subscribe to %s: %v", name, err)
		}
	}
	return conns
}
