package integration

import (
	"bytes"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/replication/link"
)

// outside is an address of this machine that other machines could reach.
func outside(t *testing.T) string {
	t.Helper()
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		n, is := a.(*net.IPNet)
		if !is || n.IP.To4() == nil || !n.IP.IsGlobalUnicast() {
			continue
		}
		l, err := net.Listen("tcp", net.JoinHostPort(n.IP.String(), "0"))
		if err == nil {
			_ = l.Close()
			return n.IP.String()
		}
	}
	t.Skip("this machine has no address but loopback; make namespaces-long has networks of its own")
	return ""
}

// TestCluster_bySecretAlone: three nodes with nothing but a secret file, at an
// address that other machines reach: they found a cluster, are killed under load
// and lose nothing. Who speaks without TLS there, or has another secret, is told
// why, in his log and theirs, and is not let in.
func TestCluster_bySecretAlone(t *testing.T) {
	if number(t, "CLUSTER_KILLS", 0) == 0 {
		t.Skip("starts four nodes; make cluster-test has it")
	}
	host := outside(t)
	c := &clusterTest{t: t, cluster: harness.StartClusterAt(t, host, 3)}
	c.create()
	c.start()
	victim := c.cluster.Leader(c.streams[0].name)
	for _, s := range c.streams {
		s.traffic.Killed(time.Now())
	}
	victim.Kill()
	c.flows()
	c.cluster.Restart(victim)
	for _, s := range c.streams {
		c.level(s)
	}
	n1 := c.cluster.Nodes[0]
	at := nodeAddress(t, n1)
	if on, _, _ := net.SplitHostPort(at); on != host {
		t.Fatalf("n1 is found at %s, not at %s", at, host)
	}
	sayInPlain(t, at)
	eventually(t, "n1 says that it was talked to in plain", func() bool { return strings.Contains(n1.Log(), link.ErrPlain.Error()) })
	log := runStranger(t, at)
	for name, log := range map[string]func() string{"n1": n1.Log, "the stranger": log} {
		eventually(t, name+" says that the secret is another", func() bool { return strings.Contains(log(), link.ErrUnproven.Error()) })
	}
	c.finish()
}

// nodeAddress is where the others find a node.
func nodeAddress(t *testing.T, n *harness.Node) string {
	t.Helper()
	var now admin.Cluster
	if err := n.Call("GET", "/api/v1/cluster", nil, &now); err != nil {
		t.Fatal(err)
	}
	for _, m := range now.Members {
		if m.Node == n.Name {
			return m.Addresses["node"]
		}
	}
	t.Fatalf("%s is no member", n.Name)
	return ""
}

// sayInPlain is what a node of before TLS would say; it is told that this won't do.
func sayInPlain(t *testing.T, at string) {
	t.Helper()
	conn, err := net.Dial("tcp", at)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	names := "\x00\x02n9\x00" // no cluster, from n9, to whoever is there
	_, err = io.WriteString(conn, "JMRL\x00\x31\x01\x01\x00\x01"+strings.Repeat("\x00", 8)+strings.Repeat("n", 32)+names)
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(usableWithin))
	answer, err := io.ReadAll(conn)
	if err != nil || len(answer) != 42 || answer[0] != 9 {
		t.Errorf("in plain: answer % x, %v", answer, err)
	}
}

// runStranger starts a node with a secret of its own that wants to join; it
// returns what it has logged.
func runStranger(t *testing.T, at string) (log func() string) {
	t.Helper()
	path, err := harness.Binary()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte(strings.Repeat("other", 10)), 0o600); err != nil {
		t.Fatal(err)
	}
	host, _, _ := net.SplitHostPort(at)
	cmd := exec.CommandContext(t.Context(), path, "server", "--node-name", "n9", "--data-dir", filepath.Join(dir, "n9"), "--join", at,
		"--node-addr", host+":0", "--gossip-addr", host+":0", "--stream-addr", "localhost:0", "--http-addr", "localhost:0",
		"--cluster-secret-file", secret)
	var said lockedText
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Wait() }) // t's context is over by then
	return said.String
}

// lockedText is what a process writes, for others to read meanwhile.
type lockedText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lockedText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lockedText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
