package cli

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/pprof"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/millrace/bench"
	"github.com/millrace/millrace/wire"
)

func benchCommand(t *terminal) *cobra.Command {
	return group("bench", "measure a broker of the stream protocol, ours or another",
		examples(
			"millrace bench produce", "as fast as it goes, frames of 100, at most 10,000 unconfirmed",
			"millrace bench consume --messages 5000000", "fill a stream, then read it",
			"millrace bench e2e --rate 1000 --time 30s", "from due to consumed, at a fixed rate",
			"millrace bench tracking", "1,000 references that store offsets beside a publisher",
			"millrace bench produce --stream other:5552 -o json", "another broker, for scripts",
			"millrace bench disk --dir .", "what this disk can do at all"),
		benchLoad(t, "produce", "publish and wait for confirms", bench.Load{Producers: 1, Frame: 100}),
		benchLoad(t, "consume", "read a filled stream from the first message on", bench.Load{Consumers: 1, Frame: 100, Messages: 5_000_000}),
		benchLoad(t, "e2e", "publish at a fixed rate and measure until a consumer has it", bench.Load{Producers: 1, Consumers: 1, Rate: 1000, Frame: 1}),
		benchTracking(t), benchDisk(t), benchReport(t))
}

// benchOptions are what the three loads share.
type benchOptions struct {
	access     streamAccess
	kind       string
	load       bench.Load
	format     string
	name       string
	keep       bool
	here       bool
	serverPID  int
	cpuProfile string
}

func benchLoad(t *terminal, kind, short string, defaults bench.Load) *cobra.Command {
	o := benchOptions{kind: kind}
	cmd := &cobra.Command{
		Use: kind + " [NAME]", Short: short, Args: arguments(0, 1),
		Long: "Streams called NAME (bench-… by default), NAME-2 and so on are made for the run and\ndeleted behind it, unless --keep is given or they were there before.",
		Example: examples(
			"millrace bench "+kind, "",
			"millrace bench "+kind+" --size 1024 -o json", "for scripts",
			"millrace bench "+kind+" --server-pid $(pgrep -x millrace)", "with the broker's CPU and memory"),
	}
	o.access.addFlags(cmd.Flags(), t)
	addFormat(cmd, &o.format)
	f := cmd.Flags()
	f.IntVar(&o.load.Streams, "streams", 1, "streams that are used")
	f.IntVar(&o.load.Size, "size", 100, "bytes of a message")
	f.IntVar(&o.load.Frame, "frame", defaults.Frame, "messages in a publish frame")
	f.IntVar(&o.load.Window, "window", 10_000, "messages of a producer that may be unconfirmed")
	f.Uint64Var(&o.load.Messages, "messages", defaults.Messages, "messages in all; 0 = until --time is over")
	f.DurationVar(&o.load.Time, "time", 10*time.Second, "how long, where --messages is 0")
	if kind != "consume" {
		f.IntVar(&o.load.Producers, "producers", defaults.Producers, "producers, each with a connection of its own")
		f.IntVar(&o.load.Rate, "rate", defaults.Rate, "messages a second in all; 0 = as fast as possible")
	}
	if kind != "produce" {
		f.IntVar(&o.load.Consumers, "consumers", defaults.Consumers, "consumers, each with a connection of its own")
		f.BoolVar(&o.here, "here", false, "consumers read from the broker at --stream, whether it leads or not")
	}
	f.BoolVar(&o.keep, "keep", false, "do not delete the streams")
	f.IntVar(&o.serverPID, "server-pid", 0, "process id of the broker on this machine, to measure its CPU and memory")
	f.StringVar(&o.cpuProfile, "cpuprofile", "", "write a CPU profile of the benchmark itself to this file")
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

func (o *benchOptions) check() error {
	l := o.load
	switch {
	case l.Streams < 1 || l.Frame < 1 || l.Window < l.Frame || l.Size < 8:
		return usage("--streams and --frame are at least 1, --window at least a frame, --size at least 8")
	case o.kind != "consume" && (l.Producers < l.Streams || l.Producers%l.Streams != 0):
		return usage("--producers must be a multiple of --streams (%d and %d)", l.Producers, l.Streams)
	case o.kind != "produce" && l.Consumers < l.Streams:
		return usage("--consumers must be at least --streams (%d and %d)", l.Consumers, l.Streams)
	case o.kind == "consume" && l.Messages == 0:
		return usage("--messages says how much to read")
	case o.kind == "e2e" && l.Rate <= 0:
		return usage("--rate must be above 0: the delay at full speed is that of a queue")
	case l.Messages == 0 && l.Time <= 0:
		return usage("--messages or --time must be above 0")
	}
	return nil
}

func (o *benchOptions) run(ctx context.Context, t *terminal) error {
	cfg, err := o.access.config("millrace bench")
	if err != nil {
		return err
	}
	runner := &bench.Runner{Config: cfg, Here: o.here}
	made, err := o.makeStreams(ctx, cfg, runner)
	if err != nil {
		return streamProblem(err, o.access.addr, o.name)
	}
	if !o.keep {
		defer deleteStreams(t, cfg, made)
	}
	if o.kind == "consume" {
		if err := o.fill(ctx, t, runner, made); err != nil {
			return streamProblem(err, o.access.addr, o.name)
		}
	}
	result, err := o.measure(ctx, t, runner)
	if err != nil {
		return streamProblem(err, o.access.addr, o.name)
	}
	if err := printBench(t, o.format, result); err != nil {
		return err
	}
	if result.Refused > 0 || result.OutOfOrder > 0 {
		return fail(exitDegraded, "%d messages were refused, %d chunks came out of order", result.Refused, result.OutOfOrder)
	}
	return nil
}

// measure runs the load itself, with profile and progress.
func (o *benchOptions) measure(ctx context.Context, t *terminal, runner *bench.Runner) (result bench.Result, err error) {
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
		return fmt.Sprintf("%3.0f s  %s sent  %s confirmed  %s consumed", time.Since(begin).Seconds(),
			count(runner.Sent.Load()), count(runner.Confirmed.Load()), count(runner.Consumed.Load()))
	})
	defer p.end()
	switch o.kind {
	case "produce":
		return runner.Produce(ctx, o.load)
	case "consume":
		return runner.Consume(ctx, o.load)
	}
	return runner.EndToEnd(ctx, o.load)
}

