package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/cmd/millrace/config"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// ErrInUse: another process works in the data directory.
var ErrInUse = errors.New("the data directory is in use")

// Node is a running node. Start makes one.
type Node struct {
	config  config.Config
	version string
	log     hclog.Logger
	started time.Time

	listeners listeners
	addresses admin.Addresses

	store    *segstore.Store
	scrubber *segstore.Scrubber
	// stopScrub ends the reading; scrubbed is done once it has.
	stopScrub context.CancelFunc
	scrubbed  sync.WaitGroup
	replicas  *replication.Node
	residents *residents
	mender    *mender
	cluster   *cluster.Cluster
	// metadata is cluster, for what replicas say while it is still opening.
	metadata late
	// mux is the port between nodes; nil, as links, for a node that stays alone.
	mux   *link.Mux
	links *link.Links
	// transport carries replicas' frames once there are links.
	transport *transport
	// forwards carries clients' commands to the nodes that they belong to.
	forwards forwards
	// requests are other nodes', by the room that they are for.
	requests requests
	// security is how this node proves itself to others; nil for one that stays
	// alone.
	security *security
	// certificates are what clients and operators see; nil without TLS.
	certificates *certificates
	// host is the metadata as other nodes reach it; nil before it opens.
	host atomic.Pointer[cluster.Host]
	// ask sends a request to another node.
	ask func(ctx context.Context, to protocol.NodeID, method uint16, body []byte) ([]byte, error)
	// nodeAddress is where other nodes find this one.
	nodeAddress string
	broker      *broker.Broker
	alarm       diskAlarm
	lows        lowDisks
	https       []*http.Server

	serving sync.WaitGroup // accept loops, and requests of other nodes
	// running ends when the node stops.
	running context.Context
	halt    context.CancelFunc
	ready   atomic.Bool

	failure struct {
		sync.Mutex // guards err
		err        error
		ch         chan struct{} // closed with the first failure
	}
}

// Start brings a node up and returns when clients are served. ctx ends the
// wait, not the node.
func Start(ctx context.Context, c config.Config, version string, log hclog.Logger) (*Node, error) {
	n := &Node{config: c, version: version, log: log, started: time.Now()}
	n.failure.ch = make(chan struct{})
	n.running, n.halt = context.WithCancel(context.WithoutCancel(ctx))
	for _, step := range []func(context.Context) error{
		n.openCertificates, n.listen, n.openStore, n.openLinks, n.openCluster, n.openBroker, n.serveOperators, n.serveClients,
	} {
		if err := step(ctx); err != nil {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			return nil, errors.Join(err, n.Stop(stop))
		}
	}
	return n, nil
}

// listen takes all ports first: a port that is taken is the commonest reason
// not to start, and nothing has happened yet.
func (n *Node) listen(context.Context) error {
	var err error
	if n.listeners, err = listenAll(n.config); err != nil {
		return err
	}
	if n.config.NodeName == "" {
		if n.config.NodeName, err = n.defaultName(); err != nil {
			return err
		}
	}
	stream := n.listeners.stream[0].Addr().(*net.TCPAddr)
	if n.config.AdvertisedPort == 0 {
		n.config.AdvertisedPort = stream.Port
	}
	if n.config.AdvertisedHost == "" {
		if n.config.AdvertisedHost, err = advertisedHost(n.config.StreamAddr); err != nil {
			return err
		}
	}
	n.config.AdvertisedTLSHost = cmp.Or(n.config.AdvertisedTLSHost, n.config.AdvertisedHost)
	advertisedTLS := ""
	if on := n.listeners.streamTLS; len(on) > 0 {
		n.config.AdvertisedTLSPort = cmp.Or(n.config.AdvertisedTLSPort, on[0].Addr().(*net.TCPAddr).Port)
		advertisedTLS = net.JoinHostPort(n.config.AdvertisedTLSHost, strconv.Itoa(n.config.AdvertisedTLSPort))
	}
	n.addresses = admin.Addresses{
		StreamTLS: shown(n.config.StreamTLSAddr, n.listeners.streamTLS), AdvertisedTLS: advertisedTLS,
		HTTPTLS:    shown(n.config.HTTPTLSAddr, n.listeners.httpTLS),
		Stream:     shown(n.config.StreamAddr, n.listeners.stream),
		Advertised: net.JoinHostPort(n.config.AdvertisedHost, strconv.Itoa(n.config.AdvertisedPort)),
		HTTP:       shown(n.config.HTTPAddr, n.listeners.http),
		Management: shown(n.config.ManagementAddr, n.listeners.management),
	}
	return nil
}

