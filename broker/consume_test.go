package broker_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/wire"
)

// fill publishes chunks of the given numbers of messages to a stream.
func (h *house) fill(t testing.TB, stream string, chunks ...int) {
	t.Helper()
	p := h.open(t)
	if code := p.declare(0, "", stream); code != wire.CodeOK {
		t.Fatalf("declare: code %d", code)
	}
	id := uint64(0)
	for _, size := range chunks {
		var messages []string
		for range size {
			messages = append(messages, fmt.Sprint(int(id)+len(messages)))
		}
		p.publish(0, id, messages...)
		p.wantConfirms(0, id, size)
		id += uint64(size)
	}
	p.Close()
}

func TestSubscribe_beginsWhereItSays(t *testing.T) {
	h := serve(t, nil)
	h.open(t).create("s")
	h.open(t).create("empty")
	h.fill(t, "s", 3, 1, 5) // chunks at 0, 3 and 4; the next is 9
	at := func(offset uint64) wire.OffsetSpec { return wire.FromOffset(offset) }
	const none = -1
	for _, row := range []struct {
		name string
		spec wire.OffsetSpec
		want int
	}{
		{"first", first, 0},
		{"last", wire.OffsetSpec{Type: wire.OffsetLast}, 4},
		{"next", wire.OffsetSpec{Type: wire.OffsetNext}, none},
		{"offset 0", at(0), 0},
		{"offset 2, inside a chunk", at(2), 0},
		{"offset 3", at(3), 3},
		{"offset 8", at(8), 4},
		{"offset 9, the end", at(9), none},
		{"offset far beyond the end", at(1_000_000), none},
		{"offset 2^64-1", at(1<<64 - 1), none},
		{"timestamp before all", wire.FromTimestamp(-1 << 63), 0},
		{"timestamp after all", wire.FromTimestamp(1<<63 - 1), none},
	} {
		t.Run(row.name, func(t *testing.T) {
			p := h.open(t)
			for _, stream := range []string{"s", "empty"} {
				if code := p.subscribe(0, stream, row.spec, 1); code != wire.CodeOK {
					t.Fatalf("code %d", code)
				}
				if stream == "s" && row.want != none {
					if got := p.wantDeliver(); int(got.first) != row.want {
						t.Fatalf("first chunk at %d, want %d", got.first, row.want)
					}
				}
				p.wantSilence()
				p.wantCode(p.ask(&wire.Unsubscribe{Correlation: p.next()}), wire.CodeOK)
			}
			// ResolveOffsetSpec agrees.
			want := row.want
			if want == none {
				want = 9
			}
			answer := p.ask(&wire.ResolveOffsetSpec{Correlation: p.next(), Stream: "s", Offset: row.spec})
			if got := answer.(*wire.ResolveOffsetSpecResponse); got.Code != wire.CodeOK || int(got.Offset) != want {
				t.Fatalf("resolved to %+v, want %d", got, want)
			}
		})
	}
}

func TestSubscribe_codes(t *testing.T) {
	h := serve(t, func(c *broker.Config) { c.Subscriptions = 2 })
	h.addUser(t, "writer", "pw")
	h.permit(t, "writer", "/", "", ".*", "")
	p := h.open(t)
	p.create("s")
	for _, row := range []struct {
		what       string
		id         uint8
		stream     string
		properties []string
		want       wire.ResponseCode
	}{
		{"no stream", 0, "none", nil, wire.CodeStreamDoesNotExist},
		{"name too long", 0, "s", []string{"name", strings.Repeat("n", 256)}, wire.CodePreconditionFailed},
		{"group without a name", 0, "s", []string{"single-active-consumer", "true"}, wire.CodePreconditionFailed},
		{"no group: another value", 0, "s", []string{"single-active-consumer", "True"}, wire.CodeOK},
		{"id in use", 0, "s", nil, wire.CodeSubscriptionIDExists},
		{"id in use, no stream", 0, "none", nil, wire.CodeStreamDoesNotExist},
		{"unknown properties", 1, "s", []string{"identifier", "x", "chunk_selector", "all", "name", strings.Repeat("n", 255)}, wire.CodeOK},
		{"too many", 2, "s", nil, wire.CodePreconditionFailed},
		{"too many, id in use", 1, "s", nil, wire.CodePreconditionFailed},
	} {
		if got := p.subscribe(row.id, row.stream, first, 1, row.properties...); got != row.want {
			t.Errorf("%s: code %d, want %d", row.what, got, row.want)
		}
	}
	writer := h.openAs(t, "writer", "pw", &wire.Tune{})
	if got := writer.subscribe(0, "s", first, 1); got != wire.CodeAccessRefused {
		t.Errorf("without the right to read: code %d", got)
	}
	if n := h.broker.Stats().Consumers; n != 2 {
		t.Errorf("%d consumers are counted, want 2", n)
	}
}

