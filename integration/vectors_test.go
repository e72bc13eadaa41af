package integration

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/client"
	"github.com/millrace/millrace/integration/harness"
	"github.com/millrace/millrace/wire"
)

const vectorsDir = "../wire/testdata/vectors"

// A capturedFrame is a frame of an exchange between a client and the
// reference broker, its four size bytes included.
type capturedFrame struct {
	fromClient bool
	bytes      []byte
}

// decoded is the frame as a command.
func (f capturedFrame) decoded() (wire.Command, error) {
	if f.fromClient {
		return wire.FromClient(f.bytes[wire.SizeSize:])
	}
	return wire.FromServer(f.bytes[wire.SizeSize:])
}

// exchange reads one captured exchange: what stands behind # is a comment, >
// and < begin a frame.
func exchange(t *testing.T, name string) []capturedFrame {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(vectorsDir, name+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	var frames []capturedFrame
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		for _, word := range strings.Fields(line) {
			if word == ">" || word == "<" {
				frames = append(frames, capturedFrame{fromClient: word == ">"})
				continue
			}
			part, err := hex.DecodeString(word)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			last := &frames[len(frames)-1]
			last.bytes = append(last.bytes, part...)
		}
	}
	return frames
}

// stage is how far a fresh connection has got before the exchange begins.
type stage int

const (
	dialled       stage = iota
	authenticates       // mechanisms were listed
	authenticated       // the server's Tune has come
	tuned               // and was answered
	opened
)

// replays are the connections, each with its exchanges in order. "setup:NAME"
// is what the captures leave out.
var replays = []struct {
	name      string
	from      stage
	exchanges []string
}{
	{"connecting", dialled, []string{"peer-properties-ok", "sasl-handshake-ok", "sasl-plain-ok", "tune-open-ok"}},
	{"open", tuned, []string{"open-ok"}},
	{"tune as a response", authenticated, []string{"tune-as-response"}},
	{"wrong password", authenticates, []string{"sasl-wrong-password"}},
	{"unknown mechanism", authenticates, []string{"sasl-unknown-mechanism"}},
	{"malformed credentials", authenticates, []string{"sasl-malformed"}},
	{"AMQPLAIN", authenticates, []string{"sasl-amqplain-ok"}},
	{"missing virtual host", tuned, []string{"open-missing-vhost"}},
	{"heartbeat", opened, []string{"heartbeat"}},
	{"streams", opened, []string{
		"exchange-versions-empty", "create-ok", "create-identical", "create-different", "create-empty-name", "create-bad-argument",
		"metadata", "metadata-empty", "stream-stats-empty", "stream-stats-missing", "create-super-stream-ok",
		"create-super-stream-exists", "partitions-ok", "partitions-missing", "route-ok", "route-no-match",
		"declare-publisher-ok", "declare-publisher-id-in-use", "declare-publisher-missing-stream", "publish-v1",
		"publish-unknown-publisher", "publish-sub-batch", "setup:filtered publisher", "publish-v2-filter", "publish-v2-no-filter",
		"setup:named publisher", "publish-duplicate", "query-sequence-ok", "query-sequence-unknown", "query-sequence-missing-stream",
		"delete-publisher-ok", "delete-publisher-unknown",
		"subscribe-first-deliver-v1", "subscribe-id-in-use", "subscribe-missing-stream", "subscribe-sac-without-name", "credit",
		"subscribe-offset-inside-chunk", "subscribe-timestamp", "subscribe-last", "deliver-filtered", "deliver-with-trailer-length",
		"unsubscribe-ok", "unsubscribe-unknown", "query-offset-none", "store-query-offset", "query-offset-missing-stream",
		"stream-stats", "delete-super-stream-ok", "delete-super-stream-missing", "reauthenticate-ok"}},
	{"deliver version 2", opened, []string{"exchange-versions-deliver-v2", "deliver-v2-two-messages"}},
	{"deliver version 1", opened, []string{
		"deliver-v1-two-messages", "setup:events publisher", "publish-three-messages", "delete-own-metadata-update", "delete-missing"}},
	{"close by the client", opened, []string{"close-by-client"}},
	{"close by the server", opened, []string{"close-by-server-unknown-command"}},
}

// setups are the commands that the captures do not show.
var setups = map[string]wire.Command{
	"filtered publisher": &wire.DeclarePublisher{Correlation: 1001, PublisherID: 1, Stream: "filtered"},
	"named publisher":    &wire.DeclarePublisher{Correlation: 1002, PublisherID: 2, Reference: "app", Stream: "named"},
	"events publisher":   &wire.DeclarePublisher{Correlation: 1003, PublisherID: 0, Stream: "events"},
}

