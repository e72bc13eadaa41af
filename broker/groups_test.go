package broker_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/wire"
)

var (
	fromFirst = wire.OffsetSpec{Type: wire.OffsetFirst}
	fromNone  = wire.OffsetSpec{}
)

// becomes wants a ConsumerUpdate and answers it.
func (p *peer) becomes(id uint8, active bool, from wire.OffsetSpec) {
	p.t.Helper()
	p.answers(p.isTold(id, active), from)
	if from.Type == wire.OffsetNext { // behind this answer it is attached
		p.ask(&wire.Metadata{Correlation: p.next()})
	}
}

// isTold wants a ConsumerUpdate.
func (p *peer) isTold(id uint8, active bool) *wire.ConsumerUpdate {
	p.t.Helper()
	u, ok := p.await(wire.KeyConsumerUpdate).(*wire.ConsumerUpdate)
	if !ok || u.SubscriptionID != id || u.Active != active {
		p.t.Fatalf("told %+v, want subscription %d, active %t", u, id, active)
	}
	return u
}

func (p *peer) answers(u *wire.ConsumerUpdate, from wire.OffsetSpec) {
	p.t.Helper()
	p.send(&wire.ConsumerUpdateResponse{Correlation: u.Correlation, Code: wire.CodeOK, Offset: from})
}

// joins subscribes as a member of the group "app".
func (p *peer) joins(id uint8, stream string, more ...string) {
	p.t.Helper()
	properties := append([]string{"single-active-consumer", "true", "name", "app"}, more...)
	if code := p.subscribe(id, stream, fromFirst, 10, properties...); code != wire.CodeOK {
		p.t.Fatalf("join: code %d", code)
	}
}

// groupHouse has a stream "s" with the messages "0" to "2", each a chunk.
func groupHouse(t *testing.T, change func(*broker.Config)) (*house, *peer) {
	t.Helper()
	h := serveReal(t, vfs.NewMem(), "data", change)
	p := h.open(t)
	p.create("s")
	p.declare(0, "", "s")
	for i := range 3 {
		p.says(i)
	}
	return h, p
}

func (p *peer) says(i int) {
	p.t.Helper()
	p.publish(0, uint64(i), fmt.Sprint(i))
	p.wantConfirms(0, uint64(i), 1)
}

func (p *peer) gets(id uint8, messages ...string) {
	p.t.Helper()
	for _, want := range messages {
		if d := p.wantDeliver(); d.id != id || strings.Join(d.messages, " ") != want {
			p.t.Fatalf("delivered %+v, want %q", d, want)
		}
	}
}

// roles shows a group's members by the order in which they joined.
func (h *house) roles() string {
	g, ok := h.View().Group("/", "s", "app")
	if !ok {
		return "none"
	}
	var words []string
	for _, m := range g.Members {
		words = append(words, string(m.Role))
	}
	return strings.Join(words, " ")
}

func (h *house) wantRoles(t *testing.T, want string) {
	t.Helper()
	eventually(t, "roles are "+want, func() bool { return h.roles() == want })
}

func TestGroup_oneAtATime(t *testing.T) {
	h, publisher := groupHouse(t, nil)
	a, b, c := h.open(t), h.open(t), h.open(t)
	a.joins(1, "s")
	a.becomes(1, true, wire.OffsetSpec{Type: wire.OffsetAt, Offset: 1})
	a.gets(1, "1", "2")
	b.joins(2, "s")
	c.joins(3, "s")
	h.wantRoles(t, "active waiting waiting")
	publisher.says(3)
	a.gets(1, "3")
	b.wantSilence()
	c.wantSilence()
	a.wantCode(a.ask(&wire.Unsubscribe{Correlation: a.next(), SubscriptionID: 1}), wire.CodeOK)
	b.becomes(2, true, fromNone) // from what Subscribe said
	b.gets(2, "0", "1", "2", "3")
	a.wantSilence()
	c.wantSilence()
	b.Close() // without a word
	c.becomes(3, true, wire.OffsetSpec{Type: wire.OffsetNext})
	h.wantRoles(t, "active")
	publisher.says(4)
	c.gets(3, "4")
	c.Close()
	h.wantRoles(t, "none")
}

