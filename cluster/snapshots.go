package cluster

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	boltdb "github.com/hashicorp/raft-boltdb/v2"
)

// errStoreDamaged: what is left of the metadata does not reach as far as it once
// did. Raft alone would begin with less, or with nothing, and the streams of what
// is missing would be nobody's.
var errStoreDamaged = errors.New("metadata is damaged; put the folder back from a backup of this node, or empty the data directory and let the node join anew if others have its streams")

// soundSnapshots leaves out the snapshots that were damaged when the store was
// opened, or could not be read since. Raft does so itself, but only for some
// damage, and in silence.
type soundSnapshots struct {
	raft.SnapshotStore
	mu      sync.Mutex // guards damaged
	damaged []string   // ids
}

func (s *soundSnapshots) List() ([]*raft.SnapshotMeta, error) {
	list, err := s.SnapshotStore.List()
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.DeleteFunc(list, func(m *raft.SnapshotMeta) bool { return slices.Contains(s.damaged, m.ID) }), err
}

// Open reads a snapshot, to restore it or to send it to a follower.
func (s *soundSnapshots) Open(id string) (*raft.SnapshotMeta, io.ReadCloser, error) {
	meta, source, err := s.SnapshotStore.Open(id)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.damaged = append(s.damaged, id)
	}
	return meta, source, err
}

// lacksSnapshot tells whether entries are in neither the log nor a snapshot, but in
// memory alone: a follower that needs them could not have them.
func (s *store) lacksSnapshot() (bool, error) {
	first, err := s.logs.FirstIndex()
	if err != nil || first <= 1 {
		return false, err
	}
	list, err := s.snapshots.List()
	return err != nil || len(list) == 0 || list[0].Index+1 < first, nil
}

// snapshotsLookedAt is how often.
const snapshotsLookedAt = 5 * time.Second

// keepSnapshots mends them while this node runs.
func (c *Cluster) keepSnapshots() {
	tick := time.NewTicker(snapshotsLookedAt)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-c.done.Done():
			return
		}
		if err := c.withRaft(c.done, c.meta.mendSnapshots); err != nil && c.done.Err() == nil {
			c.log.Error("a snapshot of the metadata is lost, and can't be made anew; it is tried again", "error", err)
		}
	}
}

// proveSnapshots reads the newest snapshot, so that damage is known before raft
// begins anew on it, and mends it.
func (m *metaraft) proveSnapshots(r *instance) error {
	if list, err := m.store.snapshots.List(); err == nil && len(list) > 0 {
		if _, source, err := m.store.snapshots.Open(list[0].ID); err == nil { // compares the checksum
			_ = source.Close()
		}
	}
	return m.mendSnapshots(r)
}

// mendSnapshots takes a new snapshot where the one that is needed was lost or
// damaged since the start: this node still has all of it, in memory. Neither a
// follower nor the next start could do without.
func (m *metaraft) mendSnapshots(r *instance) error {
	if lacks, err := m.store.lacksSnapshot(); err != nil || !lacks {
		return err
	}
	if err := r.Snapshot().Error(); err != nil {
		return err
	}
	m.log.Error("a snapshot of the metadata was lost or damaged on the disk; it was made anew from memory")
	return nil
}

// storedRaft is what is looked at of a raft store.
type storedRaft interface {
	raft.LogStore
	raft.StableStore
}

// checkSnapshots reads the snapshots in a folder and keeps those that are whole,
// if with the log they still hold everything that was there.
func checkSnapshots(folder string, all raft.SnapshotStore, stored storedRaft, log hclog.Logger) (raft.SnapshotStore, error) {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	sound := &soundSnapshots{SnapshotStore: all}
	var newest, once uint64 // indexes: of the newest that is whole, and of any
	var found, worst string
	for _, e := range entries {
		var term, index, at uint64
		n, _ := fmt.Sscanf(e.Name(), "%d-%d-%d", &term, &index, &at)
		if n < 3 || !e.IsDir() || strings.HasSuffix(e.Name(), halfSuffix) {
			continue
		}
		path := filepath.Join(folder, e.Name())
		found = path
		if err := checkSnapshot(all, e.Name(), term, index); err != nil {
			sound.damaged = append(sound.damaged, e.Name())
			if index >= once {
				once, worst = index, fmt.Sprintf("%s: %v", path, err)
			}
			continue
		}
		newest = max(newest, index)
	}
	if once > newest { // an older one may just be half removed
		log.Error("a snapshot of the metadata is damaged and not used", "snapshot", worst)
	}
	term, err := stored.GetUint64([]byte("CurrentTerm"))
	if err != nil && !errors.Is(err, boltdb.ErrKeyNotFound) {
		return nil, fmt.Errorf("read raft's term: %w", err)
	}
	last, err := stored.LastIndex()
	switch {
	case err != nil:
		return nil, fmt.Errorf("read raft log: %w", err)
	case found != "" && term == 0:
		return nil, fmt.Errorf("%s has nothing, though there is a snapshot %s: %w", raftFile, found, errStoreDamaged)
	case max(newest, last) < once:
		return nil, fmt.Errorf("%s: %w", worst, errStoreDamaged)
	}
	for index := newest + 1; index <= last; index++ {
		var entry raft.Log
		if err := stored.GetLog(index, &entry); err != nil {
			if worst == "" {
				worst = "the snapshot before it is missing"
			}
			return nil, fmt.Errorf("%s lacks index %d (%w), and %s: %w", raftFile, index, err, worst, errStoreDamaged)
		}
	}
	return sound, nil
}

// checkSnapshot reads one snapshot. Nothing but its name says whether what it
// says of itself is right.
func checkSnapshot(all raft.SnapshotStore, id string, term, index uint64) error {
	meta, source, err := all.Open(id) // compares the checksum
	if err != nil {
		return err
	}
	defer source.Close()
	if meta.ID != id || meta.Term != term || meta.Index != index {
		return fmt.Errorf("meta.json is of snapshot %s, term %d, index %d", meta.ID, meta.Term, meta.Index)
	}
	if meta.Version < raft.SnapshotVersionMin || meta.Version > raft.SnapshotVersionMax || len(meta.Configuration.Servers) == 0 {
		return errors.New("meta.json is of no version that is known, or lacks the members")
	}
	return nil
}
