package client

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/wire"
)

func TestDial_tellsWhatTheServerSaid(t *testing.T) {
	s := newFakeServer(t)
	s.tune = wire.Tune{FrameMax: 65536, Heartbeat: 30}
	c := s.dial(func(cfg *Config) { cfg.Properties = map[string]string{"team": "a"} })
	if c.Server.FrameMax != 65536 || c.Server.Heartbeat != 30*time.Second || c.Server.AdvertisedAddr != s.addr() ||
		c.Server.Properties["version"] != "4.2.0" || len(c.Server.Versions) != wire.ServerVersions.Len() {
		t.Errorf("server %+v", c.Server)
	}
	peer := s.commands(wire.KeyPeerProperties)[0].(*wire.PeerProperties).Properties.Map()
	if peer["connection_name"] != "test" || peer["team"] != "a" || peer["product"] == "" {
		t.Errorf("client properties %v", peer)
	}
	if err := c.Close(); err != nil {
		t.Errorf("close: %v", err)
	}
	if !errors.Is(c.Err(), ErrClosed) {
		t.Errorf("after close: %v", c.Err())
	}
	if err := c.Close(); err != nil {
		t.Errorf("close again: %v", err)
	}
	if err := c.Create(t.Context(), "s", nil); !errors.Is(err, ErrClosed) {
		t.Errorf("create after close: %v", err)
	}
}

// The client's Tune answer: the smaller of both, where 0 means no limit, and
// no heartbeat if we want none.
func TestDial_settlesTune(t *testing.T) {
	rows := []struct {
		theirs, ours, want uint32
		heartbeat          time.Duration
		seconds, wantBeat  uint32
	}{
		{1 << 20, 1 << 16, 1 << 16, time.Minute, 30, 30},
		{1 << 16, 1 << 20, 1 << 16, time.Second, 30, 1},
		{0, 1 << 16, 1 << 16, 1500 * time.Millisecond, 30, 2},
		{1 << 20, 0, 1 << 20, time.Minute, 0, 60},
		{1 << 20, 1 << 20, 1 << 20, -1, 30, 0},
	}
	for _, r := range rows {
		s := newFakeServer(t)
		s.tune = wire.Tune{FrameMax: r.theirs, Heartbeat: r.seconds}
		c := s.dial(func(cfg *Config) { cfg.FrameMax, cfg.Heartbeat = r.ours, r.heartbeat })
		answer := s.commands(wire.KeyTune)[0].(*wire.Tune)
		if answer.FrameMax != r.want || answer.Heartbeat != r.wantBeat {
			t.Errorf("%+v: answered %+v", r, answer)
		}
		if c.Server.FrameMax != answer.FrameMax || c.Server.Heartbeat != time.Duration(answer.Heartbeat)*time.Second {
			t.Errorf("%+v: goes by %+v", r, c.Server)
		}
	}
}

func TestDial_refused(t *testing.T) {
	s := newFakeServer(t)
	dial := func(change func(*Config)) error {
		cfg := Config{Addr: s.addr(), Timeout: hangs}
		change(&cfg)
		_, err := Dial(t.Context(), cfg)
		return err
	}
	if err := dial(func(c *Config) { c.User, c.Password = "u", "wrong" }); Code(err) != wire.CodeAuthenticationFailure {
		t.Errorf("wrong password: %v", err)
	}
	if err := dial(func(c *Config) { c.VirtualHost = strings.Repeat("v", wire.StringMax+1) }); !errors.Is(err, ErrName) {
		t.Errorf("long virtual host: %v", err)
	}
	s.answerTo(wire.KeyOpen, func(f *fakeSession, c wire.Command) bool {
		f.send(wire.Refusal(c, wire.CodeVirtualHostAccessFailure))
		return true
	})
	if err := dial(func(c *Config) {}); Code(err) != wire.CodeVirtualHostAccessFailure {
		t.Errorf("no such virtual host: %v", err)
	}
	s.answerTo(wire.KeySaslHandshake, func(f *fakeSession, c wire.Command) bool {
		f.send(&wire.SaslHandshakeResponse{Correlation: 2, Code: wire.CodeOK, Mechanisms: wire.StringsOf("EXTERNAL")})
		return true
	})
	if err := dial(func(c *Config) {}); Code(err) != wire.CodeSaslMechanismNotSupported {
		t.Errorf("no PLAIN: %v", err)
	}
	s.answerTo(wire.KeyPeerProperties, func(f *fakeSession, c wire.Command) bool { return true })
	if err := dial(func(c *Config) { c.Timeout = 20 * time.Millisecond }); err == nil {
		t.Error("a silent server: connected")
	}
	s.answerTo(wire.KeyPeerProperties, func(f *fakeSession, c wire.Command) bool {
		f.send(&wire.Close{Correlation: 1, Code: wire.CodeInternalError, Reason: "not today"})
		return true
	})
	var closed *ClosedError
	if err := dial(func(c *Config) {}); !errors.As(err, &closed) || closed.Reason != "not today" {
		t.Errorf("closed by the server: %v", err)
	}
}

