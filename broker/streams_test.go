package broker_test

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/wire"
)

func (p *peer) tryCreate(stream string, arguments ...string) wire.ResponseCode {
	p.t.Helper()
	return codeIn(p.ask(&wire.Create{Correlation: p.next(), Stream: stream, Arguments: wire.PropertiesOf(arguments...)}))
}

func (p *peer) delete(stream string) wire.ResponseCode {
	p.t.Helper()
	return codeIn(p.ask(&wire.Delete{Correlation: p.next(), Stream: stream}))
}

func TestCreate_codes(t *testing.T) {
	h := serve(t, nil)
	h.addUser(t, "reader", "pw")
	h.permit(t, "reader", "/", "", "", ".*")
	p := h.open(t)
	const ok, exists, wrong = wire.CodeOK, wire.CodeStreamAlreadyExists, wire.CodePreconditionFailed
	for _, row := range []struct {
		name      string
		arguments []string
		want      wire.ResponseCode
	}{
		{"", nil, wrong},
		{"\r\n", nil, wrong},
		{"amq.x", nil, wrong},
		{strings.Repeat("n", 255), nil, ok},
		{strings.Repeat("n", 256), nil, wrong},
		{strings.Repeat("x", 32_767), nil, wrong},
		{strings.Repeat("ü", 127), nil, ok},
		{strings.Repeat("ü", 128), nil, wrong},
		{"日本語", nil, ok},
		{"a\xff", nil, wrong},
		{"nul\x00", nil, wrong},
		{"tab\t", nil, wrong},
		{"..", nil, ok},
		{".", nil, ok},
		{"/", nil, ok},
		{"../../etc", nil, ok},
		{"%2f", nil, ok},
		{"line\nbreak", nil, ok}, // stored without it
		{"linebreak", nil, exists},

		{"all", []string{"max-length-bytes", "1000", "max-age", "1h", "stream-max-segment-size-bytes", "500", "initial-cluster-size", "3", "queue-leader-locator", "least-leaders", "stream-filter-size-bytes", "32"}, ok},
		{"all", []string{"stream-filter-size-bytes", "32", "max-length-bytes", "01000", "max-age", "1h", "stream-max-segment-size-bytes", "500", "initial-cluster-size", "3", "queue-leader-locator", "least-leaders", "x-unknown", "1"}, exists},
		{"all", []string{"max-length-bytes", "1000"}, wrong},
		{"all", nil, wrong},
		{"age", []string{"max-age", "60m"}, ok},
		{"age", []string{"max-age", "1h"}, wrong},
		{"unknown", []string{"x-max-age", "?", "anything", ""}, ok},
		{"unknown", nil, exists},
		{"bad", []string{"max-length-bytes", ""}, wrong},
		{"bad", []string{"max-length-bytes", "0"}, wrong},
		{"bad", []string{"max-length-bytes", "-1"}, wrong},
		{"bad", []string{"max-length-bytes", "20gb"}, wrong},
		{"bad", []string{"max-age", "10"}, wrong},
		{"bad", []string{"max-age", "0.5s"}, wrong},
		{"bad", []string{"max-age", "PT1H"}, wrong},
		{"bad", []string{"stream-max-segment-size-bytes", "0"}, wrong},
		{"bad", []string{"stream-max-segment-size-bytes", "3000000001"}, wrong},
		{"bad", []string{"stream-max-segment-size-bytes", "9223372036854775808"}, wrong},
		{"bad", []string{"initial-cluster-size", "0"}, wrong},
		{"bad", []string{"queue-leader-locator", "Balanced"}, wrong},
		{"bad", []string{"queue-leader-locator", ""}, wrong},
		{"bad", []string{"stream-filter-size-bytes", "15"}, wrong},
		{"bad", []string{"stream-filter-size-bytes", "256"}, wrong},
		{"bad", slices.Repeat([]string{"k", "v"}, 300), wrong},
	} {
		if got := p.tryCreate(row.name, row.arguments...); got != row.want {
			t.Errorf("%.20q %v: code %d, want %d", row.name, row.arguments, got, row.want)
		}
	}
	reader := h.openAs(t, "reader", "pw", &wire.Tune{})
	for name, want := range map[string]wire.ResponseCode{"": wrong, "new": wire.CodeAccessRefused, "all": wire.CodeAccessRefused} {
		if got := reader.tryCreate(name, "max-age", "wrong"); got != want {
			t.Errorf("%q without the right to configure: code %d, want %d", name, got, want)
		}
	}
	for _, name := range []string{"all", "none"} {
		if got := reader.delete(name); got != wire.CodeAccessRefused {
			t.Errorf("delete %q without the right: code %d", name, got)
		}
	}
	if got := p.delete("none"); got != wire.CodeStreamDoesNotExist {
		t.Errorf("delete a missing stream: code %d", got)
	}
}

