package broker_test

import (
	"encoding/hex"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// entryNode is the node whose clients' commands are forwarded.
const entryNode = "n2"

// twoNodes is a broker over the leading replicas, and one without any, which
// forwards to it.
type twoNodes struct {
	*house        // the entry node
	leader *house // nodeName
	wire   *fakeLink
}

func serveTwo(t *testing.T, change func(*broker.Config)) *twoNodes {
	t.Helper()
	leader := serve(t, change)
	link := &fakeLink{leader: leader.broker, open: true, waiting: map[int]func(broker.Status, []byte, error){}}
	entry := startPeer(t, leader.fakeNode, noReplicas{}, link, func(c *broker.Config) {
		c.NodeName = entryNode
		if change != nil {
			change(c)
		}
	})
	entry.fakeNode = leader.fakeNode
	link.entry = entry.broker
	return &twoNodes{entry, leader, link}
}

type noReplicas struct{}

func (noReplicas) Replica(chunk.Incarnation) (broker.Replica, bool) { return nil, false }

// fakeLink carries requests from the entry node to the leader's at once, unless
// a test cuts it or holds it up.
type fakeLink struct {
	entry, leader *broker.Broker

	mu      sync.Mutex // guards all below
	open    bool
	holding bool // answers, until the link is cut
	busy    int  // how many requests are refused for want of room
	count   int  // of requests
	heard   int  // of answers
	waiting map[int]func(broker.Status, []byte, error)
	methods map[broker.Method]int
}

func (l *fakeLink) Ask(
	_ string, method broker.Method, body []byte, _ time.Time, done func(broker.Status, []byte, error),
) error {
	l.mu.Lock()
	defer l.mu.Unlock() // in the order asked
	switch {
	case !l.open:
		return broker.ErrPeerGone
	case l.busy > 0:
		l.busy--
		return broker.ErrPeerBusy
	}
	l.count++
	if l.methods == nil {
		l.methods = map[broker.Method]int{}
	}
	l.methods[method]++
	id := l.count
	l.waiting[id] = done
	l.leader.ServePeer(entryNode, method, append([]byte(nil), body...), func(status broker.Status, answer []byte) {
		go l.answer(id, status, answer)
	})
	return nil
}

func (l *fakeLink) answer(id int, status broker.Status, body []byte) {
	l.mu.Lock()
	done := l.waiting[id]
	if l.holding {
		done = nil
	} else {
		delete(l.waiting, id)
	}
	l.mu.Unlock()
	if done != nil {
		done(status, body, nil)
		l.mu.Lock()
		l.heard++
		l.mu.Unlock()
	}
}

// answered tells whether the entry node has heard all answers.
func (l *fakeLink) answered() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.heard == l.count
}

// cut breaks the link; what waits gets no answer. It stays so until mend.
func (l *fakeLink) cut() {
	l.mu.Lock()
	lost := l.waiting
	l.open, l.holding, l.waiting = false, false, map[int]func(broker.Status, []byte, error){}
	l.mu.Unlock()
	for _, done := range lost {
		done(0, nil, broker.ErrPeerGone)
	}
	l.leader.PeerGone(entryNode)
	l.entry.PeerGone(nodeName)
}

// hold has no request answered until the link is cut.
func (l *fakeLink) hold() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.holding = true
}

func (l *fakeLink) mend() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open = true
}

func (l *fakeLink) refuse(n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.busy = n
}

func (l *fakeLink) asked(method broker.Method) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.methods[method]
}

// created makes a stream by way of the leader's node.
func (n *twoNodes) created(t *testing.T, stream string) {
	t.Helper()
	n.leader.open(t).create(stream)
}

