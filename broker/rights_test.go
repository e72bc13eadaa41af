package broker_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/wire"
)

// rights are what a user has on every name: any of c, w and r.
type rights string

func (r rights) pattern(right byte) string {
	if slices.Contains([]byte(r), right) {
		return ".*"
	}
	return ""
}

// has says whether one of the sets is covered: "cw r" is configure and write, or
// read.
func (r rights) has(sets ...string) bool {
	for _, set := range sets {
		all := true
		for _, right := range []byte(set) {
			all = all && slices.Contains([]byte(r), right)
		}
		if all {
			return true
		}
	}
	return false
}

// TestRights_everyCommand: each command that names a stream or super stream is
// carried out for who has the rights that it needs, and refused to all others.
// Nobody learns by a refusal whether the name is there.
func TestRights_everyCommand(t *testing.T) {
	h := serve(t, nil)
	boss := h.open(t)
	boss.create("s")
	boss.wantCode(boss.ask(superStream("x")), wire.CodeOK)
	h.fill(t, "s", 1)
	for _, r := range []rights{"", "c", "w", "r", "cw", "cr", "wr", "cwr"} {
		t.Run(fmt.Sprintf("%q", string(r)), func(t *testing.T) {
			user := "user-" + string(r)
			h.addUser(t, user, "pw")
			h.permit(t, user, "/", r.pattern('c'), r.pattern('w'), r.pattern('r'))
			p := h.openAs(t, user, "pw", &wire.Tune{FrameMax: 1 << 20})
			for _, own := range []string{"old-", "oldsuper-"} {
				if own == "old-" {
					boss.create(own + user)
				} else {
					boss.wantCode(boss.ask(superStream(own+user)), wire.CodeOK)
				}
			}
			for _, row := range []struct {
				command string
				needs   []string // any of these sets
				request wire.Command
				absent  wire.Command // the same of a name that is not there
				ok      wire.ResponseCode
				gone    wire.ResponseCode // the answer to absent with the rights
			}{
				{"Create", []string{"c"}, &wire.Create{Correlation: 1, Stream: "new-" + user}, nil, wire.CodeOK, 0},
				{"Delete", []string{"c"}, &wire.Delete{Correlation: 1, Stream: "old-" + user}, &wire.Delete{Correlation: 1, Stream: "absent"}, wire.CodeOK, wire.CodeStreamDoesNotExist},
				{"DeclarePublisher", []string{"w"}, &wire.DeclarePublisher{Correlation: 1, PublisherID: 1, Stream: "s"},
					&wire.DeclarePublisher{Correlation: 1, PublisherID: 2, Stream: "absent"}, wire.CodeOK, wire.CodeStreamDoesNotExist},
				{"QueryPublisherSequence", []string{"r"}, &wire.QueryPublisherSequence{Correlation: 1, Reference: "ref", Stream: "s"},
					&wire.QueryPublisherSequence{Correlation: 1, Reference: "ref", Stream: "absent"}, wire.CodeOK, wire.CodeStreamDoesNotExist},
				{"QueryOffset", []string{"r"}, &wire.QueryOffset{Correlation: 1, Reference: "none", Stream: "s"},
					&wire.QueryOffset{Correlation: 1, Reference: "none", Stream: "absent"}, wire.CodeNoOffset, wire.CodeStreamDoesNotExist},
				{"ResolveOffsetSpec", []string{"r"}, &wire.ResolveOffsetSpec{Correlation: 1, Stream: "s", Offset: first},
					&wire.ResolveOffsetSpec{Correlation: 1, Stream: "absent", Offset: first}, wire.CodeOK, wire.CodeStreamDoesNotExist},
				{"StreamStats", []string{"r"}, &wire.StreamStats{Correlation: 1, Stream: "s"}, &wire.StreamStats{Correlation: 1, Stream: "absent"}, wire.CodeOK, wire.CodeStreamDoesNotExist},
				{"Subscribe", []string{"r"}, &wire.Subscribe{Correlation: 1, SubscriptionID: 1, Stream: "s", Offset: first},
					&wire.Subscribe{Correlation: 1, SubscriptionID: 2, Stream: "absent", Offset: first}, wire.CodeOK, wire.CodeStreamDoesNotExist},
				{"Route", []string{"w"}, &wire.Route{Correlation: 1, SuperStream: "x", RoutingKey: "0"}, &wire.Route{Correlation: 1, SuperStream: "absent"}, wire.CodeOK, wire.CodeStreamDoesNotExist},
				{"Partitions", []string{"r", "w"}, &wire.Partitions{Correlation: 1, SuperStream: "x"}, &wire.Partitions{Correlation: 1, SuperStream: "absent"}, wire.CodeOK, wire.CodeStreamDoesNotExist},
				{"CreateSuperStream", []string{"cwr"}, superStream("newsuper-" + user), nil, wire.CodeOK, 0},
				{"DeleteSuperStream", []string{"cwr"}, &wire.DeleteSuperStream{Correlation: 1, Name: "oldsuper-" + user}, nil, wire.CodeOK, 0},
				// What names nothing needs nothing.
				{"ExchangeCommandVersions", []string{""}, &wire.ExchangeCommandVersions{Correlation: 1}, nil, wire.CodeOK, 0},
				{"Unsubscribe", []string{""}, &wire.Unsubscribe{Correlation: 1, SubscriptionID: 99}, nil, wire.CodeSubscriptionIDDoesNotExist, 0},
				{"DeletePublisher", []string{""}, &wire.DeletePublisher{Correlation: 1, PublisherID: 99}, nil, wire.CodePublisherDoesNotExist, 0},
			} {
				want, gone := row.ok, row.gone
				if !r.has(row.needs...) {
					want, gone = wire.CodeAccessRefused, wire.CodeAccessRefused
				}
				if got := codeIn(p.ask(row.request)); got != want {
					t.Errorf("%s with %q: code %d, want %d", row.command, r, got, want)
				}
				if row.absent == nil {
					continue
				}
				if got := codeIn(p.ask(row.absent)); got != gone {
					t.Errorf("%s of a name that is not there with %q: code %d, want %d", row.command, r, got, gone)
				}
			}
			h.wantMetadataByRight(t, p, r)
		})
	}
}

