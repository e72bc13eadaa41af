package cli

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/cmd/millrace/config"
	"github.com/millrace/millrace/cmd/millrace/node"
)

func devCommand(t *terminal) *cobra.Command {
	cmd := &cobra.Command{
		Use: "dev", Short: "run one node on this machine, for trying and developing", Args: arguments(0, 0),
		Long: `Runs one node that needs no file, flag or network. It listens on loopback alone and
lets guest/guest in. What it is told is kept in ./millrace-data.`,
		Example: examples(
			"millrace dev", "streams on 5552, page on 7080",
			"millrace dev --data-dir /tmp/try --stream-addr localhost:0", "elsewhere, on a free port"),
	}
	defaults := config.Dev()
	config.AddFlags(cmd.Flags(), defaults)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := config.Load(defaults, "", os.Environ(), cmd.Flags())
		if err != nil {
			return configProblem(err)
		}
		return serve(cmd.Context(), t, c)
	}
	return cmd
}

func serverCommand(t *terminal) *cobra.Command {
	var file string
	cmd := &cobra.Command{
		Use: "server", Short: "run a node", Args: arguments(0, 0),
		Long: `Runs a node. Every flag is also a key of the TOML file and a variable:
--stream-addr is stream.addr and MILLRACE_STREAM__ADDR. A flag beats the
environment, the environment the file. An unknown key stops the start.`,
		Example: examples(
			"millrace server --config /etc/millrace/millrace.toml", "as a service does",
			"millrace server --data-dir /var/lib/millrace --advertised-host broker.example.com", "without a file"),
	}
	defaults := config.Server()
	config.AddFlags(cmd.Flags(), defaults)
	cmd.Flags().StringVar(&file, "config", "", "TOML file with the configuration")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := config.Load(defaults, file, os.Environ(), cmd.Flags())
		if err != nil {
			return configProblem(err)
		}
		return serve(cmd.Context(), t, c)
	}
	return cmd
}

func configProblem(err error) error {
	return usage("the configuration is not right:\n%w", err).suggest("millrace server --help    lists every key by its flag")
}

// stopPatience bounds a graceful stop: what is accepted is committed and
// tracking is flushed within it.
const stopPatience = 30 * time.Second

// serve runs a node until ctx ends (a signal) or the node fails.
func serve(ctx context.Context, t *terminal, c config.Config) error {
	begin := processStart()
	log := hclog.New(&hclog.LoggerOptions{Name: "millrace", Level: hclog.LevelFromString(c.LogLevel), Output: t.err})
	n, err := node.Start(ctx, c, Version, log)
	if err != nil {
		return startProblem(err, c)
	}
	fmt.Fprintln(t.out, readyLine(n, c, time.Since(begin)))
	select {
	case <-ctx.Done():
		log.Info("stopping", "patience", stopPatience.String())
	case <-n.Failed():
	}
	failure := n.Err()
	stop, cancel := context.WithTimeout(context.Background(), stopPatience)
	defer cancel()
	if err := errors.Join(failure, n.Stop(stop)); err != nil {
		return fail(exitFailed, "the node did not end well: %w", err)
	}
	return nil
}

// processStart is when this process began, as far as the system tells: the
// ready line counts from there, not from when main got control.
func processStart() time.Time {
	now := time.Now()
	info, err := os.Stat("/proc/self")
	if err != nil || info.ModTime().After(now) || now.Sub(info.ModTime()) > time.Minute {
		return now
	}
	return info.ModTime()
}

// readyLine says where everything is and what to try. integration/harness
// reads it too.
func readyLine(n *node.Node, c config.Config, after time.Duration) string {
	a := n.Addresses()
	parts := []string{fmt.Sprintf("millrace is ready after %d ms: streams %s", after.Milliseconds(), a.Stream), "page http://" + a.HTTP}
	for _, s := range []struct{ what, at string }{{"over TLS ", a.StreamTLS}, {"page over TLS https://", a.HTTPTLS}} {
		if s.at != "" {
			parts = append(parts, s.what+s.at)
		}
	}
	if a.Management != "" {
		parts = append(parts, "management http://"+a.Management)
	}
	try := "try: " + invocation() + " stream create orders" + apart(c, a.HTTP)
	if c.Dev {
		try = "log in as guest/guest · " + try
	}
	return strings.Join(append(parts, try), " · ")
}

// apart is what a command must be told where the page is not at its default.
func apart(c config.Config, http string) string {
	if http == config.Dev().HTTPAddr {
		return ""
	}
	return " --addr http://" + http
}

// invocation is how this program was started, to be copied: `go run` leaves
// no binary behind.
func invocation() string {
	if build, ok := debug.ReadBuildInfo(); ok && build.Main.Path != "" && strings.Contains(os.Args[0], string(filepath.Separator)+"go-build") {
		return "go run ./cmd/millrace"
	}
	return "millrace"
}

// freePort suggests other addresses in place of one that is taken. Others must
// know where this node is, so its own ports are not left to chance.
func freePort(c config.Config, taken net.Addr) string {
	for _, own := range []struct{ flag, addr string }{{"--node-addr", c.NodeAddr}, {"--gossip-addr", c.GossipAddr}} {
		if _, port, err := net.SplitHostPort(own.addr); err == nil && taken != nil && strings.HasSuffix(taken.String(), ":"+port) {
			return own.flag + " HOST:PORT    take another one"
		}
	}
	free := "--stream-addr localhost:0 --http-addr localhost:0"
	if c.ManagementAddr != "" {
		free += " --management-addr localhost:0"
	}
	return free + "    take free ports"
}

// startProblem says what to do about a node that did not start.
func startProblem(err error, c config.Config) error {
	var opErr *net.OpError
	p := fail(exitFailed, "the node does not start: %w", err)
	switch {
	case errors.Is(err, node.ErrInUse):
		return p.because("another process, perhaps another millrace, works in that folder").
			suggest("millrace segment list … --data-dir only reads, and works beside it", "--data-dir ELSEWHERE")
	case errors.As(err, &opErr) && errors.Is(opErr.Err, syscall.EADDRINUSE):
		return p.because("another process, perhaps another millrace, listens there").suggest(freePort(c, opErr.Addr))
	case errors.Is(err, os.ErrPermission):
		return p.because("the process may not use " + c.DataDir).suggest("--data-dir ELSEWHERE")
	}
	return p
}