// TestVectors sends every captured client frame to a running node and holds
// each answer against the reference's: same shape, same code.
func TestVectors(t *testing.T) {
	n := harness.Start(t)
	prepare(t, n)
	done := map[string]bool{}
	frames := 0
	for _, r := range replays {
		for _, name := range r.exchanges {
			if !strings.HasPrefix(name, "setup:") {
				done[name] = true
				frames += len(exchange(t, name))
			}
		}
		t.Run(r.name, func(t *testing.T) {
			if r.from < opened {
				t.Parallel() // refusals are withheld for seconds
			}
			replay := &replay{t: t, node: n, conn: connect(t, n, r.from)}
			for _, name := range r.exchanges {
				if what, is := strings.CutPrefix(name, "setup:"); is {
					replay.setup(setups[what])
					continue
				}
				replay.exchange(name)
			}
		})
	}
	t.Run("groups", func(t *testing.T) { replayGroups(t, n) })
	for _, name := range groupExchanges {
		done[name] = true
		frames += len(exchange(t, name))
	}
	files, err := filepath.Glob(filepath.Join(vectorsDir, "*.hex"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no captured exchanges: %v", err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".hex")
		if !done[name] {
			t.Errorf("%s is not replayed", name)
		}
	}
	t.Logf("FIGURE captured exchanges: %d of %d replayed against a running node (%d frames): answers of the same shape and code",
		len(done), len(files), frames)
}

// groupExchanges are those of single active consumers, in order.
var groupExchanges = []string{"sac-activation", "sac-credit-while-inactive", "sac-takeover", "sac-deactivation"}

// replayGroups repeats them: two members on connections of their own, of a plain
// stream and then of partition 1 of a super stream.
func replayGroups(t *testing.T, n *harness.Node) {
	conn, err := client.Dial(t.Context(), client.Config{Addr: n.Stream})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	pub, err := conn.DeclarePublisher(t.Context(), client.PublisherConfig{Stream: "groups"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := pub.Publish(client.WrapData(nil, []byte("hi"))); err != nil {
		t.Fatal(err)
	}
	if err := pub.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := conn.CreateSuperStream(t.Context(), "halves", []string{"halves-0", "halves-1"}, []string{"0", "1"}, nil); err != nil {
		t.Fatal(err)
	}
	member := func() *replay { return &replay{t: t, node: n, conn: connect(t, n, opened)} }
	join := func(r *replay, stream string, more ...string) {
		r.setup(&wire.Subscribe{
			Correlation: 1000, SubscriptionID: 0, Stream: stream, Offset: wire.OffsetSpec{Type: wire.OffsetFirst}, Credit: 10,
			Properties: wire.PropertiesOf(append(more, "single-active-consumer", "true", "name", "app")...),
		})
	}
	first, second := member(), member()
	first.exchange("sac-activation")
	join(second, "groups")
	second.exchange("sac-credit-while-inactive")
	first.conn.Close()
	second.exchange("sac-takeover")

	third, fourth := member(), member()
	join(third, "halves-1", "super-stream", "halves")
	begin, ok := third.next("activation", false).(*wire.ConsumerUpdate)
	if !ok || !begin.Active {
		t.Fatalf("the first of a partition is told %+v", begin)
	}
	if err := third.conn.Send(&wire.ConsumerUpdateResponse{Correlation: begin.Correlation, Code: wire.CodeOK}); err != nil {
		t.Fatal(err)
	}
	join(fourth, "halves-1", "super-stream", "halves")
	third.exchange("sac-deactivation")
	if begin, ok := fourth.next("activation", false).(*wire.ConsumerUpdate); !ok || !begin.Active {
		t.Fatalf("the second of a partition is told %+v", begin)
	}
}

// prepare makes the streams that the captures found there.
func prepare(t *testing.T, n *harness.Node) {
	t.Helper()
	conn, err := client.Dial(t.Context(), client.Config{Addr: n.Stream})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, name := range []string{"filtered", "named", "tracked", "events", "groups"} {
		if err := conn.Create(t.Context(), name, nil); err != nil {
			t.Fatalf("create %s: %v", name, err)
		}
	}
	pub, err := conn.DeclarePublisher(t.Context(), client.PublisherConfig{Stream: "events", FrameMessages: 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, body := range []string{"hi", "bye"} {
		if _, err := pub.Publish(client.WrapData(nil, []byte(body))); err != nil {
			t.Fatal(err)
		}
	}
	if err := pub.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// connect takes a fresh connection to a stage.
func connect(t *testing.T, n *harness.Node, to stage) *client.Raw {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	raw, err := client.DialRaw(ctx, n.Stream)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { raw.Close() })
	if err := raw.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	request := func(c wire.Command) {
		t.Helper()
		if _, err := raw.Request(c); err != nil {
			t.Fatalf("%s: %v", c.Key(), err)
		}
	}
	if to == opened {
		if _, err := raw.Handshake(client.Config{Heartbeat: time.Second, DeliverV1: true}); err != nil {
			t.Fatal(err)
		}
		return raw
	}
	if to >= authenticates {
		request(&wire.PeerProperties{Correlation: 1})
		request(&wire.SaslHandshake{Correlation: 2})
	}
	if to >= authenticated {
		request(&wire.SaslAuthenticate{Correlation: 3, Mechanism: "PLAIN", Data: []byte("\x00guest\x00guest")})
		if _, err := raw.NextCommand(); err != nil {
			t.Fatalf("the server's Tune: %v", err)
		}
	}
	if to >= tuned {
		if err := raw.Send(&wire.Tune{FrameMax: 1 << 20, Heartbeat: 60}); err != nil {
			t.Fatal(err)
		}
	}
	return raw
}

// replay is one connection on which exchanges are repeated.
type replay struct {
	t    *testing.T
	node *harness.Node
	conn *client.Raw
}

func (r *replay) setup(c wire.Command) {
	r.t.Helper()
	if err := r.conn.Send(c); err != nil {
		r.t.Fatal(err)
	}
	if answer := r.next(c.Key().String(), false); answer.(*wire.Response).Code != wire.CodeOK {
		r.t.Fatalf("%s: %v", c.Key(), answer)
	}
}

func (r *replay) exchange(name string) {
	r.t.Helper()
	for i, frame := range exchange(r.t, name) {
		if frame.fromClient {
			if _, err := r.conn.Write(frame.bytes); err != nil {
				r.t.Fatalf("%s: send frame %d: %v", name, i+1, err)
			}
			continue
		}
		want, err := frame.decoded()
		if err != nil {
			r.t.Fatalf("%s: frame %d: %v", name, i+1, err)
		}
		_, heartbeat := want.(*wire.Heartbeat)
		got := r.next(name, heartbeat)
		if problem := r.differs(got, want); problem != "" {
			r.t.Errorf("%s: frame %d: %s\n got %T %+v\nwant %T %+v", name, i+1, problem, got, got, want, want)
		}
	}
}

// next is the next command, heartbeats left out unless they are what is waited
// for. A chunk is copied: the frame is gone with the next one.
func (r *replay) next(name string, heartbeats bool) wire.Command {
	r.t.Helper()
	for {
		c, err := r.conn.NextCommand()
		if errors.Is(err, io.EOF) {
			r.t.Fatalf("%s: the node ended the connection", name)
		}
		if err != nil {
			r.t.Fatalf("%s: %v", name, err)
		}
		if _, is := c.(*wire.Heartbeat); is && !heartbeats {
			continue
		}
		if d, is := c.(*wire.Deliver); is {
			d.Chunk = append([]byte(nil), d.Chunk...)
		}
		return c
	}
}

// differs says how an answer differs in shape or code from the reference's.
// What the two may have their own of (names, times, figures) is left out.
func (r *replay) differs(got, want wire.Command) string {
	if fmt.Sprintf("%T", got) != fmt.Sprintf("%T", want) || got.Key() != want.Key() {
		return "another command"
	}
	switch want := want.(type) {
	case *wire.PeerPropertiesResponse:
		got := got.(*wire.PeerPropertiesResponse)
		return firstOf(same(got.Code, want.Code), lacks(got.Properties, "product", "version", "platform"))
	case *wire.OpenResponse:
		got := got.(*wire.OpenResponse)
		if want.Code != wire.CodeOK {
			return same(got.Code, want.Code)
		}
		return firstOf(same(got.Code, want.Code), lacks(got.Properties, "advertised_host", "advertised_port"))
	case *wire.SaslHandshakeResponse:
		got := got.(*wire.SaslHandshakeResponse)
		if !strings.Contains(strings.Join(got.Mechanisms.Slice(), " "), "PLAIN") {
			return "PLAIN is not offered"
		}
		return same(got.Code, want.Code)
	case *wire.Tune, *wire.Heartbeat:
		return ""
	case *wire.Close:
		return same(got.(*wire.Close).Code, want.Code)
	case *wire.Deliver:
		return sameChunk(got.(*wire.Deliver), want)
	case *wire.StreamStatsResponse:
		return sameStats(got.(*wire.StreamStatsResponse), want)
	case *wire.ExchangeCommandVersionsResponse:
		return sameVersions(got.(*wire.ExchangeCommandVersionsResponse), want)
	case *wire.MetadataResponse:
		return r.sameMetadata(got.(*wire.MetadataResponse), want)
	}
	return same(fmt.Sprintf("%+v", got), fmt.Sprintf("%+v", want))
}
