package catalog

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
)

// crew is a group that a test drives: members are named by one letter, which
// is their connection; capitals are on node n2.
type crew struct {
	*world
	ref       GroupRef
	partition int
}

func newCrew(t *testing.T, partition int) *crew {
	w := newWorld(t, "n1", "n2")
	w.stream("s", "n1")
	return &crew{w, GroupRef{"/", "s", "app"}, partition}
}

func member(name string) MemberID {
	node := protocol.NodeID("n1")
	if strings.ToUpper(name) == name {
		node = "n2"
	}
	return MemberID{Node: node, Connection: name, Subscription: 1}
}

// do carries out a script: +a joins, -a leaves, a! answers that it stopped,
// n2? loses contact, n2x is presumed down, n2. is back, ! activates.
func (c *crew) play(script string) {
	c.t.Helper()
	for _, word := range strings.Fields(script) {
		name := strings.Trim(word, "+-!?x.")
		var b Body
		switch {
		case word == "!":
			b = &ActivateGroup{c.ref}
		case word[0] == '+':
			b = &JoinGroup{c.ref, c.partition, member(name)}
		case word[0] == '-':
			b = &LeaveGroups{Group: c.ref, Member: member(name)}
		case strings.HasSuffix(word, "!"):
			b = &StoppedMember{c.ref, member(name)}
		case strings.HasSuffix(word, "?"):
			b = &ReachMembers{protocol.NodeID(name), Disconnected}
		case strings.HasSuffix(word, "x"):
			b = &ReachMembers{protocol.NodeID(name), PresumedDown}
		default:
			b = &ReachMembers{protocol.NodeID(name), Connected}
		}
		c.ok(b)
		if g, ok := c.state.Group("/", "s", "app"); ok {
			checkGroup(c.t, c.state, g)
		}
	}
}

// show writes the members: *active, ~stopping, ? disconnected, x presumed down.
func (c *crew) show() string {
	g, ok := c.state.Group("/", "s", "app")
	if !ok {
		return "none"
	}
	var words []string
	for _, m := range g.Members {
		text := map[Role]string{Active: "*", Stopping: "~", Waiting: ""}[m.Role] + m.Connection +
			map[Reach]string{Connected: "", Disconnected: "?", PresumedDown: "x"}[m.Reach]
		words = append(words, text)
	}
	return strings.Join(words, " ")
}

func TestGroup_election(t *testing.T) {
	for _, row := range []struct {
		name      string
		partition int
		script    string
		want      string
	}{
		{"the first is active", Plain, "+a", "*a"},
		{"in a plain group a join changes nothing", Plain, "+a +b +c", "*a b c"},
		{"the oldest follows", Plain, "+a +b +c -a", "*b c"},
		{"who waits may leave", Plain, "+a +b +c -b", "*a c"},
		{"the last one ends the group", Plain, "+a -a", "none"},
		{"joining twice is once", Plain, "+a +a", "*a"},

		{"partition 0 stays with the first", 0, "+a +b", "*a b"},
		{"partition 1 goes to the second, who waits", 1, "+a +b", "~a b"},
		{"until the first has answered", 1, "+a +b a!", "a *b"},
		{"a join meanwhile changes the answer", 1, "+a +b +c a!", "a *b c"},
		{"partition 2 of three", 2, "+a +b +c a!", "a b *c"},
		{"partition 4 of three is number 1", 4, "+a +b +c a!", "a *b c"},
		{"a leave moves it back", 1, "+a +b a! -b", "*a"},
		{"leaving counts as the answer", 1, "+a +b -a", "*b"},
		{"an answer of one that was not asked", Plain, "+a +b b!", "*a b"},

		{"an active one out of contact blocks", Plain, "+A +b n2?", "*A? b"},
		{"also where its partition would go elsewhere", 0, "+A +b n2?", "*A? b"},
		{"and is still active when back", Plain, "+A +b n2? n2.", "*A b"},
		{"until it is presumed down", Plain, "+A +b n2? n2x", "*Ax *b"},
		{"then both stop when it is back", Plain, "+A +b n2? n2x n2.", "~A ~b"},
		{"and a new election follows", Plain, "+A +b n2? n2x n2. A! b!", "*A b"},
		{"one answer is not enough", Plain, "+A +b n2? n2x n2. b!", "~A b"},
		{"alone it stays active", Plain, "+A n2? n2x n2.", "*A"},
		{"one that waits out of contact is passed over", Plain, "+a +B +c n2? -a", "B? *c"},
		{"one that stops may not have heard of it", 1, "+A +b n2?", "~A? b"},
		{"and is asked again when back", 1, "+A +b n2? n2.", "~A b"},
		{"its answer is not needed once it is presumed down", 1, "+A +b n2? n2x", "Ax *b"},
		{"nor waited for when it is back", 1, "+A +b n2? n2x n2. b!", "A *b"},
		{"nor is that of one whose end is known", 1, "+A +b n2? -A", "*b"},
		{"of two that stop the one out of contact blocks", Plain, "+A +b n2? n2x n2. n2? b!", "~A? b"},
		{"nobody in contact, nobody active", Plain, "+a +B n2? -a", "B?"},
		{"activation does not wait any more", 1, "+a +b !", "a *b"},
		{"activation of a healthy group", Plain, "+a +b !", "*a b"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newCrew(t, row.partition)
			c.play(row.script)
			if got := c.show(); got != row.want {
				t.Errorf("%s ends as %q, want %q", row.script, got, row.want)
			}
		})
	}
}