// TestRights_onTheNameThatIsStored: a create drops line ends from names, and who may
// not have what is left does not get it by them.
func TestRights_onTheNameThatIsStored(t *testing.T) {
	h := serve(t, nil)
	h.addUser(t, "ann", "pw")
	h.permit(t, "ann", "/", "^[^_]", "^[^_]", "^[^_]")
	p, boss := h.openAs(t, "ann", "pw", &wire.Tune{FrameMax: 1 << 20}), h.open(t)
	for _, row := range []struct {
		command string
		request wire.Command
		want    wire.ResponseCode
	}{
		{"a stream", &wire.Create{Correlation: 1, Stream: "\n_admin"}, wire.CodeAccessRefused},
		{"a super stream", superStreamOf("\n_admin", "ok"), wire.CodeAccessRefused},
		{"a partition", superStreamOf("x", "\n_admin"), wire.CodeAccessRefused},
		{"a later partition", superStreamOf("x", "ok", "\r\n_admin"), wire.CodeAccessRefused},
		{"a partition of an allowed name", superStreamOf("x", "\nok"), wire.CodeOK},
	} {
		if got := codeIn(p.ask(row.request)); got != row.want {
			t.Errorf("%s: code %d, want %d", row.command, got, row.want)
		}
		if got := codeIn(boss.ask(&wire.StreamStats{Correlation: 1, Stream: "_admin"})); got != wire.CodeStreamDoesNotExist {
			t.Errorf("after %s: code %d of the stream, want none", row.command, got)
		}
	}
}

func superStreamOf(name string, partitions ...string) *wire.CreateSuperStream {
	return &wire.CreateSuperStream{
		Correlation: 1, Name: name, Partitions: wire.StringsOf(partitions...), BindingKeys: wire.StringsOf(partitions...), Arguments: wire.PropertiesOf(),
	}
}

func superStream(name string) *wire.CreateSuperStream {
	return &wire.CreateSuperStream{
		Correlation: 1, Name: name, Partitions: wire.StringsOf(name+"-0", name+"-1"), BindingKeys: wire.StringsOf("0", "1"), Arguments: wire.PropertiesOf(),
	}
}

