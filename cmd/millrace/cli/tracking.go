package cli

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
)

func trackingCommand(t *terminal) *cobra.Command {
	g := group("tracking", "see and change what streams remember of readers and publishers",
		examples(
			"millrace tracking list orders", "how far each reader is",
			"millrace tracking set orders billing first", "have it read everything again",
			"millrace tracking set orders billing @2026-11-30T10:00:00Z", "or all from then on",
			"millrace tracking delete orders billing", "asks for the name first",
			"millrace tracking expire orders --older-than 30d --dry-run", "who has not been seen for a month?"),
		trackingList(t), trackingGet(t), trackingSet(t), trackingDelete(t), trackingExpire(t), trackingCopy(t))
	g.Long = `Sees and changes what streams remember of readers (their stored offsets) and of
publishers (their last publishing ids).

A stored offset is that of the last message that was read: a reader goes on at
the one behind it. first, last, next and @TIME name the message that is to be read
next. Running readers keep their place in memory, and store it over yours: stop
them first.`
	return g
}

// referencePath is the API's path of a reference.
func (q *query) referencePath(stream, reference, kind string) string {
	path := streamPath(q.vhost, stream) + "/tracking/" + url.PathEscape(reference)
	if kind != "" {
		path += "?kind=" + kind
	}
	return path
}

// addKind declares --kind. The node checks its value.
func addKind(cmd *cobra.Command, kind *string, standard, what string) {
	cmd.Flags().StringVar(kind, "kind", standard, what)
}

func trackingList(t *terminal) *cobra.Command {
	var q query
	var kind string
	cmd := &cobra.Command{
		Use: "list STREAM", Short: "list readers and publishers", Args: arguments(1, 1),
		Long: `Lists what a stream remembers of readers and publishers.

LAG is how many messages a reader has not read, BEHIND how old the first of them
is. A pending value is not in the log so far; a stale one has been overtaken by
retention; one that is ahead lies behind the stream's end.`,
		Example: examples(
			"millrace tracking list orders", "",
			"millrace tracking list orders --kind writer", "publishers alone",
			"millrace tracking list orders -o json | jq 'map(select(.lag_messages > 1000))'", "for scripts"),
	}
	q.addFlags(cmd, t)
	addKind(cmd, &kind, "", "offset or writer; both without it")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path := streamPath(q.vhost, args[0]) + "/tracking"
		if kind != "" {
			path += "?kind=" + url.QueryEscape(kind)
		}
		var list []admin.Reference
		if err := q.call(cmd.Context(), "GET", path, nil, &list); err != nil {
			return err
		}
		return printReferences(t.out, q.format, list)
	}
	return cmd
}

func printReferences(w io.Writer, format string, list []admin.Reference) error {
	out := listing{columns: []column{left("REFERENCE"), left("KIND"), right("VALUE"), right("LAG").named("lag_messages"),
		right("BEHIND").named("lag_ms"), right("UPDATED").named("age_ms"), left("STATE"), more(left("LAST UPDATE")), more(right("LSN")), more(right("SESSIONS"))}}
	for _, r := range list {
		lsn, sessions := word(nothing), nothing
		updated := lsn
		if r.Kind == admin.KindOffset {
			updated = ago(*r.AgeMS)
		} else {
			lsn, sessions = counted(r.LSN), strconv.Itoa(r.Sessions)
		}
		out.add(r, r.Reference, r.Kind, counted(r.Value), known(r.Lag, counted), behind(r.LagMS), updated, referenceState(&r), momentOf(r.Updated), lsn, sessions)
	}
	return out.print(w, format)
}

func ago(ms int64) cell { return lasted(ms, period(time.Duration(ms)*time.Millisecond)+" ago") }

// behind is the age of the first message that was not read.
func behind(ms *int64) cell {
	if ms == nil {
		return word(nothing)
	}
	return lasted(*ms, period(time.Duration(*ms)*time.Millisecond))
}

func referenceState(r *admin.Reference) string {
	words := []string{r.State}
	if r.Stale {
		words = append(words, "stale")
	}
	if r.Ahead {
		words = append(words, "ahead")
	}
	if r.Sessions > 0 {
		words = append(words, "connected")
	}
	return strings.Join(words, ", ")
}

