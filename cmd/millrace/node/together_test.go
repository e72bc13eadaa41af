package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/cmd/millrace/config"
	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
)

// whole is nodes with all their parts, in one process.
type whole struct {
	t     *testing.T
	dir   string
	ca    *link.Authority
	joins []string
	nodes map[string]*Node
}

func newWhole(t *testing.T) *whole {
	ca, err := link.NewAuthority("prod", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	w := &whole{t: t, dir: t.TempDir(), ca: ca, nodes: map[string]*Node{}}
	w.file("ca.crt", ca.CertPEM)
	return w
}

func (w *whole) file(name string, text []byte) string {
	w.t.Helper()
	path := filepath.Join(w.dir, name)
	if err := os.WriteFile(path, text, 0o600); err != nil {
		w.t.Fatal(err)
	}
	return path
}

// config is a node's, with a certificate of its own and on any address of the
// machine, as nodes elsewhere have it.
func (w *whole) config(name string) config.Config {
	w.t.Helper()
	pair, err := w.ca.Issue("prod", protocol.NodeID(name), nil, time.Now(), time.Hour)
	if err != nil {
		w.t.Fatal(err)
	}
	c := config.Server()
	c.NodeName, c.DataDir = name, filepath.Join(w.dir, name)
	c.StreamAddr, c.HTTPAddr, c.NodeAddr = "127.0.0.1:0", "127.0.0.1:0", freeAddress(w.t)
	c.GossipAddr = "127.0.0.1:0"
	c.NodeCert, c.NodeKey, c.NodeCA = w.file(name+".crt", pair.CertPEM), w.file(name+".key", pair.KeyPEM), filepath.Join(w.dir, "ca.crt")
	return c
}

// freeAddress is one that nobody listens on; it is told to others before the
// node starts.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func (w *whole) context(d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	w.t.Cleanup(cancel)
	return ctx
}

func (w *whole) stop(name string) {
	n := w.nodes[name]
	if n == nil {
		return
	}
	delete(w.nodes, name)
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = n.Stop(ctx) // without a majority not all is committed
}

// start runs nodes at once.
func (w *whole) start(all ...config.Config) {
	w.t.Helper()
	var work sync.WaitGroup
	var mu sync.Mutex
	var problems []error
	for _, c := range all {
		work.Go(func() {
			n, err := Start(w.context(patience), c, "test", hclog.NewNullLogger())
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				problems = append(problems, fmt.Errorf("%s: %w", c.NodeName, err))
				return
			}
			w.nodes[c.NodeName] = n
		})
	}
	work.Wait()
	w.t.Cleanup(func() {
		for _, c := range all {
			w.stop(c.NodeName)
		}
	})
	if err := errors.Join(problems...); err != nil {
		w.t.Fatal(err)
	}
}

func (w *whole) until(what string, ok func() bool) {
	w.t.Helper()
	end := time.NewTimer(patience)
	defer end.Stop()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-end.C:
			w.t.Fatalf("never: %s", what)
		}
	}
}

// led tells whether all streams have leaders, and none on a node.
func led(v *catalog.State, not protocol.NodeID) bool {
	for s := range v.Streams() {
		if !s.Led() || s.Leader.Node == not {
			return false
		}
	}
	return true
}

// Three nodes with certificates: streams on all, a node drained, undrained and
// removed with its replicas, while a fourth takes them.
func TestTogether_certificatesDrainAndRemove(t *testing.T) {
	w := newWhole(t)
	var configs []config.Config
	for _, name := range []string{"n1", "n2", "n3"} {
		c := w.config(name)
		w.joins = append(w.joins, c.NodeAddr)
		configs = append(configs, c)
	}
	for i := range configs {
		configs[i].Join, configs[i].BootstrapExpect = w.joins, 3
	}
	w.start(configs...)
	for name, n := range w.nodes {
		if n.cluster.ID() != "prod" {
			t.Errorf("%s is of cluster %s, not of its certificate's", name, n.cluster.ID())
		}
	}
	const streams = 12
	for i := range streams {
		q := cluster.CreateStream{VHost: "/", Name: fmt.Sprintf("s%d", i), Creator: "guest", Arguments: catalog.Arguments{LeaderLocator: "balanced"}}
		if err := w.nodes["n2"].cluster.CreateStream(w.context(patience), q); err != nil {
			t.Fatal(err)
		}
	}
	n2 := w.nodes["n2"].cluster
	if err := n2.Drain(w.context(patience), "n1", true); err != nil {
		t.Fatal(err)
	}
	w.until("n1 leads nothing, nor the metadata", func() bool {
		leader, ok := n2.Leader()
		return led(n2.View(), "n1") && ok && leader != "n1"
	})
	if err := n2.Drain(w.context(patience), "n1", false); err != nil {
		t.Fatal(err)
	}
	four := w.config("n4")
	four.Join = w.joins[:1]
	w.start(four)
	if err := n2.Remove(w.context(patience), "n1"); err != nil {
		t.Fatal(err)
	}
	w.until("n1 is no member, and its replicas are on n4", func() bool {
		_, member := n2.View().Node("n1")
		for s := range n2.View().Streams() {
			if r, ok := s.Replica("n4"); !ok || !r.Voter || r.Aside || len(s.Replicas) != 3 {
				return false
			}
		}
		return !member
	})
	removed := w.nodes["n1"]
	w.until("n1 knows that it is no member", func() bool {
		return membership{removed.cluster}.Overview(w.context(patience)).Removed && errors.Is(removed.Ready(), cluster.ErrRemoved)
	})
	if (membership{n2}).Overview(w.context(patience)).Removed || w.nodes["n2"].Ready() != nil {
		t.Error("n2, a member, takes itself for removed")
	}
	w.stop("n1")

	// One of the three is lost for ever: it goes too, though nothing can take
	// its replicas.
	w.stop("n3")
	w.until("n3 can be removed", func() bool { return n2.Remove(w.context(5*time.Second), "n3") == nil })
	w.until("n3 is no member", func() bool { _, member := n2.View().Node("n3"); return !member })
	w.until("all streams are led", func() bool { return led(n2.View(), "n3") })
	w.until("one of two that are both there may go", func() bool { return n2.Remove(w.context(5*time.Second), "n4") == nil })
	w.until("n2 is alone and leads all", func() bool {
		nodes := 0
		for range n2.View().Nodes() {
			nodes++
		}
		return nodes == 1 && led(n2.View(), "n4")
	})
}

// A node with another authority's certificate is not let in, whatever it knows.
func TestTogether_strangersCertificate(t *testing.T) {
	w, other := newWhole(t), newWhole(t)
	one := w.config("n1")
	w.start(one)
	two := other.config("n2")
	two.Join = []string{one.NodeAddr}
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	n, err := Start(ctx, two, "test", hclog.NewNullLogger())
	if err == nil {
		_ = n.Stop(ctx)
	}
	if !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("joined with a stranger's certificate: %v", err)
	}
	if _, member := w.nodes["n1"].cluster.View().Node("n2"); member {
		t.Error("the stranger is a member")
	}
}