// profile writes a CPU profile of this process to the file, if one is named,
// until stop.
func profile(path string) (stop func(), err error) {
	if path == "" {
		return func() {}, nil
	}
	file, err := os.Create(path)
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return func() {
		pprof.StopCPUProfile()
		_ = file.Close() // of no use if it is not whole, and seen then
	}, nil
}

// makeStreams creates the streams that are not there and returns their names.
func (o *benchOptions) makeStreams(ctx context.Context, cfg client.Config, runner *bench.Runner) (made []string, err error) {
	conn, err := client.Dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	for i := range o.load.Streams {
		name := o.name
		if i > 0 {
			name = fmt.Sprintf("%s-%d", o.name, i+1)
		}
		runner.Streams = append(runner.Streams, name)
		isNew, err := makeStream(ctx, conn, name, nil)
		if err != nil {
			return made, err
		}
		if isNew {
			made = append(made, name)
		}
	}
	return made, nil
}

// makeStream creates a stream unless it is there, with whatever arguments.
func makeStream(ctx context.Context, conn *client.Conn, name string, arguments map[string]string) (isNew bool, err error) {
	switch err := conn.Create(ctx, name, arguments); client.Code(err) {
	case wire.CodeOK:
		return true, nil
	case wire.CodeStreamAlreadyExists, wire.CodePreconditionFailed: // with the same or other arguments
		return false, nil
	default:
		return false, err
	}
}

// deleteStreams takes the benchmark's own streams away, also after an
// interrupt.
func deleteStreams(t *terminal, cfg client.Config, made []string) {
	ctx, cancel := context.WithTimeout(context.Background(), cfg.Timeout)
	defer cancel()
	conn, err := client.Dial(ctx, cfg)
	if err != nil {
		fmt.Fprintf(t.err, "the streams of the benchmark are left behind: %v\n", err)
		return
	}
	defer conn.Close()
	for _, name := range made {
		if err := conn.Delete(ctx, name); err != nil {
			fmt.Fprintf(t.err, "stream %s is left behind: %v\n", name, err)
		}
	}
}

// fill publishes what a consume run reads into the streams that it made.
func (o *benchOptions) fill(ctx context.Context, t *terminal, runner *bench.Runner, made []string) error {
	if len(made) == 0 {
		return nil // the streams were there, with what is to be read
	}
	filler := &bench.Runner{Config: runner.Config, Streams: made}
	load := o.load
	load.Producers, load.Messages = len(made), o.load.Messages*uint64(len(made))
	p := showProgress(t, func() string { return fmt.Sprintf("filling: %s messages", count(filler.Confirmed.Load())) })
	defer p.end()
	result, err := filler.Produce(ctx, load)
	if err == nil && result.Refused > 0 {
		err = errors.New("messages were refused while the stream was filled")
	}
	return err
}

