package cli

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/millrace/account"
	"github.com/millrace/millrace/cmd/millrace/bench"
	"github.com/millrace/millrace/cmd/millrace/node"
)

// trackingOptions are what `bench tracking` was asked for.
type trackingOptions struct {
	access     streamAccess
	load       bench.TrackingLoad
	name       string
	format     string
	dataDir    string
	keep       bool
	serverPID  int
	cpuProfile string
}

func benchTracking(t *terminal) *cobra.Command {
	var o trackingOptions
	cmd := &cobra.Command{
		Use: "tracking [NAME]", Short: "store offsets beside a publisher: how fast, and at whose cost", Args: arguments(0, 1),
		Long: `Fills a stream, then has references store offsets over a few connections while
a publisher goes on, and reads the stream back. Each round measures the publisher
alone first, so that the ratios are those of one run. A store counts when a query
behind it was answered with its value.

With --data-dir, the broker's folder on this machine, the stream's bytes are told
by kind: in Millrace's format or in the one of RabbitMQ streams, whichever the
files have. The stream is called NAME (bench-… by default); it is deleted behind
the run, unless --keep is given or it was there before.`,
		Example: examples(
			"millrace bench tracking", "1,000 references, 50,000 stores/s, a publisher at full speed",
			"millrace bench tracking --server-pid $(pgrep -x millrace)", "with the broker's CPU time for each message",
			"millrace bench tracking --producers 0 --fill 10000 --max-length-bytes 5000000 --segment-bytes 500000 --references 20 --store-rate 2000 --time 60s",
			"a quiet stream: are its messages still there at the end?",
			"millrace bench tracking --stream other:5552 --data-dir /var/lib/other -o json", "another broker, with its disk, for scripts",
			"millrace bench tracking --references 0", "the same without stores"),
	}
	o.access.addFlags(cmd.Flags(), t)
	addFormat(cmd, &o.format)
	f, l := cmd.Flags(), &o.load
	f.IntVar(&l.References, "references", 1000, "references that store; 0 = none, for comparison")
	f.IntVar(&l.Connections, "connections", 8, "connections that they are spread over")
	f.IntVar(&l.StoreRate, "store-rate", 50_000, "stores a second in all; 0 = as fast as possible")
	f.IntVar(&l.QueryEvery, "query-every", 1000, "stores of a connection for each query")
	f.IntVar(&l.Rounds, "rounds", 3, "into how many parts the time is cut, each behind as long a part without stores; 0 = no comparison")
	f.Uint64Var(&l.Fill, "fill", 0, "messages that are published before")
	f.DurationVar(&l.Publish.Time, "time", 10*time.Second, "how long offsets are stored in all")
	f.IntVar(&l.Publish.Producers, "producers", 1, "producers, each with a connection of its own; 0 = nobody publishes")
	f.IntVar(&l.Publish.Rate, "rate", 0, "messages a second of all producers; 0 = as fast as possible")
	f.IntVar(&l.Publish.Size, "size", 100, "bytes of a message")
	f.IntVar(&l.Publish.Frame, "frame", 100, "messages in a publish frame")
	f.IntVar(&l.Publish.Window, "window", 10_000, "messages of a producer that may be unconfirmed")
	f.Int64Var(&l.MaxLengthBytes, "max-length-bytes", 0, "the stream's limit; 0 = none")
	f.Int64Var(&l.SegmentBytes, "segment-bytes", 0, "the stream's segment size; 0 = the broker's default")
	f.StringVar(&o.dataDir, "data-dir", "", "the broker's folder on this machine, to account for the stream's bytes")
	f.BoolVar(&o.keep, "keep", false, "do not delete the stream")
	f.IntVar(&o.serverPID, "server-pid", 0, "process id of the broker on this machine, to measure its CPU time")
	f.StringVar(&o.cpuProfile, "cpuprofile", "", "write a CPU profile of the benchmark itself to this file")
	l.Publish.Streams = 1
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.name = fmt.Sprintf("bench-%08x", rand.Uint32())
		if len(args) == 1 {
			o.name = args[0]
		}
		if err := o.check(); err != nil {
			return err
		}
		return o.run(cmd.Context(), t)
	}
	return cmd
}

func (o *trackingOptions) check() error {
	l, p := &o.load, &o.load.Publish
	switch {
	case l.References < 0 || l.StoreRate < 0 || l.Rounds < 0 || p.Producers < 0 || p.Rate < 0 || l.MaxLengthBytes < 0 || l.SegmentBytes < 0:
		return usage("no number may be below 0")
	case l.Connections < 1 || l.QueryEvery < 1:
		return usage("--connections and --query-every are at least 1")
	case p.Frame < 1 || p.Window < p.Frame || p.Size < 8:
		return usage("--frame is at least 1, --window at least a frame, --size at least 8")
	case p.Time <= 0:
		return usage("--time must be above 0")
	case l.References == 0 && p.Producers == 0 && l.Fill == 0:
		return usage("without --references, --producers and --fill there is nothing to do")
	}
	return nil
}

