package node

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
)

// forwards carries clients' commands between the brokers of nodes: broker.Peers
// over the link, and what other nodes ask of this one's.
type forwards struct {
	transport *transport
	broker    atomic.Pointer[broker.Broker] // nil before it is open
}

// Ask is broker.Peers'.
func (f *forwards) Ask(
	node string, method broker.Method, body []byte, deadline time.Time, done func(broker.Status, []byte, error),
) error {
	links := f.transport.opened()
	if links == nil {
		return broker.ErrPeerGone
	}
	to := protocol.NodeID(node)
	err := links.Ask(to, groupForward<<8+uint16(method), body, deadline, func(r link.Response, err error) {
		done(broker.Status(r.Status), r.Body, peerError(err))
	})
	if errors.Is(err, link.ErrUnreachable) {
		links.Connect(to) // for the next one
	}
	return peerError(err)
}

// peerError says in the broker's words what the link says in its own.
func peerError(err error) error {
	switch {
	case errors.Is(err, link.ErrBacklog):
		return errors.Join(broker.ErrPeerBusy, err)
	case errors.Is(err, link.ErrUnreachable):
		return errors.Join(broker.ErrPeerGone, err)
	}
	return err
}

// serve answers other nodes' brokers, in the order asked.
func (f *forwards) serve(peer protocol.NodeID, r *link.Request) {
	b := f.broker.Load()
	if b == nil {
		r.Reply(statusUnknown, nil)
		return
	}
	b.ServePeer(string(peer), broker.Method(r.Method), r.Body, func(status broker.Status, body []byte) {
		r.Reply(uint16(status), body)
	})
}

// down hears that a link broke, before anything of the next one.
func (f *forwards) down(peer protocol.NodeID) {
	if b := f.broker.Load(); b != nil {
		b.PeerGone(string(peer))
	}
}