// identityFile is the cluster's; only what is needed before it is open is read
// here.
const identityFile = "node.json"

type identity struct {
	Node     string `json:"node"`
	Founding bool   `json:"founding"`
}

func (n *Node) identity() (id identity, err error) {
	text, err := os.ReadFile(filepath.Join(n.config.DataDir, identityFile))
	if err == nil {
		err = json.Unmarshal(text, &id)
	}
	return id, err
}

// defaultName is what the data directory says, else the host's name: a
// directory that moves to another host keeps its node.
func (n *Node) defaultName() (string, error) {
	if id, err := n.identity(); err == nil && id.Node != "" {
		return id.Node, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name the node after its host: %w; set node.name", err)
	}
	return name, nil
}

// advertisedHost is the host of the stream address, or this machine's name
// where that is every address.
func advertisedHost(addr string) (string, error) {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return "", err
	}
	if host != "" && !net.ParseIP(host).IsUnspecified() {
		return host, nil
	}
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("advertise this host: %w; set advertised.host", err)
	}
	return name, nil
}

// retryAfter is when a leader repeats what a follower did not answer, in
// milliseconds. A follower that does not know the epoch yet hears nothing of it.
const retryAfter = 250

// openStore opens the disk and starts the room that runs replicas.
func (n *Node) openStore(context.Context) error {
	n.mender = newMender(n)
	store, err := segstore.NewStore(segstore.Options{Dir: n.config.DataDir, Damaged: n.damaged})
	if errors.Is(err, vfs.ErrLocked) {
		return fmt.Errorf("%w: %s", ErrInUse, n.config.DataDir)
	}
	if err != nil {
		return fmt.Errorf("open the data directory: %w", err)
	}
	n.store = store
	n.transport = &transport{}
	n.forwards.transport = n.transport
	n.replicas = replication.NewNode(replication.Config{
		ID: protocol.NodeID(n.config.NodeName), Store: store, Duplicates: duplicates[n.config.PublisherDuplicate],
		Transport: n.transport, Limits: protocol.Limits{RetryAfter: retryAfter},
		RetainEvery: n.config.RetentionInterval, Disk: replication.DiskConfig{Rule: n.config.Disk, Changed: n.diskChanged},
		Clocks: n.clocks, Neighbour: n.lows.neighbour, Propose: n.propose, Lost: n.lost, Begun: n.begun, Yield: n.yield, Evicted: n.evicted,
	})
	n.residents = newResidents(&n.config, n.store, n.replicas, n.log.Named("residents"))
	if _, err := n.identity(); err == nil {
		n.residents.forgot = store.Journal().Made()
	}
	n.transport.replicas, n.transport.standing = n.replicas, n.residents.standing
	n.scrub()
	return nil
}

// scrub has the disk read through in the background, for rot.
func (n *Node) scrub() {
	ctx, stop := context.WithCancel(context.Background())
	n.stopScrub = stop
	n.scrubber = n.store.NewScrubber(segstore.ScrubOptions{Period: n.config.ScrubPeriod}) // what it finds, damaged hears
	n.scrubbed.Go(func() { n.scrubber.Run(ctx) })
}

func (n *Node) openCluster(ctx context.Context) error {
	fences := fencer{n.residents, n.transport}
	n.requests.handle(groupReplica, n.waiting(fences.serve))
	n.requests.handle(groupRepair, n.waiting(n.serveRepair))
	n.ask = fences.ask
	config := cluster.Config{
		Dir: n.config.DataDir, Node: protocol.NodeID(n.config.NodeName), Version: n.version,
		Endpoints: catalog.Endpoints{Stream: n.addresses.Advertised, StreamTLS: n.addresses.AdvertisedTLS, HTTP: n.addresses.HTTP, Node: n.nodeAddress},
		Users:     n.firstUsers(),
		Fencer:    fences, Registered: n.residents.registered,
		Joins:         cluster.Joins{Addresses: n.config.Join, Expect: n.config.BootstrapExpect},
		LowChanged:    n.lowChanged,
		GroupPatience: n.config.Broker.GroupPatience,
		Log:           n.log,
	}
	if n.mux != nil {
		config.Network = peers{n}
		var err error
		if config.Gossip.Secrets, err = n.security.Secrets(); err != nil {
			return err
		}
		if config.Gossip.Addr, config.Gossip.Host, err = n.gossipPlace(); err != nil {
			return err
		}
	}
	meta, err := cluster.Open(ctx, config)
	if err != nil {
		return fmt.Errorf("open the metadata: %w", err)
	}
	n.cluster = meta
	n.lows.up = meta.Up
	n.metadata.open(meta)
	n.serving.Go(func() {
		select {
		case <-meta.Failed():
			n.fail(meta.Err())
		case <-n.failure.ch:
		}
	})
	n.residents.follow(meta)
	n.mender.start(n.running)
	return nil
}

