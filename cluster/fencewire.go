package cluster

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// What a Fencer asks of another node, in bytes. The layouts are in
// replication/PROTOCOL.md, "Requests to replicas"; numbers are big-endian.

// ErrRequest: bytes from another node are not what they should be.
var ErrRequest = errors.New("cluster: malformed request between nodes")

// Bounds of one request or answer.
const (
	// FrameStreams and FrameBytes bound the streams of one frame and, if there
	// are several, its bytes; who has more sends several.
	FrameStreams = 1024
	FrameBytes   = 8 << 20
	// reasonBytes bounds an error in words.
	reasonBytes = 1024
)

// errFrameFull is the answer for a replica whose report fits the frame no more. The
// coordinator asks again.
var errFrameFull = errors.New("the answer is full; ask again")

// EncodeFences encodes requests to one node; at most FrameStreams.
func EncodeFences(requests []catalog.FenceRequest) ([]byte, error) {
	w := writer{}
	w.u32(uint32(len(requests)))
	for _, q := range requests {
		text, err := json.Marshal(q.Stream)
		if err != nil {
			return nil, fmt.Errorf("encode stream %q: %w", q.Stream.Name, err)
		}
		w.bytes(text)
	}
	return w.b, nil
}

// DecodeFences is the way back. Error: ErrRequest.
func DecodeFences(b []byte) ([]catalog.FenceRequest, error) {
	r := reader{b: b}
	list := make([]catalog.FenceRequest, r.count(4))
	for i := range list {
		s := &catalog.Stream{}
		if text := r.bytes(); r.err == nil && json.Unmarshal(text, s) != nil {
			r.fail()
		}
		if r.err == nil && (s.Incarnation == 0 || s.Epoch == 0 || len(s.Replicas) == 0) {
			r.fail()
		}
		list[i].Stream = s
	}
	return list, r.end()
}

// EncodeFenceAnswers encodes one answer for each request. What is beyond
// FrameBytes is answered by an error that asks for another try.
func EncodeFenceAnswers(answers []FenceAnswer) []byte {
	w := writer{}
	w.u32(uint32(len(answers)))
	for i := range answers {
		a := &answers[i]
		if a.Err == nil && i > 0 && len(w.b)+len(a.Report.Pending) > FrameBytes {
			w.outcome(errFrameFull)
			continue
		}
		w.outcome(a.Err)
		if a.Err == nil {
			w.report(&a.Report)
		}
	}
	return w.b
}

// DecodeFenceAnswers is the way back; errors come as their words. Error:
// ErrRequest.
func DecodeFenceAnswers(b []byte) ([]FenceAnswer, error) {
	r := reader{b: b}
	list := make([]FenceAnswer, r.count(1))
	for i := range list {
		if list[i].Err = r.outcome(); list[i].Err == nil {
			r.report(&list[i].Report)
		}
	}
	return list, r.end()
}

const (
	flagReportAside = 1 << iota
	flagReportDamaged
)

func (w *writer) report(p *protocol.Report) {
	w.u64(uint64(p.Stream))
	w.u64(uint64(p.Epoch))
	w.name(p.Node)
	w.u64(uint64(p.Run))
	w.u64(uint64(p.Registration))
	w.tail(p.Tail)
	w.u64(uint64(p.Commit))
	w.u64(uint64(p.LogStart))
	w.flags(p.Aside, p.Damaged)
	w.tail(p.Mark)
	w.bytes(p.Pending)
}

func (r *reader) report(p *protocol.Report) {
	p.Stream, p.Epoch, p.Node = chunk.Incarnation(r.u64()), chunk.Epoch(r.u64()), r.name()
	p.Run, p.Registration = protocol.RunID(r.u64()), protocol.Registration(r.u64())
	p.Tail, p.Commit, p.LogStart = r.tail(), chunk.LSN(r.u64()), chunk.LSN(r.u64())
	f := r.flags(flagReportAside | flagReportDamaged)
	p.Aside, p.Damaged = f&flagReportAside != 0, f&flagReportDamaged != 0
	p.Mark, p.Pending = r.tail(), r.bytes()
}

