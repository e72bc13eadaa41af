package link

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/millrace/millrace/replication/protocol"
)

// peerConn is a connection to a node that has proven who it is.
type peerConn struct {
	net.Conn
	// cork is under TLS, nil without.
	cork   *cork
	peer   protocol.NodeID
	hello  hello
	bundle uint64
}

// Close ends the connection at once. TLS would say goodbye first, and wait for
// seconds until there is room to say it where nobody listens any more; all that is
// said here tells its length, so that an end needs no proof.
func (c *peerConn) Close() error {
	if c.cork != nil {
		return c.cork.Conn.Close()
	}
	return c.Conn.Close()
}

// credentials is what Security said for one connection.
type credentials struct {
	cert    *tls.Certificate
	roots   *x509.CertPool
	secrets [][]byte
	cluster string // that this node belongs to, or is certified for
}

func (m *Mux) credentials() (c credentials, err error) {
	if m.config.Security == nil {
		return c, errNoSecurity
	}
	if c.cert, c.roots, err = m.config.Security.Certificate(); err != nil {
		return c, err
	}
	if c.secrets, err = m.config.Security.Secrets(); err != nil {
		return c, err
	}
	for _, s := range c.secrets {
		if len(s) < secretBytesMin {
			return c, fmt.Errorf("%w: %d bytes, it needs %d or more", ErrSecret, len(s), secretBytesMin)
		}
	}
	if c.cert == nil && len(c.secrets) == 0 {
		return c, errNoSecurity
	}
	if c.cert != nil && c.roots == nil {
		return c, fmt.Errorf("%w: a certificate needs the authority that the others' are from", ErrAuthority)
	}
	if c.cluster = m.belongs(); c.cluster == "" && c.cert != nil {
		c.cluster, err = clusterIn(c.cert, m.config.Node)
	}
	return c, err
}

// Dial makes a connection for raft or, within the package, one of a bundle.
func (m *Mux) dial(ctx context.Context, h hello, made func()) (*peerConn, error) {
	addr, err := m.config.Address(h.to)
	if err != nil {
		return nil, fmt.Errorf("address of %s: %w", h.to, err)
	}
	return m.dialAt(ctx, addr, h, made)
}

// addressPatience is what each address of a host is given at least, while others
// are left to be tried.
const addressPatience = 2 * time.Second

// dialAt makes a connection to the node at an address, within ctx and the time
// of a handshake. Where a host has several addresses, each is tried until a node
// there proves itself: one may lead nowhere, or to somebody else.
func (m *Mux) dialAt(ctx context.Context, addr string, h hello, made func()) (*peerConn, error) {
	ctx, cancel := context.WithTimeout(ctx, m.config.HandshakeTimeout)
	defer cancel()
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return nil, err
	}
	found := []string{host}
	if net.ParseIP(host) == nil && host != "" {
		if found, err = m.config.Resolve(ctx, host); err != nil {
			return nil, err
		}
	}
	var problems []error
	for i, ip := range found {
		c, err := m.dialOne(ctx, net.JoinHostPort(ip, port), len(found)-i, h, made)
		if err == nil {
			return c, nil
		}
		problems = append(problems, err)
	}
	if len(problems) == 1 {
		return nil, problems[0]
	}
	return nil, fmt.Errorf("%s, %d addresses: %w", host, len(found), errors.Join(problems...))
}

// dialOne is dialAt for one address of so many that are left.
func (m *Mux) dialOne(ctx context.Context, addr string, left int, h hello, made func()) (*peerConn, error) {
	if deadline, ok := ctx.Deadline(); ok && left > 1 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(time.Until(deadline)/time.Duration(left), addressPatience))
		defer cancel()
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	made()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	c, err := m.dialHandshake(ctx, conn, h)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		return nil, fmt.Errorf("handshake with %s at %s: %w", cmp.Or(h.to, "a node"), addr, err)
	}
	return c, nil
}

func (m *Mux) dialHandshake(ctx context.Context, conn net.Conn, h hello) (*peerConn, error) {
	cred, err := m.credentials()
	if err != nil {
		return nil, err
	}
	h.min, h.max, h.cluster, h.from = versionMin, versionMax, m.belongs(), m.config.Node
	_, _ = rand.Read(h.nonce[:]) // it never fails
	over, under, binding, err := m.dialed(ctx, conn, &cred, &h)
	if err != nil {
		return nil, err
	}
	first := h.append(nil)
	if _, err := over.Write(first); err != nil {
		return nil, err
	}
	challenge, second, err := readAnswer(over)
	if err != nil {
		return nil, err
	}
	if challenge.version < versionMin || challenge.version > versionMax {
		return nil, ErrVersion
	}
	third := emptyProof
	if len(cred.secrets) > 0 {
		third = proof(cred.secrets[0], labelDialer, first, second, binding)
	}
	if _, err := over.Write(third[:]); err != nil {
		return nil, err
	}
	welcome, fourth, err := readAnswer(over)
	if err != nil {
		return nil, err
	}
	said := fourth[:answerBytes-proofBytes]
	if len(cred.secrets) > 0 && provedBy(cred.secrets[:1], welcome.value[:], labelAcceptor, first, second, third[:], said, binding) == nil {
		return nil, fmt.Errorf("%s: %w", h.to, ErrUnproven)
	}
	return &peerConn{Conn: over, cork: under, peer: h.to, hello: h, bundle: welcome.bundle}, nil
}

