package cli

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
)

// Files that init-ca and issue make.
const (
	caCertFile = "ca.crt"
	caKeyFile  = "ca.key"
)

const day = 24 * time.Hour

func certCommand(t *terminal) *cobra.Command {
	cmd := group("cert", "make and check certificates: of nodes, for clients and of clients",
		examples(
			"millrace cert init-ca prod --out ca", "an authority for cluster prod: ca/ca.crt and ca/ca.key",
			"millrace cert issue n1 --ca ca --out n1", "n1/n1.crt and n1/n1.key, for node n1 alone",
			"millrace cert server broker.example.com --ca ca --out tls", "for tls.cert and tls.key: what clients and operators see",
			"millrace cert client billing --ca ca --out billing", "by which user billing logs in, where tls.client_ca is ca/ca.crt",
			"millrace cert check --cert n1/n1.crt --key n1/n1.key --ca ca/ca.crt", "would it work?"),
		certInit(t), certIssue(t), certServer(t), certClient(t), certShow(t), certCheck(t))
	cmd.Long = `Makes and checks certificates. A cluster whose nodes share one secret file
(cluster.secret_file) needs none between them: its nodes speak TLS as well.
Certificates say which node is which, so that one that is stolen is good for one
node alone; whoever has the secret can be any of them. What clients and operators
see, and what clients may show, are certificates of their own.`
	return cmd
}

func certInit(t *terminal) *cobra.Command {
	var out, format string
	var days int
	cmd := &cobra.Command{
		Use: "init-ca CLUSTER", Short: "make an authority for one cluster", Args: arguments(1, 1),
		Long: `Makes a small authority of your own. Nodes need its certificate (ca.crt); its key
(ca.key) is needed to issue, and by no node: keep it elsewhere. CLUSTER becomes the
id of the cluster that is founded with such certificates.`,
		Example: examples("millrace cert init-ca prod --out ca", "ca/ca.crt, ca/ca.key"),
	}
	cmd.Flags().StringVar(&out, "out", ".", "folder for the files")
	cmd.Flags().IntVar(&days, "days", 3650, "how long it is valid")
	addFormat(cmd, &format)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		a, err := link.NewAuthority(args[0], time.Now(), time.Duration(days)*day)
		if err != nil {
			return usage("%w", err)
		}
		cert, key := filepath.Join(out, caCertFile), filepath.Join(out, caKeyFile)
		if err := writePair(cert, key, a.CertPEM, a.KeyPEM); err != nil {
			return err
		}
		return printOne(t.out, format, map[string]string{"cluster": args[0], "certificate": cert, "key": key}, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "authority of cluster %s: %s for every node, %s for who issues alone\n", args[0], cert, key)
			return err
		})
	}
	return cmd
}

func certIssue(t *terminal) *cobra.Command {
	var ca, out, clusterID, format string
	var hosts []string
	var days int
	cmd := &cobra.Command{
		Use: "issue NODE", Short: "make the certificate of one node", Args: arguments(1, 1),
		Example: examples("millrace cert issue n1 --ca ca --out n1 --host n1.example.com", "for node.tls.cert and node.tls.key of n1"),
	}
	cmd.Flags().StringVar(&ca, "ca", ".", "folder with ca.crt and ca.key")
	cmd.Flags().StringVar(&out, "out", ".", "folder for the files")
	cmd.Flags().StringVar(&clusterID, "cluster", "", "id of the cluster (default: the authority's)")
	cmd.Flags().StringSliceVar(&hosts, "host", nil, "names and addresses of the machine")
	cmd.Flags().IntVar(&days, "days", 365, "how long it is valid")
	addFormat(cmd, &format)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		a, err := readAuthority(ca)
		if err != nil {
			return err
		}
		id := or(clusterID, a.Cluster())
		pair, err := a.Issue(id, protocol.NodeID(args[0]), hosts, time.Now(), time.Duration(days)*day)
		if err != nil {
			return usage("%w", err)
		}
		cert, key := filepath.Join(out, args[0]+".crt"), filepath.Join(out, args[0]+".key")
		if err := writePair(cert, key, pair.CertPEM, pair.KeyPEM); err != nil {
			return err
		}
		answer := map[string]string{"cluster": id, "node": args[0], "certificate": cert, "key": key}
		return printOne(t.out, format, answer, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "node %s of cluster %s: --node-tls-cert %s --node-tls-key %s --node-tls-ca %s\n",
				args[0], id, cert, key, filepath.Join(ca, caCertFile))
			return err
		})
	}
	return cmd
}

