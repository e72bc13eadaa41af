package catalog

import (
	"iter"
	"slices"
	"unicode/utf8"

	"github.com/millrace/millrace/replication/protocol"
)

// Plain is the partition index of a group on a stream that is consumed for
// itself, not as a partition of a super stream.
const Plain = -1

// Group is the consumers of one stream that share a name, of which one is
// active at a time.
type Group struct {
	VHost  string `json:"vhost"`
	Stream string `json:"stream"`
	Name   string `json:"name"`
	// Partition is the stream's place in the super stream that the members
	// consume, or Plain. The first member fixes it.
	Partition int `json:"partition"`
	// Members in the order in which they joined; never empty. Invariant: of
	// those that are connected at most one is Active, and none while another
	// is Stopping. None that is PresumedDown is Stopping.
	Members []Member `json:"members"`
}

// Member is one subscription in a group.
type Member struct {
	MemberID
	Role  Role  `json:"role"`
	Reach Reach `json:"reach,omitempty"`
}

// MemberID names a subscription: connections are named uniquely by their nodes.
type MemberID struct {
	Node         protocol.NodeID `json:"node"`
	Connection   string          `json:"connection"`
	Subscription uint8           `json:"subscription"`
}

// MemberAt names a subscription of a connection to a node.
func MemberAt(node, connection string, subscription uint8) MemberID {
	return MemberID{Node: protocol.NodeID(node), Connection: connection, Subscription: subscription}
}

// Role is what a member is doing.
type Role string

const (
	Waiting Role = "waiting"
	Active  Role = "active"
	// Stopping: it was told that it is not active any more and has not yet
	// answered. Nobody else is made active before it has, or is presumed down.
	Stopping Role = "deactivating"
)

// Reach says whether a member's node is in contact.
type Reach string

const (
	Connected Reach = ""
	// Disconnected: the node is out of reach; a member that is active, or that
	// was told to stop and may not have heard of it, may still be consuming, so
	// nobody takes its place yet.
	Disconnected Reach = "disconnected"
	// PresumedDown: out of reach for so long that others go on without it; until
	// it is Connected, for others may have gone on.
	PresumedDown Reach = "presumed down"
)

// GroupName refuses what can't name a group, before it is proposed: JSON would
// carry two names that are not UTF-8 as one. The empty name is a name.
func GroupName(name string) error {
	if len(name) > maxNameBytes || !utf8.ValidString(name) {
		return refuse(ErrBadArgument, "group name %q is not at most %d bytes of UTF-8", name, maxNameBytes)
	}
	return nil
}

// Groups yields all groups, by virtual host, stream and name.
func (s *State) Groups() iter.Seq[*Group] { return values(s.groups.all()) }

// Group looks a group up.
func (s *State) Group(vhost, stream, name string) (*Group, bool) {
	return s.groups.get(key(vhost, stream, name))
}

// GroupsOf yields the groups of a stream by name.
func (s *State) GroupsOf(vhost, stream string) iter.Seq[*Group] {
	return values(within(s.groups, vhost, stream))
}

// Member returns a member of the group.
func (g *Group) Member(id MemberID) (Member, bool) {
	if at := g.member(id); at >= 0 {
		return g.Members[at], true
	}
	return Member{}, false
}

func (g *Group) member(id MemberID) int {
	return slices.IndexFunc(g.Members, func(m Member) bool { return m.MemberID == id })
}

// evaluate decides who should be active (reference 6.7) and changes roles as
// far as it can be done now.
func (g *Group) evaluate() {
	var active []int
	for i, m := range g.Members {
		switch {
		case m.Role == Stopping:
			return // its answer brings us back
		case m.Role != Active || m.Reach == PresumedDown:
		case m.Reach == Disconnected:
			return // it may still be consuming
		default:
			active = append(active, i)
		}
	}
	if len(active) > 1 { // one was presumed down and is back
		for _, i := range active {
			g.Members[i].Role = Stopping
		}
		return
	}
	present := -1
	if len(active) == 1 {
		present = active[0]
	}
	switch next := g.elect(present); {
	case next == present:
	case present >= 0:
		g.Members[present].Role = Stopping
	default:
		g.Members[next].Role = Active
	}
}

// elect returns the place of who should be active, or −1. In a plain group the
// active one stays; in a partition's, partitions spread over the members.
func (g *Group) elect(active int) int {
	var fit []int
	for i, m := range g.Members {
		if m.Reach == Connected {
			fit = append(fit, i)
		}
	}
	switch {
	case len(fit) == 0:
		return -1
	case g.Partition != Plain:
		return fit[g.Partition%len(fit)]
	case active >= 0:
		return active
	}
	return fit[0]
}

// GroupRef names a group.
type GroupRef struct {
	VHost  string `json:"vhost"`
	Stream string `json:"stream"`
	Name   string `json:"name"`
}

// JoinGroup adds a member to a group, which is made with its first one.
type JoinGroup struct {
	Group     GroupRef `json:"group"`
	Partition int      `json:"partition"`
	Member    MemberID `json:"member"`
}

func (*JoinGroup) kind() string { return "group.join" }

