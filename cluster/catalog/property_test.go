package catalog

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// generator draws commands that mostly fit the state, and sometimes not.
type generator struct {
	*rand.Rand
	n int
}

func (g *generator) node() protocol.NodeID { return protocol.NodeID(fmt.Sprintf("n%d", g.IntN(5))) }

func (g *generator) vhost() string { return []string{"/", "v", "w"}[g.IntN(3)] }

func (g *generator) name() string { return fmt.Sprintf("s%d", g.IntN(12)) }

// pick returns some stream, or a made-up one.
func (g *generator) pick(s *State) *Stream {
	all := slices.Collect(s.Streams())
	if len(all) == 0 || g.IntN(20) == 0 {
		return &Stream{Name: "none", Incarnation: 1, Replicas: []Replica{{Node: g.node()}}}
	}
	return all[g.IntN(len(all))]
}

func (g *generator) replica(s *Stream) Replica { return s.Replicas[g.IntN(len(s.Replicas))] }

func (g *generator) newStream() NewStream {
	n := NewStream{VHost: g.vhost(), Name: g.name(), Incarnation: chunk.Incarnation(g.Uint64())}
	for range 1 + g.IntN(3) {
		if id := g.node(); !slices.Contains(n.Replicas, id) {
			n.Replicas = append(n.Replicas, id)
		}
	}
	if g.IntN(2) == 0 {
		n.Arguments.MaxAge = fmt.Sprintf("%dh", 1+g.IntN(2))
	}
	n.Preferred = n.Replicas[0]
	return n
}

func (g *generator) body(s *State) Body {
	switch { // a world to begin with
	case g.n <= 3:
		return &CreateVHost{Name: []string{"/", "v", "w"}[g.n-1]}
	case g.n <= 7:
		return &PutNode{ID: protocol.NodeID(fmt.Sprintf("n%d", g.n-4)), Disk: "0"}
	}
	st := g.pick(s)
	r := g.replica(st)
	switch g.IntN(24) {
	case 0, 1, 2:
		return &CreateStreams{Streams: []NewStream{g.newStream(), g.newStream()}}
	case 3:
		return &DeleteStreams{Streams: []OldStream{{st.VHost, st.Name, st.Incarnation}}}
	case 4:
		age := []string{"", "1h", "3h"}[g.IntN(3)]
		return &SetRetention{st.VHost, st.Name, st.Incarnation, RetentionChange{MaxAge: &age}}
	case 5:
		return &GrantEpochs{Streams: []Grant{{st.Incarnation, st.Epoch + 1, r.Node}, {1, 1, ""}}}
	case 6, 7, 8:
		return &AssignLeaders{Leaders: []Assign{{st.Incarnation, st.Epoch, r.Node, protocol.RunID(g.Uint64()), st.ConfigVersion}}}
	case 9:
		return &RegisterReplicas{Node: r.Node, Streams: []Registered{{st.Incarnation, r.Registration}}}
	case 10, 11:
		return &ClearReplicas{Replicas: []Cleared{{st.Incarnation, r.Node, r.Registration, st.Epoch}}}
	case 12:
		return &AddReplicas{Replicas: []Added{{Stream: st.Incarnation, Node: g.node()}}}
	case 13:
		return []Body{
			&ChangeVoters{[]VoterChange{{st.Incarnation, st.Epoch, st.ConfigVersion, r.Node, r.Registration, !r.Voter}}},
			&TransferLeaders{[]Transfer{{st.Incarnation, r.Node}}},
		}[g.IntN(2)]
	case 14:
		return []Body{
			&RemoveReplicas{[]Removed{{st.Incarnation, r.Node, r.Registration}}},
			&RetireReplicas{[]Retired{{st.Incarnation, r.Node, g.IntN(3) == 0}}},
		}[g.IntN(2)]
	case 15:
		return []Body{
			&PutNode{ID: g.node(), Disk: fmt.Sprint(g.IntN(2)), Replace: g.IntN(4) == 0},
			&MarkNode{ID: g.node(), Leaving: g.IntN(2) == 0},
			&RemoveNode{ID: g.node()},
		}[g.IntN(3)]
	case 16:
		return []Body{&CreateVHost{Name: g.vhost()}, &CreateVHost{Name: g.vhost()}, &CreateVHost{Name: g.vhost()}, &CreateVHost{Name: g.vhost()}, &DeleteVHost{Name: g.vhost()}}[g.IntN(5)]
	case 17:
		return []Body{&PutUser{Name: g.name(), Hash: "h"}, &PutUser{Name: g.name(), New: true}, &DeleteUser{Name: g.name()}}[g.IntN(3)]
	case 18:
		return []Body{
			&SetPermission{VHost: g.vhost(), User: g.name(), Configure: ".*", Write: "^a"},
			&ClearPermission{VHost: g.vhost(), User: g.name()},
		}[g.IntN(2)]
	}
	if g.IntN(20) == 0 {
		return &SetGossipKey{Key: bytes.Repeat([]byte{byte(g.n)}, gossipKeyBytes-g.IntN(2))}
	}
	if g.IntN(3) > 0 {
		return g.group(st)
	}
	if g.IntN(2) == 0 {
		return &DeleteSuperStream{VHost: g.vhost(), Name: g.name()}
	}
	c := &CreateSuperStream{VHost: g.vhost(), Name: g.name()}
	for range g.IntN(3) {
		p := NewPartition{NewStream: g.newStream()}
		p.VHost = c.VHost
		c.Partitions = append(c.Partitions, p)
	}
	return c
}

