package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
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
	// Transport makes raft's connections; nil is a node that stays alone.
	Transport func() (raft.Transport, error)
	Log       hclog.Logger // nil is silence
}

// defaultVHost is there from the start.
const defaultVHost = "/"

// Cluster is this node's part in the metadata. Its methods may be called from
// any goroutine.
type Cluster struct {
	config  Config
	id      identity
	log     hclog.Logger
	meta    *metaraft
	coord   *coordinator
	creates *creates
	wishes  *wishes
	prover  *prover

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
// their leaders meanwhile (AwaitLeaders).
func Open(config Config) (*Cluster, error) {
	if config.Log == nil {
		config.Log = hclog.NewNullLogger()
	}
	if config.Fencer == nil || config.Node == "" || config.Dir == "" {
		return nil, errors.New("cluster: a data directory, a node name and a Fencer are needed")
	}
	if err := os.MkdirAll(config.Dir, 0o700); err != nil {
		return nil, fmt.Errorf("make data directory: %w", err)
	}
	id, err := openIdentity(config.Dir, config.Node)
	if err != nil {
		return nil, err
	}
	c := &Cluster{config: config, id: id, log: config.Log.Named("cluster"), prover: newProver()}
	c.failure.ch = make(chan struct{})
	c.done, c.stop = context.WithCancel(context.Background())
	if err := c.start(); err != nil {
		c.stop()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start() error {
	log := c.config.Log.Named("raft")
	store, err := openStore(c.config.Dir, calm{log, true}, c.fail)
	if err != nil {
		return err
	}
	c.meta = &metaraft{
		node: c.config.Node, store: store, transport: c.config.Transport, log: log, failed: c.fail, leads: make(chan bool, 16),
	}
	if c.meta.transport == nil {
		c.meta.transport = aloneTransport(c.config.Node)
	}
	if err := c.meta.open(aloneTiming, c.id.Founding); err != nil {
		return errors.Join(err, store.close())
	}
	c.coord = newCoordinator(c)
	c.creates, c.wishes = newCreates(), newWishes(c.config.Node)
	c.meta.told.add(c.coord.changed)
	c.meta.told.add(c.wishes.changed)
	c.tasks.Go(c.lead)
	c.tasks.Go(c.create)
	c.tasks.Go(c.carry)
	ctx, cancel := context.WithTimeout(c.done, openPatience)
	defer cancel()
	if err := c.enter(ctx); err != nil {
		return errors.Join(err, c.Close())
	}
	return nil
}

// openPatience bounds the wait for a raft leader at the start.
const openPatience = 30 * time.Second

// aloneTransport connects raft to nobody.
func aloneTransport(node protocol.NodeID) func() (raft.Transport, error) {
	return func() (raft.Transport, error) {
		_, t := raft.NewInmemTransport(raft.ServerAddress(node))
		return t, nil
	}
}

// enter waits until this node leads the metadata with all of the past applied,
// and makes it a member. A cluster that is being founded gets its first virtual
// host and users.
func (c *Cluster) enter(ctx context.Context) error {
	if err := c.barrier(ctx); err != nil {
		return err
	}
	var bodies []catalog.Body
	if c.id.Founding {
		bodies = append(bodies, c.first()...)
	}
	self := &catalog.PutNode{
		ID: c.config.Node, Disk: c.id.Disk, Endpoints: c.config.Endpoints, Rack: c.config.Rack, Version: c.config.Version,
	}
	if old, ok := c.View().Node(self.ID); !ok || old.Disk != self.Disk || old.Endpoints != self.Endpoints ||
		old.Rack != self.Rack || old.Version != self.Version {
		bodies = append(bodies, self)
	}
	results, err := c.proposeAll(ctx, bodies)
	if err != nil {
		return err
	}
	for i, r := range results {
		err := r.Err()
		if err != nil && !errors.Is(err, catalog.ErrVHostExists) && !errors.Is(err, catalog.ErrUserExists) {
			return fmt.Errorf("enter cluster: command %d of %d: %w", i+1, len(results), err)
		}
	}
	if c.id.Founding {
		c.id.Founding = false
		c.log.Info("cluster founded", "cluster", c.id.Cluster, "node", c.config.Node)
		return c.id.write(c.config.Dir)
	}
	return nil
}

// first is what a new cluster begins with. A founding that was cut short is
// done again: what is there already is refused and left as it is.
func (c *Cluster) first() []catalog.Body {
	bodies := []catalog.Body{&catalog.CreateVHost{Name: defaultVHost}}
	for _, u := range c.config.Users {
		bodies = append(bodies,
			&catalog.PutUser{Name: u.Name, Hash: u.Hash, Tags: u.Tags, New: true},
			&catalog.SetPermission{VHost: defaultVHost, User: u.Name, Configure: ".*", Write: ".*", Read: ".*"})
	}
	return bodies
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
func (c *Cluster) ID() string { return c.id.Cluster }

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
	var streams []chunk.Incarnation
	for s := range c.View().Streams() {
		streams = append(streams, s.Incarnation)
	}
	return c.coord.awaitAll(ctx, streams)
}

// LeaderOver tells that the replica on this node does not lead the epoch any
// more; the stream gets a new one.
func (c *Cluster) LeaderOver(stream chunk.Incarnation, epoch chunk.Epoch) {
	c.coord.over(stream, epoch)
}

// LeaderYields tells that the replica on this node, which is to go, has handed
// the stream over to its heir for good and leads no more (D3, D4).
func (c *Cluster) LeaderYields(stream chunk.Incarnation, epoch chunk.Epoch, heir protocol.NodeID) {
	c.coord.post(func(view *catalog.State, sight *catalog.Sight) {
		if s, ok := view.Incarnation(stream); ok {
			sight.HandedOver(s, epoch, heir)
		}
	}, stream)
}

// See notes whether a node answers, as gossip and the link find it. It is a
// hint: streams led by a node that is gone get another leader, and new ones go
// elsewhere.
func (c *Cluster) See(node protocol.NodeID, presence catalog.Presence) { c.coord.see(node, presence) }

// Close stops this node's part in order; the next Open finds all again.
func (c *Cluster) Close() (err error) {
	c.closed.Do(func() {
		c.stop()
		c.tasks.Wait()
		err = c.meta.close()
	})
	return err
}
