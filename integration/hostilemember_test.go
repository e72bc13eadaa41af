package integration

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/integration/harness"
)

// What whoever has a member's key may say behind a good handshake.

// raftBytes are what a member's key lets one say to raft.
func (h *hostileTest) raftBytes(bad, to *harness.Node) {
	h.t.Helper()
	for what, b := range map[string][]byte{
		"zeros":               make([]byte, 64),
		"random":              h.bytes(64 << 10),
		"an unknown command":  {0xee, 1, 2, 3},
		"a map of a billion":  {0, 0xdf, 0x3b, 0x9a, 0xca, 0x00},
		"bytes of 4 GiB":      {0, 0xc6, 0xff, 0xff, 0xff, 0xff},
		"a vote cut short":    append([]byte{1}, "\x87\xa4Term\xcf\xff\xff\xff\xff\xff\xff\xff\xff"...),
		"a snapshot of bytes": append([]byte{2}, bytes.Repeat([]byte{0xff}, 4096)...),
		"HTTP":                []byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		conn, _, err := h.as(bad.Name, 'R', to).Dial(to.Peers)
		if err != nil {
			h.t.Errorf("%s as raft of %s: %v", what, bad.Name, err)
			continue
		}
		_, _ = conn.Write(b)
		_ = conn.SetReadDeadline(time.Now().Add(brief))
		_, _ = io.Copy(io.Discard, conn) // ended, or waiting for more
		_ = conn.Close()
	}
}

// bundle is a whole link by a member's key: streams' connection, and requests'.
func (h *hostileTest) bundle(bad, to *harness.Node) (streams, requests net.Conn) {
	h.t.Helper()
	r := h.as(bad.Name, 'L', to)
	r.Slots = 2
	var said *harness.Said
	for end := time.Now().Add(usableWithin); ; time.Sleep(20 * time.Millisecond) {
		conn, s, err := r.Dial(to.Peers)
		if err == nil {
			streams, said = conn, s
			break
		}
		var code harness.RefusedError
		if !errors.As(err, &code) || code != refusedBusy || time.Now().After(end) { // the last one may just be ending
			h.t.Fatalf("a link as %s: %v", bad.Name, err)
		}
	}
	r.Slot, r.Bundle = 1, said.Bundle
	requests, _, err := r.Dial(to.Peers)
	if err != nil {
		h.t.Fatalf("the second connection of a link as %s: %v", bad.Name, err)
	}
	return streams, requests
}

// frame is one of the link's, with its length.
func frame(kind byte, fields ...[]byte) []byte {
	b := append([]byte{0, 0, 0, 0, kind, 0}, bytes.Join(fields, nil)...)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	return b
}

func u64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
func u32(v uint32) []byte { return binary.BigEndian.AppendUint32(nil, v) }

