package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/url"
	"sort"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
)

func streamCommand(t *terminal) *cobra.Command {
	return group("stream", "create, list, describe and delete streams",
		examples(
			"millrace stream create orders --max-bytes 20GB --max-age 7d", "keep at most 20 GB and 7 days",
			"millrace stream list", "all streams",
			"millrace stream describe orders", "one stream, with its bytes by kind",
			"millrace stream retention orders --set max-age=7d", "change what is kept",
			"millrace stream delete orders", "asks for the name first"),
		streamCreate(t), streamList(t), streamDescribe(t), streamRetention(t), streamDelete(t))
}

// query is what all commands that look at streams share.
type query struct {
	api
	vhost, format string
}

// atNode is a query that may be for one replica.
type atNode struct {
	query
	node string
}

func (q *atNode) addFlags(cmd *cobra.Command, t *terminal, standard string) {
	q.query.addFlags(cmd, t)
	cmd.Flags().StringVar(&q.node, "node", "", "the replica on this node; without it "+standard)
}

// named adds the node to a path of the API.
func (q *atNode) named(path string) string {
	if q.node == "" {
		return path
	}
	return path + "?node=" + url.QueryEscape(q.node)
}

func (q *query) addFlags(cmd *cobra.Command, t *terminal) {
	q.api.addFlags(cmd.Flags(), t)
	cmd.Flags().StringVar(&q.vhost, "vhost", "/", "virtual host")
	addFormat(cmd, &q.format)
}

// anyVHost has the help tell that a command looks at all virtual hosts unless
// it is given one.
func anyVHost(cmd *cobra.Command) {
	flag := cmd.Flags().Lookup("vhost")
	flag.Usage, flag.DefValue = "only this virtual host", ""
}

// addFormat declares -o and checks its value before the command runs.
func addFormat(cmd *cobra.Command, format *string) {
	cmd.Flags().StringVarP(format, "output", "o", "table", strings.Join(formats, ", "))
	cmd.PreRunE = func(*cobra.Command, []string) error { return checkFormat(*format) }
}

func streamCreate(t *terminal) *cobra.Command {
	var q query
	var maxBytes, segmentBytes, maxAge, locator string
	var replicas, filterBytes int
	cmd := &cobra.Command{
		Use: "create NAME", Short: "create a stream", Args: arguments(1, 1),
		Example: examples(
			"millrace stream create orders", "no limit",
			"millrace stream create orders --max-bytes 20GB --max-age 7d", "both limits at work"),
	}
	q.addFlags(cmd, t)
	cmd.Flags().StringVar(&maxBytes, "max-bytes", "", "user bytes to keep, such as 20GB; oldest segments go first")
	cmd.Flags().StringVar(&maxAge, "max-age", "", "how long to keep messages, such as 7d, 2w or 12h")
	cmd.Flags().StringVar(&segmentBytes, "segment-bytes", "", "user bytes in one file, such as 500MB")
	cmd.Flags().StringVar(&locator, "leader-locator", "", "client-local or balanced")
	cmd.Flags().IntVar(&replicas, "replicas", 0, "copies; 0 = the cluster's choice")
	cmd.Flags().IntVar(&filterBytes, "filter-size", 0, "bytes of a chunk's filter, 16 to 255; 0 = the default")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		arguments := map[string]string{}
		for flag, key := range map[string]string{"max-bytes": "max-length-bytes", "segment-bytes": "stream-max-segment-size-bytes"} {
			if text := cmd.Flags().Lookup(flag).Value.String(); text != "" {
				n, err := humanize.ParseBytes(text)
				if err != nil {
					return usage("--%s %s is no size", flag, text).suggest("--" + flag + " 500MB")
				}
				arguments[key] = strconv.FormatUint(n, 10)
			}
		}
		if maxAge != "" {
			age, err := protocolAge(maxAge)
			if err != nil {
				return err
			}
			arguments["max-age"] = age
		}
		if locator != "" {
			arguments["queue-leader-locator"] = locator
		}
		if replicas != 0 {
			arguments["initial-cluster-size"] = strconv.Itoa(replicas)
		}
		if filterBytes != 0 {
			arguments["stream-filter-size-bytes"] = strconv.Itoa(filterBytes)
		}
		var s admin.Stream
		body := admin.CreateStream{VHost: q.vhost, Name: args[0], Arguments: arguments}
		if err := q.call(cmd.Context(), "POST", "/api/v1/streams", body, &s); err != nil {
			return err
		}
		return printOne(t.out, q.format, s, func(w io.Writer) error {
			fewer := ""
			if n := len(s.Replicas); n > 0 && n < replicas {
				fewer = fmt.Sprintf(" with %s, not %d: no further node can take one now", some(n, "replica"), replicas)
			}
			_, err := fmt.Fprintf(w, "created %s%s\n", s.Name, fewer)
			return err
		})
	}
	return cmd
}

