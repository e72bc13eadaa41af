package broker_test

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/wire"
)

// The tests of this file run in virtual time, over connections in memory: hours
// take no time, and a moment is exact.

// pass lets virtual time go by; false says that the test is over.
func pass(t testing.TB, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-t.Context().Done():
		return false
	}
}

// pipes is a listener whose connections are made by dial.
type pipes struct {
	accepted chan net.Conn
	closed   chan struct{}
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case conn := <-p.accepted:
		return conn, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	select {
	case <-p.closed:
	default:
		close(p.closed)
	}
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5552} }

func (p *pipes) dial(t testing.TB) *peer {
	ours, theirs := net.Pipe()
	p.accepted <- localPipe{theirs}
	slow := &slowConn{Conn: ours, t: t}
	dialled := newPeer(t, slow)
	dialled.slow = slow
	dialled.SetDeadline(time.Time{})
	return dialled
}

// slowConn reads little at a time, with pauses if it is told to.
type slowConn struct {
	net.Conn
	t     testing.TB
	pause time.Duration
}

func (c *slowConn) Read(b []byte) (int, error) {
	if c.pause > 0 {
		pass(c.t, c.pause)
		b = b[:min(len(b), 30_000)]
	}
	return c.Conn.Read(b)
}

// localPipe is a connection in memory that comes from loopback.
type localPipe struct{ net.Conn }

func (localPipe) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 50000} }
func (localPipe) LocalAddr() net.Addr  { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 5552} }

// inVirtualTime runs a test against a broker whose clock stands still while
// anything happens.
func inVirtualTime(t *testing.T, change func(*broker.Config), test func(t *testing.T, h *house, dial func() *peer)) {
	synctest.Test(t, func(t *testing.T) {
		node := newFakeNode(t, vfs.NewMem(), "data")
		config := broker.Config{NodeName: nodeName}
		if change != nil {
			change(&config)
		}
		b, err := broker.New(config, node, node, nil)
		if err != nil {
			t.Fatal(err)
		}
		listener := &pipes{accepted: make(chan net.Conn), closed: make(chan struct{})}
		served := make(chan error, 1)
		go func() { served <- b.Serve(listener) }()
		defer func() {
			if err := b.Close(context.Background()); err != nil {
				t.Error(err)
			}
			<-served
		}()
		test(t, &house{fakeNode: node, broker: b}, func() *peer { return listener.dial(t) })
	})
}

// moments reads until the connection ends, and returns when each frame came and
// when it ended, since start. It answers by the given function.
func (p *peer) moments(start time.Time) (heartbeats []time.Duration, end time.Duration) {
	p.t.Helper()
	for {
		c, err := p.NextCommand()
		switch {
		case errors.Is(err, io.EOF):
			return heartbeats, time.Since(start)
		case err != nil:
			p.t.Fatal(err)
		}
		if _, ok := c.(*wire.Heartbeat); !ok {
			p.t.Fatalf("got %+v", c)
		}
		heartbeats = append(heartbeats, time.Since(start))
	}
}

func TestHeartbeat_silentClientIsDropped(t *testing.T) {
	inVirtualTime(t, nil, func(t *testing.T, h *house, dial func() *peer) {
		p := dial()
		p.advance(4, "guest", "guest", &wire.Tune{Heartbeat: 2})
		start := time.Now()
		p.ask(&wire.Open{Correlation: 1, VirtualHost: "/"})
		heartbeats, end := p.moments(start)
		if end < 4*time.Second || end > 6*time.Second {
			t.Errorf("dropped after %s, want 2 to 3 intervals of 2 s", end)
		}
		want := []time.Duration{1 * time.Second, 3 * time.Second}
		for i, at := range want {
			if i >= len(heartbeats) || heartbeats[i] != at {
				t.Fatalf("heartbeats at %v", heartbeats)
			}
		}
	})
}

func TestHeartbeat_keepsTheConnectionOpen(t *testing.T) {
	inVirtualTime(t, nil, func(t *testing.T, h *house, dial func() *peer) {
		p := dial()
		p.advance(5, "guest", "guest", &wire.Tune{Heartbeat: 5})
		p.skip[wire.KeyHeartbeat] = true
		got := make(chan error, 1)
		for range 100 {
			pass(t, 5*time.Second)
			go func() { got <- p.Send(&wire.Heartbeat{}) }()
			if _, ok := p.read().(*wire.Heartbeat); !ok {
				t.Fatal("no heartbeat")
			}
			if err := <-got; err != nil {
				t.Fatal(err)
			}
		}
		p.ask(&wire.Metadata{Correlation: p.next()})
	})
}

func TestHeartbeat_noneIfTheClientWantsNone(t *testing.T) {
	inVirtualTime(t, nil, func(t *testing.T, h *house, dial func() *peer) {
		p := dial()
		p.advance(5, "guest", "guest", &wire.Tune{Heartbeat: 0})
		pass(t, 24*time.Hour)
		p.ask(&wire.Metadata{Correlation: p.next()}) // nothing came, nothing ended
	})
}

