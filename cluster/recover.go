package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// Recovery is what is left if one node goes on alone.
type Recovery struct {
	Node    protocol.NodeID   `json:"node"`
	Cluster string            `json:"cluster"`
	GivenUp []protocol.NodeID `json:"given_up"` // nodes
	// Kept are the streams of which the node has a replica, Lost the others.
	Kept int      `json:"kept_streams"`
	Lost []string `json:"lost_streams"`
}

// PlanRecovery tells what Recover would do with a data directory; no node may
// run in it.
func PlanRecovery(dir string) (Recovery, error) {
	id, store, err := openForRecovery(dir)
	if err != nil {
		return Recovery{}, err
	}
	defer store.close()
	state, err := replay(store)
	if err != nil {
		return Recovery{}, err
	}
	r := Recovery{Node: id.Node, Cluster: id.Cluster, GivenUp: []protocol.NodeID{}, Lost: []string{}}
	for n := range state.Nodes() {
		if n.ID != id.Node {
			r.GivenUp = append(r.GivenUp, n.ID)
		}
	}
	for s := range state.Streams() {
		if _, here := s.Replica(id.Node); here {
			r.Kept++
		} else {
			r.Lost = append(r.Lost, s.Name)
		}
	}
	slices.Sort(r.Lost)
	return r, nil
}

// Recover makes the node of a data directory, in which none may run, the only
// one of its cluster, after a majority of the voters was lost for good. All that
// its own metadata has counts as committed, be it so or not; at the next start
// the catalog gives the other nodes up, and every stream of which this node has
// no replica. The others must never come back with what they had.
func Recover(dir string) error {
	id, store, err := openForRecovery(dir)
	if err != nil {
		return err
	}
	defer store.close()
	// First, so that a recovery that is cut short is not taken for a member's
	// start: it can be repeated.
	id.Recovered, id.Together, id.Joining, id.Founding, id.Pledge = true, false, false, false, nil
	if err := id.write(dir); err != nil {
		return err
	}
	machine, failed := offlineMachine()
	_, transport := raft.NewInmemTransport(raft.ServerAddress(id.Node))
	self := raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(id.Node), Address: raft.ServerAddress(id.Node)}}}
	config := raft.DefaultConfig()
	config.LocalID, config.Logger = raft.ServerID(id.Node), hclog.NewNullLogger()
	if err := raft.RecoverCluster(config, machine, store.logs, store.latched, store.snapshots, transport, self); err != nil {
		return fmt.Errorf("recover metadata: %w", errors.Join(err, *failed))
	}
	if err := os.Remove(filepath.Join(dir, bookFile)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("forget the other nodes' addresses: %w", err)
	}
	return syncDir(dir)
}

// openForRecovery opens what a stopped node has.
func openForRecovery(dir string) (identity, *store, error) {
	var id identity
	text, err := os.ReadFile(filepath.Join(dir, identityFile))
	if err == nil {
		err = json.Unmarshal(text, &id)
	}
	if err != nil {
		return id, nil, fmt.Errorf("read node identity: %w", err)
	}
	if id, err = readIdentity(dir, id.Node); err != nil {
		return id, nil, err
	}
	if id.Cluster == "" {
		return id, nil, fmt.Errorf("%w: node %q is in no cluster yet; there is nothing to recover", ErrIdentity, id.Node)
	}
	s, err := openStore(dir, hclog.NewNullLogger(), func(error) {}) // who writes hears of it
	return id, s, err
}

// offlineMachine folds what a store has, and keeps why it could not.
func offlineMachine() (*machine, *error) {
	failed := new(error)
	return &machine{
		view: new(atomic.Pointer[catalog.State]), shown: new(watermark), told: &listeners{},
		failed: func(err error) { *failed = err }, state: catalog.New(),
	}, failed
}

// replay returns the catalog with everything that a store has, committed or not.
func replay(s *store) (*catalog.State, error) {
	m, failed := offlineMachine()
	snapshots, err := s.snapshots.List()
	if err != nil {
		return nil, fmt.Errorf("list catalog snapshots: %w", err)
	}
	first := uint64(1)
	if len(snapshots) > 0 {
		_, source, err := s.snapshots.Open(snapshots[0].ID)
		if err == nil {
			err = m.Restore(source)
		}
		if err != nil {
			return nil, fmt.Errorf("read catalog snapshot: %w", err)
		}
		first = snapshots[0].Index + 1
	}
	last, err := s.logs.LastIndex()
	if err != nil {
		return nil, fmt.Errorf("read raft log: %w", err)
	}
	for index := first; index <= last; index++ {
		var entry raft.Log
		if err := s.logs.GetLog(index, &entry); err != nil {
			return nil, fmt.Errorf("read raft log at index %d: %w", index, err)
		}
		m.Apply(&entry)
	}
	return m.state, *failed
}
