package catalog

import (
	"cmp"
	"slices"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// Bounds of what a catalog holds.
const (
	streamsMax    = 100_000
	partitionsMax = 1_000 // of one super stream
)

// NewStream is a stream to be created, with all that its proposer decided.
type NewStream struct {
	VHost     string    `json:"vhost"`
	Name      string    `json:"name"`
	Arguments Arguments `json:"arguments"`
	// Incarnation is drawn at random by the proposer; it is not 0.
	Incarnation chunk.Incarnation `json:"incarnation"`
	// Replicas are the nodes of the voters, without repetition.
	Replicas []protocol.NodeID `json:"replicas"`
	// Preferred is where the first leader should be.
	Preferred protocol.NodeID `json:"preferred,omitempty"`
	Creator   string          `json:"creator,omitempty"` // user name
}

// CreateStreams creates many streams, each for itself. A new stream has epoch
// 1 granted at once, so that its first election needs no further command.
type CreateStreams struct {
	Streams []NewStream `json:"streams"`
}

func (*CreateStreams) kind() string { return "streams.create" }

func (c *CreateStreams) apply(e *edit) []Outcome {
	out := make([]Outcome, len(c.Streams))
	for i, n := range c.Streams {
		stream, r := e.newStream(n)
		out[i].Refusal = r
		if stream == nil {
			continue
		}
		out[i].Incarnation, out[i].Epoch = stream.Incarnation, stream.Epoch
		if r == nil {
			e.putStream(stream)
		}
	}
	return out
}

// newStream checks a create. With ErrStreamExists and ErrStreamDiffers it
// returns the stream that is there.
func (e *edit) newStream(n NewStream) (*Stream, *Refusal) {
	name, err := StreamName(n.Name)
	switch {
	case err != nil:
		return nil, refusalOf(err)
	case name != n.Name:
		return nil, refuse(ErrBadArgument, "stream name %q holds a line break", n.Name)
	}
	if _, ok := e.vhosts.get(n.VHost); !ok {
		return nil, refuse(ErrVHostMissing, "%q", n.VHost)
	}
	if old, ok := e.Stream(n.VHost, n.Name); ok {
		switch {
		case old.Incarnation == n.Incarnation:
			return old, nil // the same create once more, from before the memory
		case old.agrees(n.Arguments):
			return old, refuse(ErrStreamExists, "%q in virtual host %q", n.Name, n.VHost)
		}
		return old, refuse(ErrStreamDiffers, "%q in virtual host %q", n.Name, n.VHost)
	}
	if _, taken := e.streams.get(n.Incarnation); taken || n.Incarnation == 0 {
		return nil, refuse(ErrBadArgument, "incarnation %s is taken", n.Incarnation)
	}
	if e.streams.len() >= streamsMax {
		return nil, refuse(ErrLimit, "the cluster has %d streams, which is the most; delete some", e.streams.len())
	}
	replicas, r := e.voters(n.Replicas)
	if r != nil {
		return nil, r
	}
	return &Stream{
		VHost: n.VHost, Name: n.Name, Incarnation: n.Incarnation, Arguments: n.Arguments,
		Created: e.at, Creator: n.Creator,
		Epoch: 1, Replicas: replicas, ConfigVersion: 1, Preferred: n.Preferred,
	}, nil
}

// voters makes the first replicas of a stream.
func (e *edit) voters(nodes []protocol.NodeID) ([]Replica, *Refusal) {
	if len(nodes) == 0 {
		return nil, refuse(ErrNotEnoughNodes, "no node can hold the stream")
	}
	replicas := make([]Replica, len(nodes))
	for i, id := range nodes {
		if _, ok := e.nodes.get(id); !ok {
			return nil, refuse(ErrNodeMissing, "%q", id)
		}
		replicas[i] = Replica{Node: id, Voter: true}
	}
	sortReplicas(replicas)
	for i := 1; i < len(replicas); i++ {
		if replicas[i-1].Node == replicas[i].Node {
			return nil, refuse(ErrBadArgument, "node %q holds two replicas", replicas[i].Node)
		}
	}
	return replicas, nil
}

func sortReplicas(r []Replica) {
	slices.SortFunc(r, func(a, b Replica) int { return cmp.Compare(a.Node, b.Node) })
}

// OldStream is a stream to be deleted. The incarnation, which the proposer
// looked up, keeps a late repetition from deleting a later stream of the name.
type OldStream struct {
	VHost       string            `json:"vhost"`
	Name        string            `json:"name"`
	Incarnation chunk.Incarnation `json:"incarnation"`
}

// DeleteStreams deletes many streams, each for itself.
type DeleteStreams struct {
	Streams []OldStream `json:"streams"`
}

func (*DeleteStreams) kind() string { return "streams.delete" }

func (c *DeleteStreams) apply(e *edit) []Outcome {
	out := make([]Outcome, len(c.Streams))
	for i, o := range c.Streams {
		stream, ok := e.Stream(o.VHost, o.Name)
		if !ok || stream.Incarnation != o.Incarnation {
			out[i].Refusal = refuse(ErrStreamMissing, "%q in virtual host %q", o.Name, o.VHost)
			continue
		}
		out[i].Incarnation = stream.Incarnation
		e.dropStream(stream)
	}
	return out
}

// NewSuperStream names the partitions of a super stream to be created.
type NewPartition struct {
	NewStream
	Key string `json:"key"` // binding key
}

// CreateSuperStream creates a super stream and all its partitions, or nothing.
type CreateSuperStream struct {
	VHost      string         `json:"vhost"`
	Name       string         `json:"name"`
	Partitions []NewPartition `json:"partitions"` // all of the same virtual host
}

func (*CreateSuperStream) kind() string { return "superstream.create" }

// apply answers one outcome for the whole.
func (c *CreateSuperStream) apply(e *edit) []Outcome {
	before := *e
	r := c.create(e)
	if r != nil {
		*e = before // trees are values: this takes everything back
	}
	return one(r)
}

func (c *CreateSuperStream) create(e *edit) *Refusal {
	name, err := StreamName(c.Name)
	switch {
	case err != nil:
		return refusalOf(err)
	case name != c.Name:
		return refuse(ErrBadArgument, "super stream name %q holds a line break", c.Name)
	case len(c.Partitions) > partitionsMax:
		return refuse(ErrBadArgument, "super stream %q has %d partitions, at most %d are allowed", c.Name, len(c.Partitions), partitionsMax)
	}
	if _, ok := e.vhosts.get(c.VHost); !ok {
		return refuse(ErrVHostMissing, "%q", c.VHost)
	}
	if _, ok := e.SuperStream(c.VHost, c.Name); ok {
		return refuse(ErrSuperStreamExists, "%q in virtual host %q", c.Name, c.VHost)
	}
	super := &SuperStream{VHost: c.VHost, Name: c.Name, Created: e.at, Partitions: make([]Partition, len(c.Partitions))}
	named := make(map[string]bool, len(c.Partitions))
	for i, p := range c.Partitions {
		if named[p.Name] || p.VHost != c.VHost {
			return refuse(ErrBadArgument, "partition %q is named twice or of another virtual host", p.Name)
		}
		named[p.Name] = true
		if _, ok := e.Stream(p.VHost, p.Name); ok {
			return refuse(ErrStreamExists, "partition %q in virtual host %q", p.Name, p.VHost)
		}
		stream, r := e.newStream(p.NewStream)
		if r != nil {
			return r
		}
		e.putStream(stream)
		super.Partitions[i] = Partition{Stream: p.Name, Key: p.Key}
	}
	e.supers = e.supers.put(key(c.VHost, c.Name), super)
	e.changes = append(e.changes, Change{Kind: SuperStreamChanged})
	return nil
}

// DeleteSuperStream deletes a super stream and those of its partitions that
// are still there, all at once.
type DeleteSuperStream struct {
	VHost string `json:"vhost"`
	Name  string `json:"name"`
}

func (*DeleteSuperStream) kind() string { return "superstream.delete" }

func (c *DeleteSuperStream) apply(e *edit) []Outcome {
	super, ok := e.SuperStream(c.VHost, c.Name)
	if !ok {
		return one(refuse(ErrSuperStreamMissing, "%q in virtual host %q", c.Name, c.VHost))
	}
	e.supers = e.supers.remove(key(c.VHost, c.Name))
	e.changes = append(e.changes, Change{Kind: SuperStreamChanged})
	for _, p := range super.Partitions {
		if stream, ok := e.Stream(c.VHost, p.Stream); ok {
			e.dropStream(stream)
		}
	}
	return one(nil)
}
