package cli

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/wire"
)

type consumeOptions struct {
	access  streamAccess
	offset  string
	name    string
	count   uint64
	follow  bool
	raw     bool
	format  string
	filters []string
}

var consumeFormats = []string{"text", "json", "hex"}

func consumeCommand(t *terminal) *cobra.Command {
	var o consumeOptions
	cmd := &cobra.Command{
		Use: "consume STREAM", Short: "read messages", Args: arguments(1, 1),
		Long: `Reads messages from an offset on, up to the stream's present end, or for ever with
-f. With --name it goes on behind the offset that is stored under that name, and
stores how far it got; --offset then only counts where nothing is stored.`,
		Example: examples(
			"millrace consume orders --offset first", "all that is there",
			"millrace consume orders --offset 1000 --count 10", "ten messages",
			"millrace consume orders --offset @2026-11-30T10:00:00Z -f", "from a time on, and go on",
			"millrace consume orders --name billing -f", "go on where billing stopped"),
	}
	o.access.addFlags(cmd.Flags(), t)
	cmd.Flags().StringVar(&o.offset, "offset", "", "first, last, next, a number, or @TIME (RFC 3339 or Unix milliseconds); default first, with -f next")
	cmd.Flags().StringVar(&o.name, "name", "", "reference under which the offset is stored")
	cmd.Flags().Uint64Var(&o.count, "count", 0, "stop after so many messages; 0 = no limit")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "wait for further messages at the end")
	cmd.Flags().BoolVar(&o.raw, "raw", false, "show messages as they are, not the AMQP 1.0 body")
	cmd.Flags().StringArrayVar(&o.filters, "filter", nil, "only chunks that may hold this filter value")
	cmd.Flags().StringVarP(&o.format, "output", "o", "text", strings.Join(consumeFormats, ", "))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if !slices.Contains(consumeFormats, o.format) {
			return usage("-o %s is no form of output", o.format).suggest("one of " + strings.Join(consumeFormats, ", "))
		}
		spec, err := o.spec()
		if err != nil {
			return err
		}
		return o.run(cmd.Context(), t, args[0], spec)
	}
	return cmd
}

// spec is what --offset says.
func (o *consumeOptions) spec() (wire.OffsetSpec, error) {
	text := o.offset
	if text == "" {
		text = map[bool]string{false: "first", true: "next"}[o.follow && o.name == ""]
	}
	switch text {
	case "first":
		return wire.OffsetSpec{Type: wire.OffsetFirst}, nil
	case "last":
		return wire.OffsetSpec{Type: wire.OffsetLast}, nil
	case "next":
		return wire.OffsetSpec{Type: wire.OffsetNext}, nil
	}
	if ms, ok := parseMoment(text); ok {
		return wire.FromTimestamp(ms), nil
	}
	if n, err := strconv.ParseUint(text, 10, 64); err == nil {
		return wire.FromOffset(n), nil
	}
	return wire.OffsetSpec{}, usage("--offset %s is no place in a stream", text).
		suggest("first, last, next, a number, @2026-11-30T10:00:00Z, @1764496800000 (ms)")
}

// parseMoment reads @TIME: RFC 3339, or milliseconds since 1970.
func parseMoment(text string) (ms int64, ok bool) {
	moment, ok := strings.CutPrefix(text, "@")
	if !ok {
		return 0, false
	}
	if ms, err := strconv.ParseInt(moment, 10, 64); err == nil {
		return ms, true
	}
	at, err := time.Parse(time.RFC3339, moment)
	return at.UnixMilli(), err == nil
}

// A reader prints what one subscription delivers. Deliver runs on the
// connection's goroutine; wait, on the command's, looks on.
type reader struct {
	o    *consumeOptions
	conn *client.Conn
	name string // of the stream
	end  uint64 // stop once the record before this offset was printed; 0: no end
	done chan struct{}
	// arrived: something came since wait's last look.
	arrived atomic.Bool

	mu     sync.Mutex // guards what follows
	out    *bufio.Writer
	taken  uint64
	stored uint64 // behind the last offset that was stored
	last   uint64 // behind the last offset that was printed
	lastAt time.Time
	failed error
	ended  bool
}

func (o *consumeOptions) run(ctx context.Context, t *terminal, stream string, spec wire.OffsetSpec) error {
	conn, err := o.access.leader(ctx, stream, "millrace consume")
	if err != nil {
		return err
	}
	defer conn.Close()
	r := &reader{o: o, conn: conn, name: stream, out: bufio.NewWriterSize(t.out, 64<<10), done: make(chan struct{})}
	if spec, err = r.resume(ctx, spec); err != nil {
		return err
	}
	idle, err := r.findEnd(ctx, spec)
	if errors.Is(err, errNothing) {
		return nil
	}
	if err != nil {
		return err
	}
	properties := map[string]string{}
	if o.name != "" {
		properties["name"] = o.name
	}
	for i, f := range o.filters {
		properties["filter."+strconv.Itoa(i)] = f
	}
	failed := make(chan error, 1)
	_, err = conn.Subscribe(ctx, client.ConsumerConfig{
		Stream: stream, Offset: spec, Properties: properties, Deliver: r.deliver,
		Ended: func(err error) { failed <- err },
	})
	if err != nil {
		return streamProblem(err, o.access.addr, stream)
	}
	return streamProblem(r.wait(ctx, failed, idle), o.access.addr, stream)
}