// A partition moves when a member joins: the one that had it answers first, and
// gets nothing more once it was told.
func TestGroup_partitionMoves(t *testing.T) {
	h := serveReal(t, vfs.NewMem(), "data", nil)
	p := h.open(t)
	p.wantCode(p.ask(&wire.CreateSuperStream{
		Correlation: p.next(), Name: "all", Partitions: wire.StringsOf("p", "s"), BindingKeys: wire.StringsOf("0", "1"),
	}), wire.CodeOK)
	p.declare(0, "", "s")
	p.says(0)
	a, b := h.open(t), h.open(t)
	a.joins(1, "s", "super-stream", "all")
	a.becomes(1, true, fromNone)
	a.gets(1, "0")
	b.joins(1, "s", "super-stream", "all")
	told := a.isTold(1, false)
	h.wantRoles(t, "deactivating waiting")
	p.says(1)
	b.wantSilence() // until the other has answered
	a.wantSilence()
	a.wantCode(a.ask(&wire.Credit{SubscriptionID: 1, Credit: 1}), wire.CodePreconditionFailed)
	// What it has read is there for the next one at once.
	a.send(&wire.StoreOffset{Reference: "app", Stream: "s", Offset: 0})
	if q, ok := b.ask(&wire.QueryOffset{Correlation: b.next(), Reference: "app", Stream: "s"}).(*wire.QueryOffsetResponse); !ok || q.Code != wire.CodeOK && q.Code != wire.CodeNoOffset {
		t.Fatalf("query: %+v", q)
	}
	a.answers(told, wire.OffsetSpec{Type: wire.OffsetLast}) // which means nothing here
	b.becomes(1, true, wire.OffsetSpec{Type: wire.OffsetAt, Offset: 1})
	h.wantRoles(t, "waiting active")
	b.gets(1, "1")
	a.wantSilence()
	b.Close()
	a.becomes(1, true, fromNone)
	a.gets(1, "0", "1")
}

// Credit of one that waits is refused, and counts.
func TestGroup_creditWhileWaiting(t *testing.T) {
	h, _ := groupHouse(t, nil)
	a, b := h.open(t), h.open(t)
	a.joins(1, "s")
	a.becomes(1, true, fromNone)
	if code := b.subscribe(1, "s", fromFirst, 1, "single-active-consumer", "true", "name", "app"); code != wire.CodeOK {
		t.Fatal(code)
	}
	b.wantCode(b.ask(&wire.Credit{SubscriptionID: 1, Credit: 1}), wire.CodePreconditionFailed)
	a.Close()
	u := b.isTold(1, true)
	b.wantCode(b.ask(&wire.Credit{SubscriptionID: 1, Credit: 1}), wire.CodePreconditionFailed)
	b.answers(u, fromNone)
	b.gets(1, "0", "1", "2")
}

// All members of a dead connection leave together: none of them is chosen.
func TestGroup_severalOnAConnection(t *testing.T) {
	h, _ := groupHouse(t, nil)
	a, b := h.open(t), h.open(t)
	for id := range uint8(3) {
		a.skip[wire.KeyConsumerUpdate] = true
		a.joins(id, "s")
	}
	b.joins(9, "s")
	h.wantRoles(t, "active waiting waiting waiting")
	before := h.groupCommands()
	a.Close()
	b.becomes(9, true, fromNone)
	b.gets(9, "0", "1", "2")
	if n := h.groupCommands() - before; n != 1 {
		t.Errorf("leaving took %d commands", n)
	}
}

func (n *fakeNode) groupCommands() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.commands
}

// One that does not answer loses its turn and its connection; so does one that
// does not answer that it has stopped.
func TestGroup_unanswered(t *testing.T) {
	h, _ := groupHouse(t, func(c *broker.Config) { c.ConsumerUpdateTimeout = 300 * time.Millisecond })
	a, b := h.open(t), h.open(t)
	a.joins(1, "s")
	a.isTold(1, true)
	b.joins(1, "s")
	b.becomes(1, true, fromNone)
	b.gets(1, "0", "1", "2")
	a.wantEnd()
	h.wantRoles(t, "active")
	if n := h.broker.Stats().Unanswered; n != 1 {
		t.Errorf("%d connections are counted", n)
	}
	// With an answer in time nothing of it is left.
	c := h.open(t)
	c.joins(1, "s")
	b.wantCode(b.ask(&wire.Unsubscribe{Correlation: b.next(), SubscriptionID: 1}), wire.CodeOK)
	c.becomes(1, true, fromNone)
	c.gets(1, "0", "1", "2")
	quiet := time.NewTimer(700 * time.Millisecond)
	<-quiet.C
	c.wantCode(c.ask(&wire.Unsubscribe{Correlation: c.next(), SubscriptionID: 1}), wire.CodeOK)
}