func trackingGet(t *terminal) *cobra.Command {
	var q query
	var kind string
	cmd := &cobra.Command{
		Use: "get STREAM REFERENCE", Short: "show one reader or publisher", Args: arguments(2, 2),
		Example: examples("millrace tracking get orders billing", "", "millrace tracking get orders billing -o json | jq .value", "for scripts"),
	}
	q.addFlags(cmd, t)
	addKind(cmd, &kind, admin.KindOffset, "offset or writer")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var r admin.Reference
		if err := q.call(cmd.Context(), "GET", q.referencePath(args[0], args[1], url.QueryEscape(kind)), nil, &r); err != nil {
			return err
		}
		return printOne(t.out, q.format, r, func(w io.Writer) error {
			return printReferences(w, q.format, []admin.Reference{r})
		})
	}
	return cmd
}

// changing is what commands that take something away have in common: they say
// what is lost, have its name typed, and can be asked what they would do.
type changing struct {
	query
	yes, dry bool
}

func (c *changing) addFlags(cmd *cobra.Command, t *terminal) {
	c.query.addFlags(cmd, t)
	cmd.Flags().BoolVar(&c.yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&c.dry, "dry-run", false, "say what would be done, and do nothing")
}

// confirm asks, unless it was said that nobody needs to.
func (c *changing) confirm(warning, name string) error {
	if c.yes {
		return nil
	}
	return confirm(c.t, warning, name)
}

func trackingSet(t *terminal) *cobra.Command {
	var c changing
	cmd := &cobra.Command{
		Use: "set STREAM REFERENCE OFFSET|first|last|next|@TIME", Short: "move a reader", Args: arguments(3, 3),
		Long: `Stores an offset under a reference, and answers once that can't be lost any more.

A number is stored as it is: the message there counts as read. first, last (the
last chunk's first message), next and @TIME name the message that is to be read
next, so the number before it is stored; before offset 0 there is none, and the
message there then counts as read. Where something is stored already, the name of
the reference must be typed, or --yes be given.`,
		Example: examples(
			"millrace tracking set orders billing 12000", "goes on at 12001",
			"millrace tracking set orders billing first", "reads everything again",
			"millrace tracking set orders billing @2026-11-30T10:00:00Z --yes", "in scripts"),
	}
	c.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		body, err := parsePlace(args[2])
		if err != nil {
			return err
		}
		return c.move(cmd.Context(), "PUT", c.referencePath(args[0], args[1], ""), func(dry bool) any {
			body.DryRun = dry
			return body
		})
	}
	return cmd
}

func parsePlace(text string) (admin.SetOffset, error) {
	switch text {
	case "first", "last", "next":
		return admin.SetOffset{At: text}, nil
	}
	if ms, ok := parseMoment(text); ok {
		return admin.SetOffset{At: "time", TimestampMS: ms}, nil
	}
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return admin.SetOffset{}, usage("%s is no place in a stream", text).
			suggest("first, last, next, a number, @2026-11-30T10:00:00Z, @1764496800000 (ms)")
	}
	return admin.SetOffset{Offset: &n}, nil
}

// move asks what a set or copy would do, has it confirmed if something is stored
// over, and does it.
func (c *changing) move(ctx context.Context, method, path string, body func(dry bool) any) error {
	var m admin.MovedOffset
	if err := c.call(ctx, method, path, body(true), &m); err != nil {
		return err
	}
	if !c.dry {
		if m.Before != nil && *m.Before != m.Value {
			warning := fmt.Sprintf("This moves %s from offset %s to %s.", m.Reference, count(*m.Before), count(m.Value))
			if m.Value > *m.Before {
				warning += " It will not read what lies between."
			}
			if err := c.confirm(warning, m.Reference); err != nil {
				return err
			}
		}
		m = admin.MovedOffset{}
		if err := c.call(ctx, method, path, body(false), &m); err != nil {
			return err
		}
	}
	return printOne(c.t.out, c.format, m, func(w io.Writer) error {
		from := "nothing"
		if m.Before != nil {
			from = count(*m.Before)
		}
		_, err := fmt.Fprintf(w, "%s %s from %s to %s\n", did(m.DryRun, "moved", "would move"), m.Reference, from, count(m.Value))
		return err
	})
}

