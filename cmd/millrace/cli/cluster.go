package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/cluster"
)

func clusterCommand(t *terminal) *cobra.Command {
	return group("cluster", "look at and change the nodes that work together",
		examples(
			"millrace cluster members", "who is there",
			"millrace cluster transfer n2", "have n2 lead the metadata",
			"millrace cluster remove n3", "take a node out that never comes back"),
		clusterInfo(t), clusterMembers(t), clusterLeader(t), clusterTransfer(t), clusterJoin(t), clusterRemove(t), clusterRecover(t))
}

// look is what all commands share that ask for the cluster.
type look struct {
	api
	format string
}

func (l *look) addFlags(cmd *cobra.Command, t *terminal) {
	l.api.addFlags(cmd.Flags(), t)
	addFormat(cmd, &l.format)
}

// cluster asks for the cluster. A node that is no member any more does not know
// how that is.
func (l *look) cluster(ctx context.Context) (admin.Cluster, error) {
	c, err := l.lastKnown(ctx)
	if err == nil && c.Removed {
		err = noMemberAnyMore(c.Node)
	}
	return c, err
}

// lastKnown is what the node that is asked says of the cluster, member or not.
func (l *look) lastKnown(ctx context.Context) (c admin.Cluster, err error) {
	return c, l.call(ctx, "GET", "/api/v1/cluster", nil, &c)
}

func noMemberAnyMore(node string) *problem {
	return fail(exitDegraded, "%s was removed from the cluster and is no member any more", node).
		because("it serves nobody, and what it says of others may be long past").
		suggest("--addr http://HOST:7080      ask a member",
			"stop it; to have it join again, move its data directory away and start it with --join")
}

func clusterInfo(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "info", Short: "show the cluster at a glance", Args: arguments(0, 0),
		Example: examples("millrace cluster info", "", "millrace cluster info -o json", "for scripts"),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := l.cluster(cmd.Context())
		if err != nil {
			return err
		}
		return printOne(t.out, l.format, c, func(w io.Writer) error {
			voters := 0
			for _, m := range c.Members {
				if m.Voter {
					voters++
				}
			}
			_, err := fmt.Fprintf(w, "Cluster   %s\nLeader    %s (term %d)\nNodes     %d of %d up, %d vote on metadata\nStreams   %d, %d without a leader, %d under-replicated\n",
				c.ID, or(c.Leader, "none"), c.Term, up(c), len(c.Members), voters, c.Streams, c.WithoutLeader, c.UnderReplicated)
			return err
		})
	}
	return cmd
}

func up(c admin.Cluster) (n int) {
	for _, m := range c.Members {
		if m.State == admin.StateOf(true) {
			n++
		}
	}
	return n
}

func clusterMembers(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "members", Short: "list the nodes", Args: arguments(0, 0),
		Example: examples("millrace cluster members", "", "millrace cluster members -o json | jq '.[] | select(.state==\"down\").node'", "who is down"),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := l.cluster(cmd.Context())
		if err != nil {
			return err
		}
		out := listing{columns: []column{left("NODE"), left("STATE"), left("METADATA"), right("LEADERS"), right("REPLICAS"), left("STREAM"), left("HTTP"),
			more(left("NODES")), more(left("RACK")), more(left("VERSION")), more(left("JOINED"))}}
		for _, m := range c.Members {
			out.add(m, m.Node, stateOf(m), roleOf(m), strconv.Itoa(m.Leaders), strconv.Itoa(m.Replicas), m.Addresses["stream"], m.Addresses["http"],
				m.Addresses["node"], m.Rack, m.Version, m.Joined.Format(time.DateOnly))
		}
		return out.print(t.out, l.format)
	}
	return cmd
}

func stateOf(m admin.Member) string {
	switch {
	case m.Leaving:
		return m.State + ", leaving"
	case m.Draining:
		return m.State + ", draining"
	case m.DiskAlarm:
		return m.State + ", disk alarm"
	}
	return m.State
}

func roleOf(m admin.Member) string {
	switch {
	case m.Leader:
		return "leads"
	case m.Voter:
		return "votes"
	}
	return "follows"
}

