package link

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"net/url"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/millrace/millrace/replication/protocol"
)

// Authority issues the certificates of one cluster's nodes. It is a small local
// one, for who has none of their own; any authority whose certificates name
// millrace:///CLUSTER/NODE as URI will do.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	// CertPEM is for every node; KeyPEM only for who issues.
	CertPEM, KeyPEM []byte
}

// Pair is a certificate with its key, as PEM.
type Pair struct {
	CertPEM, KeyPEM []byte
}

// clockSlack is how far clocks of nodes may be apart at the start of validity.
const clockSlack = time.Hour

// NewAuthority makes one for a cluster.
func NewAuthority(cluster string, now time.Time, valid time.Duration) (*Authority, error) {
	if cluster == "" || len(cluster) > nameBytesMax {
		return nil, fmt.Errorf("%w: cluster id must have 1 to %d bytes", ErrAuthority, nameBytesMax)
	}
	t := &x509.Certificate{
		Subject:               pkix.Name{CommonName: authorityName + cluster, Organization: []string{"Millrace"}},
		IsCA:                  true,
		BasicConstraintsValid: true,
		MaxPathLenZero:        true,
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageCRLSign,
		NotBefore:             now.Add(-clockSlack), NotAfter: now.Add(valid),
	}
	pair, err := sign(t, nil, nil)
	if err != nil {
		return nil, err
	}
	return ParseAuthority(pair.CertPEM, pair.KeyPEM)
}

// ParseAuthority reads what NewAuthority made.
func ParseAuthority(certPEM, keyPEM []byte) (*Authority, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("%w: authority: %w", ErrAuthority, err)
	}
	key, is := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !is || !pair.Leaf.IsCA {
		return nil, fmt.Errorf("%w: this is no authority that init-ca made", ErrAuthority)
	}
	return &Authority{cert: pair.Leaf, key: key, CertPEM: certPEM, KeyPEM: keyPEM}, nil
}

// Issue makes the certificate of a node. Hosts are names and addresses that
// clients and operators may call it by; the nodes go by its id.
func (a *Authority) Issue(cluster string, node protocol.NodeID, hosts []string, now time.Time, valid time.Duration) (Pair, error) {
	if node == "" || len(node) > nameBytesMax || cluster == "" || len(cluster) > nameBytesMax {
		return Pair{}, fmt.Errorf("%w: cluster and node must have 1 to %d bytes", ErrAuthority, nameBytesMax)
	}
	until, err := a.until(now, valid)
	if err != nil {
		return Pair{}, err
	}
	t := &x509.Certificate{
		Subject:     pkix.Name{CommonName: string(node), Organization: []string{"Millrace"}},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		URIs:        []*url.URL{identityURI(cluster, node)},
		NotBefore:   now.Add(-clockSlack), NotAfter: until,
	}
	setHosts(t, hosts)
	return sign(t, a.cert, a.key)
}

// IssueServer makes a certificate that clients and operators see: for the hosts,
// and good for nothing between nodes.
func (a *Authority) IssueServer(hosts []string, now time.Time, valid time.Duration) (Pair, error) {
	if len(hosts) == 0 {
		return Pair{}, fmt.Errorf("%w: a server's certificate names a host at least", ErrAuthority)
	}
	return a.issueOther(hosts[0], hosts, x509.ExtKeyUsageServerAuth, now, valid)
}

// IssueClient makes a certificate by which a user logs in, if a broker believes
// the authority.
func (a *Authority) IssueClient(user string, now time.Time, valid time.Duration) (Pair, error) {
	return a.issueOther(user, nil, x509.ExtKeyUsageClientAuth, now, valid)
}

// commonNameMax bounds a common name, in characters (RFC 5280).
const commonNameMax = 64

func (a *Authority) issueOther(name string, hosts []string, usage x509.ExtKeyUsage, now time.Time, valid time.Duration) (Pair, error) {
	if n := utf8.RuneCountInString(name); n == 0 || n > commonNameMax {
		return Pair{}, fmt.Errorf("%w: name %q must have 1 to %d characters", ErrAuthority, name, commonNameMax)
	}
	until, err := a.until(now, valid)
	if err != nil {
		return Pair{}, err
	}
	t := &x509.Certificate{
		Subject:     pkix.Name{CommonName: name},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{usage},
		NotBefore:   now.Add(-clockSlack), NotAfter: until,
	}
	setHosts(t, hosts)
	return sign(t, a.cert, a.key)
}

// until is when a certificate ends: not behind its authority.
func (a *Authority) until(now time.Time, valid time.Duration) (time.Time, error) {
	until := now.Add(valid)
	if until.After(a.cert.NotAfter) {
		until = a.cert.NotAfter // it would end with its authority anyway
	}
	if !until.After(now) {
		return until, fmt.Errorf("%w: the authority ended on %s; make a new one (cert init-ca)", ErrAuthority, a.cert.NotAfter.UTC().Format(time.DateOnly))
	}
	return until, nil
}