func did(dry bool, done, would string) string {
	if dry {
		return would
	}
	return done
}

func trackingCopy(t *terminal) *cobra.Command {
	var c changing
	cmd := &cobra.Command{
		Use: "copy STREAM FROM TO", Short: "have one reader begin where another is", Args: arguments(3, 3),
		Example: examples("millrace tracking copy orders billing billing-v2", "asks first if billing-v2 has an offset"),
	}
	c.addFlags(cmd, t)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.move(cmd.Context(), "POST", streamPath(c.vhost, args[0])+"/tracking/copy", func(dry bool) any {
			return admin.CopyOffset{From: args[1], To: args[2], Overwrite: true, DryRun: dry}
		})
	}
	return cmd
}

func trackingDelete(t *terminal) *cobra.Command {
	var c changing
	var kind string
	cmd := &cobra.Command{
		Use: "delete STREAM REFERENCE", Short: "forget a reader, or a publisher that is not connected", Args: arguments(2, 2),
		Long: `Forgets the offset stored under a reference: its reader then begins where it likes
to. With --kind writer a publisher's last publishing id is forgotten, so that what
it sends again is stored again; it must not be connected.`,
		Example: examples(
			"millrace tracking delete orders billing", "asks for the name first",
			"millrace tracking delete orders importer --kind writer --yes", "a publisher's, in scripts"),
	}
	c.addFlags(cmd, t)
	addKind(cmd, &kind, admin.KindOffset, "offset or writer")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		path := c.referencePath(args[0], args[1], url.QueryEscape(kind))
		var r admin.Reference
		if err := c.call(cmd.Context(), "GET", path, nil, &r); err != nil {
			return err
		}
		if !c.dry {
			if err := c.confirm(lossOf(&r), r.Reference); err != nil {
				return err
			}
			if err := c.call(cmd.Context(), "DELETE", path, nil, nil); err != nil {
				return err
			}
		}
		return printOne(t.out, c.format, r, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "%s %s\n", did(c.dry, "deleted", "would delete"), r.Reference)
			return err
		})
	}
	return cmd
}

// lossOf says what goes with a reference.
func lossOf(r *admin.Reference) string {
	if r.Kind == admin.KindWriter {
		return fmt.Sprintf("This forgets that the publisher %s has sent up to id %s: what it sends again is stored again.", r.Reference, count(r.Value))
	}
	return fmt.Sprintf("This forgets that %s has read up to offset %s.", r.Reference, count(r.Value))
}

func trackingExpire(t *terminal) *cobra.Command {
	var c changing
	var olderThan string
	cmd := &cobra.Command{
		Use: "expire STREAM --older-than PERIOD", Short: "forget readers that have not been seen for long", Args: arguments(1, 1),
		Example: examples(
			"millrace tracking expire orders --older-than 30d --dry-run", "see who they are",
			"millrace tracking expire orders --older-than 30d", "asks for the stream's name first"),
	}
	c.addFlags(cmd, t)
	cmd.Flags().StringVar(&olderThan, "older-than", "", "how long ago the last store must be, such as 30d or 12h")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		age, ok := parsePeriod(olderThan)
		if !ok {
			return usage("--older-than %q is no period", olderThan).suggest("--older-than 30d", "such as "+periodExample)
		}
		path := streamPath(c.vhost, args[0]) + "/tracking/expire"
		expire := func(dry bool) (list []admin.Reference, err error) {
			err = c.call(cmd.Context(), "POST", path, admin.ExpireOffsets{OlderThanMS: age.Milliseconds(), DryRun: dry}, &list)
			return list, err
		}
		list, err := expire(true)
		if err != nil {
			return err
		}
		if !c.dry && len(list) > 0 {
			warning := fmt.Sprintf("This forgets %s of %s that stored nothing for %s.", some(len(list), "reader"), args[0], olderThan)
			if err := c.confirm(warning, args[0]); err != nil {
				return err
			}
			if list, err = expire(false); err != nil {
				return err
			}
		}
		if c.format == "table" || c.format == "wide" {
			fmt.Fprintf(t.err, "%s %s\n", did(c.dry, "expired", "would expire"), some(len(list), "reference"))
		}
		return printReferences(t.out, c.format, list)
	}
	return cmd
}