// group draws commands about consumer groups.
func (g *generator) group(st *Stream) Body {
	ref := GroupRef{st.VHost, st.Name, []string{"app", "b"}[g.IntN(2)]}
	m := MemberID{g.node(), fmt.Sprint("c", g.IntN(3)), uint8(g.IntN(2))}
	return []Body{
		&JoinGroup{ref, g.IntN(3) - 1, m}, &JoinGroup{ref, Plain, m}, &JoinGroup{ref, Plain, m},
		&LeaveGroups{Group: ref, Member: m}, &LeaveGroups{Node: m.Node, Connections: []string{m.Connection}},
		&StoppedMember{ref, m}, &ActivateGroup{ref},
		&ReachMembers{m.Node, []Reach{Connected, Disconnected, PresumedDown}[g.IntN(3)]},
		&ChangeGroups{[]GroupChange{
			{Leave, ref, 0, m}, {Join, ref, Plain, m}, {Join, ref, Plain, MemberID{g.node(), m.Connection, m.Subscription}},
			{Stopped, ref, 0, MemberID{g.node(), "c1", 0}}, {Leave, GroupRef{ref.VHost, ref.Stream, "b"}, 0, m},
		}[:g.IntN(6)]},
	}[g.IntN(9)]
}

func (g *generator) command(s *State) []byte {
	g.n++
	return Command{Request: fmt.Sprintf("r%d", g.n), At: chunk.Timestamp(g.n), Body: g.body(s)}.Encode()
}

func apply(t *testing.T, s *State, command []byte) (*State, Result, []Change) {
	t.Helper()
	next, r, changes, err := s.Apply(command)
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return next, r, changes
}

// Any sequence of commands, with any of them sent again later, gives the state
// of the sequence sent once; a restored snapshot goes on like the original.
func TestApply_repetitionAndRestoreChangeNothing(t *testing.T) {
	for seed := range uint64(30) {
		g := &generator{Rand: rand.New(rand.NewPCG(seed, 0))}
		once, twice := New(), New()
		most := 0
		var sent [][]byte
		var answers []Result
		for step := range 400 {
			c := g.command(once)
			var first, second Result
			before := once
			var changes []Change
			once, first, changes = apply(t, once, c)
			twice, second, _ = apply(t, twice, c)
			sent, answers = append(sent, c), append(answers, first)
			if !sameResult(first, second) {
				t.Fatalf("seed %d step %d: %s\nanswers differ: %+v, %+v", seed, step, c, first, second)
			}
			for range g.IntN(3) {
				at := g.IntN(len(sent))
				again, r, changes := apply(t, twice, sent[at])
				if again != twice || len(changes) != 0 || !sameResult(r, answers[at]) {
					t.Fatalf("seed %d step %d: a repetition of %s answers %+v, first %+v", seed, step, sent[at], r, answers[at])
				}
			}
			most = max(most, once.StreamCount())
			checkState(t, once)
			checkChanges(t, before, once, changes)
			if step%50 == 0 {
				restored, err := Restore(twice.Encode())
				if err != nil {
					t.Fatal(err)
				}
				twice = restored
			}
			if step%20 == 0 && !bytes.Equal(once.Encode(), twice.Encode()) {
				t.Fatalf("seed %d step %d: states differ:\n%s\n%s", seed, step, once.Encode(), twice.Encode())
			}
		}
		if most < 5 {
			t.Errorf("seed %d never had more than %d streams: the generator tests nothing", seed, most)
		}
	}
}

func sameResult(a, b Result) bool {
	return slices.EqualFunc(a.Outcomes, b.Outcomes, func(x, y Outcome) bool {
		if (x.Refusal == nil) != (y.Refusal == nil) || x.Refusal != nil && *x.Refusal != *y.Refusal {
			return false
		}
		return x.Incarnation == y.Incarnation && x.Epoch == y.Epoch && x.Registration == y.Registration
	})
}

