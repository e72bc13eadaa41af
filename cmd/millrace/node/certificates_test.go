package node

import (
	"context"
	"crypto/tls"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/cmd/millrace/config"
	"github.com/millrace/millrace/replication/link"
)

// rotating are certificates in a folder that changes.
type rotating struct {
	t         *testing.T
	dir       string
	authority *link.Authority
	certs     *certificates
	addr      string
}

func newRotating(t *testing.T) *rotating {
	t.Helper()
	a, err := link.NewAuthority("test", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	r := &rotating{t: t, dir: t.TempDir(), authority: a}
	r.put("", "first.example")
	r.certs = &certificates{
		cert: filepath.Join(r.dir, "tls.crt"), key: filepath.Join(r.dir, "tls.key"), verify: config.VerifyNone, log: hclog.NewNullLogger(),
	}
	if err := r.certs.refresh(); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r.addr = l.Addr().String()
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			_ = tls.Server(conn, r.certs.forStreams()).Handshake()
			conn.Close()
		}
	}()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() { defer close(ended); r.certs.follow(ctx) }()
	t.Cleanup(func() { stop(); <-ended; l.Close() })
	return r
}

func (r *rotating) pair(host string) link.Pair {
	r.t.Helper()
	p, err := r.authority.IssueServer([]string{host}, time.Now(), time.Hour)
	if err != nil {
		r.t.Fatal(err)
	}
	return p
}

// put writes a pair into a folder below dir.
func (r *rotating) put(folder, host string) {
	p := r.pair(host)
	r.write(filepath.Join(folder, "tls.crt"), p.CertPEM)
	r.write(filepath.Join(folder, "tls.key"), p.KeyPEM)
}

// write puts a file in place of another, as tools do that care.
func (r *rotating) write(name string, text []byte) {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	for _, err := range []error{os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path+".new", text, 0o600), os.Rename(path+".new", path)} {
		if err != nil {
			r.t.Fatal(err)
		}
	}
}

// shown is the host in the certificate that a client sees.
func (r *rotating) shown() string {
	r.t.Helper()
	conn, err := tls.Dial("tcp", r.addr, &tls.Config{InsecureSkipVerify: true}) // which it is is what is asked
	if err != nil {
		r.t.Fatal(err)
	}
	defer conn.Close()
	return conn.ConnectionState().PeerCertificates[0].DNSNames[0]
}

// within waits for a condition, less than until files are looked at without a
// sign.
func (r *rotating) within(what string, holds func() bool) {
	r.t.Helper()
	late := time.After(lookEvery / 2)
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-late:
			r.t.Fatalf("not in time: %s (%+v)", what, r.certs.status())
		case <-tick.C:
		}
	}
}

func TestCertificates_newFilesAreTaken(t *testing.T) {
	r := newRotating(t)
	if got := r.shown(); got != "first.example" {
		t.Fatalf("shown is %s", got)
	}
	r.put("", "second.example")
	r.within("the second is shown", func() bool { return r.shown() == "second.example" })
	if s := r.certs.status(); s.Error != "" || s.For != "clients" || !slices.Equal(s.Hosts, []string{"second.example"}) {
		t.Errorf("status %+v", s)
	}
}

// TestCertificates_linkedFolders: secrets in a container are links to a folder that
// is exchanged by another link.
func TestCertificates_linkedFolders(t *testing.T) {
	r := newRotating(t)
	r.put("v1", "v1.example")
	r.put("v2", "v2.example")
	link := func(to, name string) {
		t.Helper()
		path := filepath.Join(r.dir, name)
		if err := os.Symlink(to, path+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
	}
	link("v1", "..data")
	link("..data/tls.crt", "tls.crt")
	link("..data/tls.key", "tls.key")
	r.within("v1 is shown", func() bool { return r.shown() == "v1.example" })
	link("v2", "..data")
	r.within("v2 is shown", func() bool { return r.shown() == "v2.example" })
}

// TestCertificates_whatCannotBeTakenIsNot: half of a rotation, a cut file or none
// leave what is shown, and are told.
func TestCertificates_whatCannotBeTakenIsNot(t *testing.T) {
	r := newRotating(t)
	next := r.pair("next.example")
	good, err := os.ReadFile(r.certs.cert)
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		name string
		do   func()
		says string
	}{
		{"another's certificate", func() { r.write("tls.crt", next.CertPEM) }, "private key does not match"},
		{"half a file", func() { r.write("tls.crt", next.CertPEM[:len(next.CertPEM)/2]) }, "tls.crt"},
		{"no file", func() {
			if err := os.Remove(r.certs.cert); err != nil {
				t.Fatal(err)
			}
		}, "no such file"},
	} {
		step.do()
		r.within(step.name+" is told", func() bool { return strings.Contains(r.certs.status().Error, step.says) })
		if got := r.shown(); got != "first.example" {
			t.Errorf("%s: shown is %s", step.name, got)
		}
	}
	r.write("tls.crt", good)
	r.within("all is well again", func() bool { return r.certs.status().Error == "" })
	r.write("tls.key", next.KeyPEM)
	r.write("tls.crt", next.CertPEM)
	r.within("the rotation is done", func() bool { return r.shown() == "next.example" })
}

// TestCertificates_authoritiesOfClients: they are exchanged as the certificate is.
func TestCertificates_authoritiesOfClients(t *testing.T) {
	r := newRotating(t)
	other, err := link.NewAuthority("other", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	r.write("clients.crt", other.CertPEM)
	c := &certificates{cert: r.certs.cert, key: r.certs.key, clientCA: filepath.Join(r.dir, "clients.crt"), verify: config.VerifyRequired}
	if err := c.refresh(); err != nil {
		t.Fatal(err)
	}
	before := c.current().streams
	if before.ClientAuth != tls.RequireAndVerifyClientCert || c.current().operators.ClientAuth != tls.NoClientCert {
		t.Errorf("certificates are asked for %v of clients, %v of operators", before.ClientAuth, c.current().operators.ClientAuth)
	}
	r.write("clients.crt", r.authority.CertPEM)
	if err := c.refresh(); err != nil || c.current().streams.ClientCAs.Equal(before.ClientCAs) {
		t.Errorf("the authorities are the same as before (error %v)", err)
	}
	r.write("clients.crt", r.pair("no.authority").CertPEM)
	if err := c.refresh(); err == nil || !strings.Contains(err.Error(), "no authority") {
		t.Errorf("a certificate that is no authority's: %v", err)
	}
}
