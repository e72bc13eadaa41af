package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// latch lets no write through after one has failed. raft itself steps down and
// may try again, but after a failed sync the kernel may call pages clean that
// never reached the disk, so a later success proves nothing.
//
// A write that found the disk full is another matter: it says itself that it
// did not take place, before any sync, and bbolt has taken its transaction
// back. A lonely voter waits with it until there is space again, so that a full
// disk does not take readers away too. Of several voters the one with the full
// disk stops instead: another may lead, and one that waits would go on sending
// heartbeats.
type latch struct {
	raft.LogStore
	raft.StableStore
	log    hclog.Logger
	failed func(error)

	broken atomic.Bool
	// alone: there is no other voter. waits: a write waits for space.
	alone, waits atomic.Bool

	closing chan struct{} // closed by release
	once    sync.Once
}

func newLatch(logs raft.LogStore, votes raft.StableStore, log hclog.Logger, failed func(error)) *latch {
	return &latch{LogStore: logs, StableStore: votes, log: log, failed: failed, closing: make(chan struct{})}
}

// spacePause is between two attempts to write to a full disk.
const spacePause = 100 * time.Millisecond

// release ends the waiting for space, for good.
func (l *latch) release() { l.once.Do(func() { close(l.closing) }) }

// guard runs one write.
func (l *latch) guard(what string, write func() error) error {
	if l.broken.Load() {
		return fmt.Errorf("%s: %w", what, ErrFailed)
	}
	err := write()
	if l.alone.Load() && noSpace(err) {
		l.log.Error("disk full: the metadata waits for space", "error", err)
		if err = l.await(write); err == nil {
			l.log.Info("the metadata has space again")
		}
	}
	if err == nil {
		return nil
	}
	err = fmt.Errorf("%s: %w", what, err)
	if l.broken.CompareAndSwap(false, true) && !errors.Is(err, ErrStopped) {
		l.failed(err)
	}
	return err
}

// await tries a write again until it does not fail for want of space.
func (l *latch) await(write func() error) error {
	l.waits.Store(true)
	defer l.waits.Store(false)
	tick := time.NewTicker(spacePause)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			if err := write(); !noSpace(err) {
				return err
			}
		case <-l.closing:
			return fmt.Errorf("%w: %w", ErrStopped, errFull)
		}
	}
}

var errFull = errors.New("the disk is full")

// reason is why a write takes its time, or nil.
func (l *latch) reason() error {
	if l.waits.Load() {
		return errFull
	}
	return nil
}

// noSpace tells whether a write did not take place because the disk, or the
// share of it, is full. A sync that fails for that reason is none: what it
// left behind is unknown.
func noSpace(err error) bool {
	var path *fs.PathError
	return errors.As(err, &path) && path.Op == "write" &&
		(errors.Is(path.Err, syscall.ENOSPC) || errors.Is(path.Err, syscall.EDQUOT))
}

func (l *latch) StoreLog(log *raft.Log) error {
	return l.guard("store raft log entry", func() error { return l.LogStore.StoreLog(log) })
}

func (l *latch) StoreLogs(logs []*raft.Log) error {
	return l.guard("store raft log entries", func() error { return l.LogStore.StoreLogs(logs) })
}

func (l *latch) DeleteRange(low, high uint64) error {
	return l.guard("cut raft log", func() error { return l.LogStore.DeleteRange(low, high) })
}

func (l *latch) Set(key, value []byte) error {
	return l.guard("store raft vote", func() error { return l.StableStore.Set(key, value) })
}

// currentTerm is raft's key of the term.
const currentTerm = "CurrentTerm"

// SetUint64 keeps the failure to keep the current term to itself: raft would
// panic, and the process would end without its farewells. A term that is not
// kept does no harm, as the latch lets no vote and no entry of it through.
func (l *latch) SetUint64(key []byte, value uint64) error {
	err := l.guard("store raft term", func() error { return l.StableStore.SetUint64(key, value) })
	if string(key) == currentTerm {
		return nil
	}
	return err
}