// wantMetadataByRight: read or write shows a stream, and nothing else shows even
// whether one is there.
func (h *house) wantMetadataByRight(t *testing.T, p *peer, r rights) {
	t.Helper()
	answer := p.ask(&wire.Metadata{Correlation: 1, Streams: wire.StringsOf("s", "absent")}).(*wire.MetadataResponse)
	want := map[string]wire.ResponseCode{"s": wire.CodeOK, "absent": wire.CodeStreamDoesNotExist}
	if !r.has("r", "w") {
		want = map[string]wire.ResponseCode{"s": wire.CodeAccessRefused, "absent": wire.CodeAccessRefused}
	}
	for m := range answer.Streams.All() {
		if m.Code != want[m.Stream] || m.Code != wire.CodeOK && (m.Leader != wire.NoLeader || len(m.Replicas) > 0) {
			t.Errorf("metadata of %s with %q: %+v, want code %d", m.Stream, r, m, want[m.Stream])
		}
	}
}

// TestRights_storeOffset: a store that is not allowed changes nothing and says
// nothing; a subscription that is there allows it.
func TestRights_storeOffset(t *testing.T) {
	h := serve(t, nil)
	boss := h.open(t)
	boss.create("s")
	h.fill(t, "s", 5)
	h.addUser(t, "ann", "pw")
	stored := func() wire.ResponseCode {
		t.Helper()
		return codeIn(boss.ask(&wire.QueryOffset{Correlation: 1, Reference: "ref", Stream: "s"}))
	}
	for _, step := range []struct {
		read string
		want wire.ResponseCode
	}{{"", wire.CodeNoOffset}, {"^s$", wire.CodeOK}} {
		h.permit(t, "ann", "/", ".*", ".*", step.read)
		p := h.openAs(t, "ann", "pw", &wire.Tune{})
		p.send(&wire.StoreOffset{Reference: "ref", Stream: "s", Offset: 2})
		p.ask(&wire.Metadata{Correlation: 1, Streams: wire.StringsOf()}) // carried out behind it
		if got := stored(); got != step.want {
			t.Errorf("with read %q: code %d, want %d", step.read, got, step.want)
		}
	}
}

// TestRights_changeWhileSomethingIsMade: a right that is taken away between the
// look at it and the moment at which a subscription is there takes that away too.
func TestRights_changeWhileSomethingIsMade(t *testing.T) {
	node := newFakeNode(t, vfs.NewMem(), "data")
	lost := &losing{Replicas: node}
	h := startBroker(t, node, lost, nil)
	h.fakeNode = node
	h.addUser(t, "ann", "pw")
	h.permit(t, "ann", "/", ".*", ".*", ".*")
	p, witness := h.openAs(t, "ann", "pw", &wire.Tune{}), h.openAs(t, "ann", "pw", &wire.Tune{})
	p.create("s")
	witness.subscribe(1, "s", first, 0)
	lost.arm(func() {
		h.permit(t, "ann", "/", ".*", ".*", "")
		if update, ok := witness.read().(*wire.MetadataUpdate); !ok || update.Stream != "s" {
			t.Errorf("the witness got %+v", update)
		}
	})
	p.skip[wire.KeyMetadataUpdate] = true
	if code := p.subscribe(1, "s", first, 0); code == wire.CodeOK && len(p.skipped) == 0 {
		if update, ok := p.read().(*wire.MetadataUpdate); !ok || update.Stream != "s" {
			t.Fatalf("got %+v", update)
		}
	}
	for _, c := range h.broker.Connections() {
		if len(c.Consumers) > 0 {
			t.Errorf("%s still reads", c.Name)
		}
	}
}

// losing does something once when a replica is looked for.
type losing struct {
	broker.Replicas
	mu   sync.Mutex
	then func()
}

func (l *losing) arm(then func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.then = then
}

func (l *losing) Replica(i chunk.Incarnation) (broker.Replica, bool) {
	l.mu.Lock()
	then := l.then
	l.then = nil
	l.mu.Unlock()
	if then != nil {
		then()
	}
	return l.Replicas.Replica(i)
}
