package integration

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// drain has a node lead nothing, or lets it lead again.
func (c *thousandTest) drain(n *harness.Node, on bool) {
	c.t.Helper()
	method := "PUT"
	if !on {
		method = "DELETE"
	}
	if err := c.cluster.Others(n)[0].Call(method, "/api/v1/cluster/members/"+n.Name+"/drain", nil, nil); err != nil {
		c.t.Fatal(err)
	}
}

// audience is a connection with a publisher for each stream, to the node that
// leads it.
type audience struct {
	conns []*client.Conn
	// told counts what each stream's connection heard of it.
	told map[string]*atomic.Int32
}

func (c *thousandTest) attend(by map[string]string) *audience {
	c.t.Helper()
	a := &audience{told: map[string]*atomic.Int32{}}
	for _, name := range c.names {
		count := &atomic.Int32{}
		a.told[name] = count
		conn, err := client.Dial(c.t.Context(), client.Config{
			Addr: c.cluster.Named(by[name]).Stream, Name: name,
			MetadataUpdate: func(string, wire.ResponseCode) { count.Add(1) },
		})
		if err != nil {
			c.t.Fatal(err)
		}
		a.conns = append(a.conns, conn)
		if _, err := conn.DeclarePublisher(c.t.Context(), client.PublisherConfig{Stream: name}); err != nil {
			c.t.Fatal(err)
		}
	}
	return a
}

func (a *audience) leave() {
	for _, conn := range a.conns {
		conn.Abort()
	}
}

// TestThousand_drain drains a node with a third of all leaders, each of which has
// a client, stops it, and has it back (EL-01).
func TestThousand_drain(t *testing.T) {
	c, streams := newThousandTest(t)
	c.create(streams)
	c.even("after the creates")
	by := c.ledBy()
	clients := c.attend(by)
	defer clients.leave()
	drained := c.cluster.Nodes[1]
	led := c.leaders()[drained.Name]

	begin := time.Now()
	c.drain(drained, true)
	c.until("the drained node leads nothing", 10*time.Minute, func() bool {
		now := c.leaders()
		return now[drained.Name] == 0 && now[""] == 0
	})
	c.goal(fmt.Sprintf("drain of a node that led %d of %d streams, each with a client: it leads nothing", led, streams), time.Since(begin), time.Minute)
	c.until("all clients of what has moved are told", time.Minute, func() bool {
		return !slices.ContainsFunc(c.names, func(name string) bool {
			return by[name] == drained.Name && clients.told[name].Load() == 0
		})
	})
	if !c.isEven(c.leaders(), c.cluster.Others(drained)...) {
		t.Errorf("leaders have moved to one node: %v", c.leaders())
	}

	d := c.open()
	begin = time.Now()
	if code := drained.Stop(); code != 0 {
		t.Errorf("the drained node ended with %d", code)
	}
	c.goal("the drained node has stopped", time.Since(begin), 10*time.Second)
	c.goal("its stop: all streams are written", c.writeAll(d, time.Now(), 100*time.Second), 10*time.Second)
	d.close()
	begin = time.Now()
	c.cluster.Restart(drained)
	c.drain(drained, false)
	d = c.open()
	defer d.close()
	c.goal("its start: all streams are written", c.writeAll(d, begin, 100*time.Second), 10*time.Second)
	c.until("all replicas count again", 100*time.Second, func() bool {
		now := c.status()
		return now.Seen && now.UnderReplicated == 0
	})
	c.balance()
	c.even("after the drained node has come back and a balance")
}

const (
	// placedStreams are made where places are looked at: 30 for each node.
	placedStreams = 90
	// partitions are of one super stream.
	partitions = 30
)

// within fails unless each node's part of all streams is even to a sixth.
func (c *thousandTest) within(when string, nodes ...*harness.Node) {
	c.t.Helper()
	led := c.leaders()
	part := float64(len(c.names)) / float64(len(nodes))
	c.t.Logf("FIGURE thousand: leaders %s: %v", when, led)
	for _, n := range nodes {
		if got := float64(led[n.Name]); math.Abs(got-part) > part/6 {
			c.t.Errorf("%s: %s leads %.0f of %d", when, n.Name, got, len(c.names))
		}
	}
}

// TestThousand_places makes streams by one connection, so that only the placement
// spreads leaders, restarts the nodes one by one, and looks where leaders are
// (EL-18).
func TestThousand_places(t *testing.T) {
	c, _ := newThousandTest(t)
	conn := c.dial(c.cluster.Nodes[0])
	defer conn.Close()
	makeMore := func(n int) {
		t.Helper()
		for range n {
			name := fmt.Sprintf("stream-%04d", len(c.names))
			if err := conn.Create(t.Context(), name, balanced); err != nil {
				t.Fatal(err)
			}
			c.names = append(c.names, name)
		}
	}
	makeMore(placedStreams)
	c.within("of 90 streams made by one connection", c.cluster.Nodes...)

	var parts, keys []string
	for i := range partitions {
		parts, keys = append(parts, fmt.Sprintf("parts-%d", i)), append(keys, strconv.Itoa(i))
	}
	if err := conn.CreateSuperStream(t.Context(), "parts", parts, keys, nil); err != nil {
		t.Fatal(err)
	}
	c.names = append(c.names, parts...)
	c.within("with a super stream of 30 more", c.cluster.Nodes...)

	for _, n := range c.cluster.Nodes {
		if code := n.Stop(); code != 0 {
			t.Errorf("node %s ended with %d", n.Name, code)
		}
		c.cluster.Restart(n)
		c.until("all replicas count again", time.Minute, func() bool {
			now := c.status()
			return now.Seen && now.UnderReplicated == 0 && now.WithoutLeader == 0
		})
	}
	t.Logf("FIGURE thousand: leaders after a rolling restart: %v", c.leaders())
	c.balance()
	c.even("after a rolling restart and a balance")

	drained := c.cluster.Nodes[2]
	c.drain(drained, true)
	c.until("the drained node leads nothing", time.Minute, func() bool {
		now := c.leaders()
		return now[drained.Name] == 0 && now[""] == 0
	})
	conn.Close()
	conn = c.dial(c.cluster.Nodes[1])
	makeMore(partitions)
	c.within("with 30 more made while n3 is drained", c.cluster.Others(drained)...)
	if now := c.leaders(); now[drained.Name] != 0 {
		t.Errorf("the drained node leads %d streams", now[drained.Name])
	}
	if err := c.cluster.SameReplicas(); err != nil {
		t.Error(err)
	}
}
