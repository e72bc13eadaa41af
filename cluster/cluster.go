package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Config is what a node brings to its cluster.
type Config struct {
	// Dir is the data directory; node.json and raft/ are the cluster's there.
	Dir string
	// Node is this node's name, which stays the same for the directory's life.
	Node protocol.NodeID
	// Endpoints, Rack and Version are told to the others.
	Endpoints catalog.Endpoints
	Rack      string
	Version   string
	// Users are made when the cluster is founded, administrators of all of
	// virtual host "/". Hash comes from HashPassword.
	Users []catalog.User
	// Fencer reaches replicas. It must answer from Open on.
	Fencer Fencer
	// Registered, if given, hears that a replica of this node was entered anew,
	// which it had Proposed: the epoch is the promise to make before anything
	// else (D1). It must not block.
	Registered func(chunk.Incarnation, chunk.Epoch, protocol.Registration)
	// Network reaches the other nodes; nil is a node that stays alone.
	Network Network
	// Gossip is beside it, if it has an address.
	Gossip Gossip
	// LowChanged, if given, hears that Low answers something else of other nodes.
	// It must not block.
	LowChanged func()
	// GroupPatience is after how long out of contact a node's single active
	// consumers are passed over; default 10 s.
	GroupPatience time.Duration
	// Joins is how a node without data comes to its cluster.
	Joins Joins
	Log   hclog.Logger // nil is silence
}

// defaultVHost is there from the start.
const defaultVHost = "/"

// Cluster is this node's part in the metadata. Its methods may be called from
// any goroutine.
type Cluster struct {
	config  Config
	boot    string // drawn for this process
	log     hclog.Logger
	meta    *metaraft
	coord   *coordinator
	creates *creates
	wishes  *wishes
	ends    *ends
	groups  *groups
	voters  *voters
	spread  *spread
	prover  *prover
	methods map[uint16]serve

	gossip     *gossip // nil: none
	book       *book
	neighbours neighbours
	presence   *presence
	lows       lows
	deletions  deletions
	turn       atomic.Uint32 // whom to ask where the leader is not known
	started    atomic.Bool   // meta is there
	entered    atomic.Bool   // this node is a member, with all of the past applied

	idMu sync.Mutex // guards id
	id   identity

	stop   context.CancelFunc
	done   context.Context // ends with stop
	tasks  sync.WaitGroup
	closed sync.Once

	failure struct {
		sync.Mutex
		err error
		ch  chan struct{} // closed with the first failure
	}
}

// Open starts the node's part. When it returns, View shows all that was
// committed before, this node is a member, and calls are served; streams get
// their leaders meanwhile (AwaitLeaders). A node that needs others waits for
// them as long as ctx.
func Open(ctx context.Context, config Config) (*Cluster, error) {
	if config.LowChanged == nil {
		config.LowChanged = func() {}
	}
	if config.Log == nil {
		config.Log = hclog.NewNullLogger()
	}
	if config.GroupPatience == 0 {
		config.GroupPatience = 10 * time.Second
	}
	if config.Fencer == nil || config.Node == "" || config.Dir == "" {
		return nil, errors.New("cluster: a data directory, a node name and a Fencer are needed")
	}
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	c, err := prepare(config)
	if err != nil {
		return nil, err
	}
	if config.Network != nil {
		config.Network.Open(c)
	}
	if err := c.belong(ctx); err != nil {
		c.stop()
		return nil, err
	}
	if c.gossips() && len(config.Gossip.Secrets) > 0 {
		if err := c.openGossipBySecrets(); err != nil {
			c.stop()
			return nil, err
		}
	}
	if err := c.start(ctx); err != nil {
		c.stop()
		if c.gossip != nil {
			c.gossip.close()
		}
		return nil, err
	}
	return c, nil
}

