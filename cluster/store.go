package cluster

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	boltdb "github.com/hashicorp/raft-boltdb/v2"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

const (
	raftFolder      = "raft"
	raftFile        = "raft.db"
	snapshotsFolder = "snapshots" // raft's name for it
	snapshotsKept   = 2
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
	path := filepath.Join(folder, raftFile)
	if err := checkStoreFile(path); err != nil {
		return nil, fmt.Errorf("open raft store: %s: %w", path, err)
	}
	bolt, err := boltdb.New(boltdb.Options{
		Path: path,
		// The free list is rebuilt at open, which spares a page in each sync.
		BoltOptions: &bbolt.Options{Timeout: openTimeout, NoFreelistSync: true, FreelistType: bbolt.FreelistMapType},
	})
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("open raft store: %s is in use by another process", folder)
	}
	if err != nil {
		return nil, fmt.Errorf("open raft store: %s: %w", path, err)
	}
	if err := removeHalves(filepath.Join(folder, snapshotsFolder)); err != nil {
		bolt.Close()
		return nil, fmt.Errorf("remove half snapshots: %w", err)
	}
	snapshots, err := raft.NewFileSnapshotStoreWithLogger(folder, snapshotsKept, log)
	if err != nil {
		bolt.Close()
		return nil, fmt.Errorf("open raft snapshots: %w", err)
	}
	sound, err := checkSnapshots(filepath.Join(folder, snapshotsFolder), snapshots, bolt, log)
	if err != nil {
		bolt.Close()
		return nil, fmt.Errorf("open raft store: %s: %w", folder, err)
	}
	l := newLatch(bolt, bolt, log, failed)
	cached, err := raft.NewLogCache(logCacheEntries, l)
	if err != nil {
		bolt.Close()
		return nil, fmt.Errorf("open raft store: %w", err)
	}
	return &store{bolt: bolt, latched: l, logs: cached, snapshots: sound}, nil
}

// halfSuffix ends the name of a snapshot that is being written; raft takes it away
// once it is whole and synced.
const halfSuffix = ".tmp"

// removeHalves removes what a crash has left of unfinished snapshots: raft neither
// reads nor removes it, and each has the size of the catalog.
func removeHalves(folder string) error {
	list, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	for _, entry := range list {
		if entry.IsDir() && strings.HasSuffix(entry.Name(), halfSuffix) {
			err = errors.Join(err, os.RemoveAll(filepath.Join(folder, entry.Name())))
		}
	}
	return err
}

func (s *store) close() error { return s.bolt.Close() }

// holds tells whether there is any entry or snapshot.
func (s *store) holds() (bool, error) {
	list, err := s.snapshots.List()
	if err != nil || len(list) > 0 {
		return true, err
	}
	last, err := s.logs.LastIndex()
	return last > 0, err
}
