package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/admin"
)

// credentials are who asks. The password never is a flag's value, where other
// users of the machine would see it.
type credentials struct {
	user, passwordFile string
}

func (c *credentials) addFlags(flags *pflag.FlagSet, t *terminal) {
	flags.StringVar(&c.user, "user", or(t.getenv("MILLRACE_USER"), "guest"), "user to log in as (MILLRACE_USER)")
	flags.StringVar(&c.passwordFile, "password-file", t.getenv("MILLRACE_PASSWORD_FILE"),
		"file that holds the password (MILLRACE_PASSWORD_FILE, or MILLRACE_PASSWORD itself; default guest)")
}

func (c *credentials) password(t *terminal) (string, error) {
	if c.passwordFile == "" {
		return or(t.getenv("MILLRACE_PASSWORD"), "guest"), nil
	}
	text, err := os.ReadFile(c.passwordFile)
	if err != nil {
		return "", fail(exitUsage, "read the password: %w", err)
	}
	return strings.TrimRight(string(text), "\r\n"), nil
}

// api is a node's HTTP API as the commands use it.
type api struct {
	t       *terminal
	who     credentials
	trust   trust
	client  *http.Client
	addr    string
	timeout time.Duration
}

func (a *api) addFlags(flags *pflag.FlagSet, t *terminal) {
	a.t = t
	a.who.addFlags(flags, t)
	a.trust.addFlags(flags, t)
	flags.StringVar(&a.addr, "addr", or(t.getenv("MILLRACE_ADDR"), "http://localhost:7080"), "URL of a node's HTTP API (MILLRACE_ADDR)")
	flags.DurationVar(&a.timeout, "timeout", 10*time.Second, "how long to wait for an answer")
}

// logTimeout bounds the wait for an answer that takes whole logs to be read.
const logTimeout = 10 * time.Minute

// allow gives a command another patience than the usual.
func (a *api) allow(cmd *cobra.Command, timeout time.Duration) {
	flag := cmd.Flags().Lookup("timeout")
	flag.DefValue, a.timeout = strings.TrimSuffix(timeout.String(), "0s"), timeout
}

// call sends body (nil: none) and decodes the answer into into (nil: none).
func (a *api) call(ctx context.Context, method, path string, body, into any) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	req, err := a.request(ctx, method, path, body)
	if err != nil {
		return err
	}
	if err := a.connect(); err != nil {
		return err
	}
	res, err := a.client.Do(req)
	if err != nil {
		return a.unreachable(err)
	}
	defer res.Body.Close()
	if res.StatusCode >= 300 {
		return refusal(res)
	}
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(res.Body).Decode(into); err != nil {
		return fail(exitFailed, "the answer of %s is not what this version of millrace expects: %w", a.addr, err)
	}
	return nil
}

// connect makes the client that all calls of a command share.
func (a *api) connect() error {
	if a.client != nil {
		return nil
	}
	settings, err := a.trust.settings()
	if err != nil {
		return err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = settings
	a.client = &http.Client{Transport: transport}
	return nil
}

func (a *api) request(ctx context.Context, method, path string, body any) (*http.Request, error) {
	var in io.Reader
	if body != nil {
		text, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		in = bytes.NewReader(text)
	}
	base := a.addr
	if !strings.Contains(base, "://") {
		scheme := "http://"
		if a.trust.given() {
			scheme = "https://"
		}
		base = scheme + base
	}
	req, err := http.NewRequestWithContext(ctx, method, strings.TrimRight(base, "/")+path, in)
	if err != nil {
		return nil, usage("--addr %s is no URL", a.addr).suggest("--addr http://localhost:7080")
	}
	password, err := a.who.password(a.t)
	if err != nil {
		return nil, err
	}
	req.SetBasicAuth(a.who.user, password)
	req.Header.Set("Content-Type", "application/json")
	return req, nil
}

func (a *api) unreachable(err error) error {
	var urlErr *url.Error
	if errors.As(err, &urlErr) {
		err = urlErr.Err
	}
	if p := untrusted(a.addr, err); p != nil {
		return p
	}
	p := fail(exitUnreachable, "no answer from %s: %w", a.addr, err)
	if errors.Is(err, context.DeadlineExceeded) {
		return p.because(silence).suggest("--addr http://HOST:7080      ask another one", "--timeout 1m                 wait longer")
	}
	return p.suggest("millrace dev                 start a node here", "--addr http://HOST:7080      ask another one")
}

// silence is why nobody answers where nobody refuses the connection either.
const silence = "the node or its machine hangs, or too few nodes of its cluster are there: its log tells"

// exitCodes maps the API's statuses; others are plain failures.
var exitCodes = map[int]int{
	http.StatusBadRequest:         exitUsage,
	http.StatusUnauthorized:       exitNotAllowed,
	http.StatusForbidden:          exitNotAllowed,
	http.StatusMisdirectedRequest: exitNotAllowed,
	http.StatusNotFound:           exitNotFound,
	http.StatusConflict:           exitConflict,
	http.StatusPreconditionFailed: exitUnsafe,
	http.StatusServiceUnavailable: exitUnreachable,
	http.StatusGatewayTimeout:     exitUnreachable,
}

// refusal turns an answer that is no success into a problem.
func refusal(res *http.Response) error {
	code, ok := exitCodes[res.StatusCode]
	if !ok {
		code = exitFailed
	}
	var f admin.Failure
	if err := json.NewDecoder(io.LimitReader(res.Body, 64<<10)).Decode(&f); err != nil || f.Message == "" {
		return fail(code, "%s %s answers %s", res.Request.Method, res.Request.URL.Path, res.Status).
			because("this does not look like a Millrace node's HTTP API")
	}
	p := fail(code, "%s", f.Message)
	if f.Try != "" {
		p.suggest(f.Try)
	}
	return p
}

// streamPath is the API's path of a stream.
func streamPath(vhost, name string) string {
	return fmt.Sprintf("/api/v1/streams/%s/%s", url.PathEscape(vhost), url.PathEscape(name))
}

// or returns value, or standard where value is empty.
func or(value, standard string) string {
	if value == "" {
		return standard
	}
	return value
}
