package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
)

func nodeCommand(t *terminal) *cobra.Command {
	return group("node", "look at one node, and take it out of service for a while",
		examples(
			"millrace node info", "the one that is asked",
			"millrace node drain n2 --wait", "move its leaders away before it is stopped",
			"millrace node undrain n2", "it may lead again"),
		nodeInfo(t), nodeDrain(t), nodeUndrain(t))
}

func nodeInfo(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "info [NODE]", Short: "show one node", Args: arguments(0, 1),
		Example: examples("millrace node info", "the one that is asked", "millrace node info n2", "another one, as the cluster sees it"),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := l.cluster(cmd.Context())
		if err != nil {
			return err
		}
		name := c.Node
		if len(args) == 1 {
			name = args[0]
		}
		m, ok := member(c, name)
		if !ok {
			return noMember(name, c)
		}
		return printOne(t.out, l.format, m, func(w io.Writer) error { return showMember(w, m) })
	}
	return cmd
}

func showMember(w io.Writer, m admin.Member) error {
	_, err := fmt.Fprintf(w, "Node       %s\nState      %s\nMetadata   %s\nStreams    leads %d, has a replica of %d\nStream     %s\nHTTP       %s\nNodes      %s\nRack       %s\nVersion    %s\nJoined     %s\n",
		m.Node, stateOf(m), roleOf(m), m.Leaders, m.Replicas, or(m.Addresses["stream"], "-"), or(m.Addresses["http"], "-"),
		or(m.Addresses["node"], "- (alone)"), or(m.Rack, "-"), or(m.Version, "-"), m.Joined.Format(time.DateTime))
	return err
}

func nodeDrain(t *terminal) *cobra.Command {
	var l look
	var wait bool
	cmd := &cobra.Command{
		Use: "drain NODE", Short: "move leaders away from a node and give it nothing new", Args: arguments(1, 1),
		Long: `Before a node is stopped or upgraded: its streams get leaders elsewhere one after
the other, without a gap, and it leads the metadata no more. Its replicas stay.`,
		Example: examples("millrace node drain n2 --wait --wait-timeout 10m", "until it leads nothing", "millrace node undrain n2", "afterwards"),
	}
	l.addFlags(cmd, t)
	cmd.Flags().BoolVar(&wait, "wait", false, "until it leads nothing any more, at most --wait-timeout")
	patience := cmd.Flags().Duration("wait-timeout", 2*time.Minute, "how long --wait waits")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := mark(cmd, &l, "PUT", args[0])
		if err != nil {
			return err
		}
		if wait {
			ctx, cancel := context.WithTimeout(cmd.Context(), *patience)
			defer cancel()
			if err := l.until(ctx, t, func(now admin.Cluster) (bool, string) {
				c = now
				m, _ := member(c, args[0])
				return m.Leaders == 0 && !m.Leader, fmt.Sprintf("%s still leads %s", m.Node, some(m.Leaders, "stream"))
			}); err != nil {
				return err
			}
		}
		return showMark(t, &l, c, args[0])
	}
	return cmd
}

func nodeUndrain(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "undrain NODE", Short: "let a drained node lead again", Args: arguments(1, 1),
		Example: examples("millrace node undrain n2", ""),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := mark(cmd, &l, "DELETE", args[0])
		if err != nil {
			return err
		}
		return showMark(t, &l, c, args[0])
	}
	return cmd
}

func mark(cmd *cobra.Command, l *look, method, node string) (c admin.Cluster, err error) {
	return c, l.call(cmd.Context(), method, "/api/v1/cluster/members/"+url.PathEscape(node)+"/drain", nil, &c)
}

func showMark(t *terminal, l *look, c admin.Cluster, node string) error {
	m, ok := member(c, node)
	if !ok {
		return noMember(node, c)
	}
	return printOne(t.out, l.format, m, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s is %s, leads %s\n", m.Node, stateOf(m), some(m.Leaders, "stream"))
		return err
	})
}

// summary is what status prints.
type summary struct {
	Cluster admin.Cluster `json:"cluster"`
	Node    admin.Status  `json:"node"` // that was asked
}

func statusCommand(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "status", Short: "show the cluster on one screen; exit 8 if it is degraded", Args: arguments(0, 0),
		Example: examples("millrace status", "exit 0: all is well", "millrace status -o json", "for scripts"),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var s summary
		var err error
		if s.Cluster, err = l.lastKnown(cmd.Context()); err != nil {
			return err
		}
		if err := l.call(cmd.Context(), "GET", "/api/v1/status", nil, &s.Node); err != nil {
			return err
		}
		if err := printOne(t.out, l.format, s, func(w io.Writer) error { return showStatus(w, s) }); err != nil {
			return err
		}
		if s.Cluster.Removed {
			return noMemberAnyMore(s.Cluster.Node)
		}
		problems := s.Cluster.Problems
		if !s.Node.Ready {
			problems = append(problems, "node "+s.Node.Node+" is not ready: "+s.Node.Reason)
		}
		if level := s.Node.Disk.Level; level == "low" { // an alarm is one of the cluster's problems
			problems = append(problems, "disk of "+s.Node.Node+": "+level)
		}
		if len(problems) > 0 {
			return fail(exitDegraded, "degraded: %s", strings.Join(problems, "; ")).suggest("millrace cluster members")
		}
		return nil
	}
	return cmd
}

func showStatus(w io.Writer, s summary) error {
	c, n := s.Cluster, s.Node
	if c.Removed {
		_, err := fmt.Fprintf(w, "cluster  %s   %s is no member any more   version %s\n", c.ID, c.Node, n.Version)
		return err
	}
	var led []string
	for _, m := range c.Members {
		led = append(led, fmt.Sprintf("%s %d", m.Node, m.Leaders))
	}
	_, err := fmt.Fprintf(w, "cluster  %s   %d/%d nodes   metadata led by %s (term %d)   version %s\n"+
		"streams  %d (leaders %s)   under-replicated %d   without leader %d\n"+
		"node     %s   up %s   connections %d   publishers %d   subscriptions %d\n"+
		"disk     %s free of %s (%s)\n",
		c.ID, up(c), len(c.Members), or(c.Leader, "nobody"), c.Term, n.Version,
		c.Streams, strings.Join(led, " · "), c.UnderReplicated, c.WithoutLeader,
		n.Node, period(time.Since(n.Started)), n.Connections, n.Publishers, n.Subscriptions,
		size(n.Disk.FreeBytes), size(n.Disk.TotalBytes), n.Disk.Level)
	return err
}