// resume replaces spec by the place behind what is stored under the name.
func (r *reader) resume(ctx context.Context, spec wire.OffsetSpec) (wire.OffsetSpec, error) {
	if r.o.name == "" {
		return spec, nil
	}
	offset, err := r.conn.QueryOffset(ctx, r.o.name, r.name)
	switch {
	case client.Code(err) == wire.CodeNoOffset:
		return spec, nil
	case err != nil:
		return spec, streamProblem(err, r.o.access.addr, r.name)
	}
	return wire.FromOffset(offset + 1), nil
}

var errNothing = errors.New("nothing to read")

// idleEnd is how long silence is taken for the end, of a broker that does not
// tell the last committed offset.
const idleEnd = time.Second

// findEnd decides where to stop without -f: at the last committed record.
func (r *reader) findEnd(ctx context.Context, spec wire.OffsetSpec) (idle time.Duration, err error) {
	if r.o.follow {
		return 0, nil
	}
	stats, err := r.conn.Stats(ctx, r.name)
	if err != nil {
		return 0, streamProblem(err, r.o.access.addr, r.name)
	}
	last, told := stats["committed_offset"]
	switch {
	case stats["committed_chunk_id"] < 0 || spec.Type == wire.OffsetNext:
		return 0, errNothing
	case !told:
		return idleEnd, nil
	case last < 0 || spec.Type == wire.OffsetAt && spec.Offset > uint64(last):
		return 0, errNothing
	}
	r.end = uint64(last) + 1
	if spec.Type == wire.OffsetTimestamp || len(r.o.filters) > 0 {
		return idleEnd, nil // the last record may not be among those that come
	}
	return 0, nil
}

// wait returns when the reader is done, or why it cannot be.
func (r *reader) wait(ctx context.Context, failed <-chan error, idle time.Duration) error {
	every := idle
	if every == 0 {
		every = time.Hour
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-r.done:
			return r.finish()
		case err := <-failed:
			return err
		case <-ctx.Done(): // an interrupt is how -f ends
			return r.finish()
		case <-tick.C:
			if idle > 0 && !r.arrived.Swap(false) {
				return r.finish()
			}
		}
	}
}

// finish stores how far the reader got and leaves the connection. It holds no
// lock while it closes: the answer comes by the goroutine that delivers.
func (r *reader) finish() error {
	return errors.Join(r.storeLast(), r.conn.Close())
}

func (r *reader) storeLast() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if r.failed != nil || r.o.name == "" || r.last <= r.stored {
		return r.failed
	}
	return r.conn.StoreOffset(r.o.name, r.name, r.last-1)
}

// Offsets are stored each storeRecords messages, or storeEvery when less come.
const (
	storeRecords = 1000
	storeEvery   = 5 * time.Second
)

func (r *reader) deliver(d *client.Delivery) {
	r.arrived.Store(true)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.ended {
		return
	}
	for record, err := range d.Records() {
		if err == nil {
			err = r.print(record)
		}
		if err != nil {
			r.stop(err)
			return
		}
		r.taken++
		r.last = uint64(record.Offset) + 1
		if r.o.count > 0 && r.taken == r.o.count || r.end > 0 && r.last >= r.end {
			r.stop(r.out.Flush())
			return
		}
	}
	if err := r.out.Flush(); err != nil {
		r.stop(err)
		return
	}
	if r.o.name != "" && (r.last-r.stored >= storeRecords || time.Since(r.lastAt) > storeEvery) {
		r.stored, r.lastAt = r.last, time.Now()
		if err := r.conn.StoreOffset(r.o.name, r.name, r.last-1); err != nil {
			r.stop(err)
		}
	}
}

func (r *reader) stop(err error) {
	r.ended, r.failed = true, err
	close(r.done)
}

// record is a message in JSON.
type record struct {
	Offset    uint64 `json:"offset"`
	Timestamp int64  `json:"timestamp_ms"`
	Body      string `json:"body"`
}

func (r *reader) print(m client.Record) error {
	body := m.Message
	if !r.o.raw {
		if inner, ok := client.UnwrapData(body); ok {
			body = inner
		}
	}
	switch r.o.format {
	case "json":
		return json.NewEncoder(r.out).Encode(record{uint64(m.Offset), int64(m.Timestamp), string(body)})
	case "hex":
		_, err := fmt.Fprintln(r.out, hex.EncodeToString(body))
		return err
	}
	_, err := r.out.Write(append(body[:len(body):len(body)], '\n'))
	return err
}
