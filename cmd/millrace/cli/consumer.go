package cli

import (
	"cmp"
	"context"
	"errors"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
)

func consumerCommand(t *terminal) *cobra.Command {
	return group("consumer", "see how far consumers are, connected or not",
		examples(
			"millrace consumer list", "who is connected and reads?",
			"millrace consumer lag", "who is furthest behind?",
			"millrace consumer lag --group billing", "one consumer on all of its streams",
			"millrace consumer groups", "who is active, of those that share a name?"),
		consumerList(t), consumerLag(t), consumerGroups(t), consumerActivate(t))
}

// laggard is a reader on one stream.
type laggard struct {
	Stream string `json:"stream"`
	VHost  string `json:"vhost"`
	admin.Reference
}

func consumerLag(t *terminal) *cobra.Command {
	var q query
	var reference, stream string
	var over uint64
	cmd := &cobra.Command{
		Use: "lag", Short: "list readers of all streams, the furthest behind first", Args: arguments(0, 0),
		Long: `Lists every reference that has stored an offset, connected or not, the furthest
behind first. LAG is how many messages it has not read, BEHIND how old the first of
them is. Exits with 8 if a stream has no leader to ask.`,
		Example: examples(
			"millrace consumer lag", "all virtual hosts",
			"millrace consumer lag --group billing", "one reference",
			"millrace consumer lag --lag-over 100000 -o name", "for scripts"),
	}
	q.addFlags(cmd, t)
	anyVHost(cmd)
	cmd.Flags().StringVar(&reference, "group", "", "only this reference")
	cmd.Flags().StringVar(&stream, "stream", "", "only this stream")
	cmd.Flags().Uint64Var(&over, "lag-over", 0, "only those with more messages to read")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		vhost := ""
		if cmd.Flags().Changed("vhost") {
			vhost = q.vhost
		}
		list, unled, err := q.readers(cmd.Context(), vhost, stream)
		if err != nil {
			return err
		}
		list = slices.DeleteFunc(list, func(l laggard) bool {
			return reference != "" && l.Reference.Reference != reference || over > 0 && *l.Lag <= over
		})
		if err := printLaggards(t, q.format, list); err != nil || len(unled) == 0 {
			return err
		}
		return fail(exitDegraded, "there is no leader to ask of %s", strings.Join(unled, ", "))
	}
	return cmd
}

// readers are those of all streams, or of one virtual host or stream.
func (q *query) readers(ctx context.Context, vhost, stream string) (list []laggard, unled []string, err error) {
	path := "/api/v1/streams"
	if vhost != "" {
		path += "?vhost=" + url.QueryEscape(vhost)
	}
	var streams []admin.Stream
	if err := q.call(ctx, "GET", path, nil, &streams); err != nil {
		return nil, nil, err
	}
	if stream != "" {
		streams = slices.DeleteFunc(streams, func(s admin.Stream) bool { return s.Name != stream })
	}
	return q.laggards(ctx, streams)
}

// laggards asks each stream's leader, and tells which streams have none.
func (q *query) laggards(ctx context.Context, streams []admin.Stream) (list []laggard, unled []string, err error) {
	for _, s := range streams {
		var references []admin.Reference
		err := q.call(ctx, "GET", streamPath(s.VHost, s.Name)+"/tracking?kind="+admin.KindOffset, nil, &references)
		var p *problem
		switch {
		case errors.As(err, &p) && p.code == exitUnreachable && ctx.Err() == nil:
			unled = append(unled, s.Name)
			continue
		case errors.As(err, &p) && p.code == exitNotFound:
			continue // deleted meanwhile
		case err != nil:
			return nil, nil, err
		}
		for _, r := range references {
			list = append(list, laggard{s.Name, s.VHost, r})
		}
	}
	slices.SortStableFunc(list, func(a, b laggard) int { return cmp.Compare(*b.Lag, *a.Lag) })
	return list, unled, nil
}

func printLaggards(t *terminal, format string, list []laggard) error {
	out := listing{columns: []column{left("REFERENCE"), left("STREAM"), right("LAG").named("lag_messages"), right("BEHIND").named("lag_ms"),
		right("STORED").named("value"), right("UPDATED").named("age_ms"), left("STATE"), more(left("VHOST"))}}
	for _, l := range list {
		out.add(l, l.Reference.Reference, l.Stream, counted(*l.Lag), behind(l.LagMS), counted(l.Value), ago(*l.AgeMS), referenceState(&l.Reference), l.VHost)
	}
	return out.print(t.out, format)
}
