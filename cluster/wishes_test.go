package cluster

import (
	"context"
	"sync"
	"testing"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// openThree has a stream "s" on n1 alone in a catalog that knows three nodes.
// Only n1 takes part in raft; the fake replicas answer for all.
func openThree(t *testing.T, registered func(chunk.Incarnation, chunk.Epoch, protocol.Registration)) *Cluster {
	t.Helper()
	c, err := Open(context.Background(), Config{Dir: t.TempDir(), Node: "n1", Fencer: newReplicas(newDisk(), 1), Registered: registered})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	one, _ := catalog.ParseArguments(map[string]string{"initial-cluster-size": "1"})
	if err := c.CreateStream(within(t), CreateStream{VHost: "/", Name: "s", Arguments: one}); err != nil {
		t.Fatal(err)
	}
	for _, n := range []protocol.NodeID{"n2", "n3"} {
		if err := c.do(within(t), &catalog.PutNode{ID: n, Disk: "d"}); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func stream(c *Cluster) *catalog.Stream {
	s, _ := c.View().Stream("/", "s")
	return s
}

// says has the leader propose something about a node.
func says(c *Cluster, kind protocol.ProposalKind, node protocol.NodeID) {
	s := stream(c)
	r, _ := s.Replica(node)
	c.Proposed(s.Incarnation, protocol.Proposal{
		Kind: kind, Node: node, Epoch: s.Epoch, Config: s.ConfigVersion, Registration: r.Registration,
	})
}

func voter(c *Cluster, node protocol.NodeID) func(*catalog.State) bool {
	return func(*catalog.State) bool {
		r, ok := stream(c).Replica(node)
		return ok && r.Voter && !r.Aside
	}
}

// A replica is replaced: the newcomer becomes a voter once the leader says that
// it has caught up and that the voters are settled; then the old one goes.
func TestProposed_replacesAReplica(t *testing.T) {
	c := openThree(t, nil)
	ctx := within(t)
	i := stream(c).Incarnation
	if err := c.do(ctx, &catalog.AddReplicas{Replicas: []catalog.Added{{Stream: i, Node: "n2"}}}); err != nil {
		t.Fatal(err)
	}
	learner, _ := stream(c).Replica("n2")
	before := c.View().Version()
	unsettled := catalog.NewWishes("n1")
	unsettled.Add(i, protocol.Proposal{Kind: protocol.ProposePromote, Node: "n2", Registration: learner.Registration})
	c.changeVoters(unsettled.Take())
	if c.View().Version() != before {
		t.Fatal("a change of voters was proposed before they were settled")
	}
	says(c, protocol.ProposeSettled, "n1")
	says(c, protocol.ProposePromote, "n2")
	eventually(t, c, "n2 is a voter", voter(c, "n2"))

	// n3 comes for n2, which the leader makes a learner once n3 is a voter.
	if err := c.do(ctx, &catalog.AddReplicas{Replicas: []catalog.Added{{Stream: i, Node: "n3", Instead: "n2"}}}); err != nil {
		t.Fatal(err)
	}
	says(c, protocol.ProposeSettled, "n1")
	says(c, protocol.ProposePromote, "n3")
	eventually(t, c, "n3 is a voter", voter(c, "n3"))
	says(c, protocol.ProposeSettled, "n1")
	eventually(t, c, "n2 is gone", func(*catalog.State) bool {
		_, ok := stream(c).Replica("n2")
		return !ok
	})
}

// Whoever is to leave goes although the metadata could not be reached when the
// leader, once and for all, called its voters settled.
func TestProposed_settledUnheard(t *testing.T) {
	c := openThree(t, nil)
	ctx := within(t)
	i := stream(c).Incarnation
	if err := c.do(ctx, &catalog.AddReplicas{Replicas: []catalog.Added{{Stream: i, Node: "n2", Instead: "n1"}}}); err != nil {
		t.Fatal(err)
	}
	says(c, protocol.ProposeSettled, "n1")
	says(c, protocol.ProposePromote, "n2")
	eventually(t, c, "n2 is a voter", voter(c, "n2"))
	over, cancel := context.WithCancel(ctx)
	cancel()
	unreached := &Cluster{config: c.config, log: c.log, meta: c.meta, wishes: c.wishes, coord: c.coord, presence: c.presence, done: over}
	unreached.failure.ch = make(chan struct{})
	once := catalog.NewWishes("n1")
	once.Add(i, protocol.Proposal{Kind: protocol.ProposeSettled, Node: "n1", Epoch: stream(c).Epoch, Config: stream(c).ConfigVersion})
	unreached.changeVoters(once.Take())
	eventually(t, c, "n1 is no voter", func(*catalog.State) bool { return !voter(c, "n1")(nil) })
}

// Who is to leave stays while the rest has no majority that is there, and goes
// once it has, though the leader says only once that its voters are settled.
func TestProposed_staysForTheMajority(t *testing.T) {
	for _, row := range []struct {
		name       string
		away, back func(c *Cluster)
	}{
		{"gone", func(c *Cluster) { c.see("n3", catalog.Gone) }, func(c *Cluster) { c.see("n3", catalog.Up) }},
		{"its link has just broken", func(c *Cluster) { c.presence.set("n3", true); c.presence.set("n3", false) },
			func(c *Cluster) { c.Linked("n3", true) }},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := openThree(t, nil)
			ctx := within(t)
			i := stream(c).Incarnation
			for _, n := range []protocol.NodeID{"n2", "n3"} {
				if err := c.do(ctx, &catalog.AddReplicas{Replicas: []catalog.Added{{Stream: i, Node: n}}}); err != nil {
					t.Fatal(err)
				}
				says(c, protocol.ProposeSettled, "n1")
				says(c, protocol.ProposePromote, n)
				eventually(t, c, "it is a voter", voter(c, n))
			}
			row.away(c)
			if err := c.do(ctx, &catalog.RetireReplicas{Replicas: []catalog.Retired{{Stream: i, Node: "n2"}}}); err != nil {
				t.Fatal(err)
			}
			once := catalog.NewWishes("n1")
			once.Add(i, protocol.Proposal{Kind: protocol.ProposeSettled, Node: "n1", Epoch: stream(c).Epoch, Config: stream(c).ConfigVersion})
			c.changeVoters(once.Take())
			if !voter(c, "n2")(nil) {
				t.Fatal("n2 went, and n1 is left without a majority")
			}
			row.back(c)
			eventually(t, c, "n2 is gone", func(*catalog.State) bool {
				_, ok := stream(c).Replica("n2")
				return !ok
			})
		})
	}
}

func TestProposed_registersAndClears(t *testing.T) {
	var mu sync.Mutex
	told := make(chan protocol.Registration, 1)
	c := openThree(t, func(_ chunk.Incarnation, e chunk.Epoch, r protocol.Registration) {
		mu.Lock()
		defer mu.Unlock()
		if e != 2 { // it led epoch 1, which is over
			t.Errorf("the promise to make is %d", e)
		}
		told <- r
	})
	says(c, protocol.ProposeRegister, "n1")
	r := <-told
	if got, _ := stream(c).Replica("n1"); !got.Aside || got.Registration != r {
		t.Errorf("replica %+v, told %d", got, r)
	}
	eventually(t, c, "the sole voter leads again", func(*catalog.State) bool { return stream(c).Led() && stream(c).Epoch == 2 })
	says(c, protocol.ProposeClear, "n1")
	eventually(t, c, "it counts again", voter(c, "n1"))
}

// An operator moves the leader, then drains the node that it went to.
func TestCoordinator_movesLeaders(t *testing.T) {
	c := openThree(t, nil)
	ctx := within(t)
	i := stream(c).Incarnation
	if err := c.do(ctx, &catalog.AddReplicas{Replicas: []catalog.Added{{Stream: i, Node: "n2"}}}); err != nil {
		t.Fatal(err)
	}
	says(c, protocol.ProposeSettled, "n1")
	says(c, protocol.ProposePromote, "n2")
	eventually(t, c, "n2 is a voter", voter(c, "n2"))
	if err := c.do(ctx, &catalog.TransferLeaders{Transfers: []catalog.Transfer{{Stream: i, To: "n2"}}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, c, "n2 leads", func(*catalog.State) bool { return stream(c).Leader.Node == "n2" })
	if s := stream(c); s.Epoch != 2 || s.Target != "" {
		t.Errorf("after the transfer: epoch %d, target %q", s.Epoch, s.Target)
	}
	if err := c.do(ctx, &catalog.MarkNode{ID: "n2", Draining: true}); err != nil {
		t.Fatal(err)
	}
	eventually(t, c, "n1 leads", func(*catalog.State) bool { return stream(c).Leader.Node == "n1" })
}

// A leader's node that is gone costs the stream its epoch, and what is new goes
// elsewhere.
func TestSee_goneNode(t *testing.T) {
	c := openThree(t, nil)
	ctx := within(t)
	i := stream(c).Incarnation
	for _, n := range []protocol.NodeID{"n2", "n3"} {
		if err := c.do(ctx, &catalog.AddReplicas{Replicas: []catalog.Added{{Stream: i, Node: n}}}); err != nil {
			t.Fatal(err)
		}
		says(c, protocol.ProposeSettled, "n1")
		says(c, protocol.ProposePromote, n)
		eventually(t, c, "it is a voter", voter(c, n))
	}
	if err := c.do(ctx, &catalog.TransferLeaders{Transfers: []catalog.Transfer{{Stream: i, To: "n3"}}}); err != nil {
		t.Fatal(err)
	}
	eventually(t, c, "n3 leads", func(*catalog.State) bool { return stream(c).Leader.Node == "n3" })
	c.see("n3", catalog.Gone)
	eventually(t, c, "another leads", func(*catalog.State) bool { return stream(c).Led() && stream(c).Leader.Node != "n3" })
	two, _ := catalog.ParseArguments(map[string]string{"initial-cluster-size": "2"})
	if err := c.CreateStream(ctx, CreateStream{VHost: "/", Name: "t", Arguments: two}); err != nil {
		t.Fatal(err)
	}
	s, _ := c.View().Stream("/", "t")
	if _, ok := s.Replica("n3"); ok {
		t.Error("a new stream went to a node that is gone")
	}
	c.see("n3", catalog.Up)
}
