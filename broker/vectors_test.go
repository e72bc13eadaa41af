package broker_test

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/wire"
)

// The captured exchanges of wire/testdata/vectors, replayed against a running
// broker over real replicas: the client's frames are sent as captured, and the
// answers must have the same shape and code. What the captures' README names as
// different from run to run is left out of the comparison.

// exchange is one captured file.
type exchange struct {
	file string
	turn []turn
}

// turn is frames of the client and then of the server.
type turn struct{ sent, answered [][]byte }

func readExchange(t *testing.T, file string) exchange {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../wire/testdata/vectors", file+".hex"))
	if err != nil {
		t.Fatal(err)
	}
	e := exchange{file: file, turn: []turn{{}}}
	var digits strings.Builder
	fromClient := true
	finish := func() {
		if digits.Len() == 0 {
			return
		}
		frame, err := hex.DecodeString(digits.String())
		if err != nil {
			t.Fatal(err)
		}
		digits.Reset()
		now := &e.turn[len(e.turn)-1]
		switch {
		case !fromClient:
			now.answered = append(now.answered, frame)
		case len(now.answered) > 0:
			e.turn = append(e.turn, turn{sent: [][]byte{frame}})
		default:
			now.sent = append(now.sent, frame)
		}
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		for _, word := range strings.Fields(line) {
			if word == ">" || word == "<" {
				finish()
				fromClient = word == ">"
				continue
			}
			digits.WriteString(word)
		}
	}
	finish()
	return e
}

