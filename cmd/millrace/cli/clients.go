package cli

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
)

// clients is what the commands about connected clients share.
type clients struct {
	query
	node string
}

func (c *clients) addFlags(cmd *cobra.Command, t *terminal) {
	c.query.addFlags(cmd, t)
	anyVHost(cmd)
	cmd.Flags().StringVar(&c.node, "node", "", "only those connected to this node")
}

// path is one of the API's, for the node that is asked for.
func (c *clients) path(of string) string {
	if c.node == "" {
		return "/api/v1/" + of
	}
	return "/api/v1/" + of + "?node=" + url.QueryEscape(c.node)
}

// others tells which rows a --vhost leaves out.
func (c *clients) others(cmd *cobra.Command, vhost string) bool {
	return cmd.Flags().Changed("vhost") && vhost != c.vhost
}

// incomplete is the end of a list that lacks the part of some nodes.
func incomplete(unknown []string) error {
	if len(unknown) == 0 {
		return nil
	}
	return fail(exitDegraded, "not known: %s", strings.Join(unknown, "; ")).suggest("millrace cluster members")
}

func connectionCommand(t *terminal) *cobra.Command {
	return group("connection", "see who is connected, and cut a client off",
		examples(
			"millrace connection list", "all clients, and the node that each is connected to",
			"millrace connection close 10.0.0.7:51234", "by the client's address"),
		connectionList(t), connectionClose(t))
}

func connectionList(t *terminal) *cobra.Command {
	var c clients
	cmd := &cobra.Command{
		Use: "list", Short: "list the clients of all nodes", Args: arguments(0, 0),
		Long:    "Lists the clients of all nodes. Exits with 8 if a node does not say who its clients\nare.",
		Example: examples("millrace connection list", "", "millrace connection list --node n2", "those of one node"),
	}
	c.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var all admin.Across[admin.Connection]
		if err := c.call(cmd.Context(), "GET", c.path("connections"), nil, &all); err != nil {
			return err
		}
		out := listing{columns: []column{left("CONNECTION"), left("NODE"), left("USER"), left("CLIENT"), right("PUBLISHERS"),
			right("CONSUMERS"), right("CONNECTED"), more(left("VHOST")), more(left("PRODUCT")), more(left("TLS"))}}
		for _, k := range all.Items {
			if c.others(cmd, k.VHost) {
				continue
			}
			out.add(k, k.Name, k.Node, k.User, or(k.Properties["connection_name"], "-"), fmt.Sprint(k.Publishers), fmt.Sprint(k.Subscriptions),
				ago(time.Since(k.Connected).Milliseconds()), k.VHost, or(k.Properties["product"], "-"), or(k.TLS, "-"))
		}
		if err := out.print(t.out, c.format); err != nil {
			return err
		}
		return incomplete(all.Unknown)
	}
	return cmd
}

// clientArrow stands in a connection's name between the client's address and the
// node's.
const clientArrow = " -> "

func connectionClose(t *terminal) *cobra.Command {
	var c clients
	cmd := &cobra.Command{
		Use: "close ID", Short: "close a client's connection", Args: arguments(1, 1),
		Long: `Closes the socket of a client's connection, on whichever node it is. ID is its name
as connection list has it, or the client's address in it. Most clients connect
again at once: to keep one out, change its user.`,
		Example: examples(
			"millrace connection close 10.0.0.7:51234", "",
			"millrace connection close '10.0.0.7:51234 -> 10.0.0.1:5552' --node n1", "where clients of two nodes have one address"),
	}
	c.api.addFlags(cmd.Flags(), t)
	cmd.Flags().StringVar(&c.node, "node", "", "the one connected to this node")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		found, err := c.find(cmd.Context(), args[0])
		if err != nil {
			return err
		}
		c.node = found.Node
		if err := c.call(cmd.Context(), "DELETE", c.path("connections/"+url.PathEscape(found.Name)), nil, nil); err != nil {
			return err
		}
		_, err = fmt.Fprintf(t.out, "closed %s on %s\n", found.Name, found.Node)
		return err
	}
	return cmd
}

// find is the one connection that goes by a name or an address.
func (c *clients) find(ctx context.Context, id string) (admin.Connection, error) {
	var all admin.Across[admin.Connection]
	if err := c.call(ctx, "GET", c.path("connections"), nil, &all); err != nil {
		return admin.Connection{}, err
	}
	found := slices.DeleteFunc(all.Items, func(k admin.Connection) bool {
		client, _, _ := strings.Cut(k.Name, clientArrow)
		return k.Name != id && client != id
	})
	switch {
	case len(found) > 1:
		var where []string
		for _, k := range found {
			where = append(where, fmt.Sprintf("%s on %s", k.Name, k.Node))
		}
		return admin.Connection{}, fail(exitConflict, "more than one connection is meant by %s: %s", id, strings.Join(where, ", ")).
			suggest("--node NODE      says which")
	case len(found) == 0 && len(all.Unknown) > 0:
		return admin.Connection{}, fail(exitUnreachable, "no connection %s is known; not known: %s", id, strings.Join(all.Unknown, "; ")).
			suggest("millrace cluster members")
	case len(found) == 0:
		return admin.Connection{}, fail(exitNotFound, "no connection %s", id).suggest("millrace connection list")
	}
	return found[0], nil
}

