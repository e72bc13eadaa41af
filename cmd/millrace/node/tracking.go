package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// readers are what streams led here remember of readers and writers, as
// operators see it.
type readers struct{ n *Node }

// trackingWait is how long a change may wait for a majority, and anything else
// for a turn.
const trackingWait = 8 * time.Second

func (r readers) References(ctx context.Context, stream *catalog.Stream, q admin.TrackingQuery) ([]admin.Reference, error) {
	replica, err := r.leader(stream)
	if err != nil {
		return nil, err
	}
	tracked, err := await(ctx, func(answer func(*replication.Tracked, error)) { replica.BeginTracked(answer) })
	if err != nil {
		return nil, err
	}
	var list []admin.Reference
	if q.Kind != admin.KindWriter {
		list = append(list, readersOf(replica, tracked, q.Reference)...)
	}
	if q.Kind != admin.KindOffset {
		for _, s := range tracked.Sequences {
			if q.Reference == "" || q.Reference == s.Reference {
				list = append(list, admin.Reference{
					Reference: s.Reference, Kind: admin.KindWriter, Value: s.Sequence, State: "written",
					LSN: uint64(s.LSN), Sessions: s.Sessions,
				})
			}
		}
	}
	slices.SortStableFunc(list, func(a, b admin.Reference) int { return strings.Compare(a.Reference, b.Reference) })
	return list, nil
}

// readersOf describes the stored offsets, and how far each is behind.
func readersOf(replica *replication.Replica, tracked *replication.Tracked, only string) []admin.Reference {
	first := replica.Stats().Log.First
	_, next := replica.Committed()
	ages := ages{replica: replica, now: tracked.Time}
	var list []admin.Reference
	// By offset, so that neighbours share what is read from the log.
	offsets := slices.Clone(tracked.Offsets)
	slices.SortFunc(offsets, func(a, b tracking.Reference) int { return cmp.Compare(a.Offset, b.Offset) })
	for i := range offsets {
		o := &offsets[i]
		if only != "" && only != o.Ref {
			continue
		}
		updated, age := time.UnixMilli(int64(o.Updated)).UTC(), int64(tracked.Time-o.Updated)
		e := admin.Reference{
			Reference: o.Ref, Kind: admin.KindOffset, Value: uint64(o.Offset), State: "written",
			Lag: new(uint64), LagMS: new(int64), Updated: &updated, AgeMS: &age,
			Ahead: o.Offset >= next,
		}
		if o.Pending {
			e.State = "pending"
		}
		if !e.Ahead && o.Offset+1 < next {
			e.Stale = o.Offset < first
			*e.Lag = uint64(next - 1 - o.Offset)
			e.LagMS = ages.of(max(o.Offset+1, first))
		}
		list = append(list, e)
	}
	return list
}

// ages finds out how old messages are; offsets must rise.
type ages struct {
	replica *replication.Replica
	now     chunk.Timestamp
	// age is that of all messages from the last one asked for up to until.
	until chunk.Offset
	age   *int64
}

// of returns the age in milliseconds of the message with that offset, nil where
// it could not be read.
func (a *ages) of(o chunk.Offset) *int64 {
	if o < a.until {
		return a.age
	}
	a.age, a.until = nil, o+1
	if at, until, ok, err := a.replica.TimestampAt(o); ok && err == nil {
		age := max(int64(a.now-at), 0)
		a.age, a.until = &age, until
	}
	return a.age
}

func (r readers) Place(_ context.Context, stream *catalog.Stream, p admin.Position) (uint64, error) {
	replica, err := r.leader(stream)
	if err != nil {
		return 0, err
	}
	spec := segstore.Spec{Kind: segstore.Next, Timestamp: chunk.Timestamp(p.TimestampMS)}
	switch p.At {
	case "first":
		spec.Kind = segstore.First
	case "last":
		spec.Kind = segstore.Last
	case "time":
		spec.Kind = segstore.AtTimestamp
	}
	_, next := replica.Committed()
	reader, err := replica.Attach(spec)
	if err != nil {
		return 0, notLed(err)
	}
	defer reader.Close()
	return min(uint64(reader.Offset()), uint64(next)), nil // what is not committed may go
}

func (r readers) Change(ctx context.Context, stream *catalog.Stream, changes []admin.TrackingChange) ([]string, error) {
	replica, err := r.leader(stream)
	if err != nil {
		return nil, err
	}
	list := make([]replication.TrackingChange, len(changes))
	for i, c := range changes {
		list[i] = replication.TrackingChange{
			Reference: c.Reference, Publisher: c.Kind == admin.KindWriter, Forget: c.Forget, Offset: chunk.Offset(c.Offset), New: c.New,
		}
		if !c.UpdatedBefore.IsZero() {
			list[i].Before = chunk.Timestamp(c.UpdatedBefore.UnixMilli())
		}
	}
	return await(ctx, func(answer func([]string, error)) { replica.BeginChangeTracking(list, answer) })
}

// leader returns the stream's replica if it may lead.
func (r readers) leader(stream *catalog.Stream) (*replication.Replica, error) {
	replica, ok := r.n.replicas.Replica(stream.Incarnation)
	if !ok {
		return nil, fmt.Errorf("%w: %s", admin.ErrNoReplica, stream.Name)
	}
	return replica, nil
}

// await waits for what begin answers from a turn.
func await[T any](ctx context.Context, begin func(answer func(T, error))) (T, error) {
	type answer struct {
		value T
		err   error
	}
	ctx, cancel := context.WithTimeoutCause(ctx, trackingWait, os.ErrDeadlineExceeded)
	defer cancel()
	answered := make(chan answer, 1)
	begin(func(value T, err error) { answered <- answer{value, err} })
	select {
	case a := <-answered:
		return a.value, notLed(a.err)
	case <-ctx.Done():
		var none T
		return none, fmt.Errorf("wait for the stream's leader: %w", context.Cause(ctx))
	}
}

// notLed puts replication's errors into the words of admin.
func notLed(err error) error {
	switch {
	case errors.Is(err, replication.ErrReferenceInUse):
		return fmt.Errorf("%w: %w", admin.ErrReferenceInUse, err)
	case errors.Is(err, replication.ErrNotLeader), errors.Is(err, replication.ErrUnavailable),
		errors.Is(err, replication.ErrTrackingUnknown), errors.Is(err, replication.ErrClosed):
		return fmt.Errorf("%w: %w", admin.ErrNotLed, err)
	}
	return err
}
