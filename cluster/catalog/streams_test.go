package catalog

import (
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

func TestCreateStreams(t *testing.T) {
	w := newWorld(t, "n1", "n2", "n3")
	n := newStream("orders", "n3", "n1", "n2")
	n.Arguments = Arguments{MaxAge: "1h"}
	n.Creator = "ada"
	result := w.ok(&CreateStreams{Streams: []NewStream{n}})
	if o := result.Outcomes[0]; o.Incarnation != n.Incarnation || o.Epoch != 1 {
		t.Errorf("outcome %+v", o)
	}
	s := w.get("orders")
	if s.Created != w.now || s.Creator != "ada" || s.Arguments != n.Arguments || s.Preferred != "n3" || s.Led() {
		t.Errorf("stream %+v", s)
	}
	w.shape("orders", "e1 v1 n1 n2 n3")
	if len(w.changes) != 1 || w.changes[0].Before != nil || w.changes[0].Stream != s {
		t.Errorf("changes %+v", w.changes)
	}
	if same, ok := w.state.Incarnation(n.Incarnation); !ok || same != s {
		t.Error("the stream is not found by its incarnation")
	}
}

func TestCreateStreams_again(t *testing.T) {
	w := newWorld(t, "n1")
	first := newStream("s", "n1")
	w.ok(&CreateStreams{Streams: []NewStream{first}})

	w.ok(&CreateStreams{Streams: []NewStream{first}}) // a repetition from before the memory
	if len(w.changes) != 0 {
		t.Error("a repetition changed something")
	}
	other := first
	other.Incarnation = 7
	w.refused(&CreateStreams{Streams: []NewStream{other}}, ErrStreamExists)
	if r := w.do(&CreateStreams{Streams: []NewStream{other}}); r.Outcomes[0].Incarnation != first.Incarnation {
		t.Error("the answer does not name the stream that exists")
	}
	other.Arguments.MaxAge = "1h"
	w.refused(&CreateStreams{Streams: []NewStream{other}}, ErrStreamDiffers)
}

func TestCreateStreams_refuses(t *testing.T) {
	w := newWorld(t, "n1", "n2")
	w.stream("taken", "n1")
	edit := func(f func(*NewStream)) *CreateStreams {
		n := newStream("s", "n1")
		f(&n)
		return &CreateStreams{Streams: []NewStream{n}}
	}
	w.refused(edit(func(n *NewStream) { n.Name = "" }), ErrBadArgument)
	w.refused(edit(func(n *NewStream) { n.Name = "amq.s" }), ErrBadArgument)
	w.refused(edit(func(n *NewStream) { n.Name = "two\nlines" }), ErrBadArgument)
	w.refused(edit(func(n *NewStream) { n.VHost = "other" }), ErrVHostMissing)
	w.refused(edit(func(n *NewStream) { n.Incarnation = 0 }), ErrBadArgument)
	w.refused(edit(func(n *NewStream) { n.Incarnation = w.get("taken").Incarnation }), ErrBadArgument)
	w.refused(edit(func(n *NewStream) { n.Replicas = nil }), ErrNotEnoughNodes)
	w.refused(edit(func(n *NewStream) { n.Replicas = []protocol.NodeID{"n9"} }), ErrNodeMissing)
	w.refused(edit(func(n *NewStream) { n.Replicas = []protocol.NodeID{"n1", "n2", "n1"} }), ErrBadArgument)
}

func TestCreateStreams_eachForItself(t *testing.T) {
	w := newWorld(t, "n1")
	r := w.do(&CreateStreams{Streams: []NewStream{newStream("a", "n1"), newStream("", "n1"), newStream("b", "n1"), newStream("a", "n1")}})
	if r.Outcomes[0].Err() != nil || r.Outcomes[1].Err() == nil || r.Outcomes[2].Err() != nil || r.Outcomes[3].Err() != nil {
		t.Errorf("outcomes %+v", r.Outcomes)
	}
	if got := w.streamsOf("/"); !slices.Equal(got, []string{"a", "b"}) {
		t.Errorf("streams %v", got)
	}
}

func TestDeleteStreams(t *testing.T) {
	w := newWorld(t, "n1")
	s := w.stream("s", "n1")
	w.refused(&DeleteStreams{Streams: []OldStream{{"/", "s", s.Incarnation + 1}}}, ErrStreamMissing)
	w.refused(&DeleteStreams{Streams: []OldStream{{"/", "t", s.Incarnation}}}, ErrStreamMissing)
	w.refused(&DeleteStreams{Streams: []OldStream{{"v", "s", s.Incarnation}}}, ErrStreamMissing)
	w.ok(&DeleteStreams{Streams: []OldStream{{"/", "s", s.Incarnation}}})
	if len(w.changes) != 1 || w.changes[0].Before.Name != "s" || w.changes[0].Stream != nil {
		t.Errorf("changes %+v", w.changes)
	}
	w.refused(&DeleteStreams{Streams: []OldStream{{"/", "s", s.Incarnation}}}, ErrStreamMissing)

	// A new life of the name is safe from a late repetition.
	n := newStream("s", "n1")
	n.Incarnation++
	w.ok(&CreateStreams{Streams: []NewStream{n}})
	w.refused(&DeleteStreams{Streams: []OldStream{{"/", "s", s.Incarnation}}}, ErrStreamMissing)
	if w.state.Load("n1") != (Load{Replicas: 1, Leaders: 1}) {
		t.Errorf("load %+v", w.state.Load("n1"))
	}
}

func partitions(names ...string) []NewPartition {
	var p []NewPartition
	for i, n := range names {
		p = append(p, NewPartition{NewStream: newStream(n, "n1"), Key: string(rune('a' + i))})
	}
	return p
}

func TestSuperStream(t *testing.T) {
	w := newWorld(t, "n1")
	w.ok(&CreateVHost{Name: "v"})
	w.ok(&CreateSuperStream{VHost: "/", Name: "super", Partitions: partitions("p-2", "p-0", "p-1")})
	super, ok := w.state.SuperStream("/", "super")
	if !ok || !slices.Equal(super.Streams(), []string{"p-2", "p-0", "p-1"}) {
		t.Fatalf("super stream %+v", super)
	}
	if got := super.Route("b"); !slices.Equal(got, []string{"p-0"}) {
		t.Errorf("b goes to %v", got)
	}
	if got := super.Route("z"); len(got) != 0 {
		t.Errorf("z goes to %v", got)
	}
	if got := w.streamsOf("/"); len(got) != 3 {
		t.Errorf("streams %v", got)
	}

	w.refused(&CreateSuperStream{VHost: "/", Name: "super", Partitions: partitions("q")}, ErrSuperStreamExists)
	w.refused(&CreateSuperStream{VHost: "/", Name: "other", Partitions: partitions("q", "p-1", "r")}, ErrStreamExists)
	w.refused(&CreateSuperStream{VHost: "/", Name: "other", Partitions: partitions("q", "q")}, ErrBadArgument)
	w.refused(&CreateSuperStream{VHost: "/", Name: "other", Partitions: partitions("q", "amq.q")}, ErrBadArgument)
	w.refused(&CreateSuperStream{VHost: "/", Name: ""}, ErrBadArgument)
	w.refused(&CreateSuperStream{VHost: "x", Name: "other"}, ErrVHostMissing)
	w.refused(&CreateSuperStream{VHost: "v", Name: "other", Partitions: partitions("q")}, ErrBadArgument) // of another virtual host
	w.refused(&CreateSuperStream{VHost: "/", Name: "big", Partitions: make([]NewPartition, 1001)}, ErrBadArgument)
	w.refused(&DeleteSuperStream{VHost: "v", Name: "super"}, ErrSuperStreamMissing)

	p0 := w.get("p-0")
	w.ok(&DeleteStreams{Streams: []OldStream{{"/", "p-0", p0.Incarnation}}}) // not cross-checked
	w.ok(&DeleteSuperStream{VHost: "/", Name: "super"})
	if got := w.streamsOf("/"); len(got) != 0 {
		t.Errorf("streams left: %v", got)
	}
	w.refused(&DeleteSuperStream{VHost: "/", Name: "super"}, ErrSuperStreamMissing)
	w.ok(&CreateSuperStream{VHost: "/", Name: "empty"})
}

func TestVHosts_areNameSpaces(t *testing.T) {
	w := newWorld(t, "n1")
	for _, v := range []string{"a", "ab", "b"} {
		w.ok(&CreateVHost{Name: v})
	}
	w.refused(&CreateVHost{Name: "a"}, ErrVHostExists)
	w.ok(&PutUser{Name: "ada"})
	w.ok(&CreateVHost{Name: "owned", Owner: "ada"})
	if !w.state.Allowed("owned", "ada", Configure, "anything") || !w.state.Allowed("owned", "ada", Write, "x") || !w.state.Allowed("owned", "ada", Read, "x") {
		t.Error("the owner may not use the virtual host")
	}
	w.ok(&CreateVHost{Name: "orphan", Owner: "nobody"}) // by an operator who is no user
	w.refused(&CreateVHost{Name: "a\x00b"}, ErrBadArgument)
	w.refused(&CreateVHost{Name: strings.Repeat("v", 256)}, ErrBadArgument)
	for i, place := range []struct{ vhost, name string }{{"a", "x"}, {"a", "y"}, {"ab", "x"}, {"b", "x"}, {"/", "x"}} {
		n := newStream(place.name, "n1")
		n.VHost, n.Incarnation = place.vhost, chunk.Incarnation(i+1)
		w.ok(&CreateStreams{Streams: []NewStream{n}})
	}
	if got := w.streamsOf("a"); !slices.Equal(got, []string{"x", "y"}) {
		t.Errorf("a holds %v", got)
	}
	w.ok(&PutUser{Name: "u", Hash: "h"})
	w.ok(&SetPermission{VHost: "a", User: "u"})
	w.ok(&SetPermission{VHost: "ab", User: "u"})
	n := newStream("part", "n1")
	n.VHost = "a"
	w.ok(&CreateSuperStream{VHost: "a", Name: "super", Partitions: []NewPartition{{NewStream: n}}})

	w.ok(&DeleteVHost{Name: "a"})
	w.refused(&DeleteVHost{Name: "a"}, ErrVHostMissing)
	if got := w.streamsOf("a"); len(got) != 0 {
		t.Errorf("a still holds %v", got)
	}
	if _, ok := w.state.Permission("a", "u"); ok {
		t.Error("a permission outlived its virtual host")
	}
	if _, ok := w.state.SuperStream("a", "super"); ok {
		t.Error("a super stream outlived its virtual host")
	}
	if _, ok := w.state.Permission("ab", "u"); !ok || w.state.StreamCount() != 3 {
		t.Error("another virtual host lost something")
	}
}

func TestUsersAndPermissions(t *testing.T) {
	w := newWorld(t)
	w.ok(&PutUser{Name: "ada", Hash: "h1", Tags: []string{"monitoring", "administrator", "monitoring"}})
	u, _ := w.state.User("ada")
	if !slices.Equal(u.Tags, []string{"administrator", "monitoring"}) {
		t.Errorf("tags %v", u.Tags)
	}
	w.refused(&PutUser{Name: "ada", Hash: "h2", New: true}, ErrUserExists)
	w.refused(&PutUser{Name: "", Hash: "h"}, ErrBadArgument)
	w.ok(&PutUser{Name: "ada", Hash: "h2"})
	if u, _ := w.state.User("ada"); u.Hash != "h2" || len(u.Tags) != 0 {
		t.Errorf("user %+v", u)
	}
	w.refused(&SetPermission{VHost: "/", User: "bob"}, ErrUserMissing)
	w.refused(&SetPermission{VHost: "x", User: "ada"}, ErrVHostMissing)
	w.refused(&SetPermission{VHost: "/", User: "ada", Write: "("}, ErrBadArgument)
	if w.state.Allowed("/", "ada", Read, "s") {
		t.Error("no entry is no access")
	}
	w.ok(&SetPermission{VHost: "/", User: "ada", Configure: "^own-", Write: "", Read: ".*"})
	for _, row := range []struct {
		a    Action
		name string
		want bool
	}{
		{Configure, "own-1", true}, {Configure, "my-own-1", false}, {Read, "anything", true}, {Read, "", true},
		{Write, "own-1", false}, {Write, "", true},
	} {
		if got := w.state.Allowed("/", "ada", row.a, row.name); got != row.want {
			t.Errorf("%s %q: %v", row.a, row.name, got)
		}
	}
	w.ok(&SetPermission{VHost: "/", User: "ada", Read: "log"}) // searched anywhere
	if !w.state.Allowed("/", "ada", Read, "catalogue") || w.state.Allowed("/", "ada", Configure, "own-1") {
		t.Error("the new permission does not replace the old one")
	}
	w.ok(&ClearPermission{VHost: "/", User: "ada"})
	w.ok(&ClearPermission{VHost: "/", User: "ada"})
	w.refused(&ClearPermission{VHost: "/", User: "bob"}, ErrUserMissing)
	w.ok(&SetPermission{VHost: "/", User: "ada"})
	w.ok(&DeleteUser{Name: "ada"})
	w.refused(&DeleteUser{Name: "ada"}, ErrUserMissing)
	if _, ok := w.state.Permission("/", "ada"); ok {
		t.Error("a permission outlived its user")
	}
}
