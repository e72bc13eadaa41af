package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/millrace/millrace/cmd/millrace/config"
	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
)

// gossipPort is gossip's where none is configured.
const gossipPort = "7946"

// gossipPlace is where this node gossips, and the host that others find it by if
// that is every address of the machine: those of the port between nodes, unless
// configured otherwise.
func (n *Node) gossipPlace() (addr, host string, err error) {
	if host, _, err = net.SplitHostPort(n.nodeAddress); err != nil {
		return "", "", fmt.Errorf("where other nodes find this one: %w", err)
	}
	if n.config.GossipAddr != "" {
		return n.config.GossipAddr, host, nil
	}
	on, _, err := net.SplitHostPort(n.config.NodeAddr)
	return net.JoinHostPort(on, gossipPort), host, err
}

// Requests between nodes are grouped by the high byte of their method.
const (
	groupCluster = 1 // metadata: cluster
	groupForward = 2 // clients' commands that belong elsewhere: broker
	groupAdmin   = 3 // operators' requests: admin
	groupRepair  = 4 // segments, and whatever else replicas ask each other
	groupReplica = 5 // the coordinator's, to replicas
)

// Statuses that every group may answer beside its own, which begin at 1.
const (
	statusDone uint16 = 0
	// statusUnknown: this node knows no such method; it may be older.
	statusUnknown uint16 = 0xfe00
)

// requests hands what other nodes ask to the room that it is for.
type requests struct {
	mu     sync.RWMutex // guards groups
	groups map[byte]func(protocol.NodeID, *link.Request)
}

// handle registers the room that serves a group. serve is called in the order
// asked for each node, and must not block.
func (q *requests) handle(group byte, serve func(protocol.NodeID, *link.Request)) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.groups == nil {
		q.groups = make(map[byte]func(protocol.NodeID, *link.Request))
	}
	q.groups[group] = serve
}

// Serve is one of link.Handler's.
func (q *requests) Serve(peer protocol.NodeID, r *link.Request) {
	q.mu.RLock()
	serve := q.groups[byte(r.Method>>8)]
	q.mu.RUnlock()
	if serve == nil {
		r.Reply(statusUnknown, nil)
		return
	}
	serve(peer, r)
}

// waiting makes a group's handler of one that takes its time: each request gets
// a goroutine, which ends with the request's deadline.
func (n *Node) waiting(serve func(ctx context.Context, peer protocol.NodeID, method uint16, body []byte) (uint16, []byte)) func(protocol.NodeID, *link.Request) {
	return func(peer protocol.NodeID, r *link.Request) {
		n.serving.Go(func() {
			ctx, cancel := context.WithDeadline(n.running, r.Deadline)
			defer cancel()
			status, body := serve(ctx, peer, r.Method, r.Body)
			r.Reply(status, body)
		})
	}
}

// handler is whom the links work for: requests are dispatched, the rest is the
// replicas' (transport.go).
type handler struct {
	*transport
	*requests
	linked func(node protocol.NodeID, up bool) // tells the metadata
	gone   func(node protocol.NodeID)          // tells the broker
}

// Up is one of link.Handler's.
func (h handler) Up(peer protocol.NodeID) {
	h.transport.Up(peer)
	h.linked(peer, true)
}

// Down is one of link.Handler's.
func (h handler) Down(peer protocol.NodeID, why error) {
	h.transport.Down(peer, why)
	h.linked(peer, false)
	h.gone(peer)
}

// openLinks opens the port between nodes, unless the node stays alone.
func (n *Node) openLinks(context.Context) error {
	s := securityOf(n.config, n.log.Named("link"))
	if s == nil {
		return nil
	}
	n.security = s
	n.serving.Go(func() { s.follow(n.running) })
	l, err := net.Listen("tcp", n.config.NodeAddr)
	if err != nil {
		return err
	}
	n.listeners.node = l
	n.nodeAddress = cmp.Or(n.config.NodeAdvertised, reachable(n.config, n.config.NodeAddr, l))
	refused := slowly{log: n.log.Named("link")}
	n.mux, err = link.NewMux(link.MuxConfig{
		Listener: l, Node: protocol.NodeID(n.config.NodeName), Security: s,
		Address: n.addressOf, Member: n.member, Knocked: n.knocked, Refused: refused.refused,
	})
	if err != nil {
		return fmt.Errorf("open the port between nodes: %w", err)
	}
	n.listeners.node = nil // the mux's from now on
	n.links = link.New(n.mux, link.Config{}, handler{n.transport, &n.requests, n.linked, n.forwards.down})
	n.transport.open(n.links)
	return nil
}

var errStarting = errors.New("the node is starting")

// reachable is where other nodes find a listener: its host as configured, or
// the advertised one where that is every address.
func reachable(c config.Config, addr string, l net.Listener) string {
	host, _, err := net.SplitHostPort(addr)
	if ip := net.ParseIP(host); err != nil || host == "" || ip != nil && ip.IsUnspecified() {
		host = c.AdvertisedHost
	}
	return net.JoinHostPort(host, strconv.Itoa(l.Addr().(*net.TCPAddr).Port))
}

// slowly logs what strangers can cause, so that they cannot fill the disk.
type slowly struct {
	log hclog.Logger

	mu     sync.Mutex // guards the two below
	last   time.Time
	silent int // refusals since
}

// refusedEvery is how often a refused connection is logged.
const refusedEvery = 5 * time.Second

func (s *slowly) refused(from net.Addr, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if time.Since(s.last) < refusedEvery {
		s.silent++
		return
	}
	s.log.Warn("a connection between nodes was refused", "from", from.String(), "error", err, "others", s.silent)
	s.last, s.silent = time.Now(), 0
}

func (n *Node) closeLinks() error {
	if n.links != nil {
		n.links.Close()
	}
	if n.mux != nil {
		return n.mux.Close()
	}
	return nil
}
