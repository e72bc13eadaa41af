package broker_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/wire"
)

// patience bounds what should happen at once.
const patience = 10 * time.Second

// house is a broker on a real socket, over a fake node.
type house struct {
	*fakeNode
	directory broker.Directory
	broker    *broker.Broker
	addr      string
}

func serve(t testing.TB, change func(*broker.Config)) *house {
	t.Helper()
	return serveOn(t, vfs.NewMem(), "data", change)
}

func serveOn(t testing.TB, fs vfs.FS, dir string, change func(*broker.Config)) *house {
	t.Helper()
	node := newFakeNode(t, fs, dir)
	h := startBroker(t, node, node, change)
	h.fakeNode = node
	return h
}

func startBroker(t testing.TB, directory broker.Directory, replicas broker.Replicas, change func(*broker.Config)) *house {
	t.Helper()
	return startPeer(t, directory, replicas, nil, change)
}

func startPeer(
	t testing.TB, directory broker.Directory, replicas broker.Replicas, peers broker.Peers, change func(*broker.Config),
) *house {
	t.Helper()
	config := broker.Config{NodeName: nodeName, FailedLoginDelay: 50 * time.Millisecond}
	if change != nil {
		change(&config)
	}
	b, err := broker.New(config, directory, replicas, peers)
	if err != nil {
		t.Fatal(err)
	}
	listener := listen(t)
	served := make(chan error, 1)
	go func() { served <- b.Serve(listener) }()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := b.Close(ctx); err != nil {
			t.Errorf("close: %v", err)
		}
		if err := <-served; !errors.Is(err, broker.ErrClosed) {
			t.Errorf("serve: %v", err)
		}
	})
	return &house{directory: directory, broker: b, addr: listener.Addr().String()}
}

func listen(t testing.TB) net.Listener {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// peer is a client that sends any frame and looks at each one that comes.
type peer struct {
	*client.Raw
	t           testing.TB
	correlation uint32
	skip        map[wire.Key]bool // what ask passes over
	skipped     []wire.Command
	reset       func()    // of openTCP: ends by RST
	slow        *slowConn // of a connection in virtual time
}

// dial connects and says nothing.
func (h *house) dial(t testing.TB) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", h.addr)
	if err != nil {
		t.Fatal(err)
	}
	return newPeer(t, conn)
}

func newPeer(t testing.TB, conn net.Conn) *peer {
	p := &peer{Raw: client.NewRaw(conn), t: t, skip: map[wire.Key]bool{}}
	p.SetDeadline(time.Now().Add(patience))
	t.Cleanup(func() { p.Close() })
	return p
}

// open connects up to Open, as guest on the virtual host /.
func (h *house) open(t testing.TB) *peer {
	t.Helper()
	return h.openAs(t, "guest", "guest", &wire.Tune{FrameMax: 1 << 20, Heartbeat: 60})
}

func (h *house) openAs(t testing.TB, user, password string, tune *wire.Tune) *peer {
	t.Helper()
	p := h.dial(t)
	p.advance(5, user, password, tune)
	return p
}

// advance goes so many steps of the handshake: PeerProperties, SaslHandshake,
// SaslAuthenticate, Tune, Open.
func (p *peer) advance(steps int, user, password string, tune *wire.Tune) {
	p.t.Helper()
	if steps > 0 {
		p.ask(&wire.PeerProperties{Correlation: p.next(), Properties: wire.PropertiesOf("connection_name", "peer")})
	}
	if steps > 1 {
		p.ask(&wire.SaslHandshake{Correlation: p.next()})
	}
	if steps > 2 {
		p.wantCode(p.ask(plain(p.next(), user, password)), wire.CodeOK)
		if _, ok := p.read().(*wire.Tune); !ok {
			p.t.Fatal("no Tune after the login")
		}
	}
	if steps > 3 {
		p.send(tune)
	}
	if steps > 4 {
		opened, ok := p.ask(&wire.Open{Correlation: p.next(), VirtualHost: "/"}).(*wire.OpenResponse)
		if !ok || opened.Code != wire.CodeOK {
			p.t.Fatalf("open: %+v", opened)
		}
	}
}

