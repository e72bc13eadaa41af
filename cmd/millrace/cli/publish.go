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
of an AMQP 1.0 message, as the public clients do.`,
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
	conn, err := o.access.leader(ctx, stream, "millrace publish")
	if err != nil {
		return err
	}
	defer conn.Close()
	var confirmed, refused, sent atomic.Uint64
	var refusedWith atomic.Uint32
	pub, err := conn.DeclarePublisher(ctx, client.PublisherConfig{
		Stream: stream, Reference: o.name,
		Confirmed: func(ids []uint64) { confirmed.Add(uint64(len(ids))) },
		Refused: func(list []wire.PublishingError) {
			refused.Add(uint64(len(list)))
			refusedWith.Store(uint32(list[0].Code))
		},
	})
	if err != nil {
		return streamProblem(err, o.access.addr, stream)
	}
	begin := time.Now()
	line := func() string {
		return fmt.Sprintf("%s sent, %s confirmed, %s", count(sent.Load()), count(confirmed.Load()), rate(confirmed.Load(), time.Since(begin)))
	}
	p := showProgress(t, line)
	err = o.send(ctx, pub, in, &sent)
	if err == nil {
		err = pub.Drain(ctx)
	}
	p.end()
	result := published{stream, sent.Load(), confirmed.Load(), refused.Load(), time.Since(begin).Seconds()}
	if err != nil {
		return o.broken(err, stream, result)
	}
	if err := printOne(t.out, o.format, result, func(w io.Writer) error {
		_, err := fmt.Fprintf(w, "%s confirmed in %.2f s\n", some(result.Confirmed, "message"), result.Seconds)
		return err
	}); err != nil {
		return err
	}
	if result.Refused > 0 {
		return fail(exitFailed, "%s refused: %s", some(result.Refused, "message"), wire.ResponseCode(refusedWith.Load()))
	}
	return nil
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
func (o *publishOptions) broken(err error, stream string, result published) error {
	var p *problem
	if errors.Is(err, context.Canceled) {
		p = fail(exitFailed, "broken off after %s, of which %d are confirmed", some(result.Messages, "message"), result.Confirmed)
	} else {
		p = explain(streamProblem(err, o.access.addr, stream))
		p.because(fmt.Sprintf("%s sent, %d of them confirmed", some(result.Messages, "message"), result.Confirmed))
	}
	if o.resume {
		return p.suggest("the same command again: what is stored is not stored twice")
	}
	return p
}