func TestCredit_eachDeliverCostsOne(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	h.fill(t, "s", 1, 1, 1, 1, 1, 1)
	p.subscribe(0, "s", first, 0)
	p.wantSilence()
	p.send(&wire.Credit{SubscriptionID: 0, Credit: 0})
	p.wantSilence()
	got := 0
	for _, grant := range []int{1, 2} {
		p.send(&wire.Credit{SubscriptionID: 0, Credit: uint16(grant)})
		for range grant {
			if d := p.wantDeliver(); int(d.first) != got {
				t.Fatalf("chunk at %d, want %d", d.first, got)
			}
			got++
		}
		p.wantSilence()
	}
	if c := h.broker.Connections()[0].Consumers[0]; c.Credits != 0 || c.Consumed != 3 || c.Offset != 2 || c.Lag != 3 {
		t.Fatalf("consumer %+v", c)
	}
}

func TestCredit_isCapped(t *testing.T) {
	h := serve(t, func(c *broker.Config) { c.Credit = 100 })
	p := h.open(t)
	p.create("s")
	p.subscribe(0, "s", first, 65535)
	for range 10 {
		p.send(&wire.Credit{SubscriptionID: 0, Credit: 65535})
	}
	p.ask(&wire.Metadata{Correlation: p.next()})
	if got := h.broker.Connections()[0].Consumers[0].Credits; got != 100 {
		t.Fatalf("%d credits, want the cap of 100", got)
	}
}

func TestCredit_ofAnUnknownSubscription(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	h.fill(t, "s", 1, 1)
	p.subscribe(7, "s", wire.OffsetSpec{Type: wire.OffsetNext}, 1)
	// Credit behind Unsubscribe in one segment is an error; credit for an id
	// that is used again counts for the new subscription.
	p.send(&wire.Unsubscribe{Correlation: p.next(), SubscriptionID: 7}, &wire.Credit{SubscriptionID: 7, Credit: 1})
	p.wantCode(p.read(), wire.CodeOK)
	refused, ok := p.read().(*wire.CreditResponse)
	if !ok || refused.Code != wire.CodeSubscriptionIDDoesNotExist || refused.SubscriptionID != 7 {
		t.Fatalf("got %+v", refused)
	}
	p.subscribe(7, "s", first, 0)
	p.send(&wire.Credit{SubscriptionID: 7, Credit: 1})
	if got := p.wantDeliver(); got.first != 0 {
		t.Fatalf("chunk at %d", got.first)
	}
	p.wantSilence()
}

func TestDeliver_versionFollowsTheAnnouncement(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	h.fill(t, "s", 2, 3, 1) // chunks at 0, 2 and 5
	exchange := func(highest uint16) {
		p.ask(&wire.ExchangeCommandVersions{Correlation: p.next(), Versions: wire.CommandVersionsOf(
			wire.CommandVersion{Key: wire.KeyPublish, Min: 1, Max: 2},
			wire.CommandVersion{Key: wire.KeyDeliver, Min: 1, Max: highest},
			wire.CommandVersion{Key: 999, Min: 1, Max: 1},
		)})
	}
	want := func(version uint16, commit uint64) {
		t.Helper()
		p.send(&wire.Credit{SubscriptionID: 0, Credit: 1})
		if got := p.wantDeliver(); got.version != version || got.commit != commit {
			t.Fatalf("version %d with commit %d, want %d with %d", got.version, got.commit, version, commit)
		}
	}
	p.subscribe(0, "s", first, 0)
	want(1, 0)
	exchange(1)
	want(1, 0)
	exchange(2) // for the running subscription, too
	want(2, 5)
	exchange(1) // nothing turns it off
	h.fill(t, "s", 4)
	want(2, 6)
	p.subscribe(1, "s", first, 1)
	if got := p.wantDeliver(); got.version != 2 || got.commit != 6 {
		t.Fatalf("far behind: %+v, want commit 6", got)
	}
}

