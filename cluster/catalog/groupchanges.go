package catalog

import "github.com/millrace/millrace/replication/protocol"

// ChangeGroups is what has happened to members of groups, one after the other:
// thousands that join or leave at once are one command. Who is active is decided
// once for each group, behind the last change, so that nobody is chosen who
// leaves in the same command.
type ChangeGroups struct {
	Changes []GroupChange `json:"changes"`
}

// GroupChange is one of them.
type GroupChange struct {
	Do    GroupAct `json:"do"`
	Group GroupRef `json:"group"`
	// Partition is that of JoinGroup.
	Partition int      `json:"partition,omitempty"`
	Member    MemberID `json:"member"`
}

// GroupAct is what a member does.
type GroupAct string

const (
	// Join adds a member, and makes the group with its first one.
	Join GroupAct = "join"
	// Leave takes a member out.
	Leave GroupAct = "leave"
	// Stopped is a member's answer that it is not active any more.
	Stopped GroupAct = "stopped"
)

func (*ChangeGroups) kind() string { return "groups.change" }

func (c *ChangeGroups) apply(e *edit) []Outcome { return e.changeGroups(c.Changes) }

// changeGroups carries changes out and answers each.
func (e *edit) changeGroups(changes []GroupChange) []Outcome {
	outcomes := make([]Outcome, len(changes))
	touched := map[GroupRef]*Group{}
	var order []GroupRef
	for i := range changes {
		c := &changes[i]
		g := touched[c.Group]
		if g == nil {
			if g = e.modifyGroup(c.Group); g == nil {
				g = &Group{VHost: c.Group.VHost, Stream: c.Group.Stream, Name: c.Group.Name}
			}
		}
		changed, refusal := e.changeGroup(g, c)
		outcomes[i].Refusal = refusal
		if changed && touched[c.Group] == nil {
			touched[c.Group] = g
			order = append(order, c.Group)
		}
	}
	for _, ref := range order {
		if _, was := e.Group(ref.VHost, ref.Stream, ref.Name); was || len(touched[ref].Members) > 0 {
			e.putGroup(touched[ref])
		}
	}
	return outcomes
}

// changeGroup carries one change out on a group, which may have no member yet or
// any more.
func (e *edit) changeGroup(g *Group, c *GroupChange) (changed bool, _ *Refusal) {
	at := g.member(c.Member)
	switch c.Do {
	case Join:
		return e.join(g, c, at)
	case Leave, Stopped:
		if at < 0 {
			return false, refuse(ErrGroupMissing, "%q of stream %q has no such member", c.Group.Name, c.Group.Stream)
		}
	default:
		return false, refuse(ErrBadArgument, "change %q of a group", c.Do)
	}
	if c.Do == Leave {
		g.Members = append(g.Members[:at], g.Members[at+1:]...)
		return true, nil
	}
	if g.Members[at].Role != Stopping {
		return false, nil
	}
	g.Members[at].Role = Waiting
	return true, nil
}

func (e *edit) join(g *Group, c *GroupChange, at int) (changed bool, _ *Refusal) {
	if _, ok := e.Stream(c.Group.VHost, c.Group.Stream); !ok {
		return false, refuse(ErrStreamMissing, "%q in virtual host %q", c.Group.Stream, c.Group.VHost)
	}
	if err := GroupName(c.Group.Name); err != nil {
		return false, refusalOf(err)
	}
	switch {
	case c.Partition < Plain:
		return false, refuse(ErrBadArgument, "partition index %d", c.Partition)
	case len(g.Members) == 0:
		g.Partition = c.Partition
	case g.Partition != c.Partition:
		return false, refuse(ErrGroupDiffers, "group %q consumes partition %d, not %d", c.Group.Name, g.Partition, c.Partition)
	case at >= 0:
		return false, nil
	}
	g.Members = append(g.Members, Member{MemberID: c.Member, Role: Waiting})
	return true, nil
}

// Away is how long nodes have been out of contact, in milliseconds, or Unseen;
// those that are not in it are in contact.
type Away map[protocol.NodeID]int64

// Unseen: whoever looks has begun just now, and can't say yet whether the node is
// there. Its members stay as they are.
const Unseen = -1

// GroupSteps returns the commands that bring the members of groups in line with
// who is in contact: a node that is away is disconnected at once, and presumed
// down after patience (in milliseconds), and stays so while it is away, though
// whoever looks has missed it for a shorter time than others before; the members
// of one that belongs to the cluster no more leave.
func GroupSteps(s *State, away Away, patience int64) []Body {
	var steps []Body
	seen := map[protocol.NodeID]bool{}
	left := map[MemberID]bool{}
	for g := range s.Groups() {
		for _, m := range g.Members {
			if _, is := s.Node(m.Node); !is {
				if whole := (MemberID{Node: m.Node, Connection: m.Connection}); !left[whole] {
					left[whole] = true
					steps = append(steps, &LeaveGroups{Node: m.Node, Connections: []string{m.Connection}})
				}
				continue
			}
			reach := Connected
			if gone, is := away[m.Node]; is {
				if gone == Unseen {
					continue
				}
				reach = Disconnected
				if gone >= patience {
					reach = PresumedDown
				}
			}
			if m.reaches(reach) && !seen[m.Node] {
				seen[m.Node] = true
				steps = append(steps, &ReachMembers{m.Node, reach})
			}
		}
	}
	return steps
}