func TestForward_publishesAndAsks(t *testing.T) {
	n := serveTwo(t, nil)
	n.created(t, "s")
	p, reader := n.open(t), n.leader.open(t)
	if code := p.declare(3, "r", "s"); code != wire.CodeOK {
		t.Fatalf("declare: %s", code)
	}
	p.publish(3, 1, "a", "b", "c")
	p.wantConfirms(3, 1, 3)
	p.publish(3, 2, "b", "c", "d") // two are there already
	p.wantConfirms(3, 2, 3)
	if code := p.declare(4, "", "s"); code != wire.CodeOK {
		t.Fatalf("declare without a name: %s", code)
	}
	p.publish(4, 1, "e")
	p.wantConfirms(4, 1, 1)
	var b wire.PublishBuilder
	b.Begin(nil, 1, 4)
	b.AddSubBatch(2, 0, 2, 10, []byte{0, 0, 0, 1, 'x', 0, 0, 0, 1, 'y'})
	p.write(b.End())
	p.wantConfirms(4, 2, 1)
	b.Begin(nil, 2, 4)
	b.AddFiltered(3, "eu", []byte("f"))
	p.write(b.End())
	p.wantConfirms(4, 3, 1)

	reader.subscribe(0, "s", first, 100)
	var got []string
	records := uint32(0)
	for records < 8 {
		d := reader.wantDeliver()
		got, records = append(got, d.messages...), records+d.records
	}
	if text := strings.Join(got, ""); text != "abcdef" {
		t.Errorf("stored %q", text)
	}
	sequence := p.ask(&wire.QueryPublisherSequence{Correlation: 9, Reference: "r", Stream: "s"}).(*wire.QueryPublisherSequenceResponse)
	if sequence.Code != wire.CodeOK || sequence.Sequence != 4 {
		t.Errorf("sequence: %+v", sequence)
	}
	unknown := p.ask(&wire.QueryPublisherSequence{Correlation: 9, Reference: "nobody", Stream: "s"}).(*wire.QueryPublisherSequenceResponse)
	if unknown.Code != wire.CodeOK || unknown.Sequence != 0 {
		t.Errorf("sequence of nobody: %+v", unknown)
	}
	p.wantCode(p.ask(&wire.DeletePublisher{Correlation: p.next(), PublisherID: 3}), wire.CodeOK)
	p.publish(3, 9, "late")
	p.wantErrors(3, wire.CodePublisherDoesNotExist, 9)
}

func TestForward_offsets(t *testing.T) {
	n := serveTwo(t, nil)
	n.created(t, "s")
	p, other := n.open(t), n.leader.open(t)
	query := func(p *peer, reference string) *wire.QueryOffsetResponse {
		return p.ask(&wire.QueryOffset{Correlation: p.next(), Reference: reference, Stream: "s"}).(*wire.QueryOffsetResponse)
	}
	p.wantCode(query(p, "r"), wire.CodeNoOffset)
	const stores = 5000
	for i := range stores {
		p.send(&wire.StoreOffset{Reference: fmt.Sprint("r", i%7), Stream: "s", Offset: uint64(i)})
	}
	for i := range 7 {
		want := uint64(stores - 1 - (stores-1-i)%7)
		for _, from := range []*peer{p, other} { // the first sends what waits
			if got := query(from, fmt.Sprint("r", i)); got.Code != wire.CodeOK || got.Offset != want {
				t.Fatalf("r%d: %+v, want %d", i, got, want)
			}
		}
	}
	// While a request is under way, later values of a reference replace earlier
	// ones; answers here come at once, so there are many requests all the same.
	if got := n.wire.asked(6); got == 0 || got > stores {
		t.Errorf("%d requests for %d stores", got, stores)
	}
}

// TestForward_offsetsThroughAFullLink: a query does not overtake a store of the same
// connection that the link had no room for.
func TestForward_offsetsThroughAFullLink(t *testing.T) {
	n := serveTwo(t, nil)
	n.created(t, "s")
	p := n.open(t)
	for offset := uint64(1); offset <= 20; offset++ {
		n.wire.refuse(3)
		p.send(&wire.StoreOffset{Reference: "r", Stream: "s", Offset: offset})
		got := p.ask(&wire.QueryOffset{Correlation: p.next(), Reference: "r", Stream: "s"}).(*wire.QueryOffsetResponse)
		if got.Code != wire.CodeOK || got.Offset != offset {
			t.Fatalf("stored %d, answered %+v", offset, got)
		}
	}
}

