package integration

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

const (
	contendedNames = 4
	// contenders are how many sessions publish under one name at a time.
	contenders = 3
)

// contended is a stream that many sessions publish to under few names: each takes
// its name over from the one before by way of any node, asks for the sequence, and
// goes on from there with messages of its own. So a confirm of a message that is
// not stored under just that session shows by itself (F1, F2, F4).
type contended struct {
	*clusterTest
	stream   string
	sessions atomic.Uint64

	mu        sync.Mutex // guards both
	confirmed map[contendedMessage]bool
	highest   map[string]uint64 // confirmed
}

// contendedMessage is what a session published under an id: a message, or a
// sub-batch of two.
type contendedMessage struct {
	name        string
	id, session uint64
}

func (m contendedMessage) body(part int) []byte {
	return fmt.Appendf(nil, "%s %d %d %d", m.name, m.id, m.session, part)
}

// contend publishes under a name over one connection after the other.
func (c *contended) contend(ctx context.Context, name string) {
	for ctx.Err() == nil {
		attempt, cancel := context.WithTimeout(ctx, 3*time.Second)
		at := c.cluster.Nodes[rand.IntN(len(c.cluster.Nodes))]
		conn, err := client.Dial(attempt, client.Config{Addr: at.Stream, Name: "contender", Timeout: 2 * time.Second})
		for again := 0; err == nil && again < 3; again++ {
			err = c.hold(attempt, conn, name)
		}
		if conn != nil {
			conn.Abort()
		}
		cancel()
		pass(time.Duration(rand.IntN(20)) * time.Millisecond)
	}
}

// hold is one session: it has the name until another takes it, or for a while. How
// it ends, with messages on their way, differs.
func (c *contended) hold(ctx context.Context, conn *client.Conn, name string) error {
	session := c.sessions.Add(1)
	c.mu.Lock()
	floor := c.highest[name]
	c.mu.Unlock()
	var from atomic.Uint64 // ids above are this session's; late confirms of the one before are not
	from.Store(1<<64 - 1)
	refused := make(chan struct{})
	var once sync.Once
	p, err := conn.DeclarePublisher(ctx, client.PublisherConfig{
		Stream: c.stream, Reference: name, FrameMessages: 10, Window: 1 << 20,
		Confirmed: func(ids []uint64) { c.confirm(name, session, from.Load(), ids) },
		Refused:   func([]wire.PublishingError) { once.Do(func() { close(refused) }) },
	})
	if err != nil {
		return err
	}
	id := p.Last()
	from.Store(id)
	if id < floor {
		c.t.Errorf("%s: %d was confirmed, and the sequence is %d", name, floor, id)
	}
	pad := []byte(strings.Repeat(" ", []int{0, 100, 1000}[rand.IntN(3)]))
	for end := time.Now().Add(time.Duration(rand.IntN(1500)) * time.Millisecond); time.Now().Before(end); {
		select {
		case <-refused:
			return p.Close(ctx)
		case <-conn.Done():
			return conn.Err()
		default:
		}
		for range 1 + rand.IntN(20) {
			id++
			m := contendedMessage{name, id, session}
			if rand.IntN(6) == 0 {
				err = p.SendSubBatch(id, chunk.CompressionNone, m.body(0), m.body(1))
			} else {
				err = p.Send(id, append(append(m.body(0), ' '), pad...))
			}
			if err != nil {
				return err
			}
		}
		if err := p.Flush(); err != nil {
			return err
		}
		pass(time.Duration(rand.IntN(4)) * time.Millisecond) // a publisher's pace
	}
	if rand.IntN(2) == 0 {
		return p.Close(ctx)
	}
	return context.Canceled // the connection breaks
}

func (c *contended) confirm(name string, session, from uint64, ids []uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, id := range ids {
		if id > from {
			c.confirmed[contendedMessage{name, id, session}] = true
			c.highest[name] = max(c.highest[name], id)
		}
	}
}

