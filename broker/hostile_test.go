package broker_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/wire"
)

func TestHostile_framesAboveTheLimit(t *testing.T) {
	h := serve(t, nil)
	frame := func(size uint32) []byte { return binary.BigEndian.AppendUint32(nil, size) }
	padded := func(size int) []byte {
		// A Create whose argument fills the frame up to the size.
		q := &wire.Create{Correlation: 1, Stream: "s", Arguments: wire.PropertiesOf()}
		var arguments []string
		short := len(wire.Append(nil, q)) - 4
		for left := size - short; left > 0; {
			n := min(left-4, 30_000)
			if left-4-n > 0 && left-4-n < 4 {
				n -= 4
			}
			arguments = append(arguments, "", strings.Repeat("v", n))
			q.Arguments = wire.PropertiesOf(arguments...)
			left -= 4 + n
		}
		return wire.Append(nil, q)
	}
	for _, claim := range []uint32{0xffffffff, 0x80000000, 8193} {
		p := h.dial(t)
		p.write(frame(claim))
		p.wantEnd()
	}
	// The limit itself is a frame like others, before Open and after.
	p := h.dial(t)
	q := &wire.PeerProperties{Correlation: 1, Properties: wire.PropertiesOf("k", strings.Repeat("v", 8192-17))}
	if n := len(wire.Append(nil, q)) - 4; n != 8192 {
		t.Fatalf("the frame has %d bytes", n)
	}
	p.ask(q)

	p = h.openAs(t, "guest", "guest", &wire.Tune{FrameMax: 100_000})
	p.write(padded(100_000))
	p.wantCode(p.read(), wire.CodeOK)
	p.send(&wire.Metadata{Correlation: 7})
	p.write(frame(100_001))
	p.await(wire.KeyMetadata.Answer()) // what was whole before is carried out
	p.wantClose(wire.CodeFrameTooLarge)

	// The Close response is found behind the frame that was not looked at.
	p = h.openAs(t, "guest", "guest", &wire.Tune{FrameMax: 100_000})
	p.write(append(frame(200_000), make([]byte, 200_000)...))
	p.wantClose(wire.CodeFrameTooLarge)
}

func TestHostile_tuneIsClamped(t *testing.T) {
	h := serve(t, nil)
	for _, tune := range []*wire.Tune{
		{FrameMax: 0, Heartbeat: 0},
		{FrameMax: 1<<32 - 1, Heartbeat: 1<<32 - 1},
		{FrameMax: 1<<20 + 1, Heartbeat: 1},
	} {
		p := h.openAs(t, "guest", "guest", tune)
		p.ask(&wire.Metadata{Correlation: 1})
		p.write(binary.BigEndian.AppendUint32(nil, 1<<20+1))
		p.wantClose(wire.CodeFrameTooLarge)
	}
	p := h.openAs(t, "guest", "guest", &wire.Tune{FrameMax: 1})
	p.write(wireFrame(0x0017, 1))
	p.wantClose(wire.CodeFrameTooLarge)
}

func TestHostile_otherProtocols(t *testing.T) {
	h := serve(t, nil)
	for _, hello := range []string{
		"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
		"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
		"AMQP\x00\x00\x09\x01",
		strings.Repeat("\x00", 8),
		"\xde\xad\xbe\xef\x01\x02\x03\x04\x05",
	} {
		p := h.dial(t)
		p.write([]byte(hello))
		p.wantEnd()
	}
}

func TestHostile_decodingCostsWhatCame(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	count := func(key, version uint16, fields ...byte) []byte { return wireFrame(key, version, fields...) }
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	const rounds = 100
	for range rounds {
		q := h.open(t)
		q.write(count(0x000f, 1, 0, 0, 0, 1, 0x7f, 0xff, 0xff, 0xff))
		q.wantClose(wire.CodeUnknownFrame)
	}
	runtime.ReadMemStats(&after)
	if each := (after.TotalAlloc - before.TotalAlloc) / rounds; each > 256<<10 {
		t.Errorf("%d bytes for a connection that claims 2^31 elements", each)
	}
	p.ask(&wire.Metadata{Correlation: 1})
}

func TestHostile_namesStayInTheDataDirectory(t *testing.T) {
	dir := t.TempDir() + "/data"
	h := serveReal(t, vfs.OS{}, dir, nil)
	p := h.open(t)
	names := []string{"..", ".", "/", "../../x", "%2f", "a/b", strings.Repeat("n", 255), "CON", "~"}
	for i, name := range names {
		p.create(name)
		p.declare(uint8(i), "", name)
		p.publish(uint8(i), 1, "m")
		p.wantConfirms(uint8(i), 1, 1)
	}
	entries, err := (vfs.OS{}).List(dir + "/..")
	if err != nil || len(entries) != 1 {
		t.Fatalf("beside the data directory: %v (%v)", entries, err)
	}
}