func TestForward_takeoverAcrossNodes(t *testing.T) {
	n := serveTwo(t, nil)
	n.created(t, "s")
	older, newer := n.open(t), n.leader.open(t)
	older.declare(1, "r", "s")
	older.publish(1, 1, "a")
	older.wantConfirms(1, 1, 1)
	newer.declare(1, "r", "s")
	older.publish(1, 2, "late", "later")
	older.wantErrors(1, wire.CodePublisherDoesNotExist, 2, 3)
	newer.publish(1, 2, "b")
	newer.wantConfirms(1, 2, 1)
	// And back again.
	older.declare(1, "r", "s")
	newer.publish(1, 3, "late")
	newer.wantErrors(1, wire.CodePublisherDoesNotExist, 3)
	older.publish(1, 3, "c")
	older.wantConfirms(1, 3, 1)
}

// TestForward_endedSession: what a client had on the leader goes with it.
func TestForward_endedSession(t *testing.T) {
	n := serveTwo(t, nil)
	n.created(t, "s")
	p := n.open(t)
	p.declare(1, "r", "s")
	p.Close()
	eventually(t, "the leader forgets the publisher", func() bool { return n.wire.asked(3) == 1 })
}

// TestForward_lostLink: frames without an answer are neither confirmed nor
// refused, and the client is told once.
func TestForward_lostLink(t *testing.T) {
	n := serveTwo(t, nil)
	n.created(t, "s")
	p := n.open(t)
	p.declare(1, "r", "s")
	n.replica(t, "s").hold()
	p.publish(1, 1, "a")
	eventually(t, "the frame is under way", func() bool { return n.wire.asked(2) == 1 })
	n.wire.cut()
	p.publish(1, 2, "b") // is not even sent
	if update, ok := p.read().(*wire.MetadataUpdate); !ok || update.Stream != "s" {
		t.Fatalf("got %+v", update)
	}
	p.wantSilence()
	n.wire.mend()
	n.replica(t, "s").commit()
	if code := p.declare(1, "r", "s"); code != wire.CodeOK {
		t.Fatalf("declare again: %s", code)
	}
	p.publish(1, 1, "a", "b")
	p.wantConfirms(1, 1, 2)
	if held := n.broker.Stats().Unconfirmed; held != 0 {
		t.Errorf("%d bytes stay counted", held)
	}
	reader := n.leader.open(t)
	reader.subscribe(0, "s", first, 10)
	if d := reader.wantDeliver(); strings.Join(d.messages, "") != "a" {
		t.Errorf("first stored %q", d.messages)
	}
	if d := reader.wantDeliver(); strings.Join(d.messages, "") != "b" {
		t.Errorf("then stored %q", d.messages)
	}
}

// TestForward_newLeader: the client hears once, when the new leader is known,
// though the link broke before.
func TestForward_newLeader(t *testing.T) {
	n := serveTwo(t, func(c *broker.Config) { c.MetadataWait = time.Millisecond })
	n.created(t, "s")
	p := n.open(t)
	p.declare(1, "", "s")
	n.wire.cut()
	n.depose(t, "s")
	p.publish(1, 1, "a")
	p.wantSilence()
	n.wire.mend()
	n.elect(t, "s")
	if update, ok := p.read().(*wire.MetadataUpdate); !ok || update.Stream != "s" {
		t.Fatalf("got %+v", update)
	}
	if code := p.declare(1, "", "s"); code != wire.CodeOK {
		t.Fatalf("declare with the new leader: %s", code)
	}
	p.publish(1, 1, "a")
	p.wantConfirms(1, 1, 1)
	p.wantSilence()
}

// TestForward_waitsForTheLeader: a node that does not lead, or not yet, says so,
// and the command is tried again with newer metadata.
func TestForward_waitsForTheLeader(t *testing.T) {
	n := serveTwo(t, func(c *broker.Config) { c.MetadataWait = patience })
	n.created(t, "s")
	n.wire.cut()
	p := n.open(t)
	p.send(&wire.DeclarePublisher{Correlation: 7, PublisherID: 1, Stream: "s"})
	p.wantSilence()
	n.wire.mend()
	p.wantCode(p.read(), wire.CodeOK)
	n.wire.refuse(3)
	p.publish(1, 1, "a")
	p.wantConfirms(1, 1, 1)
}

