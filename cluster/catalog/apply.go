package catalog

import (
	"slices"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// ChangeKind says what sort of thing a Change is about.
type ChangeKind int

const (
	// StreamChanged: Stream is new (Before is nil), gone (Stream is nil) or
	// has another leader, epoch, set of replicas or other arguments.
	StreamChanged ChangeKind = iota
	// NodeChanged: the member Node is new, gone or has other properties.
	NodeChanged
	// AccessChanged: a virtual host, user or permission is new, gone or other.
	AccessChanged
	// SuperStreamChanged: a super stream is new or gone.
	SuperStreamChanged
	// GroupChanged: Group is new (GroupBefore is nil), gone (Group is nil) or
	// has other members or roles.
	GroupChanged
)

// Change is one difference between two states.
type Change struct {
	Kind   ChangeKind
	Before *Stream // StreamChanged: nil if it is new
	Stream *Stream // StreamChanged: nil if it is gone
	Node   protocol.NodeID

	GroupBefore, Group *Group
}

// edit is a state in the making.
type edit struct {
	State
	at      chunk.Timestamp
	changes []Change
}

// Apply carries one command out. A repetition of a remembered request returns
// s itself and the first answer. The error is one of Decode's.
func (s *State) Apply(command []byte) (*State, Result, []Change, error) {
	c, err := Decode(command)
	if err != nil {
		return s, Result{}, nil, err
	}
	next, result, changes := s.Do(c)
	return next, result, changes, nil
}

// Do carries a decoded command out.
func (s *State) Do(c Command) (*State, Result, []Change) {
	if result, ok := s.requests.recall(c.Request); ok {
		return s, result, nil
	}
	e := &edit{State: *s, at: c.At}
	result := Result{Outcomes: c.Body.apply(e)}
	e.version++
	e.requests = e.requests.remember(c.Request, result)
	next := e.State
	return &next, result, e.changes
}

// putStream stores a new version of a stream, or a new stream.
func (e *edit) putStream(s *Stream) {
	before, _ := e.streams.get(s.Incarnation)
	if before == s {
		return
	}
	if before != nil {
		e.shift(before, -1)
	}
	e.shift(s, +1)
	e.streams = e.streams.put(s.Incarnation, s)
	if before == nil {
		e.names = e.names.put(key(s.VHost, s.Name), s.Incarnation)
	}
	e.changes = append(e.changes, Change{Kind: StreamChanged, Before: before, Stream: s})
}

func (e *edit) dropStream(s *Stream) {
	e.shift(s, -1)
	e.streams = e.streams.remove(s.Incarnation)
	e.names = e.names.remove(key(s.VHost, s.Name))
	e.dropGroups(s)
	e.changes = append(e.changes, Change{Kind: StreamChanged, Before: s})
}

// modify returns a copy of a stream to change; its replicas are its own.
func (e *edit) modify(i chunk.Incarnation) (*Stream, *Refusal) {
	s, ok := e.streams.get(i)
	if !ok {
		return nil, refuse(ErrStreamMissing, "incarnation %s", i)
	}
	c := *s
	c.Replicas = slices.Clone(s.Replicas)
	return &c, nil
}

// replica returns the place of a node's replica, or −1.
func (s *Stream) replica(node protocol.NodeID) int {
	return slices.IndexFunc(s.Replicas, func(r Replica) bool { return r.Node == node })
}

func (e *edit) accessChanged() {
	e.changes = append(e.changes, Change{Kind: AccessChanged})
}

func (e *edit) nodeChanged(id protocol.NodeID) {
	e.changes = append(e.changes, Change{Kind: NodeChanged, Node: id})
}

// one is the answer of a command without parts.
func one(r *Refusal) []Outcome { return []Outcome{{Refusal: r}} }

// Bounds of the memory of requests. A request is repeated within its deadline,
// which is seconds; behind the memory, commands are safe by what they name.
const (
	requestsMax = 8_192
	outcomesMax = 65_536
)

// memory remembers the answers to the newest requests.
type memory struct {
	by       tree[string, remembered]
	order    tree[uint64, string] // request by age; the lowest is forgotten first
	next     uint64
	outcomes int // of all remembered results
}

type remembered struct {
	age    uint64
	result Result
}

func (m memory) recall(request string) (Result, bool) {
	if request == "" {
		return Result{}, false
	}
	r, ok := m.by.get(request)
	return r.result, ok
}

func (m memory) remember(request string, result Result) memory {
	if request == "" {
		return m
	}
	m.by = m.by.put(request, remembered{age: m.next, result: result})
	m.order = m.order.put(m.next, request)
	m.outcomes += len(result.Outcomes)
	m.next++
	// The newest is always kept, whatever its size.
	for m.order.len() > 1 && (m.order.len() > requestsMax || m.outcomes > outcomesMax) {
		age, oldest, _ := m.order.min()
		r, _ := m.by.get(oldest)
		m.outcomes -= len(r.result.Outcomes)
		m.by = m.by.remove(oldest)
		m.order = m.order.remove(age)
	}
	return m
}
