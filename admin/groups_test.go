package admin

import (
	"context"
	"encoding/json"
	"net/http"
	"testing"

	"github.com/millrace/millrace/cluster/catalog"
)

func (h *house) ActivateGroup(_ context.Context, group catalog.GroupRef) error {
	return h.do(&catalog.ActivateGroup{Group: group})
}

// Each member's line says why it is what it is.
func TestGroups_why(t *testing.T) {
	h := newHouse(t)
	h.must(h.CreateStream(t.Context(), "root", "/", "s", nil))
	ref := catalog.GroupRef{VHost: "/", Stream: "s", Name: "app"}
	join := func(name string, partition int, members ...catalog.MemberID) {
		t.Helper()
		for _, m := range members {
			if err := h.do(&catalog.JoinGroup{Group: catalog.GroupRef{VHost: "/", Stream: "s", Name: name}, Partition: partition, Member: m}); err != nil {
				t.Fatal(err)
			}
		}
	}
	a := catalog.MemberID{Node: "n1", Connection: "a", Subscription: 1}
	b := catalog.MemberID{Node: "n2", Connection: "b", Subscription: 2}
	join("app", catalog.Plain, a, b)
	join("part", 1, a, b)
	handler := h.server().Handler()
	list := func(path string) (groups []Group) {
		t.Helper()
		r, body := call(t, handler, "root", "GET", path, nil)
		if r.StatusCode != http.StatusOK {
			t.Fatal(r.StatusCode, body)
		}
		if err := json.Unmarshal([]byte(body), &groups); err != nil {
			t.Fatal(err)
		}
		return groups
	}
	want := func(g Group, lines ...string) {
		t.Helper()
		for i, m := range g.Members {
			if got := m.Role + " (" + m.Reach + "): " + m.Why; got != lines[i] {
				t.Errorf("%s, member %d: %q, want %q", g.Name, i, got, lines[i])
			}
		}
	}
	groups := list("/api/v1/groups")
	if len(groups) != 2 || groups[0].Partition != nil || *groups[1].Partition != 1 || groups[0].Members[1].Subscription != 2 {
		t.Fatalf("%+v", groups)
	}
	want(groups[0], "active (connected): came first of those that are in contact", "waiting (connected): a on node n1 is active")
	want(groups[1], "deactivating (connected): was told to stop and has not answered; the next one waits for that",
		"waiting (connected): waits for a on node n1 to answer that it has stopped")

	// Nor may it have heard of that.
	reach := func(r catalog.Reach) {
		t.Helper()
		if err := h.do(&catalog.ReachMembers{Node: "n1", Reach: r}); err != nil {
			t.Fatal(err)
		}
	}
	reach(catalog.Disconnected)
	want(list("/api/v1/groups")[1], "deactivating (disconnected): was told to stop, but node n1 is out of contact; it may still be reading",
		"waiting (connected): waits for node n1, which is out of contact and may still be reading")
	reach(catalog.Connected)

	// An operator need not wait for it.
	r, body := call(t, handler, "root", "POST", "/api/v1/streams/%2F/s/groups/activate", ActivateGroup{Group: "part"})
	if r.StatusCode != http.StatusOK {
		t.Fatal(r.StatusCode, body)
	}
	want(list("/api/v1/groups?vhost=%2F&stream=s")[1], "waiting (connected): b on node n2 is active",
		"active (connected): partition 1 goes to number 1 of those in contact, counted from 0")
	if r, _ := call(t, handler, "root", "POST", "/api/v1/streams/%2F/s/groups/activate", ActivateGroup{Group: "none"}); r.StatusCode != http.StatusNotFound {
		t.Errorf("activation of no group: %d", r.StatusCode)
	}

	for now, lines := range map[catalog.Reach][]string{
		catalog.Disconnected: {"active (disconnected): node n1 is out of contact; it may still be reading",
			"waiting (connected): waits for node n1, which is out of contact and may still be reading"},
		catalog.PresumedDown: {"active (presumed down): node n1 has been out of contact for too long; others go on without it",
			"active (connected): came first of those that are in contact"},
	} {
		reach(catalog.Connected)
		if err := h.do(&catalog.ActivateGroup{Group: ref}); err != nil {
			t.Fatal(err)
		}
		reach(now)
		want(list("/api/v1/groups")[0], lines...)
	}
	if got := list("/api/v1/groups?stream=other"); len(got) != 0 {
		t.Errorf("groups of another stream: %+v", got)
	}
}
