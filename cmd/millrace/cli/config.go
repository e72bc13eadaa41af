package cli

import (
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/cmd/millrace/config"
)

func configCommand(t *terminal) *cobra.Command {
	return group("config", "check a server's configuration, and see who set what",
		examples(
			"millrace config validate /etc/millrace/millrace.toml", "would a server start with it?",
			"millrace config show --config millrace.toml", "what is set, and by what",
			"millrace config show --effective", "all settings, with the defaults"),
		configValidate(t), configShow(t))
}

func configValidate(t *terminal) *cobra.Command {
	return &cobra.Command{
		Use: "validate FILE", Short: "check a server's TOML file", Args: arguments(1, 1),
		Long: `Checks the file as a server does that is given nothing else: unknown keys, values
and what does not go together. Exits with 2 and says all of it if it is not right.`,
		Example: examples("millrace config validate millrace.toml", "before a restart"),
		RunE: func(_ *cobra.Command, args []string) error {
			if _, err := config.Explain(config.Server(), args[0], nil, pflag.NewFlagSet("", pflag.ContinueOnError)); err != nil {
				return configProblem(err)
			}
			_, err := fmt.Fprintf(t.out, "%s is right\n", args[0])
			return err
		},
	}
}

func configShow(t *terminal) *cobra.Command {
	var file, format string
	var all bool
	cmd := &cobra.Command{
		Use: "show", Short: "show what a server started like this would have, and who set it", Args: arguments(0, 0),
		Long: `Puts the file, the environment and the flags together as millrace server does, and
tells of each setting which of them it is from. It does not ask a running node.`,
		Example: examples(
			"millrace config show --config millrace.toml", "what is set",
			"millrace config show --config millrace.toml --effective -o json", "everything, for scripts"),
	}
	config.AddFlags(cmd.Flags(), config.Server())
	cmd.Flags().StringVar(&file, "config", "", "TOML file with the configuration")
	cmd.Flags().BoolVar(&all, "effective", false, "settings that nobody set, too")
	addFormat(cmd, &format)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		list, err := config.Explain(config.Server(), file, os.Environ(), cmd.Flags())
		if err := showSettings(t.out, format, list, all); err != nil {
			return err
		}
		if err != nil {
			return configProblem(err)
		}
		return nil
	}
	return cmd
}

func showSettings(w io.Writer, format string, list []config.Effective, all bool) error {
	out := listing{columns: []column{left("SETTING"), left("VALUE"), left("SOURCE")}}
	for _, e := range list {
		if !all && !e.Set {
			continue
		}
		value := fmt.Sprint(e.Value)
		if several, ok := e.Value.([]string); ok {
			value = strings.Join(several, ",")
		}
		out.add(e, e.Key, cell{or(value, nothing), value}, e.Source)
	}
	return out.print(w, format)
}
