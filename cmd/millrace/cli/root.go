package cli

import (
	"context"
	"errors"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"
)

// terminal is what a command reads from and writes to.
type terminal struct {
	in       io.Reader
	out, err io.Writer
	// The streams are a person's: progress is shown, questions may be asked.
	inTTY, errTTY bool
	getenv        func(string) string
}

func processTerminal() *terminal {
	return &terminal{
		in: os.Stdin, out: os.Stdout, err: os.Stderr,
		inTTY:  term.IsTerminal(int(os.Stdin.Fd())),
		errTTY: term.IsTerminal(int(os.Stderr.Fd())),
		getenv: os.Getenv,
	}
}

// Main runs the command that args ask for and returns the exit code. An
// interrupt or a termination signal cancels the command's context once; a
// second one ends the process.
func Main(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	go func() {
		<-ctx.Done()
		stop()
	}()
	t := processTerminal()
	root := newRoot(t)
	root.SetArgs(args)
	return report(t.err, root.ExecuteContext(ctx))
}

// helpTemplate puts the examples first: most who ask for help want a line to
// copy.
const helpTemplate = `{{with .Example}}{{.}}

{{end}}{{with (or .Long .Short)}}{{.}}

{{end}}usage: {{if .HasAvailableSubCommands}}{{.CommandPath}} COMMAND{{else}}{{.UseLine}}{{end}}
{{if .HasAvailableSubCommands}}{{range .Commands}}{{if .IsAvailableCommand}}
  {{rpad .Name .NamePadding}} {{.Short}}{{end}}{{end}}
{{end}}{{if .HasAvailableLocalFlags}}
{{.LocalFlags.FlagUsages | trimTrailingWhitespaces}}
{{end}}`

func newRoot(t *terminal) *cobra.Command {
	var version bool
	root := &cobra.Command{
		Use:   "millrace",
		Short: "Millrace is a replicated stream broker: server, command line and benchmark in one.",
		Long: `Millrace is a replicated stream broker: server, command line and benchmark in one.

Exit codes: 0 ok, 1 failed, 2 wrong usage, 3 not found, 4 exists already or
conflicts, 5 not allowed, 6 unreachable or too slow, 7 refused because it would
lose data, 8 degraded.`,
		Example: examples(
			"millrace dev", "one node on this machine, data in ./millrace-data",
			"millrace stream create orders", "make a stream",
			"seq 1000 | millrace publish orders", "a message for each line",
			"millrace consume orders --offset first", "read it again"),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(t.out)
	root.SetErr(t.err)
	root.SetIn(t.in)
	root.SetHelpTemplate(helpTemplate)
	root.SetUsageTemplate(helpTemplate)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return flagProblem(err).suggest(cmd.CommandPath() + " --help")
	})
	root.CompletionOptions.HiddenDefaultCmd = true
	root.AddCommand(
		devCommand(t), serverCommand(t),
		streamCommand(t), publishCommand(t), consumeCommand(t), segmentCommand(t), replicaCommand(t), trackingCommand(t), consumerCommand(t),
		publisherCommand(t), connectionCommand(t),
		benchCommand(t), versionCommand(t),
		statusCommand(t), clusterCommand(t), nodeCommand(t), checkCommand(t), certCommand(t), userCommand(t), permissionCommand(t), vhostCommand(t),
		configCommand(t), generateCommand(t),
	)
	root.Args = noSubcommand
	root.Flags().BoolVar(&version, "version", false, "the same as millrace version")
	root.RunE = func(cmd *cobra.Command, args []string) error {
		if version {
			return printVersion(t, "table")
		}
		return help(cmd, args)
	}
	return root
}

// group is a command that only has subcommands.
func group(use, short, example string, subcommands ...*cobra.Command) *cobra.Command {
	g := &cobra.Command{Use: use, Short: short, Example: example, Args: noSubcommand, RunE: help}
	g.AddCommand(subcommands...)
	return g
}

func help(cmd *cobra.Command, _ []string) error { return cmd.Help() }

// kinds say for a flag's type what its value must be.
var kinds = map[string]string{
	"int": "a whole number", "int64": "a whole number",
	"uint": "a whole number from 0 on", "uint32": "a whole number from 0 on", "uint64": "a whole number from 0 on",
	"duration": "a time such as 10s, 5m or 2h", "bool": "true or false", "intSlice": "whole numbers, with commas between them",
}

// flagProblem says of a flag's value what is expected instead, without the
// names of Go's functions.
func flagProblem(err error) *problem {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		if kind := kinds[invalid.GetFlag().Value.Type()]; kind != "" {
			return usage("--%s is %q, but must be %s", invalid.GetFlag().Name, invalid.GetValue(), kind)
		}
	}
	return usage("%w", err)
}

// noSubcommand names a word that is no command of the group.
func noSubcommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	p := usage("%q is no command of %s", args[0], cmd.CommandPath())
	cmd.SuggestionsMinimumDistance = 2
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		return p.suggest(cmd.CommandPath() + " " + near[0])
	}
	return p.suggest(cmd.CommandPath() + " --help")
}

// arguments checks that as many arguments were given as the use line names.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		p := usage("%s needs more: %s given, %s at least", cmd.CommandPath(), some(len(args), "argument"), some(least, "argument"))
		if len(args) > most {
			p = usage("%s does not take %q as well", cmd.CommandPath(), strings.Join(args[most:], " "))
		}
		return p.suggest(cmd.UseLine(), cmd.CommandPath()+" --help")
	}
}

// examples lays pairs of a line and its meaning out in two columns.
func examples(pairs ...string) string {
	width := 0
	for i := 0; i < len(pairs); i += 2 {
		width = max(width, utf8.RuneCountInString(pairs[i]))
	}
	var lines []string
	for i := 0; i < len(pairs); i += 2 {
		line := "  " + pairs[i] + strings.Repeat(" ", width-utf8.RuneCountInString(pairs[i])) + "   " + pairs[i+1]
		lines = append(lines, strings.TrimRight(line, " "))
	}
	return strings.Join(lines, "\n")
}