// TestForward_places: a node without a replica answers where a stream begins and
// ends, and where a subscription would, as the leader does.
func TestForward_places(t *testing.T) {
	n := serveTwo(t, nil)
	n.created(t, "s")
	p, leader := n.open(t), n.leader.open(t)
	same := func(when string) {
		t.Helper()
		ask := func(p *peer) map[string]int64 {
			answer := p.ask(&wire.StreamStats{Correlation: 1, Stream: "s"}).(*wire.StreamStatsResponse)
			p.wantCode(answer, wire.CodeOK)
			got := map[string]int64{}
			for stat := range answer.Stats.All() {
				got[stat.Name] = stat.Value
			}
			return got
		}
		if got, want := ask(p), ask(leader); len(got) != 4 || !maps.Equal(got, want) {
			t.Errorf("%s: stats %v, the leader's %v", when, got, want)
		}
		for _, spec := range []wire.OffsetSpec{
			{Type: wire.OffsetFirst}, {Type: wire.OffsetLast}, {Type: wire.OffsetNext},
			{Type: wire.OffsetAt, Offset: 12}, {Type: wire.OffsetAt, Offset: 99}, {Type: wire.OffsetTimestamp, Timestamp: 1},
			{Type: wire.OffsetTimestamp, Timestamp: 1 << 60},
		} {
			ask := func(p *peer) uint64 {
				answer := p.ask(&wire.ResolveOffsetSpec{Correlation: 2, Stream: "s", Offset: spec}).(*wire.ResolveOffsetSpecResponse)
				p.wantCode(answer, wire.CodeOK)
				return answer.Offset
			}
			if got, want := ask(p), ask(leader); got != want {
				t.Errorf("%s: %+v is at %d, the leader says %d", when, spec, got, want)
			}
		}
	}
	same("empty")
	n.leader.fill(t, "s", 10)
	n.leader.fill(t, "s", 5)
	same("two chunks")
	if got := n.wire.asked(7); got != 2 {
		t.Errorf("the leader was asked %d times for the extent", got)
	}
	n.permit(t, "guest", "/", "", "", "")
	p.wantCode(p.ask(&wire.StreamStats{Correlation: 1, Stream: "s"}), wire.CodeAccessRefused)
	p.wantCode(p.ask(&wire.ResolveOffsetSpec{Correlation: 1, Stream: "s", Offset: first}), wire.CodeAccessRefused)
}

// TestForward_placesWaitForANode: with nobody to ask the answer is held, and then
// "not available"; never "does not exist".
func TestForward_placesWaitForANode(t *testing.T) {
	n := serveTwo(t, func(c *broker.Config) { c.MetadataWait = 20 * time.Millisecond })
	n.created(t, "s")
	p := n.open(t)
	n.goes(nodeName)
	p.wantCode(p.ask(&wire.StreamStats{Correlation: 1, Stream: "s"}), wire.CodeStreamNotAvailable)
	p.wantCode(p.ask(&wire.ResolveOffsetSpec{Correlation: 1, Stream: "s", Offset: first}), wire.CodeStreamNotAvailable)
	p.wantCode(p.ask(&wire.StreamStats{Correlation: 1, Stream: "none"}), wire.CodeStreamDoesNotExist)
	patient := serveTwo(t, func(c *broker.Config) { c.MetadataWait = patience })
	patient.created(t, "s")
	p = patient.open(t)
	patient.wire.cut()
	p.send(&wire.StreamStats{Correlation: 1, Stream: "s"})
	p.wantSilence()
	patient.wire.mend()
	p.wantCode(p.read(), wire.CodeOK)
}

