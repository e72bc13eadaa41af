package cli

import (
	"context"
	"crypto/tls"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
)

// checkWarning is the exit code of monitoring for what will be wrong soon.
const checkWarning = 1

func checkTLS(t *terminal) *cobra.Command {
	var l look
	var warning, critical time.Duration
	cmd := &cobra.Command{
		Use: "tls [HOST:PORT]", Short: "are the certificates good, and for how long?", Args: arguments(0, 1),
		Long: `Says whether the certificates that a node shows, to clients and to other nodes, are
good for some time yet. With HOST:PORT it looks at what is shown there, as a client
does, and believes it by --ca; without, the node is asked. Exit 0: good; 1: one ends
before --warning; 2: one ends before --critical, is not to be believed, or has been
exchanged for one that can't be read; 3: nobody could tell.`,
		Example: examples(
			"millrace check tls", "the node's own, by its HTTP API",
			"millrace check tls broker.example.com:5551 --ca ca/ca.crt", "as clients see it"),
	}
	l.addFlags(cmd, t)
	cmd.Flags().DurationVar(&warning, "warning", 30*day, "time left from which on to warn")
	cmd.Flags().DurationVar(&critical, "critical", 7*day, "time left from which on to say no")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		list, err := l.certificates(cmd.Context(), args)
		if err != nil {
			return err
		}
		code, findings := judgeCertificates(list, time.Now(), warning, critical)
		out := listing{columns: []column{left("FOR"), left("SUBJECT"), left("HOSTS"), left("ENDS"), right("LEFT")}}
		for _, c := range list {
			out.add(c, c.For, c.Subject, or(strings.Join(c.Hosts, " "), "-"), c.Ends.Format(time.DateTime), daysLeft(c.Ends, time.Now()))
		}
		if err := out.print(t.out, l.format); err != nil {
			return err
		}
		if code != 0 {
			return fail(code, "%s", strings.Join(findings, "; ")).
				suggest("millrace cert server HOST --ca DIR --out DIR    make a new one; put in place, a running node takes it")
		}
		return nil
	}
	return cmd
}

// certificates are those to be judged.
func (l *look) certificates(ctx context.Context, at []string) ([]admin.Certificate, error) {
	if len(at) == 1 {
		return l.shown(ctx, at[0])
	}
	var status admin.Status
	if err := l.call(ctx, "GET", "/api/v1/status", nil, &status); err != nil {
		return nil, unknown(err)
	}
	if len(status.Certificates) == 0 {
		return nil, fail(checkUnknown, "%s shows no certificate", l.addr).suggest("millrace server --tls-cert FILE --tls-key FILE")
	}
	return status.Certificates, nil
}

// shown is the certificate that is shown at an address.
func (l *look) shown(ctx context.Context, addr string) ([]admin.Certificate, error) {
	settings, err := l.trust.settings()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, l.timeout)
	defer cancel()
	conn, err := (&tls.Dialer{Config: settings}).DialContext(ctx, "tcp", addr)
	if err != nil {
		if p := untrusted(addr, err); p != nil {
			p.code = checkCritical
			return nil, p
		}
		return nil, unknown(fail(exitUnreachable, "no answer from %s: %w", addr, err))
	}
	defer conn.Close()
	leaf := conn.(*tls.Conn).ConnectionState().PeerCertificates[0]
	c := admin.Certificate{For: "clients", Subject: leaf.Subject.String(), Issuer: leaf.Issuer.String(), Hosts: leaf.DNSNames, Ends: leaf.NotAfter.UTC()}
	for _, ip := range leaf.IPAddresses {
		c.Hosts = append(c.Hosts, ip.String())
	}
	return []admin.Certificate{c}, nil
}

// judgeCertificates gives the exit code and its reasons.
func judgeCertificates(list []admin.Certificate, now time.Time, warning, critical time.Duration) (code int, findings []string) {
	for _, c := range list {
		left := c.Ends.Sub(now)
		switch {
		case left <= 0:
			code = checkCritical
			findings = append(findings, fmt.Sprintf("the certificate for %s has ended on %s", c.For, c.Ends.Format(time.DateTime)))
		case left < critical, left < warning:
			if left < critical {
				code = checkCritical
			}
			code = max(code, checkWarning)
			findings = append(findings, fmt.Sprintf("the certificate for %s ends in %s", c.For, daysLeft(c.Ends, now)))
		}
		if c.Error != "" {
			code = checkCritical
			findings = append(findings, fmt.Sprintf("the certificate for %s has been exchanged, and can't be taken: %s", c.For, c.Error))
		}
	}
	return code, findings
}

func daysLeft(ends, now time.Time) string {
	left := ends.Sub(now)
	if left > 0 && left < 2*day {
		return left.Round(time.Minute).String()
	}
	return fmt.Sprintf("%d days", int(left/day))
}