// linkBytes are what a member's key lets one say as a replica.
func (h *hostileTest) linkBytes(bad, to *harness.Node) {
	h.t.Helper()
	stream := u64(h.incarnation(h.streams[0].name))
	epoch, session := u64(1<<60), u64(1)
	replica := bytes.Join([][]byte{stream, epoch, session}, nil)
	for _, row := range []struct {
		what string
		b    []byte
	}{
		{"nothing", nil},
		{"random bytes", h.bytes(64 << 10)},
		{"a length of 4 GiB", u32(0xffffffff)},
		{"a length of 1 MiB that does not come", append(u32(1<<20), 3, 0)},
		{"a length of 1", append(u32(1), 3)},
		{"an unknown kind", frame(0x7f, replica)},
		{"an unknown flag", append(append(u32(26), 0x05, 0xff), replica...)},
		{"a hello of an epoch above the metadata's", frame(0x01, replica, u64(1))},
		{"a chunk of a stream that it does not lead", frame(0x03, replica, u64(9), u32(96), u32(1000))},
		{"such a chunk with random bytes", append(frame(0x03, replica, u64(9), u32(96), u32(1000)), h.bytes(1096)...)},
		{"a chunk of 4 GiB", frame(0x03, replica, u64(9), u32(0xffffffff), u32(0xffffffff))},
		{"a chunk of 64 MiB that does not come", frame(0x03, replica, u64(9), u32(96), u32(64<<20))},
		{"updates of 4 GiB", frame(0x04, replica, u64(9), u32(0xffffffff))},
		{"a commit of everything", frame(0x05, replica, u64(1<<62), u64(1<<62))},
		{"an ack of everything", frame(0x14, replica, u64(1<<62))},
		{"credit for what nobody sent", frame(0x22, stream, u32(1<<30))},
		{"a refusal with a promise of the last epoch", frame(0x16, replica, u64(1<<63), []byte{1})},
		{"frames of a stream that is none", bytes.Repeat(frame(0x14, u64(12345), epoch, session, u64(1)), 1000)},
		{"a request among messages", append(frame(0x31, u64(1), []byte{1, 2}, u32(1000), u32(4)), "abcd"...)},
	} {
		streams, requests := h.bundle(bad, to)
		_, _ = streams.Write(row.b)
		_ = streams.SetReadDeadline(time.Now().Add(10 * time.Second))
		// Without a beat a link ends; one that has said what is no frame ends at once.
		if _, err := io.Copy(io.Discard, streams); errors.Is(err, os.ErrDeadlineExceeded) {
			h.t.Errorf("%s: the link is still there", row.what)
		}
		_ = streams.Close()
		_ = requests.Close()
		if !to.Running() {
			h.t.Fatalf("node %s has ended: %s", to.Name, row.what)
		}
	}
	h.stands("frames of a member gone bad")
}

// requests are asked by a member's key: garbage to every number there is, and more
// than is answered.
func (h *hostileTest) requests(bad, to *harness.Node) {
	h.t.Helper()
	streams, requests := h.bundle(bad, to)
	defer func() { _, _ = streams.Close(), requests.Close() }()
	beat := time.NewTicker(200 * time.Millisecond)
	defer beat.Stop()
	ended := make(chan struct{})
	go func() {
		_, _ = io.Copy(io.Discard, requests)
		close(ended)
	}()
	go func() { _, _ = io.Copy(io.Discard, streams) }()
	id, links := uint64(0), 1
	for method := range uint16(0x400) {
		for _, body := range [][]byte{nil, []byte("{}"), []byte(`"x"`), h.bytes(100)} {
			id++
			ask := frame(0x31, u64(id), binary.BigEndian.AppendUint16(nil, method), u32(1000), u32(uint32(len(body))))
			if _, err := requests.Write(append(ask, body...)); err != nil {
				_, _ = streams.Close(), requests.Close()
				<-ended
				streams, requests = h.bundle(bad, to)
				ended, id, links = make(chan struct{}), 0, links+1
				go func(c net.Conn, over chan struct{}) {
					_, _ = io.Copy(io.Discard, c)
					close(over)
				}(requests, ended)
				go func(c net.Conn) { _, _ = io.Copy(io.Discard, c) }(streams)
			}
			select {
			case <-beat.C:
				_, _ = streams.Write(frame(0x21))
			default:
			}
		}
		if !to.Running() {
			h.t.Fatalf("node %s has ended at request %#x", to.Name, method)
		}
	}
	h.t.Logf("%s has taken requests of 1,024 numbers over %d links", to.Name, links)
	_, _ = requests.Write(frame(0x31, u64(id+1), []byte{1, 1}, u32(1000), u32(17<<20))) // and no body
	h.stands("requests of a member gone bad")
}

func (h *hostileTest) incarnation(stream string) uint64 {
	h.t.Helper()
	var about admin.Stream
	if err := h.cluster.Nodes[0].Call("GET", "/api/v1/streams/%2F/"+stream, nil, &about); err != nil {
		for _, n := range h.cluster.Nodes[1:] {
			if err = n.Call("GET", "/api/v1/streams/%2F/"+stream, nil, &about); err == nil {
				break
			}
		}
	}
	var v uint64
	if _, err := fmt.Sscanf(about.Incarnation, "%x", &v); err != nil {
		h.t.Fatalf("incarnation %q of %s: %v", about.Incarnation, stream, err)
	}
	return v
}