func (o *trackingOptions) run(ctx context.Context, t *terminal) error {
	cfg, err := o.access.config("millrace bench")
	if err != nil {
		return err
	}
	isNew, err := o.make(ctx, cfg)
	if err != nil {
		return streamProblem(err, o.access.addr, o.name)
	}
	if isNew && !o.keep {
		defer deleteStreams(t, cfg, []string{o.name})
	}
	result, err := o.measure(ctx, t, cfg)
	if err != nil {
		return streamProblem(err, o.access.addr, o.name)
	}
	if o.dataDir != "" {
		a, err := account.Of(o.dataDir, node.LogName(o.access.vhost, o.name), o.name)
		if err != nil {
			return fail(exitFailed, "%w", err).suggest("--data-dir FOLDER   the running broker's own, on this machine")
		}
		result.Disk = &a
	}
	if err := printTracking(t.out, o.format, &result); err != nil {
		return err
	}
	if result.Refused+result.Wrong+result.Forgotten > 0 {
		return fail(exitDegraded, "%d messages were refused, %d queries did not answer the connection's own last store, %d references have lost theirs",
			result.Refused, result.Wrong, result.Forgotten)
	}
	return nil
}

func (o *trackingOptions) make(ctx context.Context, cfg client.Config) (isNew bool, err error) {
	conn, err := client.Dial(ctx, cfg)
	if err != nil {
		return false, err
	}
	defer conn.Close()
	arguments := map[string]string{}
	for key, n := range map[string]int64{"max-length-bytes": o.load.MaxLengthBytes, "stream-max-segment-size-bytes": o.load.SegmentBytes} {
		if n > 0 {
			arguments[key] = strconv.FormatInt(n, 10)
		}
	}
	return makeStream(ctx, conn, o.name, arguments)
}

// measure runs the load itself, with profile and progress.
func (o *trackingOptions) measure(ctx context.Context, t *terminal, cfg client.Config) (result bench.TrackingResult, err error) {
	runner := &bench.Runner{Config: cfg, Streams: []string{o.name}}
	if runner.Server, err = bench.Watch(o.serverPID); err != nil {
		return result, err
	}
	stop, err := profile(o.cpuProfile)
	if err != nil {
		return result, err
	}
	defer stop()
	begin := time.Now()
	p := showProgress(t, func() string {
		return fmt.Sprintf("%3.0f s  %s confirmed", time.Since(begin).Seconds(), count(runner.Confirmed.Load()))
	})
	defer p.end()
	return runner.Tracking(ctx, o.load)
}

// printTracking shows a result as tables, or as JSON.
func printTracking(w io.Writer, format string, r *bench.TrackingResult) error {
	if format == "json" || format == "ndjson" {
		return printOne(w, format, r, nil)
	}
	out := listing{columns: []column{left("KIND"), right("REFERENCES"), right("STORES"), right("STORES/S").named("stores_per_second"),
		right("QUERY P50").named("query_p50_ms"), right("P99").named("query_p99_ms"), right("MSG/S").named("messages_per_second"),
		right("WITHOUT").named("messages_per_second_without"), right("RATIO").named("throughput_ratio"),
		right("CPU µS/MSG").named("cpu_microseconds_per_message"), right("WITHOUT").named("cpu_microseconds_per_message_without"),
		right("RATIO").named("cpu_ratio"), right("READABLE"), right("PUBLISHED")}}
	rate, cpu := []cell{word(nothing), word(nothing)}, []cell{word(nothing), word(nothing)}
	for i, p := range []*bench.Publish{r.With, r.Without} {
		if p != nil {
			rate[i], cpu[i] = perSecond(p.PerSecond), measured(p.ServerCPU, 3, "")
		}
	}
	out.add(r, r.Kind, counted(uint64(r.Load.References)), counted(r.Stores), perSecond(r.StoresPerSecond),
		latency(r.Query.P50), latency(r.Query.P99), rate[0], rate[1], ratio(r.ThroughputRatio), cpu[0], cpu[1], ratio(r.CPURatio),
		counted(r.Readable), counted(r.Published))
	if err := out.print(w, format); err != nil || format != "table" || r.Disk == nil {
		return err
	}
	return printAccount(w, format, r.Disk)
}

func printAccount(w io.Writer, format string, a *account.Account) error {
	out := listing{columns: []column{left("BYTES"), right("OF " + a.Format), right("SHARE"), right("CHUNKS")}}
	for _, row := range []struct {
		kind   string
		bytes  int64
		chunks uint64
	}{
		{"user", a.UserBytes, a.UserChunks}, {"filter", a.FilterBytes, 0}, {"trailer", a.TrailerBytes, 0},
		{"delta", a.DeltaBytes, a.DeltaChunks}, {"snapshot", a.SnapshotBytes, a.SnapshotChunks},
		{"index", a.IndexBytes, 0}, {"other", a.OtherBytes, 0}, {"all", a.DiskBytes, 0},
	} {
		chunks := word(nothing)
		if row.chunks > 0 {
			chunks = counted(row.chunks)
		}
		out.add(row, row.kind, counted(uint64(max(row.bytes, 0))), fmt.Sprintf("%.1f %%", 100*float64(row.bytes)/float64(max(a.DiskBytes, 1))), chunks)
	}
	return out.print(w, format)
}

func ratio(v float64) cell { return measured(v, 2, "") }

// latency is in milliseconds; 0 is none.
func latency(ms float64) cell { return measured(ms, 2, " ms") }
