package node

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/cmd/millrace/config"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// patience bounds waits; nothing is measured by it.
const patience = 20 * time.Second

// secret is a cluster's.
type secret struct{}

func (secret) Certificate() (*tls.Certificate, *x509.CertPool, error) { return nil, nil, nil }
func (secret) Secrets() ([][]byte, error)                             { return [][]byte{bytes.Repeat([]byte{7}, 32)}, nil }

// bench is a node's data side: store, replicas, residents and links. Its
// metadata is of its own, so that all it hears of the streams comes by fences.
type bench struct {
	*Node
	fencer fencer
}

// company is three of them, linked.
type company struct {
	t     *testing.T
	nodes map[protocol.NodeID]*bench
	// stream is as the coordinator's catalog has it.
	stream catalog.Stream
}

func newCompany(t *testing.T) *company {
	c := &company{t: t, nodes: map[protocol.NodeID]*bench{}}
	c.stream = catalog.Stream{VHost: "/", Name: "orders", Incarnation: 0x5eed, ConfigVersion: 1}
	where := map[protocol.NodeID]string{}
	listeners := map[protocol.NodeID]net.Listener{}
	for _, id := range []protocol.NodeID{"n1", "n2", "n3"} {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[id], where[id] = l, l.Addr().String()
		c.stream.Replicas = append(c.stream.Replicas, catalog.Replica{Node: id, Voter: true})
	}
	for id, l := range listeners {
		c.nodes[id] = c.start(id, l, func(to protocol.NodeID) (string, error) { return where[to], nil })
	}
	return c
}

func (c *company) start(id protocol.NodeID, l net.Listener, address func(protocol.NodeID) (string, error)) *bench {
	n := &Node{config: config.Dev(), log: hclog.NewNullLogger()}
	n.failure.ch = make(chan struct{})
	n.running, n.halt = context.WithCancel(context.Background())
	n.config.DataDir, n.config.NodeName = filepath.Join(c.t.TempDir(), "data"), string(id)
	b := &bench{Node: n}
	c.must(n.openStore(c.context()))
	b.fencer = fencer{n.residents, n.transport}
	n.requests.handle(groupReplica, n.waiting(b.fencer.serve))
	var err error
	n.cluster, err = cluster.Open(c.context(), cluster.Config{Dir: n.config.DataDir, Node: id, Fencer: b.fencer})
	c.must(err)
	n.residents.patience = time.Hour // the company's stream is in no catalog
	n.residents.follow(n.cluster)
	n.mux, err = link.NewMux(link.MuxConfig{Listener: l, Cluster: "c", Node: id, Security: secret{}, Address: address})
	c.must(err)
	n.links = link.New(n.mux, link.Config{BackoffMin: 5 * time.Millisecond}, handler{n.transport, &n.requests, func(protocol.NodeID, bool) {}, n.forwards.down})
	n.transport.open(n.links)
	c.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = n.Stop(ctx) // the others may be gone, and nothing be committed any more
	})
	return b
}

func (c *company) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *company) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	c.t.Cleanup(cancel)
	return ctx
}

func (c *company) until(what string, ok func() bool) {
	c.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for late := time.After(patience); !ok(); {
		select {
		case <-tick.C:
		case <-late:
			c.t.Fatalf("never: %s", what)
		}
	}
}

// elect has the coordinator on n1 elect a leader among some nodes, as
// catalog.NextSteps would, and waits for its barrier.
func (c *company) elect(epoch chunk.Epoch, prefer protocol.NodeID, of ...protocol.NodeID) *replication.Replica {
	c.t.Helper()
	s := c.stream
	s.Epoch, s.Leader, s.Preferred = epoch, catalog.Leader{}, prefer
	asked := s // catalogs never change a value that they gave out
	var reports []protocol.Report
	for _, id := range of {
		var answers []cluster.FenceAnswer
		c.until("node "+string(id)+" is reached", func() bool { // the links are only coming up
			var err error
			answers, err = c.nodes["n1"].fencer.Fence(c.context(), id, []catalog.FenceRequest{{Stream: &asked}})
			return err == nil
		})
		c.must(answers[0].Err)
		reports = append(reports, answers[0].Report)
	}
	d := protocol.SelectLeader(epoch, reports, s.Configuration(), prefer)
	if d.Kind != protocol.Elected {
		c.t.Fatalf("epoch %d: %v", epoch, d.Kind)
	}
	s.Leader = catalog.Leader{Node: d.Node, Run: d.Run, ConfigVersion: 1}
	a, _ := s.Assignment()
	outcomes, err := c.nodes["n1"].fencer.Install(c.context(), d.Node, []catalog.Installation{{Assignment: a, Inheritance: d.Inheritance}})
	c.must(errors.Join(append(outcomes, err)...))
	r, _ := c.nodes[d.Node].replicas.Replica(s.Incarnation)
	c.until("the barrier is committed", func() bool { return r.Stats().Role == replication.RoleLeading })
	return r
}

