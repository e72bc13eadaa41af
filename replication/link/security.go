package link

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/millrace/millrace/replication/protocol"
)

// Security is how nodes prove who they are: certificates, a secret, or both. It
// is asked anew for each connection, so that keys rotate while old connections
// live on.
type Security interface {
	// Certificate returns this node's certificate and the authorities that the
	// others' must come from; nil for no TLS.
	Certificate() (*tls.Certificate, *x509.CertPool, error)
	// Secrets returns the cluster secrets, the one to prove by first; the
	// others are still believed. None: certificates alone.
	Secrets() ([][]byte, error)
}

// secretBytesMin is what can't be guessed offline: 256 bits.
const secretBytesMin = 32

// ReadSecrets reads a file of cluster secrets, one a line, the newest first. A
// file that others may read, or a secret under 32 bytes, is an ErrSecret.
func ReadSecrets(path string) ([][]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read cluster secret: %w", err)
	}
	if info.Mode().Perm()&(fs.ModePerm^0o600) != 0 {
		return nil, fmt.Errorf("%w: %s has rights %v; take those of others away (chmod 600)", ErrSecret, path, info.Mode().Perm())
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read cluster secret: %w", err)
	}
	var secrets [][]byte
	for line := range bytes.Lines(b) {
		s := bytes.TrimSpace(line)
		if len(s) == 0 {
			continue
		}
		if len(s) < secretBytesMin {
			return nil, fmt.Errorf("%w: a secret in %s has %d bytes, it needs %d or more (openssl rand -hex 32)", ErrSecret, path, len(s), secretBytesMin)
		}
		secrets = append(secrets, s)
	}
	if len(secrets) == 0 {
		return nil, fmt.Errorf("%w: %s is empty (openssl rand -hex 32 > FILE)", ErrSecret, path)
	}
	return secrets, nil
}

// protocolNames are the names of ALPN.
var protocolNames = map[Purpose]string{PurposeRaft: "millrace-raft/1", PurposeLink: "millrace-link/1", PurposeKnock: "millrace-knock/1"}

// identityScheme begins the URI in a certificate that names cluster and node:
// millrace:///CLUSTER/NODE, both escaped as parts of a path.
const identityScheme = "millrace:///"

func identityURI(cluster string, node protocol.NodeID) *url.URL {
	path := "/" + url.PathEscape(cluster) + "/" + url.PathEscape(string(node))
	plain, _ := url.PathUnescape(path)
	return &url.URL{Scheme: "millrace", Path: plain, RawPath: path}
}

// nodesIn returns the nodes of a cluster that a certificate names.
func nodesIn(cert *x509.Certificate, cluster string) (nodes []protocol.NodeID, others []string) {
	for _, u := range cert.URIs {
		if u.Scheme != "millrace" {
			continue
		}
		c, n, ok := strings.Cut(strings.TrimPrefix(u.EscapedPath(), "/"), "/")
		cu, err1 := url.PathUnescape(c)
		nu, err2 := url.PathUnescape(n)
		switch {
		case !ok || err1 != nil || err2 != nil || cu == "" || nu == "":
		case cu != cluster:
			others = append(others, cu)
		default:
			nodes = append(nodes, protocol.NodeID(nu))
		}
	}
	return nodes, others
}

// verifyPeer checks a certificate chain against the authorities and for the
// cluster and node that it must name; node "" takes any.
func verifyPeer(chain []*x509.Certificate, roots *x509.CertPool, usage x509.ExtKeyUsage, cluster string, node protocol.NodeID, now time.Time) error {
	if len(chain) == 0 {
		return fmt.Errorf("%w: none was shown", ErrCertificate)
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: roots, Intermediates: between, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{usage},
	})
	if err != nil {
		return fmt.Errorf("%w: %w", ErrCertificate, err)
	}
	nodes, others := nodesIn(chain[0], cluster)
	switch {
	case len(nodes) == 0 && len(others) > 0:
		return fmt.Errorf("certificate is of cluster %q: %w", others[0], ErrCluster)
	case len(nodes) == 0:
		return fmt.Errorf("%w: it names no node (%sCLUSTER/NODE)", ErrCertificate, identityScheme)
	}
	if node == "" {
		return nil
	}
	for _, n := range nodes {
		if n == node {
			return nil
		}
	}
	return fmt.Errorf("certificate is of node %q, not %q: %w", nodes[0], node, ErrNode)
}

// tlsConfig is one for either end: both show a certificate, and both check it
// in the same way.
func (m *Mux) tlsConfig(cert *tls.Certificate, roots *x509.CertPool, names []string, usage x509.ExtKeyUsage, cluster string, peer protocol.NodeID) *tls.Config {
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		Certificates:           []tls.Certificate{*cert},
		NextProtos:             names,
		ClientAuth:             tls.RequireAnyClientCert, // VerifyConnection checks it
		InsecureSkipVerify:     true,                     // as above: by node id, not host name
		SessionTicketsDisabled: true,
		VerifyConnection: func(s tls.ConnectionState) error {
			if err := sameProtocol(s); err != nil {
				return err
			}
			return verifyPeer(s.PeerCertificates, roots, usage, cluster, peer, time.Now())
		},
	}
}

// errNoSecurity is what a mux without certificate and secret ends in.
var errNoSecurity = errors.New("link: neither a certificate nor a cluster secret is configured")