func certServer(t *terminal) *cobra.Command {
	var o issuing
	cmd := &cobra.Command{
		Use: "server HOST [HOST…]", Short: "make a certificate for clients and operators to see", Args: arguments(1, 100),
		Long: `Makes the certificate that a node shows to stream clients and on the HTTP API. HOSTs
are all names and addresses by which they call it. A running node takes a new one,
put in the place of the old, without a restart.`,
		Example: examples(
			"millrace cert server localhost 127.0.0.1 ::1 --ca ca --out tls", "to try it on this machine",
			"millrace server --tls-cert tls/localhost.crt --tls-key tls/localhost.key", "streams over TLS on 5551"),
	}
	o.addFlags(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return o.issue(t, args[0], "server", "--tls-cert %s --tls-key %s", func(a *link.Authority, now time.Time, valid time.Duration) (link.Pair, error) {
			return a.IssueServer(args, now, valid)
		})
	}
	return cmd
}

func certClient(t *terminal) *cobra.Command {
	var o issuing
	cmd := &cobra.Command{
		Use: "client USER", Short: "make a certificate by which a user logs in", Args: arguments(1, 1),
		Long: `Makes a certificate that names a user. Where a node has the authority for its
tls.client_ca, who shows the certificate may log in without a password (EXTERNAL), as
that user.`,
		Example: examples("millrace cert client billing --ca ca --out billing", "billing/billing.crt and .key",
			"millrace consume orders --ca ca/ca.crt --cert billing/billing.crt --key billing/billing.key", "log in by it"),
	}
	o.addFlags(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return o.issue(t, args[0], "client", "--cert %s --key %s", func(a *link.Authority, now time.Time, valid time.Duration) (link.Pair, error) {
			return a.IssueClient(args[0], now, valid)
		})
	}
	return cmd
}

// issuing are the flags of commands that issue.
type issuing struct {
	ca, out, format string
	days            int
}

func (o *issuing) addFlags(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.ca, "ca", ".", "folder with ca.crt and ca.key")
	cmd.Flags().StringVar(&o.out, "out", ".", "folder for the files")
	cmd.Flags().IntVar(&o.days, "days", 365, "how long it is valid")
	addFormat(cmd, &o.format)
}

// issue makes the files of a certificate; use says to a person what they are for.
func (o *issuing) issue(t *terminal, name, kind, use string, make func(*link.Authority, time.Time, time.Duration) (link.Pair, error)) error {
	a, err := readAuthority(o.ca)
	if err != nil {
		return err
	}
	pair, err := make(a, time.Now(), time.Duration(o.days)*day)
	if err != nil {
		return usage("%w", err)
	}
	file := filepath.Join(o.out, strings.NewReplacer("/", "_", ":", "_", "*", "_").Replace(name))
	cert, key := file+".crt", file+".key"
	if err := writePair(cert, key, pair.CertPEM, pair.KeyPEM); err != nil {
		return err
	}
	return printOne(t.out, o.format, map[string]string{kind: name, "certificate": cert, "key": key}, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s %s: "+use+"; the other side believes it by %s\n", kind, name, cert, key, filepath.Join(o.ca, caCertFile))
		return err
	})
}

func readAuthority(dir string) (*link.Authority, error) {
	cert, err := os.ReadFile(filepath.Join(dir, caCertFile))
	if err != nil {
		return nil, noAuthority(err)
	}
	key, err := os.ReadFile(filepath.Join(dir, caKeyFile))
	if err != nil {
		return nil, noAuthority(err)
	}
	a, err := link.ParseAuthority(cert, key)
	if err != nil {
		return nil, fail(exitFailed, "%w", err)
	}
	return a, nil
}

func noAuthority(err error) error {
	p := explain(err)
	return p.suggest("millrace cert init-ca CLUSTER --out DIR    make one", "--ca DIR    its folder")
}

