package link

import (
	"encoding/binary"
	"fmt"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// A frame's length, then its fields; what rides beside follows, with lengths
// that the fields tell.
//
//	 0        4    5    6        14       22        30
//	+--------+----+----+--------+--------+---------+--- - - -+- - - - -+
//	| length |kind|flag| stream | epoch  | session | kind's  | beside  |
//	+--------+----+----+--------+--------+---------+--- - - -+- - - - -+
//	         |<------------- length bytes ------------------>|
//
// appendFrame appends length and fields of f. A gap that has no room in a frame
// is an ErrTooLarge.
func appendFrame(dst []byte, f *Frame) ([]byte, error) {
	be := binary.BigEndian
	m := &f.Message
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0, wireKinds[m.Kind], frameFlags(m))
	dst = be.AppendUint64(dst, uint64(f.Stream))
	dst = be.AppendUint64(dst, uint64(m.Epoch))
	dst = be.AppendUint64(dst, uint64(m.Session))
	switch m.Kind {
	case protocol.MsgHello:
		dst = be.AppendUint64(dst, uint64(m.Config))
	case protocol.MsgFound:
		dst = appendTail(dst, m.Tail)
		dst = appendStart(dst, &m.Start)
	case protocol.MsgChunk:
		dst = be.AppendUint64(dst, uint64(m.Commit))
		dst = be.AppendUint32(dst, uint32(len(f.Head)))
		dst = be.AppendUint32(dst, uint32(len(f.Data)))
		if m.First {
			dst = appendTail(dst, m.Tail)
		}
		if m.Gap != nil {
			dst = appendGap(dst, m.Gap)
		}
	case protocol.MsgPending:
		dst = be.AppendUint64(dst, m.ID)
		dst = be.AppendUint32(dst, uint32(len(f.Pending)))
	case protocol.MsgCommit:
		dst = be.AppendUint64(dst, uint64(m.Commit))
		dst = be.AppendUint64(dst, uint64(m.Start.LSN))
	case protocol.MsgCheck, protocol.MsgChecked:
		dst = be.AppendUint64(dst, m.ID)
	case protocol.MsgWelcome:
		dst = be.AppendUint64(dst, uint64(m.Run))
		dst = be.AppendUint64(dst, uint64(m.Registration))
	case protocol.MsgFind:
		dst = appendTail(dst, m.Tail)
	case protocol.MsgJoined, protocol.MsgAck:
		dst = be.AppendUint64(dst, uint64(m.LSN))
	case protocol.MsgRefuse:
		dst = be.AppendUint64(dst, uint64(m.Promised))
		dst = append(dst, byte(m.Reason))
	default:
		panic(fmt.Sprintf("link: no such message: %d", m.Kind))
	}
	if err := checkLengths(f, len(dst)-start-lengthBytes); err != nil {
		return dst[:start], err
	}
	be.PutUint32(dst[start:], uint32(len(dst)-start-lengthBytes))
	return dst, nil
}

func frameFlags(m *protocol.Message) (flags byte) {
	may := flagsOf[wireKinds[m.Kind]]
	if m.First {
		flags |= flagFirst & may
	}
	if m.Aside {
		flags |= flagAside & may
	}
	if m.Gap != nil {
		flags |= flagGap & may
	}
	return flags
}

func checkLengths(f *Frame, fields int) error {
	switch {
	case fields > fieldsMax:
		return fmt.Errorf("fields of %d bytes: %w", fields, ErrTooLarge)
	case len(f.Head) > chunk.HeadLengthMax || len(f.Data) > chunk.DataLengthMax:
		return fmt.Errorf("chunk of %d and %d bytes: %w", len(f.Head), len(f.Data), ErrTooLarge)
	case len(f.Pending) > pendingMax:
		return fmt.Errorf("pending updates of %d bytes: %w", len(f.Pending), ErrTooLarge)
	}
	return nil
}

func appendTail(dst []byte, t chunk.Tail) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(t.Epoch))
	return binary.BigEndian.AppendUint64(dst, uint64(t.LSN))
}

func appendLine(dst []byte, l *protocol.EpochLine) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(l.Epoch))
	dst = binary.BigEndian.AppendUint64(dst, uint64(l.LSN))
	return binary.BigEndian.AppendUint64(dst, uint64(l.Offset))
}

func appendStart(dst []byte, s *protocol.LogStart) []byte {
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.LSN))
	dst = binary.BigEndian.AppendUint64(dst, uint64(s.Offset))
	dst = appendLine(dst, &s.Line)
	return binary.BigEndian.AppendUint64(dst, uint64(s.Digest))
}

func appendGap(dst []byte, g *protocol.Gap) []byte {
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(g.Lines)))
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(g.Segments)))
	for i := range g.Lines {
		dst = appendLine(dst, &g.Lines[i])
	}
	for _, s := range g.Segments {
		dst = binary.BigEndian.AppendUint64(dst, uint64(s.LSN))
		dst = append(dst, bit(s.Unit))
	}
	return dst
}