func setHosts(t *x509.Certificate, hosts []string) {
	for _, h := range hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
}

// sign makes a key and a certificate over it; without a parent it signs itself.
func sign(t, parent *x509.Certificate, by *ecdsa.PrivateKey) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, err
	}
	if parent == nil {
		parent, by = t, key
	}
	if t.SerialNumber, err = rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127)); err != nil {
		return Pair{}, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, parent, &key.PublicKey, by)
	if err != nil {
		return Pair{}, fmt.Errorf("%w: %w", ErrAuthority, err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{
		CertPEM: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		KeyPEM:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}),
	}, nil
}

// CertificateView is what a certificate says, for people and scripts.
type CertificateView struct {
	Subject     string    `json:"subject"`
	Issuer      string    `json:"issuer"`
	Authority   bool      `json:"authority"`
	Identities  []string  `json:"identities,omitempty"` // millrace:///CLUSTER/NODE
	Hosts       []string  `json:"hosts,omitempty"`
	NotBefore   time.Time `json:"not_before"`
	NotAfter    time.Time `json:"not_after"`
	Fingerprint string    `json:"fingerprint"` // SHA-256
}

// Show tells what the first certificate in a PEM file says.
func Show(certPEM []byte) (CertificateView, error) {
	certs, err := parseCertificates(certPEM)
	if err != nil {
		return CertificateView{}, err
	}
	c := certs[0]
	sum := sha256.Sum256(c.Raw)
	v := CertificateView{
		Subject: c.Subject.String(), Issuer: c.Issuer.String(), Authority: c.IsCA, Hosts: c.DNSNames,
		NotBefore: c.NotBefore, NotAfter: c.NotAfter, Fingerprint: hex.EncodeToString(sum[:]),
	}
	for _, u := range c.URIs {
		v.Identities = append(v.Identities, u.String())
	}
	for _, ip := range c.IPAddresses {
		v.Hosts = append(v.Hosts, ip.String())
	}
	return v, nil
}

// soon is when Check begins to warn that a certificate ends.
const soon = 30 * 24 * time.Hour

// Check returns all that keeps a node from working with a certificate, its key
// and the authorities; warnings are what will soon.
func Check(p Pair, authorities []byte, cluster string, node protocol.NodeID, now time.Time) (problems, warnings []error) {
	roots, err := ParseAuthorities(authorities)
	if err != nil {
		problems = append(problems, err)
	}
	certs, err := parseCertificates(p.CertPEM)
	if err != nil {
		return append(problems, err), nil
	}
	if _, err := tls.X509KeyPair(p.CertPEM, p.KeyPEM); err != nil {
		problems = append(problems, fmt.Errorf("%w: key: %w", ErrAuthority, err))
	}
	if roots != nil {
		for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
			if err := verifyPeer(certs, roots, usage, cluster, node, now); err != nil {
				problems = append(problems, err)
				break // the other says the same, but for a certificate good for one end alone
			}
		}
	}
	if left := certs[0].NotAfter.Sub(now); left > 0 && left < soon {
		warnings = append(warnings, fmt.Errorf("%w: it ends in %d days; issue a new one (cert issue), nodes take it without a restart",
			ErrAuthority, int(left/(24*time.Hour))))
	}
	return problems, warnings
}

// ParseAuthorities reads the certificates of one or more authorities; more than
// one while they are exchanged.
func ParseAuthorities(authorities []byte) (*x509.CertPool, error) {
	certs, err := parseCertificates(authorities)
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	for _, c := range certs {
		if !c.IsCA {
			return nil, fmt.Errorf("%w: %s is no authority", ErrAuthority, c.Subject)
		}
		pool.AddCert(c)
	}
	return pool, nil
}

func parseCertificates(text []byte) (certs []*x509.Certificate, err error) {
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrAuthority, err)
		}
		certs = append(certs, c)
	}
	if len(certs) == 0 {
		return nil, fmt.Errorf("%w: %w", ErrAuthority, errors.New("no certificate in the file (PEM, BEGIN CERTIFICATE)"))
	}
	return certs, nil
}

// authorityName begins an authority's name, before its cluster.
const authorityName = "millrace authority "

// Cluster returns the cluster that the authority was made for.
func (a *Authority) Cluster() string {
	return strings.TrimPrefix(a.cert.Subject.CommonName, authorityName)
}

// ClusterOf returns the first cluster that a certificate names, "" if it names
// none.
func ClusterOf(certPEM []byte) string {
	certs, err := parseCertificates(certPEM)
	if err != nil {
		return ""
	}
	_, clusters := nodesIn(certs[0], "")
	if len(clusters) == 0 {
		return ""
	}
	return clusters[0]
}
