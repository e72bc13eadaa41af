package cli

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/wire"
)

// lineMax bounds a line: what fits a frame of the default size.
const lineMax = 1<<20 - 1024

type publishOptions struct {
	access       streamAccess
	format, name string
	filter       string
	resume, raw  bool
}

func publishCommand(t *terminal) *cobra.Command {
	var o publishOptions
	cmd := &cobra.Command{
		Use: "publish STREAM [FILE | -]", Short: "publish lines: a message for each",
		Args: arguments(1, 2),
		Long: `Publishes each line of a file, or of standard input, as a message, and waits until
all are confirmed: on a majority's disks. A line is wrapped as the data section
of an AMQP 1.0 message, as the public clients do. Where nothing is confirmed for
--timeout, since too few replicas are there, it ends with 6; the lines may be stored
all the same.`,
		Example: examples(
			"seq 1 100000 | millrace publish orders", "a message for each line",
			"millrace publish orders events.log", "lines of a file",
			"tail -f events.log | millrace publish orders", "as they come",
			"millrace publish orders events.log --name import --resume", "can be broken off and started again"),
	}
	o.access.addFlags(cmd.Flags(), t)
	addFormat(cmd, &o.format)
	cmd.Flags().StringVar(&o.name, "name", "", "publisher reference; the broker then drops what it has under it")
	cmd.Flags().BoolVar(&o.resume, "resume", false, "the n-th line has publishing id n, so lines that are stored already are not stored again (with --name)")
	cmd.Flags().StringVar(&o.filter, "filter", "", "filter value of all messages")
	cmd.Flags().BoolVar(&o.raw, "raw", false, "send lines as they are, not as AMQP 1.0 data sections")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.resume && o.name == "" {
			return usage("--resume needs the name that the lines were sent under").suggest("--name import")
		}
		in := t.in
		if len(args) == 2 && args[1] != "-" {
			file, err := os.Open(args[1])
			if errors.Is(err, os.ErrNotExist) {
				return fail(exitNotFound, "there is no file %q: %w", args[1], err).
					suggest(fmt.Sprintf("echo %q | millrace publish %s    if that is the message", args[1], args[0]))
			}
			if err != nil {
				return err
			}
			defer file.Close()
			in = file
		}
		return o.run(cmd.Context(), t, args[0], in)
	}
	return cmd
}

// published is the command's answer.
type published struct {
	Stream    string  `json:"stream"`
	Messages  uint64  `json:"messages"`
	Confirmed uint64  `json:"confirmed"`
	Refused   uint64  `json:"refused"`
	Seconds   float64 `json:"seconds"`
}

func (o *publishOptions) run(ctx context.Context, t *terminal, stream string, in io.Reader) error {
	p := publishing{publishOptions: o, stream: stream}
	watch := vigil{t: t, limit: o.access.timeout, look: p.waits}
	ctx, end := watch.keep(ctx)
	defer end()
	shown := showProgress(t, func() string {
		return fmt.Sprintf("%s sent, %s confirmed, %s", count(p.sent.Load()), count(p.confirmed.Load()), rate(p.confirmed.Load(), p.took()))
	})
	err := p.untilDone(ctx, in)
	shown.end()
	result := published{stream, p.sent.Load(), p.confirmed.Load(), p.refused.Load(), p.took().Seconds()}
	if err != nil {
		return p.broken(ctx, err, result)
	}
	if err := printOne(t.out, o.format, result, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s confirmed in %.2f s\n", some(result.Confirmed, "message"), result.Seconds)
		return err
	}); err != nil {
		return err
	}
	if result.Refused > 0 {
		return fail(exitFailed, "%s refused: %s", some(result.Refused, "message"), wire.ResponseCode(p.refusedWith.Load()))
	}
	return nil
}

// publishing is a run of the command.
type publishing struct {
	*publishOptions
	stream                   string
	begin                    time.Time // written before pub
	sent, confirmed, refused atomic.Uint64
	refusedWith              atomic.Uint32
	pub                      atomic.Pointer[client.Publisher] // nil until it is declared
}

// took is the time since there is a publisher.
func (p *publishing) took() time.Duration {
	if p.pub.Load() == nil {
		return 0
	}
	return time.Since(p.begin)
}