func TestGroup_refused(t *testing.T) {
	h, _ := groupHouse(t, nil)
	p := h.open(t)
	p.wantCode(p.ask(&wire.CreateSuperStream{
		Correlation: p.next(), Name: "all", Partitions: wire.StringsOf("x", "y"), BindingKeys: wire.StringsOf("0", "1"),
	}), wire.CodeOK)
	h.permit(t, "guest", "/", ".*", ".*", ".*")
	p.joins(0, "y", "super-stream", "all")
	p.becomes(0, true, fromNone)
	for _, row := range []struct {
		name       string
		id         uint8
		stream     string
		properties []string
		want       wire.ResponseCode
	}{
		{"an id in use", 0, "y", []string{"single-active-consumer", "true", "name", "app", "super-stream", "all"}, wire.CodeSubscriptionIDExists},
		{"another partition index", 1, "y", []string{"single-active-consumer", "true", "name", "app"}, wire.CodePreconditionFailed},
		{"an unknown super stream is none", 1, "y", []string{"single-active-consumer", "true", "name", "app", "super-stream", "?"}, wire.CodePreconditionFailed},
		{"no name", 1, "s", []string{"single-active-consumer", "true"}, wire.CodePreconditionFailed},
		{"a name that is no text", 1, "s", []string{"single-active-consumer", "true", "name", "\xff"}, wire.CodePreconditionFailed},
		{"no stream", 1, "none", []string{"single-active-consumer", "true", "name", "app"}, wire.CodeStreamDoesNotExist},
		{"an empty name is a name", 1, "s", []string{"single-active-consumer", "true", "name", ""}, wire.CodeOK},
	} {
		t.Run(row.name, func(t *testing.T) {
			if got := p.subscribe(row.id, row.stream, fromFirst, 10, row.properties...); got != row.want {
				t.Errorf("code %d, want %d", got, row.want)
			}
		})
	}
	p.becomes(1, true, fromNone)
	p.gets(1, "0", "1", "2")
	// A refused one has left nothing behind: its id is free.
	p.skip[wire.KeyConsumerUpdate] = true // of the first, whose partition moves
	if code := p.subscribe(2, "y", fromFirst, 1, "single-active-consumer", "true", "name", "app", "super-stream", "all"); code != wire.CodeOK {
		t.Errorf("after the refusals: %d", code)
	}
}

// Answers that nothing waits for, late ones and repeated ones change nothing.
func TestGroup_strangeAnswers(t *testing.T) {
	h, publisher := groupHouse(t, nil)
	a := h.open(t)
	a.send(&wire.ConsumerUpdateResponse{Correlation: 0, Code: wire.CodeOK, Offset: fromFirst}) // before anything
	a.joins(1, "s")
	u := a.isTold(1, true)
	a.send(&wire.ConsumerUpdateResponse{Correlation: 77, Code: wire.CodeOK, Offset: fromFirst})
	a.wantSilence()
	// An error is an answer all the same.
	a.send(&wire.ConsumerUpdateResponse{Correlation: u.Correlation, Code: wire.CodeInternalError, Offset: wire.OffsetSpec{Type: wire.OffsetAt, Offset: 2}})
	a.gets(1, "2")
	a.answers(u, fromFirst) // again
	a.wantSilence()
	publisher.says(3)
	a.gets(1, "3")
	h.wantRoles(t, "active")

	// Unsubscribed while it was asked; the late answer is nobody's.
	b := h.open(t)
	b.joins(5, "s")
	a.Close()
	u = b.isTold(5, true)
	b.wantCode(b.ask(&wire.Unsubscribe{Correlation: b.next(), SubscriptionID: 5}), wire.CodeOK)
	b.answers(u, fromFirst)
	b.wantSilence()
	h.wantRoles(t, "none")
	b.joins(5, "s") // the same id is another member
	b.becomes(5, true, wire.OffsetSpec{Type: wire.OffsetLast})
	b.gets(5, "3")

	// An offset type that there is not ends the connection.
	c := h.open(t)
	c.joins(1, "s")
	c.write([]byte{0, 0, 0, 12, 0x80, 0x1a, 0, 1, 0, 0, 0, 0, 0, 1, 0, 6})
	c.wantClose(wire.CodeUnknownFrame)
	h.wantRoles(t, "active")
}

