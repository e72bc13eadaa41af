package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/cmd/millrace/account"
)

// TrackingLoad is many references that store offsets beside a publisher.
type TrackingLoad struct {
	References  int `json:"references"`  // 0: nothing is stored, a control run
	Connections int `json:"connections"` // that the references are spread over
	StoreRate   int `json:"stores_per_second,omitempty"`
	QueryEvery  int `json:"stores_per_query"` // of one connection
	// Fill is published before anything is measured.
	Fill uint64 `json:"fill_messages,omitempty"`
	// Rounds is into how many parts the time is cut; before each, the publisher
	// goes on alone for as long. 0: it never does.
	Rounds int `json:"rounds"`
	// Publish is the publisher's load; without Producers nothing is published
	// but what fills the stream.
	Publish Load `json:"publish"`
	// MaxLengthBytes and SegmentBytes are the stream's; 0: no limit, and the
	// broker's choice.
	MaxLengthBytes int64 `json:"max_length_bytes,omitempty"`
	SegmentBytes   int64 `json:"segment_bytes,omitempty"`
}

// TrackingResult is what became of it. Its JSON is a contract.
type TrackingResult struct {
	Kind    string            `json:"kind"`
	Broker  map[string]string `json:"broker,omitempty"`
	Load    TrackingLoad      `json:"load"`
	Started time.Time         `json:"started"`
	Seconds float64           `json:"seconds"` // with stores

	// Stores were accepted: a query behind them was answered, with the value of
	// the last of them.
	Stores          uint64  `json:"stores"`
	StoresPerSecond float64 `json:"stores_per_second"`
	Queries         uint64  `json:"queries"`
	Query           Latency `json:"query_latency,omitzero"`
	// Wrong counts queries that did not answer the connection's own last store,
	// Forgotten references whose last store was not answered at the end.
	Wrong     uint64 `json:"wrong"`
	Forgotten uint64 `json:"forgotten"`

	Refused uint64   `json:"refused"`
	Confirm Latency  `json:"confirm_latency,omitzero"`
	With    *Publish `json:"publish_with_stores,omitempty"`
	Without *Publish `json:"publish_without_stores,omitempty"`
	// ThroughputRatio and CPURatio are With by Without.
	ThroughputRatio float64 `json:"throughput_ratio,omitempty"`
	CPURatio        float64 `json:"cpu_ratio,omitempty"`

	// Published were confirmed, Readable found at the end, from FirstOffset on.
	// OffsetGaps counts the offsets between them that hold no message.
	Published   uint64           `json:"published"`
	Readable    uint64           `json:"readable"`
	FirstOffset uint64           `json:"first_offset"`
	OffsetGaps  uint64           `json:"offset_gaps"`
	Disk        *account.Account `json:"disk,omitempty"`
}

// Publish is how publishing went over a while.
type Publish struct {
	Seconds   float64 `json:"seconds"`
	Messages  uint64  `json:"messages"`
	PerSecond float64 `json:"messages_per_second"`
	// ServerCPU is the broker's CPU time, that for stores too, for each message.
	ServerCPU float64 `json:"server_cpu_microseconds_per_message,omitempty"`

	cpu time.Duration
}

func (p *Publish) add(messages uint64, elapsed, cpu time.Duration) {
	p.Seconds += elapsed.Seconds()
	p.Messages += messages
	p.cpu += cpu
	p.PerSecond = float64(p.Messages) / p.Seconds
	if p.Messages > 0 {
		p.ServerCPU = float64(p.cpu.Microseconds()) / float64(p.Messages)
	}
}

// warmUp is how long the publisher has before it is measured, at most.
const warmUp = time.Second

// Tracking fills the runner's one stream, has references store offsets for
// load.Publish.Time in all, and reads the stream.
func (r *Runner) Tracking(ctx context.Context, load TrackingLoad) (TrackingResult, error) {
	result := TrackingResult{Kind: "tracking", Load: load, Started: time.Now()}
	steps := []func(context.Context, *TrackingResult) error{r.fillTracking, r.storeBeside, r.readBack}
	for _, step := range steps {
		if err := step(ctx, &result); err != nil {
			return result, err
		}
	}
	return result, nil
}

func (r *Runner) fillTracking(ctx context.Context, result *TrackingResult) error {
	load := result.Load.Publish
	load.Producers, load.Messages, load.Rate = 1, result.Load.Fill, 0
	if load.Messages == 0 {
		return nil
	}
	filled, err := r.Produce(ctx, load)
	if err == nil && filled.Refused > 0 {
		err = errors.New("messages were refused while the stream was filled")
	}
	return err
}

