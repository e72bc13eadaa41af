package broker

import (
	"errors"
	"sync"
	"time"
)

// Peers are the brokers of the cluster's other nodes. It is joined in cmd, over
// the link's requests.
type Peers interface {
	// Ask sends a request to a node, where ServePeer answers it. Those to one
	// node arrive in the order asked. done hears the answer, or why there is
	// none, once and from any goroutine; it must not block. With an error nothing
	// was sent, and done is not called. The body must not change any more.
	//
	// Errors of both: ErrPeerBusy, ErrPeerGone, others.
	Ask(node string, method Method, body []byte, deadline time.Time, done func(Status, []byte, error)) error
}

var (
	// ErrPeerBusy: as many requests wait for a node's answer as may; there is room
	// again soon.
	ErrPeerBusy = errors.New("broker: too many requests wait for the node")
	// ErrPeerGone: there is no link to the node, or it broke before the answer.
	ErrPeerGone = errors.New("broker: node is not reached")
)

// lanes are the ways to other nodes' brokers, made when they are needed.
type lanes struct {
	mu     sync.Mutex // guards byNode
	byNode map[string]*lane
}

func (b *Broker) lane(node string) *lane {
	b.lanes.mu.Lock()
	defer b.lanes.mu.Unlock()
	l := b.lanes.byNode[node]
	if l == nil {
		l = newLane(b, node)
		if b.lanes.byNode == nil {
			b.lanes.byNode = map[string]*lane{}
		}
		b.lanes.byNode[node] = l
	}
	return l
}

// PeerGone hears that the link to a node broke: its clients' publishers end here,
// and those of this node's clients there. It must come before the first request
// of the next link.
func (b *Broker) PeerGone(node string) {
	b.guests.forget(node)
	b.lanes.mu.Lock()
	l := b.lanes.byNode[node]
	b.lanes.mu.Unlock()
	if l != nil {
		l.broke()
	}
}
