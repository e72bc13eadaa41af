package cli

import (
	"fmt"
	"io"
	"net/url"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"github.com/millrace/millrace/admin"
)

func streamRetention(t *terminal) *cobra.Command {
	var q query
	var set []string
	var run, dry bool
	cmd := &cobra.Command{
		Use: "retention NAME", Short: "show, change, try or run a stream's limits", Args: arguments(1, 1),
		Long: `Shows what a stream's limits make of it. Messages go in whole units, oldest
first: a unit is what was written between two ends of segments by size or age.
The newest unit with messages always stays, so a message may be there that is
older than max-age, or more bytes than max-bytes. Limits are looked at when a
segment ends, when they are changed, every 10 s and when the disk gets low.`,
		Example: examples(
			"millrace stream retention orders", "limits, units, and what goes next",
			"millrace stream retention orders --set max-bytes=20GB --set max-age=7d", "change them; at work at once",
			"millrace stream retention orders --set max-age=none", "lift one",
			"millrace stream retention orders --set max-bytes=1GB --dry-run", "what would go, changing nothing",
			"millrace stream retention orders --run", "look now"),
	}
	q.addFlags(cmd, t)
	cmd.Flags().StringArrayVar(&set, "set", nil, "max-bytes=SIZE or max-age=AGE; none lifts it (repeatable)")
	cmd.Flags().BoolVar(&run, "run", false, "look now, and give up what may go")
	cmd.Flags().BoolVar(&dry, "dry-run", false, "only tell what would go, with --set under those limits")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		limits, err := parseLimits(set)
		switch {
		case err != nil:
			return err
		case run && dry:
			return usage("--run and --dry-run exclude each other").suggest("--dry-run   alone tells what a run would take")
		case run && len(set) > 0:
			return usage("--set needs no --run").because("limits are at work as soon as they are set").suggest("--set … --dry-run   to see first what would go")
		}
		path := streamPath(q.vhost, args[0]) + "/retention"
		var r admin.Retention
		switch {
		case run:
			err = q.call(cmd.Context(), "POST", path+"/run", nil, &r)
		case len(set) > 0 && !dry:
			err = q.call(cmd.Context(), "PUT", path, limits, &r)
		default:
			err = q.call(cmd.Context(), "GET", path+limitQuery(limits), nil, &r)
		}
		if err != nil {
			return err
		}
		return showRetention(t.out, q.format, &r, retentionMode{run: run, set: len(set) > 0 && !dry, dry: dry})
	}
	return cmd
}

// parseLimits turns what --set was given into the API's terms.
func parseLimits(set []string) (map[string]string, error) {
	limits := map[string]string{}
	for _, text := range set {
		name, value, ok := strings.Cut(text, "=")
		var key string
		switch {
		case !ok:
			return nil, usage("--set %s is no NAME=VALUE", text).suggest("--set max-bytes=20GB", "--set max-age=7d")
		case name == "max-bytes":
			key = "max-length-bytes"
		case name == "max-age":
			key = "max-age"
		case name == "segment-bytes" || name == "replicas" || name == "leader-locator" || name == "filter-size":
			return nil, usage("%s is fixed when a stream is created", name).suggest("--set max-bytes=20GB", "--set max-age=7d")
		default:
			return nil, usage("%q is no limit", name).suggest("--set max-bytes=20GB", "--set max-age=7d")
		}
		if _, twice := limits[key]; twice {
			return nil, usage("%s is set twice", name)
		}
		switch {
		case value == "none":
			value = ""
		case value == "":
			return nil, usage("--set %s has no value", text).suggest("--set " + name + "=none   to lift it")
		case key == "max-length-bytes":
			n, err := humanize.ParseBytes(value)
			if err != nil || n == 0 {
				return nil, usage("%s is no size", value).suggest("--set max-bytes=20GB", "--set max-bytes=none   to lift it")
			}
			value = strconv.FormatUint(n, 10)
		default:
			var err error
			if value, err = protocolAge(value); err != nil {
				return nil, err
			}
		}
		limits[key] = value
	}
	return limits, nil
}

func limitQuery(limits map[string]string) string {
	if len(limits) == 0 {
		return ""
	}
	values := url.Values{}
	for key, value := range limits {
		values.Set(key, value)
	}
	return "?" + values.Encode()
}

