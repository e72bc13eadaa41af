package harness

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/replication/link"
)

// Cluster is several nodes that found a cluster together, each a process with a
// data directory and ports of its own, which it keeps.
type Cluster struct {
	t     testing.TB
	Nodes []*Node
	// Ready is how long the start took, from the first process's start until the
	// last node was ready.
	Ready time.Duration
	// Secret or Authority is what the nodes prove themselves by to each other.
	Secret    []byte
	Authority *link.Authority
}

// StartCluster starts n nodes n1, n2, … and waits until all are ready. More args
// are added to every node's command line.
func StartCluster(t testing.TB, n int, args ...string) *Cluster {
	t.Helper()
	return startCluster(t, onLoopback(t, n, nil), sharedSecret, args)
}

// StartClusterAt is StartCluster with nodes that reach each other at an address of
// this machine other than loopback, as they would between machines.
func StartClusterAt(t testing.TB, host string, n int, args ...string) *Cluster {
	t.Helper()
	places := onLoopback(t, n, nil)
	for i := range places {
		p := &places[i]
		for _, at := range []*string{&p.node, &p.gossip, &p.advertised} {
			_, port, _ := net.SplitHostPort(*at)
			*at = net.JoinHostPort(host, port)
		}
	}
	return startCluster(t, places, sharedSecret, args)
}

// StartClusterIn is StartCluster with a data directory given for each node.
func StartClusterIn(t testing.TB, dirs []string, args ...string) *Cluster {
	t.Helper()
	places := onLoopback(t, len(dirs), nil)
	for i := range places {
		places[i].dir = dirs[i]
	}
	return startCluster(t, places, sharedSecret, args)
}

// identity makes what a cluster's nodes prove themselves with to each other in dir,
// and returns each node's arguments for it.
type identity func(c *Cluster, dir string) func(node string) []string

