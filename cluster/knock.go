package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// Questions of a knock.
const (
	askHello  = "hello"  // who are you, and where do you stand?
	askPledge = "pledge" // may I found a cluster with you?
	askJoin   = "join"   // take me in, or let me come back
)

// introduction is what a node says of itself when it knocks, and answers.
type introduction struct {
	Node    protocol.NodeID `json:"node"`
	Disk    string          `json:"disk"`
	Boot    string          `json:"boot"`    // drawn at the start of the process
	Address string          `json:"address"` // where it listens for others
	Cluster string          `json:"cluster,omitempty"`
	// Member: it has been taken in, so it can take others in.
	Member bool    `json:"member,omitempty"`
	Expect int     `json:"expect,omitempty"`
	Pledge *pledge `json:"pledge,omitempty"`
}

// question is a knock.
type question struct {
	Ask  string           `json:"ask"`
	Me   introduction     `json:"me"`
	Join *catalog.PutNode `json:"join,omitempty"`
}

// welcome answers it.
type welcome struct {
	Me introduction `json:"me"`
	// Others are nodes that this one has heard of, by their addresses.
	Others []string `json:"others,omitempty"`
	// Pledged: the founder has this node's word.
	Pledged bool `json:"pledged,omitempty"`
	// Members are the cluster that the node was taken into.
	Members map[protocol.NodeID]entry `json:"members,omitempty"`
	// Index is how far the catalog was then.
	Index   uint64   `json:"index,omitempty"`
	Failure *failure `json:"failure,omitempty"`
}

// knockTimeout bounds one knock but for a join, which takes a commit.
const knockTimeout = 2 * time.Second

// knock asks the node at an address.
func (c *Cluster) knock(ctx context.Context, addr string, q question) (welcome, error) {
	timeout := knockTimeout
	if q.Ask == askJoin {
		timeout = createPatience
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	q.Me = c.introduce()
	text, err := c.config.Network.Knock(ctx, addr, encode(q))
	if err != nil {
		return welcome{}, err
	}
	var w welcome
	if err := json.Unmarshal(text, &w); err != nil {
		return welcome{}, fmt.Errorf("answer from %s can't be read: %w", addr, err)
	}
	c.neighbours.hear(w.Others)
	if c.book.disk(w.Me.Node) == w.Me.Disk && w.Me.Cluster == q.Me.Cluster {
		c.book.tell(w.Me.Node, w.Me.Address)
	}
	if w.Failure != nil {
		return w, w.Failure.err()
	}
	return w, nil
}

// introduce says who this node is.
func (c *Cluster) introduce() introduction {
	id := c.identity()
	return introduction{
		Node: id.Node, Disk: id.Disk, Boot: c.boot, Address: c.config.Endpoints.Node, Cluster: id.Cluster,
		Member: c.entered.Load(), Expect: c.config.Joins.Expect, Pledge: id.Pledge,
	}
}

// Knocked is one of Host's.
func (c *Cluster) Knocked(ctx context.Context, from protocol.NodeID, text []byte) []byte {
	var q question
	w := welcome{}
	err := json.Unmarshal(text, &q)
	if err == nil && q.Me.Node != from {
		err = fmt.Errorf("node %q says that it is %q", from, q.Me.Node)
	}
	if err == nil {
		w, err = c.answer(ctx, q)
	}
	if err != nil {
		f := failureOf(err)
		w.Failure = &f
	}
	if !errors.Is(err, ErrOtherCluster) {
		w.Others = c.neighbours.addresses()
	}
	w.Me = c.introduce()
	return encode(w)
}

// answer deals with a question of somebody who has proven to be q.Me.Node.
func (c *Cluster) answer(ctx context.Context, q question) (welcome, error) {
	if q.Me.Boot == c.boot {
		return welcome{}, nil // this very process
	}
	if err := c.fits(ctx, q.Me); err != nil {
		if c.neighbours.worthTelling() {
			c.log.Warn("a node was turned away", "node", q.Me.Node, "address", q.Me.Address, "error", err)
		}
		return welcome{}, err
	}
	c.neighbours.met(q.Me)
	if c.book.disk(q.Me.Node) == q.Me.Disk && q.Me.Cluster == c.ID() {
		c.book.tell(q.Me.Node, q.Me.Address)
	}
	switch q.Ask {
	case askHello:
		return welcome{}, nil
	case askPledge:
		pledged, err := c.givePledge(q.Me)
		return welcome{Pledged: pledged}, err
	case askJoin:
		if q.Join == nil || q.Join.ID != q.Me.Node || q.Join.Disk != q.Me.Disk {
			return welcome{}, errors.New("the join is not the node's own")
		}
		if !c.entered.Load() {
			return welcome{}, fmt.Errorf("%w: node %s has not been taken in itself yet", ErrUnavailable, c.config.Node)
		}
		_, err := atLeader(ctx, c, methodEnter, entering{*q.Join, q.Me.Boot, q.Me.Cluster}, c.enterHere)
		members := c.book.all()
		members[c.config.Node] = entry{c.config.Endpoints.Node, c.identity().Disk}
		delete(members, q.Me.Node)
		if err == nil && c.leads() {
			c.spread.upTo(c.meta.shown.at())
		}
		return welcome{Members: members, Index: c.meta.shown.at()}, err
	}
	return welcome{}, fmt.Errorf("unknown question %q; this node may be of an older version", q.Ask)
}

// fits says what is wrong with a node that knocks: it must not be of another
// cluster, nor bear the name of a node that runs.
func (c *Cluster) fits(ctx context.Context, other introduction) error {
	mine := c.identity()
	if other.Cluster != "" && mine.Cluster != "" && other.Cluster != mine.Cluster {
		return fmt.Errorf("%w: node %q is of cluster %s, node %q of %s", ErrOtherCluster, other.Node, other.Cluster, mine.Node, mine.Cluster)
	}
	if other.Node == mine.Node {
		return fmt.Errorf("%w: %q at %s; give one of the two another name (node.name)", ErrTwin, mine.Node, c.config.Endpoints.Node)
	}
	return c.untwinned(ctx, other.Node, other.Boot)
}

// whoPatience bounds the wait for a linked node to say who it is.
const whoPatience = time.Second

// who is a process.
type who struct {
	Boot    string `json:"boot"`
	Applied uint64 `json:"applied"` // of the catalog
}

func (c *Cluster) who() who {
	w := who{Boot: c.boot}
	if c.started.Load() {
		w.Applied = c.meta.shown.at()
	}
	return w
}

// askWho asks a linked node.
func (c *Cluster) askWho(ctx context.Context, node protocol.NodeID) (who, error) {
	ctx, cancel := context.WithTimeout(ctx, whoPatience)
	defer cancel()
	_, body, err := c.config.Network.Ask(ctx, node, methodWho, nil)
	if err != nil {
		return who{}, err
	}
	var w who
	return w, json.Unmarshal(body, &w)
}

// untwinned is an ErrTwin if another process of that name is linked, and
// answers.
func (c *Cluster) untwinned(ctx context.Context, node protocol.NodeID, boot string) error {
	if !c.presence.linked(node) {
		return nil
	}
	w, err := c.askWho(ctx, node)
	if err != nil || w.Boot == boot {
		return nil // the link is the newcomer's own, or a dead one's
	}
	return fmt.Errorf("%w: %q at %s; give one of the two another name (node.name), or stop the other", ErrTwin, node, c.book.find(node))
}
