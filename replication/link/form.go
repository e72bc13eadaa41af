package link

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"time"
)

// A connection between nodes has one of three forms. Both ends tell which from
// what they have and from the addresses of the connection itself; nothing that
// is said on it can change that.
//
//	certificates       TLS; each end shows one, and checks the other's
//	a secret           TLS by a key of this process alone, which nobody checks:
//	                   the proofs that follow are bound to the connection
//	a secret, and both
//	ends on loopback   plain: what passes never leaves the machine
//
// So who comes between two machines can be neither end: he has to make two
// connections of TLS, and what is exported from one is not what is exported from
// the other. Nor can he talk them out of TLS: a dialer begins in plain towards
// loopback alone, and an acceptor takes plain from loopback alone.

// near tells whether what passes on a connection stays on this machine.
func near(conn net.Conn) bool {
	return loopback(conn.LocalAddr()) && loopback(conn.RemoteAddr())
}

func loopback(a net.Addr) bool {
	t, ok := a.(*net.TCPAddr)
	return ok && t.IP.IsLoopback()
}

// dialed brings a connection that this node made into its form; binding is what
// its two ends have in common and nobody else knows, nil in plain.
func (m *Mux) dialed(ctx context.Context, conn net.Conn, cred *credentials, h *hello) (over net.Conn, under *cork, binding []byte, err error) {
	names := []string{protocolNames[h.purpose]}
	var config *tls.Config
	switch {
	case cred.cert != nil:
		config = m.tlsConfig(cred.cert, cred.roots, names, x509.ExtKeyUsageServerAuth, cred.cluster, h.to)
	case m.config.near(conn):
		return conn, nil, nil, nil
	default:
		config = boundConfig(nil, names)
	}
	under = &cork{Conn: conn}
	over, binding, err = m.shake(ctx, tls.Client(under, config))
	var garbled tls.RecordHeaderError
	if errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.As(err, &garbled) {
		err = fmt.Errorf("%w (is that the port between nodes, of a node of this version?)", err)
	}
	return over, under, binding, err
}

// firstOfTLS is the first byte of a client's hello of TLS, and of no other hello.
const firstOfTLS = 0x16

// accepted is dialed for a connection that came in. Early is what was read of it
// in plain, where the dialer chose that.
func (m *Mux) accepted(conn net.Conn, cred *credentials) (over net.Conn, under *cork, binding, early []byte, err error) {
	names := []string{protocolNames[PurposeLink], protocolNames[PurposeRaft], protocolNames[PurposeKnock]}
	var config *tls.Config
	if cred.cert != nil {
		config = m.tlsConfig(cred.cert, cred.roots, names, x509.ExtKeyUsageClientAuth, cred.cluster, "")
	} else {
		first := make([]byte, 1)
		if _, err = io.ReadFull(conn, first); err != nil || first[0] != firstOfTLS {
			return conn, nil, nil, first, err
		}
		conn = &begun{conn, first}
		config = boundConfig(m.moment, names)
	}
	under = &cork{Conn: conn}
	over, binding, err = m.shake(m.ctx, tls.Server(under, config))
	return over, under, binding, nil, err
}

// shake makes the handshake of TLS.
func (m *Mux) shake(ctx context.Context, over *tls.Conn) (net.Conn, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, m.config.TLSTimeout)
	defer cancel()
	if err := over.HandshakeContext(ctx); err != nil {
		return nil, nil, fmt.Errorf("TLS handshake: %w", err)
	}
	state := over.ConnectionState()
	binding, err := state.ExportKeyingMaterial(bindingLabel, nil, bindingBytes)
	return over, binding, err
}

const (
	bindingLabel = "EXPORTER-millrace-link"
	bindingBytes = 32
)

// begun is a connection of which the first bytes were read already.
type begun struct {
	net.Conn
	first []byte
}

func (b *begun) Read(p []byte) (int, error) {
	if len(b.first) == 0 {
		return b.Conn.Read(p)
	}
	n := copy(p, b.first)
	b.first = b.first[n:]
	return n, nil
}

// boundConfig is for either end where a secret alone proves who is there; cert is
// the acceptor's, of this process.
func boundConfig(cert *tls.Certificate, names []string) *tls.Config {
	c := &tls.Config{
		MinVersion:             tls.VersionTLS13, // whose exporter depends on all of the handshake
		NextProtos:             names,
		InsecureSkipVerify:     true, // proofs are bound to the connection instead
		SessionTicketsDisabled: true,
		VerifyConnection:       sameProtocol,
	}
	if cert != nil {
		c.Certificates = []tls.Certificate{*cert}
	}
	return c
}

func sameProtocol(s tls.ConnectionState) error {
	if s.NegotiatedProtocol == "" {
		return fmt.Errorf("%w: no common protocol name", ErrHandshake)
	}
	return nil
}

// momentYears is longer than any process lives; nobody looks at it.
const momentYears = 10

// newMoment makes the certificate that TLS needs where a secret is what proves.
func newMoment(now time.Time) (*tls.Certificate, error) {
	pair, err := sign(&x509.Certificate{
		Subject:     pkix.Name{CommonName: "a millrace node with a cluster secret"},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		NotBefore:   now.Add(-clockSlack), NotAfter: now.AddDate(momentYears, 0, 0),
	}, nil, nil)
	if err != nil {
		return nil, err
	}
	cert, err := tls.X509KeyPair(pair.CertPEM, pair.KeyPEM)
	return &cert, err
}