func plain(correlation uint32, user, password string) *wire.SaslAuthenticate {
	return &wire.SaslAuthenticate{
		Correlation: correlation, Mechanism: "PLAIN", Data: []byte("\x00" + user + "\x00" + password),
	}
}

func (p *peer) next() uint32 {
	p.correlation++
	return p.correlation
}

func (p *peer) send(commands ...wire.Command) {
	p.t.Helper()
	if err := p.Send(commands...); err != nil {
		p.t.Fatal(err)
	}
}

func (p *peer) write(b []byte) {
	p.t.Helper()
	if _, err := p.Write(b); err != nil {
		p.t.Fatal(err)
	}
}

// read returns the next command; a Deliver's chunk is copied.
func (p *peer) read() wire.Command {
	p.t.Helper()
	c, err := p.NextCommand()
	if err != nil {
		p.t.Fatalf("read: %v", err)
	}
	if d, ok := c.(*wire.Deliver); ok {
		d.Chunk = append([]byte(nil), d.Chunk...)
	}
	return c
}

// ask sends a request and returns its answer. What comes in between must be of
// the keys in skip.
func (p *peer) ask(request wire.Command) wire.Command {
	p.t.Helper()
	p.send(request)
	return p.await(request.Key().Answer())
}

func (p *peer) await(key wire.Key) wire.Command {
	p.t.Helper()
	for {
		c := p.read()
		if c.Key() == key {
			return c
		}
		if !p.skip[c.Key()] {
			p.t.Fatalf("waiting for %s, got %+v", key, c)
		}
		p.skipped = append(p.skipped, c)
	}
}

func (p *peer) wantCode(answer wire.Command, want wire.ResponseCode) {
	p.t.Helper()
	if got := codeIn(answer); got != want {
		p.t.Fatalf("%s: code %d, want %d", answer.Key(), got, want)
	}
}

func codeIn(answer wire.Command) wire.ResponseCode {
	switch a := answer.(type) {
	case *wire.Response:
		return a.Code
	case *wire.OpenResponse:
		return a.Code
	case *wire.QueryOffsetResponse:
		return a.Code
	case *wire.QueryPublisherSequenceResponse:
		return a.Code
	case *wire.StreamStatsResponse:
		return a.Code
	case *wire.ResolveOffsetSpecResponse:
		return a.Code
	case *wire.CreditResponse:
		return a.Code
	case *wire.RouteResponse:
		return a.Code
	case *wire.PartitionsResponse:
		return a.Code
	case *wire.PeerPropertiesResponse:
		return a.Code
	case *wire.SaslHandshakeResponse:
		return a.Code
	case *wire.ExchangeCommandVersionsResponse:
		return a.Code
	}
	return 0
}

// wantEnd wants the broker to end the connection, nothing coming before.
func (p *peer) wantEnd() {
	p.t.Helper()
	c, err := p.NextCommand()
	if err == nil {
		p.t.Fatalf("got %s %+v, want the end of the connection", c.Key(), c)
	}
	if !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		p.t.Fatalf("end of the connection: %v", err)
	}
}

// wantClose wants the broker to ask for the end, and agrees.
func (p *peer) wantClose(code wire.ResponseCode) {
	p.t.Helper()
	for {
		c := p.read()
		if p.skip[c.Key()] {
			continue
		}
		asked, ok := c.(*wire.Close)
		if !ok || asked.Code != code || asked.Correlation != 1 {
			p.t.Fatalf("got %s %+v, want Close with code %d", c.Key(), c, code)
		}
		p.send(&wire.Response{To: wire.KeyClose, Correlation: asked.Correlation, Code: wire.CodeOK})
		p.wantEnd()
		return
	}
}

// wantSilence wants nothing to come for a moment.
func (p *peer) wantSilence() {
	p.t.Helper()
	p.SetDeadline(time.Now().Add(50 * time.Millisecond))
	defer p.SetDeadline(time.Now().Add(patience))
	if c, err := p.NextCommand(); !errors.Is(err, os.ErrDeadlineExceeded) {
		p.t.Fatalf("got %+v (%v), want silence", c, err)
	}
}