func TestHandshake_hasATimeThatNothingExtends(t *testing.T) {
	for steps := range 5 {
		inVirtualTime(t, nil, func(t *testing.T, h *house, dial func() *peer) {
			start := time.Now()
			p := dial()
			p.advance(steps, "guest", "guest", &wire.Tune{})
			go func() {
				for pass(t, 3*time.Second) && p.Send(&wire.Heartbeat{}) == nil {
				}
			}()
			if _, end := p.moments(start); end != 10*time.Second {
				t.Errorf("%d steps: ended after %s, want 10 s", steps, end)
			}
		})
	}
}

func TestHandshake_dripIsNotWaitedFor(t *testing.T) {
	inVirtualTime(t, nil, func(t *testing.T, h *house, dial func() *peer) {
		start := time.Now()
		p := dial()
		go func() {
			for _, b := range wire.Append(nil, &wire.PeerProperties{Correlation: 1}) {
				if _, err := p.Write([]byte{b}); err != nil || !pass(t, 5*time.Second) {
					return
				}
			}
		}()
		if _, end := p.moments(start); end != 10*time.Second {
			t.Errorf("ended after %s, want 10 s", end)
		}
	})
}

func TestFrame_mustArriveWholeInTime(t *testing.T) {
	for _, row := range []struct {
		heartbeat uint32
		want      time.Duration
	}{{heartbeat: 7, want: 14 * time.Second}, {heartbeat: 0, want: 120 * time.Second}} {
		inVirtualTime(t, nil, func(t *testing.T, h *house, dial func() *peer) {
			p := dial()
			p.advance(5, "guest", "guest", &wire.Tune{Heartbeat: row.heartbeat})
			p.skip[wire.KeyHeartbeat] = true
			start := time.Now()
			go func() {
				frame := wire.Append(nil, &wire.Create{Correlation: 1, Stream: "a stream with a long name, to drip for a while"})
				for {
					for _, b := range frame[:len(frame)-1] {
						if _, err := p.Write([]byte{b}); err != nil || !pass(t, 3*time.Second) {
							return
						}
					}
				}
			}()
			if _, end := p.moments(start); end != row.want {
				t.Errorf("heartbeat %d: ended after %s, want %s", row.heartbeat, end, row.want)
			}
		})
	}
}

func TestRefusal_isWithheld(t *testing.T) {
	for _, row := range []struct {
		name    string
		steps   int
		request wire.Command
		code    wire.ResponseCode
	}{
		{"wrong password", 2, plain(9, "guest", "wrong"), wire.CodeAuthenticationFailure},
		{"unknown user", 2, plain(9, "nobody", "guest"), wire.CodeAuthenticationFailure},
		{"empty user", 2, plain(9, "", "guest"), wire.CodeAuthenticationFailure},
		{"missing virtual host", 4, &wire.Open{Correlation: 9, VirtualHost: "none"}, wire.CodeVirtualHostAccessFailure},
		{"virtual host without access", 4, &wire.Open{Correlation: 9, VirtualHost: "closed"}, wire.CodeVirtualHostAccessFailure},
		{"renewal: wrong password", 5, plain(9, "guest", "wrong"), wire.CodeAuthenticationFailure},
		{"renewal: other user", 5, plain(9, "other", "other"), wire.CodeSaslCannotChangeUsername},
		{"renewal: other mechanism", 5, &wire.SaslAuthenticate{Correlation: 9, Mechanism: "AMQPLAIN"}, wire.CodeSaslCannotChangeMechanism},
	} {
		t.Run(row.name, func(t *testing.T) {
			inVirtualTime(t, nil, func(t *testing.T, h *house, dial func() *peer) {
				h.do(t, vhost("closed"))
				h.addUser(t, "other", "other")
				p := dial()
				p.advance(row.steps, "guest", "guest", &wire.Tune{})
				start := time.Now()
				p.send(row.request)
				go p.Send(&wire.Heartbeat{}, &wire.Metadata{Correlation: 1}) // ignored
				answer := p.read()
				p.wantCode(answer, row.code)
				if at := time.Since(start); at != 3*time.Second {
					t.Errorf("answered after %s, want 3 s", at)
				}
				p.wantEnd()
			})
		})
	}
}