// retentionMode says what was asked for.
type retentionMode struct{ run, set, dry bool }

func showRetention(w io.Writer, format string, r *admin.Retention, mode retentionMode) error {
	units := listing{columns: []column{right("FIRST").named("first_offset"), right("NEXT").named("next_offset"), right("MESSAGES"),
		right("USER").named("user_bytes"), right("DISK").named("disk_bytes"), right("SEGMENTS"),
		left("LAST MESSAGE"), left("FATE")}}
	for i := range r.Units {
		u := &r.Units[i]
		units.add(u, counted(u.FirstOffset), counted(u.NextOffset), counted(u.Messages), sized(u.UserBytes), sized(u.DiskBytes), strconv.Itoa(u.Segments),
			momentOf(u.LastTime), fate(u, mode))
	}
	switch format {
	case "table":
	case "json", "ndjson":
		return printOne(w, format, r, nil)
	default:
		return units.print(w, format)
	}
	if _, err := fmt.Fprintf(w, "Limits      %s\n", limitsText(r.MaxBytes, r.MaxAgeMS)); err != nil {
		return err
	}
	if r.Unknown != "" {
		_, err := fmt.Fprintf(w, "Units       unknown: %s\n", r.Unknown)
		return err
	}
	if !mode.run && !mode.dry {
		fmt.Fprintf(w, "Next look   %s, or when a segment ends\n", r.NextCheck.UTC().Format("2006-01-02 15:04:05 MST"))
	}
	if !r.Leads {
		fmt.Fprintf(w, "Leader      another node; this one goes where its leader is\n")
	}
	if r.ClockDoubted {
		fmt.Fprintf(w, "Clock       it has jumped; until that is confirmed, or has lasted ten minutes, it counts as %s\n", r.Now.UTC().Format("2006-01-02 15:04:05 MST"))
	}
	if err := units.print(w, format); err != nil {
		return err
	}
	_, err := fmt.Fprintln(w, outcome(r, mode))
	return err
}

func limitsText(bytes, ageMS int64) string {
	var limits []string
	if bytes > 0 {
		limits = append(limits, "max-bytes "+size(uint64(bytes)))
	}
	if ageMS > 0 {
		limits = append(limits, "max-age "+age(time.Duration(ageMS)*time.Millisecond))
	}
	if len(limits) == 0 {
		return "none: nothing is ever deleted"
	}
	sort.Strings(limits)
	return strings.Join(limits, ", ")
}

// age is a duration as people write it in --max-age.
func age(d time.Duration) string {
	for _, unit := range []struct {
		name string
		span time.Duration
	}{{"d", 24 * time.Hour}, {"h", time.Hour}, {"m", time.Minute}, {"s", time.Second}} {
		if d >= unit.span && d%unit.span == 0 {
			return strconv.FormatInt(int64(d/unit.span), 10) + unit.name
		}
	}
	return d.String()
}

func momentOf(t *time.Time) cell {
	if t == nil {
		return word(nothing)
	}
	return dated(t.UnixMilli())
}

// fate says what becomes of a unit, and why.
func fate(u *admin.Unit, mode retentionMode) string {
	why := map[string]string{"size": "over max-bytes", "age": "over max-age"}[u.Verdict]
	switch {
	case u.Goes && mode.run:
		return "gone: " + why
	case u.Goes && mode.dry:
		return "would go: " + why
	case u.Goes:
		return "goes: " + why
	case u.HeldBy != "":
		return why + ", held: " + u.HeldBy
	case u.Verdict == "newest":
		return "stays: the newest with messages always does"
	}
	return "stays"
}

func outcome(r *admin.Retention, mode retentionMode) string {
	what := fmt.Sprintf("%s in %s, %s of user data, %s of disk", some(r.Goes.Messages, "message"), some(r.Goes.Units, "unit"), size(r.Goes.UserBytes), size(r.Goes.DiskBytes))
	switch {
	case mode.run && r.Goes.Units == 0:
		return fmt.Sprintf("nothing was to go; the first offset is %s", count(r.FirstOffset))
	case mode.run:
		return fmt.Sprintf("gone: %s; the first offset is %s", what, count(r.FirstOffset))
	case r.Goes.Units == 0:
		return "nothing is to go now"
	case mode.dry:
		return "would go: " + what
	}
	return "goes: " + what
}
