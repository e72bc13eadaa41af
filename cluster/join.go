package cluster

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

const (
	// gatherPause is between two rounds of knocking.
	gatherPause = 100 * time.Millisecond
	// gatherReport is how often a node that waits says what for.
	gatherReport = 5 * time.Second
	// neighbourPatience is how long somebody who knocked, or answered, counts as
	// there.
	neighbourPatience = 3 * time.Second
	// heardPatience is how long an address counts that another node told. Whoever
	// is there is told again with each answer, and each knock where nobody is holds
	// a round up.
	heardPatience = 10 * time.Second
	// heardMax bounds the addresses that are taken from others, and neighboursMax
	// the nodes that knocked; beyond, the one not heard of for longest goes.
	heardMax      = 64
	neighboursMax = 256
)

// neighbours are nodes that this one has heard of before it knows a catalog.
type neighbours struct {
	mu   sync.Mutex // guards all below
	all  map[protocol.NodeID]neighbour
	said time.Time // when somebody was last said to be turned away
	// heard are addresses that others know of, and when they last said so.
	heard map[string]time.Time
}

// hear takes addresses that others know of.
func (n *neighbours) hear(addresses []string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.heard == nil {
		n.heard = make(map[string]time.Time)
	}
	for _, addr := range addresses {
		n.heard[addr] = time.Now()
	}
	trim(n.heard, heardPatience, heardMax, func(at time.Time) time.Time { return at })
}

// told returns the addresses that others know of.
func (n *neighbours) told() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	trim(n.heard, heardPatience, heardMax, func(at time.Time) time.Time { return at })
	return slices.Collect(maps.Keys(n.heard))
}

// trim takes away what was not seen for so long, and the oldest beyond so many.
func trim[K comparable, V any](m map[K]V, patience time.Duration, most int, seen func(V) time.Time) {
	maps.DeleteFunc(m, func(_ K, v V) bool { return time.Since(seen(v)) >= patience })
	if len(m) <= most {
		return
	}
	keys := slices.SortedFunc(maps.Keys(m), func(a, b K) int { return seen(m[a]).Compare(seen(m[b])) })
	for _, k := range keys[:len(m)-most] {
		delete(m, k)
	}
}

// worthTelling bounds what others can make this node log.
func (n *neighbours) worthTelling() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	if time.Since(n.said) < gatherReport {
		return false
	}
	n.said = time.Now()
	return true
}

type neighbour struct {
	introduction
	seen time.Time
}

func (n *neighbours) met(who introduction) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.all == nil {
		n.all = make(map[protocol.NodeID]neighbour)
	}
	n.all[who.Node] = neighbour{who, time.Now()}
	trim(n.all, neighbourPatience, neighboursMax, func(x neighbour) time.Time { return x.seen })
}

// present returns those that were heard of lately, in order.
func (n *neighbours) present() []introduction {
	n.mu.Lock()
	defer n.mu.Unlock()
	var list []introduction
	for _, x := range n.all {
		if time.Since(x.seen) < neighbourPatience {
			list = append(list, x.introduction)
		}
	}
	slices.SortFunc(list, func(a, b introduction) int { return strings.Compare(string(a.Node), string(b.Node)) })
	return list
}

func (n *neighbours) addresses() []string {
	var list []string
	for _, x := range n.present() {
		if x.Address != "" {
			list = append(list, x.Address)
		}
	}
	return list
}

// belong finds the node's cluster: the one it is a member of, one that takes it
// in, or one that it founds, alone or with others. It waits as long as ctx.
func (c *Cluster) belong(ctx context.Context) error {
	id := c.identity()
	switch {
	case c.config.Network == nil && (id.Joining || id.Together):
		return fmt.Errorf("%w: node %q is one of several and has no way to talk to them; give it cluster.secret_file or node.tls.cert", ErrIdentity, id.Node)
	case c.config.Network == nil:
		return nil
	case id.Cluster != "" && !id.Joining:
		c.config.Network.Belong(id.Cluster)
		return c.comeBack(ctx)
	}
	if id.Cluster != "" {
		c.config.Network.Belong(id.Cluster)
	}
	g := gathering{c: c, addresses: map[string]error{}, reported: time.Now()}
	for {
		done, err := g.round(ctx)
		if done || err != nil {
			return err
		}
		g.report()
		timer := time.NewTimer(gatherPause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: no cluster yet: %s: %w", ErrUnavailable, g.standing(), ctx.Err())
		case <-c.done.Done():
			return ErrStopped
		}
	}
}

// comeBack makes a member known where it is now, and looks whether another
// process has taken its name meanwhile. Nobody has to answer.
func (c *Cluster) comeBack(ctx context.Context) error {
	var others sync.WaitGroup
	var mu sync.Mutex
	var refused error
	for _, addr := range c.knownAddresses() {
		others.Go(func() {
			_, err := c.knock(ctx, addr, question{Ask: askHello})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case errors.Is(err, ErrTwin):
				refused = err
			case errors.Is(err, ErrOtherCluster):
				c.log.Error("another cluster's node is at an address that was given for this one's; it is left alone", "address", addr, "error", err)
			}
		})
	}
	others.Wait()
	return refused
}