func TestCreate_asManyStreamsAsTheNodesMayHave(t *testing.T) {
	h := serve(t, func(c *broker.Config) { c.Streams = 2 })
	p := h.open(t)
	p.create("a")
	p.create("b")
	for name, want := range map[string]wire.ResponseCode{"c": wire.CodePreconditionFailed, "a": wire.CodeStreamAlreadyExists} {
		if got := p.tryCreate(name); got != want {
			t.Errorf("create %q: code %d, want %d", name, got, want)
		}
	}
	p.wantCode(p.ask(&wire.CreateSuperStream{
		Correlation: 1, Name: "x", Partitions: wire.StringsOf("x-0"), BindingKeys: wire.StringsOf("0"),
	}), wire.CodePreconditionFailed)
	if code := p.delete("a"); code != wire.CodeOK {
		t.Fatal(code)
	}
	p.create("c")
}

func TestDelete_tellsEachConnectionOnceForEachStream(t *testing.T) {
	for _, kind := range []struct {
		name  string
		serve func() *house
	}{
		{"fake", func() *house { return serve(t, nil) }},
		{"real", func() *house { return serveReal(t, vfs.NewMem(), "data", nil) }},
	} {
		t.Run(kind.name, func(t *testing.T) {
			h := kind.serve()
			own, other, bystander := h.open(t), h.open(t), h.open(t)
			for _, stream := range []string{"a", "b"} {
				own.create(stream)
				for i, p := range []*peer{own, other} {
					p.declare(uint8(len(stream)), "", stream)
					_ = i
				}
			}
			own.declare(10, "", "a")
			own.declare(11, "", "b")
			own.subscribe(10, "a", first, 10)
			own.subscribe(11, "a", first, 10)
			other.subscribe(10, "a", first, 10)
			bystander.declare(0, "", "b")

			own.send(&wire.Delete{Correlation: 99, Stream: "a"})
			own.wantCode(own.read(), wire.CodeOK) // the answer first
			for _, p := range []*peer{own, other} {
				update, ok := p.read().(*wire.MetadataUpdate)
				if !ok || update.Code != wire.CodeStreamNotAvailable || update.Stream != "a" {
					t.Fatalf("got %+v", update)
				}
			}
			// The ids are free, everything on the other stream goes on, nobody is
			// told twice.
			own.wantCode(own.ask(&wire.DeletePublisher{Correlation: own.next(), PublisherID: 10}), wire.CodePublisherDoesNotExist)
			own.wantCode(own.ask(&wire.Unsubscribe{Correlation: own.next(), SubscriptionID: 10}), wire.CodeSubscriptionIDDoesNotExist)
			own.publish(10, 1, "m")
			own.wantErrors(10, wire.CodePublisherDoesNotExist, 1)
			own.publish(11, 1, "m")
			own.wantConfirms(11, 1, 1)
			bystander.publish(0, 1, "m")
			bystander.wantConfirms(0, 1, 1)
			for _, p := range []*peer{own, other, bystander} {
				p.ask(&wire.Metadata{Correlation: p.next()})
			}
			// The name can be used again at once, from offset 0.
			own.create("a")
			own.declare(10, "", "a")
			own.subscribe(10, "a", first, 1)
			own.publish(10, 1, "m")
			seen := map[wire.Key]bool{}
			for range 2 {
				c := own.read()
				seen[c.Key()] = true
				if d, ok := c.(*wire.Deliver); ok && takeApart(t, d).first != 0 {
					t.Fatalf("the new stream begins at %d", takeApart(t, d).first)
				}
			}
			if !seen[wire.KeyDeliver] || !seen[wire.KeyPublishConfirm] {
				t.Fatalf("saw %v", seen)
			}
		})
	}
}