func publisherCommand(t *terminal) *cobra.Command {
	return group("publisher", "see who publishes",
		examples(
			"millrace publisher list", "every publisher that is declared, on any node",
			"millrace publisher list --stream orders", "those of one stream"),
		publisherList(t))
}

func publisherList(t *terminal) *cobra.Command {
	var c clients
	var stream string
	cmd := &cobra.Command{
		Use: "list", Short: "list the publishers that are declared, on all nodes", Args: arguments(0, 0),
		Long: `Lists the publishers that are declared, on all nodes. Counts are of messages since
then, a sub-batch being one. Exits with 8 if a node does not say which are its.`,
		Example: examples("millrace publisher list", "", "millrace publisher list --stream orders -o json", "for scripts"),
	}
	c.addFlags(cmd, t)
	cmd.Flags().StringVar(&stream, "stream", "", "only this stream")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var all admin.Across[admin.Publisher]
		if err := c.call(cmd.Context(), "GET", c.path("publishers"), nil, &all); err != nil {
			return err
		}
		out := listing{columns: []column{left("REFERENCE"), left("STREAM"), left("NODE"), left("CONNECTION"), right("PUBLISHED"),
			right("CONFIRMED"), right("REFUSED"), more(left("USER")), more(left("VHOST")), more(right("ID"))}}
		for _, p := range all.Items {
			if c.others(cmd, p.VHost) || stream != "" && p.Stream != stream {
				continue
			}
			out.add(p, or(p.Reference, "-"), p.Stream, p.Node, p.Connection, count(p.Published), count(p.Confirmed), count(p.Refused),
				p.User, p.VHost, fmt.Sprint(p.ID))
		}
		if err := out.print(t.out, c.format); err != nil {
			return err
		}
		return incomplete(all.Unknown)
	}
	return cmd
}

func consumerList(t *terminal) *cobra.Command {
	var c clients
	var stream, reference string
	var over uint64
	cmd := &cobra.Command{
		Use: "list", Short: "list the consumers that are connected, on all nodes", Args: arguments(0, 0),
		Long: `Lists the subscriptions of all nodes. LAG is how many committed messages were not
sent to it yet; consumer lag tells what readers have stored, connected or not.
ACTIVITY is that of single active consumers, and -o wide says why each is active or
waits.
Exits with 8 if a node does not say which are its.`,
		Example: examples(
			"millrace consumer list --stream orders", "who reads it?",
			"millrace consumer list --lag-over 100000 -o name", "for scripts"),
	}
	c.addFlags(cmd, t)
	cmd.Flags().StringVar(&stream, "stream", "", "only this stream")
	cmd.Flags().StringVar(&reference, "group", "", "only this reference")
	cmd.Flags().Uint64Var(&over, "lag-over", 0, "only those with more messages to be sent")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var all admin.Across[admin.Consumer]
		if err := c.call(cmd.Context(), "GET", c.path("consumers"), nil, &all); err != nil {
			return err
		}
		out := listing{columns: []column{left("REFERENCE"), left("STREAM"), left("NODE"), left("CONNECTION"), right("OFFSET"), right("LAG"),
			right("CONSUMED"), right("CREDIT"), left("ACTIVITY"), more(left("USER")), more(left("VHOST")), more(right("ID")), more(left("WHY"))}}
		for _, k := range all.Items {
			if c.others(cmd, k.VHost) || stream != "" && k.Stream != stream || reference != "" && k.Reference != reference ||
				over > 0 && (k.Lag == nil || *k.Lag <= over) {
				continue
			}
			offset, lag := "-", "-"
			if k.Offset != nil && k.Lag != nil {
				offset, lag = count(*k.Offset), count(*k.Lag)
			}
			out.add(k, or(k.Reference, "-"), k.Stream, k.Node, k.Connection, offset, lag, count(k.Consumed), fmt.Sprint(k.Credit),
				or(k.Activity, "-"), k.User, k.VHost, fmt.Sprint(k.ID), or(k.Why, "-"))
		}
		if err := out.print(t.out, c.format); err != nil {
			return err
		}
		return incomplete(all.Unknown)
	}
	return cmd
}
