package harness

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/millrace/millrace/replication/link"
)

// SecureNode is a node that serves clients and operators over TLS too. It shows a
// certificate for localhost.
type SecureNode struct {
	*Node
	// StreamTLS and HTTPTLS are host:port.
	StreamTLS, HTTPTLS string
	// Authority issues what the node believes of clients, and has issued its own.
	Authority *link.Authority
	// Dir holds ca.crt, tls.crt and tls.key.
	Dir string
}

// StartSecure is Start with TLS beside the plain ports.
func StartSecure(t testing.TB, args ...string) *SecureNode {
	t.Helper()
	authority, err := link.NewAuthority("harness", time.Now(), certificatesLast)
	if err != nil {
		t.Fatal(err)
	}
	n := &SecureNode{Authority: authority, Dir: t.TempDir()}
	n.write(t, "ca.crt", authority.CertPEM)
	n.Renew(t)
	at := freePorts(t, 2)
	n.StreamTLS, n.HTTPTLS = at[0], at[1]
	n.Node = Start(t, append([]string{
		"--stream-tls-addr", n.StreamTLS, "--http-tls-addr", n.HTTPTLS,
		"--tls-cert", n.File("tls.crt"), "--tls-key", n.File("tls.key"), "--tls-client-ca", n.File("ca.crt"),
	}, args...)...)
	return n
}

// Renew puts a new certificate in the place of the node's, which is returned.
func (n *SecureNode) Renew(t testing.TB) *x509.Certificate {
	t.Helper()
	pair, err := n.Authority.IssueServer([]string{"localhost", "127.0.0.1", "::1"}, time.Now(), certificatesLast)
	if err != nil {
		t.Fatal(err)
	}
	n.write(t, "tls.crt", pair.CertPEM)
	n.write(t, "tls.key", pair.KeyPEM)
	both, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	return both.Leaf
}

// File is the path of one of the node's files.
func (n *SecureNode) File(name string) string { return filepath.Join(n.Dir, name) }

func (n *SecureNode) write(t testing.TB, name string, text []byte) {
	t.Helper()
	path := n.File(name)
	if err := os.WriteFile(path+".new", text, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
}

// Client are the settings of a client that believes the node and shows the
// certificate of a user; "" shows none.
func (n *SecureNode) Client(t testing.TB, user string) *tls.Config {
	t.Helper()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(n.Authority.CertPEM)
	c := &tls.Config{RootCAs: roots, ServerName: "localhost", MinVersion: tls.VersionTLS12}
	if user == "" {
		return c
	}
	pair, err := n.Authority.IssueClient(user, time.Now(), certificatesLast)
	if err != nil {
		t.Fatal(err)
	}
	both, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	c.Certificates = []tls.Certificate{both}
	return c
}