// TestForward_noRights: rights are the entry node's to look at.
func TestForward_noRights(t *testing.T) {
	n := serveTwo(t, nil)
	n.created(t, "s")
	n.addUser(t, "ann", "pw")
	n.permit(t, "ann", "/", "", "", "")
	p := n.openAs(t, "ann", "pw", &wire.Tune{})
	if code := p.declare(1, "", "s"); code != wire.CodeAccessRefused {
		t.Errorf("declare: %s", code)
	}
	p.send(&wire.StoreOffset{Reference: "r", Stream: "s", Offset: 1})
	p.wantCode(p.ask(&wire.QueryOffset{Correlation: 1, Reference: "r", Stream: "s"}), wire.CodeAccessRefused)
	p.wantCode(p.ask(&wire.QueryPublisherSequence{Correlation: 1, Reference: "r", Stream: "s"}), wire.CodeAccessRefused)
	for method := range broker.Method(10) {
		if got := n.wire.asked(method); got != 0 {
			t.Errorf("method %d was asked for %d times", method, got)
		}
	}
}

// TestForward_refusals: what the leader refuses is told as if it were here.
func TestForward_refusals(t *testing.T) {
	for err, code := range map[error]wire.ResponseCode{
		replication.ErrBacklog: wire.CodeStreamNotAvailable,
		replication.ErrEntry:   wire.CodePreconditionFailed,
		replication.ErrFenced:  wire.CodePublisherDoesNotExist,
	} {
		n := serveTwo(t, nil)
		n.created(t, "s")
		p := n.open(t)
		p.declare(1, "", "s")
		n.replica(t, "s").fail(err)
		p.publish(1, 1, "a", "b")
		p.wantErrors(1, code, 1, 2)
	}
}

// TestForward_stopsReading: with as many frames unanswered as one stream may
// have, the session reads no more, and loses nothing; other streams go on.
func TestForward_stopsReading(t *testing.T) {
	n := serveTwo(t, nil)
	n.created(t, "s")
	n.created(t, "t")
	p, q := n.open(t), n.open(t)
	p.declare(1, "", "s")
	q.declare(1, "", "t")
	n.replica(t, "s").hold()
	const frames = 300
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		for i := range frames {
			p.publish(1, uint64(i), "m")
		}
	}()
	eventually(t, "the connection is blocked", func() bool { return n.broker.Stats().Blocked == 1 })
	if got := n.wire.asked(2); got != 128 {
		t.Errorf("%d frames are under way", got)
	}
	q.publish(1, 1, "m")
	q.wantConfirms(1, 1, 1)
	n.replica(t, "s").commit()
	p.wantConfirms(1, 0, frames)
	<-sent
}

// TestForward_alarmOnTheLeader: publishers of other nodes are held up as those
// here, and go on in order.
func TestForward_alarmOnTheLeader(t *testing.T) {
	n := serveTwo(t, nil)
	n.created(t, "s")
	p := n.open(t)
	p.declare(1, "", "s")
	n.leader.broker.SetAlarm("disk", true)
	p.publish(1, 1, "a")
	p.publish(1, 2, "b")
	p.wantSilence()
	if code := n.open(t).declare(1, "", "s"); code != wire.CodePreconditionFailed {
		t.Errorf("declare under an alarm: %s", code)
	}
	n.leader.broker.SetAlarm("disk", false)
	p.wantConfirms(1, 1, 2)
}

// TestForward_alarmOutlivesTheLink: what waits for an alarm's end goes with the
// link that it came by, since nobody waits for it any more.
func TestForward_alarmOutlivesTheLink(t *testing.T) {
	n := serveTwo(t, nil)
	n.created(t, "s")
	p, q := n.open(t), n.leader.open(t)
	p.declare(1, "", "s")
	q.declare(1, "", "s")
	n.leader.broker.SetAlarm("disk", true)
	p.publish(1, 1, "lost")
	eventually(t, "the leader's node has it", func() bool { return n.wire.asked(2) == 1 })
	n.wire.cut()
	n.wire.mend()
	n.leader.broker.SetAlarm("disk", false)
	q.publish(1, 1, "kept")
	q.wantConfirms(1, 1, 1)
	if _, next := n.replica(t, "s").Committed(); next != 1 {
		t.Errorf("%d messages are stored, want 1", next)
	}
}