// guest is the user of a new cluster, with a password of the same name. The
// broker lets it in from loopback alone.
const guest = "guest"

// firstUsers are made when a cluster is founded.
func (n *Node) firstUsers() []catalog.User {
	return []catalog.User{{Name: guest, Hash: cluster.GuestHash, Tags: []string{"administrator"}}}
}

// duplicates are the values of publisher.duplicate.
var duplicates = map[string]replication.Duplicates{
	"takeover": replication.Takeover, "refuse": replication.Refuse, "share": replication.Share,
}

func (n *Node) openBroker(context.Context) error {
	settings := n.config.Broker
	settings.AdvertisedHost, settings.AdvertisedPort = n.config.AdvertisedHost, n.config.AdvertisedPort
	settings.AdvertisedTLSHost, settings.AdvertisedTLSPort = n.config.AdvertisedTLSHost, n.config.AdvertisedTLSPort
	settings.NodeName, settings.ClusterName, settings.ReleaseVersion = n.config.NodeName, n.cluster.ID(), n.version
	settings.Log = n.log.Named("broker")
	var err error
	n.broker, err = broker.New(settings, directory{n.cluster}, broker.ReplicasOf(n.replicas), &n.forwards)
	if err == nil {
		n.forwards.broker.Store(n.broker)
		n.requests.handle(groupForward, n.forwards.serve)
		n.alarm.attach(n.broker)
	}
	return err
}

// serveOperators answers health checks and operators while streams are still
// getting their leaders.
func (n *Node) serveOperators(context.Context) error {
	server := admin.New(admin.Parts{
		Metadata: metadata{n.cluster}, Replicas: figures{n}, Tracking: readers{n}, Sessions: sessions{n.broker}, Node: n, Membership: membership{n.cluster}, Placement: placement{n}, Groups: metadata{n.cluster},
		Peers: operators{n.transport}, Authenticate: n.broker.Authenticate, Hosts: hostNames(n.config), Log: n.log.Named("admin"),
	})
	n.requests.handle(groupAdmin, n.waiting(n.servePeer(server)))
	n.serveHTTP(server.Handler(), n.listeners.http)
	n.serveHTTP(server.Handler(), n.certificates.over(n.listeners.httpTLS))
	n.serveHTTP(server.ManagementHandler(), n.listeners.management)
	return nil
}

// headerBytesMax bounds what a stranger can have a node keep before it is known
// who asks; a request of ours has some hundred bytes.
const headerBytesMax = 64 << 10

// serveHTTP bounds requests' headers, and no answer's time: a profile or a check
// of all of a stream's bytes takes as long as it takes.
func (n *Node) serveHTTP(handler http.Handler, on []net.Listener) {
	if len(on) == 0 {
		return
	}
	server := &http.Server{
		Handler: handler, MaxHeaderBytes: headerBytesMax, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute,
		ErrorLog: n.log.Named("http").StandardLogger(&hclog.StandardLoggerOptions{ForceLevel: hclog.Debug}),
	}
	n.https = append(n.https, server)
	for _, l := range on {
		n.serving.Go(func() {
			if err := server.Serve(l); !errors.Is(err, http.ErrServerClosed) {
				n.fail(fmt.Errorf("serve HTTP on %s: %w", l.Addr(), err))
			}
		})
	}
}

// serveClients lets clients in once every stream has its leader.
func (n *Node) serveClients(ctx context.Context) error {
	if err := n.cluster.AwaitLeaders(ctx); err != nil {
		return fmt.Errorf("wait for the streams' leaders: %w", err)
	}
	for _, l := range n.listeners.stream {
		n.serving.Go(func() {
			if err := n.broker.Serve(l); !errors.Is(err, broker.ErrClosed) {
				n.fail(fmt.Errorf("serve clients on %s: %w", l.Addr(), err))
			}
		})
	}
	for _, l := range n.listeners.streamTLS {
		n.serving.Go(func() {
			if err := n.broker.ServeTLS(l, n.certificates.forStreams()); !errors.Is(err, broker.ErrClosed) {
				n.fail(fmt.Errorf("serve clients over TLS on %s: %w", l.Addr(), err))
			}
		})
	}
	n.ready.Store(true)
	n.log.Info("ready", "node", n.config.NodeName, "stream", n.addresses.Stream, "stream_tls", n.addresses.StreamTLS, "advertised", n.addresses.Advertised,
		"http", n.addresses.HTTP, "management", n.addresses.Management, "data", n.config.DataDir)
	n.checkAdvertised()
	return nil
}

