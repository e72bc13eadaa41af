package client

import (
	"errors"
	"io"
	"net"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// hangs bounds what should come at once.
const hangs = 10 * time.Second

// fakeServer is a broker of one node, in memory and without rules: enough for
// a client to talk to. A test changes one answer by on.
type fakeServer struct {
	t        testing.TB
	listener net.Listener
	host     string
	port     uint32
	tune     wire.Tune

	mu       sync.Mutex
	streams  map[string]*fakeStream
	stored   map[string]uint64
	leader   string // host:port, "" for this one, "-" for none
	on       map[wire.Key]func(*fakeSession, wire.Command) bool
	sessions map[*fakeSession]bool
	seen     []wire.Command // all but Publish and Heartbeat
}

type fakeStream struct {
	chunks    [][]byte // client header and data
	next      chunk.Offset
	sequences map[string]uint64
}

// fakeSession is one connection of the server.
type fakeSession struct {
	server     *fakeServer
	conn       net.Conn
	publishers map[uint8]wire.DeclarePublisher
	deliverV2  bool
	heartbeats int
}

func newFakeServer(t testing.TB) *fakeServer {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := net.SplitHostPort(listener.Addr().String())
	n, _ := strconv.Atoi(port)
	s := &fakeServer{t: t, listener: listener, host: host, port: uint32(n),
		tune:    wire.Tune{FrameMax: wire.FrameMaxDefault, Heartbeat: 60},
		streams: map[string]*fakeStream{}, stored: map[string]uint64{},
		on: map[wire.Key]func(*fakeSession, wire.Command) bool{}, sessions: map[*fakeSession]bool{}}
	var all sync.WaitGroup
	all.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			session := &fakeSession{server: s, conn: conn, publishers: map[uint8]wire.DeclarePublisher{}}
			s.mu.Lock()
			s.sessions[session] = true
			s.mu.Unlock()
			all.Go(session.serve)
		}
	})
	t.Cleanup(func() {
		listener.Close()
		s.mu.Lock()
		for session := range s.sessions {
			session.conn.Close()
		}
		s.mu.Unlock()
		all.Wait()
	})
	return s
}

func (s *fakeServer) addr() string { return s.listener.Addr().String() }

func (s *fakeServer) stream(name string) *fakeStream {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.streams[name] == nil {
		s.streams[name] = &fakeStream{sequences: map[string]uint64{}}
	}
	return s.streams[name]
}

// answerTo replaces the answer to a command; false leaves it to the server.
func (s *fakeServer) answerTo(key wire.Key, f func(*fakeSession, wire.Command) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.on[key] = f
}

// commands returns the commands of the key that came so far.
func (s *fakeServer) commands(key wire.Key) (all []wire.Command) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, c := range s.seen {
		if c.Key() == key {
			all = append(all, c)
		}
	}
	return all
}

func (s *fakeSession) serve() {
	defer s.conn.Close()
	frames := wire.NewSplitter(0)
	for {
		n, err := s.conn.Read(frames.Space())
		if err != nil {
			return
		}
		frames.Received(n)
		for {
			payload, err := frames.Next()
			if err != nil || payload == nil {
				if err != nil {
					s.server.t.Errorf("client sent a bad frame: %v", err)
				}
				break
			}
			command, err := wire.FromClient(payload)
			if err != nil {
				s.send(&wire.Close{Correlation: 1, Code: wire.CodeUnknownFrame, Reason: "unknown frame"})
				continue
			}
			if !s.handle(command) {
				return
			}
		}
	}
}

func (s *fakeSession) send(commands ...wire.Command) {
	var b []byte
	for _, c := range commands {
		b = wire.Append(b, c)
	}
	_, _ = s.conn.Write(b)
}

func (s *fakeSession) ok(request wire.Command, id uint32) {
	s.send(&wire.Response{To: request.Key(), Correlation: id, Code: wire.CodeOK})
}

