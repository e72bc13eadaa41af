package cluster

import (
	"encoding/json"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/millrace/millrace/replication/protocol"
)

// lows are the nodes whose disks are so low that their publishers are stopped.
// Gossip carries it with a node's name: a hint, that lets leaders stop publishers
// before a majority has no room.
type lows struct {
	mu   sync.Mutex // guards all below
	self bool
	of   map[protocol.NodeID]bool
}

// lowBroadcast bounds how long the telling is waited for.
const lowBroadcast = time.Second

// SetLow tells the others whether this node's disk is low.
func (c *Cluster) SetLow(low bool) {
	c.lows.mu.Lock()
	changed := c.lows.self != low
	c.lows.self = low
	c.lows.mu.Unlock()
	if !changed {
		return
	}
	if c.gossip != nil {
		c.tasks.Go(func() { _ = c.gossip.list.UpdateNode(lowBroadcast) }) // it goes on being told
	}
}

// Low returns the nodes whose disks are low, as far as is known.
func (c *Cluster) Low() map[protocol.NodeID]bool {
	c.lows.mu.Lock()
	defer c.lows.mu.Unlock()
	list := make(map[protocol.NodeID]bool, len(c.lows.of)+1)
	for node := range c.lows.of {
		list[node] = true
	}
	if c.lows.self {
		list[c.config.Node] = true
	}
	return list
}

// lowAt takes what a node says of itself; one that is gone says nothing.
func (c *Cluster) lowAt(node protocol.NodeID, low bool) {
	if node == c.config.Node {
		return
	}
	c.lows.mu.Lock()
	changed := c.lows.of[node] != low
	if low {
		c.lows.of[node] = true
	} else {
		delete(c.lows.of, node)
	}
	c.lows.mu.Unlock()
	if changed {
		c.config.LowChanged()
	}
}

// NodeMeta is memberlist.Delegate's.
func (g *gossip) NodeMeta(limit int) []byte {
	m := g.meta
	g.c.lows.mu.Lock()
	m.Low = g.c.lows.self
	g.c.lows.mu.Unlock()
	text, err := json.Marshal(m)
	if err != nil || len(text) > min(limit, memberlist.MetaMaxSize) {
		return nil // the catalog has the address all the same
	}
	return text
}
