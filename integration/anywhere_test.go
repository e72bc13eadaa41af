package integration

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

// TestCluster_clientsAnywhere has clients publish, store and ask on any node of
// three while a stream's leader is killed: what is confirmed is there, once and
// in order; what is stored is the same on every node, and each tells where any
// stream begins and ends; a reference that is declared on one node ends its
// publisher on another.
func TestCluster_clientsAnywhere(t *testing.T) {
	c := newClusterTest(t)
	for _, s := range c.streams {
		s.traffic = harness.StartTrafficAnywhere(c.cluster.Addrs(), s.name, s.ledger, 1, clusterPublishers)
	}
	c.flows()
	victim := c.cluster.Leader(c.streams[0].name)
	c.gap()
	killed := time.Now()
	for _, s := range c.streams {
		s.traffic.Killed(killed)
	}
	victim.Kill()
	c.flows()
	gap := c.gap()
	t.Logf("FIGURE clients on any node: a leader killed by kill -9: longest gap %d ms", gap.Milliseconds())
	c.cluster.Restart(victim)
	for _, s := range c.streams {
		c.level(s)
	}
	c.sameOffsets(c.streams[0].name)
	c.placesAnywhere()
	c.fencesAcross()
	c.finish()
}

// sameOffsets stores by way of each node, and asks every node.
func (c *clusterTest) sameOffsets(stream string) {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), usableWithin)
	defer cancel()
	for i, at := range c.cluster.Nodes {
		conn := c.dial(at)
		defer conn.Close()
		reference, value := fmt.Sprint("reader-", i), uint64(1000+i)
		if err := conn.StoreOffset(reference, stream, value); err != nil {
			c.t.Fatal(err)
		}
		if got, err := conn.QueryOffset(ctx, reference, stream); err != nil || got != value {
			c.t.Fatalf("node %s answers %d (%v) to who stored %d", at.Name, got, err, value)
		}
		for _, other := range c.cluster.Others(at) {
			asking := c.dial(other)
			defer asking.Close()
			if got, err := asking.QueryOffset(ctx, reference, stream); err != nil || got != value {
				c.t.Errorf("stored %d on %s; node %s answers %d (%v)", value, at.Name, other.Name, got, err)
			}
		}
	}
}

// placesAnywhere asks every node where a stream begins and ends, and where a
// subscription would, of which one node has a replica.
func (c *clusterTest) placesAnywhere() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), usableWithin)
	defer cancel()
	const stream, messages = "single", 30
	conn := c.dial(c.cluster.Nodes[0])
	defer conn.Close()
	if err := conn.Create(ctx, stream, map[string]string{"initial-cluster-size": "1"}); err != nil {
		c.t.Fatal(err)
	}
	confirmed := make(chan []uint64, messages)
	p, err := conn.DeclarePublisher(ctx, client.PublisherConfig{Stream: stream, Confirmed: func(ids []uint64) { confirmed <- slices.Clone(ids) }})
	if err != nil {
		c.t.Fatal(err)
	}
	for id := range uint64(messages) {
		c.send(p, id)
	}
	for n := 0; n < messages; {
		select {
		case ids := <-confirmed:
			n += len(ids)
		case <-ctx.Done():
			c.t.Fatal("the publisher gets no confirm")
		}
	}
	for _, at := range c.cluster.Nodes {
		asking := c.dial(at)
		defer asking.Close()
		stats, err := asking.Stats(ctx, stream)
		if err != nil || stats["first_chunk_id"] != 0 || stats["committed_offset"] != messages-1 {
			c.t.Errorf("node %s answers %v (%v)", at.Name, stats, err)
		}
		for spec, want := range map[wire.OffsetSpec]uint64{
			{Type: wire.OffsetFirst}: 0, {Type: wire.OffsetNext}: messages, {Type: wire.OffsetLast}: uint64(stats["last_chunk_id"]),
			{Type: wire.OffsetTimestamp, Timestamp: time.Now().UnixMilli() + 1_000_000}: messages,
		} {
			if got, err := asking.ResolveOffset(ctx, stream, spec); err != nil || got != want {
				c.t.Errorf("node %s says that %+v is at %d (%v), want %d", at.Name, spec, got, err, want)
			}
		}
	}
}

// fencesAcross declares a reference on every node in turn.
func (c *clusterTest) fencesAcross() {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(c.t.Context(), usableWithin)
	defer cancel()
	const stream = "fenced"
	conn := c.dial(c.cluster.Nodes[0])
	defer conn.Close()
	if err := conn.Create(ctx, stream, nil); err != nil {
		c.t.Fatal(err)
	}
	refused := make(chan wire.PublishingError, 10)
	var older *client.Publisher
	for i, at := range c.cluster.Nodes {
		conn := c.dial(at)
		defer conn.Close()
		confirmed := make(chan uint64, 10)
		p, err := conn.DeclarePublisher(ctx, client.PublisherConfig{
			Stream: stream, Reference: "r",
			Confirmed: func(ids []uint64) { confirmed <- ids[len(ids)-1] },
			Refused:   func(errs []wire.PublishingError) { refused <- errs[0] },
		})
		if err != nil {
			c.t.Fatalf("declare on %s: %v", at.Name, err)
		}
		if last := p.Last(); last != uint64(i) {
			c.t.Errorf("node %s says that %d was published last, want %d", at.Name, last, i)
		}
		if older != nil {
			c.send(older, uint64(i+1))
			select {
			case got := <-refused:
				if got.Code != wire.CodePublisherDoesNotExist {
					c.t.Errorf("the older publisher is refused with %s", got.Code)
				}
			case <-ctx.Done():
				c.t.Fatal("the older publisher is not refused")
			}
		}
		c.send(p, uint64(i+1))
		select {
		case <-confirmed:
		case <-ctx.Done():
			c.t.Fatalf("the publisher on %s gets no confirm", at.Name)
		}
		older = p
	}
}

func (c *clusterTest) send(p *client.Publisher, id uint64) {
	c.t.Helper()
	if err := p.Send(id, []byte("m")); err != nil {
		c.t.Fatal(err)
	}
	if err := p.Flush(); err != nil {
		c.t.Fatal(err)
	}
}
