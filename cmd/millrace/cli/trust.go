package cli

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"os"

	"github.com/spf13/pflag"
)

// trust says whose certificate a command believes, and which it shows itself.
type trust struct {
	ca, cert, key string
	insecure      bool
}

func (s *trust) addFlags(flags *pflag.FlagSet, t *terminal) {
	flags.StringVar(&s.ca, "ca", t.getenv("MILLRACE_CA"), "over TLS: file with the authorities to believe (MILLRACE_CA; default: the system's)")
	flags.StringVar(&s.cert, "cert", t.getenv("MILLRACE_CERT"), "over TLS: file with a certificate to show (MILLRACE_CERT)")
	flags.StringVar(&s.key, "key", t.getenv("MILLRACE_KEY"), "over TLS: file with its key (MILLRACE_KEY)")
	flags.BoolVar(&s.insecure, "insecure", false, "over TLS: believe any certificate; whoever is between can read all")
}

// given says whether anything was said that means TLS alone.
func (s *trust) given() bool { return s.ca != "" || s.cert != "" || s.key != "" || s.insecure }

// settings are those for a connection over TLS.
func (s *trust) settings() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: s.insecure, DynamicRecordSizingDisabled: true}
	if s.ca != "" {
		text, err := os.ReadFile(s.ca)
		if err != nil {
			return nil, fail(exitUsage, "read the authorities: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, usage("--ca %s holds no certificate (PEM, BEGIN CERTIFICATE)", s.ca)
		}
	}
	if (s.cert != "") != (s.key != "") {
		return nil, usage("--cert and --key come together")
	}
	if s.cert != "" {
		pair, err := tls.LoadX509KeyPair(s.cert, s.key)
		if err != nil {
			return nil, fail(exitUsage, "read the certificate to show: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// untrusted says what to do about a TLS handshake that failed, or nil if err is
// something else.
func untrusted(addr string, err error) *problem {
	var unverified *tls.CertificateVerificationError
	var plain tls.RecordHeaderError
	var remote *net.OpError
	switch {
	case errors.As(err, &unverified):
		return fail(exitNotAllowed, "%s shows a certificate that is not to be believed: %w", addr, unverified.Err).
			suggest("--ca FILE       the authority that it comes from", "millrace check tls HOST:PORT --insecure    what it shows")
	case errors.As(err, &plain):
		return fail(exitUnreachable, "%s does not speak TLS: %w", addr, err).suggest("without --tls or https://, if nobody else can listen")
	case errors.As(err, &remote) && remote.Op == "remote error":
		return fail(exitNotAllowed, "%s ends the TLS handshake: %w", addr, err).suggest("--cert FILE --key FILE    if it wants to see a certificate")
	}
	return nil
}