// prepare makes a Cluster that can answer knocks.
func prepare(config Config) (*Cluster, error) {
	join := config.Network != nil && !config.Joins.alone()
	id, err := openIdentity(config.Dir, config.Node, join)
	if err != nil {
		return nil, err
	}
	c := &Cluster{
		lows:   lows{of: map[protocol.NodeID]bool{}},
		config: config, boot: draw(), id: id, log: config.Log.Named("cluster"), prover: newProver(),
		creates: newCreates(), wishes: newWishes(config.Node), ends: newEnds(), groups: newGroups(), voters: newVoters(), spread: newSpread(),
	}
	if c.book, err = openBook(config.Dir); err != nil {
		return nil, err
	}
	c.failure.ch = make(chan struct{})
	c.done, c.stop = context.WithCancel(context.Background())
	c.coord = newCoordinator(c)
	c.presence = newPresence(c.see)
	log := config.Log.Named("raft")
	c.meta = &metaraft{
		node: config.Node, log: log, failed: c.fail, leads: make(chan bool, 16), transport: aloneTransport(config.Node),
	}
	if config.Network != nil {
		c.meta.transport = raftTransport(config.Network, config.Node, c.presence, log)
	}
	c.meta.view.Store(catalog.New())
	c.meta.told.add(c.coord.changed)
	c.meta.told.add(c.wishes.changed)
	c.meta.told.add(c.nodesChanged)
	c.meta.told.add(c.deletions.changed)
	c.methods = map[uint16]serve{
		methodPropose: method(c.proposeHere), methodCreate: method(c.createHere), methodCreateSuper: method(c.createSuperHere),
		methodAwait: method(c.awaitHere), methodOver: method(c.overHere), methodEnter: method(c.enterHere),
		methodTransfer: method(c.transferHere), methodRemove: method(c.removeHere), methodMembers: method(c.overviewHere),
		methodBarrier: method(c.barrierHere),
	}
	return c, c.certify()
}

// certify gives a cluster that is being founded by one node the id that its
// certificate names, and refuses a certificate of another cluster.
func (c *Cluster) certify() error {
	if c.config.Network == nil {
		return nil
	}
	cluster, err := c.config.Network.Certified()
	if err != nil || cluster == "" {
		return err
	}
	switch id := c.identity(); {
	case id.Cluster == "" || id.Cluster == cluster:
		return nil
	case id.Founding:
		return c.changeIdentity(func(id *identity) { id.Cluster = cluster })
	default:
		return fmt.Errorf("%w: node %q is of cluster %s, its certificate of %s; issue one for its cluster (millrace cert issue)",
			ErrOtherCluster, id.Node, id.Cluster, cluster)
	}
}

func (c *Cluster) start(ctx context.Context) error {
	store, err := openStore(c.config.Dir, calm{c.meta.log, true}, c.fail)
	if err != nil {
		return err
	}
	c.meta.store = store
	for _, node := range c.book.nodes() {
		c.expect(node)
	}
	t, b := c.begins()
	if err := c.meta.open(t, b); err != nil {
		return errors.Join(err, store.close())
	}
	c.started.Store(true)
	c.tasks.Go(c.lead)
	c.tasks.Go(c.create)
	c.tasks.Go(c.carry)
	c.tasks.Go(c.carryEnds)
	c.tasks.Go(c.carryGroups)
	c.tasks.Go(c.tend)
	c.tasks.Go(c.keepSnapshots)
	if c.gossip != nil {
		c.tasks.Go(func() { c.gossip.run(c.done) })
	}
	if c.config.Network == nil {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, openPatience)
		defer cancel()
	}
	byCatalog := c.gossips() && c.gossip == nil
	if byCatalog {
		c.foreseeGossip()
	}
	err = c.enter(ctx)
	if err == nil && byCatalog {
		err = c.openGossipByCatalog(ctx)
	}
	if err != nil {
		return errors.Join(err, c.Close())
	}
	return nil
}

// gossips tells whether this node takes part in gossip.
func (c *Cluster) gossips() bool { return c.config.Network != nil && c.config.Gossip.Addr != "" }

