package catalog

import (
	"iter"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// State is the whole catalog at one moment: an immutable value, read without a
// lock. Look-ups answer pointers into it, which must not be written to. All
// sequences come in the order of their keys.
type State struct {
	// version counts the commands that were carried out or refused for good;
	// a repetition of a remembered request does not count.
	version uint64

	vhosts      tree[string, *VHost]
	users       tree[string, *User]
	permissions tree[string, *Permission] // by key(vhost, user)
	nodes       tree[protocol.NodeID, *Node]
	names       tree[string, chunk.Incarnation] // streams by key(vhost, name)
	streams     tree[chunk.Incarnation, *Stream]
	supers      tree[string, *SuperStream] // by key(vhost, name)
	groups      tree[string, *Group]       // by key(vhost, stream, name)
	requests    memory
	gossipKey   []byte

	// loads is derived from streams, so that placing one needs no walk.
	loads tree[protocol.NodeID, Load]
}

// New returns the empty state, which a cluster starts from.
func New() *State { return &State{} }

// VHost is a name space for streams and super streams.
type VHost struct {
	Name    string          `json:"name"`
	Created chunk.Timestamp `json:"created"`
}

// User is somebody who may log in. Hash is a text in the form that package
// cluster verifies; it never holds the password itself.
type User struct {
	Name string   `json:"name"`
	Hash string   `json:"hash"`
	Tags []string `json:"tags,omitempty"` // sorted: administrator, monitoring, …
}

// Permission is what one user may do in one virtual host: three regular
// expressions, searched anywhere in the names of streams and super streams.
// The empty one matches only the empty name.
type Permission struct {
	VHost     string `json:"vhost"`
	User      string `json:"user"`
	Configure string `json:"configure"`
	Write     string `json:"write"`
	Read      string `json:"read"`

	compiled [3]*regexp.Regexp // by Action; nil matches nothing
}

// Action is a kind of access that a Permission rules.
type Action int

const (
	Configure Action = iota
	Write
	Read
)

func (a Action) String() string { return [...]string{"configure", "write", "read"}[a] }

// Allows says whether the permission covers the action on a name.
func (p *Permission) Allows(a Action, name string) bool {
	if p.compiled[a] == nil {
		return name == ""
	}
	return p.compiled[a].MatchString(name)
}

// Node is a member of the cluster.
type Node struct {
	ID protocol.NodeID `json:"id"`
	// Disk is drawn when the node's data directory is made. A member that
	// comes back with another one has lost its data.
	Disk string `json:"disk"`
	// Endpoints by which it is reached.
	Endpoints
	Rack     string          `json:"rack,omitempty"`
	Version  string          `json:"version,omitempty"`  // of the program
	Draining bool            `json:"draining,omitempty"` // leads nothing, gets nothing new
	Leaving  bool            `json:"leaving,omitempty"`  // gives its replicas away too
	Joined   chunk.Timestamp `json:"joined"`
}

// Endpoints are host:port addresses; an empty one is not offered.
type Endpoints struct {
	Stream    string `json:"stream,omitempty"`     // advertised to clients
	StreamTLS string `json:"stream-tls,omitempty"` // the same over TLS
	HTTP      string `json:"http,omitempty"`       // API and page
	Node      string `json:"node,omitempty"`       // raft and link
	Gossip    string `json:"gossip,omitempty"`
}

// Stream is one life of a stream name.
type Stream struct {
	VHost       string            `json:"vhost"`
	Name        string            `json:"name"`
	Incarnation chunk.Incarnation `json:"incarnation"`
	Arguments   Arguments         `json:"arguments"` // in force
	Created     chunk.Timestamp   `json:"created"`
	Creator     string            `json:"creator,omitempty"` // user name
	// Declared are the arguments that it was created with, if they were changed
	// since. It is never written to.
	Declared *Arguments `json:"declared,omitempty"`

	// Epoch is the newest that was given out (A1); it grows only.
	Epoch chunk.Epoch `json:"epoch"`
	// Leader leads Epoch; zero while an election is under way.
	Leader Leader `json:"leader,omitzero"`
	// Replicas in order of their node. Invariant: at least one is a voter.
	Replicas []Replica `json:"replicas"`
	// ConfigVersion counts the changes of Replicas; the first is 1.
	ConfigVersion protocol.ConfigVersion `json:"config-version"`
	// Preferred breaks ties in elections: the place that was chosen for the
	// leader, or the target of the last transfer.
	Preferred protocol.NodeID `json:"preferred,omitempty"`
	// Target is where an operator wants the leader; the next leader, wherever
	// it is, ends the wish.
	Target protocol.NodeID `json:"target,omitempty"`
}

// Leader is who leads the newest epoch, by which run of its replica.
type Leader struct {
	Node protocol.NodeID `json:"node"`
	Run  protocol.RunID  `json:"run"`
	// ConfigVersion is the one by which it was elected (A4).
	ConfigVersion protocol.ConfigVersion `json:"config-version"`
}

// Replica is one node's copy of a stream, as far as the catalog knows.
type Replica struct {
	Node protocol.NodeID `json:"node"`
	// Voter: it is in the denominator of every majority. Else a learner.
	Voter bool `json:"voter,omitempty"`
	// Leaving: it is to go, once the others can do without it.
	Leaving bool `json:"leaving,omitempty"`
	// Aside: it receives but counts for nothing, until cleared (D2).
	Aside bool `json:"aside,omitempty"`
	// Registration counts how often the replica was registered anew (D1).
	Registration protocol.Registration `json:"registration,omitempty"`
}

// SuperStream is a named, ordered set of partitions with binding keys.
type SuperStream struct {
	VHost      string          `json:"vhost"`
	Name       string          `json:"name"`
	Created    chunk.Timestamp `json:"created"`
	Partitions []Partition     `json:"partitions"` // in order; never empty
}

// Partition is a stream of a super stream and the key that routes to it.
type Partition struct {
	Stream string `json:"stream"`
	Key    string `json:"key"`
}

// Led says whether the newest epoch has a leader.
func (s *Stream) Led() bool { return s.Leader.Node != "" }

// Replica returns the stream's replica on a node.
func (s *Stream) Replica(node protocol.NodeID) (Replica, bool) {
	for _, r := range s.Replicas {
		if r.Node == node {
			return r, true
		}
	}
	return Replica{}, false
}

// Configuration returns the replicas as the protocol sees them.
func (s *Stream) Configuration() protocol.Configuration {
	c := protocol.Configuration{Version: s.ConfigVersion, Members: make([]protocol.Member, len(s.Replicas))}
	for i, r := range s.Replicas {
		c.Members[i] = protocol.Member{Node: r.Node, Learner: !r.Voter, Aside: r.Aside, Registration: r.Registration}
	}
	return c
}

// Assignment returns what makes the leader lead; ok is false without one.
func (s *Stream) Assignment() (a protocol.Assignment, ok bool) {
	return protocol.Assignment{
		Stream: s.Incarnation, Epoch: s.Epoch, Node: s.Leader.Node, Run: s.Leader.Run, Replicas: s.Configuration(),
	}, s.Led()
}

// Voters returns the nodes of the stream's voters, in order.
func (s *Stream) Voters() []protocol.NodeID {
	var nodes []protocol.NodeID
	for _, r := range s.Replicas {
		if r.Voter {
			nodes = append(nodes, r.Node)
		}
	}
	return nodes
}

// Version counts the changes that led to this state.
func (s *State) Version() uint64 { return s.version }

// VHost looks a virtual host up.
func (s *State) VHost(name string) (*VHost, bool) { return s.vhosts.get(name) }

// VHosts yields all virtual hosts.
func (s *State) VHosts() iter.Seq[*VHost] { return values(s.vhosts.all()) }

// User looks a user up.
func (s *State) User(name string) (*User, bool) { return s.users.get(name) }

// Users yields all users.
func (s *State) Users() iter.Seq[*User] { return values(s.users.all()) }

// Permission looks up what a user may do in a virtual host; without an entry
// the user has no access to it.
func (s *State) Permission(vhost, user string) (*Permission, bool) {
	return s.permissions.get(key(vhost, user))
}

// Permissions yields all permissions, by virtual host, then user.
func (s *State) Permissions() iter.Seq[*Permission] { return values(s.permissions.all()) }

// Allowed says whether the user may act on a stream or super stream.
func (s *State) Allowed(vhost, user string, a Action, name string) bool {
	p, ok := s.Permission(vhost, user)
	return ok && p.Allows(a, name)
}

// Node looks a member up.
func (s *State) Node(id protocol.NodeID) (*Node, bool) { return s.nodes.get(id) }

// Nodes yields all members.
func (s *State) Nodes() iter.Seq[*Node] { return values(s.nodes.all()) }

// NodeCount returns the number of members.
func (s *State) NodeCount() int { return s.nodes.len() }

// Stream looks a stream up by its name.
func (s *State) Stream(vhost, name string) (*Stream, bool) {
	i, ok := s.names.get(key(vhost, name))
	if !ok {
		return nil, false
	}
	return s.streams.get(i)
}

// Incarnation looks a stream up by its incarnation.
func (s *State) Incarnation(i chunk.Incarnation) (*Stream, bool) { return s.streams.get(i) }

// Streams yields all streams in order of their incarnations.
func (s *State) Streams() iter.Seq[*Stream] { return values(s.streams.all()) }

// StreamCount returns the number of streams.
func (s *State) StreamCount() int { return s.streams.len() }

// StreamsOf yields the streams of a virtual host by name.
func (s *State) StreamsOf(vhost string) iter.Seq[*Stream] {
	return func(yield func(*Stream) bool) {
		for _, i := range within(s.names, vhost) {
			if stream, _ := s.streams.get(i); !yield(stream) {
				return
			}
		}
	}
}

// SuperStream looks a super stream up.
func (s *State) SuperStream(vhost, name string) (*SuperStream, bool) {
	return s.supers.get(key(vhost, name))
}

// SuperStreamsOf yields the super streams of a virtual host by name.
func (s *State) SuperStreamsOf(vhost string) iter.Seq[*SuperStream] {
	return values(within(s.supers, vhost))
}

// PartitionIndex returns a stream's place in a super stream, or Plain if there
// is no such super stream or the stream is not in it.
func (s *State) PartitionIndex(vhost, super, stream string) int {
	p, ok := s.SuperStream(vhost, super)
	if !ok {
		return Plain
	}
	return slices.Index(p.Streams(), stream) // −1 is Plain
}

// Route returns the streams whose binding key equals the routing key, in the
// partitions' order.
func (p *SuperStream) Route(key string) []string {
	var streams []string
	for _, part := range p.Partitions {
		if part.Key == key {
			streams = append(streams, part.Stream)
		}
	}
	return streams
}

// Streams returns the partitions' streams, in order.
func (p *SuperStream) Streams() []string {
	streams := make([]string, len(p.Partitions))
	for i, part := range p.Partitions {
		streams[i] = part.Stream
	}
	return streams
}

// within yields the entries of a tree whose key begins with the given parts.
func within[V any](t tree[string, V], parts ...string) iter.Seq2[string, V] {
	prefix := key(append(slices.Clip(parts), "")...)
	return func(yield func(string, V) bool) {
		for k, v := range t.from(prefix) {
			if !strings.HasPrefix(k, prefix) || !yield(k, v) {
				return
			}
		}
	}
}

func values[K, V any](entries iter.Seq2[K, V]) iter.Seq[V] {
	return func(yield func(V) bool) {
		for _, v := range entries {
			if !yield(v) {
				return
			}
		}
	}
}