// handle carries out a command; false ends the connection.
func (s *fakeSession) handle(command wire.Command) bool {
	server := s.server
	server.mu.Lock()
	on := server.on[command.Key()]
	switch command.(type) {
	case *wire.Publish:
	case *wire.Heartbeat:
		s.heartbeats++
	default:
		server.seen = append(server.seen, command)
	}
	server.mu.Unlock()
	if on != nil && on(s, command) {
		return true
	}
	switch c := command.(type) {
	case *wire.PeerProperties:
		s.send(&wire.PeerPropertiesResponse{Correlation: c.Correlation, Code: wire.CodeOK, Properties: wire.PropertiesOf("version", "4.2.0")})
	case *wire.SaslHandshake:
		s.send(&wire.SaslHandshakeResponse{Correlation: c.Correlation, Code: wire.CodeOK, Mechanisms: wire.StringsOf("AMQPLAIN", "PLAIN")})
	case *wire.SaslAuthenticate:
		if c.Mechanism != "PLAIN" || string(c.Data) != "\x00guest\x00guest" {
			s.send(wire.Refusal(c, wire.CodeAuthenticationFailure))
			return false
		}
		tune := server.tune
		s.send(&wire.Response{To: c.Key(), Correlation: c.Correlation, Code: wire.CodeOK}, &tune)
	case *wire.Open:
		s.send(&wire.OpenResponse{Correlation: c.Correlation, Code: wire.CodeOK, Properties: wire.PropertiesOf(
			"advertised_port", strconv.Itoa(int(server.port)), "advertised_host", server.host)})
	case *wire.ExchangeCommandVersions:
		for v := range c.Versions.All() {
			s.deliverV2 = s.deliverV2 || v.Key == wire.KeyDeliver && v.Max == 2
		}
		s.send(&wire.ExchangeCommandVersionsResponse{Correlation: c.Correlation, Code: wire.CodeOK, Versions: wire.ServerVersions})
	case *wire.Close:
		s.ok(c, c.Correlation)
		return false
	case *wire.Create:
		s.server.stream(c.Stream)
		s.ok(c, c.Correlation)
	case *wire.Metadata:
		s.metadata(c)
	case *wire.DeclarePublisher:
		s.publishers[c.PublisherID] = *c
		s.ok(c, c.Correlation)
	case *wire.DeletePublisher:
		delete(s.publishers, c.PublisherID)
		s.ok(c, c.Correlation)
	case *wire.QueryPublisherSequence:
		s.send(&wire.QueryPublisherSequenceResponse{Correlation: c.Correlation, Code: wire.CodeOK,
			Sequence: server.stream(c.Stream).sequences[c.Reference]})
	case *wire.Publish:
		s.publish(c)
	case *wire.Subscribe:
		s.ok(c, c.Correlation)
		for _, b := range server.stream(c.Stream).chunks {
			s.deliver(c.SubscriptionID, b)
		}
	case *wire.StoreOffset:
		server.stored[c.Reference+" "+c.Stream] = c.Offset
	case *wire.QueryOffset:
		offset, ok := server.stored[c.Reference+" "+c.Stream]
		answer := &wire.QueryOffsetResponse{Correlation: c.Correlation, Code: wire.CodeNoOffset}
		if ok {
			answer.Code, answer.Offset = wire.CodeOK, offset
		}
		s.send(answer)
	case *wire.StreamStats:
		s.send(&wire.StreamStatsResponse{Correlation: c.Correlation, Code: wire.CodeOK, Stats: wire.StatsOf(
			wire.Stat{Name: wire.StatFirstChunkID, Value: -1}, wire.Stat{Name: wire.StatCommittedOffset, Value: 7})})
	case *wire.ResolveOffsetSpec:
		s.send(&wire.ResolveOffsetSpecResponse{Correlation: c.Correlation, Code: wire.CodeOK, Offset: c.Offset.Offset / 10 * 10})
	case *wire.Partitions:
		s.send(&wire.PartitionsResponse{Correlation: c.Correlation, Code: wire.CodeOK, Streams: wire.StringsOf(c.SuperStream+"-0", c.SuperStream+"-1")})
	case *wire.Route:
		s.send(&wire.RouteResponse{Correlation: c.Correlation, Code: wire.CodeOK, Streams: wire.StringsOf(c.SuperStream + "-" + c.RoutingKey)})
	case *wire.Delete:
		s.ok(c, c.Correlation)
	case *wire.Unsubscribe:
		s.ok(c, c.Correlation)
	case *wire.CreateSuperStream:
		s.ok(c, c.Correlation)
	case *wire.DeleteSuperStream:
		s.ok(c, c.Correlation)
	}
	return true
}

