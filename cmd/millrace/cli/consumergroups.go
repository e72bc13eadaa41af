package cli

import (
	"context"
	"net/url"
	"slices"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
)

// groupQuery asks for groups of single active consumers.
type groupQuery struct {
	query
	stream, group string
}

func (q *groupQuery) addFlags(cmd *cobra.Command, t *terminal) {
	q.query.addFlags(cmd, t)
	anyVHost(cmd)
	cmd.Flags().StringVar(&q.group, "group", "", "only groups of this name")
	cmd.Flags().StringVar(&q.stream, "stream", "", "only on this stream")
}

func (q *groupQuery) ask(ctx context.Context, cmd *cobra.Command) (groups []admin.Group, err error) {
	with := url.Values{}
	if cmd.Flags().Changed("vhost") {
		with.Set("vhost", q.vhost)
	}
	if q.stream != "" {
		with.Set("stream", q.stream)
	}
	if err := q.call(ctx, "GET", "/api/v1/groups?"+with.Encode(), nil, &groups); err != nil {
		return nil, err
	}
	return slices.DeleteFunc(groups, func(g admin.Group) bool { return q.group != "" && g.Name != q.group }), nil
}

func consumerGroups(t *terminal) *cobra.Command {
	var q groupQuery
	cmd := &cobra.Command{
		Use: "groups", Short: "list groups of single active consumers", Args: arguments(0, 0),
		Long: `Lists the groups of single active consumers: those that read one stream under one
name, of which one is active at a time, on whatever node each is connected. consumer
list -o wide tells why each of them is active or waits.`,
		Example: examples(
			"millrace consumer groups", "all virtual hosts",
			"millrace consumer groups --stream orders -o json", "with every member"),
	}
	q.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		groups, err := q.ask(cmd.Context(), cmd)
		if err != nil {
			return err
		}
		return printGroups(t, q.format, groups)
	}
	return cmd
}

func printGroups(t *terminal, format string, groups []admin.Group) error {
	out := listing{columns: []column{left("GROUP"), left("STREAM"), right("PARTITION"), right("MEMBERS"), left("ACTIVE"), left("NODE"), more(left("VHOST"))}}
	for _, g := range groups {
		partition, active, node := "-", "-", "-"
		if g.Partition != nil {
			partition = strconv.Itoa(*g.Partition)
		}
		for _, m := range g.Members {
			if m.Role == "active" && (m.Reach == "connected" || active == "-") {
				active, node = m.Connection, m.Node
			}
		}
		out.add(g, g.Name, g.Stream, partition, strconv.Itoa(len(g.Members)), active, node, g.VHost)
	}
	return out.print(t.out, format)
}

func consumerActivate(t *terminal) *cobra.Command {
	var q query
	cmd := &cobra.Command{
		Use: "activate STREAM REFERENCE", Short: "have a group of single active consumers decided anew", Args: arguments(2, 2),
		Long: `Has a group decided anew: a consumer that was told to stop and has not answered is
not waited for any more. The node has stopped delivering to it before it was told.
Where one is active already, nothing changes.`,
		Example: examples("millrace consumer activate orders billing", "billing is the name that its consumers share"),
	}
	q.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var g admin.Group
		if err := q.call(cmd.Context(), "POST", streamPath(q.vhost, args[0])+"/groups/activate", admin.ActivateGroup{Group: args[1]}, &g); err != nil {
			return err
		}
		return printGroups(t, q.format, []admin.Group{g})
	}
	return cmd
}
