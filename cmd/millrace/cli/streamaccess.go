package cli

import (
	"context"
	"errors"
	"net"
	"time"

	"github.com/spf13/pflag"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/wire"
)

// streamAccess is how a command reaches a broker by the stream protocol: ours
// or any other that speaks it.
type streamAccess struct {
	t           *terminal
	who         credentials
	trust       trust
	tls         bool
	addr, vhost string
	timeout     time.Duration
	flags       *pflag.FlagSet
}

func (a *streamAccess) addFlags(flags *pflag.FlagSet, t *terminal) {
	a.t = t
	a.who.addFlags(flags, t)
	a.trust.addFlags(flags, t)
	flags.StringVar(&a.addr, "stream", t.getenv("MILLRACE_STREAM"), "host:port of the stream protocol (MILLRACE_STREAM; default localhost:5552, over TLS localhost:5551)")
	flags.BoolVar(&a.tls, "tls", t.getenv("MILLRACE_TLS") != "", "connect over TLS; --ca, --cert and --insecure mean it too (MILLRACE_TLS=1)")
	a.flags = flags
	flags.StringVar(&a.vhost, "vhost", "/", "virtual host")
	flags.DurationVar(&a.timeout, "timeout", 10*time.Second, "how long to wait for an answer")
}

// config is what to dial with; name is shown by the broker's tools.
func (a *streamAccess) config(name string) (client.Config, error) {
	password, err := a.who.password(a.t)
	if err != nil {
		return client.Config{}, err
	}
	cfg := client.Config{
		Addr: a.addr, User: a.who.user, Password: password, VirtualHost: a.vhost, Name: name, Timeout: a.timeout,
	}
	if !a.tls && !a.trust.given() {
		a.addr = or(a.addr, "localhost:5552")
		cfg.Addr = a.addr
		return cfg, nil
	}
	a.addr = or(a.addr, "localhost:5551")
	cfg.Addr = a.addr
	cfg.TLS, err = a.trust.settings()
	// Who shows a certificate and names no user is the one that it names.
	cfg.External = a.trust.cert != "" && !a.flags.Changed("user") && a.t.getenv("MILLRACE_USER") == ""
	return cfg, err
}

// leader connects to the broker that leads the stream.
func (a *streamAccess) leader(ctx context.Context, stream, name string) (*client.Conn, error) {
	cfg, err := a.config(name)
	if err != nil {
		return nil, err
	}
	conn, err := client.DialLeader(ctx, cfg, stream)
	if err != nil {
		return nil, streamProblem(err, a.addr, stream)
	}
	return conn, nil
}

// codeExits maps the protocol's response codes; others are plain failures.
var codeExits = map[wire.ResponseCode]int{
	wire.CodeStreamDoesNotExist:       exitNotFound,
	wire.CodeStreamAlreadyExists:      exitConflict,
	wire.CodeStreamNotAvailable:       exitUnreachable,
	wire.CodeAuthenticationFailure:    exitNotAllowed,
	wire.CodeLoopbackOnly:             exitNotAllowed,
	wire.CodeVirtualHostAccessFailure: exitNotAllowed,
	wire.CodeAccessRefused:            exitNotAllowed,
	wire.CodePreconditionFailed:       exitConflict,
}

// streamProblem says what to do about an error of the stream protocol.
func streamProblem(err error, addr, stream string) error {
	var p *problem
	if errors.As(err, &p) {
		return err // it is said already
	}
	var closed *client.ClosedError
	code := client.Code(err)
	if errors.As(err, &closed) {
		code = closed.Code
	}
	switch {
	case err == nil:
		return nil
	case code == wire.CodeStreamDoesNotExist:
		return fail(exitNotFound, "there is no stream %q: %w", stream, err).suggest("millrace stream create "+stream, "millrace stream list")
	case code == wire.CodeAuthenticationFailure:
		return fail(exitNotAllowed, "%s does not accept user or password: %w", addr, err).suggest("--user NAME --password-file FILE")
	case code == wire.CodeVirtualHostAccessFailure:
		return fail(exitNotAllowed, "the virtual host is not there, or not for this user: %w", err).suggest("--vhost /")
	case codeExits[code] != 0:
		return fail(codeExits[code], "%w", err)
	case code != 0 || errors.Is(err, client.ErrTooLarge), errors.Is(err, client.ErrName):
		return fail(exitFailed, "%w", err)
	case errors.Is(err, context.Canceled):
		return err
	}
	if p := untrusted(addr, err); p != nil {
		return p
	}
	p = fail(exitUnreachable, "no answer from %s: %w", addr, err)
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, net.ErrClosed) { // a dial out of time closes its socket
		return p.because(silence).suggest("--stream HOST:5552      ask another one", "--timeout 1m            wait longer")
	}
	return p.suggest("millrace dev            start a node here", "--stream HOST:5552      ask another one")
}