// waits is what the run waits for.
func (p *publishing) waits() (came uint64, what string) {
	pub := p.pub.Load()
	if pub == nil {
		return 0, fmt.Sprintf("a leader of %s (%s)", p.stream, p.access.addr)
	}
	came = 1 + p.confirmed.Load() + p.refused.Load()
	if n := pub.Unconfirmed(); n > 0 {
		what = fmt.Sprintf("%s to be confirmed: a majority of the replicas of %s must have them on disk", some(n, "message"), p.stream)
	}
	return came, what
}

// closingTime is how long a run that is over may take to say so.
const closingTime = time.Second

// untilDone is all, but for a read of standard input that nothing ends: the
// process ends with that.
func (p *publishing) untilDone(ctx context.Context, in io.Reader) error {
	done := make(chan error, 1)
	go func() { done <- p.all(ctx, in) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	select {
	case err := <-done:
		return err
	case <-time.After(closingTime):
		return ctx.Err()
	}
}

// all sends everything and waits until it is confirmed or refused.
func (p *publishing) all(ctx context.Context, in io.Reader) error {
	conn, err := p.access.leader(ctx, p.stream, "millrace publish")
	if err != nil {
		return err
	}
	defer conn.Close()
	defer context.AfterFunc(ctx, conn.Abort)() // sending may wait for room, which no context ends
	pub, err := conn.DeclarePublisher(ctx, client.PublisherConfig{
		Stream: p.stream, Reference: p.name,
		Confirmed: func(ids []uint64) { p.confirmed.Add(uint64(len(ids))) },
		Refused: func(list []wire.PublishingError) {
			p.refused.Add(uint64(len(list)))
			p.refusedWith.Store(uint32(list[0].Code))
		},
	})
	if err != nil {
		return err
	}
	p.begin = time.Now()
	p.pub.Store(pub)
	if err := p.send(ctx, pub, in, &p.sent); err != nil {
		return err
	}
	return pub.Drain(ctx)
}

// send publishes line by line. What has been gathered leaves when no further
// line is at hand, so that a pipe's lines do not wait for each other.
func (o *publishOptions) send(ctx context.Context, pub *client.Publisher, in io.Reader, sent *atomic.Uint64) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	id := uint64(0)
	if !o.resume {
		id = pub.Last()
	}
	var message, text []byte
	for ctx.Err() == nil {
		var err error
		text, err = readLine(lines, text[:0])
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		message = append(message[:0], text...)
		if !o.raw {
			message = client.WrapData(message[:0], text)
		}
		id++
		if err := o.sendOne(pub, id, message); err != nil {
			return err
		}
		sent.Add(1)
		if lines.Buffered() == 0 {
			if err := pub.Flush(); err != nil {
				return err
			}
		}
	}
	return ctx.Err()
}

func (o *publishOptions) sendOne(pub *client.Publisher, id uint64, message []byte) error {
	if o.filter != "" {
		return pub.SendFiltered(id, o.filter, message)
	}
	return pub.Send(id, message)
}

// readLine appends the next line, without its end, to dst. The last line may
// lack one.
func readLine(in *bufio.Reader, dst []byte) ([]byte, error) {
	for {
		part, err := in.ReadSlice('\n')
		dst = append(dst, part...)
		switch {
		case len(dst) > lineMax:
			return nil, fail(exitFailed, "a line is longer than %s", size(lineMax))
		case err == nil:
			dst = dst[:len(dst)-1]
			if n := len(dst); n > 0 && dst[n-1] == '\r' {
				dst = dst[:n-1]
			}
			return dst, nil
		case errors.Is(err, io.EOF) && len(dst) > 0:
			return dst, nil
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		}
	}
}

// broken is the problem of a run that did not reach its end.
func (p *publishing) broken(ctx context.Context, err error, result published) error {
	var b, waited *problem
	so := fmt.Sprintf("%s sent, %d of them confirmed", some(result.Messages, "message"), result.Confirmed)
	switch {
	case errors.As(context.Cause(ctx), &waited):
		b = waited.because(so).suggest("millrace replica list "+p.stream+"    which replicas are there", "--timeout 1m    wait longer")
	case ctx.Err() != nil:
		b = fail(exitFailed, "broken off after %s, of which %d are confirmed", some(result.Messages, "message"), result.Confirmed)
	default:
		b = explain(streamProblem(err, p.access.addr, p.stream))
		if p.pub.Load() != nil {
			b.because(so)
		}
	}
	if p.resume {
		return b.suggest("the same command again: what is stored is not stored twice")
	}
	return b
}