// EncodeInstalls encodes installations on one node; at most FrameStreams.
func EncodeInstalls(list []catalog.Installation) []byte {
	w := writer{}
	w.u32(uint32(len(list)))
	for i := range list {
		a := &list[i]
		w.u64(uint64(a.Stream))
		w.u64(uint64(a.Epoch))
		w.name(a.Node)
		w.u64(uint64(a.Run))
		w.u64(uint64(a.Replicas.Version))
		w.u32(uint32(len(a.Replicas.Members)))
		for _, m := range a.Replicas.Members {
			w.name(m.Node)
			w.flags(m.Learner, m.Aside)
			w.u64(uint64(m.Registration))
		}
		w.u64(uint64(a.Inheritance.LogStart))
		w.u32(uint32(len(a.Inheritance.Pending)))
		for _, p := range a.Inheritance.Pending {
			w.bytes(p)
		}
	}
	return w.b
}

// InstallBytes is about what an installation takes of a frame.
func InstallBytes(i *catalog.Installation) int {
	n := 64 + 300*len(i.Replicas.Members)
	for _, p := range i.Inheritance.Pending {
		n += 4 + len(p)
	}
	return n
}

// DecodeInstalls is the way back. Error: ErrRequest.
func DecodeInstalls(b []byte) ([]catalog.Installation, error) {
	r := reader{b: b}
	list := make([]catalog.Installation, r.count(53))
	for i := range list {
		a := &list[i]
		a.Stream, a.Epoch, a.Node = chunk.Incarnation(r.u64()), chunk.Epoch(r.u64()), r.name()
		a.Run, a.Replicas.Version = protocol.RunID(r.u64()), protocol.ConfigVersion(r.u64())
		a.Replicas.Members = make([]protocol.Member, r.count(10))
		for k := range a.Replicas.Members {
			m := &a.Replicas.Members[k]
			m.Node = r.name()
			f := r.flags(flagMemberLearner | flagMemberAside)
			m.Learner, m.Aside = f&flagMemberLearner != 0, f&flagMemberAside != 0
			m.Registration = protocol.Registration(r.u64())
		}
		a.Inheritance.LogStart = chunk.LSN(r.u64())
		if n := r.count(4); n > 0 {
			a.Inheritance.Pending = make([][]byte, n)
		}
		for k := range a.Inheritance.Pending {
			a.Inheritance.Pending[k] = r.bytes()
		}
	}
	return list, r.end()
}

const (
	flagMemberLearner = 1 << iota
	flagMemberAside
)

// EncodeOutcomes encodes what became of each of many requests.
func EncodeOutcomes(errs []error) []byte {
	w := writer{}
	w.u32(uint32(len(errs)))
	for _, err := range errs {
		w.outcome(err)
	}
	return w.b
}

// DecodeOutcomes is the way back; an ErrVoid stays one, other errors come as
// their words. Error: ErrRequest.
func DecodeOutcomes(b []byte) ([]error, error) {
	r := reader{b: b}
	list := make([]error, r.count(1))
	for i := range list {
		list[i] = r.outcome()
	}
	return list, r.end()
}

// EncodeHandover encodes one handover.
func EncodeHandover(h catalog.Handover) []byte {
	w := writer{}
	w.u64(uint64(h.Stream))
	w.u64(uint64(h.Epoch))
	w.name(h.From)
	w.name(h.To)
	return w.b
}

// DecodeHandover is the way back. Error: ErrRequest.
func DecodeHandover(b []byte) (h catalog.Handover, err error) {
	r := reader{b: b}
	h.Stream, h.Epoch, h.From, h.To = chunk.Incarnation(r.u64()), chunk.Epoch(r.u64()), r.name(), r.name()
	return h, r.end()
}

