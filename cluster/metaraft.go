package cluster

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// timing is how patient raft is.
type timing struct {
	heartbeat, election, lease time.Duration
}

var (
	// aloneTiming is for one voter, which nobody else can disagree with: it
	// need not wait to hear from a leader that can't be.
	aloneTiming = timing{20 * time.Millisecond, 20 * time.Millisecond, 20 * time.Millisecond}
	// togetherTiming is for more voters: a failed leader is replaced within
	// about a second. The lease outlasts two heartbeats of leadingHeartbeat.
	togetherTiming = timing{500 * time.Millisecond, 500 * time.Millisecond, 500 * time.Millisecond}
)

const (
	// leadingHeartbeat is how patient a leader of several voters says it is. Raft
	// sends a heartbeat each tenth to fifth of that, and a follower, whose own
	// patience stays at togetherTiming, misses two before it stands for election;
	// twice as many heartbeats took half of what an idle leader needs.
	leadingHeartbeat = time.Second

	// appendEntriesMax lets a burst of commands reach a follower in few frames.
	appendEntriesMax = 512
	// commitTimeout is how late followers may hear of a commit behind which
	// nothing more comes, and how often each is told that there was none. Behind
	// every command comes an entry at once (spread), so that little is left to
	// hear; ten times as often took a sixth of what an idle leader needs.
	commitTimeout = time.Second
	// snapshotThreshold and trailingLogs bound what a start has to apply again
	// and what a follower can catch up with without a snapshot.
	snapshotThreshold = 4_096
	trailingLogs      = 4_096
	snapshotInterval  = 30 * time.Second
	// closeThreshold is how many entries behind the last snapshot make a
	// snapshot at the stop worth its time.
	closeThreshold = 256
)

// metaraft is one node's part in the metadata raft. The raft instance in it can
// be replaced, with other timing, on the same store.
type metaraft struct {
	node      protocol.NodeID
	store     *store
	transport func(quit <-chan struct{}) (raft.Transport, error)
	log       hclog.Logger
	view      atomic.Pointer[catalog.State]
	shown     watermark
	told      listeners
	failed    func(error)
	// leads tells each gain and loss of raft's leadership, across instances.
	leads chan bool

	current atomic.Pointer[instance] // replaced by reopen
	quit    chan struct{}            // closed when the instance stops: what its transport waits for is over
	// gate is held for reading by calls on the instance and for writing while
	// it is stopped.
	gate sync.RWMutex
}

// pace has a leader of several voters send its heartbeats at leadingHeartbeat's
// pace, and gives who leads no longer back a follower's patience.
func (m *metaraft) pace(leads bool) {
	m.gate.RLock()
	defer m.gate.RUnlock()
	r := m.instance()
	if r.timing == aloneTiming {
		return // nobody hears its heartbeats
	}
	c := r.ReloadableConfig()
	c.HeartbeatTimeout, c.ElectionTimeout = r.timing.heartbeat, r.timing.election
	if leads {
		c.HeartbeatTimeout, c.ElectionTimeout = max(c.HeartbeatTimeout, leadingHeartbeat), max(c.ElectionTimeout, leadingHeartbeat)
	}
	if err := r.ReloadConfig(c); err != nil {
		m.log.Error("the metadata's raft keeps its pace", "leads", leads, "error", err)
	}
}

// instance is one raft over the store.
type instance struct {
	*raft.Raft
	machine *machine
	timing  timing
}

// beginning is what an empty store means.
type beginning int

const (
	founded beginning = iota // data was lost: it must hold what was founded
	founding
	joining // a leader will fill it
)

// open starts raft. On an empty store it founds a cluster of this node alone, or
// waits for a leader, or is refused.
func (m *metaraft) open(t timing, b beginning) error {
	exists, err := raft.HasExistingState(m.store.logs, m.store.latched, m.store.snapshots)
	if err == nil && exists && b == founded { // by a term alone
		exists, err = m.store.holds()
	}
	switch {
	case err != nil:
		return fmt.Errorf("look into raft store: %w", err)
	case !exists && b == founded:
		return fmt.Errorf("%w: the raft store of node %q is empty, though its cluster was founded; put it back from a backup, "+
			"or move the data directory away to start anew", ErrIdentity, m.node)
	}
	m.quit = make(chan struct{})
	transport, err := m.transport(m.quit)
	if err != nil {
		return fmt.Errorf("open raft transport: %w", err)
	}
	if !exists && b == founding {
		self := raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(m.node), Address: transport.LocalAddr()}}}
		if err := raft.BootstrapCluster(m.config(t), m.store.logs, m.store.latched, m.store.snapshots, transport, self); err != nil {
			return fmt.Errorf("found cluster: %w", err)
		}
	}
	return m.start(t, transport, 0)
}

func (m *metaraft) instance() *instance { return m.current.Load() }