func TestExchange_listsOurCommands(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	answer := p.ask(&wire.ExchangeCommandVersions{Correlation: p.next()}).(*wire.ExchangeCommandVersionsResponse)
	listed := answer.Versions.Slice()
	if len(listed) != 20 || listed[0].Key != wire.KeyDeclarePublisher || listed[1] != (wire.CommandVersion{Key: wire.KeyPublish, Min: 1, Max: 2}) {
		t.Fatalf("listed %+v", listed)
	}
}

func TestDeliver_tailConsumersAreWokenByThemselves(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	p.subscribe(0, "s", wire.OffsetSpec{Type: wire.OffsetNext}, 10)
	p.subscribe(1, "s", wire.FromOffset(1_000_000), 10)
	p.subscribe(2, "s", wire.OffsetSpec{Type: wire.OffsetNext}, 10)
	p.subscribe(3, "s", wire.OffsetSpec{Type: wire.OffsetNext}, 0)
	h.fill(t, "s", 1)
	got := map[uint8]bool{}
	for range 3 {
		got[p.wantDeliver().id] = true
	}
	if len(got) != 3 || got[3] {
		t.Fatalf("delivered to %v, want 0, 1 and 2", got)
	}
}

func TestDeliver_uncommittedIsNotRead(t *testing.T) {
	h := serve(t, nil)
	p, consumer := h.open(t), h.open(t)
	p.create("s")
	p.declare(0, "", "s")
	consumer.subscribe(0, "s", first, 10)
	h.replica(t, "s").hold()
	p.publish(0, 1, "a")
	p.ask(&wire.Metadata{Correlation: p.next()})
	consumer.wantSilence()
	h.replica(t, "s").commit()
	consumer.wantDeliver()
	p.wantConfirms(0, 1, 1)
}

func TestUnsubscribe_nothingFollowsItsAnswer(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	p.declare(0, "", "s")
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		publisher := h.open(t)
		publisher.declare(0, "", "s")
		for i := uint64(0); ; i++ {
			select {
			case <-stop:
				return
			default:
				publisher.publish(0, i, "m")
				publisher.wantConfirms(0, i, 1)
			}
		}
	}()
	p.skip[wire.KeyDeliver] = true
	for range 50 {
		p.subscribe(0, "s", first, 65535)
		p.wantCode(p.ask(&wire.Unsubscribe{Correlation: p.next()}), wire.CodeOK)
		p.skip[wire.KeyDeliver] = false
		p.ask(&wire.Metadata{Correlation: p.next()})
		p.skip[wire.KeyDeliver] = true
	}
	close(stop)
	<-done
	eventually(t, "nobody watches the stream", func() bool { return h.replica(t, "s").watched() == 0 })
}

func TestDeliver_everythingOnceAndInOrder(t *testing.T) {
	for _, fs := range []struct {
		name string
		fs   vfs.FS
	}{{"memory", vfs.NewMem()}, {"files", vfs.OS{}}} {
		t.Run(fs.name, func(t *testing.T) {
			h := serveOn(t, fs.fs, t.TempDir(), nil)
			p := h.open(t)
			p.create("s")
			p.declare(0, "", "s")
			sizes := []int{1, 100, 5_000, 70_000, 300_000, 10, 900_000}
			const rounds = 10
			go func() {
				id := uint64(0)
				for range rounds {
					for _, size := range sizes {
						p.publish(0, id, strings.Repeat(string(rune('a'+id%26)), size))
						id++
					}
				}
			}()
			p.wantConfirms(0, 0, rounds*len(sizes))
			// Twice: what was read once is sent from the file, where that can be.
			for range 2 {
				c := h.open(t)
				c.subscribe(0, "s", first, 10)
				for want := 0; want < rounds*len(sizes); want++ {
					d := c.wantDeliver()
					size := sizes[want%len(sizes)]
					if int(d.first) != want || len(d.messages) != 1 || len(d.messages[0]) != size ||
						size > 0 && d.messages[0][size-1] != byte('a'+want%26) {
						t.Fatalf("chunk at %d with %d messages, want %d with one of %d bytes", d.first, len(d.messages), want, size)
					}
					c.send(&wire.Credit{SubscriptionID: 0, Credit: 1})
				}
				c.Close()
			}
		})
	}
}

