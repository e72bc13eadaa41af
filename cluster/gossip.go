package cluster

import (
	"cmp"
	"context"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/memberlist"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// Gossip is how nodes tell each other who is there and where, beside the links.
// It is a hint: addresses come from it, and a node that it calls dead and that
// has no link counts as gone at once; membership is raft's alone.
type Gossip struct {
	// Addr is the host:port to listen on, UDP and TCP; "" is no gossip.
	Addr string
	// Host is what the others are told, where Addr's is every address.
	Host string
	// Secrets are the cluster's, the one to encrypt by first. None: the catalog
	// keeps a key, which members learn once the others have let them in.
	Secrets [][]byte
	// Wall is the clock that others are told: the machine's by default.
	Wall func() time.Time
	// JoinEvery is how often members are sought that gossip does not know: 10 s.
	JoinEvery time.Duration
	// PingEvery is how often one of the others is pinged: memberlist's default for
	// a local network.
	PingEvery time.Duration
}

const (
	// gossipLabel says what the keys derived from secrets are for.
	gossipLabel = "millrace gossip 1"
	// gossipKeyBytes is AES-256's.
	gossipKeyBytes = 32
	// gossipJoinEvery is JoinEvery's default.
	gossipJoinEvery = 10 * time.Second
	// gossipReclaim is how soon a dead node's name may come from another address.
	gossipReclaim = 10 * time.Second
	// gossipFarewell bounds the telling of the others that this node goes. Without
	// a bound memberlist waits for ever where nobody is left to be told.
	gossipFarewell = 500 * time.Millisecond
	// gossipEvents is how many may wait; what is beyond is found by the next look
	// at all members.
	gossipEvents = 256
)

// gossipKeys are derived, so that what is encrypted there tells nothing of what
// the link proves itself by.
func gossipKeys(secrets [][]byte) (keys [][]byte, err error) {
	for _, s := range secrets {
		key, err := hkdf.Key(sha256.New, s, nil, gossipLabel, gossipKeyBytes)
		if err != nil {
			return nil, fmt.Errorf("derive gossip key: %w", err)
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// gossip is this node's part in it.
type gossip struct {
	c    *Cluster
	list *memberlist.Memberlist
	meta nodeMeta
	news chan *memberlist.Node // events: look at this node
	addr string                // that others are told
	once sync.Once             // of close

	clocks clocks
}

// nodeMeta travels with a node's name; it must stay under memberlist's 512
// bytes, beyond which memberlist panics.
type nodeMeta struct {
	Address string `json:"a"` // for raft and link
	Disk    string `json:"d"`
	Low     bool   `json:"l,omitempty"` // publishers are stopped there
}

// openGossipBySecrets begins to talk before this node is a member: it has what it
// needs from its operator.
func (c *Cluster) openGossipBySecrets() error {
	keys, err := gossipKeys(c.config.Gossip.Secrets)
	if err == nil {
		c.gossip, err = c.openGossip(keys)
	}
	return err
}

// openGossipByCatalog begins to talk once this node is a member. The first one
// draws the key.
func (c *Cluster) openGossipByCatalog(ctx context.Context) error {
	if c.View().GossipKey() == nil {
		key := make([]byte, gossipKeyBytes)
		_, _ = rand.Read(key) // it never fails
		if err := c.do(ctx, &catalog.SetGossipKey{Key: key}); err != nil {
			return fmt.Errorf("draw gossip key: %w", err)
		}
	}
	var err error
	if c.gossip, err = c.openGossip([][]byte{c.View().GossipKey()}); err != nil {
		return err
	}
	c.tasks.Go(func() { c.gossip.run(c.done) })
	return c.announceGossip(ctx)
}

// announceGossip tells the others where this node's gossip is, if the catalog does
// not know.
func (c *Cluster) announceGossip(ctx context.Context) error {
	if n, ok := c.View().Node(c.config.Node); ok && n.Endpoints.Gossip == c.config.Endpoints.Gossip {
		return nil
	}
	return c.comeIn(ctx, entering{*c.self(), c.boot, c.ID()})
}

// foreseeGossip is where gossip will be, as far as that is known before it listens:
// what is told again at each start must not change twice.
func (c *Cluster) foreseeGossip() {
	if _, port, err := net.SplitHostPort(c.config.Gossip.Addr); err == nil {
		if n, err := strconv.Atoi(port); err == nil && n != 0 {
			c.config.Endpoints.Gossip = c.gossipAddress(n)
		}
	}
}

// gossipAddress is what the others are told, given the port.
func (c *Cluster) gossipAddress(port int) string {
	host, _, _ := net.SplitHostPort(c.config.Gossip.Addr)
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = c.config.Gossip.Host
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

// openGossip begins to talk. The cluster's id is known.
func (c *Cluster) openGossip(keys [][]byte) (*gossip, error) {
	ring, err := memberlist.NewKeyring(keys[1:], keys[0])
	if err != nil {
		return nil, fmt.Errorf("gossip keys: %w", err)
	}
	g := &gossip{c: c, news: make(chan *memberlist.Node, gossipEvents)}
	g.clocks.read, g.clocks.wall = map[protocol.NodeID]reading{}, c.config.Gossip.Wall
	if g.clocks.wall == nil {
		g.clocks.wall = time.Now
	}
	g.meta = nodeMeta{Address: c.config.Endpoints.Node, Disk: c.identity().Disk}
	config, err := g.config(ring)
	if err != nil {
		return nil, err
	}
	if g.list, err = memberlist.Create(config); err != nil {
		_ = config.Transport.Shutdown()
		return nil, fmt.Errorf("gossip on %s: %w", c.config.Gossip.Addr, err)
	}
	g.addr = c.gossipAddress(int(g.list.LocalNode().Port))
	c.config.Endpoints.Gossip = g.addr
	return g, nil
}

func (g *gossip) config(ring *memberlist.Keyring) (*memberlist.Config, error) {
	at, err := net.ResolveTCPAddr("tcp", g.c.config.Gossip.Addr)
	if err != nil {
		return nil, fmt.Errorf("gossip on %s: %w", g.c.config.Gossip.Addr, err)
	}
	m := memberlist.DefaultLANConfig()
	m.Name = string(g.c.config.Node)
	m.Label = g.c.ID()
	m.Keyring = ring
	m.GossipVerifyIncoming, m.GossipVerifyOutgoing = true, true
	m.EnableCompression = false
	m.DeadNodeReclaimTime = gossipReclaim
	m.ProbeInterval = cmp.Or(g.c.config.Gossip.PingEvery, m.ProbeInterval)
	m.ProbeTimeout = min(m.ProbeTimeout, m.ProbeInterval/2)
	m.BindAddr = "0.0.0.0"
	if at.IP != nil && !at.IP.IsUnspecified() {
		m.BindAddr = at.IP.String()
	} else if m.AdvertiseAddr, err = resolve(g.c.config.Gossip.Host); err != nil {
		return nil, fmt.Errorf("advertise gossip at %s: %w", g.c.config.Gossip.Host, err)
	}
	m.Delegate, m.Events, m.Conflict, m.Alive, m.Ping = g, g, g, g, g
	m.Logger = (&hushed{log: g.c.config.Log.Named("gossip")}).logger()
	gate, err := openGate(m.BindAddr, at.Port, m.Logger)
	if err != nil {
		return nil, fmt.Errorf("gossip on %s: %w", g.c.config.Gossip.Addr, err)
	}
	m.Transport, m.BindPort = gate, gate.GetAutoBindPort()
	m.AdvertisePort = m.BindPort
	return m, nil
}

// resolve returns a host's first address.
func resolve(host string) (string, error) {
	ips, err := net.LookupIP(host)
	if err != nil {
		return "", err
	}
	return ips[0].String(), nil
}

// run works until the node stops.
func (g *gossip) run(ctx context.Context) {
	tick := time.NewTicker(cmp.Or(g.c.config.Gossip.JoinEvery, gossipJoinEvery))
	defer tick.Stop()
	g.seek()
	for {
		select {
		case n := <-g.news:
			g.look(n)
		case <-tick.C:
			for _, n := range g.list.Members() {
				g.look(n)
			}
			g.seek()
		case <-ctx.Done():
			return
		}
	}
}

// seek asks after members that gossip does not know, for ever: both sides of a
// long cut forget each other.
func (g *gossip) seek() {
	known := make(map[string]bool)
	for _, n := range g.list.Members() {
		known[n.Name] = true
	}
	for n := range g.c.View().Nodes() {
		if n.Endpoints.Gossip != "" && !known[string(n.ID)] {
			_, _ = g.list.Join([]string{n.Endpoints.Gossip}) // who is not there is asked again
		}
	}
}

// look takes what a node says of itself, or that it is dead.
func (g *gossip) look(n *memberlist.Node) {
	node := protocol.NodeID(n.Name)
	if n.State != memberlist.StateAlive {
		g.c.presence.doubt(node)
		g.c.lowAt(node, false)
		return
	}
	var m nodeMeta
	if json.Unmarshal(n.Meta, &m) == nil && m.Disk != "" && m.Disk == g.c.book.disk(node) {
		g.c.book.tell(node, m.Address)
		g.c.lowAt(node, m.Low)
	}
}

func (g *gossip) close() {
	g.once.Do(func() {
		_ = g.list.Leave(gossipFarewell) // the others notice by themselves too
		_ = g.list.Shutdown()
	})
}

// NotifyMsg and those below are memberlist.Delegate's: nothing else is sent.
func (g *gossip) NotifyMsg([]byte)                {}
func (g *gossip) GetBroadcasts(_, _ int) [][]byte { return nil }
func (g *gossip) LocalState(bool) []byte          { return nil }
func (g *gossip) MergeRemoteState([]byte, bool)   {}
func (g *gossip) NotifyJoin(n *memberlist.Node)   { g.tell(n, memberlist.StateAlive) }
func (g *gossip) NotifyUpdate(n *memberlist.Node) { g.tell(n, memberlist.StateAlive) }
func (g *gossip) NotifyLeave(n *memberlist.Node)  { g.tell(n, memberlist.StateDead) }
func (g *gossip) NotifyAlive(n *memberlist.Node) error {
	if n.Name == string(g.c.config.Node) {
		return nil
	}
	return g.c.Member(protocol.NodeID(n.Name))
}

// tell is called under memberlist's lock: it copies and does not block. The
// node's own State is not kept up by memberlist.
func (g *gossip) tell(n *memberlist.Node, state memberlist.NodeStateType) {
	c := *n
	c.State = state
	c.Meta = append([]byte(nil), n.Meta...)
	select {
	case g.news <- &c:
	default:
	}
}

// NotifyConflict is memberlist.ConflictDelegate's.
func (g *gossip) NotifyConflict(existing, other *memberlist.Node) {
	g.c.log.Error("two nodes go by one name; give one of them another (node.name)", "node", existing.Name,
		"at", existing.Address(), "and", other.Address())
}

// hushed lets a line of memberlist through now and then: every stranger's packet
// makes it write one.
type hushed struct {
	log hclog.Logger

	mu     sync.Mutex // guards the two below
	last   time.Time
	silent int
}

func (h *hushed) Write(b []byte) (int, error) {
	line, level := levelled(string(b))
	if level < h.log.GetLevel() { // else it would keep a line back that is shown
		return len(b), nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if time.Since(h.last) < time.Second {
		h.silent++
		return len(b), nil
	}
	h.last = time.Now()
	h.log.Log(level, line, "others", h.silent)
	h.silent = 0
	return len(b), nil
}

func (h *hushed) logger() *log.Logger { return log.New(h, "", 0) }

// levelled takes the level from the front of memberlist's lines. What it says of
// packets that it can't read is no fault of this node.
func levelled(line string) (string, hclog.Level) {
	line = strings.TrimSpace(line)
	for mark, level := range map[string]hclog.Level{"[ERR]": hclog.Warn, "[WARN]": hclog.Info, "[INFO]": hclog.Debug, "[DEBUG]": hclog.Trace} {
		if rest, ok := strings.CutPrefix(line, mark); ok {
			return strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(rest), "memberlist:")), level
		}
	}
	return line, hclog.Debug
}