func clusterLeader(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "leader", Short: "say who leads the metadata", Args: arguments(0, 0),
		Example: examples("millrace cluster leader", "its name alone; exit 8 if there is none"),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := l.cluster(cmd.Context())
		if err != nil {
			return err
		}
		if c.Leader == "" || !c.Seen {
			return fail(exitDegraded, "nobody leads the metadata now").
				because("that takes a majority of the nodes that vote").suggest("millrace cluster members    who is there")
		}
		return printOne(t.out, l.format, map[string]any{"leader": c.Leader, "term": c.Term}, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, c.Leader)
			return err
		})
	}
	return cmd
}

func clusterTransfer(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "transfer [NODE]", Short: "have another node lead the metadata", Args: arguments(0, 1),
		Example: examples("millrace cluster transfer n2", "that one", "millrace cluster transfer", "any other"),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path := "/api/v1/cluster/transfer"
		if len(args) == 1 {
			path += "?to=" + url.QueryEscape(args[0])
		}
		var c admin.Cluster
		if err := l.call(cmd.Context(), "POST", path, nil, &c); err != nil {
			return err
		}
		return printOne(t.out, l.format, c, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s leads the metadata\n", or(c.Leader, "nobody yet"))
			return err
		})
	}
	return cmd
}

func clusterJoin(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "join ADDR", Short: "tell a node where another one of its cluster is", Args: arguments(1, 1),
		Long: `Makes the node at ADDR (its node.addr) known to the node that is asked, and the
other way round: members that have lost each other's addresses find each other
again. A node becomes a member when it starts with an empty data directory and
--join; one that has a cluster never changes to another.`,
		Example: examples("millrace cluster join n2.example.com:7081", "n2 has another address now"),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		answer := map[string]string{}
		if err := l.call(cmd.Context(), "POST", "/api/v1/cluster/join", admin.Joining{Address: args[0]}, &answer); err != nil {
			return err
		}
		return printOne(t.out, l.format, answer, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s is %s, of the same cluster\n", args[0], answer["node"])
			return err
		})
	}
	return cmd
}

// pollPause is between two looks at something that takes its time.
const pollPause = 500 * time.Millisecond

func clusterRemove(t *terminal) *cobra.Command {
	var l look
	var yes, wait bool
	cmd := &cobra.Command{
		Use: "remove NODE", Short: "take a node out of the cluster for good", Args: arguments(1, 1),
		Long: `Moves a node's replicas to others and then ends its membership, be the node there
or lost for ever. Refused (exit 7) where the metadata or a stream would be left
without a majority. A node that was removed and comes back with its old data is
turned away; with an empty data directory it can join again.`,
		Example: examples("millrace cluster remove n3", "asks for the name first", "millrace cluster remove n3 --yes --wait", "in scripts"),
	}
	l.addFlags(cmd, t)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&wait, "wait", false, "until it is no member any more")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := l.cluster(cmd.Context())
		if err != nil {
			return err
		}
		m, ok := member(c, args[0])
		if !ok {
			return noMember(args[0], c)
		}
		if !yes {
			warning := fmt.Sprintf("This moves %s of %s (%s) to other nodes, then ends its membership.", some(m.Replicas, "replica"), m.Node, m.State)
			if err := confirm(t, warning, m.Node); err != nil {
				return err
			}
		}
		if err := l.call(cmd.Context(), "DELETE", "/api/v1/cluster/members/"+url.PathEscape(m.Node), nil, nil); err != nil {
			return err
		}
		done := "leaving"
		if wait {
			done = "removed"
			if err := l.until(cmd.Context(), t, func(c admin.Cluster) (bool, string) {
				m, still := member(c, args[0])
				return !still, fmt.Sprintf("%s still has %s", m.Node, some(m.Replicas, "replica"))
			}); err != nil {
				return err
			}
		}
		return printOne(t.out, l.format, map[string]string{"node": args[0], "state": done}, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s is %s\n", args[0], done)
			return err
		})
	}
	return cmd
}