func (p *peer) create(stream string, arguments ...string) {
	p.t.Helper()
	p.wantCode(p.ask(&wire.Create{
		Correlation: p.next(), Stream: stream, Arguments: wire.PropertiesOf(arguments...),
	}), wire.CodeOK)
}

func (p *peer) declare(id uint8, reference, stream string) wire.ResponseCode {
	p.t.Helper()
	return codeIn(p.ask(&wire.DeclarePublisher{
		Correlation: p.next(), PublisherID: id, Reference: reference, Stream: stream,
	}))
}

func (p *peer) subscribe(id uint8, stream string, at wire.OffsetSpec, credit uint16, properties ...string) wire.ResponseCode {
	p.t.Helper()
	return codeIn(p.ask(&wire.Subscribe{
		Correlation: p.next(), SubscriptionID: id, Stream: stream, Offset: at, Credit: credit,
		Properties: wire.PropertiesOf(properties...),
	}))
}

// publish sends messages with publishing ids counting up from first.
func (p *peer) publish(id uint8, first uint64, messages ...string) {
	p.t.Helper()
	var b wire.PublishBuilder
	b.Begin(nil, 1, id)
	for i, message := range messages {
		b.Add(first+uint64(i), []byte(message))
	}
	p.write(b.End())
}

// wantConfirms wants exactly the publishing ids from first on, n of them, in
// any number of frames.
func (p *peer) wantConfirms(id uint8, first uint64, n int) {
	p.t.Helper()
	want := map[uint64]int{}
	for i := range n {
		want[first+uint64(i)]++
	}
	for len(want) > 0 {
		confirm, ok := p.await(wire.KeyPublishConfirm).(*wire.PublishConfirm)
		if !ok || confirm.PublisherID != id {
			p.t.Fatalf("got %+v, want a confirm of publisher %d", confirm, id)
		}
		for _, got := range confirm.IDs {
			if want[got] == 0 {
				p.t.Fatalf("confirm of %d, which is not due", got)
			}
			delete(want, got)
		}
	}
}

// wantErrors wants exactly the publishing ids refused with a code.
func (p *peer) wantErrors(id uint8, code wire.ResponseCode, ids ...uint64) {
	p.t.Helper()
	for len(ids) > 0 {
		refused, ok := p.await(wire.KeyPublishError).(*wire.PublishError)
		if !ok || refused.PublisherID != id {
			p.t.Fatalf("got %+v, want errors of publisher %d", refused, id)
		}
		for _, got := range refused.Errors {
			if len(ids) == 0 || got.ID != ids[0] || got.Code != code {
				p.t.Fatalf("got %+v, want %v with code %d", refused.Errors, ids, code)
			}
			ids = ids[1:]
		}
	}
}

// delivered is a Deliver frame taken apart.
type delivered struct {
	version  uint16
	id       uint8
	first    uint64
	records  uint32
	commit   uint64
	messages []string // of simple entries
}

func (p *peer) wantDeliver() delivered {
	p.t.Helper()
	d, ok := p.await(wire.KeyDeliver).(*wire.Deliver)
	if !ok {
		p.t.Fatal("no Deliver")
	}
	return takeApart(p.t, d)
}

func takeApart(t testing.TB, d *wire.Deliver) delivered {
	t.Helper()
	h, err := chunk.DecodeClient(d.Chunk)
	if err != nil {
		t.Fatal(err)
	}
	data := d.Chunk[chunk.ClientHeaderLength:]
	out := delivered{
		version: d.Version, id: d.SubscriptionID, commit: d.CommittedChunkID,
		first: uint64(h.BaseOffset), records: h.Records,
	}
	entries := h.EntriesIn(data)
	for entries.Next() {
		if e := entries.Entry(); !e.SubBatch {
			out.messages = append(out.messages, string(e.Body))
		}
	}
	if err := entries.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// eventually waits for a condition.
func eventually(t testing.TB, what string, holds func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-deadline:
			t.Fatalf("not after %s: %s", patience, what)
		case <-tick.C:
		}
	}
}