func TestDelete_tellsWhoOnlyAskedForOffsets(t *testing.T) {
	h := serve(t, nil)
	p, other := h.open(t), h.open(t)
	p.create("s")
	other.send(&wire.StoreOffset{Reference: "r", Stream: "s", Offset: 1})
	other.ask(&wire.QueryOffset{Correlation: 1, Reference: "r", Stream: "s"})
	if code := p.delete("s"); code != wire.CodeOK {
		t.Fatalf("code %d", code)
	}
	if update, ok := other.read().(*wire.MetadataUpdate); !ok || update.Stream != "s" {
		t.Fatalf("got %+v", update)
	}
	p.ask(&wire.Metadata{Correlation: p.next()}) // had nothing, hears nothing
}

func TestEpoch_aNewOneTakesThePublishersOnly(t *testing.T) {
	h := serve(t, func(c *broker.Config) { c.MetadataWait = time.Millisecond })
	publisher, consumer := h.open(t), h.open(t)
	publisher.create("s")
	publisher.declare(0, "", "s")
	consumer.subscribe(0, "s", first, 10)
	h.depose(t, "s")
	h.replica(t, "s").fail(replication.ErrNotLeader)
	publisher.publish(0, 1, "m") // whose fate nobody knows
	publisher.wantSilence()      // a client that is told now finds nobody
	if code := publisher.declare(1, "", "s"); code != wire.CodeStreamNotAvailable {
		t.Fatalf("declare without a leader: code %d", code)
	}
	publisher.wantCode(publisher.ask(&wire.QueryOffset{Correlation: 1, Reference: "r", Stream: "s"}), wire.CodeStreamNotAvailable)
	publisher.wantCode(publisher.ask(&wire.QueryPublisherSequence{Correlation: 1, Reference: "r", Stream: "s"}), wire.CodeStreamNotAvailable)
	h.replica(t, "s").fail(nil)
	h.elect(t, "s")
	if update, ok := publisher.read().(*wire.MetadataUpdate); !ok || update.Stream != "s" {
		t.Fatalf("got %+v", update)
	}
	if code := publisher.declare(0, "", "s"); code != wire.CodeOK {
		t.Fatalf("declare with the new leader: code %d", code)
	}
	publisher.publish(0, 2, "m")
	publisher.wantConfirms(0, 2, 1)
	consumer.wantDeliver() // never interrupted, never told
}

// TestReplica_takenAway: who reads a replica that this node is to have no more is
// told once; another stream's readers on that connection, and others', go on.
func TestReplica_takenAway(t *testing.T) {
	h := serve(t, nil)
	reader, bystander := h.open(t), h.open(t)
	for _, stream := range []string{"s", "t"} {
		reader.create(stream)
	}
	reader.subscribe(0, "s", first, 10)
	reader.subscribe(1, "s", first, 10)
	reader.subscribe(2, "t", first, 10)
	bystander.subscribe(0, "t", first, 10)
	for _, node := range []string{"n2", "n3"} {
		h.addReplica(t, "s", node, node+".example:1234")
		h.promote(t, "s", node)
	}
	h.depose(t, "s")
	h.electOther(t, "s", "n2")
	reader.wantSilence() // they read on through the election
	h.takeAway(t, "s", nodeName)
	if update, ok := reader.read().(*wire.MetadataUpdate); !ok || update.Code != wire.CodeStreamNotAvailable || update.Stream != "s" {
		t.Fatalf("got %+v", update)
	}
	for id := range uint8(2) {
		reader.wantCode(reader.ask(&wire.Unsubscribe{Correlation: reader.next(), SubscriptionID: id}), wire.CodeSubscriptionIDDoesNotExist)
	}
	h.fill(t, "t", 1)
	reader.wantDeliver()
	bystander.wantDeliver()
	reader.wantSilence()
	bystander.wantSilence()
}

func TestStreamStats(t *testing.T) {
	for _, kind := range []struct {
		name  string
		serve func() *house
	}{
		{"fake", func() *house { return serve(t, nil) }},
		{"real", func() *house { return serveReal(t, vfs.NewMem(), "data", nil) }},
	} {
		t.Run(kind.name, func(t *testing.T) {
			h := kind.serve()
			p := h.open(t)
			p.create("s")
			want := func(first, last, committed, offset int64) {
				t.Helper()
				answer := p.ask(&wire.StreamStats{Correlation: 1, Stream: "s"}).(*wire.StreamStatsResponse)
				got := map[string]int64{}
				for stat := range answer.Stats.All() {
					got[stat.Name] = stat.Value
				}
				if answer.Code != wire.CodeOK || got["first_chunk_id"] != first || got["last_chunk_id"] != last ||
					got["committed_chunk_id"] != committed || got["committed_offset"] != offset {
					t.Fatalf("code %d, %v; want %d, %d, %d, %d", answer.Code, got, first, last, committed, offset)
				}
			}
			want(-1, -1, -1, -1)
			h.fill(t, "s", 10)
			want(0, 0, 0, 9)
			h.fill(t, "s", 1)
			want(0, 10, 10, 10)
			answer := p.ask(&wire.StreamStats{Correlation: 1, Stream: "none"}).(*wire.StreamStatsResponse)
			if answer.Code != wire.CodeStreamDoesNotExist || answer.Stats.Len() != 0 {
				t.Fatalf("missing stream: %+v", answer)
			}
		})
	}
}