// printBench shows a result as a table of one row, or as JSON.
func printBench(t *terminal, format string, r bench.Result) error {
	if format == "json" || format == "ndjson" {
		return printOne(t.out, format, r, nil)
	}
	out := listing{columns: append([]column{left("KIND")}, benchColumns...)}
	out.add(r, append([]any{r.Kind}, benchCells(r)...)...)
	return out.print(t.out, format)
}

var benchColumns = []column{right("SIZE").named("size_bytes"), right("MESSAGES"), right("SECONDS"), right("MSG/S").named("messages_per_second"),
	right("MB/S").named("megabytes_per_second"), right("CONFIRM P50").named("confirm_p50_ms"), right("P99").named("confirm_p99_ms"),
	right("MAX").named("confirm_max_ms"), right("E2E P50").named("e2e_p50_ms"), right("P99").named("e2e_p99_ms"), right("MAX").named("e2e_max_ms"),
	right("CPU µS/MSG").named("cpu_microseconds_per_message"), right("PEAK RSS").named("peak_rss_bytes")}

func benchCells(r bench.Result) []any {
	rss := word(nothing)
	if r.ServerRSS > 0 {
		rss = sized(r.ServerRSS)
	}
	return []any{counted(uint64(r.Load.Size)), counted(r.Messages), measured(r.Seconds, 2, ""), perSecond(r.PerSecond),
		measured(r.MBPerSec, 1, ""), latency(r.Confirm.P50), latency(r.Confirm.P99), latency(r.Confirm.Max),
		latency(r.EndToEnd.P50), latency(r.EndToEnd.P99), latency(r.EndToEnd.Max), measured(r.ServerCPU, 2, ""), rss}
}

func benchReport(t *terminal) *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "report FOLDER", Short: "one table of a folder's results, with ratios", Args: arguments(1, 1),
		Example: examples("make bench", "fills build/bench and ends with this", "millrace bench report build/bench -o json", "for scripts"),
	}
	addFormat(cmd, &format)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		lines, err := bench.Report(args[0])
		if errors.Is(err, os.ErrNotExist) {
			return fail(exitNotFound, "%s holds no results: %w", args[0], err).suggest("make bench    fills build/bench")
		}
		if err != nil {
			return err
		}
		out := listing{columns: append(append([]column{left("LOAD")}, benchColumns...), left("BESIDE"))}
		for _, l := range lines {
			out.add(l, append(append([]any{l.Name}, benchCells(l.Result)...), l.Against)...)
		}
		return out.print(t.out, format)
	}
	return cmd
}

func benchDisk(t *terminal) *cobra.Command {
	var dir, format string
	var blocks []int
	var span time.Duration
	cmd := &cobra.Command{
		Use: "disk", Short: "append and sync, as a log does: what this disk can do at all", Args: arguments(0, 0),
		Example: examples("millrace bench disk --dir ./millrace-data", "4 KiB to 1 MiB", "millrace bench disk --size 4096 --time 5s -o json", ""),
	}
	cmd.Flags().StringVar(&dir, "dir", ".", "folder on the disk to measure")
	cmd.Flags().IntSliceVar(&blocks, "size", []int{4 << 10, 64 << 10, 256 << 10, 1 << 20}, "bytes of each append")
	cmd.Flags().DurationVar(&span, "time", time.Second, "how long for each size")
	addFormat(cmd, &format)
	cmd.RunE = func(*cobra.Command, []string) error {
		out := listing{columns: []column{right("SIZE").named("size_bytes"), right("APPENDS/S").named("appends_per_second"),
			right("MB/S").named("megabytes_per_second"), right("P50").named("p50_ms"), right("P99").named("p99_ms"), right("MAX").named("max_ms")}}
		for _, block := range blocks {
			r, err := bench.Disk(dir, block, span)
			if err != nil {
				return err
			}
			out.add(r, counted(uint64(block)), perSecond(r.PerSecond), measured(r.MBPerSec, 1, ""),
				latency(r.Latency.P50), latency(r.Latency.P99), latency(r.Latency.Max))
		}
		return out.print(t.out, format)
	}
	return cmd
}