// sink hears of one batch.
type sink chan error

func (s sink) Confirmed(*replication.Batch)         { s <- nil }
func (s sink) Failed(_ *replication.Batch, e error) { s <- e }

// publish stores n messages and waits for their confirms.
func (c *company) publish(r *replication.Replica, n int) error {
	c.t.Helper()
	p, err := r.Declare("")
	if err != nil {
		return err
	}
	done := make(sink, n)
	for i := range n {
		body := fmt.Appendf(nil, "message %d", i)
		b := &replication.Batch{Publisher: p, IDs: []uint64{uint64(i)}, Sink: done}
		b.Data = append([]byte{0, 0, 0, byte(len(body))}, body...)
		b.Ends = []uint32{uint32(len(b.Data))}
		r.Publish(b)
	}
	for range n {
		select {
		case e := <-done:
			err = errors.Join(err, e)
		case <-time.After(patience):
			c.t.Fatal("no confirm")
		}
	}
	return err
}

// agree waits until all replicas hold the leader's log, and know it committed.
func (c *company) agree(leader *replication.Replica) {
	c.t.Helper()
	want := leader.Stats()
	for id, n := range c.nodes {
		r, ok := n.replicas.Replica(c.stream.Incarnation)
		if !ok {
			c.t.Fatalf("no replica on %s", id)
		}
		c.until(fmt.Sprintf("%s holds what the leader does", id), func() bool {
			got := r.Stats()
			return got.Commit == want.Commit && got.Log.Tail == want.Log.Tail
		})
	}
}

// TestTransport_threeNodes goes the whole way: fences that make replicas on
// nodes whose catalog does not know the stream yet, an election over the link,
// messages, and another leader.
func TestTransport_threeNodes(t *testing.T) {
	c := newCompany(t)
	l := c.elect(1, "n2", "n1", "n2", "n3")
	c.must(c.publish(l, 300))
	c.agree(l)
	c.must(c.nodes["n1"].fencer.HandOver(c.context(), catalog.Handover{Stream: c.stream.Incarnation, Epoch: 1, From: "n2", To: "n3"}))
	next := c.elect(2, "n3", "n1", "n2", "n3")
	if at := next.Standing(); at.Leads != 2 || c.nodes["n3"].residents.node != "n3" {
		t.Fatalf("after the handover: %+v", at)
	}
	if err := c.publish(l, 1); !errors.Is(err, replication.ErrNotLeader) {
		t.Errorf("the leader that handed over says %v", err)
	}
	c.must(c.publish(next, 300))
	c.agree(next)
}

