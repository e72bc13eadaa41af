package cluster

import (
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/renameio/v2"

	"github.com/millrace/millrace/replication/protocol"
)

// identityFile says whose data directory this is.
const identityFile = "node.json"

// identity is what a data directory knows about its node. Node and Disk stay as
// they are for the directory's life, and so does Cluster once it is known.
type identity struct {
	Format  int             `json:"format"` // 1
	Node    protocol.NodeID `json:"node"`
	Cluster string          `json:"cluster"` // id, drawn when the cluster was founded; "" before that
	Disk    string          `json:"disk"`    // id, drawn when the directory was made
	// Founding: the cluster was being founded here and it is not known to have
	// been finished. Only then may an empty raft store be filled.
	Founding bool `json:"founding,omitempty"`
	// Joining: the node looks for its cluster, or has found it and is not known
	// to have been taken in. Only then may an empty raft store wait for a leader.
	Joining bool `json:"joining,omitempty"`
	// Pledge names who may found a cluster with this node.
	Pledge *pledge `json:"pledge,omitempty"`
	// Together: raft's voters were, or may have been, more than one.
	Together bool `json:"together,omitempty"`
	// Recovered: the other nodes were given up (Recover), and the catalog does
	// not know it yet.
	Recovered bool `json:"recovered,omitempty"`
}

// pledge is a word given to one founder, never to two at a time. It holds until
// that founder says that it founds nothing.
type pledge struct {
	Founder protocol.NodeID `json:"founder"`
	Disk    string          `json:"disk"`
}

// openIdentity reads the identity of a data directory, or gives it one: of the
// founder of a cluster, or of a node that is to join one. A directory of another
// node is an ErrIdentity.
func openIdentity(dir string, node protocol.NodeID, join bool) (identity, error) {
	id, err := readIdentity(dir, node)
	if errors.Is(err, fs.ErrNotExist) {
		return newIdentity(dir, node, join)
	}
	return id, err
}

func readIdentity(dir string, node protocol.NodeID) (identity, error) {
	path := filepath.Join(dir, identityFile)
	b, err := os.ReadFile(path)
	if err != nil {
		return identity{}, fmt.Errorf("read node identity: %w", err)
	}
	var id identity
	if err := json.Unmarshal(b, &id); err != nil {
		return identity{}, fmt.Errorf("%w: %s can't be read: %v; put the file back from a backup", ErrIdentity, path, err)
	}
	switch {
	case id.Format != 1:
		return identity{}, fmt.Errorf("%w: %s has format %d, this program knows 1: upgrade this node", ErrIdentity, path, id.Format)
	case id.Node == "" || id.Cluster == "" && !id.Joining || id.Disk == "":
		return identity{}, fmt.Errorf("%w: %s lacks the node, the cluster or the disk; put the file back from a backup", ErrIdentity, path)
	case id.Node != node:
		return identity{}, fmt.Errorf("%w: %s belongs to node %q, and this one is to be %q; use that name or another data directory",
			ErrIdentity, dir, id.Node, node)
	}
	return id, nil
}

// newIdentity makes a data directory's identity. A raft store without one is
// refused, since it could be anybody's.
func newIdentity(dir string, node protocol.NodeID, join bool) (identity, error) {
	raftDir := filepath.Join(dir, raftFolder)
	if _, err := os.Stat(raftDir); err == nil {
		return identity{}, fmt.Errorf("%w: %s is there but %s is not; put the file back from a backup, or move %s away to start anew",
			ErrIdentity, raftDir, identityFile, dir)
	}
	id := identity{Format: 1, Node: node, Disk: draw(), Joining: join}
	if !join {
		id.Cluster, id.Founding = draw(), true
	}
	return id, id.write(dir)
}

// write stores the identity so that a crash leaves the old or the new one.
func (id identity) write(dir string) error {
	b, err := json.MarshalIndent(id, "", "  ")
	if err != nil {
		return fmt.Errorf("encode node identity: %w", err)
	}
	if err := renameio.WriteFile(filepath.Join(dir, identityFile), append(b, '\n'), 0o600); err != nil {
		return fmt.Errorf("write node identity: %w", err)
	}
	return syncDir(dir)
}

// syncDir makes created and renamed entries of a directory durable.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return fmt.Errorf("sync directory: %w", err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("sync directory %s: %w", dir, err)
	}
	return nil
}

// draw returns 128 random bits as text.
func draw() string {
	var b [16]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}