func TestHostile_correlationIdsAreEchoed(t *testing.T) {
	h := serve(t, nil)
	p := h.open(t)
	for _, id := range []uint32{0, 1<<32 - 1, 7, 7} {
		answer := p.ask(&wire.Delete{Correlation: id, Stream: "none"}).(*wire.Response)
		if answer.Correlation != id {
			t.Fatalf("correlation %d, want %d", answer.Correlation, id)
		}
	}
}

func TestHostile_publishingIdsDoNotWrap(t *testing.T) {
	h := serveReal(t, vfs.NewMem(), "data", nil)
	p := h.open(t)
	p.create("s")
	p.declare(0, "ref", "s")
	for _, row := range []struct {
		id     uint64
		stored uint64
	}{{5, 1}, {5, 1}, {3, 1}, {7, 2}, {1<<64 - 1, 3}, {0, 3}, {1, 3}} {
		p.publish(0, row.id, "m")
		p.wantConfirms(0, row.id, 1)
		stats := p.ask(&wire.StreamStats{Correlation: 1, Stream: "s"}).(*wire.StreamStatsResponse)
		for stat := range stats.Stats.All() {
			if stat.Name == wire.StatCommittedOffset && uint64(stat.Value)+1 != row.stored {
				t.Fatalf("after id %d: %d records, want %d", row.id, stat.Value+1, row.stored)
			}
		}
	}
	answer := p.ask(&wire.QueryPublisherSequence{Correlation: 1, Reference: "ref", Stream: "s"})
	if got := answer.(*wire.QueryPublisherSequenceResponse).Sequence; got != 1<<64-1 {
		t.Fatalf("sequence %d", got)
	}
}

func TestHostile_endsFreeEverything(t *testing.T) {
	for _, row := range []struct {
		name string
		end  func(*peer)
	}{
		{"close", func(p *peer) { p.send(&wire.Close{Correlation: 1, Code: 1}) }},
		{"close and go on", func(p *peer) {
			p.send(&wire.Close{Correlation: 1, Code: 1})
			for p.Send(&wire.Metadata{Correlation: 2}) == nil {
				if _, err := p.Next(); err != nil {
					return
				}
			}
		}},
		{"half-close", func(p *peer) { p.CloseWrite() }},
		{"half-close in a frame", func(p *peer) { p.write([]byte{0, 0, 1, 0, 0, 2}); p.CloseWrite() }},
		{"reset in a frame", func(p *peer) {
			p.write([]byte{0, 0, 1, 0, 0, 2})
			p.reset()
		}},
		{"reset with much unread", func(p *peer) {
			p.send(&wire.Credit{SubscriptionID: 0, Credit: 65535})
			p.reset()
		}},
	} {
		t.Run(row.name, func(t *testing.T) {
			h := serve(t, nil)
			h.open(t).create("s")
			h.fill(t, "s", 500, 500, 500)
			p := h.openTCP(t)
			p.declare(0, "", "s")
			p.subscribe(0, "s", first, 0)
			eventually(t, "it is there", func() bool { return h.broker.Stats().Connections == 2 })
			row.end(p)
			eventually(t, "everything is freed", func() bool {
				s := h.broker.Stats()
				return s.Connections == 1 && s.Publishers == 0 && s.Consumers == 0 && h.replica(t, "s").watched() == 0
			})
		})
	}
}

// openTCP is open with the socket at hand.
func (h *house) openTCP(t testing.TB) *peer {
	t.Helper()
	conn, err := net.Dial("tcp", h.addr)
	if err != nil {
		t.Fatal(err)
	}
	p := newPeer(t, conn)
	p.reset = func() {
		conn.(*net.TCPConn).SetLinger(0)
		conn.Close()
	}
	p.advance(5, "guest", "guest", &wire.Tune{})
	return p
}

func TestHostile_churnLeavesNothing(t *testing.T) {
	h := serve(t, nil)
	var all sync.WaitGroup
	const rounds = 300
	for i := range rounds {
		all.Go(func() {
			p := h.dial(t)
			defer p.Close()
			p.advance(i%6, "guest", "guest", &wire.Tune{})
			p.send(&wire.Close{Correlation: 1, Code: 1})
			if i%2 == 0 {
				for {
					if _, err := p.Next(); err != nil {
						return
					}
				}
			}
		})
		if i%50 == 49 {
			all.Wait()
		}
	}
	all.Wait()
	eventually(t, "no connection is left", func() bool { return h.broker.Stats().Connections == 0 })
	h.open(t)
}