// knownAddresses are those given, remembered and heard of, without this node's
// own.
func (c *Cluster) knownAddresses() []string {
	list := slices.Concat(c.config.Joins.Addresses, c.book.addresses(), c.neighbours.addresses(), c.neighbours.told())
	slices.Sort(list)
	return slices.DeleteFunc(slices.Compact(list), func(a string) bool { return a == c.config.Endpoints.Node })
}

// gathering is a node's search for its cluster.
type gathering struct {
	c         *Cluster
	addresses map[string]error // asked in the last round, with what came of it
	reported  time.Time
	lacking   string // why there is no cluster yet
}

// round knocks everywhere once and takes the step that the answers allow.
func (g *gathering) round(ctx context.Context) (done bool, err error) {
	members, err := g.ask(ctx)
	if err != nil {
		return false, err
	}
	var last error
	for _, m := range members {
		err := g.c.joinAt(ctx, m)
		if err == nil {
			return true, nil
		}
		if final(err) {
			return false, err
		}
		last = err
	}
	if len(members) > 0 {
		g.lacking = fmt.Sprintf("%s does not take this node in yet: %v", members[0].Address, last)
		return false, nil
	}
	if g.c.config.Joins.Expect <= 1 || g.c.identity().Cluster != "" {
		g.lacking = "no member of a cluster answers"
		return false, nil
	}
	return g.found(ctx)
}

// final: it will not get better by asking again.
func final(err error) bool {
	return errors.Is(err, ErrTwin) || errors.Is(err, ErrOtherCluster) || errors.Is(err, ErrRemoved)
}

// ask knocks at all addresses and returns the members of clusters among those
// who answer. The error is somebody's answer that this node can't be taken in.
func (g *gathering) ask(ctx context.Context) (members []introduction, refused error) {
	var work sync.WaitGroup
	var mu sync.Mutex // guards what the answers are written to
	g.addresses = map[string]error{}
	for _, addr := range g.c.knownAddresses() {
		work.Go(func() {
			w, err := g.c.knock(ctx, addr, question{Ask: askHello})
			mu.Lock()
			defer mu.Unlock()
			g.addresses[addr] = err
			if final(err) {
				refused = err
			}
			if err != nil || w.Me.Boot == g.c.boot {
				return
			}
			if w.Me.Address == "" {
				w.Me.Address = addr
			}
			g.c.neighbours.met(w.Me)
			if w.Me.Member {
				w.Me.Address = addr
				members = append(members, w.Me)
			}
		})
	}
	work.Wait()
	slices.SortFunc(members, func(a, b introduction) int { return strings.Compare(string(a.Node), string(b.Node)) })
	return members, refused
}

// joinAt asks a member to be taken in.
func (c *Cluster) joinAt(ctx context.Context, m introduction) error {
	id := c.identity()
	w, err := c.knock(ctx, m.Address, question{Ask: askJoin, Join: c.self()})
	if err != nil {
		return err
	}
	if id.Cluster != "" && w.Me.Cluster != id.Cluster {
		return fmt.Errorf("%w: node %q is to join cluster %s, at %s is cluster %s", ErrOtherCluster, id.Node, id.Cluster, m.Address, w.Me.Cluster)
	}
	for node, e := range w.Members {
		c.book.put(node, e)
	}
	if err := c.book.save(); err != nil {
		return err
	}
	err = c.changeIdentity(func(id *identity) { id.Cluster, id.Pledge, id.Together = w.Me.Cluster, nil, true })
	if err != nil {
		return err
	}
	c.log.Info("taken into a cluster", "cluster", w.Me.Cluster, "by", w.Me.Node)
	c.config.Network.Belong(w.Me.Cluster)
	return nil
}

// standing says what the node waits for.
func (g *gathering) standing() string {
	var b strings.Builder
	b.WriteString(g.lacking)
	for _, addr := range slices.Sorted(maps.Keys(g.addresses)) {
		if err := g.addresses[addr]; err != nil {
			fmt.Fprintf(&b, "; %s: %v", addr, err)
		}
	}
	return b.String()
}

func (g *gathering) report() {
	if time.Since(g.reported) >= gatherReport {
		g.reported = time.Now()
		g.c.log.Warn("no cluster yet", "why", g.standing())
	}
}

// self is this node as the catalog should have it.
func (c *Cluster) self() *catalog.PutNode {
	return &catalog.PutNode{
		ID: c.config.Node, Disk: c.identity().Disk, Endpoints: c.config.Endpoints, Rack: c.config.Rack, Version: c.config.Version,
	}
}