// replay sends what the client sent, and compares what comes.
func (p *peer) replay(file string) {
	p.t.Helper()
	for i, turn := range readExchange(p.t.(*testing.T), file).turn {
		for _, frame := range turn.sent {
			p.write(frame)
		}
		var want, got []string
		for _, frame := range turn.answered {
			command, err := wire.FromServer(frame[wire.SizeSize:])
			if err != nil {
				p.t.Fatalf("%s: %v", file, err)
			}
			want = append(want, shape(p.t, command))
			got = append(got, shape(p.t, p.read()))
		}
		// Frames that nobody asked for may stand between others.
		slices.Sort(want)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			p.t.Errorf("%s: turn %d: got\n%s\ncaptured\n%s", file, i+1, strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
	}
}

// shape is what of a server's frame does not differ from run to run.
func shape(t testing.TB, command wire.Command) string {
	t.Helper()
	switch c := command.(type) {
	case *wire.PeerPropertiesResponse:
		return fmt.Sprintf("%s %d %d %v", c.Key(), c.Correlation, c.Code, slices.Sorted(maps.Keys(c.Properties.Map())))
	case *wire.OpenResponse:
		return fmt.Sprintf("%s %d %d %v", c.Key(), c.Correlation, c.Code, slices.Sorted(maps.Keys(c.Properties.Map())))
	case *wire.MetadataResponse:
		var brokers []uint16
		for b := range c.Brokers.All() {
			brokers = append(brokers, b.Reference)
		}
		streams := c.Streams.Slice()
		slices.SortFunc(streams, func(x, y wire.StreamMetadata) int { return strings.Compare(x.Stream, y.Stream) })
		return fmt.Sprintf("%s %d %v %+v", c.Key(), c.Correlation, brokers, streams)
	case *wire.StreamStatsResponse:
		stats := map[string]int64{}
		for s := range c.Stats.All() {
			stats[s.Name] = s.Value
		}
		delete(stats, wire.StatCommittedOffset) // of newer brokers
		return fmt.Sprintf("%s %d %d %v", c.Key(), c.Correlation, c.Code, stats)
	case *wire.ExchangeCommandVersionsResponse:
		versions := slices.DeleteFunc(c.Versions.Slice(), func(v wire.CommandVersion) bool {
			return v.Key == wire.KeyResolveOffsetSpec // of newer brokers
		})
		return fmt.Sprintf("%s %d %d %v", c.Key(), c.Correlation, c.Code, versions)
	case *wire.Deliver:
		h, err := chunk.DecodeClient(c.Chunk)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("%s %d %d %d: %s, %d entries, %d records from %d, epoch %d, CRC %08x, %x", c.Key(), c.Version,
			c.SubscriptionID, c.CommittedChunkID, h.Type, h.Entries, h.Records, h.BaseOffset, h.Epoch, h.DataCRC,
			c.Chunk[chunk.ClientHeaderLength:])
	}
	return fmt.Sprintf("%s %x", command.Key(), wire.Append(nil, command))
}

func TestVectors_replayed(t *testing.T) {
	h := serveReal(t, vfs.NewMem(), "data", nil)
	replayed := map[string]bool{}
	replay := func(p *peer, files ...string) {
		t.Helper()
		for _, file := range files {
			p.replay(file)
			replayed[file] = true
		}
	}
	steps := func(n int, tune *wire.Tune) *peer {
		p := h.dial(t)
		p.advance(n, "guest", "guest", tune)
		p.correlation = 0
		return p
	}
	tune := &wire.Tune{FrameMax: 1 << 20, Heartbeat: 60}

	// Connecting.
	replay(h.dial(t), "peer-properties-ok", "sasl-handshake-ok", "sasl-plain-ok", "tune-open-ok")
	replay(steps(4, tune), "open-ok")
	replay(steps(3, tune), "tune-as-response")
	for _, file := range []string{"sasl-wrong-password", "sasl-unknown-mechanism", "sasl-malformed"} {
		p := steps(2, tune)
		replay(p, file)
		p.wantEnd()
	}
	replay(steps(2, tune), "sasl-amqplain-ok")
	p := steps(4, tune)
	replay(p, "open-missing-vhost")
	p.wantEnd()
	replay(steps(5, &wire.Tune{FrameMax: 1 << 20, Heartbeat: 1}), "heartbeat")

	// What the captures do not show: streams, and publishers on them.
	hidden := steps(5, tune)
	for _, stream := range []string{"filtered", "named", "tracked", "events", "groups"} {
		hidden.create(stream)
	}
	hidden.declare(0, "", "events")
	hidden.publish(0, 1, "\x00\x53\x75\xa0\x02hi", "\x00\x53\x75\xa0\x03bye")
	hidden.wantConfirms(0, 1, 2)

	// Streams, publishing, consuming.
	main := steps(5, tune)
	replay(main,
		"exchange-versions-empty", "create-ok", "create-identical", "create-different", "create-empty-name",
		"create-bad-argument", "metadata", "metadata-empty", "stream-stats-empty", "stream-stats-missing",
		"create-super-stream-ok", "create-super-stream-exists", "partitions-ok", "partitions-missing", "route-ok",
		"route-no-match",
		"declare-publisher-ok", "declare-publisher-id-in-use", "declare-publisher-missing-stream", "publish-v1",
		"publish-unknown-publisher", "publish-sub-batch")
	main.declare(1, "", "filtered")
	main.declare(2, "app", "named")
	replay(main,
		"publish-v2-filter", "publish-v2-no-filter", "publish-duplicate", "query-sequence-ok", "query-sequence-unknown",
		"query-sequence-missing-stream", "delete-publisher-ok", "delete-publisher-unknown",
		"subscribe-first-deliver-v1", "subscribe-id-in-use", "subscribe-missing-stream", "subscribe-sac-without-name",
		"credit", "subscribe-offset-inside-chunk", "subscribe-timestamp", "subscribe-last", "deliver-filtered",
		"deliver-with-trailer-length", "unsubscribe-ok", "unsubscribe-unknown", "query-offset-none",
		"store-query-offset", "query-offset-missing-stream", "stream-stats")
	replay(steps(5, tune), "exchange-versions-deliver-v2", "deliver-v2-two-messages")
	other := steps(5, tune)
	replay(other, "deliver-v1-two-messages")
	other.declare(0, "", "events")
	replay(other, "publish-three-messages", "delete-own-metadata-update", "delete-missing")

	// Groups: two members on connections of their own.
	hidden.skip[wire.KeyMetadataUpdate] = true // of the deletion of events
	hidden.declare(1, "", "groups")
	hidden.publish(1, 1, "\x00\x53\x75\xa0\x02hi")
	hidden.wantConfirms(1, 1, 1)
	first, second := steps(5, tune), steps(5, tune)
	replay(first, "sac-activation")
	second.subscribe(0, "groups", wire.OffsetSpec{Type: wire.OffsetFirst}, 10, "single-active-consumer", "true", "name", "app")
	replay(second, "sac-credit-while-inactive")
	first.Close()
	replay(second, "sac-takeover")
	hidden.wantCode(hidden.ask(&wire.CreateSuperStream{
		Correlation: hidden.next(), Name: "parts", Partitions: wire.StringsOf("parts-0", "parts-1"), BindingKeys: wire.StringsOf("0", "1"),
	}), wire.CodeOK)
	third, fourth := steps(5, tune), steps(5, tune)
	for _, p := range []*peer{third, fourth} {
		p.subscribe(0, "parts-1", wire.OffsetSpec{Type: wire.OffsetFirst}, 10,
			"single-active-consumer", "true", "name", "app", "super-stream", "parts")
		if p == third {
			p.becomes(0, true, wire.OffsetSpec{Type: wire.OffsetFirst})
		}
	}
	replay(third, "sac-deactivation")
	fourth.becomes(0, true, wire.OffsetSpec{Type: wire.OffsetFirst})

	// Endings.
	replay(main, "delete-super-stream-ok", "delete-super-stream-missing", "reauthenticate-ok")
	p = steps(5, tune)
	replay(p, "close-by-client")
	p.wantEnd()
	p = steps(5, tune)
	replay(p, "close-by-server-unknown-command")
	if _, err := p.Next(); !errors.Is(err, io.EOF) && !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("after the close: %v", err)
	}

	files, err := filepath.Glob("../wire/testdata/vectors/*.hex")
	if err != nil || len(files) != 73 {
		t.Fatalf("%d files of vectors (%v), want 73", len(files), err)
	}
	for _, file := range files {
		name := strings.TrimSuffix(filepath.Base(file), ".hex")
		if !replayed[name] {
			t.Errorf("%s was not replayed", name)
		}
	}
}