func TestDialLeader_goesWhereMetadataSays(t *testing.T) {
	leader, other := newFakeServer(t), newFakeServer(t)
	other.stream("s")
	other.leader = leader.addr()
	cfg := Config{Addr: other.addr(), Timeout: hangs}
	c, err := DialLeader(t.Context(), cfg, "s")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if c.Server.AdvertisedAddr != leader.addr() {
		t.Errorf("connected to %s, leader is %s", c.Server.AdvertisedAddr, leader.addr())
	}
	if _, err := DialLeader(t.Context(), cfg, "missing"); Code(err) != wire.CodeStreamDoesNotExist {
		t.Errorf("missing stream: %v", err)
	}
	other.leader = ""
	same, err := DialLeader(t.Context(), cfg, "s")
	if err != nil || same.Server.AdvertisedAddr != other.addr() {
		t.Fatalf("leader is the first broker: %v", err)
	}
	defer same.Close()
	if n := len(other.commands(wire.KeyOpen)); n != 3 {
		t.Errorf("%d connections to the first broker, want 3: it must not be dialled twice", n)
	}
}

// During an election Metadata knows no leader; the client waits for one.
func TestDialLeader_waitsForALeader(t *testing.T) {
	s := newFakeServer(t)
	s.stream("s")
	s.leader = "-"
	asked := 0
	s.answerTo(wire.KeyMetadata, func(f *fakeSession, c wire.Command) bool {
		if asked++; asked == 3 {
			s.mu.Lock()
			s.leader = ""
			s.mu.Unlock()
		}
		return false
	})
	c, err := DialLeader(t.Context(), Config{Addr: s.addr(), Timeout: hangs}, "s")
	if err != nil || asked != 3 {
		t.Fatalf("asked %d times: %v", asked, err)
	}
	c.Close()
	s.leader = "-"
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	if _, err := DialLeader(ctx, Config{Addr: s.addr()}, "s"); err == nil {
		t.Error("connected to a leader that is not there")
	}
}

// Where the leader's process has ended Metadata still names it for a while.
func TestDialLeader_waitsForTheNext(t *testing.T) {
	s, gone := newFakeServer(t), freeAddress(t)
	s.stream("s")
	s.leader = gone
	asked := 0
	s.answerTo(wire.KeyMetadata, func(*fakeSession, wire.Command) bool {
		if asked++; asked == 3 {
			s.mu.Lock()
			s.leader = ""
			s.mu.Unlock()
		}
		return false
	})
	c, err := DialLeader(t.Context(), Config{Addr: s.addr(), Timeout: hangs}, "s")
	if err != nil || asked != 3 {
		t.Fatalf("asked %d times: %v", asked, err)
	}
	c.Close()
	s.leader = gone
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := DialLeader(ctx, Config{Addr: s.addr()}, "s"); err == nil || asked < 4 {
		t.Errorf("a leader that stays away, asked %d times: %v", asked, err)
	}
}

