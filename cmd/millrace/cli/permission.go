package cli

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
)

func permissionCommand(t *terminal) *cobra.Command {
	return group("permission", "say what users may do in virtual hosts",
		examples(
			"millrace permission set billing --read '^orders$'", "read the stream orders",
			"millrace permission set shop --write '^orders' --configure '^orders'", "make, fill and delete streams that begin so",
			"millrace permission list --of billing", "",
			"millrace permission clear billing", "take all of it away"),
		permissionSet(t), permissionList(t), permissionClear(t))
}

func permissionPath(vhost, user string) string {
	return "/api/v1/permissions/" + url.PathEscape(vhost) + "/" + url.PathEscape(user)
}

// vhostOf is the second argument, or the virtual host that clients begin with.
func vhostOf(args []string) string {
	if len(args) > 1 {
		return args[1]
	}
	return "/"
}

func permissionSet(t *terminal) *cobra.Command {
	var l look
	var p admin.Patterns
	cmd := &cobra.Command{
		Use: "set USER [VHOST]", Short: "say what a user may do in a virtual host", Args: arguments(1, 2),
		Long: `Says what a user may do with streams and super streams of a virtual host (/ unless
named), by regular expressions that are searched anywhere in a name: '^orders$' is
that one alone, '.*' all. A pattern that is not given allows nothing. What was set
before is replaced; connections that are open lose at once what they may not have any
more.`,
		Example: examples("millrace permission set billing --read '^orders$'", "in /",
			"millrace permission set admin test --configure '.*' --write '.*' --read '.*'", "everything in the virtual host test"),
	}
	l.addFlags(cmd, t)
	cmd.Flags().StringVar(&p.Configure, "configure", "", "streams that it may create and delete")
	cmd.Flags().StringVar(&p.Write, "write", "", "streams that it may publish to")
	cmd.Flags().StringVar(&p.Read, "read", "", "streams that it may consume, and whose offsets it may store")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		vhost := vhostOf(args)
		if !cmd.Flags().Changed("configure") && !cmd.Flags().Changed("write") && !cmd.Flags().Changed("read") {
			return usage("--configure, --write or --read is needed").suggest("millrace permission clear "+args[0]+"    take all of it away",
				"--read ''    let it in, to do nothing")
		}
		if err := l.call(cmd.Context(), "PUT", permissionPath(vhost, args[0]), p, nil); err != nil {
			return err
		}
		set := admin.Permission{User: args[0], VHost: vhost, Configure: p.Configure, Write: p.Write, Read: p.Read}
		return l.done(t, set, "%s in %s: configure %s, write %s, read %s\n", args[0], vhost, pattern(p.Configure), pattern(p.Write), pattern(p.Read))
	}
	return cmd
}

func pattern(text string) string { return or(text, "nothing") }

func permissionList(t *terminal) *cobra.Command {
	var l look
	var vhost, of string
	cmd := &cobra.Command{
		Use: "list", Short: "list who may do what", Args: arguments(0, 0),
		Example: examples("millrace permission list", "", "millrace permission list --of billing -o json", "of one user, for scripts"),
	}
	l.addFlags(cmd, t)
	cmd.Flags().StringVar(&vhost, "vhost", "", "in this virtual host alone")
	cmd.Flags().StringVar(&of, "of", "", "of this user alone")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		query := url.Values{}
		if vhost != "" {
			query.Set("vhost", vhost)
		}
		if of != "" {
			query.Set("user", of)
		}
		var list []admin.Permission
		if err := l.call(cmd.Context(), "GET", "/api/v1/permissions?"+query.Encode(), nil, &list); err != nil {
			return err
		}
		out := listing{columns: []column{left("USER"), left("VHOST"), left("CONFIGURE"), left("WRITE"), left("READ")}}
		for _, p := range list {
			out.add(p, p.User, p.VHost, or(p.Configure, "-"), or(p.Write, "-"), or(p.Read, "-"))
		}
		return out.print(t.out, l.format)
	}
	return cmd
}

func permissionClear(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "clear USER [VHOST]", Short: "take a user's access to a virtual host away", Args: arguments(1, 2),
		Long:    "Takes a user's access to a virtual host (/ unless named) away. Its connections there are closed.",
		Example: examples("millrace permission clear billing", ""),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		vhost := vhostOf(args)
		if err := l.call(cmd.Context(), "DELETE", permissionPath(vhost, args[0]), nil, nil); err != nil {
			return err
		}
		return l.done(t, map[string]string{"cleared": args[0], "vhost": vhost}, "%s has no access to %s any more\n", args[0], vhost)
	}
	return cmd
}

func vhostCommand(t *terminal) *cobra.Command {
	return group("vhost", "add, list and delete virtual hosts: name spaces for streams",
		examples("millrace vhost add test", "", "millrace vhost list", "", "millrace vhost delete test", "asks for the name first"),
		vhostAdd(t), vhostList(t), vhostDelete(t))
}

func vhostAdd(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "add NAME", Short: "make a virtual host", Args: arguments(1, 1),
		Long:    "Makes a virtual host. Who makes it may do everything in it; others need a permission.",
		Example: examples("millrace vhost add test", "", "millrace permission set billing test --read '.*'", "let a user in"),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := l.call(cmd.Context(), "POST", "/api/v1/vhosts", admin.NewVHost{Name: args[0]}, nil); err != nil {
			return err
		}
		return l.done(t, map[string]string{"created": args[0]}, "created virtual host %s\n", args[0])
	}
	return cmd
}

func vhostList(t *terminal) *cobra.Command {
	var l look
	cmd := &cobra.Command{
		Use: "list", Short: "list virtual hosts", Args: arguments(0, 0),
		Example: examples("millrace vhost list", ""),
	}
	l.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		var list []admin.VHost
		if err := l.call(cmd.Context(), "GET", "/api/v1/vhosts", nil, &list); err != nil {
			return err
		}
		out := listing{columns: []column{left("NAME"), right("STREAMS"), right("SUPER STREAMS"), left("USERS"), left("CREATED")}}
		for _, v := range list {
			out.add(v, v.Name, strconv.Itoa(v.Streams), strconv.Itoa(v.SuperStreams), or(strings.Join(v.Users, ","), "-"), v.Created.Format(time.DateTime))
		}
		return out.print(t.out, l.format)
	}
	return cmd
}

func vhostDelete(t *terminal) *cobra.Command {
	var l look
	var yes bool
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "delete a virtual host with all its streams", Args: arguments(1, 1),
		Long:    "Deletes a virtual host with its streams, their messages, and its permissions.\nConnections to it are closed.",
		Example: examples("millrace vhost delete test", "asks for the name first", "millrace vhost delete test --yes", "in scripts"),
	}
	l.addFlags(cmd, t)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var list []admin.VHost
		if err := l.call(cmd.Context(), "GET", "/api/v1/vhosts", nil, &list); err != nil {
			return err
		}
		for _, v := range list {
			if v.Name == args[0] && !yes {
				warning := fmt.Sprintf("This deletes virtual host %s with %s and all their messages.", v.Name, some(v.Streams, "stream"))
				if err := confirm(t, warning, v.Name); err != nil {
					return err
				}
			}
		}
		if err := l.call(cmd.Context(), "DELETE", "/api/v1/vhosts/"+url.PathEscape(args[0]), nil, nil); err != nil {
			return err
		}
		return l.done(t, map[string]string{"deleted": args[0]}, "deleted virtual host %s\n", args[0])
	}
	return cmd
}