func TestRights_areFollowedWhileConnected(t *testing.T) {
	h := serve(t, nil)
	h.addUser(t, "ann", "pw")
	h.permit(t, "ann", "/", ".*", ".*", ".*")
	p := h.openAs(t, "ann", "pw", &wire.Tune{})
	p.create("s")
	p.create("t")
	p.declare(0, "", "s")
	p.subscribe(0, "s", first, 10)
	p.declare(1, "", "t")

	h.permit(t, "ann", "/", "", "^t", "^s")
	if update, ok := p.read().(*wire.MetadataUpdate); !ok || update.Stream != "s" {
		t.Fatalf("got %+v", update)
	}
	p.publish(0, 1, "m")
	p.wantErrors(0, wire.CodePublisherDoesNotExist, 1)
	p.publish(1, 1, "m")
	p.wantConfirms(1, 1, 1)
	h.fill(t, "s", 1)
	p.wantDeliver() // reading goes on

	h.permit(t, "ann", "/", "", "^t", "")
	if update, ok := p.read().(*wire.MetadataUpdate); !ok || update.Stream != "s" {
		t.Fatalf("got %+v", update)
	}
	h.do(t, clearPermission("/", "ann"))
	p.wantEnd()

	q := h.openAs(t, "guest", "guest", &wire.Tune{})
	h.do(t, deleteUser("guest"))
	q.wantEnd()
}

func TestRenewal_looksAtTheRightsAgain(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	p.declare(0, "", "s")
	p.wantCode(p.ask(plain(9, "guest", "guest")), wire.CodeOK)
	p.publish(0, 1, "m")
	p.wantConfirms(0, 1, 1)
}

func TestConnections_areListedAndClosed(t *testing.T) {
	h := serve(t, nil)
	p, q := h.open(t), h.open(t)
	half := h.dial(t)
	half.advance(4, "guest", "guest", &wire.Tune{})
	p.create("s")
	p.declare(4, "ref", "s")
	p.subscribe(2, "s", first, 7, "identifier", "tag")
	var all []broker.Connection
	eventually(t, "both are open, and the writer has taken the credit", func() bool {
		all = h.broker.Connections()
		return len(all) >= 2 && slices.ContainsFunc(all, func(c broker.Connection) bool { return len(c.Consumers) == 1 && c.Consumers[0].Credits == 7 })
	})
	if len(all) != 2 {
		t.Fatalf("%d connections are listed, want the two open ones", len(all))
	}
	i := slices.IndexFunc(all, func(c broker.Connection) bool { return len(c.Publishers) == 1 })
	c := all[i]
	if c.User != "guest" || c.VHost != "/" || c.Properties["connection_name"] != "peer" || c.Mechanism != "PLAIN" ||
		c.FrameMax != 1<<20 || c.Name != p.LocalAddr().String()+" -> "+h.addr {
		t.Errorf("connection %+v", c)
	}
	if got := c.Publishers[0]; got.ID != 4 || got.Reference != "ref" || got.Stream != "s" {
		t.Errorf("publisher %+v", got)
	}
	if got := c.Consumers[0]; got.SubscriptionID != 2 || got.Stream != "s" || got.Properties["identifier"] != "tag" || got.Offset != -1 {
		t.Errorf("consumer %+v", got)
	}
	if h.broker.CloseConnection("no such", "test") {
		t.Error("closed a connection that is not there")
	}
	if !h.broker.CloseConnection(c.Name, "test") {
		t.Error("connection not found")
	}
	p.wantEnd()
	eventually(t, "it is listed no more", func() bool { return len(h.broker.Connections()) == 1 })
	q.ask(&wire.Metadata{Correlation: q.next()})
}