// The answer to an activation that was taken back meanwhile does not count.
func TestGroup_takenBackWhileAsked(t *testing.T) {
	h := serveReal(t, vfs.NewMem(), "data", nil)
	p := h.open(t)
	p.wantCode(p.ask(&wire.CreateSuperStream{
		Correlation: p.next(), Name: "all", Partitions: wire.StringsOf("p", "s"), BindingKeys: wire.StringsOf("0", "1"),
	}), wire.CodeOK)
	p.declare(0, "", "s")
	p.says(0)
	a, b := h.open(t), h.open(t)
	a.joins(1, "s", "super-stream", "all")
	begin := a.isTold(1, true)
	b.joins(1, "s", "super-stream", "all")
	end := a.isTold(1, false)
	a.answers(begin, fromFirst)
	a.wantSilence()
	b.wantSilence()
	a.answers(end, fromNone)
	b.becomes(1, true, fromNone)
	b.gets(1, "0")
	a.wantSilence()
}

// An answer that comes before its question counts for nothing: the turn that the
// question is to follow may still be running.
func TestGroup_answersTooEarly(t *testing.T) {
	inVirtualTime(t, nil, func(t *testing.T, h *house, dial func() *peer) {
		open := func() *peer {
			p := dial()
			p.advance(5, "guest", "guest", &wire.Tune{})
			return p
		}
		p, a := open(), open()
		p.create("s")
		p.declare(0, "", "s")
		message := strings.Repeat("m", 200_000)
		for i := range 10 { // more than is cached: the first are sent from the file, in the turn itself
			p.publish(0, uint64(i), message)
			p.wantConfirms(0, uint64(i), 1)
		}
		p.subscribe(1, "s", fromFirst, 10)
		for range 10 {
			p.wantDeliver()
		}
		a.joins(1, "s")
		a.becomes(1, true, fromFirst) // and reads no more
		synctest.Wait()
		for i, reach := range []catalog.Reach{catalog.PresumedDown, catalog.Connected} {
			h.do(t, &catalog.ReachMembers{Node: nodeName, Reach: reach})
			synctest.Wait()
			a.send(&wire.ConsumerUpdateResponse{Correlation: uint32(i) + 1, Code: wire.CodeOK, Offset: fromFirst})
			synctest.Wait()
		}
		a.gets(1, message)
		a.becomes(1, false, fromNone)
		a.becomes(1, true, wire.OffsetSpec{Type: wire.OffsetAt, Offset: 8})
		a.gets(1, message, message)
	})
}

// A join that the metadata does not answer ends the connection: nobody knows
// whether it is in.
func TestGroup_joinUnknown(t *testing.T) {
	h, _ := groupHouse(t, func(c *broker.Config) { c.RequestTimeout = 200 * time.Millisecond })
	a := h.open(t)
	h.groupHold.Lock()
	a.send(&wire.Subscribe{Correlation: 1, SubscriptionID: 1, Stream: "s", Offset: fromFirst, Credit: 10,
		Properties: wire.PropertiesOf("single-active-consumer", "true", "name", "app")})
	a.wantEnd()
	h.groupHold.Unlock()
	h.wantRoles(t, "none") // it joined and left
	b := h.open(t)
	h.mu.Lock()
	h.fakeNode.broken = errors.New("no metadata")
	h.mu.Unlock()
	b.send(&wire.Subscribe{Correlation: 1, SubscriptionID: 1, Stream: "s", Offset: fromFirst, Credit: 10,
		Properties: wire.PropertiesOf("single-active-consumer", "true", "name", "app")})
	b.wantEnd()
}