// acceptHandshake is the other end. For a link it also returns what to do with
// the connection.
func (m *Mux) acceptHandshake(conn net.Conn) (*peerConn, func(*peerConn), error) {
	cred, err := m.credentials()
	if err != nil {
		return nil, nil, err
	}
	over, under, binding, early, err := m.accepted(conn, &cred)
	if err != nil {
		return nil, nil, err
	}
	h, first, err := readHello(io.MultiReader(bytes.NewReader(early), over))
	if err != nil {
		return nil, nil, err
	}
	c := &peerConn{Conn: over, cork: under, peer: h.from, hello: h}
	if err := m.checkHello(over, &cred, &h); err != nil {
		return nil, nil, refuse(over, err)
	}
	challenge := answer{version: versionMax}
	_, _ = rand.Read(challenge.value[:])
	second := challenge.append(nil)
	if _, err := over.Write(second); err != nil {
		return nil, nil, err
	}
	third := make([]byte, proofBytes)
	if _, err := io.ReadFull(over, third); err != nil {
		return nil, nil, err
	}
	secret := provedBy(cred.secrets, third, labelDialer, first, second, binding)
	if len(cred.secrets) > 0 && secret == nil || len(cred.secrets) == 0 && !isEmpty(third) {
		return nil, nil, refuse(over, fmt.Errorf("%s: %w", h.from, ErrUnproven))
	}
	if h.purpose != PurposeKnock { // strangers may ask
		if err := m.config.Member(h.purpose, h.from); err != nil {
			return nil, nil, refuse(over, fmt.Errorf("%s: %w: %w", h.from, ErrStranger, err))
		}
	}
	var join func(*peerConn)
	welcome := answer{version: versionMax}
	if h.purpose == PurposeLink {
		if welcome.bundle, join, err = m.linked().admit(&h); err != nil {
			return nil, nil, refuse(over, fmt.Errorf("%s: %w", h.from, err))
		}
	}
	if secret != nil {
		said := welcome.append(nil)[:answerBytes-proofBytes]
		welcome.value = proof(secret, labelAcceptor, first, second, third, said, binding)
	}
	_, err = over.Write(welcome.append(nil))
	return c, join, err
}

// checkHello compares what the dialer says with what it showed and with what
// this node is.
func (m *Mux) checkHello(conn net.Conn, cred *credentials, h *hello) error {
	if over, is := conn.(*tls.Conn); is {
		if err := checkTLS(over.ConnectionState(), cred, h); err != nil {
			return err
		}
	} else if !m.config.near(conn) {
		return fmt.Errorf("%s comes without: %w", h.from, ErrPlain)
	}
	switch cluster := m.belongs(); {
	case h.max < versionMin || h.min > versionMax:
		return fmt.Errorf("versions %d to %d: %w", h.min, h.max, ErrVersion)
	case h.purpose == PurposeKnock: // who answers it, says who belongs where
		return nil
	case h.cluster != cluster || cluster == "":
		return fmt.Errorf("cluster %q: %w", h.cluster, ErrCluster)
	case h.to != m.config.Node:
		return fmt.Errorf("for %q: %w", h.to, ErrNode)
	case h.from == m.config.Node:
		return fmt.Errorf("from %q, which is this node: %w", h.from, ErrNode)
	}
	return nil
}

// checkTLS compares a hello with what was shown before it.
func checkTLS(state tls.ConnectionState, cred *credentials, h *hello) error {
	if state.NegotiatedProtocol != protocolNames[h.purpose] {
		return fmt.Errorf("protocol %q for purpose %q: %w", state.NegotiatedProtocol, h.purpose, ErrHandshake)
	}
	if cred.cert == nil {
		return nil // the proof says who it is
	}
	nodes, _ := nodesIn(state.PeerCertificates[0], cred.cluster)
	if !contains(nodes, h.from) {
		return fmt.Errorf("certificate is of %q, the hello of %q: %w", nodes, h.from, ErrNode)
	}
	return nil
}

func contains(nodes []protocol.NodeID, n protocol.NodeID) bool {
	for _, o := range nodes {
		if o == n {
			return true
		}
	}
	return false
}

// refuse tells the dialer why, as far as it may know, and returns err.
func refuse(conn net.Conn, err error) error {
	a := answer{version: versionMax}
	for code, what := range refusals {
		if what != nil && errors.Is(err, what) {
			a.code = byte(code)
			_, _ = conn.Write(a.append(nil))
			break
		}
	}
	return err
}
