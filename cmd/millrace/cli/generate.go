package cli

import (
	_ "embed"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/millrace/millrace/cmd/millrace/config"
)

// unit is a systemd unit for a node that packages install.
//
//go:embed millrace.service
var unit string

func generateCommand(t *terminal) *cobra.Command {
	return group("generate", "write files for shells, manuals and services",
		examples(
			"source <(millrace generate completion bash)", "complete commands and flags in this shell",
			"millrace generate man man", "a page for each command, in the folder man",
			"millrace generate config >millrace.toml", "every setting, at its default",
			"millrace generate systemd >/etc/systemd/system/millrace.service", "a node as a service"),
		generateCompletion(t), generateMan(t),
		generateText(t, "config", "every setting of a server as a TOML file, each at its default", config.Template()),
		generateText(t, "systemd", "a systemd unit for a node", unit))
}

// generateText is a subcommand that writes a text to standard output.
func generateText(t *terminal, name, short, text string) *cobra.Command {
	return &cobra.Command{
		Use: name, Short: short, Args: arguments(0, 0),
		Example: examples("millrace generate "+name, ""),
		RunE: func(*cobra.Command, []string) error {
			_, err := io.WriteString(t.out, text)
			return err
		},
	}
}

// shells are those that commands can be completed in.
var shells = map[string]func(*cobra.Command, io.Writer) error{
	"bash":       func(c *cobra.Command, w io.Writer) error { return c.GenBashCompletionV2(w, true) },
	"zsh":        (*cobra.Command).GenZshCompletion,
	"fish":       func(c *cobra.Command, w io.Writer) error { return c.GenFishCompletion(w, true) },
	"powershell": (*cobra.Command).GenPowerShellCompletionWithDesc,
}

func generateCompletion(t *terminal) *cobra.Command {
	names := []string{"bash", "zsh", "fish", "powershell"}
	return &cobra.Command{
		Use: "completion " + strings.Join(names, "|"), Short: "a script that completes commands and flags in a shell", Args: arguments(1, 1),
		ValidArgs: names,
		Example: examples(
			"source <(millrace generate completion bash)", "in this shell",
			"millrace generate completion zsh >\"${fpath[1]}/_millrace\"", "in every zsh",
			"millrace generate completion fish >~/.config/fish/completions/millrace.fish", "in every fish"),
		RunE: func(cmd *cobra.Command, args []string) error {
			script, ok := shells[args[0]]
			if !ok {
				return usage("there is no completion for %q", args[0]).suggest("one of " + strings.Join(names, ", "))
			}
			return script(cmd.Root(), t.out)
		},
	}
}

func generateMan(t *terminal) *cobra.Command {
	return &cobra.Command{
		Use: "man FOLDER", Short: "a manual page for each command", Args: arguments(1, 1),
		Example: examples("millrace generate man man && man -l man/millrace-stream-create.1", ""),
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := os.MkdirAll(args[0], 0o755); err != nil {
				return err
			}
			root := cmd.Root()
			root.DisableAutoGenTag = true // the same pages on every day
			if err := doc.GenManTree(root, &doc.GenManHeader{Title: "MILLRACE", Section: "1", Source: "Millrace " + Version, Manual: "Millrace"}, args[0]); err != nil {
				return err
			}
			pages, err := filepath.Glob(filepath.Join(args[0], "millrace*.1"))
			if len(pages) == 0 {
				return errors.Join(err, fail(exitFailed, "no page was written to %s", args[0]))
			}
			_, err = fmt.Fprintf(t.out, "%s in %s\n", some(len(pages), "page"), args[0])
			return err
		},
	}
}
