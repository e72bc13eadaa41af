package cluster

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	boltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
)

const (
	raftFolder    = "raft"
	raftFile      = "raft.db"
	snapshotsKept = 2
	// logCacheEntries spare reading back what was just written.
	logCacheEntries = 512
	// openTimeout bounds the wait for another process that has the store open;
	// bbolt would wait for ever.
	openTimeout = time.Second
)

// store is what raft keeps on disk: log and votes in one bbolt file, snapshots
// in a folder. It outlives a raft instance, which can be opened again on it.
type store struct {
	bolt      *boltdb.BoltStore
	latched   *latch
	logs      raft.LogStore
	snapshots raft.SnapshotStore
}

// openStore opens or makes the store below dir. failed is called once, when a
// write has failed.
func openStore(dir string, log hclog.Logger, failed func(error)) (*store, error) {
	folder := filepath.Join(dir, raftFolder)
	if err := os.MkdirAll(folder, 0o700); err != nil {
		return nil, fmt.Errorf("make raft store: %w", err)
	}
	if err := syncDir(dir); err != nil {
		return nil, err
	}
	bolt, err := boltdb.New(boltdb.Options{
		Path: filepath.Join(folder, raftFile),
		// The free list is rebuilt at open, which spares a page in each sync.
		BoltOptions: &bbolt.Options{Timeout: openTimeout, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
	})
	if errors.Is(err, bbolt.ErrTimeout) {
		return nil, fmt.Errorf("open raft store: %s is in use by another process", folder)
	}
	if err != nil {
		return nil, fmt.Errorf("open raft store: %w", err)
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(folder, snapshotsKept, log)
	if err != nil {
		bolt.Close()
		return nil, fmt.Errorf("open raft snapshots: %w", err)
	}
	l := &latch{LogStore: bolt, StableStore: bolt, failed: failed}
	cached, err := raft.NewLogCache(logCacheEntries, l)
	if err != nil {
		bolt.Close()
		return nil, fmt.Errorf("open raft store: %w", err)
	}
	return &store{bolt: bolt, latched: l, logs: cached, snapshots: snapshots}, nil
}

func (s *store) close() error { return s.bolt.Close() }

// latch lets no write through after one has failed. raft itself steps down and
// may try again, but after a failed sync the kernel may call pages clean that
// never reached the disk, so a later success proves nothing.
type latch struct {
	raft.LogStore
	raft.StableStore
	broken atomic.Bool
	failed func(error)
}

// guard runs one write.
func (l *latch) guard(what string, write func() error) error {
	if l.broken.Load() {
		return fmt.Errorf("%s: %w", what, ErrFailed)
	}
	err := write()
	if err != nil {
		err = fmt.Errorf("%s: %w", what, err)
		if l.broken.CompareAndSwap(false, true) {
			l.failed(err)
		}
	}
	return err
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

func (l *latch) SetUint64(key []byte, value uint64) error {
	return l.guard("store raft term", func() error { return l.StableStore.SetUint64(key, value) })
}
