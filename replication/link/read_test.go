package link

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// rogue is a node that proves who it is and then sends what it likes.
func rogue(t *testing.T, w *town, to *host, security *security) (stream, requests net.Conn) {
	t.Helper()
	m := &Mux{config: MuxConfig{Cluster: "c1", Node: "rogue", Security: security, Address: w.address}}
	m.config.setDefaults()
	h := hello{purpose: PurposeLink, slots: 2, to: to.name}
	for {
		first, err := m.dial(t.Context(), h, func() {})
		if errors.Is(err, ErrBusy) {
			continue // the bundle before is not quite down
		}
		if err != nil {
			t.Fatal(err)
		}
		h.slot, h.bundle = 1, first.bundle
		second, err := m.dial(t.Context(), h, func() {})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _, _ = first.Close(), second.Close() })
		return first, second
	}
}

func frameOf(fields ...byte) []byte {
	return append(binary.BigEndian.AppendUint32(nil, uint32(len(fields))), fields...)
}

// TestRead_badFrames: a member sends what is no frame. Its link ends, the memory
// stays bounded, and another node's link stays up.
func TestRead_badFrames(t *testing.T) {
	w := newTown(t)
	b := w.host(t, "b", withSecret(1), func(_ *MuxConfig, c *Config) { c.WindowBytes, c.Requests = 64<<10, 4 })
	b.serve = func(protocol.NodeID, *Request) {}
	a := w.host(t, "a", withSecret(1), nil)
	a.links.Connect("b")
	a.waitEvent("up b", 1)
	claim := encoded(t, &Frame{Stream: 1, Head: make([]byte, chunk.HeadLengthMin), Data: make([]byte, 1<<20), Message: protocol.Message{Kind: protocol.MsgChunk}})
	huge := encoded(t, &Frame{Stream: 1, Head: make([]byte, chunk.HeadLengthMax), Data: make([]byte, chunk.DataLengthMax), Message: protocol.Message{Kind: protocol.MsgChunk}})
	b.mu.Lock()
	b.keep = true
	b.mu.Unlock()
	request := func(id uint64) []byte {
		return appendControl(nil, &control{kind: kindRequest, id: id, method: 1, timeout: 60000})
	}
	rows := []struct {
		name     string
		sent     []byte
		requests bool
		want     error
	}{
		{"length 0", []byte{0, 0, 0, 0}, false, ErrFrame},
		{"length 1", []byte{0, 0, 0, 1, kindHeartbeat}, false, ErrFrame},
		{"length 2^31", []byte{0x80, 0, 0, 0, 1, 1}, false, ErrFrame},
		{"length 2^32-1", []byte{0xff, 0xff, 0xff, 0xff, 1, 1}, false, ErrFrame},
		{"length one above the bound", binary.BigEndian.AppendUint32(nil, fieldsMax+1), false, ErrFrame},
		{"unknown kind", frameOf(0x7f, 0), false, ErrFrame},
		{"kind 0", frameOf(0, 0), false, ErrFrame},
		{"heartbeat with a flag", frameOf(kindHeartbeat, 1), false, ErrFrame},
		{"heartbeat with more", frameOf(kindHeartbeat, 0, 0), false, ErrFrame},
		{"a message cut short", frameOf(kindAck, 0, 1, 2, 3), false, ErrFrame},
		{"credit that was never spent", appendControl(nil, &control{kind: kindCredit, stream: 9, bytes: 1}), false, ErrCredit},
		{"request among streams", request(1), false, ErrFrame},
		{"message among requests", encoded(t, samples()["ack"]), true, ErrFrame},
		{"credit among requests", appendControl(nil, &control{kind: kindCredit, stream: 9, bytes: 1}), true, ErrFrame},
		{"response to nothing", appendControl(nil, &control{kind: kindResponse, id: 7}), true, ErrFrame},
		{"more requests than allowed", append(append(append(append(request(1), request(2)...), request(3)...), request(4)...), request(5)...), true, ErrCredit},
		{"a request twice", append(request(1), request(1)...), true, ErrCredit},
		{"chunks beyond the credit", append(append(append([]byte{}, claim...), make([]byte, chunk.HeadLengthMin+1<<20)...), claim...), false, ErrCredit},
		{"a huge chunk that does not come", huge, false, io.EOF},
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i, r := range rows {
		stream, requests := rogue(t, w, b, withSecret(1))
		b.waitEvent("up rogue", i+1)
		c := stream
		if r.requests {
			c = requests
		}
		if _, err := c.Write(r.sent); err != nil {
			t.Fatalf("%s: %v", r.name, err)
		}
		if r.name == "a huge chunk that does not come" {
			_ = c.Close()
		}
		closed(t, stream)
		b.waitEvent("down rogue", i+1)
		b.mu.Lock()
		if !errors.Is(b.why, r.want) {
			t.Errorf("%s: %v, want %v", r.name, b.why, r.want)
		}
		b.mu.Unlock()
	}
	runtime.ReadMemStats(&after)
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 32<<20 {
		t.Errorf("%d bytes allocated for claims", grown)
	}
	if hasEvent(a, "down b") {
		t.Error("another node's link went down")
	}
}

// A peer that begins a frame and does not go on is cut, though it says
// heartbeats elsewhere.
func TestRead_frameThatDripsIsCut(t *testing.T) {
	w := newTown(t)
	b := w.host(t, "b", withSecret(1), func(_ *MuxConfig, c *Config) { c.HeartbeatTimeout = 300 * time.Millisecond })
	stream, requests := rogue(t, w, b, withSecret(1))
	b.waitEvent("up rogue", 1)
	frame := encoded(t, samples()["found"])
	beat := time.NewTicker(10 * time.Millisecond)
	defer beat.Stop()
	down := make(chan struct{})
	go func() {
		defer close(down)
		b.waitEvent("down rogue", 1)
	}()
	for _, x := range append(frame[:len(frame)-1:len(frame)-1], make([]byte, 1000)...) {
		select {
		case <-down:
			return
		case <-beat.C:
			_, _ = stream.Write([]byte{x})
			_, _ = requests.Write(frameOf(kindHeartbeat, 0))
		}
	}
	t.Fatal("a frame that took a second was waited for; 300 ms were allowed")
}