// storeBeside runs the rounds.
func (r *Runner) storeBeside(ctx context.Context, result *TrackingResult) error {
	load := &result.Load
	storers, err := r.storers(ctx, load, result)
	if err != nil {
		return err
	}
	publishing, err := r.publishing(ctx, load.Publish)
	if err != nil {
		return err
	}
	span := load.Publish.Time / time.Duration(max(load.Rounds, 1))
	if publishing != nil {
		result.With = &Publish{}
		wait(ctx, min(warmUp, span/4))
	}
	for range max(load.Rounds, 1) {
		if publishing != nil && load.Rounds > 0 {
			if result.Without == nil {
				result.Without = &Publish{}
			}
			err = errors.Join(err, r.measured(result.Without, func() error { return wait(ctx, span) }))
		}
		begin := time.Now()
		err = errors.Join(err, r.measured(result.With, func() error { return storeAll(ctx, storers, span) }))
		result.Seconds += time.Since(begin).Seconds()
		if err != nil {
			break
		}
	}
	err = errors.Join(err, publishing.end(ctx, result))
	for _, s := range storers {
		if err == nil {
			err = s.verify(ctx)
		}
		s.conn.Close()
	}
	result.take(storers)
	return err
}

// measured has f run and counts into p, if there is one, what is published and
// what CPU time that takes meanwhile.
func (r *Runner) measured(p *Publish, f func() error) error {
	if p == nil {
		return f()
	}
	begin, confirmed := time.Now(), r.Confirmed.Load()
	cpu, err := r.Server.cpuTime()
	if err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	after, err := r.Server.cpuTime()
	p.add(r.Confirmed.Load()-confirmed, time.Since(begin), after-cpu)
	return err
}

// wait is a sleep that ctx ends.
func wait(ctx context.Context, span time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(span):
		return nil
	}
}

// take puts the storers' figures together.
func (result *TrackingResult) take(storers []*storer) {
	queries := newHistogram()
	for _, s := range storers {
		queries.Merge(s.latency)
		result.Stores += s.accepted
		result.Wrong += s.wrong
		result.Forgotten += s.forgotten
	}
	result.Queries, result.Query = uint64(queries.TotalCount()), summary(queries)
	if result.Seconds > 0 {
		result.StoresPerSecond = float64(result.Stores) / result.Seconds
	}
	with, without := result.With, result.Without
	if with != nil && without != nil && without.Messages > 0 {
		result.ThroughputRatio = with.PerSecond / without.PerSecond
		if without.ServerCPU > 0 {
			result.CPURatio = with.ServerCPU / without.ServerCPU
		}
	}
}

// publishing is a load of producers that goes on until it is ended.
type publishing struct {
	producers []*producer
	cancel    context.CancelFunc
	ended     chan error
}

// publishing begins to publish; nil without producers.
func (r *Runner) publishing(ctx context.Context, load Load) (*publishing, error) {
	if load.Producers == 0 {
		return nil, nil
	}
	load.Messages, load.Time = 0, time.Duration(1<<62)
	producers, err := r.producers(ctx, load, &Result{})
	if err != nil {
		return nil, err
	}
	p := &publishing{producers: producers, ended: make(chan error, 1)}
	ctx, p.cancel = context.WithCancel(ctx)
	begin := time.Now()
	go func() { p.ended <- r.run(ctx, producers, begin) }()
	return p, nil
}

// end stops publishing and waits for all confirms.
func (p *publishing) end(ctx context.Context, result *TrackingResult) error {
	if p == nil {
		return nil
	}
	p.cancel()
	err := <-p.ended
	if errors.Is(err, context.Canceled) {
		err = ctx.Err() // it was we who ended it, or the caller
	}
	confirms := newHistogram()
	for _, q := range p.producers {
		if err == nil {
			err = q.pub.Drain(ctx)
		}
		q.conn.Close()
		confirms.Merge(q.latency)
		result.Refused += q.refused
	}
	result.Confirm = summary(confirms)
	return err
}

// idleAfter is how long nothing comes from a stream until it counts as read to
// its end: brokers do not tell where that is in the same way.
const idleAfter = time.Second

// readBack reads the stream from its first message on.
func (r *Runner) readBack(ctx context.Context, result *TrackingResult) error {
	result.Published = r.Confirmed.Load()
	conn, err := client.DialLeader(ctx, r.Config, r.Streams[0])
	if err != nil {
		return err
	}
	defer conn.Close()
	reading := &reading{progress: make(chan bool, 1), ended: make(chan error, 1), published: result.Published}
	if err := reading.subscribe(ctx, conn, r.Streams[0]); err != nil {
		return fmt.Errorf("read the stream back: %w", err)
	}
	for idle := false; !idle; {
		select {
		case all := <-reading.progress:
			idle = all
		case <-time.After(idleAfter):
			idle = true
		case err := <-reading.ended:
			return fmt.Errorf("read the stream back: %w", err)
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	conn.Close() // deliver runs no more behind this
	result.Readable, result.FirstOffset, result.OffsetGaps = reading.records, reading.first, reading.gaps
	return nil
}