func streamList(t *terminal) *cobra.Command {
	var q query
	cmd := &cobra.Command{
		Use: "list", Short: "list streams", Args: arguments(0, 0),
		Long: `Lists streams with the figures of their leaders' replicas. What nobody could be
asked for, since nodes are down, is shown as "?".`,
		Example: examples("millrace stream list", "all virtual hosts", "millrace stream list -o json | jq '.[].name'", "for scripts"),
	}
	q.addFlags(cmd, t)
	anyVHost(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		path := "/api/v1/streams"
		if cmd.Flags().Changed("vhost") {
			path += "?vhost=" + url.QueryEscape(q.vhost)
		}
		var list []admin.Stream
		if err := q.call(cmd.Context(), "GET", path, nil, &list); err != nil {
			return err
		}
		out := listing{columns: []column{left("NAME"), left("VHOST"), right("MESSAGES"), right("FIRST").named("first_offset"), right("NEXT").named("next_offset"),
			right("USER").named("user_bytes"), right("TRACKING").named("tracking_bytes"), right("SEGMENTS"), left("LEADER"),
			more(right("OF USER").named("of_user_ratio")), more(right("OF BOUND").named("of_bound_ratio")),
			more(right("OFFSETS").named("stored_offsets")), more(right("PUBLISHERS")), more(right("WINDOW").named("window_ms")),
			more(right("DROPPABLE").named("droppable_bytes")), more(right("DISK").named("disk_bytes"))}}
		for _, s := range list {
			if s.FiguresOf == "" {
				out.add(s, unknownFigures(&s)...)
				continue
			}
			out.add(s, s.Name, s.VHost, counted(s.Messages), counted(s.FirstOffset), counted(s.NextOffset),
				sized(s.Bytes.User), sized(s.Bytes.Tracking()), strconv.Itoa(s.Segments), ledBy(&s),
				shared(s.TrackingBytes, s.Bytes.User), shared(s.TrackingBytes, s.TrackingBound),
				strconv.Itoa(s.StoredOffsets), strconv.Itoa(s.Sequences), lasted(s.WindowMS, milliseconds(s.WindowMS)),
				sized(s.Compaction.Droppable), sized(s.Bytes.Disk))
		}
		return out.print(t.out, q.format)
	}
	return cmd
}

// unknownFigures is a row of a stream whose replicas nobody could ask.
func unknownFigures(s *admin.Stream) []any {
	row := []any{s.Name, s.VHost, unknownCell, unknownCell, unknownCell, unknownCell, unknownCell, unknownCell, ledBy(s)}
	for len(row) < 16 {
		row = append(row, unknownCell)
	}
	return row
}

func ledBy(s *admin.Stream) cell { return cell{or(s.Leader, "none"), s.Leader} }

func streamDescribe(t *terminal) *cobra.Command {
	var q atNode
	cmd := &cobra.Command{
		Use: "describe NAME", Short: "show one stream", Args: arguments(1, 1),
		Example: examples("millrace stream describe orders", "", "millrace stream describe orders --node n2", "as n2's replica has it", "millrace stream describe orders -o json", "for scripts"),
	}
	q.addFlags(cmd, t, "the leader's")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var s admin.Stream
		if err := q.call(cmd.Context(), "GET", q.named(streamPath(q.vhost, args[0])), nil, &s); err != nil {
			return err
		}
		return printOne(t.out, q.format, s, func(w io.Writer) error {
			if err := describe(w, s); err != nil || q.format != "wide" {
				return err
			}
			return q.describeSegments(cmd.Context(), w, args[0])
		})
	}
	return cmd
}