// freeAddress is one that nobody listens on.
func freeAddress(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func TestConn_commands(t *testing.T) {
	s := newFakeServer(t)
	c, ctx := s.dial(nil), t.Context()
	if err := c.Create(ctx, "s", map[string]string{"max-age": "1h"}); err != nil {
		t.Error(err)
	}
	if got := s.commands(wire.KeyCreate)[0].(*wire.Create).Arguments.Map(); got["max-age"] != "1h" {
		t.Errorf("arguments %v", got)
	}
	if stats, err := c.Stats(ctx, "s"); err != nil || stats[wire.StatFirstChunkID] != -1 || stats[wire.StatCommittedOffset] != 7 {
		t.Errorf("stats %v, %v", stats, err)
	}
	if _, err := c.QueryOffset(ctx, "ref", "s"); Code(err) != wire.CodeNoOffset {
		t.Errorf("nothing stored: %v", err)
	}
	if err := c.StoreOffset("ref", "s", 42); err != nil {
		t.Error(err)
	}
	if offset, err := c.QueryOffset(ctx, "ref", "s"); err != nil || offset != 42 {
		t.Errorf("stored offset %d, %v", offset, err)
	}
	if n, err := c.QuerySequence(ctx, "ref", "s"); err != nil || n != 0 {
		t.Errorf("sequence %d, %v", n, err)
	}
	if n, err := c.ResolveOffset(ctx, "s", wire.FromOffset(25)); err != nil || n != 20 {
		t.Errorf("resolved to %d, %v", n, err)
	}
	if got, err := c.Partitions(ctx, "p"); err != nil || !slices.Equal(got, []string{"p-0", "p-1"}) {
		t.Errorf("partitions %q, %v", got, err)
	}
	if got, err := c.Route(ctx, "p", "1"); err != nil || !slices.Equal(got, []string{"p-1"}) {
		t.Errorf("route %q, %v", got, err)
	}
	if err := errors.Join(c.CreateSuperStream(ctx, "p", []string{"p-0"}, []string{"0"}, nil), c.DeleteSuperStream(ctx, "p"), c.Delete(ctx, "s")); err != nil {
		t.Error(err)
	}
	s.answerTo(wire.KeyDelete, func(f *fakeSession, q wire.Command) bool {
		f.send(wire.Refusal(q, wire.CodeAccessRefused))
		return true
	})
	err := c.Delete(ctx, "s")
	if Code(err) != wire.CodeAccessRefused || !strings.Contains(err.Error(), "Delete: access refused (code 16)") {
		t.Errorf("refused delete: %v", err)
	}
	long := strings.Repeat("x", wire.StringMax+1)
	for _, err := range []error{c.Create(ctx, long, nil), c.Delete(ctx, long), c.StoreOffset(long, "s", 1)} {
		if !errors.Is(err, ErrName) {
			t.Errorf("long name: %v", err)
		}
	}
	if Code(nil) != wire.CodeOK || Code(io.EOF) != 0 {
		t.Error("Code of no error, or of another")
	}
}

// Answers are matched by correlation id, not by order.
func TestConn_answersOutOfOrder(t *testing.T) {
	s := newFakeServer(t)
	c := s.dial(nil)
	var held []wire.Command // on the session's goroutine alone
	s.answerTo(wire.KeyQueryOffset, func(f *fakeSession, q wire.Command) bool {
		if held = append(held, q); len(held) < 2 {
			return true
		}
		for _, q := range slices.Backward(held) {
			q := q.(*wire.QueryOffset)
			f.send(&wire.QueryOffsetResponse{Correlation: q.Correlation, Code: wire.CodeOK, Offset: uint64(len(q.Reference))})
		}
		return true
	})
	results := make(chan error, 2)
	for _, reference := range []string{"a", "bcd"} {
		go func() {
			offset, err := c.QueryOffset(t.Context(), reference, "s")
			if err == nil && offset != uint64(len(reference)) {
				err = errors.New("another request's answer")
			}
			results <- err
		}()
	}
	for range 2 {
		if err := receive(t, results, "answer"); err != nil {
			t.Error(err)
		}
	}
}

func TestConn_requestWithoutAnswer(t *testing.T) {
	s := newFakeServer(t)
	c := s.dial(func(cfg *Config) {})
	s.answerTo(wire.KeyDelete, func(*fakeSession, wire.Command) bool { return true })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if err := c.Delete(ctx, "s"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
	if err := c.Create(t.Context(), "s", nil); err != nil {
		t.Errorf("the connection goes on: %v", err)
	}
}

// The server asks to close: we answer, and everything ends with its reason.
func TestConn_closedByTheServer(t *testing.T) {
	s := newFakeServer(t)
	c := s.dial(nil)
	answered := make(chan wire.Command, 1)
	s.answerTo(wire.KeyClose.Answer(), func(f *fakeSession, a wire.Command) bool {
		answered <- a
		f.conn.Close()
		return true
	})
	p, err := c.DeclarePublisher(t.Context(), PublisherConfig{Stream: "s"})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.write([]byte{0, 0, 0, 4, 0x77, 0x77, 0, 1}); err != nil {
		t.Fatal(err)
	}
	if a := receive(t, answered, "Close response").(*wire.Response); a.Correlation != 1 || a.Code != wire.CodeOK {
		t.Errorf("answered %+v", a)
	}
	receive(t, c.Done(), "end")
	var closed *ClosedError
	if !errors.As(c.Err(), &closed) || closed.Code != wire.CodeUnknownFrame {
		t.Errorf("ended by %v", c.Err())
	}
	if err := p.Send(1, nil); err == nil {
		err = p.Flush()
		if !errors.As(err, &closed) {
			t.Errorf("publisher ended by %v", err)
		}
	}
	if err := c.Create(t.Context(), "s", nil); !errors.As(err, &closed) {
		t.Errorf("create after the end: %v", err)
	}
}

func TestConn_droppedByTheServer(t *testing.T) {
	s := newFakeServer(t)
	c := s.dial(nil)
	s.answerTo(wire.KeyDelete, func(f *fakeSession, _ wire.Command) bool {
		f.conn.Close()
		return true
	})
	if err := c.Delete(t.Context(), "s"); !ended(err) {
		t.Errorf("request: %v", err)
	}
	receive(t, c.Done(), "end")
	if !ended(c.Err()) {
		t.Errorf("ended by %v", c.Err())
	}
}

// A broker that says nothing for two intervals is given up; one that sends
// heartbeats is kept.
func TestConn_heartbeats(t *testing.T) {
	t.Parallel() // it takes two intervals, and the shortest is a second
	s := newFakeServer(t)
	s.tune.Heartbeat = 1
	kept, silent := s.dial(nil), s.dial(nil)
	beats := make(chan bool, 100)
	s.answerTo(wire.KeyHeartbeat, func(f *fakeSession, _ wire.Command) bool {
		if f.conn.RemoteAddr().String() == kept.raw.LocalAddr().String() {
			f.send(&wire.Heartbeat{})
			beats <- true
		}
		return true
	})
	receive(t, silent.Done(), "end of the silent connection")
	if !errors.Is(silent.Err(), ErrSilent) {
		t.Errorf("silent connection ended by %v", silent.Err())
	}
	receive(t, beats, "heartbeat")
	if err := kept.Err(); err != nil {
		t.Errorf("connection with heartbeats ended by %v", err)
	}
}

// A frame that cannot be, and an answer of another kind than was asked for.
func TestConn_strangeFrames(t *testing.T) {
	s := newFakeServer(t)
	s.answerTo(wire.KeyDelete, func(f *fakeSession, q wire.Command) bool {
		f.send(&wire.QueryOffsetResponse{Correlation: q.(*wire.Delete).Correlation, Code: wire.CodeOK})
		return true
	})
	s.answerTo(wire.KeyCreate, func(f *fakeSession, _ wire.Command) bool {
		_, _ = f.conn.Write([]byte{0, 0, 0, 5, 0, 0x17, 0, 1, 9})
		return true
	})
	c := s.dial(nil)
	if err := c.Delete(t.Context(), "s"); !errors.Is(err, wire.ErrUnknownKey) {
		t.Errorf("answer of another kind: %v", err)
	}
	if err := c.Create(t.Context(), "s", nil); !errors.Is(err, wire.ErrTrailing) {
		t.Errorf("malformed frame: %v", err)
	}
}

func TestRaw_sendsAnythingAndReadsFrames(t *testing.T) {
	s := newFakeServer(t)
	raw, err := DialRaw(t.Context(), s.addr())
	if err != nil {
		t.Fatal(err)
	}
	defer raw.Close()
	if err := raw.SetDeadline(time.Now().Add(hangs)); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Handshake(Config{DeliverV1: true}); err != nil {
		t.Fatal(err)
	}
	if n := len(s.commands(wire.KeyExchangeCommandVersions)); n != 0 {
		t.Errorf("%d exchanges of versions, want none", n)
	}
	answer, err := raw.Request(&wire.Create{Correlation: 9, Stream: "s"})
	if err != nil || answer.(*wire.Response).Correlation != 9 {
		t.Errorf("%#v, %v", answer, err)
	}
	frame := wire.Append(nil, &wire.Delete{Correlation: 10, Stream: "s"})
	for i := range frame {
		if _, err := raw.Write(frame[i : i+1]); err != nil {
			t.Fatal(err)
		}
	}
	payload, err := raw.Next()
	want := wire.Append(nil, &wire.Response{To: wire.KeyDelete, Correlation: 10, Code: wire.CodeOK})
	if err != nil || !bytes.Equal(payload, want[wire.SizeSize:]) {
		t.Errorf("%x, %v", payload, err)
	}
	if _, err := raw.Write([]byte{0, 0, 0, 4, 0x77, 0x77, 0, 1}); err != nil {
		t.Fatal(err)
	}
	if c, err := raw.NextCommand(); err != nil || c.(*wire.Close).Code != wire.CodeUnknownFrame {
		t.Errorf("%#v, %v", c, err)
	}
	if err := raw.CloseWrite(); err != nil {
		t.Fatal(err)
	}
	if _, err := raw.Next(); !errors.Is(err, io.EOF) {
		t.Errorf("after our end: %v", err)
	}
}