// disturb moves the leader, kills, stops or cuts off a node, for less or longer
// than links are patient.
func (c *contended) disturb(network *harness.Network) {
	victim := c.cluster.Nodes[rand.IntN(len(c.cluster.Nodes))]
	lasting := time.Duration(rand.IntN(2000)) * time.Millisecond // part of the fault
	switch rand.IntN(4) {
	case 0:
		_, _, _ = victim.Put("/api/v1/streams/%2F/"+c.stream+"/leader", map[string]string{"node": victim.Name})
	case 1:
		victim.Kill()
		pass(lasting / 2)
		c.cluster.Restart(victim)
	case 2:
		victim.Pause()
		pass(lasting)
		victim.Continue()
	case 3:
		for _, other := range c.cluster.Others(victim) {
			network.CutBoth(victim, other)
		}
		pass(lasting)
		network.Heal()
	}
}

// judge reads everything from a node.
func (c *contended) judge() {
	if err := c.cluster.AwaitLevel(c.stream); err != nil {
		c.t.Fatal(err)
	}
	conn := c.dial(c.cluster.Nodes[0])
	defer conn.Close()
	stats, err := conn.Stats(c.t.Context(), c.stream)
	if err != nil {
		c.t.Fatal(err)
	}
	stored, last := map[contendedMessage]int{}, map[string]uint64{}
	read := make(chan struct{})
	_, err = conn.Subscribe(c.t.Context(), client.ConsumerConfig{
		Stream: c.stream, Offset: wire.OffsetSpec{Type: wire.OffsetFirst},
		Deliver: func(d *client.Delivery) {
			for record, err := range d.Records() {
				var m contendedMessage
				var part int
				if _, scan := fmt.Sscanf(string(record.Message), "%s %d %d %d", &m.name, &m.id, &m.session, &part); err != nil || scan != nil {
					c.t.Errorf("offset %d: %v, %v", record.Offset, err, scan)
					return
				}
				if part == 0 {
					stored[m]++
					if m.id <= last[m.name] {
						c.t.Errorf("%s: id %d is stored behind %d", m.name, m.id, last[m.name])
					}
					last[m.name] = m.id
				}
				if int64(record.Offset) == stats["committed_offset"] {
					close(read)
				}
			}
		},
	})
	if err != nil {
		c.t.Fatal(err)
	}
	select {
	case <-read:
	case <-time.After(time.Minute):
		c.t.Fatal("the stream is not read to its end")
	}
	wrong := 0
	for m := range c.confirmed {
		if stored[m] != 1 {
			if wrong++; wrong <= 10 {
				c.t.Errorf("%s: id %d of session %d is confirmed, and stored %d times", m.name, m.id, m.session, stored[m])
			}
		}
	}
	c.t.Logf("FIGURE %s: %d sessions took %d names from each other, on any node and through kills, cuts and pauses: %d messages confirmed, of which %d are not stored once; %d stored",
		c.t.Name(), c.sessions.Load(), contendedNames, len(c.confirmed), wrong, len(stored))
	if len(c.confirmed) == 0 {
		c.t.Error("nothing was confirmed")
	}
}

// TestCluster_contendedNames has sessions take names from each other while the
// cluster is disturbed: what is confirmed to one is stored, once and in order.
func TestCluster_contendedNames(t *testing.T) {
	seconds := number(t, "CONTENDED_SECONDS", 0)
	if seconds == 0 {
		t.Skip("it takes a while; make cluster-test has it")
	}
	cluster, network := harness.StartPartitionable(t, 3)
	c := &contended{
		clusterTest: &clusterTest{t: t, cluster: cluster}, stream: "contended",
		confirmed: map[contendedMessage]bool{}, highest: map[string]uint64{},
	}
	conn := c.dial(cluster.Nodes[0])
	defer conn.Abort()
	if err := conn.Create(t.Context(), c.stream, map[string]string{"stream-max-segment-size-bytes": "3000000"}); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var work sync.WaitGroup
	for i := range contendedNames {
		for range contenders {
			work.Go(func() { c.contend(ctx, fmt.Sprintf("name-%d", i)) })
		}
	}
	for end := time.Now().Add(time.Duration(seconds) * time.Second); time.Now().Before(end); {
		c.disturb(network)
		pass(time.Duration(rand.IntN(500)) * time.Millisecond)
	}
	cancel()
	work.Wait()
	c.judge()
}