func certShow(t *terminal) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "show FILE", Short: "say what a certificate says", Args: arguments(1, 1),
		Example: examples("millrace cert show n1/n1.crt", ""),
	}
	addFormat(cmd, &format)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		text, err := os.ReadFile(args[0])
		if err != nil {
			return err
		}
		v, err := link.Show(text)
		if err != nil {
			return fail(exitFailed, "%s: %w", args[0], err)
		}
		return printOne(t.out, format, v, func(w io.Writer) error {
			kind := "server or client"
			switch {
			case v.Authority:
				kind = "authority"
			case len(v.Identities) > 0:
				kind = "node"
			}
			_, err := fmt.Fprintf(w, "Kind        %s\nSubject     %s\nIssuer      %s\nIdentity    %s\nHosts       %s\nValid       %s to %s\nSHA-256     %s\n",
				kind, v.Subject, v.Issuer, or(strings.Join(v.Identities, ", "), "-"), or(strings.Join(v.Hosts, ", "), "-"),
				v.NotBefore.UTC().Format(time.DateTime), v.NotAfter.UTC().Format(time.DateTime), v.Fingerprint)
			return err
		})
	}
	return cmd
}

// verdict is what check says.
type verdict struct {
	Good     bool     `json:"good"`
	Problems []string `json:"problems"`
	Warnings []string `json:"warnings"`
}

func certCheck(t *terminal) *cobra.Command {
	var cert, key, ca, clusterID, node, format string
	cmd := &cobra.Command{
		Use: "check", Short: "say whether a node could work with a certificate", Args: arguments(0, 0),
		Example: examples("millrace cert check --cert n1.crt --key n1.key --ca ca.crt", "exit 1: it could not; exit 8: it ends soon"),
	}
	cmd.Flags().StringVar(&cert, "cert", "", "file with the node's certificate (needed)")
	cmd.Flags().StringVar(&key, "key", "", "file with its key (needed)")
	cmd.Flags().StringVar(&ca, "ca", "", "file with the authorities (needed)")
	cmd.Flags().StringVar(&clusterID, "cluster", "", "the cluster that it must name (default: the one that it names)")
	cmd.Flags().StringVar(&node, "node", "", "the node that it must name (default: any)")
	addFormat(cmd, &format)
	cmd.RunE = func(*cobra.Command, []string) error {
		var pair link.Pair
		var authorities []byte
		for _, f := range []struct {
			flag, path string
			into       *[]byte
		}{{"cert", cert, &pair.CertPEM}, {"key", key, &pair.KeyPEM}, {"ca", ca, &authorities}} {
			if f.path == "" {
				return usage("--%s is needed", f.flag)
			}
			text, err := os.ReadFile(f.path)
			if err != nil {
				return err
			}
			*f.into = text
		}
		if clusterID == "" {
			clusterID = link.ClusterOf(pair.CertPEM)
		}
		v := verdict{Problems: []string{}, Warnings: []string{}}
		problems, warnings := link.Check(pair, authorities, clusterID, protocol.NodeID(node), time.Now())
		for _, err := range problems {
			v.Problems = append(v.Problems, err.Error())
		}
		for _, err := range warnings {
			v.Warnings = append(v.Warnings, err.Error())
		}
		v.Good = len(problems) == 0
		if err := printOne(t.out, format, v, func(w io.Writer) error { return showVerdict(w, v) }); err != nil {
			return err
		}
		switch {
		case !v.Good:
			return fail(exitFailed, "a node could not work with it: %s", strings.Join(v.Problems, "; "))
		case len(v.Warnings) > 0:
			return fail(exitDegraded, "it works, but not for long: %s", strings.Join(v.Warnings, "; "))
		}
		return nil
	}
	return cmd
}

func showVerdict(w io.Writer, v verdict) error {
	if v.Good && len(v.Warnings) == 0 {
		_, err := fmt.Fprintln(w, "good")
		return err
	}
	return nil // the problem says all
}

// writePair writes a certificate and its key, which its owner alone may read,
// and replaces neither.
func writePair(certPath, keyPath string, cert, key []byte) error {
	if err := os.MkdirAll(filepath.Dir(certPath), 0o755); err != nil {
		return err
	}
	for _, f := range []struct {
		path string
		mode os.FileMode
		text []byte
	}{{keyPath, 0o600, key}, {certPath, 0o644, cert}} {
		file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, f.mode)
		if errors.Is(err, fs.ErrExist) {
			return fail(exitConflict, "%s is there already", f.path).suggest("--out ELSEWHERE", "move the file away, if it is not needed")
		}
		if err != nil {
			return err
		}
		if _, err := file.Write(f.text); err != nil {
			return errors.Join(err, file.Close())
		}
		if err := errors.Join(file.Sync(), file.Close()); err != nil {
			return err
		}
	}
	return nil
}