func bit(b bool) byte {
	if b {
		return 1
	}
	return 0
}

// beside is what follows a frame's fields, in bytes.
type beside struct {
	head, data, pending int
}

// decodeFrame reads the fields of a protocol message into f, whose bytes beside
// are left to the caller. Every field is checked; a byte too few or too many is
// an ErrFrame.
func decodeFrame(p []byte, f *Frame) (beside, error) {
	var b beside
	*f = Frame{}
	c := cursor{p: p}
	kind, flags := c.u8(), c.u8()
	m := &f.Message
	m.Kind = messageKinds[kind]
	if m.Kind == 0 || flags&^flagsOf[kind] != 0 {
		return b, fmt.Errorf("kind %#02x with flags %#02x: %w", kind, flags, ErrFrame)
	}
	m.First, m.Aside = flags&flagFirst != 0, flags&flagAside != 0
	f.Stream = chunk.Incarnation(c.u64())
	m.Epoch = chunk.Epoch(c.u64())
	m.Session = protocol.SessionID(c.u64())
	switch m.Kind {
	case protocol.MsgHello:
		m.Stream = f.Stream
		m.Config = protocol.ConfigVersion(c.u64())
	case protocol.MsgFound:
		m.Tail = c.tail()
		m.Start = c.start()
	case protocol.MsgChunk:
		m.Commit = chunk.LSN(c.u64())
		b.head, b.data = c.length(chunk.HeadLengthMax), c.length(chunk.DataLengthMax)
		c.require(b.head >= chunk.HeadLengthMin)
		if m.First {
			m.Tail = c.tail()
		}
		if flags&flagGap != 0 {
			m.Gap = c.gap()
		}
	case protocol.MsgPending:
		m.ID = c.u64()
		b.pending = c.length(pendingMax)
	case protocol.MsgCommit:
		m.Commit = chunk.LSN(c.u64())
		m.Start.LSN = chunk.LSN(c.u64())
	case protocol.MsgCheck, protocol.MsgChecked:
		m.ID = c.u64()
	case protocol.MsgWelcome:
		m.Run = protocol.RunID(c.u64())
		m.Registration = protocol.Registration(c.u64())
	case protocol.MsgFind:
		m.Tail = c.tail()
	case protocol.MsgJoined, protocol.MsgAck:
		m.LSN = chunk.LSN(c.u64())
	case protocol.MsgRefuse:
		m.Promised = chunk.Epoch(c.u64())
		m.Reason = protocol.Reason(c.u8())
		c.require(m.Reason <= protocol.ReasonStorage)
	}
	if !c.done() {
		return b, fmt.Errorf("%v of %d bytes: %w", m.Kind, len(p), ErrFrame)
	}
	return b, nil
}

// control is a frame of the link itself.
type control struct {
	kind    byte
	stream  chunk.Incarnation // credit
	bytes   uint32            // credit
	id      uint64            // request, response
	method  uint16            // request; of a response its status
	timeout uint32            // request, in milliseconds
	body    int               // request, response: bytes that follow
}

// Frames of the link itself begin with length, kind and flags too:
//
//	heartbeat  –
//	credit     stream u64, bytes u32
//	request    id u64, method u16, milliseconds u32, body length u32
//	response   id u64, status u16, body length u32
func appendControl(dst []byte, c *control) []byte {
	be := binary.BigEndian
	start := len(dst)
	dst = append(dst, 0, 0, 0, 0, c.kind, 0)
	switch c.kind {
	case kindCredit:
		dst = be.AppendUint64(dst, uint64(c.stream))
		dst = be.AppendUint32(dst, c.bytes)
	case kindRequest, kindResponse:
		dst = be.AppendUint64(dst, c.id)
		dst = be.AppendUint16(dst, c.method)
		if c.kind == kindRequest {
			dst = be.AppendUint32(dst, c.timeout)
		}
		dst = be.AppendUint32(dst, uint32(c.body))
	}
	be.PutUint32(dst[start:], uint32(len(dst)-start-lengthBytes))
	return dst
}

func decodeControl(p []byte) (control, error) {
	c := cursor{p: p}
	r := control{kind: c.u8()}
	c.require(c.u8() == 0)
	switch r.kind {
	case kindHeartbeat:
	case kindCredit:
		r.stream, r.bytes = chunk.Incarnation(c.u64()), c.u32()
		c.require(r.bytes > 0)
	case kindRequest, kindResponse:
		r.id, r.method = c.u64(), c.u16()
		if r.kind == kindRequest {
			r.timeout = c.u32()
			c.require(r.timeout > 0)
		}
		r.body = c.length(bodyMax)
	default:
		c.bad = true
	}
	if !c.done() {
		return r, fmt.Errorf("kind %#02x of %d bytes: %w", r.kind, len(p), ErrFrame)
	}
	return r, nil
}