// until looks at the cluster again and again until done says so; what it says
// else is what is still to be done.
func (l *look) until(ctx context.Context, t *terminal, done func(admin.Cluster) (bool, string)) error {
	last := ""
	for {
		c, err := l.cluster(ctx)
		if err != nil {
			return err
		}
		ok, lacks := done(c)
		if ok {
			return nil
		}
		if lacks != last && t.errTTY {
			fmt.Fprintln(t.err, lacks)
		}
		last = lacks
		select {
		case <-time.After(pollPause):
		case <-ctx.Done():
			return fail(exitUnreachable, "not done yet: %s", lacks)
		}
	}
}

func member(c admin.Cluster, name string) (admin.Member, bool) {
	at := slices.IndexFunc(c.Members, func(m admin.Member) bool { return m.Node == name })
	if at < 0 {
		return admin.Member{Node: name}, false
	}
	return c.Members[at], true
}

func noMember(name string, c admin.Cluster) error {
	var names []string
	for _, m := range c.Members {
		names = append(names, m.Node)
	}
	return fail(exitNotFound, "%q is no member of the cluster", name).because("its members are " + strings.Join(names, ", "))
}

func clusterRecover(t *terminal) *cobra.Command {
	var dir, format string
	var sure, look bool
	cmd := &cobra.Command{
		Use: "recover", Short: "go on with one node alone after a majority was lost for good", Args: arguments(0, 0),
		Long: `Makes a stopped node the only one of its cluster. It is the last resort: only
where so many of the nodes that vote on metadata are lost for ever that no
majority can come back.

What it costs: messages, stored offsets and changes that were confirmed by the
lost nodes and have not reached this one are gone. Streams without a replica on
this node are gone. The other nodes are members no more; they must never come
back with the data that they had, and join again with an empty directory.

Choose the node with the newest data. Start it afterwards as usual.`,
		Example: examples(
			"millrace cluster recover --data-dir /var/lib/millrace --dry-run", "what it would cost",
			"millrace cluster recover --data-dir /var/lib/millrace", "asks for the node's name first"),
	}
	cmd.Flags().StringVar(&dir, "data-dir", "./millrace-data", "the stopped node's folder")
	cmd.Flags().BoolVar(&sure, "i-understand-data-loss", false, "do not ask")
	cmd.Flags().BoolVar(&look, "dry-run", false, "only say what it would cost")
	addFormat(cmd, &format)
	cmd.RunE = func(*cobra.Command, []string) error {
		plan, err := cluster.PlanRecovery(dir)
		if err != nil {
			return recoveryProblem(err)
		}
		if look {
			return printOne(t.out, format, plan, func(w io.Writer) error { return showRecovery(w, plan, "would be") })
		}
		if !sure {
			var warning strings.Builder
			_ = showRecovery(&warning, plan, "will be")
			if !t.inTTY {
				return usage("nobody is there to confirm:\n%s", strings.TrimRight(warning.String(), "\n")).suggest("--i-understand-data-loss   if it is meant")
			}
			if err := confirm(t, warning.String(), string(plan.Node)); err != nil {
				return err
			}
		}
		if err := cluster.Recover(dir); err != nil {
			return recoveryProblem(err)
		}
		return printOne(t.out, format, plan, func(w io.Writer) error { return showRecovery(w, plan, "are") })
	}
	return cmd
}

func recoveryProblem(err error) error {
	return fail(exitFailed, "the metadata can't be recovered: %w", err).
		because("nothing was changed that a further try would not repeat").
		suggest("stop the node first; --data-dir must be the folder that it was started with")
}

func showRecovery(w io.Writer, r cluster.Recovery, tense string) error {
	var nodes []string
	for _, n := range r.GivenUp {
		nodes = append(nodes, string(n))
	}
	_, err := fmt.Fprintf(w, "Node %s goes on alone as cluster %s.\nGiven up %s: %s\nStreams: %d kept, %d %s lost%s\n",
		r.Node, r.Cluster, tense, or(strings.Join(nodes, ", "), "nobody"), r.Kept, len(r.Lost), tense, list(r.Lost))
	return err
}

// list shows a few names.
func list(names []string) string {
	const most = 10
	switch {
	case len(names) == 0:
		return ""
	case len(names) > most:
		return fmt.Sprintf(" (%s and %d more)", strings.Join(names[:most], ", "), len(names)-most)
	}
	return " (" + strings.Join(names, ", ") + ")"
}
