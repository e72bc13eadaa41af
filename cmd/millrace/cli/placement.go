package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
)

func replicaList(t *terminal) *cobra.Command {
	var q query
	cmd := &cobra.Command{
		Use: "list STREAM", Short: "show where a stream's replicas are, and how far", Args: arguments(1, 1),
		Long: `Shows where a stream's replicas are, and how far each is. One that COUNTS is part
of the majority that confirms and elects; others are being filled or emptied.
COMMITTED and BEHIND are in chunks; "-" is what nobody could be
asked for.`,
		Example: examples("millrace replica list orders", "", "millrace replica list orders -o name", "the nodes alone"),
	}
	q.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var list []admin.Replica
		if err := q.call(cmd.Context(), "GET", streamPath(q.vhost, args[0])+"/replicas", nil, &list); err != nil {
			return err
		}
		return printReplicas(t, q.format, list)
	}
	return cmd
}

func printReplicas(t *terminal, format string, list []admin.Replica) error {
	out := listing{columns: []column{left("NODE"), left("STATE"), left("COUNTS"), right("NEXT OFFSET"), right("COMMITTED").named("committed_lsn"),
		right("BEHIND").named("behind_chunks"), right("DISK").named("disk_bytes"), right("DAMAGED").named("damaged_segments")}}
	for _, r := range list {
		counts := "no"
		if r.Voter {
			counts = "yes"
		}
		state := r.State
		if r.DiskAlarm {
			state += ", disk alarm"
		}
		out.add(r, r.Node, state, counts, known(r.NextOffset, counted), known(r.CommittedLSN, counted), known(r.Behind, counted), known(r.DiskBytes, sized), known(r.Damaged, counted))
	}
	return out.print(t.out, format)
}

// change is a command that changes where replicas are, and may wait for it.
type change struct {
	query
	wait bool
}

func (c *change) addFlags(cmd *cobra.Command, t *terminal) {
	c.query.addFlags(cmd, t)
	cmd.Flags().BoolVar(&c.wait, "wait", false, "until it is done, at most --wait-timeout")
	cmd.Flags().Duration("wait-timeout", time.Hour, "how long --wait waits")
}

// do asks for a change; done tells when it is, and what is lacking.
func (c *change) do(cmd *cobra.Command, t *terminal, method, stream, path string, done func([]admin.Replica) (bool, string)) error {
	var list []admin.Replica
	at := streamPath(c.vhost, stream) + "/replicas"
	if err := c.call(cmd.Context(), method, at+path, nil, &list); err != nil {
		return err
	}
	if c.wait {
		patience, err := cmd.Flags().GetDuration("wait-timeout")
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), patience)
		defer cancel()
		if list, err = c.until(ctx, t, at, done); err != nil {
			return err
		}
	}
	return printReplicas(t, c.format, list)
}

func (c *change) until(ctx context.Context, t *terminal, path string, done func([]admin.Replica) (bool, string)) (list []admin.Replica, err error) {
	last := ""
	for {
		list = nil
		if err := c.call(ctx, "GET", path, nil, &list); err != nil {
			return nil, err
		}
		ok, lacks := done(list)
		if ok {
			return list, nil
		}
		if lacks != last && t.errTTY {
			fmt.Fprintln(t.err, lacks)
		}
		last = lacks
		select {
		case <-time.After(pollPause):
		case <-ctx.Done():
			return nil, fail(exitUnreachable, "not done yet: %s", lacks)
		}
	}
}

func replicaOn(list []admin.Replica, node string) (admin.Replica, bool) {
	at := slices.IndexFunc(list, func(r admin.Replica) bool { return r.Node == node })
	if at < 0 {
		return admin.Replica{}, false
	}
	return list[at], true
}

// counting is when a node's replica counts.
func counting(node string) func([]admin.Replica) (bool, string) {
	return func(list []admin.Replica) (bool, string) {
		r, _ := replicaOn(list, node)
		behind := ""
		if r.Behind != nil {
			behind = fmt.Sprintf(", %d chunks behind", *r.Behind)
		}
		return r.Voter, fmt.Sprintf("%s is %s%s", node, or(r.State, "not there yet"), behind)
	}
}

// gone is when a node has no replica any more.
func gone(node string) func([]admin.Replica) (bool, string) {
	return func(list []admin.Replica) (bool, string) {
		r, there := replicaOn(list, node)
		return !there, fmt.Sprintf("the replica on %s is still there (%s)", node, r.State)
	}
}

func replicaAdd(t *terminal) *cobra.Command {
	var c change
	cmd := &cobra.Command{
		Use: "add STREAM NODE", Short: "give a stream a replica on one more node", Args: arguments(2, 2),
		Long: `The new replica is filled while the stream goes on, and counts for confirms and
elections once it has caught up. One at a time: refused (exit 7) while another one
catches up or goes, and where the node is down or drained.`,
		Example: examples("millrace replica add orders n4", "", "millrace replica add orders n4 --wait", "until it counts"),
	}
	c.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.do(cmd, t, "PUT", args[0], "/"+url.PathEscape(args[1]), counting(args[1]))
	}
	return cmd
}