// clocks are the other nodes', for replicas that doubt this one's.
func (n *Node) clocks() []time.Time {
	if c := n.metadata.opened(); c != nil {
		return c.Clocks()
	}
	return nil
}

// propose carries a replica's wish to the metadata.
func (n *Node) propose(stream chunk.Incarnation, p protocol.Proposal) {
	n.metadata.tell(func(c *cluster.Cluster) { c.Proposed(stream, p) })
}

// lost tells the coordinator that a replica's run ended, and with it the epoch
// that it led.
func (n *Node) lost(stream chunk.Incarnation, err error) {
	n.log.Warn("a replica's run ended", "stream", stream.String(), "error", err)
	n.metadata.tell(func(c *cluster.Cluster) {
		if s, ok := c.View().Incarnation(stream); ok && string(s.Leader.Node) == n.config.NodeName {
			c.LeaderOver(stream, s.Epoch)
		}
	})
}

// begun looks at a replica whose next run has begun: the catalog here may have shown
// only behind the end of the last one that that one led. The next is then another
// than the leader's, which ends the epoch.
func (n *Node) begun(stream chunk.Incarnation) { n.residents.touch(stream) }

// evicted says that a stream has more readers or publishers than it keeps.
func (n *Node) evicted(stream chunk.Incarnation, s tracking.Stats) {
	n.log.Warn("tracking is full: the least recently used references go (tracking.stored_offsets, tracking.publishers)",
		"stream", stream.String(), "stored_offsets", s.Offsets, "stored_offsets_evicted", s.OffsetsEvicted,
		"publishers", s.Publishers, "publishers_evicted", s.PublishersEvicted)
}

// yield tells the metadata that a leader that is to go has handed everything to
// its heir (D3, D4).
func (n *Node) yield(stream chunk.Incarnation, epoch chunk.Epoch, heir protocol.NodeID) {
	n.metadata.tell(func(c *cluster.Cluster) { c.LeaderYields(stream, epoch, heir) })
}

// Addresses are where the node's services are.
func (n *Node) Addresses() admin.Addresses { return n.addresses }

// fail keeps the first failure; the node must be stopped then.
func (n *Node) fail(err error) {
	n.failure.Lock()
	defer n.failure.Unlock()
	if n.failure.err == nil && err != nil {
		n.failure.err = err
		n.ready.Store(false)
		n.log.Error("the node must stop", "error", err)
		close(n.failure.ch)
	}
}

// Failed is closed when the node cannot go on; Err says why.
func (n *Node) Failed() <-chan struct{} { return n.failure.ch }

// Err is why the node cannot go on, or nil.
func (n *Node) Err() error {
	n.failure.Lock()
	defer n.failure.Unlock()
	return n.failure.err
}

// Stop ends the node in the order in which others depend on it: clients first,
// the disk last. What was accepted is committed and tracking is flushed as far
// as ctx allows.
func (n *Node) Stop(ctx context.Context) error {
	n.ready.Store(false)
	var problems []error
	if n.broker != nil {
		problems = append(problems, n.broker.Close(ctx))
	}
	for _, server := range n.https {
		problems = append(problems, shutdown(ctx, server))
	}
	n.listeners.close()
	n.halt()
	if n.mender != nil {
		n.mender.work.Wait()
	}
	if n.residents != nil {
		n.residents.stop()
	}
	if n.scrubber != nil {
		n.stopScrub()
		n.scrubbed.Wait()
	}
	if n.replicas != nil {
		problems = append(problems, n.replicas.Close(ctx))
	}
	if n.cluster != nil {
		problems = append(problems, n.cluster.Close())
	}
	problems = append(problems, n.closeLinks()) // replicas and metadata have said their last
	if n.store != nil {
		problems = append(problems, n.store.Close())
	}
	n.failure.Lock()
	if n.failure.err == nil {
		n.failure.err = errStopped
		close(n.failure.ch)
	}
	n.failure.Unlock()
	n.serving.Wait()
	return errors.Join(problems...)
}

var errStopped = errors.New("the node was stopped")

// shutdown lets running answers end for a moment, then closes what is left:
// page and metrics keep connections open for ever.
func shutdown(ctx context.Context, server *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		return server.Close()
	}
	return nil
}

// LogName is what stands for a stream in the names of folders.
func LogName(vhost, name string) string {
	if vhost == "/" {
		return name
	}
	return strings.Join([]string{vhost, name}, "/")
}