// checkState holds the invariants of a state.
func checkState(t *testing.T, s *State) {
	t.Helper()
	loads := map[protocol.NodeID]Load{}
	count := 0
	for st := range s.Streams() {
		count++
		if same, ok := s.Stream(st.VHost, st.Name); !ok || same != st {
			t.Fatalf("stream %q is not found by its name", st.Name)
		}
		if _, ok := s.VHost(st.VHost); !ok {
			t.Fatalf("stream %q outlived its virtual host", st.Name)
		}
		if len(st.Voters()) == 0 || st.Epoch == 0 || st.ConfigVersion == 0 {
			t.Fatalf("stream %+v", st)
		}
		if _, ok := st.Replica(st.Leader.Node); st.Led() && !ok {
			t.Fatalf("stream %q is led from without: %s", st.Name, shape(st))
		}
		if !slices.IsSortedFunc(st.Replicas, func(a, b Replica) int { return bytes.Compare([]byte(a.Node), []byte(b.Node)) }) {
			t.Fatalf("replicas out of order: %s", shape(st))
		}
		for _, r := range st.Replicas {
			l := loads[r.Node]
			l.Replicas++
			if r.Node == st.place() {
				l.Leaders++
			}
			if !r.Voter && !r.Leaving {
				l.Learners++
			}
			loads[r.Node] = l
			if _, ok := s.Node(r.Node); !ok {
				t.Fatalf("a replica of %q is on %q, which is no member", st.Name, r.Node)
			}
		}
	}
	if count != s.StreamCount() || s.names.len() != count {
		t.Fatalf("%d streams, %d names, count %d", count, s.names.len(), s.StreamCount())
	}
	for _, g := range s.groups.all() {
		checkGroup(t, s, g)
	}
	for i := range 5 {
		id := protocol.NodeID(fmt.Sprintf("n%d", i))
		if s.Load(id) != loads[id] {
			t.Fatalf("load of %s is %+v, counted %+v", id, s.Load(id), loads[id])
		}
	}
}

// checkGroup holds the invariants of a group.
func checkGroup(t *testing.T, s *State, g *Group) {
	t.Helper()
	if _, ok := s.Stream(g.VHost, g.Stream); !ok || len(g.Members) == 0 {
		t.Fatalf("group %+v is empty or outlived its stream", g)
	}
	active, stopping, fit := 0, 0, 0
	blocked := false
	for _, m := range g.Members {
		switch {
		case m.Role == Stopping && m.Reach == PresumedDown:
			t.Fatalf("nobody waits for %+v: %+v", m, g)
		case m.Role == Stopping:
			stopping++
		case m.Role == Active && m.Reach == Connected:
			active++
		case m.Role == Active && m.Reach == Disconnected:
			blocked = true
		}
		if m.Reach == Connected {
			fit++
		}
	}
	if active > 1 || active == 1 && stopping > 0 {
		t.Fatalf("%d active and %d stopping: %+v", active, stopping, g)
	}
	if active == 0 && stopping == 0 && !blocked && fit > 0 {
		t.Fatalf("nobody is active: %+v", g)
	}
}

// checkChanges: what Apply reports about streams and nodes, each thing's last
// change counted, is what Diff finds; and epochs only grow.
func checkChanges(t *testing.T, before, after *State, changes []Change) {
	t.Helper()
	got := map[string]bool{}
	for _, c := range changes {
		got[subject(c)] = true
	}
	for _, c := range Diff(before, after) {
		if c.Kind == AccessChanged || c.Kind == SuperStreamChanged {
			continue
		}
		if !got[subject(c)] {
			t.Fatalf("unreported change of %s", subject(c))
		}
		if c.Before != nil && c.Stream != nil && (c.Stream.Epoch < c.Before.Epoch ||
			c.Stream.Epoch == c.Before.Epoch && c.Before.Led() && c.Stream.Leader != c.Before.Leader) {
			t.Fatalf("two leaders for one epoch: %s, then %s", shape(c.Before), shape(c.Stream))
		}
	}
}

func subject(c Change) string {
	switch {
	case c.Kind == NodeChanged:
		return "node " + string(c.Node)
	case c.Group != nil:
		return "group " + c.Group.Stream + c.Group.Name
	case c.GroupBefore != nil:
		return "group " + c.GroupBefore.Stream + c.GroupBefore.Name
	case c.Stream != nil:
		return "stream " + c.Stream.Incarnation.String()
	case c.Before != nil:
		return "stream " + c.Before.Incarnation.String()
	}
	return "other"
}

// The memory is bounded by requests and by outcomes, and forgets the oldest.
func TestMemory_isBounded(t *testing.T) {
	var m memory
	for i := range requestsMax + 100 {
		m = m.remember(fmt.Sprint(i), Result{Outcomes: make([]Outcome, 1)})
	}
	if _, ok := m.recall("99"); ok || m.order.len() != requestsMax {
		t.Errorf("%d requests remembered", m.order.len())
	}
	if _, ok := m.recall("100"); !ok {
		t.Error("a request was forgotten too early")
	}
	m = m.remember("big", Result{Outcomes: make([]Outcome, outcomesMax-50)})
	if m.outcomes > outcomesMax || m.order.len() != 51 {
		t.Errorf("%d outcomes of %d requests remembered", m.outcomes, m.order.len())
	}
	m = m.remember("huge", Result{Outcomes: make([]Outcome, 2*outcomesMax)})
	if _, ok := m.recall("huge"); !ok || m.order.len() != 1 || m.by.len() != 1 {
		t.Error("the newest is not kept alone")
	}
	if _, ok := m.recall(""); ok || m.remember("", Result{}).order.len() != 1 {
		t.Error("a command without a request is remembered")
	}
}