func replicaRemove(t *terminal) *cobra.Command {
	var c change
	var yes bool
	cmd := &cobra.Command{
		Use: "remove STREAM NODE", Short: "take a stream's replica from a node", Args: arguments(2, 2),
		Long: `The node may be there or lost for ever. A leader hands over before it goes. Refused
(exit 7) where the stream would be left without a majority of replicas that answer.
The node deletes the replica's files, at once or when it comes back.`,
		Example: examples("millrace replica remove orders n3", "asks for the stream's name first", "millrace replica remove orders n3 --yes --wait", "in scripts"),
	}
	c.addFlags(cmd, t)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !yes {
			if err := confirm(t, fmt.Sprintf("This deletes the replica of %s on %s.", args[0], args[1]), args[0]); err != nil {
				return err
			}
		}
		return c.do(cmd, t, "DELETE", args[0], "/"+url.PathEscape(args[1]), gone(args[1]))
	}
	return cmd
}

func replicaMove(t *terminal) *cobra.Command {
	var c change
	cmd := &cobra.Command{
		Use: "move STREAM FROM TO", Short: "have a node take another one's place", Args: arguments(3, 3),
		Long: `Adds a replica on TO, and takes that on FROM away once the new one counts: the
stream never has fewer than before. FROM may be lost for ever.`,
		Example: examples("millrace replica move orders n1 n4 --wait", "until n1 has none any more"),
	}
	c.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path := "/" + url.PathEscape(args[2]) + "?instead=" + url.QueryEscape(args[1])
		return c.do(cmd, t, "PUT", args[0], path, func(list []admin.Replica) (bool, string) {
			if ok, lacks := counting(args[2])(list); !ok {
				return false, lacks
			}
			return gone(args[1])(list)
		})
	}
	return cmd
}

func replicaTransfer(t *terminal) *cobra.Command {
	var q query
	cmd := &cobra.Command{
		Use: "transfer STREAM NODE", Short: "have a stream led from another node", Args: arguments(2, 2),
		Long:    `The leader commits all that it has and makes way; nothing is lost. NODE must have a replica that counts.`,
		Example: examples("millrace replica transfer orders n2", ""),
	}
	q.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var s admin.Stream
		if err := q.call(cmd.Context(), "PUT", streamPath(q.vhost, args[0])+"/leader", admin.LeaderRequest{Node: args[1]}, &s); err != nil {
			return err
		}
		return printOne(t.out, q.format, s, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s leads %s\n", or(s.Leader, "nobody yet"), s.Name)
			return err
		})
	}
	return cmd
}

func replicaBalance(t *terminal) *cobra.Command {
	var l look
	var leaders, all, dry bool
	cmd := &cobra.Command{
		Use: "balance", Short: "even out leaders, or replicas too, over the nodes", Args: arguments(0, 0),
		Long: `Moves leaders until no node leads two streams more than another that could lead one
of them; with --all replicas too, without bringing two of a stream into one rack.
It begins the moves and returns. Nodes that are down or drained get nothing.`,
		Example: examples("millrace replica balance --dry-run", "what it would do", "millrace replica balance --all", "replicas too"),
	}
	l.addFlags(cmd, t)
	cmd.Flags().BoolVar(&leaders, "leaders", false, "leaders alone (the default)")
	cmd.Flags().BoolVar(&all, "all", false, "leaders and replicas")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only say what it would do")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		what := "leaders"
		if leaders && all {
			return usage("--leaders and --all exclude each other").suggest("--all   leaders and replicas")
		}
		if all {
			what = "all"
		}
		var b admin.Balance
		if err := l.call(cmd.Context(), "POST", fmt.Sprintf("/api/v1/cluster/balance?what=%s&dry_run=%t", what, dry), nil, &b); err != nil {
			return err
		}
		return printOne(t.out, l.format, b, func(w io.Writer) error { return showBalance(w, b) })
	}
	return cmd
}

func showBalance(w io.Writer, b admin.Balance) error {
	verb := "moves"
	if b.DryRun {
		verb = "would move"
	}
	for _, kind := range []struct {
		what string
		list []admin.Move
	}{{"leader", b.Leaders}, {"replica", b.Replicas}} {
		for _, m := range kind.list {
			if _, err := fmt.Fprintf(w, "%s of %s %s from %s to %s\n", kind.what, m.Stream, verb, m.From, m.To); err != nil {
				return err
			}
		}
	}
	if b.Later > 0 {
		if _, err := fmt.Fprintf(w, "%d more replicas have to wait for these; ask again once they are done\n", b.Later); err != nil {
			return err
		}
	}
	if len(b.Leaders)+len(b.Replicas)+b.Later > 0 {
		return nil
	}
	_, err := fmt.Fprintln(w, "nothing to do: the nodes are even")
	return err
}
