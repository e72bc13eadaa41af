package node

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/cmd/millrace/config"
	"github.com/millrace/millrace/replication/link"
)

// security proves this node to others: a certificate, a shared secret, or both.
// Files are read again when they have changed, so that keys rotate without a
// restart; such that can't be read leave what was read last, and that is told.
type security struct {
	cert, key, authorities, secret string // paths; cert and secret may be empty
	log                            hclog.Logger

	mu      sync.Mutex // guards all below
	fault   error      // of the newest files, if they were not taken
	read    string     // what the files looked like
	pair    *tls.Certificate
	roots   *x509.CertPool
	secrets [][]byte
}

// securityOf is nil for a node that stays alone.
func securityOf(c config.Config, log hclog.Logger) *security {
	if !c.Clustered() {
		return nil
	}
	return &security{cert: c.NodeCert, key: c.NodeKey, authorities: c.NodeCA, secret: c.SecretFile, log: log}
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

// follow reads files that have changed though no node connects, until ctx ends:
// else a failed rotation would be found out when a link breaks.
func (s *security) follow(ctx context.Context) {
	look := time.NewTicker(lookEvery)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			s.mu.Lock()
			_ = s.refresh() // who needs what was never read is told
			s.mu.Unlock()
		}
	}
}

// refresh reads the files if they look other than last time. Once they could be
// read, what was read last holds while they can't be: it may be half of a rotation.
func (s *security) refresh() error {
	var err error
	if look := s.look(); look != s.read || s.read == "" {
		if err = s.load(); err == nil {
			s.read = look
		}
	}
	if s.read == "" {
		return err
	}
	s.tell(err)
	return nil
}

// tell logs a fault of the files once, and once that it is over.
func (s *security) tell(fault error) {
	switch was := s.fault; {
	case fault != nil && (was == nil || fault.Error() != was.Error()):
		s.log.Error("the nodes' secret or certificates have changed and can't be taken; those before hold on", "error", fault)
	case fault == nil && was != nil:
		s.log.Info("the nodes' secret and certificates can be read again")
	}
	s.fault = fault
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