func (s *fakeSession) metadata(c *wire.Metadata) {
	s.server.mu.Lock()
	defer s.server.mu.Unlock()
	host, port := s.server.host, s.server.port
	if h, p, err := net.SplitHostPort(s.server.leader); err == nil {
		n, _ := strconv.Atoi(p)
		host, port = h, uint32(n)
	}
	var streams []wire.StreamMetadata
	for name := range c.Streams.All() {
		m := wire.StreamMetadata{Stream: name, Code: wire.CodeOK, Leader: 3}
		switch {
		case s.server.streams[name] == nil:
			m.Code, m.Leader = wire.CodeStreamDoesNotExist, wire.NoLeader
		case s.server.leader == "-":
			m.Leader = wire.NoLeader
		}
		streams = append(streams, m)
	}
	s.send(&wire.MetadataResponse{Correlation: c.Correlation,
		Brokers: wire.BrokersOf(wire.Broker{Reference: 3, Host: host, Port: port}), Streams: wire.StreamsMetadataOf(streams...)})
}

// publish stores each run of simple entries as a chunk, a sub-batch as one of
// its own, and confirms.
func (s *fakeSession) publish(p *wire.Publish) {
	declared, ok := s.publishers[p.PublisherID]
	var ids []uint64
	stream := s.server.stream(declared.Stream)
	entries := p.Entries()
	for e, more := entries.Next(); more; e, more = entries.Next() {
		ids = append(ids, e.PublishingID)
		if ok {
			stream.append(e.Raw, e.Records)
			if declared.Reference != "" {
				stream.sequences[declared.Reference] = e.PublishingID
			}
		}
	}
	if !ok {
		_, _ = s.conn.Write(wire.AppendPublishError(nil, p.PublisherID, ids, wire.CodePublisherDoesNotExist))
		return
	}
	_, _ = s.conn.Write(wire.AppendPublishConfirm(nil, p.PublisherID, ids))
}

func (f *fakeStream) append(entries []byte, records uint32) {
	f.appendRun(entries, 1, records)
}

func (f *fakeStream) appendRun(entries []byte, count int, records uint32) {
	var b chunk.Builder
	b.Reset(nil, nil)
	b.AppendRun(entries, count, records)
	head, data, header := b.Finish(&chunk.Meta{LSN: chunk.LSN(len(f.chunks) + 1), Epoch: 1, BaseOffset: f.next, Timestamp: 1000})
	f.chunks = append(f.chunks, append(chunk.ClientHeaderOf(head), data...))
	f.next = header.Next()
}

func (s *fakeSession) deliver(subscription uint8, chunk []byte) {
	d := &wire.Deliver{Version: 1, SubscriptionID: subscription, Chunk: chunk}
	if s.deliverV2 {
		d.Version, d.CommittedChunkID = 2, 77
	}
	s.send(d)
}

// dial connects to the server and sees to it that nothing is left running.
func (s *fakeServer) dial(change func(*Config)) *Conn {
	s.t.Helper()
	cfg := Config{Addr: s.addr(), Timeout: hangs, Name: "test"}
	if change != nil {
		change(&cfg)
	}
	c, err := Dial(s.t.Context(), cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(c.Abort)
	return c
}

// receive waits for a value.
func receive[T any](t testing.TB, from <-chan T, what string) T {
	t.Helper()
	select {
	case v := <-from:
		return v
	case <-time.After(hangs):
		t.Fatalf("no %s within %v", what, hangs)
		panic("unreachable")
	}
}

// ended tells whether the error is that of a connection the other side ended.
func ended(err error) bool {
	var op *net.OpError
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.As(err, &op)
}
