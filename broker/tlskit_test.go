package broker_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/broker"
)

// authority issues certificates for a test.
type authority struct {
	t    testing.TB
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	t.Helper()
	a := &authority{t: t}
	own := a.issue(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.cert, a.key = own.Leaf, own.PrivateKey.(*ecdsa.PrivateKey)
	return a
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// issue signs a certificate with a key of its own.
func (a *authority) issue(template *x509.Certificate) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, by := a.cert, a.key
	if parent == nil {
		parent, by = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, by)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (a *authority) server() tls.Certificate {
	return a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, DNSNames: []string{"localhost"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// user is the certificate of a client.
func (a *authority) user(name string) tls.Certificate {
	return a.issue(&x509.Certificate{
		Subject: pkix.Name{CommonName: name, Organization: []string{"Test"}}, DNSNames: []string{name + ".example"},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// secureHouse is a house with a TLS port beside the plain one.
type secureHouse struct {
	*house
	authority *authority
	addrTLS   string
	lines     *logged
}

func serveTLS(t testing.TB, change func(*broker.Config), auth tls.ClientAuthType) *secureHouse {
	t.Helper()
	h := &secureHouse{authority: newAuthority(t), lines: &logged{}}
	h.house = serve(t, func(c *broker.Config) {
		c.Log = h.lines
		if change != nil {
			change(c)
		}
	})
	listener := listen(t)
	h.addrTLS = listener.Addr().String()
	settings := &tls.Config{
		Certificates: []tls.Certificate{h.authority.server()}, ClientAuth: auth, ClientCAs: h.authority.pool(),
		SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true,
	}
	served := make(chan error, 1)
	go func() { served <- h.broker.ServeTLS(listener, settings) }()
	t.Cleanup(func() {
		listener.Close()
		if err := <-served; err == nil || errors.Is(err, broker.ErrClosed) {
			t.Errorf("serve: %v, want that the listener is closed", err)
		}
	})
	return h
}

// dialTLS connects and says nothing beyond the TLS handshake.
func (h *secureHouse) dialTLS(t testing.TB, shows *tls.Certificate, version uint16) (*peer, error) {
	t.Helper()
	settings := &tls.Config{RootCAs: h.authority.pool(), ServerName: "localhost", MinVersion: version, MaxVersion: version}
	if shows != nil {
		settings.Certificates = []tls.Certificate{*shows}
	}
	conn, err := net.DialTimeout("tcp", h.addrTLS, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	_ = conn.SetDeadline(time.Now().Add(patience))
	secure := tls.Client(conn, settings)
	if err := secure.Handshake(); err != nil {
		return nil, err
	}
	return newPeer(t, secure), nil
}

func (h *secureHouse) secure(t testing.TB) *peer {
	t.Helper()
	p, err := h.dialTLS(t, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// logged keeps what is logged at Warn, and at Debug apart.
type logged struct {
	mu            sync.Mutex
	lines, detail []string
}

func (l *logged) Debug(message string, pairs ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.detail = append(l.detail, message+fmt.Sprint(pairs...))
}

// says whether one of the details has the part.
func (l *logged) says(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(strings.Join(l.detail, "\n"), part)
}

func (l *logged) Info(string, ...any) {}
func (l *logged) Warn(message string, pairs ...any) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines = append(l.lines, message+fmt.Sprint(pairs...))
}

// wantLine wants one line that says all the parts.
func (l *logged) wantLine(t testing.TB, parts ...string) {
	t.Helper()
	var line string
	eventually(t, "a line in the log", func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if len(l.lines) > 0 {
			line = l.lines[0]
		}
		return len(l.lines) > 0
	})
	for _, part := range parts {
		if !strings.Contains(line, part) {
			t.Errorf("the log says %q, want %q in it", line, part)
		}
	}
	if strings.Contains(line, "\n") {
		t.Errorf("the log has more than a line: %q", line)
	}
}