// describe shows a stream to a person.
func describe(w io.Writer, s admin.Stream) error {
	by := ""
	if s.Creator != "" {
		by = " by " + s.Creator
	}
	b, c := s.Bytes, s.Compaction
	if s.FiguresOf == "" {
		_, err := fmt.Fprintf(w, `Name         %s   vhost %s   created %s%s
Arguments    %s
Figures      unknown: %s
Replicas     %s   leader %s   epoch %d
`, s.Name, s.VHost, s.Created.Format("2006-01-02 15:04:05 MST"), by, argumentsText(s.Arguments), s.Unknown,
			strings.Join(s.Replicas, " "), or(s.Leader, "none at present"), s.Epoch)
		return err
	}
	_, err := fmt.Fprintf(w, `Name         %s   vhost %s   created %s%s
Arguments    %s
Messages     %s   offsets %s up to %s
Size         %s in %s   user %s   trailers %s   deltas %s   snapshots %s   filters %s   indexes %s
Tracking     %s of stored offsets, each leader's barrier included: %s of user bytes, %s of the %s that they may take   %s of publishers' sequences
References   %s of %s stored offsets, %d evicted, %d not written yet   %s of %s publishers, %d evicted
Window       %s: so far back a stored offset may fall if all power is lost
Compaction   could gain %s   has gained %s in %s and %s, %d failed, since the log was opened
Replicas     %s   leader %s   epoch %d   these are the figures of %s
`,
		s.Name, s.VHost, s.Created.Format("2006-01-02 15:04:05 MST"), by, argumentsText(s.Arguments),
		count(s.Messages), count(s.FirstOffset), count(s.NextOffset),
		size(b.Disk), some(s.Segments, "segment"), size(b.User), size(b.Trailer), size(b.Delta), size(b.Snapshot), size(b.Filter), size(b.Index),
		size(s.TrackingBytes), percent(s.TrackingBytes, b.User), percent(s.TrackingBytes, s.TrackingBound), size(s.TrackingBound),
		size(s.SequenceBytes),
		count(uint64(s.StoredOffsets)), count(uint64(s.StoredOffsetsMax)), s.StoredOffsetsEvicted, s.StoredOffsetsPending,
		count(uint64(s.Sequences)), count(uint64(s.SequencesMax)), s.SequencesEvicted,
		milliseconds(s.WindowMS), size(c.Droppable), size(c.Dropped), some(c.Drops, "drop"), some(c.Merges, "merge"), c.Failures,
		strings.Join(s.Replicas, " "), or(s.Leader, "none at present"), s.Epoch, s.FiguresOf)
	return err
}

// describeSegments adds what segment list shows.
func (q *atNode) describeSegments(ctx context.Context, w io.Writer, stream string) error {
	var list []admin.Segment
	if err := q.call(ctx, "GET", q.named(streamPath(q.vhost, stream)+"/segments"), nil, &list); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(w); err != nil {
		return err
	}
	out := segmentListing(list)
	return out.print(w, "wide")
}

func argumentsText(arguments map[string]string) string {
	if len(arguments) == 0 {
		return "none: nothing is ever deleted"
	}
	var pairs []string
	for key, value := range arguments {
		pairs = append(pairs, key+"="+value)
	}
	sort.Strings(pairs)
	return strings.Join(pairs, " ")
}

func streamDelete(t *terminal) *cobra.Command {
	var q query
	var yes bool
	cmd := &cobra.Command{
		Use: "delete NAME", Short: "delete a stream and all its messages", Args: arguments(1, 1),
		Example: examples("millrace stream delete orders", "asks for the name first", "millrace stream delete orders --yes", "in scripts"),
	}
	q.addFlags(cmd, t)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var s admin.Stream
		path := streamPath(q.vhost, args[0])
		if err := q.call(cmd.Context(), "GET", path, nil, &s); err != nil {
			return err
		}
		if !yes {
			warning := fmt.Sprintf("This deletes %s with its %s (%s).", s.Name, some(s.Messages, "message"), size(s.Bytes.User))
			if err := confirm(t, warning, s.Name); err != nil {
				return err
			}
		}
		if err := q.call(cmd.Context(), "DELETE", path, nil, nil); err != nil {
			return err
		}
		return printOne(t.out, q.format, map[string]string{"deleted": s.Name}, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "deleted %s\n", s.Name)
			return err
		})
	}
	return cmd
}

// confirm has a person type the name of what is going to be lost.
func confirm(t *terminal, warning, name string) error {
	if !t.inTTY {
		return usage("nobody is there to confirm: %s", warning).suggest("--yes   if it is meant")
	}
	fmt.Fprintf(t.err, "%s\nType its name to go on: ", warning)
	line, err := bufio.NewReader(t.in).ReadString('\n')
	if err != nil && line == "" {
		return fail(exitFailed, "read the confirmation: %w", err)
	}
	if strings.TrimRight(line, "\r\n") != name {
		return fail(exitFailed, "not confirmed: nothing was done")
	}
	return nil
}
