package harness

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
)

// certificatesLast is longer than any test.
const certificatesLast = 24 * time.Hour

// StartTLSCluster is StartCluster with mutual TLS between the nodes.
func StartTLSCluster(t testing.TB, n int, args ...string) *Cluster {
	t.Helper()
	return startCluster(t, onLoopback(t, n, nil), certificates, args)
}

// certifiedCluster is the cluster that certificates name.
const certifiedCluster = "harness"

// certificates is the identity by a certificate for each node.
func certificates(c *Cluster, dir string) func(node string) []string {
	t := c.t
	t.Helper()
	const cluster = certifiedCluster
	authority, err := link.NewAuthority(cluster, time.Now(), certificatesLast)
	if err != nil {
		t.Fatal(err)
	}
	c.Authority = authority
	write := func(name string, text []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := write("ca.crt", authority.CertPEM)
	return func(node string) []string {
		pair, err := authority.Issue(cluster, protocol.NodeID(node), nil, time.Now(), certificatesLast)
		if err != nil {
			t.Fatal(err)
		}
		return []string{"--node-tls-cert", write(node+".crt", pair.CertPEM), "--node-tls-key", write(node+".key", pair.KeyPEM), "--node-tls-ca", ca}
	}
}
