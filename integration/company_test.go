package integration

import (
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/integration/harness"
)

// Whether nodes find each other again, and nobody else.

// togetherWithin is how soon after a restart or a long cut all nodes must be one
// company again.
const togetherWithin = 60 * time.Second

// whole tells whether a node finds nothing wrong with a cluster of so many.
func whole(n *harness.Node, members int) bool {
	var now admin.Cluster
	if err := n.Call(http.MethodGet, "/api/v1/cluster", nil, &now); err != nil {
		return false
	}
	up := 0
	for _, m := range now.Members {
		if m.State == "up" {
			up++
		}
	}
	return now.Seen && up == members && now.WithoutLeader == 0 && len(now.Problems) == 0
}

// clusterIDs are those that nodes have written down, without those that have none.
func clusterIDs(t *testing.T, nodes []*harness.Node) map[string][]string {
	t.Helper()
	found := map[string][]string{}
	for _, n := range nodes {
		text, err := os.ReadFile(filepath.Join(n.DataDir, "node.json"))
		if os.IsNotExist(err) {
			continue
		}
		var id struct{ Cluster string }
		if err == nil {
			err = json.Unmarshal(text, &id)
		}
		if err != nil {
			t.Fatalf("node %s: %v", n.Name, err)
		}
		if id.Cluster != "" {
			found[id.Cluster] = append(found[id.Cluster], n.Name)
		}
	}
	return found
}

// gathered waits until all nodes see each other.
func (c *clusterTest) gathered() time.Duration {
	c.t.Helper()
	begin := time.Now()
	for _, n := range c.cluster.Nodes {
		for !whole(n, len(c.cluster.Nodes)) {
			if time.Since(begin) > togetherWithin {
				c.t.Fatalf("node %s does not see all others after %v", n.Name, togetherWithin)
			}
			pass(50 * time.Millisecond)
		}
	}
	return time.Since(begin)
}

// TestCompany_massRestarts kills five nodes at once and starts them again, each
// within five seconds (EL-09).
func TestCompany_massRestarts(t *testing.T) {
	rounds := number(t, "MASS_RESTARTS", 0)
	if rounds == 0 {
		t.Skip("mass restarts take long; make company-long has them")
	}
	c := &clusterTest{t: t, cluster: harness.StartCluster(t, 5)}
	c.create()
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 9))
	t.Logf("the seed is %d", seed)
	slowest := time.Duration(0)
	for range rounds {
		var all sync.WaitGroup
		for _, n := range c.cluster.Nodes {
			all.Go(n.Kill)
		}
		all.Wait()
		errs := make([]error, len(c.cluster.Nodes))
		for i, n := range c.cluster.Nodes {
			late := time.Duration(random.IntN(5000)) * time.Millisecond // the fault is how they come
			all.Go(func() {
				pass(late)
				errs[i] = n.TryRestart()
			})
		}
		all.Wait()
		for i, err := range errs {
			if err != nil {
				t.Fatalf("node %s: %v", c.cluster.Nodes[i].Name, err)
			}
		}
		slowest = max(slowest, c.gathered())
	}
	t.Logf("FIGURE %s: five nodes killed and started %d times, each within 5 s: all see all, and all streams have leaders, %d ms after the last is ready, goal %d ms",
		t.Name(), rounds, slowest.Milliseconds(), togetherWithin.Milliseconds())
	c.start()
	c.finish()
}

// TestCompany_swappedAddresses has two clusters that share a secret, and names of
// nodes, and swaps the addresses of one node each (EL-17).
func TestCompany_swappedAddresses(t *testing.T) {
	if number(t, "MASS_RESTARTS", 0) == 0 {
		t.Skip("two clusters take long; make company-long has them")
	}
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte(hex.EncodeToString(make([]byte, 32))+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	var both []*clusterTest
	ids := map[string]bool{}
	for range 2 {
		c := &clusterTest{t: t, cluster: harness.StartCluster(t, 3, "--cluster-secret-file", secret)}
		c.create()
		c.start()
		both = append(both, c)
		for id := range clusterIDs(t, c.cluster.Nodes) {
			ids[id] = true
		}
	}
	one, two := both[0].cluster.Nodes[2], both[1].cluster.Nodes[2]
	one.Stop()
	two.Stop()
	harness.SwapPlaces(one, two)
	var work sync.WaitGroup
	for _, c := range both {
		work.Go(func() { c.cluster.Restart(c.cluster.Nodes[2]) })
	}
	work.Wait()
	strangers := 0
	for _, c := range both {
		took := c.gathered()
		now := clusterIDs(t, c.cluster.Nodes)
		if len(now) != 1 {
			t.Errorf("clusters %v", now)
		}
		for id := range now {
			if !ids[id] {
				t.Errorf("a new cluster %s", id)
			}
			delete(ids, id)
		}
		for _, n := range c.cluster.Nodes {
			strangers += strings.Count(n.LogSinceStart(), "another cluster")
		}
		t.Logf("FIGURE %s: a node at an address of another cluster's: all see each other after %d ms", t.Name(), took.Milliseconds())
	}
	if strangers == 0 {
		t.Error("nobody met the other cluster")
	}
	for _, c := range both {
		c.flows()
		c.finish()
	}
}
