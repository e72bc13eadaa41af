package admin

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
)

// TestStop_decisions: what stands against stopping a node is said of each stream
// and of the metadata.
func TestStop_decisions(t *testing.T) {
	stream := func(aside string, nodes ...protocol.NodeID) *catalog.Stream {
		s := &catalog.Stream{}
		for _, n := range nodes {
			s.Replicas = append(s.Replicas, catalog.Replica{Node: n, Voter: true, Aside: string(n) == aside})
		}
		return s
	}
	all := map[string]bool{"a": true, "b": true, "c": true}
	level := []Follower{{"b", true, 0}, {"c", true, 3}}
	for _, c := range []struct {
		name      string
		stream    *catalog.Stream
		followers []Follower
		up        map[string]bool
		node      string
		why       string // empty: it may
	}{
		{"all in sync", stream("", "a", "b", "c"), level, all, "a", ""},
		{"a follower of them", stream("", "a", "b", "c"), level, all, "b", ""},
		{"one behind", stream("", "a", "b", "c"), []Follower{{"b", true, 0}, {"c", true, 1000}}, all, "b", "only a would be"},
		{"the one behind", stream("", "a", "b", "c"), []Follower{{"b", true, 0}, {"c", true, 1000}}, all, "c", ""},
		{"one not linked", stream("", "a", "b", "c"), []Follower{{"b", false, 0}, {"c", true, 0}}, all, "a", "only c would be"},
		{"one down", stream("", "a", "b", "c"), level, map[string]bool{"a": true, "b": true}, "b", "only a would be"},
		{"one set aside", stream("c", "a", "b", "c"), level, all, "b", "only a would be"},
		{"the only replica", stream("", "a"), nil, all, "a", "none is"},
		{"one of two", stream("", "a", "b"), level, all, "b", "2 of 2"},
	} {
		why := streamWithout(c.stream, &Stream{Leader: "a", FiguresOf: "a", Figures: Figures{Followers: c.followers}}, c.node, c.up)
		if (why == "") != (c.why == "") || !strings.Contains(why, c.why) {
			t.Errorf("%s: %q, want %q", c.name, why, c.why)
		}
	}
	if streamWithout(stream("", "a", "b", "c"), &Stream{Leader: "a", FiguresOf: "b"}, "c", all) == "" {
		t.Error("a stream whose leader is silent is no reason")
	}
	members := func(states string) (list []Member) {
		for i, s := range states {
			list = append(list, Member{Node: string(rune('a' + i)), State: StateOf(s == 'u'), Voter: true})
		}
		return list
	}
	for _, c := range []struct {
		states string
		seen   bool
		safe   bool
	}{{"uuu", true, true}, {"uud", true, false}, {"uuuud", true, true}, {"uuudd", true, false}, {"uuu", false, false}, {"u", true, false}} {
		why := metadataWithout(Cluster{Seen: c.seen, Members: members(c.states)}, "a", map[string]bool{})
		if (why == "") != c.safe {
			t.Errorf("metadata of %s, seen %v: %q", c.states, c.seen, why)
		}
	}
	if why := metadataWithout(Cluster{Seen: true, Members: append(members("uud"), Member{Node: "d", State: memberUp})}, "d", map[string]bool{}); why != "" {
		t.Errorf("one that has no vote: %q", why)
	}
}