func TestSuperStreams(t *testing.T) {
	h := serve(t, nil)
	h.addUser(t, "none", "pw")
	h.permit(t, "none", "/", "", "", "")
	h.addUser(t, "part", "pw")
	h.permit(t, "part", "/", "x", "x-0", "x")
	p, none, part := h.open(t), h.openAs(t, "none", "pw", &wire.Tune{}), h.openAs(t, "part", "pw", &wire.Tune{})
	p.create("s")
	create := func(name string, partitions, keys []string, arguments ...string) wire.Command {
		return &wire.CreateSuperStream{
			Correlation: 1, Name: name, Partitions: wire.StringsOf(partitions...), BindingKeys: wire.StringsOf(keys...),
			Arguments: wire.PropertiesOf(arguments...),
		}
	}
	two, keys := []string{"x-0", "x-1"}, []string{"0", "1"}
	partitions, route := &wire.Partitions{Correlation: 1, SuperStream: "x"}, &wire.Route{Correlation: 1, SuperStream: "x", RoutingKey: "1"}
	remove := &wire.DeleteSuperStream{Correlation: 1, Name: "x"}
	for _, row := range []struct {
		what    string
		peer    *peer
		request wire.Command
		want    wire.ResponseCode
	}{
		{"partitions of none", p, partitions, wire.CodeStreamDoesNotExist},
		{"partitions of a stream", p, &wire.Partitions{Correlation: 1, SuperStream: "s"}, wire.CodeStreamDoesNotExist},
		{"partitions without rights", none, partitions, wire.CodeAccessRefused},
		{"route of none", p, route, wire.CodeStreamDoesNotExist},
		{"route without rights", none, route, wire.CodeAccessRefused},
		{"delete none", p, remove, wire.CodeStreamDoesNotExist},
		{"delete without rights", none, remove, wire.CodeAccessRefused},

		{"empty name", p, create("", two, keys), wire.CodePreconditionFailed},
		{"reserved name", p, create("amq.x", two, keys), wire.CodePreconditionFailed},
		{"without rights", none, create("x", two, keys), wire.CodeAccessRefused},
		{"without a right to write a partition", part, create("x", two, keys), wire.CodeAccessRefused},
		{"more keys", p, create("x", two, []string{"0", "1", "2"}), wire.CodePreconditionFailed},
		{"a partition twice", p, create("x", []string{"x-0", "x-0"}, keys), wire.CodePreconditionFailed},
		{"bad partition", p, create("x", []string{"x-0", ""}, keys), wire.CodePreconditionFailed},
		{"too many", p, create("x", slices.Repeat([]string{"x"}, 1001), slices.Repeat([]string{"x"}, 1001)), wire.CodePreconditionFailed},
		{"a stream as partition", p, create("x", []string{"x-0", "s"}, keys), wire.CodeStreamAlreadyExists},
		{"bad argument", p, create("x", two, keys, "max-age", "?"), wire.CodeInternalError},
		{"right", p, create("x", two, keys, "max-age", "1h"), wire.CodeOK},
		{"once more", p, create("x", two, keys), wire.CodeStreamAlreadyExists},
	} {
		t.Run(row.what, func(t *testing.T) { row.peer.wantCode(row.peer.ask(row.request), row.want) })
	}
	if got := p.ask(partitions).(*wire.PartitionsResponse); got.Code != wire.CodeOK || !slices.Equal(got.Streams.Slice(), two) {
		t.Fatalf("partitions %+v", got)
	}
	for key, want := range map[string][]string{"1": {"x-1"}, "none": {}} {
		got := p.ask(&wire.Route{Correlation: 1, SuperStream: "x", RoutingKey: key}).(*wire.RouteResponse)
		if got.Code != wire.CodeOK || !slices.Equal(got.Streams.Slice(), want) {
			t.Fatalf("route %q: %+v", key, got)
		}
	}
	p.wantCode(p.ask(remove), wire.CodeOK)
	p.wantCode(p.ask(partitions), wire.CodeStreamDoesNotExist)
}

func TestAuthenticate_isForOperatorsToo(t *testing.T) {
	h := serve(t, nil)
	local, remote := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("192.0.2.1")
	if err := h.broker.Authenticate("guest", "guest", local); err != nil {
		t.Error(err)
	}
	if err := h.broker.Authenticate("guest", "wrong", local); err == nil {
		t.Error("a wrong password is taken")
	}
	if err := h.broker.Authenticate("guest", "guest", remote); err == nil {
		t.Error("guest is let in from elsewhere")
	}
}