// Members of an earlier run of this node leave; one that somebody took out, and
// that lives, joins again.
func TestGroup_inLineWithTheCatalog(t *testing.T) {
	h, publisher := groupHouse(t, nil)
	dead := catalog.MemberID{Connection: "of another run", Subscription: 1}
	dead.Node = nodeName
	ref := catalog.GroupRef{VHost: "/", Stream: "s", Name: "app"}
	h.do(t, &catalog.JoinGroup{Group: ref, Partition: catalog.Plain, Member: dead})
	h.wantRoles(t, "none")
	h.do(t, &catalog.JoinGroup{Group: ref, Partition: catalog.Plain, Member: dead})
	a := h.open(t)
	a.joins(1, "s")
	a.becomes(1, true, wire.OffsetSpec{Type: wire.OffsetLast})
	a.gets(1, "2")
	g, _ := h.View().Group("/", "s", "app")
	h.do(t, &catalog.LeaveGroups{Node: nodeName, Connections: []string{g.Members[0].Connection}})
	a.becomes(1, false, fromNone)
	a.becomes(1, true, wire.OffsetSpec{Type: wire.OffsetNext})
	publisher.says(3)
	a.gets(1, "3")
	h.wantRoles(t, "active")
}

// A node out of contact delivers to no member before others go on without it,
// and goes on where it stopped when it is back.
func TestGroup_outOfContact(t *testing.T) {
	h, publisher := groupHouse(t, nil)
	a, plain := h.open(t), h.open(t)
	a.joins(1, "s")
	a.becomes(1, true, fromNone)
	a.gets(1, "0", "1", "2")
	plain.subscribe(1, "s", wire.OffsetSpec{Type: wire.OffsetNext}, 10)
	h.setContact(6 * time.Second)
	publisher.says(3)
	plain.gets(1, "3")
	a.wantSilence()
	h.setContact(0)
	a.gets(1, "3")

	// Presumed down, it gets nothing though its node is in contact again and does
	// not know of that yet; then it is told to stop.
	h.setContact(6 * time.Second)
	publisher.says(4)
	plain.gets(1, "4")
	a.wantSilence()
	h.lag(&catalog.ReachMembers{Node: nodeName, Reach: catalog.PresumedDown})
	h.setContact(0)
	quiet := time.NewTimer(600 * time.Millisecond) // longer than it takes to look
	<-quiet.C
	a.wantSilence()
	h.catchesUp(t)
	a.becomes(1, false, fromNone)
	a.wantSilence()
	h.do(t, &catalog.ReachMembers{Node: nodeName, Reach: catalog.Connected})
	a.becomes(1, true, wire.OffsetSpec{Type: wire.OffsetLast})
	a.gets(1, "4")
}

// A member that begins while its node catches up is delivered to once that is done,
// though nothing is published any more.
func TestGroup_beginsWhileCatchingUp(t *testing.T) {
	h, _ := groupHouse(t, nil)
	entered, caughtUp := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(caughtUp) })
	var once sync.Once
	h.mu.Lock()
	h.fakeNode.catchingUp = func() { once.Do(func() { close(entered); <-caughtUp }) }
	h.mu.Unlock()
	h.setContact(6 * time.Second)
	<-entered
	h.setContact(0)
	a := h.open(t)
	a.joins(1, "s")
	a.becomes(1, true, fromFirst)
	a.wantSilence()
	caughtUp <- struct{}{}
	a.gets(1, "0", "1", "2")
}

// The end of a stream, or of the right to read it, is the end of its members.
func TestGroup_endsWithStreamAndRight(t *testing.T) {
	h, publisher := groupHouse(t, nil)
	a := h.open(t)
	a.joins(1, "s")
	a.becomes(1, true, wire.OffsetSpec{Type: wire.OffsetNext})
	h.permit(t, "guest", "/", ".*", ".*", "^other$")
	if u := a.await(wire.KeyMetadataUpdate).(*wire.MetadataUpdate); u.Stream != "s" {
		t.Fatalf("%+v", u)
	}
	h.wantRoles(t, "none")
	h.permit(t, "guest", "/", ".*", ".*", ".*")
	a.joins(1, "s")
	a.becomes(1, true, wire.OffsetSpec{Type: wire.OffsetNext})
	publisher.skip[wire.KeyMetadataUpdate] = true
	publisher.wantCode(publisher.ask(&wire.Delete{Correlation: publisher.next(), Stream: "s"}), wire.CodeOK)
	a.await(wire.KeyMetadataUpdate)
	a.wantCode(a.ask(&wire.Unsubscribe{Correlation: a.next(), SubscriptionID: 1}), wire.CodeSubscriptionIDDoesNotExist)
}
