package broker

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"net"
	"net/url"
	"testing"
)

func TestCertifiedUser(t *testing.T) {
	uri := &url.URL{Scheme: "spiffe", Host: "example", Path: "/ann"}
	name := pkix.Name{CommonName: "ann", Organization: []string{"Test"}}
	for _, r := range []struct {
		cert x509.Certificate
		from string
		want string
	}{
		{x509.Certificate{Subject: name}, byCommonName, "ann"},
		{x509.Certificate{DNSNames: []string{"ann"}}, byCommonName, ""},
		{x509.Certificate{Subject: name}, byDistinguishedName, "CN=ann,O=Test"},
		{x509.Certificate{Subject: name}, byAlternativeName, ""},
		{x509.Certificate{Subject: name, DNSNames: []string{"a.example", "b.example"}, URIs: []*url.URL{uri}}, byAlternativeName, "a.example"},
		{x509.Certificate{EmailAddresses: []string{"ann@example"}, URIs: []*url.URL{uri}}, byAlternativeName, "ann@example"},
		{x509.Certificate{URIs: []*url.URL{uri}}, byAlternativeName, "spiffe://example/ann"},
		{x509.Certificate{IPAddresses: []net.IP{net.IPv4(192, 0, 2, 1)}}, byAlternativeName, "192.0.2.1"},
	} {
		if got := certifiedUser(&r.cert, r.from); got != r.want {
			t.Errorf("%s: %q, want %q", r.from, got, r.want)
		}
	}
}