func (m *metaraft) config(t timing) *raft.Config {
	c := raft.DefaultConfig()
	c.LocalID = raft.ServerID(m.node)
	c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = t.heartbeat, t.election, t.lease
	c.BatchApplyCh = true
	c.CommitTimeout = commitTimeout
	c.MaxAppendEntries = appendEntriesMax
	c.SnapshotThreshold, c.SnapshotInterval, c.TrailingLogs = snapshotThreshold, snapshotInterval, trailingLogs
	c.NoLegacyTelemetry = true
	c.NotifyCh = m.leads
	c.Logger = calm{m.log, t == aloneTiming}
	return c
}

// start runs a raft instance; what it applies up to hold was published before.
func (m *metaraft) start(t timing, transport raft.Transport, hold uint64) error {
	if m.view.Load() == nil {
		m.view.Store(catalog.New())
	}
	m.store.latched.alone.Store(t == aloneTiming)
	machine := &machine{view: &m.view, shown: &m.shown, told: &m.told, failed: m.failed, state: catalog.New(), hold: hold}
	r, err := raft.NewRaft(m.config(t), machine, m.store.logs, m.store.latched, m.store.snapshots, transport)
	if err != nil {
		if machine.broken != nil {
			return machine.broken
		}
		return fmt.Errorf("start raft: %w", err)
	}
	m.current.Store(&instance{r, machine, t})
	return nil
}

// stop ends the instance; the store stays open. The gate is closed.
func (m *metaraft) stop() error {
	over := m.instance().Shutdown()
	close(m.quit)
	if err := over.Error(); err != nil {
		return fmt.Errorf("stop raft: %w", err)
	}
	return nil
}

// reopen replaces the instance by one with other timing. Since a lease can't be
// changed while raft runs, one voter must do so before a second one joins: the
// short lease of a lonely leader would end with every slow answer. The view
// stays where it is; calls meet ErrUnavailable meanwhile and try again.
func (m *metaraft) reopen(t timing) error {
	m.gate.Lock()
	defer m.gate.Unlock()
	if err := errors.Join(m.proveSnapshots(m.instance()), m.stop()); err != nil {
		return err
	}
	m.quit = make(chan struct{})
	transport, err := m.transport(m.quit)
	if err != nil {
		return fmt.Errorf("open raft transport: %w", err)
	}
	return m.start(t, transport, m.instance().machine.applied)
}

// close takes a snapshot if a start would have much to apply, and stops.
func (m *metaraft) close() error {
	m.store.latched.release() // what waits for space would keep the gate
	m.gate.Lock()
	defer m.gate.Unlock()
	if err := m.proveSnapshots(m.instance()); err != nil {
		m.log.Error("a snapshot of the metadata is lost, and the next start will want it", "error", err)
	}
	if m.behindSnapshot() > closeThreshold {
		if err := m.instance().Snapshot().Error(); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) {
			m.log.Warn("no snapshot of the catalog at the stop; the next start applies the log instead", "error", err)
		}
	}
	return errors.Join(m.stop(), m.store.close())
}

// behindSnapshot counts the applied entries that no snapshot holds.
func (m *metaraft) behindSnapshot() uint64 {
	list, err := m.store.snapshots.List()
	if err != nil || len(list) == 0 {
		return m.instance().AppliedIndex()
	}
	return m.instance().AppliedIndex() - list[0].Index
}

// calm tunes raft's voice to ours: what it tells of its ordinary life is of use
// when debugging it, and a lonely voter has nobody to miss.
type calm struct {
	hclog.Logger
	alone bool
}

func (c calm) Info(message string, pairs ...any) { c.Logger.Debug(message, pairs...) }

func (c calm) Warn(message string, pairs ...any) {
	if c.alone {
		c.Logger.Debug(message, pairs...)
		return
	}
	c.Logger.Warn(message, pairs...)
}

// routine is what raft says over and over while another node is not there; that
// it is not is said once, by presence.
var routine = []string{"failed to heartbeat", "failed to appendEntries", "failed to make requestVote", "failed to make requestPreVote",
	"failed to start pipeline", "failed to decode incoming command", "failed to accept connection", "failed to install snapshot", "failed to flush response"}

func (c calm) Error(message string, pairs ...any) {
	for _, r := range routine {
		if strings.HasPrefix(message, r) {
			c.Logger.Debug(message, pairs...)
			return
		}
	}
	c.Logger.Error(message, pairs...)
}

func (c calm) Named(name string) hclog.Logger      { return calm{c.Logger.Named(name), c.alone} }
func (c calm) With(pairs ...any) hclog.Logger      { return calm{c.Logger.With(pairs...), c.alone} }
func (c calm) ResetNamed(name string) hclog.Logger { return calm{c.Logger.ResetNamed(name), c.alone} }
