package link

import (
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Standing is what this node knows of a stream and of the node that sent a
// frame of it.
type Standing struct {
	// Known: the metadata has the stream.
	Known bool
	// Replica: the sender has a replica of it.
	Replica bool
	// Epoch is the newest that the metadata gave out or that was promised here,
	// and Leader who leads it; "" if that is not known yet.
	Epoch  chunk.Epoch
	Leader protocol.NodeID
	// Leads is the epoch in which this node leads the stream, 0 if it does not.
	Leads chunk.Epoch
}

// Judge says what is wrong with a frame before anything of it is believed: a
// valid node can't push chunks for a stream that it does not lead. What merely
// comes late passes where the protocol answers it.
func Judge(s Standing, from protocol.NodeID, f *Frame) error {
	m := &f.Message
	switch leader := FromLeader(m.Kind); {
	case !s.Known:
		return ErrUnknownStream
	case !leader && !s.Replica:
		return ErrNotReplica
	case !leader && (s.Leads == 0 || m.Epoch != s.Leads):
		return ErrDirection
	case !leader:
		return nil
	case m.Epoch > s.Epoch:
		return ErrEpochAhead
	case m.Epoch < s.Epoch:
		// A leader that was deposed hears of it by the answer (A2).
		if m.Kind == protocol.MsgHello || m.Kind == protocol.MsgCheck {
			return nil
		}
		return ErrNotLeader
	case s.Leader != "" && s.Leader != from:
		return ErrNotLeader
	case s.Leads == m.Epoch:
		return ErrNotLeader // this node leads it, whatever the metadata has told so far
	case s.Leader == "" && !s.Replica:
		return ErrNotReplica // a removed leader leads on, but wins no election
	}
	return nil
}