// All members of a dead connection leave before anybody is chosen.
func TestLeaveGroups_wholeConnection(t *testing.T) {
	c := newCrew(t, Plain)
	for sub := range uint8(3) {
		c.ok(&JoinGroup{c.ref, Plain, MemberID{"n1", "x", sub}})
	}
	c.play("+y")
	other := GroupRef{"/", "s", "other"}
	c.ok(&JoinGroup{other, Plain, MemberID{"n1", "x", 9}})
	c.ok(&LeaveGroups{Node: "n2", Connections: []string{"x"}}) // of another node
	c.ok(&LeaveGroups{Node: "n1", Connections: []string{"x"}})
	if got := c.show(); got != "*y" {
		t.Errorf("left are %s", got)
	}
	if _, ok := c.state.Group("/", "s", "other"); ok {
		t.Error("the connection is still in another group")
	}
	if len(c.changes) != 2 {
		t.Errorf("%d groups changed", len(c.changes))
	}
}

func TestGroup_refuses(t *testing.T) {
	c := newCrew(t, Plain)
	c.play("+a")
	c.refused(&JoinGroup{GroupRef{"/", "none", "app"}, Plain, member("a")}, ErrStreamMissing)
	c.refused(&JoinGroup{c.ref, 0, member("b")}, ErrGroupDiffers)
	c.refused(&JoinGroup{c.ref, -2, member("b")}, ErrBadArgument)
	c.refused(&JoinGroup{GroupRef{"/", "s", strings.Repeat("g", 256)}, Plain, member("b")}, ErrBadArgument)
	c.refused(&LeaveGroups{Group: c.ref, Member: member("b")}, ErrGroupMissing)
	c.refused(&StoppedMember{c.ref, member("b")}, ErrGroupMissing)
	c.refused(&ActivateGroup{GroupRef{"/", "s", "none"}}, ErrGroupMissing)
	c.refused(&ReachMembers{"n1", "somewhere"}, ErrBadArgument)
	c.ok(&JoinGroup{GroupRef{"/", "s", ""}, Plain, member("b")}) // an empty name is a name
	if err := GroupName("\xff"); !errors.Is(err, ErrBadArgument) {
		t.Errorf("a name that JSON can't carry: %v", err)
	}
}

func TestGroup_endsWithItsStream(t *testing.T) {
	c := newCrew(t, Plain)
	c.play("+a +b")
	s := c.get("s")
	c.ok(&DeleteStreams{Streams: []OldStream{{"/", "s", s.Incarnation}}})
	if c.show() != "none" {
		t.Error("the group outlived its stream")
	}
	told := false
	for _, x := range c.changes {
		told = told || x.Kind == GroupChanged && x.Group == nil && x.GroupBefore.Name == "app"
	}
	if !told {
		t.Error("nobody is told")
	}
}

func TestPartitionIndex(t *testing.T) {
	w := newWorld(t, "n1")
	w.ok(&CreateSuperStream{VHost: "/", Name: "super", Partitions: partitions("p-2", "p-0")})
	for stream, want := range map[string]int{"p-2": 0, "p-0": 1, "other": Plain} {
		if got := w.state.PartitionIndex("/", "super", stream); got != want {
			t.Errorf("%s is number %d, want %d", stream, got, want)
		}
	}
	if got := w.state.PartitionIndex("/", "none", "p-0"); got != Plain {
		t.Errorf("without a super stream: %d", got)
	}
}

