package node

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/cmd/millrace/config"
	"github.com/millrace/millrace/replication/link"
)

// security proves this node to others: a certificate, a shared secret, or both.
// Files are read again when they have changed, so that keys rotate without a
// restart; a file that can't be read any more leaves what was read last.
type security struct {
	cert, key, authorities, secret string // paths; cert and secret may be empty

	mu      sync.Mutex // guards all below
	read    string     // what the files looked like
	pair    *tls.Certificate
	roots   *x509.CertPool
	secrets [][]byte
}

// securityOf is nil for a node that stays alone.
func securityOf(c config.Config) *security {
	if !c.Clustered() {
		return nil
	}
	return &security{cert: c.NodeCert, key: c.NodeKey, authorities: c.NodeCA, secret: c.SecretFile}
}

// Certificate is one of a link.Security.
func (s *security) Certificate() (*tls.Certificate, *x509.CertPool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.refresh()
	return s.pair, s.roots, err
}

// Secrets is one of a link.Security.
func (s *security) Secrets() ([][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	err := s.refresh()
	return s.secrets, err
}

// refresh reads the files if they look other than last time.
func (s *security) refresh() error {
	look := s.look()
	if look == s.read {
		return nil
	}
	err := s.load()
	if err == nil || s.read == "" {
		if err == nil {
			s.read = look
		}
		return err
	}
	return nil // half of a rotation; what was read last still holds
}

// look tells one state of the files from another.
func (s *security) look() string {
	var b strings.Builder
	for _, path := range []string{s.cert, s.key, s.authorities, s.secret} {
		if info, err := os.Stat(path); path != "" && err == nil {
			fmt.Fprintf(&b, "%s %d %s %s\n", path, info.Size(), info.ModTime().Format(time.RFC3339Nano), info.Mode())
		}
	}
	return b.String()
}

func (s *security) load() error {
	var pair *tls.Certificate
	var roots *x509.CertPool
	var secrets [][]byte
	if s.cert != "" {
		both, err := tls.LoadX509KeyPair(s.cert, s.key)
		if err != nil {
			return fmt.Errorf("read the node's certificate: %w", err)
		}
		text, err := os.ReadFile(s.authorities)
		if err != nil {
			return fmt.Errorf("read the authority of the nodes' certificates: %w", err)
		}
		if roots, err = link.ParseAuthorities(text); err != nil {
			return fmt.Errorf("%s: %w", s.authorities, err)
		}
		pair = &both
	}
	if s.secret != "" {
		var err error
		if secrets, err = link.ReadSecrets(s.secret); err != nil {
			return err
		}
	}
	s.pair, s.roots, s.secrets = pair, roots, secrets
	return nil
}