// begins says how raft starts.
func (c *Cluster) begins() (timing, beginning) {
	t, b := aloneTiming, founded
	id := c.identity()
	if id.Together {
		t = togetherTiming
	}
	switch {
	case id.Founding:
		b = founding
	case id.Joining:
		b = joining
	}
	return t, b
}

// openPatience bounds the wait of a node that needs nobody else.
const openPatience = 30 * time.Second

// aloneTransport connects raft to nobody.
func aloneTransport(node protocol.NodeID) func(<-chan struct{}) (raft.Transport, error) {
	return func(<-chan struct{}) (raft.Transport, error) {
		_, t := raft.NewInmemTransport(raft.ServerAddress(node))
		return t, nil
	}
}

// View is the catalog as this node knows it now. It must not be changed.
func (c *Cluster) View() *catalog.State { return c.meta.view.Load() }

// Subscribe has changes told, in order, once View shows them, by the goroutine
// that applies them: told must not block, nor call back into Subscribe or the
// cancel function.
func (c *Cluster) Subscribe(told func([]catalog.Change)) (cancel func()) {
	return c.meta.told.add(told)
}

// ID returns the cluster's id.
func (c *Cluster) ID() string { return c.identity().Cluster }

// Node returns this node's name.
func (c *Cluster) Node() protocol.NodeID { return c.config.Node }

// Failed is closed when the node must be stopped; Err then says why.
func (c *Cluster) Failed() <-chan struct{} { return c.failure.ch }

// Err returns what made the metadata fail, or nil.
func (c *Cluster) Err() error {
	c.failure.Lock()
	defer c.failure.Unlock()
	return c.failure.err
}

// fail keeps the first failure. It may be called by raft's goroutines.
func (c *Cluster) fail(err error) {
	c.failure.Lock()
	defer c.failure.Unlock()
	if c.failure.err == nil {
		c.failure.err = fmt.Errorf("%w: %w", ErrFailed, err)
		c.log.Error("metadata failed, the node must stop", "error", err)
		close(c.failure.ch)
	}
}

// AwaitLeaders waits until every stream that View shows now has a leader that
// says it leads, or is gone, or is known to be stuck.
func (c *Cluster) AwaitLeaders(ctx context.Context) error {
	_, err := atLeader(ctx, c, methodAwait, nothing{}, c.awaitHere)
	return err
}

func (c *Cluster) awaitHere(ctx context.Context, _ nothing) (nothing, error) {
	var streams []chunk.Incarnation
	for s := range c.View().Streams() {
		streams = append(streams, s.Incarnation)
	}
	return nothing{}, c.coord.awaitAll(ctx, streams)
}

// LeaderOver tells that the replica on this node does not lead the epoch any
// more; the stream gets a new one.
func (c *Cluster) LeaderOver(stream chunk.Incarnation, epoch chunk.Epoch) {
	c.ends.add(ended{Stream: stream, Epoch: epoch})
}

// LeaderYields tells that the replica on this node, which is to go, has handed
// the stream over to its heir for good and leads no more (D3, D4).
func (c *Cluster) LeaderYields(stream chunk.Incarnation, epoch chunk.Epoch, heir protocol.NodeID) {
	c.ends.add(ended{stream, epoch, heir})
}

// see notes whether a node answers. It is a hint: streams led by a node that is
// gone get another leader, and new ones go elsewhere.
func (c *Cluster) see(node protocol.NodeID, presence catalog.Presence) {
	if node == c.config.Node {
		return
	}
	c.log.Info("a node came or went", "node", node, "now", presence.String())
	c.coord.see(node, presence)
	c.voters.nudge()
	c.groups.nudgeReach()
}

// Close stops this node's part in order; the next Open finds all again.
func (c *Cluster) Close() (err error) {
	c.closed.Do(func() {
		c.stop()
		c.tasks.Wait()
		if c.gossip != nil {
			c.gossip.close()
		}
		err = c.meta.close()
		if e := c.book.save(); e != nil {
			c.log.Warn("the other nodes' addresses could not be written; the next start may need --join", "error", e)
		}
	})
	return err
}