// Outcomes.
const (
	outcomeDone = iota
	outcomeVoid
	outcomeFailed
)

// answeredError is another node's error in its words.
type answeredError struct {
	text string
	void bool
}

func (e *answeredError) Error() string { return e.text }

func (e *answeredError) Is(target error) bool { return e.void && target == ErrVoid }

// writer appends fields.
type writer struct{ b []byte }

func (w *writer) u32(v uint32) { w.b = binary.BigEndian.AppendUint32(w.b, v) }
func (w *writer) u64(v uint64) { w.b = binary.BigEndian.AppendUint64(w.b, v) }

func (w *writer) bytes(p []byte) {
	w.u32(uint32(len(p)))
	w.b = append(w.b, p...)
}

// name writes a node's, which has at most 255 bytes.
func (w *writer) name(n protocol.NodeID) {
	w.b = append(append(w.b, byte(len(n))), n...)
}

func (w *writer) tail(t chunk.Tail) {
	w.u64(uint64(t.Epoch))
	w.u64(uint64(t.LSN))
}

func (w *writer) flags(bits ...bool) {
	f := byte(0)
	for i, on := range bits {
		if on {
			f |= 1 << i
		}
	}
	w.b = append(w.b, f)
}

func (w *writer) outcome(err error) {
	switch {
	case err == nil:
		w.b = append(w.b, outcomeDone)
		return
	case errors.Is(err, ErrVoid):
		w.b = append(w.b, outcomeVoid)
	default:
		w.b = append(w.b, outcomeFailed)
	}
	text := err.Error()
	w.bytes([]byte(strings.ToValidUTF8(text[:min(len(text), reasonBytes)], "")))
}

// reader takes fields off b; after the first that is not there all are zero.
type reader struct {
	b   []byte
	err error
}

func (r *reader) fail() {
	r.err, r.b = ErrRequest, nil
}

func (r *reader) take(n int) []byte {
	if r.err != nil || n > len(r.b) {
		r.fail()
		return nil
	}
	p := r.b[:n:n]
	r.b = r.b[n:]
	return p
}

func (r *reader) u8() byte {
	if p := r.take(1); p != nil {
		return p[0]
	}
	return 0
}

func (r *reader) u32() uint32 {
	if p := r.take(4); p != nil {
		return binary.BigEndian.Uint32(p)
	}
	return 0
}

func (r *reader) u64() uint64 {
	if p := r.take(8); p != nil {
		return binary.BigEndian.Uint64(p)
	}
	return 0
}

// count reads how many items follow, each of at least so many bytes: what
// can't be there is not believed.
func (r *reader) count(least int) int {
	n := int(r.u32())
	if n > len(r.b)/least {
		r.fail()
		return 0
	}
	return n
}

// bytes is nil if there are none.
func (r *reader) bytes() []byte {
	if n := r.u32(); n > 0 {
		return r.take(int(n))
	}
	return nil
}

func (r *reader) name() protocol.NodeID { return protocol.NodeID(r.take(int(r.u8()))) }

func (r *reader) tail() chunk.Tail {
	return chunk.Tail{Epoch: chunk.Epoch(r.u64()), LSN: chunk.LSN(r.u64())}
}

func (r *reader) flags(known byte) byte {
	f := r.u8()
	if f&^known != 0 {
		r.fail()
	}
	return f
}

func (r *reader) outcome() error {
	switch code := r.u8(); code {
	case outcomeDone:
		return nil
	case outcomeVoid, outcomeFailed:
		text := r.bytes()
		if len(text) > reasonBytes || !utf8.Valid(text) {
			r.fail()
		}
		return &answeredError{string(text), code == outcomeVoid}
	}
	r.fail()
	return r.err
}

func (r *reader) end() error {
	if r.err == nil && len(r.b) > 0 {
		r.fail()
	}
	return r.err
}
