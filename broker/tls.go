package broker

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// errUnsecured: a client on the TLS port did not get through the TLS handshake.
var errUnsecured = errors.New("TLS handshake failed")

// errNoCertificate: the client wants to log in by a certificate and has shown
// none that names a user.
var errNoCertificate = errors.New("the client has shown no certificate that names a user: see tls.client_ca, tls.verify and tls.login_from")

// errKeyChanges: the answers to a client's changes of keys have piled up.
var errKeyChanges = errors.New("client asked for too many changes of keys under TLS")

// secure puts a fresh connection under TLS: the session then reads and writes
// through it. The socket stays what kill closes, since closing TLS waits for a
// client that does not read.
func (s *session) secure(settings *tls.Config) {
	s.cork = &cork{Conn: s.socket}
	s.tls = tls.Server(s.cork, settings)
	s.conn = s.tls
}

// shakeHands has TLS agreed, where the connection is under it, within a time
// that nothing extends.
func (s *session) shakeHands() error {
	if s.tls == nil {
		return nil
	}
	if err := s.socket.SetDeadline(s.since.Add(s.limits.TLSHandshakeTimeout)); err != nil {
		return err
	}
	if err := s.tls.HandshakeContext(s.broker.context); err != nil {
		if timedOut(err) {
			err = fmt.Errorf("not within %s: see stream.tls.handshake_timeout", s.limits.TLSHandshakeTimeout)
		}
		return fmt.Errorf("%w: %w", errUnsecured, err)
	}
	s.cork.put(true)
	return s.socket.SetDeadline(time.Time{})
}

// certified is the user that the client's certificate names. TLS has verified
// the certificate against the authorities of clients.
func (s *session) certified() (string, error) {
	if s.tls == nil {
		return "", errNoCertificate
	}
	state := s.tls.ConnectionState()
	if len(state.VerifiedChains) == 0 {
		return "", errNoCertificate
	}
	user := certifiedUser(state.VerifiedChains[0][0], s.limits.CertificateLogin)
	if user == "" {
		return "", errNoCertificate
	}
	return user, nil
}

// Where in a certificate the user's name is.
const (
	byCommonName        = "common_name"
	byDistinguishedName = "distinguished_name"
	byAlternativeName   = "subject_alternative_name"
)

var certificateLogins = []string{byCommonName, byDistinguishedName, byAlternativeName}

// certifiedUser is the name that a certificate has at the place; "" is none. Of
// alternative names it is the first: of hosts, else of mailboxes, URIs, addresses.
func certifiedUser(cert *x509.Certificate, from string) string {
	switch from {
	case byDistinguishedName:
		return cert.Subject.String()
	case byAlternativeName:
		switch {
		case len(cert.DNSNames) > 0:
			return cert.DNSNames[0]
		case len(cert.EmailAddresses) > 0:
			return cert.EmailAddresses[0]
		case len(cert.URIs) > 0:
			return cert.URIs[0].String()
		case len(cert.IPAddresses) > 0:
			return cert.IPAddresses[0].String()
		}
		return ""
	}
	return cert.Subject.CommonName
}

// loginByCertificate lets the user in that the certificate names, if there is
// one. The rules that hold whatever the proof are the guard's.
func (b *Broker) loginByCertificate(s *session) (credentials, error) {
	user, err := s.certified()
	if err != nil {
		return credentials{}, fmt.Errorf("%w: %w", errCredentials, err)
	}
	found := credentials{mechanism: mechanismExternal, user: user}
	return found, b.logins.login(b.context, s.peer.Addr(), found, func(context.Context, string, []byte) error {
		if _, exists := b.directory.View().User(user); !exists {
			return errors.New("no user has the name in the certificate")
		}
		return nil
	})
}

// cork collects what TLS writes, a record at a time, so that the records of a
// round leave by one system call. It is out, and lets everything through, in the
// handshake and at the end. What TLS writes from within a read, such as the answer
// to a change of keys, goes with the next round.
type cork struct {
	net.Conn
	mu      sync.Mutex // guards the fields below
	in      bool
	sealed  []byte // whole records
	writing bool   // the broker does, so that what comes is its own
	answers int    // bytes of sealed that are not the broker's
	failed  error  // once set, reads and the broker's writes end with it
}

const (
	// sealedBytesMax is from which size on records are sent before there are more.
	sealedBytesMax = 256 << 10
	// answersBytesMax bounds what TLS collects while the broker has nothing to
	// write: as much as a client asks for, without having logged in. It is some
	// 2400 changes of keys, and an honest client makes one in many gigabytes.
	answersBytesMax = 64 << 10
)

func (c *cork) Write(p []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case !c.in:
		return c.Conn.Write(p)
	case c.writing && c.failed != nil:
		return 0, c.failed
	case !c.writing && c.answers+len(p) > answersBytesMax:
		c.failed = errKeyChanges // which the next read says: TLS tells nobody of errors here
		return len(p), nil
	case !c.writing:
		c.answers += len(p)
	}
	c.sealed = append(c.sealed, p...)
	return len(p), nil
}

// Read ends the connection once answers have piled up.
func (c *cork) Read(p []byte) (int, error) {
	c.mu.Lock()
	failed := c.failed
	c.mu.Unlock()
	if failed != nil {
		return 0, failed
	}
	return c.Conn.Read(p)
}

// put has records collected from now on, or not any more.
func (c *cork) put(in bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in = in
}

// begin makes room for so many bytes that the broker writes, until end.
func (c *cork) begin(bytes int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing = true
	if len(c.sealed) > 0 || cap(c.sealed) >= bytes {
		return
	}
	if run := takeRun(); run != nil {
		c.sealed = run
	}
}

func (c *cork) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.writing = false
}

func (c *cork) full() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.sealed) >= sealedBytesMax
}

// drain sends what was collected. The lock is held all the time: a record that is
// made meanwhile comes behind.
func (c *cork) drain(send func([]byte) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.sealed) == 0 {
		return nil
	}
	err := send(c.sealed)
	c.sealed, c.answers = giveRun(c.sealed[:0]), 0
	return err
}

// sealedPiece is how much goes to TLS at once.
const sealedPiece = 64 << 10

// seal writes pieces through TLS with as few system calls as fit.
func (w *writer) seal(pieces ...[]byte) error {
	s := w.session
	size := 0
	for _, p := range pieces {
		size += len(p)
	}
	s.cork.begin(size)
	defer s.cork.end()
	for _, p := range pieces {
		for len(p) > 0 {
			n := min(len(p), sealedPiece)
			if _, err := s.tls.Write(p[:n]); err != nil {
				return err
			}
			p = p[n:]
			if !s.cork.full() {
				continue
			}
			if err := s.cork.drain(w.push); err != nil {
				return err
			}
		}
	}
	return s.cork.drain(w.push)
}
