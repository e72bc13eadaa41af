package node

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

func (m metadata) SetRetention(ctx context.Context, vhost, name string, change catalog.RetentionChange) error {
	return m.Cluster.SetRetention(ctx, vhost, name, change)
}

// Retention asks the replica here what retention makes of a stream.
func (f figures) Retention(ctx context.Context, stream chunk.Incarnation, q admin.RetentionQuery) (admin.Retention, error) {
	r, err := f.replica(stream)
	if err != nil {
		return admin.Retention{}, err
	}
	query := replication.RetentionQuery{Run: q.Run}
	if q.Limits != nil {
		limits := settings(*q.Limits, &f.n.residents.tracking)
		query.Bytes, query.Age = &limits.RetainBytes, &limits.RetainAge
	}
	type answer struct {
		report *replication.RetentionReport
		err    error
	}
	got := make(chan answer, 1)
	r.Retention(query, func(report *replication.RetentionReport, err error) { got <- answer{report, err} })
	select {
	case a := <-got:
		switch {
		case errors.Is(a.err, replication.ErrNotLeader):
			return admin.Retention{}, admin.ErrElsewhere
		case a.err != nil:
			return admin.Retention{}, fmt.Errorf("%w: %w", admin.ErrNoReplica, a.err)
		}
		return retentionView(a.report), nil
	case <-ctx.Done():
		return admin.Retention{}, ctx.Err()
	}
}

func retentionView(r *replication.RetentionReport) admin.Retention {
	view := admin.Retention{
		MaxBytes: r.Bytes, MaxAgeMS: r.Age.Milliseconds(), Leads: r.Leads, FirstOffset: uint64(r.First),
		Now: r.Now.UTC(), ClockDoubted: r.Doubted, NextCheck: r.Next.UTC(), Units: []admin.Unit{},
	}
	for i := range r.Units {
		view.Units = append(view.Units, unitView(&r.Units[i]))
		if r.Units[i].Goes() {
			view.Goes.Units++
			view.Goes.Messages += r.Units[i].Records
			view.Goes.UserBytes += uint64(r.Units[i].UserBytes)
			view.Goes.DiskBytes += uint64(r.Units[i].DiskBytes)
		}
	}
	return view
}

func unitView(u *segstore.Unit) admin.Unit {
	view := admin.Unit{
		FirstLSN: uint64(u.FirstLSN), FirstOffset: uint64(u.FirstOffset), NextOffset: uint64(u.NextOffset),
		Segments: u.To - u.From, Messages: u.Records, UserBytes: uint64(u.UserBytes), DiskBytes: uint64(u.DiskBytes),
		Verdict: u.Verdict.String(), Goes: u.Goes(), HeldBy: u.Hold.String(),
	}
	if u.LastTimestamp != 0 {
		first, last := time.UnixMilli(int64(u.FirstTimestamp)).UTC(), time.UnixMilli(int64(u.LastTimestamp)).UTC()
		view.FirstTime, view.LastTime = &first, &last
	}
	return view
}
