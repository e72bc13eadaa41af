package link

import (
	"bytes"
	"crypto/tls"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/replication/protocol"
)

func authority(t *testing.T, cluster string) *Authority {
	t.Helper()
	a, err := NewAuthority(cluster, time.Now(), 24*time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// identity is the security of a node with a certificate of one authority that
// believes those of others too.
func identity(t *testing.T, a *Authority, cluster string, node protocol.NodeID, others ...*Authority) *security {
	t.Helper()
	p, err := a.Issue(cluster, node, nil, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := tls.X509KeyPair(p.CertPEM, p.KeyPEM)
	if err != nil {
		t.Fatal(err)
	}
	all := bytes.Clone(a.CertPEM)
	for _, o := range others {
		all = append(all, o.CertPEM...)
	}
	roots, err := ParseAuthorities(all)
	if err != nil {
		t.Fatal(err)
	}
	return &security{cert: &cert, roots: roots}
}

func TestAuthority_check(t *testing.T) {
	now := time.Now()
	a, other := authority(t, "c1"), authority(t, "c1")
	issue := func(by *Authority, cluster string, node protocol.NodeID) Pair {
		p, err := by.Issue(cluster, node, []string{"n1.example", "10.0.0.1"}, now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	good, second := issue(a, "c1", "n1"), issue(a, "c1", "n1")
	rows := []struct {
		name   string
		pair   Pair
		by     []byte
		at     time.Time
		want   error
		warned bool
	}{
		{"good", good, a.CertPEM, now, nil, true},
		{"odd names", issue(a, "c1", "n1"), a.CertPEM, now, nil, true},
		{"another authority", issue(other, "c1", "n1"), a.CertPEM, now, ErrCertificate, true},
		{"either authority", issue(other, "c1", "n1"), append(bytes.Clone(a.CertPEM), other.CertPEM...), now, nil, true},
		{"another cluster", issue(a, "c2", "n1"), a.CertPEM, now, ErrCluster, true},
		{"another node", issue(a, "c1", "n2"), a.CertPEM, now, ErrNode, true},
		{"over", good, a.CertPEM, now.Add(2 * time.Hour), ErrCertificate, false},
		{"not begun", good, a.CertPEM, now.Add(-3 * time.Hour), ErrCertificate, true},
		{"another's key", Pair{good.CertPEM, second.KeyPEM}, a.CertPEM, now, ErrAuthority, true},
		{"no authority", good, good.CertPEM, now, ErrAuthority, true},
		{"nothing", Pair{}, a.CertPEM, now, ErrAuthority, false},
		{"authority as node", Pair{a.CertPEM, a.KeyPEM}, a.CertPEM, now, ErrCertificate, true},
	}
	for _, r := range rows {
		problems, warnings := Check(r.pair, r.by, "c1", "n1", r.at)
		if err := errors.Join(problems...); (r.want == nil) != (err == nil) || r.want != nil && !errors.Is(err, r.want) {
			t.Errorf("%s: %v, want %v", r.name, err, r.want)
		}
		if (len(warnings) > 0) != r.warned {
			t.Errorf("%s: warnings %v", r.name, warnings)
		}
	}
	if _, err := a.Issue("c1", "n1", nil, now.Add(48*time.Hour), time.Hour); !errors.Is(err, ErrAuthority) {
		t.Errorf("issued after the authority's end: %v", err)
	}
	if _, err := ParseAuthority(good.CertPEM, good.KeyPEM); !errors.Is(err, ErrAuthority) {
		t.Errorf("a node's certificate as authority: %v", err)
	}
	if _, err := ParseAuthority(a.CertPEM, a.KeyPEM); err != nil {
		t.Error(err)
	}
}

func TestAuthority_show(t *testing.T) {
	a := authority(t, "c1")
	p, err := a.Issue("my/cluster", "node 1", []string{"n1.example", "10.0.0.1"}, time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	v, err := Show(p.CertPEM)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(v.Identities, " "), "millrace:///my%2Fcluster/node%201"; got != want {
		t.Errorf("identity %q, want %q", got, want)
	}
	if got := strings.Join(v.Hosts, " "); got != "n1.example 10.0.0.1" || v.Authority || len(v.Fingerprint) != 64 {
		t.Errorf("%+v", v)
	}
	if problems, _ := Check(p, a.CertPEM, "my/cluster", "node 1", time.Now()); len(problems) > 0 {
		t.Error(problems)
	}
}

func TestReadSecrets(t *testing.T) {
	long := strings.Repeat("k", secretBytesMin)
	rows := []struct {
		name, text string
		mode       os.FileMode
		secrets    int
	}{
		{"one", long + "\n", 0o600, 1},
		{"two, while they are exchanged", long + "\n\n" + long + "2", 0o400, 2},
		{"short", "secret\n", 0o600, 0},
		{"empty", "\n", 0o600, 0},
		{"others may read", long, 0o640, 0},
	}
	for _, r := range rows {
		path := filepath.Join(t.TempDir(), "secret")
		if err := os.WriteFile(path, []byte(r.text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, r.mode); err != nil {
			t.Fatal(err)
		}
		got, err := ReadSecrets(path)
		if len(got) != r.secrets || (r.secrets == 0) != errors.Is(err, ErrSecret) {
			t.Errorf("%s: %d secrets, %v", r.name, len(got), err)
		}
	}
}