func TestHostile_idleSocketsDoNotKeepOthersOut(t *testing.T) {
	h := serve(t, func(c *broker.Config) { c.Unopened = 20 })
	open := h.open(t)
	for range 200 {
		p := h.dial(t)
		p.write(make([]byte, 3)) // a size that never gets whole
	}
	eventually(t, "only so many wait", func() bool {
		s := h.broker.Stats()
		return s.Unopened <= 20 && s.Connections <= 22
	})
	open.ask(&wire.Metadata{Correlation: 1})
	h.open(t).ask(&wire.Metadata{Correlation: 1})
}

func TestHostile_bigLoginsCostLittle(t *testing.T) {
	h := serve(t, nil)
	p := h.dial(t)
	p.advance(2, "", "", nil)
	p.wantCode(p.ask(plain(1, "guest", strings.Repeat("t", 6_000))), wire.CodeAuthenticationFailure)
	h.addUser(t, "token", strings.Repeat("t", 6_000))
	h.permit(t, "token", "/", "", "", "")
	h.openAs(t, "token", strings.Repeat("t", 6_000), &wire.Tune{}) // a long token is none too long
	p = h.dial(t)
	p.advance(2, "", "", nil)
	p.write(binary.BigEndian.AppendUint32(nil, 1<<20))
	p.wantEnd()
}

func TestHostile_failedLoginsHoldNobodyUp(t *testing.T) {
	h := serve(t, func(c *broker.Config) { c.FailedLoginDelay = time.Hour })
	for range 200 {
		p := h.dial(t)
		p.advance(2, "", "", nil)
		p.send(plain(1, "guest", "wrong"))
	}
	eventually(t, "all are refused", func() bool { return h.broker.Stats().FailedLogins == 200 })
	h.open(t).ask(&wire.Metadata{Correlation: 1}) // and the broker closes in time, see serve
}

func TestHostile_deleteUnderLoad(t *testing.T) {
	h := serveReal(t, vfs.NewMem(), "data", nil)
	admin := h.open(t)
	admin.create("s")
	const clients = 30
	var all sync.WaitGroup
	started := make(chan struct{}, clients)
	for i := range clients {
		p := h.open(t)
		all.Go(func() {
			p.declare(0, "", "s")
			p.subscribe(0, "s", first, 65535)
			started <- struct{}{}
			for id := uint64(0); ; id++ {
				p.publish(0, id, "message of "+fmt.Sprint(i))
				told := false
				for waiting := true; waiting; {
					switch c := p.read().(type) {
					case *wire.MetadataUpdate:
						told, waiting = true, false
					case *wire.PublishConfirm, *wire.PublishError:
						waiting = false
					case *wire.Deliver:
					default:
						t.Errorf("got %+v", c)
						return
					}
				}
				if told {
					return
				}
			}
		})
	}
	for range clients {
		<-started
	}
	if code := admin.delete("s"); code != wire.CodeOK {
		t.Fatalf("delete: code %d", code)
	}
	all.Wait()
	eventually(t, "nothing is left on the stream", func() bool {
		s := h.broker.Stats()
		return s.Publishers == 0 && s.Consumers == 0
	})
}

func TestHostile_manyReferences(t *testing.T) {
	h := serveReal(t, vfs.NewMem(), "data", nil)
	p := h.open(t)
	p.create("s")
	var frames []byte
	for i := range 20_000 {
		frames = wire.Append(frames, &wire.StoreOffset{Reference: fmt.Sprintf("ref %d", i), Stream: "s", Offset: uint64(i)})
	}
	p.write(frames)
	p.ask(&wire.QueryOffset{Correlation: 1, Reference: "ref 1", Stream: "s"})
	h.fill(t, "s", 1)
	p.subscribe(0, "s", first, 1)
	if got := p.wantDeliver(); got.first != 0 || got.messages[0] != "0" {
		t.Fatalf("user data: %+v", got)
	}
}

func TestHostile_largeFramesInSmallPieces(t *testing.T) {
	h := serve(t, nil)
	p := h.openTCP(t)
	p.create("s")
	p.declare(0, "", "s")
	var b wire.PublishBuilder
	b.Begin(nil, 1, 0)
	b.Add(1, bytes.Repeat([]byte("x"), 900_000))
	frame := b.End()
	for at := 0; at < len(frame); at += 100 {
		p.write(frame[at:min(at+100, len(frame))])
	}
	p.wantConfirms(0, 1, 1)
}
