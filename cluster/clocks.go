package cluster

import (
	"encoding/binary"
	"sync"
	"time"

	"github.com/hashicorp/memberlist"

	"github.com/millrace/millrace/replication/protocol"
)

// clockFresh is how long what a node's clock said is of use: many times the time
// between two pings. A clock that was read before is reckoned on.
const clockFresh = 30 * time.Second

// clocks are what the other nodes' clocks say, as they answer gossip's pings.
type clocks struct {
	// wall is the clock that others are told.
	wall func() time.Time

	mu   sync.Mutex // guards read
	read map[protocol.NodeID]reading
}

// reading is what a clock said, and when that was by this node's steady clock.
type reading struct{ wall, at time.Time }

// Clocks returns what the clocks of the other members say now, of those that were
// asked lately.
func (c *Cluster) Clocks() []time.Time {
	if c.gossip == nil {
		return nil
	}
	k := &c.gossip.clocks
	k.mu.Lock()
	defer k.mu.Unlock()
	var list []time.Time
	for node, r := range k.read {
		passed := time.Since(r.at)
		if _, member := c.View().Node(node); !member || passed > clockFresh {
			delete(k.read, node)
			continue
		}
		list = append(list, r.wall.Add(passed))
	}
	return list
}

// AckPayload and NotifyPingComplete are memberlist.PingDelegate's: an answer
// carries the clock, milliseconds since 1970 as u64.
func (g *gossip) AckPayload() []byte {
	return binary.BigEndian.AppendUint64(nil, uint64(g.clocks.wall().UnixMilli()))
}

func (g *gossip) NotifyPingComplete(other *memberlist.Node, rtt time.Duration, payload []byte) {
	if len(payload) != 8 {
		return // an older node's
	}
	k := &g.clocks
	k.mu.Lock()
	defer k.mu.Unlock()
	k.read[protocol.NodeID(other.Name)] = reading{
		time.UnixMilli(int64(binary.BigEndian.Uint64(payload))).Add(rtt / 2), time.Now(),
	}
}