func TestDeliver_oneBusySubscriptionStarvesNobody(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("busy")
	p.create("quiet")
	p.declare(0, "", "busy")
	message := strings.Repeat("m", 10_000)
	go func() {
		for i := range 400 {
			p.publish(0, uint64(i), message)
		}
	}()
	p.wantConfirms(0, 0, 400)
	h.fill(t, "quiet", 1)
	c := h.open(t)
	for id := range 200 {
		if code := c.subscribe(uint8(id), "busy", wire.OffsetSpec{Type: wire.OffsetNext}, 0); code != wire.CodeOK {
			t.Fatal(code)
		}
		c.send(&wire.Unsubscribe{Correlation: c.next(), SubscriptionID: uint8(id)})
		c.wantCode(c.read(), wire.CodeOK)
	}
	for id := range 200 {
		c.send(&wire.Subscribe{Correlation: c.next(), SubscriptionID: uint8(id), Stream: "busy", Offset: first, Credit: 65535})
	}
	c.send(&wire.Subscribe{Correlation: c.next(), SubscriptionID: 200, Stream: "quiet", Offset: first, Credit: 1})
	c.send(&wire.QueryOffset{Correlation: 77, Reference: "r", Stream: "busy"})
	// 200 times 4 MB wait to be delivered. The quiet stream and the query come
	// long before that.
	read, answered, quiet := 0, false, false
	for !answered || !quiet {
		switch got := c.read().(type) {
		case *wire.Deliver:
			read += len(got.Chunk)
			quiet = quiet || got.SubscriptionID == 200
		case *wire.QueryOffsetResponse:
			answered = true
		}
	}
	if read > 64<<20 {
		t.Fatalf("%d bytes came before the answer and the quiet stream's chunk", read)
	}
}

func TestDeliver_aConsumerThatDoesNotReadIsCut(t *testing.T) {
	h := serve(t, func(c *broker.Config) { c.BlockedSocketTimeout = 100 * time.Millisecond })
	p := h.open(t)
	p.create("s")
	p.declare(0, "", "s")
	message := strings.Repeat("m", 100_000)
	go func() {
		for i := range 200 {
			p.publish(0, uint64(i), message)
		}
	}()
	p.wantConfirms(0, 0, 200)
	conn, err := net.Dial("tcp", h.addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4 << 10); err != nil {
		t.Fatal(err)
	}
	lazy := newPeer(t, conn)
	lazy.advance(5, "guest", "guest", &wire.Tune{})
	for id := range 256 {
		lazy.send(&wire.Subscribe{Correlation: 1, SubscriptionID: uint8(id), Stream: "s", Offset: first, Credit: 65535})
	}
	eventually(t, "the lazy consumer is cut", func() bool { return h.broker.Stats().CutConsumers == 1 })
	eventually(t, "its connection is gone", func() bool { return h.broker.Stats().Connections == 1 })
	p.ask(&wire.Metadata{Correlation: p.next()}) // others go on
}

// TestOffsets_behindTheSubscription: a store needs the right to read, no
// subscription that lives; and what a client sends before it closes its socket
// is taken (TR-07).
func TestOffsets_behindTheSubscription(t *testing.T) {
	h := serve(t, nil)
	h.addUser(t, "reader", "pw")
	h.permit(t, "reader", "/", "", "", ".*")
	owner := h.open(t)
	owner.create("s")
	reader := h.openAs(t, "reader", "pw", &wire.Tune{})
	reader.send( // all in one write
		&wire.Subscribe{Correlation: reader.next(), SubscriptionID: 1, Stream: "s", Offset: first, Credit: 1},
		&wire.Unsubscribe{Correlation: reader.next(), SubscriptionID: 1},
		&wire.StoreOffset{Reference: "r", Stream: "s", Offset: 41},
		&wire.QueryOffset{Correlation: reader.next(), Reference: "r", Stream: "s"},
	)
	reader.wantCode(reader.read(), wire.CodeOK)
	reader.wantCode(reader.read(), wire.CodeOK)
	if got := reader.await(wire.KeyQueryOffset.Answer()).(*wire.QueryOffsetResponse); got.Code != wire.CodeOK || got.Offset != 41 {
		t.Errorf("behind the subscription: %+v", got)
	}
	const closed = 1000
	for i := range closed {
		p := h.openTCP(t)
		p.send(&wire.StoreOffset{Reference: fmt.Sprint("closed ", i), Stream: "s", Offset: uint64(i)})
		if err := p.Close(); err != nil {
			t.Fatal(err)
		}
	}
	replica := h.replica(t, "s")
	for i := range closed {
		eventually(t, fmt.Sprintf("store %d, sent just before the end, is taken", i), func() bool {
			got, known, err := replica.QueryOffset(fmt.Sprint("closed ", i))
			return err == nil && known && got == chunk.Offset(i)
		})
	}
}

