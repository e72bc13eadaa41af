package node

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/cmd/millrace/config"
	"github.com/millrace/millrace/replication/link"
)

// certificates are what this node shows to clients and operators, and by which
// authorities it verifies theirs. Files that change are taken anew without a
// restart; such that can't be read leave what was read last, with a warning.
type certificates struct {
	cert, key, clientCA string // paths; clientCA may be empty
	verify              string
	log                 hclog.Logger

	mu    sync.Mutex // guards the fields below
	read  [sha256.Size]byte
	now   *material
	fault error // of the newest files, if they were not taken
}

// material is what one state of the files holds.
type material struct {
	streams, operators *tls.Config
	leaf               *x509.Certificate
}

const (
	// lookEvery is how often files are looked at without a sign that they have
	// changed: not every file system gives one.
	lookEvery = 30 * time.Second
	// lookDelay lets the rest of a rotation, which is more than one file, happen.
	lookDelay = 200 * time.Millisecond
)

// openCertificates reads the files; without tls.cert there are none.
func (n *Node) openCertificates(context.Context) error {
	c := n.config
	if c.TLSCert == "" {
		return nil
	}
	t := &certificates{cert: c.TLSCert, key: c.TLSKey, clientCA: c.TLSClientCA, verify: c.Verify(), log: n.log.Named("tls")}
	if err := t.refresh(); err != nil {
		return err
	}
	n.certificates = t
	n.serving.Go(func() { t.follow(n.running) })
	return nil
}

// refresh takes the files if they are others than last time.
func (t *certificates) refresh() error {
	texts, sum, err := t.files()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err == nil && t.now != nil && sum == t.read {
		t.fault = nil // back to what is shown
		return nil
	}
	var next *material
	if err == nil {
		next, err = t.parse(texts)
	}
	if t.fault = err; err != nil {
		return err
	}
	t.read, t.now = sum, next
	return nil
}

// files reads certificate, key and authorities, and tells one state of them from
// another.
func (t *certificates) files() (texts [3][]byte, sum [sha256.Size]byte, err error) {
	h := sha256.New()
	for i, path := range []string{t.cert, t.key, t.clientCA} {
		if path == "" {
			continue
		}
		if texts[i], err = os.ReadFile(path); err != nil {
			return texts, sum, fmt.Errorf("read the certificate for clients: %w", err)
		}
		each := sha256.Sum256(texts[i])
		h.Write(each[:])
	}
	h.Sum(sum[:0])
	return texts, sum, nil
}

func (t *certificates) parse(texts [3][]byte) (*material, error) {
	pair, err := tls.X509KeyPair(texts[0], texts[1])
	if err != nil {
		return nil, fmt.Errorf("tls.cert %s with tls.key %s: %w", t.cert, t.key, err)
	}
	base := &tls.Config{
		MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair},
		// Nobody comes back without showing a certificate that is still good.
		SessionTicketsDisabled: true, DynamicRecordSizingDisabled: true,
	}
	m := &material{streams: base, operators: base.Clone(), leaf: pair.Leaf}
	m.operators.NextProtos = []string{"http/1.1"}
	if t.clientCA == "" {
		return m, nil
	}
	if base.ClientCAs, err = link.ParseAuthorities(texts[2]); err != nil {
		return nil, fmt.Errorf("tls.client_ca %s: %w", t.clientCA, err)
	}
	base.ClientAuth = clientAuths[t.verify]
	return m, nil
}

var clientAuths = map[string]tls.ClientAuthType{
	config.VerifyNone: tls.NoClientCert, config.VerifyOptional: tls.VerifyClientCertIfGiven, config.VerifyRequired: tls.RequireAndVerifyClientCert,
}

func (t *certificates) current() *material {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.now
}

// forStreams are the settings of the stream port: each connection gets what holds
// when it comes.
func (t *certificates) forStreams() *tls.Config {
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return t.current().streams, nil
	}}
}

// over puts listeners of operators under TLS.
func (t *certificates) over(listeners []net.Listener) []net.Listener {
	var secured []net.Listener
	for _, l := range listeners {
		secured = append(secured, tls.NewListener(l, &tls.Config{
			MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
				return t.current().operators, nil
			},
		}))
	}
	return secured
}

// follow takes the files anew as they change, until ctx ends. Folders are watched,
// not files: a rotation puts another file, or a link to one, in the place.
func (t *certificates) follow(ctx context.Context) {
	var signs <-chan fsnotify.Event // nil: none come
	var failures <-chan error
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		t.log.Warn("certificates are looked at from time to time only", "every", lookEvery.String(), "error", err)
	} else {
		defer watcher.Close()
		signs, failures = watcher.Events, watcher.Errors
		for _, folder := range t.folders() {
			if err := watcher.Add(folder); err != nil {
				t.log.Warn("the folder of a certificate can't be watched; it is looked at from time to time", "folder", folder, "every", lookEvery.String(), "error", err)
			}
		}
	}
	t.look() // what has changed before the folders were watched
	look := time.NewTimer(lookEvery)
	defer look.Stop()
	soon := false // a busy folder must not put the look off for ever
	for {
		select {
		case <-ctx.Done():
			return
		case <-signs:
			if !soon {
				soon = true
				look.Reset(lookDelay)
			}
		case err := <-failures: // signs may be lost: the next look finds what they were of
			t.log.Debug("watch the certificates' folders", "error", err)
		case <-look.C:
			t.look()
			soon = false
			look.Reset(lookEvery)
		}
	}
}

func (t *certificates) folders() []string {
	var folders []string
	for _, path := range []string{t.cert, t.key, t.clientCA} {
		if path != "" {
			folders = append(folders, filepath.Dir(path))
		}
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}

// look takes what has changed, and says so once.
func (t *certificates) look() {
	before, was := t.current(), t.status().Error
	err := t.refresh()
	switch now := t.current(); {
	case err != nil && err.Error() != was:
		t.log.Warn("the certificate for clients has changed and can't be taken; the one before is shown on",
			"error", err, "ends", before.leaf.NotAfter.UTC().Format(time.RFC3339))
	case err == nil && now != before:
		t.log.Info("the certificate for clients has changed", "subject", now.leaf.Subject.String(), "ends", now.leaf.NotAfter.UTC().Format(time.RFC3339))
	}
}

func (t *certificates) status() admin.Certificate {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := certificateOf("clients", t.now.leaf)
	if t.fault != nil {
		c.Error = t.fault.Error()
	}
	return c
}

func certificateOf(whom string, leaf *x509.Certificate) admin.Certificate {
	c := admin.Certificate{
		For: whom, Subject: leaf.Subject.String(), Issuer: leaf.Issuer.String(), Hosts: slices.Clone(leaf.DNSNames), Ends: leaf.NotAfter.UTC(),
	}
	for _, ip := range leaf.IPAddresses {
		c.Hosts = append(c.Hosts, ip.String())
	}
	return c
}

// certificateStatus is every certificate that this node shows.
func (n *Node) certificateStatus() []admin.Certificate {
	var all []admin.Certificate
	if n.certificates != nil {
		all = append(all, n.certificates.status())
	}
	if n.security == nil {
		return all
	}
	if pair, _, err := n.security.Certificate(); err == nil && pair != nil {
		all = append(all, certificateOf("nodes", pair.Leaf))
	}
	return all
}
