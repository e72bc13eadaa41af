package replication

import (
	"context"
	"errors"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// Damage tells what of the replica's log is known to be damaged: segments, and
// the log's end if it sets the replica aside. Empty if all is well.
func (r *Replica) Damage() []*segstore.DamageError {
	log := r.log.Load()
	if log == nil {
		return nil
	}
	var all []*segstore.DamageError
	for _, s := range log.Segments() {
		if s.Damage != nil {
			all = append(all, s.Damage)
		}
	}
	var end *segstore.DamageError
	if errors.As(log.Err(), &end) {
		all = append(all, end)
	}
	return all
}

// Check reads one file of the log through, by name, and returns the damage in it,
// which the log then knows. Errors: segstore.ErrMissing, ErrUnavailable, what the
// disk says.
func (r *Replica) Check(file string) (*segstore.DamageError, error) {
	log := r.log.Load()
	if log == nil {
		return nil, ErrUnavailable
	}
	return log.Check(file)
}

// ReadRange gives another node's replica committed chunks to repair its log by:
// it answers segstore.Source's. Errors: those of segstore.Log.ReadRange,
// ErrUnavailable.
func (r *Replica) ReadRange(from, last chunk.LSN, max int) (chunks []byte, next chunk.LSN, err error) {
	log := r.log.Load()
	if log == nil {
		return nil, 0, ErrUnavailable
	}
	return log.ReadRange(from, last, max)
}

// Repair fetches every damaged sealed segment of the log from another replica,
// while the log goes on, and returns the files that it has replaced. What it
// can't repair is told by the error and left as it is; Damage still names it.
//
// Errors: those of segstore.Log.Repair, Repair.Fetch and InstallRepair;
// ErrUnavailable, ErrClosed; the context's.
func (r *Replica) Repair(ctx context.Context, source segstore.Source) (files []string, err error) {
	log := r.log.Load()
	if log == nil {
		return nil, ErrUnavailable
	}
	var problems []error
	for _, name := range log.Damaged() {
		var job *segstore.Repair
		err := r.operateOn(ctx, log, func() (err error) {
			job, err = log.Repair(name)
			return err
		})
		if err == nil {
			if err = job.Fetch(ctx, source); err == nil {
				err = r.operateOn(ctx, log, func() error { return log.InstallRepair(job) })
			}
			job.Abandon()
		}
		if err != nil {
			problems = append(problems, err)
			continue
		}
		files = append(files, name.String()+".seg")
	}
	return files, errors.Join(problems...)
}

// operateOn has f called in a turn of the replica, as long as its log is still
// this one, and waits for it: also where the context ends, since f may be on.
func (r *Replica) operateOn(ctx context.Context, log *segstore.Log, f func() error) error {
	answered := make(chan error, 1)
	e := event{kind: eventOperate, operate: func(err error) {
		switch {
		case err != nil:
		case r.log.Load() != log:
			err = ErrUnavailable
		case ctx.Err() != nil:
			err = ctx.Err()
		default:
			err = f()
		}
		answered <- err
	}}
	if !r.post(e) {
		return ErrClosed
	}
	return <-answered
}
