package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// town is a set of nodes that talk over real sockets.
type town struct {
	t      *testing.T
	secret byte
	// groupPatience is its nodes'; 0 is the default.
	groupPatience time.Duration

	mu    sync.Mutex // guards houses
	sites map[protocol.NodeID]*site
}

func newTown(t *testing.T) *town {
	return &town{t: t, secret: 1, sites: map[protocol.NodeID]*site{}}
}

// site is one node of a town: its place, and its Cluster while it runs.
type site struct {
	town  *town
	name  protocol.NodeID
	dir   string
	disk  *disk
	addr  string // of the last start
	run   protocol.RunID
	log   hclog.Logger
	lines *lines
	// gossip is for nodes that talk that way too.
	gossip     Gossip
	lowChanged func()

	mux   *link.Mux
	links *link.Links
	*Cluster
	replicas *replicas
}

// lines are what a node logged.
type lines struct {
	mu  sync.Mutex // guards all
	all []string
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, string(b))
	return len(b), nil
}

func (w *town) site(name protocol.NodeID) *site {
	s := &site{town: w, name: name, dir: w.t.TempDir(), disk: newDisk(), lines: &lines{}}
	s.log = hclog.New(&hclog.LoggerOptions{Name: string(name), Level: hclog.Info, Output: s.lines})
	w.mu.Lock()
	w.sites[name] = s
	w.mu.Unlock()
	w.t.Cleanup(func() {
		s.stop()
		if w.t.Failed() {
			s.lines.mu.Lock()
			defer s.lines.mu.Unlock()
			for _, line := range s.lines.all {
				w.t.Logf("%s", line)
			}
		}
	})
	return s
}

// bind takes a port, so that others can be told of it before the node starts.
func (s *site) bind() net.Listener {
	s.town.t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		s.town.t.Fatal(err)
	}
	s.addr = l.Addr().String()
	return l
}

// open runs the node on a port until it is in its cluster, or ctx ends.
func (s *site) open(ctx context.Context, l net.Listener, joins Joins) error {
	s.run++
	s.replicas = newReplicas(s.disk, s.run*100+protocol.RunID(len(s.name)))
	n := &wire{site: s, listener: l}
	c, err := Open(ctx, Config{
		Dir: s.dir, Node: s.name, Endpoints: catalog.Endpoints{Stream: "stream-of-" + string(s.name), Node: l.Addr().String()},
		Users:  []catalog.User{{Name: "guest", Hash: guestHash}},
		Fencer: faraway{s.town}, Network: n, Joins: joins, Log: s.log, Gossip: s.gossip, LowChanged: s.lowChanged,
		GroupPatience: s.town.groupPatience,
	})
	if err != nil {
		n.close()
		return err
	}
	s.Cluster = c
	return nil
}

func (s *site) start(joins Joins) {
	s.town.t.Helper()
	if err := s.open(within(s.town.t), s.bind(), joins); err != nil {
		s.town.t.Fatalf("start %s: %v", s.name, err)
	}
}

// refused opens the node again and again until it is refused as it should be:
// on a slow machine a try may end before the answer comes. nil: it was.
func (s *site) refused(joins Joins, as func(error) bool) error {
	patient := within(s.town.t)
	for {
		short, cancel := context.WithTimeout(patient, 1500*time.Millisecond)
		err := s.open(short, s.bind(), joins)
		cancel()
		switch {
		case err == nil:
			return errors.New("it was not refused")
		case as(err):
			return nil
		case patient.Err() != nil:
			return err
		}
	}
}

// stop is a clean end as far as raft goes; replicas forget that they lead.
func (s *site) stop() {
	if s.Cluster == nil {
		return
	}
	s.links.Close()
	s.mux.Close()
	s.Cluster.Close()
	s.Cluster = nil
}

// wire is a Network over the link.
type wire struct {
	site     *site
	listener net.Listener
	host     Host
}

type shared struct{ secret []byte }

func (s shared) Certificate() (*tls.Certificate, *x509.CertPool, error) { return nil, nil, nil }
func (s shared) Secrets() ([][]byte, error)                             { return [][]byte{s.secret}, nil }

func (n *wire) Open(h Host) {
	n.host = h
	secret := make([]byte, 32)
	secret[0] = n.site.town.secret
	m, err := link.NewMux(link.MuxConfig{
		Listener: n.listener, Node: n.site.name, Security: shared{secret}, Address: h.Address, Knocked: h.Knocked,
		Member:  func(_ link.Purpose, node protocol.NodeID) error { return h.Member(node) },
		Refused: func(_ net.Addr, err error) { n.site.log.Info("refused", "error", err) },
	})
	if err != nil {
		n.site.town.t.Error(err)
		return
	}
	n.site.mux = m
	n.site.links = link.New(m, link.Config{}, n)
}

func (n *wire) close() {
	n.site.links.Close()
	n.site.mux.Close()
}

func (n *wire) Certified() (string, error) { return "", nil }
func (n *wire) Belong(cluster string)      { n.site.mux.Belong(cluster) }
func (n *wire) Raft() raft.StreamLayer     { return raftLayer{n.site.mux.Raft()} }
func (n *wire) Knock(ctx context.Context, addr string, q []byte) ([]byte, error) {
	return n.site.mux.Knock(ctx, addr, q)
}

