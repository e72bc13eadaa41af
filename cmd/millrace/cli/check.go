package cli

import (
	"fmt"
	"io"
	"net/url"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
)

// Exit codes of check alone: those that monitoring knows.
const (
	checkCritical = 2
	checkUnknown  = 3
)

func checkCommand(t *terminal) *cobra.Command {
	g := group("check", "answer yes or no, for monitoring and scripts",
		examples("millrace check quorum n2", "may n2 be stopped?", "millrace check tls", "are the certificates good for some time yet?"), checkCluster(t), checkQuorum(t), checkStream(t), checkLag(t), checkDisk(t), checkAdvertised(t), checkTLS(t))
	g.Long = `Answers yes or no. Exit codes are those of monitoring: 0 yes, 1 yes, but not for
long, 2 no, 3 nobody could tell.`
	return g
}

func checkQuorum(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "quorum [NODE]", Short: "may a node be stopped without a majority being lost?", Args: arguments(0, 1),
		Long: `Says whether all streams and the metadata would go on if NODE (or the node that is
asked) stopped now. A stream counts its replicas that are up and in sync, the
metadata their voters. Exit 0: it may be stopped; 2: no, and what would stand
still; 3: nobody could tell.`,
		Example: examples(
			"millrace check quorum", "the node that is asked",
			"until millrace check quorum n2; do sleep 1; done", "before n2 is upgraded"),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		node := ""
		if len(args) == 1 {
			node = args[0]
		} else {
			c, err := l.cluster(cmd.Context())
			if err != nil {
				return unknown(err)
			}
			node = c.Node
		}
		var check admin.StopCheck
		if err := l.call(cmd.Context(), "GET", "/api/v1/cluster/members/"+url.PathEscape(node)+"/stop", nil, &check); err != nil {
			return unknown(err)
		}
		if err := printOne(t.out, l.format, check, func(w io.Writer) error { return showStop(w, &check) }); err != nil {
			return err
		}
		if !check.Safe {
			return fail(checkCritical, "%s must not be stopped now", check.Node).
				suggest("millrace cluster members", "millrace replica list STREAM    who is behind")
		}
		return nil
	}
	return cmd
}

// unknown gives an error the exit code of a check that came to nothing.
func unknown(err error) error {
	p := *explain(err)
	p.code = checkUnknown
	return &p
}

func showStop(w io.Writer, c *admin.StopCheck) error {
	lines := []string{}
	if c.Metadata != "" {
		lines = append(lines, "metadata: "+c.Metadata)
	}
	for i, s := range c.Streams {
		if i == 10 {
			lines = append(lines, fmt.Sprintf("and %d streams more", len(c.Streams)-i))
			break
		}
		lines = append(lines, "stream "+s)
	}
	if c.Safe {
		lines = append(lines, fmt.Sprintf("%s may be stopped: metadata and %s with a replica there go on", c.Node, some(c.Checked, "stream")))
	}
	_, err := fmt.Fprintln(w, strings.Join(lines, "\n"))
	return err
}