// TestOffsets_knownStream: what a session knows of the stream it stores in ends
// when the metadata change.
func TestOffsets_knownStream(t *testing.T) {
	h := serve(t, nil)
	h.addUser(t, "reader", "pw")
	h.permit(t, "reader", "/", "", "", ".*")
	admin, reader := h.open(t), h.openAs(t, "reader", "pw", &wire.Tune{})
	admin.create("s")
	admin.create("other")
	stored := func(stream string, want uint64) {
		t.Helper()
		// Its answer tells that the stores before it were taken.
		reader.ask(&wire.QueryOffset{Correlation: reader.next(), Reference: "none", Stream: stream})
		got := admin.ask(&wire.QueryOffset{Correlation: admin.next(), Reference: "r", Stream: stream}).(*wire.QueryOffsetResponse)
		if got.Offset != want {
			t.Errorf("%s is at %d, want %d", stream, got.Offset, want)
		}
	}
	store := func(stream string, offset uint64) {
		reader.send(&wire.StoreOffset{Reference: "r", Stream: stream, Offset: offset})
	}
	store("s", 1)
	store("s", 2)
	store("other", 3)
	store("s", 4)
	stored("s", 4)
	stored("other", 3)

	h.permit(t, "reader", "/", "", "", "other")
	store("s", 5)
	store("other", 6)
	stored("s", 4)
	stored("other", 6)

	h.permit(t, "reader", "/", "", "", ".*")
	store("s", 7)
	owner := h.open(t)
	owner.ask(&wire.Delete{Correlation: owner.next(), Stream: "s"})
	for _, p := range []*peer{admin, reader} {
		p.await(wire.KeyMetadataUpdate)
	}
	store("s", 8)
	reader.ask(&wire.QueryOffset{Correlation: reader.next(), Reference: "r", Stream: "s"})
	owner.create("s")
	stored("s", 0)
	store("s", 9)
	stored("s", 9)
}

func TestOffsets_storeAndQuery(t *testing.T) {
	h := serve(t, nil)
	h.addUser(t, "writer", "pw")
	h.permit(t, "writer", "/", "", ".*", "")
	p := h.open(t)
	p.create("s")
	query := func(p *peer, reference, stream string) (wire.ResponseCode, uint64) {
		t.Helper()
		got := p.ask(&wire.QueryOffset{Correlation: p.next(), Reference: reference, Stream: stream}).(*wire.QueryOffsetResponse)
		return got.Code, got.Offset
	}
	long := strings.Repeat("r", 255)
	p.send(
		&wire.StoreOffset{Reference: "r", Stream: "s", Offset: 5},
		&wire.StoreOffset{Reference: "r", Stream: "s", Offset: 3}, // backwards
		&wire.StoreOffset{Reference: long, Stream: "s", Offset: 1<<64 - 1},
		&wire.StoreOffset{Reference: long + "r", Stream: "s", Offset: 1},
		&wire.StoreOffset{Reference: "r", Stream: "none", Offset: 1},
	)
	writer := h.openAs(t, "writer", "pw", &wire.Tune{})
	writer.send(&wire.StoreOffset{Reference: "r", Stream: "s", Offset: 99})
	for _, row := range []struct {
		reference, stream string
		code              wire.ResponseCode
		offset            uint64
	}{
		{"r", "s", wire.CodeOK, 3},
		{long, "s", wire.CodeOK, 1<<64 - 1},
		{"never", "s", wire.CodeNoOffset, 0},
		{"r", "none", wire.CodeStreamDoesNotExist, 0},
	} {
		code, offset := query(p, row.reference, row.stream)
		if code != row.code || offset != row.offset {
			t.Errorf("%.10s of %s: %d with code %d, want %d with %d", row.reference, row.stream, offset, code, row.offset, row.code)
		}
	}
	if code, _ := query(writer, "r", "s"); code != wire.CodeAccessRefused {
		t.Errorf("without the right to read: code %d", code)
	}
	if code, offset := query(p, "r", "s"); code != wire.CodeOK || offset != 3 {
		t.Errorf("the writer's store counted: %d, code %d", offset, code)
	}
}