func (n *wire) Ask(ctx context.Context, node protocol.NodeID, method uint16, body []byte) (uint16, []byte, error) {
	r, err := n.site.links.Request(ctx, node, method, body)
	return r.Status, r.Body, err
}
func (n *wire) Connect(node protocol.NodeID) { n.site.links.Connect(node) }
func (n *wire) Forget(node protocol.NodeID)  { n.site.links.Forget(node) }

type raftLayer struct{ *link.Layer }

func (l raftLayer) Dial(to raft.ServerAddress, timeout time.Duration) (net.Conn, error) {
	return l.Layer.Dial(protocol.NodeID(to), timeout)
}

func (n *wire) Up(peer protocol.NodeID)                           { n.host.Linked(peer, true) }
func (n *wire) Down(peer protocol.NodeID, _ error)                { n.host.Linked(peer, false) }
func (n *wire) StreamDown(protocol.NodeID, chunk.Incarnation)     {}
func (n *wire) StreamUp(protocol.NodeID, chunk.Incarnation)       {}
func (n *wire) Admit(protocol.NodeID, *link.Frame) error          { return nil }
func (n *wire) Buffer(head, data int) ([]byte, []byte, link.Held) { panic("no chunks here") }
func (n *wire) Deliver(protocol.NodeID, *link.Frame)              {}
func (n *wire) Serve(peer protocol.NodeID, r *link.Request) {
	go func() {
		ctx, cancel := context.WithDeadline(context.Background(), r.Deadline)
		defer cancel()
		r.Reply(n.host.Asked(ctx, peer, r.Method, r.Body))
	}()
}

// faraway reaches the replicas of the town's nodes that run.
type faraway struct{ town *town }

var errDown = errors.New("node is down")

func (f faraway) of(node protocol.NodeID) (*replicas, error) {
	f.town.mu.Lock()
	defer f.town.mu.Unlock()
	s := f.town.sites[node]
	if s == nil || s.replicas == nil {
		return nil, fmt.Errorf("%w: %s", errDown, node)
	}
	return s.replicas, nil
}

func (f faraway) Fence(ctx context.Context, node protocol.NodeID, requests []catalog.FenceRequest) ([]FenceAnswer, error) {
	r, err := f.of(node)
	if err != nil {
		return nil, err
	}
	return r.Fence(ctx, node, requests)
}

func (f faraway) Install(ctx context.Context, node protocol.NodeID, list []catalog.Installation) ([]error, error) {
	r, err := f.of(node)
	if err != nil {
		return nil, err
	}
	return r.Install(ctx, node, list)
}

func (f faraway) HandOver(ctx context.Context, h catalog.Handover) error {
	r, err := f.of(h.From)
	if err != nil {
		return err
	}
	return r.HandOver(ctx, h)
}

// gather starts nodes that found a cluster together, at once.
func (w *town) gather(names ...protocol.NodeID) []*site {
	w.t.Helper()
	sites := make([]*site, len(names))
	listeners := make([]net.Listener, len(names))
	var joins Joins
	joins.Expect = len(names)
	for i, name := range names {
		sites[i] = w.site(name)
		listeners[i] = sites[i].bind()
		joins.Addresses = append(joins.Addresses, sites[i].addr)
	}
	ctx := within(w.t)
	var work sync.WaitGroup
	errs := make([]error, len(names))
	for i, s := range sites {
		work.Go(func() { errs[i] = s.open(ctx, listeners[i], joins) })
	}
	work.Wait()
	if err := errors.Join(errs...); err != nil {
		w.t.Fatal(err)
	}
	return sites
}

// until waits for a condition that no channel tells of.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("never: %s", what)
		}
	}
}

func (s *site) wipe() {
	s.town.t.Helper()
	s.disk = newDisk()
	if err := os.RemoveAll(s.dir); err != nil {
		s.town.t.Fatal(err)
	}
}

// leaderOf returns the site that leads the metadata.
func leaderOf(t *testing.T, sites []*site) *site {
	t.Helper()
	var leader *site
	until(t, "one leader of the metadata", func() bool {
		for _, s := range sites {
			if s.Cluster != nil && s.leads() {
				leader = s
				return true
			}
		}
		return false
	})
	return leader
}

// others are all sites but one.
func others(sites []*site, not *site) []*site {
	var list []*site
	for _, s := range sites {
		if s != not {
			list = append(list, s)
		}
	}
	return list
}

// voting waits until raft has so many voters and others.
func voting(t *testing.T, sites []*site, voters, rest int) {
	t.Helper()
	until(t, fmt.Sprintf("%d voters and %d others", voters, rest), func() bool {
		o := leaderOf(t, sites).Overview(within(t))
		v := 0
		for _, m := range o.Members {
			if m.Voter {
				v++
			}
		}
		return v == voters && len(o.Members)-v == rest
	})
}

func (l *lines) has(part string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, line := range l.all {
		if strings.Contains(line, part) {
			return true
		}
	}
	return false
}

// unwired is a Network that reaches nobody.
type unwired struct{}

func (unwired) Open(Host)                  {}
func (unwired) Certified() (string, error) { return "", nil }
func (unwired) Belong(string)              {}
func (unwired) Raft() raft.StreamLayer     { return nil }
func (unwired) Knock(context.Context, string, []byte) ([]byte, error) {
	return nil, errDown
}

func (unwired) Ask(context.Context, protocol.NodeID, uint16, []byte) (uint16, []byte, error) {
	return 0, nil, errDown
}
func (unwired) Connect(protocol.NodeID) {}
func (unwired) Forget(protocol.NodeID)  {}