// TestServePeer_badRequests: another node's nonsense is answered, and changes
// nothing.
func TestServePeer_badRequests(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	p.create("s")
	s, _ := h.View().Stream("/", "s")
	stream, epoch := fmt.Sprintf("%016x", uint64(s.Incarnation)), fmt.Sprintf("%016x", uint64(s.Epoch))
	const number = "0000000000000001"
	ask := func(method broker.Method, text string) broker.Status {
		t.Helper()
		body, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		answer := make(chan broker.Status, 2)
		h.broker.ServePeer("n2", method, body, func(status broker.Status, _ []byte) { answer <- status })
		select {
		case status := <-answer:
			return status
		case <-time.After(patience):
			t.Fatal("no answer")
			return 0
		}
	}
	const (
		done, notLeader, noPublisher, malformed = 0, 1, 8, 9
		empty                                   = "0000000000000000"
	)
	for _, c := range []struct {
		name   string
		method broker.Method
		body   string
		want   broker.Status
	}{
		{"no method", 0, "", malformed},
		{"unknown method", 99, "00", malformed},
		{"declare without a body", 1, "", malformed},
		{"declare cut in the text", 1, stream + epoch + number + "0561", malformed},
		{"declare with bytes behind", 1, stream + epoch + number + "016100", malformed},
		{"declare on no stream", 1, empty + epoch + number + "00", notLeader},
		{"declare in another epoch", 1, stream + "00000000000000ff" + number + "00", notLeader},
		{"declare", 1, stream + epoch + number + "0161", done},
		{"declare the same number", 1, stream + epoch + number + "0161", malformed},
		{"publish without a body", 2, "", malformed},
		{"publish no entries", 2, number + "00000000" + "0002000101 00000000", malformed},
		{"publish a cut frame", 2, number + "00000001" + "0002000101 00000001 0000000000000001 00000005 61", malformed},
		{"publish another count", 2, number + "00000002" + "0002000101 00000001 0000000000000001 00000001 61", malformed},
		{"publish as nobody", 2, empty + "00000001" + "0002000101 00000001 0000000000000001 00000001 61", noPublisher},
		{"publish", 2, number + "00000001" + "0002000101 00000001 0000000000000001 00000001 61", done},
		{"close half a number", 3, "00000000", malformed},
		{"close nobody", 3, empty, done},
		{"sequence cut", 4, stream + epoch, malformed},
		{"sequence of no stream", 4, empty + epoch + "0161", notLeader},
		{"sequence", 4, stream + epoch + "0161", done},
		{"offset cut", 5, stream + epoch + "0261", malformed},
		{"offset", 5, stream + epoch + "0161", done},
		{"extent cut", 7, "00000000", malformed},
		{"extent with bytes behind", 7, stream + "00", malformed},
		{"extent of no stream", 7, empty, notLeader},
		{"extent", 7, stream, done},
		{"place cut", 8, stream + "04", malformed},
		{"place of no kind", 8, stream + "06" + empty, malformed},
		{"place of kind 0", 8, stream + "00" + empty, malformed},
		{"first place with an offset", 8, stream + "01" + number, malformed},
		{"place on no stream", 8, empty + "01" + empty, notLeader},
		{"place", 8, stream + "04" + number, done},
		{"store cut", 6, stream + number, malformed},
		{"store on no stream", 6, empty + epoch + empty + number + "0161", notLeader},
		{"store without a place", 6, stream + epoch + number + "0161", malformed},
		{"store", 6, stream + epoch + empty + number + "0161", done},
	} {
		if got := ask(c.method, c.body); got != c.want {
			t.Errorf("%s: status %d, want %d", c.name, got, c.want)
		}
	}
	h.broker.PeerGone("n2")
	if got := ask(2, number+"00000001"+"0002000101 00000001 0000000000000002 00000001 61"); got != noPublisher {
		t.Errorf("publish after the link broke: status %d", got)
	}
}