// sharedSecret is the identity by one secret for all.
func sharedSecret(c *Cluster, dir string) func(node string) []string {
	c.t.Helper()
	secret := filepath.Join(dir, "secret")
	var random [32]byte
	_, _ = rand.Read(random[:]) // never fails
	c.Secret = []byte(hex.EncodeToString(random[:]))
	if err := os.WriteFile(secret, append(c.Secret, '\n'), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return func(string) []string { return []string{"--cluster-secret-file", secret} }
}

// place is where a node of a cluster is.
type place struct {
	stream, http, node, gossip string   // host:port to listen on
	advertised                 string   // host:port that other nodes are told
	host                       string   // that clients are told
	enter                      []string // what leads into its namespace, if it has one
	dir                        string   // data directory; one of its own if empty
}

// onLoopback has n nodes on one machine. They reach each other by way of a
// network, if one is given.
func onLoopback(t testing.TB, n int, network *Network) []place {
	t.Helper()
	ports := freePorts(t, 4*n)
	var places []place
	for i := range n {
		at := ports[4*i : 4*i+4]
		p := place{stream: at[0], http: at[1], node: at[2], gossip: at[3], advertised: at[2], host: "localhost"}
		if network != nil {
			p.advertised = network.gate(t, nodeName(i), p.node)
		}
		places = append(places, p)
	}
	return places
}

func startCluster(t testing.TB, places []place, prove identity, args []string) *Cluster {
	t.Helper()
	c := prepareCluster(t, places, prove, args)
	if _, err := Binary(); err != nil { // before the clock runs
		t.Fatal(err)
	}
	begin := time.Now()
	c.Restart(c.Nodes...)
	c.Ready = time.Since(begin)
	return c
}

// prepareCluster makes nodes that nobody has started yet.
func prepareCluster(t testing.TB, places []place, prove identity, args []string) *Cluster {
	t.Helper()
	dir := t.TempDir()
	c := &Cluster{t: t}
	proof := prove(c, dir)
	var join []string
	for _, p := range places {
		join = append(join, p.advertised)
	}
	for i, p := range places {
		name := nodeName(i)
		where := []string{"--node-addr", p.node, "--node-advertised", p.advertised, "--gossip-addr", p.gossip, "--advertised-host", p.host}
		common := []string{
			"--node-name", name, "--bootstrap-expect", fmt.Sprint(len(places)), "--join", strings.Join(join, ","),
		}
		c.Nodes = append(c.Nodes, &Node{
			t: t, Name: name, DataDir: cmp.Or(p.dir, filepath.Join(dir, name)), log: &lockedBuffer{}, command: "server",
			Stream: p.stream, HTTP: "http://" + p.http, Management: "http://localhost:0", Peers: p.node, Gossip: p.gossip,
			enter: p.enter, where: where, args: slices.Concat(common, proof(name), args),
		})
	}
	t.Cleanup(func() {
		for _, node := range c.Nodes {
			node.Kill()
		}
		if t.Failed() {
			for _, node := range c.Nodes {
				t.Logf("log of node %s:\n%s", node.Name, node.Log())
			}
		}
	})
	return c
}

func nodeName(i int) string { return fmt.Sprintf("n%d", i+1) }

// SwapPlaces has two stopped nodes, of one cluster or two, take each other's
// addresses at their next start.
func SwapPlaces(a, b *Node) {
	a.where, b.where = b.where, a.where
	a.Stream, b.Stream = b.Stream, a.Stream
	a.HTTP, b.HTTP = b.HTTP, a.HTTP
	a.Peers, b.Peers, a.Gossip, b.Gossip = b.Peers, a.Peers, b.Gossip, a.Gossip
}

// Restart starts stopped nodes again, all at once, and waits until they are
// ready.
func (c *Cluster) Restart(nodes ...*Node) {
	c.t.Helper()
	errs := make([]error, len(nodes))
	var all sync.WaitGroup
	for i, n := range nodes {
		all.Go(func() { errs[i] = n.TryRestart() })
	}
	all.Wait()
	for i, err := range errs {
		if err != nil {
			c.t.Fatalf("start node %s: %v", nodes[i].Name, err)
		}
	}
}

// Addrs are the nodes' addresses for clients.
func (c *Cluster) Addrs() []string {
	var addrs []string
	for _, n := range c.Nodes {
		addrs = append(addrs, n.Stream)
	}
	return addrs
}

// Others are all nodes but one.
func (c *Cluster) Others(than *Node) []*Node {
	var list []*Node
	for _, n := range c.Nodes {
		if n != than {
			list = append(list, n)
		}
	}
	return list
}

// Named returns the node of a name, nil if there is none.
func (c *Cluster) Named(name string) *Node {
	for _, n := range c.Nodes {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// Leader returns the node that leads a stream, as the first node that runs
// says; it waits for a leader.
func (c *Cluster) Leader(stream string) *Node {
	c.t.Helper()
	var last error
	for end := time.Now().Add(readyWithin); time.Now().Before(end); {
		for _, n := range c.Nodes {
			if !n.Running() {
				continue
			}
			leader, err := c.leaderBy(n, stream)
			if err == nil && leader.Running() {
				return leader
			}
			last = err
		}
		time.Sleep(20 * time.Millisecond)
	}
	c.t.Fatalf("stream %s has no leader: %v", stream, last)
	return nil
}

func (c *Cluster) leaderBy(n *Node, stream string) (*Node, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	conn, err := client.Dial(ctx, client.Config{Addr: n.Stream, Name: "harness", Timeout: 2 * time.Second})
	if err != nil {
		return nil, err
	}
	defer conn.Abort()
	addr, err := conn.Leader(ctx, stream)
	if err != nil {
		return nil, err
	}
	for _, other := range c.Nodes {
		if other.Stream == addr {
			return other, nil
		}
	}
	return nil, fmt.Errorf("node %s names a leader at %s, where no node is", n.Name, addr)
}

// MetaLeader returns the node that leads the metadata; it waits for one that is
// alive.
func (c *Cluster) MetaLeader() *Node {
	c.t.Helper()
	var last string
	for end := time.Now().Add(readyWithin); time.Now().Before(end); {
		for _, n := range c.Nodes {
			if !n.Running() {
				continue
			}
			body, err := n.Get("/api/v1/cluster")
			if err != nil {
				last = err.Error()
				continue
			}
			var status admin.Cluster
			if err := json.Unmarshal(body, &status); err != nil {
				c.t.Fatal(err)
			}
			if leader := c.Named(status.Leader); leader != nil && leader.Running() {
				return leader
			}
			last = status.Leader
		}
		time.Sleep(20 * time.Millisecond)
	}
	c.t.Fatalf("the metadata has no leader: %s", last)
	return nil
}