// Changes that come together are decided once, behind the last of them.
func TestChangeGroups_choosesBehindTheLast(t *testing.T) {
	for _, row := range []struct {
		name      string
		partition int
		before    string
		changes   []GroupChange
		want      string
		refused   []error
	}{
		{"who leaves in the same command is not chosen", Plain, "+a +b +c",
			[]GroupChange{{Do: Leave, Member: member("a")}, {Do: Leave, Member: member("b")}}, "*c", []error{nil, nil}},
		{"a partition goes to where it stays", 2, "",
			[]GroupChange{{Do: Join, Member: member("a")}, {Do: Join, Member: member("b")}, {Do: Join, Member: member("c")}},
			"a b *c", []error{nil, nil, nil}},
		{"the answer and the end of the one that stops", 1, "+a +b",
			[]GroupChange{{Do: Stopped, Member: member("a")}, {Do: Leave, Member: member("a")}}, "*b", []error{nil, nil}},
		{"come and gone", Plain, "", []GroupChange{{Do: Join, Member: member("a")}, {Do: Leave, Member: member("a")}},
			"none", []error{nil, nil}},
		{"each is answered for itself", Plain, "+a",
			[]GroupChange{{Do: Leave, Member: member("b")}, {Do: Join, Member: member("b")}, {Do: Stopped, Member: member("c")}, {Do: "dance", Member: member("a")}},
			"*a b", []error{ErrGroupMissing, nil, ErrGroupMissing, ErrBadArgument}},
		{"repeated", Plain, "+a", []GroupChange{{Do: Join, Member: member("a")}, {Do: Stopped, Member: member("a")}},
			"*a", []error{nil, nil}},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newCrew(t, row.partition)
			c.play(row.before)
			for i := range row.changes {
				row.changes[i].Group, row.changes[i].Partition = c.ref, row.partition
			}
			before := c.state
			next, result, changes := c.state.Do(Command{Request: "once", At: 1, Body: &ChangeGroups{row.changes}})
			c.state = next
			for i, want := range row.refused {
				if got := result.Outcomes[i].Err(); !errors.Is(got, want) {
					t.Errorf("change %d: %v, want %v", i, got, want)
				}
			}
			if got := c.show(); got != row.want {
				t.Errorf("ends as %q, want %q", got, row.want)
			}
			if len(changes) > 1 {
				t.Errorf("%d changes of one group", len(changes))
			}
			if g, ok := c.state.Group("/", "s", "app"); ok {
				checkGroup(t, c.state, g)
			}
			checkChanges(t, before, next, changes)
		})
	}
}

// A command says the version that it came with: nodes of two versions go on
// together until a new one is used.
func TestEncode_saysSince(t *testing.T) {
	for want, body := range map[string]Body{`{"v":1,`: &JoinGroup{}, `{"v":2,`: &ChangeGroups{}} {
		if got := string(Command{Body: body}.Encode()); !strings.HasPrefix(got, want) {
			t.Errorf("%s does not begin with %s", got, want)
		}
	}
}

func TestGroupSteps(t *testing.T) {
	for _, row := range []struct {
		name   string
		script string
		away   Away
		want   string // after the steps
	}{
		{"all in contact", "+a +B", nil, "*a B"},
		{"away for a moment", "+A +b", Away{"n2": 300}, "*A? b"},
		{"away for too long", "+A +b n2?", Away{"n2": 10_000}, "*Ax *b"},
		{"away for too long when first seen", "+A +b", Away{"n2": 10_000}, "*Ax *b"},
		{"presumed down, and missed by another anew", "+A +b n2? n2x", Away{"n2": 300}, "*Ax *b"},
		{"also beside one that joined since", "+A +b n2? n2x +C", Away{"n2": 300}, "*Ax *b C?"},
		{"not seen yet, presumed down", "+A +b n2? n2x", Away{"n2": Unseen}, "*Ax *b"},
		{"not seen yet, in contact", "+A +b", Away{"n2": Unseen}, "*A b"},
		{"back", "+A +b n2?", nil, "*A b"},
		{"back after too long", "+A +b n2? n2x", nil, "~A ~b"},
		{"several on one node", "+A +B +c", Away{"n2": 10_000}, "*Ax Bx *c"},
	} {
		t.Run(row.name, func(t *testing.T) {
			c := newCrew(t, Plain)
			c.play(row.script)
			for _, b := range GroupSteps(c.state, row.away, 10_000) {
				c.ok(b)
			}
			if got := c.show(); got != row.want {
				t.Errorf("ends as %q, want %q", got, row.want)
			}
			if more := GroupSteps(c.state, row.away, 10_000); len(more) > 0 {
				t.Errorf("and then %d more", len(more))
			}
		})
	}
	c := newCrew(t, Plain)
	c.play("+A +B +c")
	c.ok(&RemoveNode{ID: "n2"})
	for _, b := range GroupSteps(c.state, nil, 10_000) {
		c.ok(b)
	}
	if got := c.show(); got != "*c" {
		t.Errorf("a node is removed: %q", got)
	}
}
