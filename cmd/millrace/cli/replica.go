package cli

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
)

func replicaCommand(t *terminal) *cobra.Command {
	return group("replica", "look after the copies of a stream",
		examples(
			"millrace replica list orders", "where they are, and how far",
			"millrace replica add orders n4 --wait", "one more, until it counts",
			"millrace replica move orders n1 n4", "n4 takes n1's place",
			"millrace replica transfer orders n2", "have n2 lead the stream",
			"millrace replica balance --all --dry-run", "what would even out the nodes",
			"millrace replica repair orders", "fetch damaged segments from another replica"),
		replicaList(t), replicaAdd(t), replicaRemove(t), replicaMove(t), replicaTransfer(t), replicaBalance(t), repairCommand(t, "replica"))
}

// repairCommand is a subcommand of replica and of segment.
func repairCommand(t *terminal, of string) *cobra.Command {
	var q atNode
	cmd := &cobra.Command{
		Use: "repair STREAM", Short: "fetch a stream's damaged segments from another replica", Args: arguments(1, 1),
		Long: `Fetches the damaged segments of a stream's replicas from other replicas. What
comes is believed only if it is, chunk by chunk and as a whole, what was sealed
here; the damaged file is kept in quarantine/. The stream goes on meanwhile. Exits
with 8 if anything is damaged still or a node does not answer, and with 7 if there
is no other replica.`,
		Example: examples(
			"millrace "+of+" repair orders", "all replicas",
			"millrace "+of+" repair orders --node n2", "n2's alone",
			"millrace segment verify orders", "what is damaged"),
	}
	q.addFlags(cmd, t, "all of them")
	q.allow(cmd, logTimeout)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var done admin.Repair
		if err := q.call(cmd.Context(), "POST", q.named(streamPath(q.vhost, args[0])+"/repair"), nil, &done); err != nil {
			return err
		}
		if err := printOne(t.out, q.format, done, func(w io.Writer) error { return printRepair(w, done) }); err != nil {
			return err
		}
		if n := len(done.Damaged); n > 0 {
			return fail(exitDegraded, "damaged still: %s", some(n, "place"))
		}
		if n := len(done.Unknown); n > 0 {
			return fail(exitDegraded, "not known to be whole: %s", some(n, "replica"))
		}
		return nil
	}
	return cmd
}

func printRepair(w io.Writer, done admin.Repair) error {
	for _, file := range done.Repaired {
		if _, err := fmt.Fprintf(w, "repaired %s\n", file); err != nil {
			return err
		}
	}
	for _, place := range done.Damaged {
		if _, err := fmt.Fprintf(w, "left     %s\n", place); err != nil {
			return err
		}
	}
	for _, node := range done.Unknown {
		if _, err := fmt.Fprintf(w, "unknown  %s\n", node); err != nil {
			return err
		}
	}
	if len(done.Repaired)+len(done.Damaged)+len(done.Unknown) > 0 {
		return nil
	}
	_, err := fmt.Fprintln(w, "nothing is known to be damaged; millrace segment verify reads every byte")
	return err
}