func TestRefusal_atOnce(t *testing.T) {
	for _, row := range []struct {
		name    string
		request wire.Command
		code    wire.ResponseCode
	}{
		{"mechanism in lower case", &wire.SaslAuthenticate{Correlation: 9, Mechanism: "plain"}, wire.CodeSaslMechanismNotSupported},
		{"EXTERNAL without TLS", &wire.SaslAuthenticate{Correlation: 9, Mechanism: "EXTERNAL"}, wire.CodeSaslMechanismNotSupported},
		{"malformed", &wire.SaslAuthenticate{Correlation: 9, Mechanism: "PLAIN", Data: []byte("guest")}, wire.CodeSaslError},
		{"no data", &wire.SaslAuthenticate{Correlation: 9, Mechanism: "PLAIN"}, wire.CodeSaslError},
	} {
		t.Run(row.name, func(t *testing.T) {
			inVirtualTime(t, nil, func(t *testing.T, h *house, dial func() *peer) {
				p := dial()
				p.advance(2, "", "", nil)
				start := time.Now()
				p.wantCode(p.ask(row.request), row.code)
				p.wantEnd()
				if at := time.Since(start); at != 0 {
					t.Errorf("ended after %s, want at once", at)
				}
			})
		})
	}
}

func TestRefusal_aClientThatGoesFreesItsPlace(t *testing.T) {
	inVirtualTime(t, nil, func(t *testing.T, h *house, dial func() *peer) {
		p := dial()
		p.advance(2, "", "", nil)
		p.send(plain(9, "guest", "wrong"))
		p.Close()
		synctest.Wait()
		if n := h.broker.Stats().Connections; n != 0 {
			t.Errorf("%d connections are left", n)
		}
	})
}

func TestClose_unansweredEndsInTime(t *testing.T) {
	inVirtualTime(t, nil, func(t *testing.T, h *house, dial func() *peer) {
		p := dial()
		p.advance(5, "guest", "guest", &wire.Tune{})
		start := time.Now()
		p.write(wireFrame(0x00ff, 1))
		if c, ok := p.read().(*wire.Close); !ok || c.Code != wire.CodeUnknownFrame {
			t.Fatalf("got %+v", c)
		}
		go p.Send(&wire.Create{Correlation: 1, Stream: "s"}) // ignored
		p.wantEnd()
		if at := time.Since(start); at != 10*time.Second {
			t.Errorf("ended after %s, want 10 s", at)
		}
		if _, made := h.View().Stream("/", "s"); made {
			t.Error("a frame behind the violation was carried out")
		}
	})
}

func TestMetadata_isHeldForALeader(t *testing.T) {
	inVirtualTime(t, nil, func(t *testing.T, h *house, dial func() *peer) {
		p := dial()
		p.advance(5, "guest", "guest", &wire.Tune{})
		p.create("s")
		h.depose(t, "s")
		start := time.Now()
		leader := func() uint16 {
			answer := p.ask(&wire.Metadata{Correlation: p.next(), Streams: wire.StringsOf("s", "none")})
			for _, stream := range answer.(*wire.MetadataResponse).Streams.Slice() {
				if stream.Stream == "s" {
					return stream.Leader
				}
			}
			t.Fatal("the stream is not in the answer")
			return 0
		}
		if got := leader(); got != wire.NoLeader || time.Since(start) != 2*time.Second {
			t.Errorf("leader %d after %s, want none after 2 s", got, time.Since(start))
		}
		start = time.Now()
		go func() {
			pass(t, 300*time.Millisecond)
			h.elect(t, "s")
		}()
		if got := leader(); got != 0 || time.Since(start) != 300*time.Millisecond {
			t.Errorf("leader %d after %s, want the node once it is elected", got, time.Since(start))
		}
	})
}

func TestDeliver_aBlockedSocketIsCutInTime(t *testing.T) {
	inVirtualTime(t, nil, func(t *testing.T, h *house, dial func() *peer) {
		p := dial()
		p.advance(5, "guest", "guest", &wire.Tune{})
		start := time.Now()
		p.send(&wire.Metadata{Correlation: 1}) // whose answer nobody reads
		for h.broker.Stats().Connections > 0 {
			pass(t, time.Second)
		}
		if at := time.Since(start); at < 60*time.Second || at > 62*time.Second {
			t.Errorf("cut after %s, want 60 s", at)
		}
	})
}

func TestDeliver_aSlowConsumerIsNotCut(t *testing.T) {
	inVirtualTime(t, nil, func(t *testing.T, h *house, dial func() *peer) {
		publisher, slow := dial(), dial()
		for _, p := range []*peer{publisher, slow} {
			p.advance(5, "guest", "guest", &wire.Tune{})
		}
		publisher.create("s")
		publisher.declare(0, "", "s")
		message := strings.Repeat("m", 1_000_000)
		const n = 3
		for i := range n {
			publisher.publish(0, uint64(i), message)
			publisher.wantConfirms(0, uint64(i), 1)
		}
		// A chunk takes a quarter of an hour, yet something is read all the time.
		slow.subscribe(0, "s", first, n)
		slow.slow.pause = 30 * time.Second
		start := time.Now()
		for want := range n {
			if got := slow.wantDeliver(); int(got.first) != want {
				t.Fatalf("chunk at %d, want %d", got.first, want)
			}
		}
		if took := time.Since(start); took < 30*time.Minute {
			t.Errorf("took %s: nothing was slow", took)
		}
	})
}
