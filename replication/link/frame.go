package link

import (
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Held is the count that keeps a chunk's bytes in memory.
type Held interface {
	Retain()
	Release()
}

// Frame is one message between two replicas of a stream, with what rides
// beside. It is a value: neither side keeps the pointer that it is given.
type Frame struct {
	Stream chunk.Incarnation
	// Message.Chunk does not travel; the receiver reads it from the bytes.
	// Message.Stream is Stream in a hello and else not set.
	Message protocol.Message
	// Head and Data are the chunk's two runs, with MsgChunk. Sent, they never
	// change and Held keeps them; delivered, they are the receiver's alone, and
	// so is the count.
	Head, Data []byte
	Held       Held
	// Pending are encoded pending updates, with MsgPending. Send copies them;
	// delivered, they are the receiver's.
	Pending []byte
	// Taken is to be called with Credit when a delivered frame has been dealt
	// with, from any goroutine. Until then it counts against what the peer may
	// send of the stream. Nil in a frame that costs no credit.
	Taken func(credit int)
}

// Credit is what the frame costs of its stream's credit, in bytes.
func (f *Frame) Credit() int { return len(f.Head) + len(f.Data) + len(f.Pending) }

// FromLeader tells whether a message is one that a leader sends.
func FromLeader(k protocol.MessageKind) bool {
	switch k {
	case protocol.MsgHello, protocol.MsgFound, protocol.MsgChunk,
		protocol.MsgPending, protocol.MsgCommit, protocol.MsgCheck:
		return true
	}
	return false
}

// Kinds of frames on the wire. They are not the protocol's numbers, which may
// change from build to build.
const (
	kindHello   = 0x01
	kindFound   = 0x02
	kindChunk   = 0x03
	kindPending = 0x04
	kindCommit  = 0x05
	kindCheck   = 0x06

	kindWelcome = 0x11
	kindFind    = 0x12
	kindJoined  = 0x13
	kindAck     = 0x14
	kindChecked = 0x15
	kindRefuse  = 0x16

	kindHeartbeat = 0x21
	kindCredit    = 0x22

	kindRequest  = 0x31
	kindResponse = 0x32
)

// wireKinds is indexed by protocol.MessageKind.
var wireKinds = [...]byte{
	protocol.MsgHello: kindHello, protocol.MsgFound: kindFound, protocol.MsgChunk: kindChunk,
	protocol.MsgPending: kindPending, protocol.MsgCommit: kindCommit, protocol.MsgCheck: kindCheck,
	protocol.MsgWelcome: kindWelcome, protocol.MsgFind: kindFind, protocol.MsgJoined: kindJoined,
	protocol.MsgAck: kindAck, protocol.MsgChecked: kindChecked, protocol.MsgRefuse: kindRefuse,
}

// messageKinds is the way back; 0 is no message.
var messageKinds = func() (m [256]protocol.MessageKind) {
	for k, wire := range wireKinds {
		if wire != 0 {
			m[wire] = protocol.MessageKind(k)
		}
	}
	return m
}()

// Bits of a frame's flags.
const (
	flagFirst = 1 << iota
	flagAside
	flagGap
)

// flagsOf are the flags that a kind may have.
var flagsOf = [256]byte{kindChunk: flagFirst | flagGap, kindPending: flagFirst, kindWelcome: flagAside}

// Bounds of a frame, in bytes.
const (
	lengthBytes = 4
	// fieldsMax leaves room for a gap of 40,000 epochs or 100,000 segments.
	fieldsMax = 1 << 20
	// pendingMax is what replication puts into one frame, with room to spare.
	pendingMax = 2 << 20
	// bodyMax holds the largest frame of a client that is forwarded.
	bodyMax = 17 << 20
	// headerRoom holds length and fields of every frame without a gap.
	headerRoom = 96
)