func (c *JoinGroup) apply(e *edit) []Outcome {
	return e.changeGroups([]GroupChange{{Do: Join, Group: c.Group, Partition: c.Partition, Member: c.Member}})
}

// LeaveGroups takes members out: one subscription, or all of the connections
// that are named, of whatever group. All leave before anybody is made active.
type LeaveGroups struct {
	// Member, with its group, is one subscription.
	Group  GroupRef `json:"group,omitzero"`
	Member MemberID `json:"member,omitzero"`
	// Connections are all subscriptions of these connections of Node.
	Node        protocol.NodeID `json:"node,omitempty"`
	Connections []string        `json:"connections,omitempty"`
}

func (*LeaveGroups) kind() string { return "group.leave" }

func (c *LeaveGroups) apply(e *edit) []Outcome {
	if len(c.Connections) > 0 {
		gone := func(m Member) bool { return m.Node == c.Node && slices.Contains(c.Connections, m.Connection) }
		before := e.State
		for _, old := range before.groups.all() {
			if slices.ContainsFunc(old.Members, gone) {
				g := old.clone()
				g.Members = slices.DeleteFunc(g.Members, gone)
				e.putGroup(g)
			}
		}
		return one(nil)
	}
	return e.changeGroups([]GroupChange{{Do: Leave, Group: c.Group, Member: c.Member}})
}

// StoppedMember is a member's answer that it is not active any more.
type StoppedMember struct {
	Group  GroupRef `json:"group"`
	Member MemberID `json:"member"`
}

func (*StoppedMember) kind() string { return "group.stopped" }

func (c *StoppedMember) apply(e *edit) []Outcome {
	return e.changeGroups([]GroupChange{{Do: Stopped, Group: c.Group, Member: c.Member}})
}

// ActivateGroup has a group without an active member decided anew: a member
// that has not answered for too long is not waited for any more.
type ActivateGroup struct {
	Group GroupRef `json:"group"`
}

func (*ActivateGroup) kind() string { return "group.activate" }

func (c *ActivateGroup) apply(e *edit) []Outcome {
	g := e.modifyGroup(c.Group)
	if g == nil {
		return one(refuse(ErrGroupMissing, "%q of stream %q", c.Group.Name, c.Group.Stream))
	}
	for i := range g.Members {
		if g.Members[i].Role == Stopping {
			g.Members[i].Role = Waiting
		}
	}
	e.putGroup(g)
	return one(nil)
}

// ReachMembers says how far the members on a node are in contact.
type ReachMembers struct {
	Node  protocol.NodeID `json:"node"`
	Reach Reach           `json:"reach"`
}

func (*ReachMembers) kind() string { return "group.reach" }

func (c *ReachMembers) apply(e *edit) []Outcome {
	switch c.Reach {
	case Connected, Disconnected, PresumedDown:
	default:
		return one(refuse(ErrBadArgument, "reach %q", c.Reach))
	}
	before := e.State
	for _, old := range before.groups.all() {
		g := old.clone()
		if g.reach(c.Node, c.Reach) {
			e.putGroup(g)
		}
	}
	return one(nil)
}

// reach sets the reach of a node's members and reports a change. A member that
// is presumed down need not answer that it has stopped: the answer would not
// come, and its node delivers nothing by then. Stricter than reference 6.7, which
// waits no more once the member is disconnected: its node may have been cut off
// before it heard that it should stop, and would deliver beside the next one.
func (g *Group) reach(node protocol.NodeID, r Reach) (changed bool) {
	for i := range g.Members {
		m := &g.Members[i]
		if m.Node != node || !m.reaches(r) {
			continue
		}
		changed = true
		m.Reach = r
		if r == PresumedDown && m.Role == Stopping {
			m.Role = Waiting
		}
	}
	return changed
}

// reaches says whether r is news of a member: that its node is away is none of one
// that is presumed down.
func (m *Member) reaches(r Reach) bool {
	return m.Reach != r && !(m.Reach == PresumedDown && r == Disconnected)
}

// modifyGroup returns a copy of a group to change, or nil.
func (e *edit) modifyGroup(r GroupRef) *Group {
	old, ok := e.Group(r.VHost, r.Stream, r.Name)
	if !ok {
		return nil
	}
	return old.clone()
}

func (g *Group) clone() *Group {
	c := *g
	c.Members = slices.Clone(g.Members)
	return &c
}

// putGroup evaluates and stores a group, or drops it with its last member.
func (e *edit) putGroup(g *Group) {
	id := key(g.VHost, g.Stream, g.Name)
	before, _ := e.groups.get(id)
	g.evaluate()
	change := Change{Kind: GroupChanged, GroupBefore: before}
	if len(g.Members) == 0 {
		e.groups = e.groups.remove(id)
	} else {
		e.groups = e.groups.put(id, g)
		change.Group = g
	}
	e.changes = append(e.changes, change)
}

// dropGroups ends the groups of a stream that is gone.
func (e *edit) dropGroups(s *Stream) {
	before := e.State
	for g := range before.GroupsOf(s.VHost, s.Name) {
		e.groups = e.groups.remove(key(g.VHost, g.Stream, g.Name))
		e.changes = append(e.changes, Change{Kind: GroupChanged, GroupBefore: g})
	}
}