// TestTransport_promiseCountsAtOnce: who was fenced takes nothing more from the
// old leader, though no catalog has told of the new epoch; and a node can't push
// chunks of a stream that it does not lead.
func TestTransport_promiseCountsAtOnce(t *testing.T) {
	c := newCompany(t)
	l := c.elect(1, "n1", "n1", "n2", "n3")
	c.must(c.publish(l, 10))
	c.agree(l)
	n3, _ := c.nodes["n3"].replicas.Replica(c.stream.Incarnation)
	before := n3.Stats().Log.Tail

	send := func(from, to protocol.NodeID, f *replication.Frame) {
		t.Helper()
		c.nodes[from].links.Connect(to)
		c.until("they are linked", func() bool { return c.nodes[from].links.Connected(to) })
		refused := c.nodes[to].links.Stats().RefusedFrames
		c.nodes[from].transport.Send(to, f)
		c.until("the frame is refused", func() bool { return c.nodes[to].links.Stats().RefusedFrames > refused })
	}
	pushTo := func(from, to protocol.NodeID, stream chunk.Incarnation, epoch chunk.Epoch) {
		t.Helper()
		x := segstore.NewChunk(0)
		x.Head = append(x.Head, make([]byte, chunk.StorageHeaderLength+chunk.ClientHeaderLength)...)
		send(from, to, &replication.Frame{
			Stream: stream, Chunk: x,
			Message: protocol.Message{Kind: protocol.MsgChunk, Epoch: epoch, Session: 1},
		})
		x.Release()
	}
	push := func(from protocol.NodeID, epoch chunk.Epoch) {
		t.Helper()
		pushTo(from, "n3", c.stream.Incarnation, epoch)
	}
	push("n1", 2)                                  // an epoch that nobody gave out
	pushTo("n1", "n3", c.stream.Incarnation+1, 1)  // of another life of the stream
	pushTo("n2", "n1", c.stream.Incarnation, 1)    // the wrong way: to who leads
	for _, epoch := range []chunk.Epoch{0, 1, 2} { // acks for who leads nothing
		send("n2", "n3", &replication.Frame{Stream: c.stream.Incarnation, Message: protocol.Message{Kind: protocol.MsgAck, Epoch: epoch, Session: 1, LSN: 99}})
	}
	send("n2", "n1", &replication.Frame{Stream: c.stream.Incarnation, Message: protocol.Message{Kind: protocol.MsgAck, Epoch: 9, Session: 1, LSN: 99}})

	s := c.stream
	s.Epoch = 2
	answers, err := c.nodes["n2"].fencer.Fence(c.context(), "n3", []catalog.FenceRequest{{Stream: &s}})
	c.must(errors.Join(err, answers[0].Err))
	push("n1", 1) // deposed here, and does not know it

	s.Leader = catalog.Leader{Node: "n1", Run: 1}
	s.Epoch = 3
	_, err = c.nodes["n2"].fencer.Fence(c.context(), "n3", []catalog.FenceRequest{{Stream: &s}})
	c.must(err)
	push("n2", 3) // n1 leads
	if after := n3.Stats().Log.Tail; after != before {
		t.Errorf("n3 went from %v to %v", before, after)
	}
}

// TestTransport_notEntered: a node that does not know whether its data directory
// is the one that the metadata has answers no fence (D1).
func TestTransport_notEntered(t *testing.T) {
	c := newCompany(t)
	c.elect(1, "n1", "n1", "n2", "n3")
	r := c.nodes["n3"].residents
	r.mu.Lock()
	r.meta = nil
	r.mu.Unlock()
	s := c.stream
	s.Epoch = 2
	_, err := c.nodes["n1"].fencer.Fence(c.context(), "n3", []catalog.FenceRequest{{Stream: &s}})
	if err == nil {
		t.Error("it answered")
	}
}

// TestResidents_lostFiles: a replica whose files are gone is not made anew as if
// it had never acknowledged anything; the metadata enters it anew first.
func TestResidents_lostFiles(t *testing.T) {
	c := newCompany(t)
	l := c.elect(1, "n1", "n1", "n2", "n3")
	c.must(c.publish(l, 10))
	c.agree(l)
	n3 := c.nodes["n3"]
	c.must(n3.replicas.Remove(c.context(), c.stream.Incarnation))
	c.must(n3.store.Remember(c.stream.Incarnation, func(s *segstore.StreamState) { s.Promise, s.Mark = 1, 5 }))
	s := c.stream
	s.Epoch = 2
	answers, err := c.nodes["n1"].fencer.Fence(c.context(), "n3", []catalog.FenceRequest{{Stream: &s}})
	c.must(err)
	if answers[0].Err == nil {
		t.Fatalf("an emptied replica reports %+v", answers[0].Report)
	}
	// The metadata enters it anew; it joins, is set aside, and is filled.
	s.Replicas = append([]catalog.Replica(nil), s.Replicas...)
	s.Replicas[2].Aside, s.Replicas[2].Registration = true, 2
	s.ConfigVersion, c.stream = 2, s
	answers, err = c.nodes["n1"].fencer.Fence(c.context(), "n3", []catalog.FenceRequest{{Stream: &s}})
	c.must(errors.Join(err, answers[0].Err))
	if p := answers[0].Report; !p.Aside || p.Registration != 2 || p.Damaged || p.Tail.LSN != 0 {
		t.Errorf("joined anew it reports %+v", p)
	}
	c.agree(c.elect(3, "n1", "n1", "n2", "n3"))
}

// TestTransport_buffers: chunks come into the store's pools and every count goes
// back.
func TestTransport_buffers(t *testing.T) {
	tr := &transport{}
	head, data, held := tr.Buffer(100, 2000)
	c := held.(*segstore.Chunk)
	if len(head) != 100 || len(data) != 2000 || &c.Head[0] != &head[0] || &c.Data[0] != &data[0] || len(c.Data) != 2000 {
		t.Fatalf("%d, %d", len(c.Head), len(c.Data))
	}
	held.Release()
}
