package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

func declare(t testing.TB, c *Conn, cfg PublisherConfig) *Publisher {
	t.Helper()
	p, err := c.DeclarePublisher(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPublisher_framesConfirmsAndOrder(t *testing.T) {
	s := newFakeServer(t)
	c := s.dial(nil)
	var counts []int // on the session's goroutine, read after Drain
	s.answerTo(wire.KeyPublish, func(_ *fakeSession, p wire.Command) bool {
		counts = append(counts, p.(*wire.Publish).Count)
		return false
	})
	var confirmed []uint64
	p := declare(t, c, PublisherConfig{Stream: "s", FrameMessages: 10, Confirmed: func(ids []uint64) { confirmed = append(confirmed, ids...) }})
	for i := range 25 {
		id, err := p.Publish(fmt.Appendf(nil, "message %d", i))
		if err != nil || id != uint64(i+1) {
			t.Fatalf("message %d: id %d, %v", i, id, err)
		}
	}
	if err := p.Drain(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(counts, []int{10, 10, 5}) {
		t.Errorf("frames of %v", counts)
	}
	if len(confirmed) != 25 || !slices.IsSorted(confirmed) || p.Unconfirmed() != 0 {
		t.Errorf("confirmed %v, %d open", confirmed, p.Unconfirmed())
	}
	if n := s.stream("s").next; n != 25 {
		t.Errorf("%d records stored", n)
	}
	if err := p.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := p.Send(26, nil); err == nil && !errors.Is(p.Flush(), ErrClosed) {
		t.Error("a closed publisher sends")
	}
}

// A reference goes on behind the last id that the broker knows.
func TestPublisher_referenceGoesOn(t *testing.T) {
	s := newFakeServer(t)
	s.stream("s").sequences["ref"] = 41
	p := declare(t, s.dial(nil), PublisherConfig{Stream: "s", Reference: "ref"})
	if p.Last() != 41 {
		t.Errorf("last id %d", p.Last())
	}
	if id, err := p.Publish(nil); err != nil || id != 42 {
		t.Errorf("next id %d, %v", id, err)
	}
}

// The window: sending waits for confirms, and goes on when they come.
func TestPublisher_waitsForTheWindow(t *testing.T) {
	s := newFakeServer(t)
	c := s.dial(nil)
	frames := make(chan []uint64, 10)
	s.answerTo(wire.KeyPublish, func(f *fakeSession, q wire.Command) bool {
		var ids []uint64
		entries := q.(*wire.Publish).Entries()
		for e, ok := entries.Next(); ok; e, ok = entries.Next() {
			ids = append(ids, e.PublishingID)
		}
		frames <- ids
		return true
	})
	p := declare(t, c, PublisherConfig{Stream: "s", FrameMessages: 2, Window: 4})
	sent := make(chan error, 1)
	go func() {
		for id := range uint64(6) {
			if err := p.Send(id, []byte("x")); err != nil {
				sent <- err
				return
			}
		}
		sent <- nil
	}()
	first := receive(t, frames, "first frame")
	receive(t, frames, "second frame")
	if n := p.Unconfirmed(); n != 4 {
		t.Errorf("%d messages open, want the window's 4", n)
	}
	select {
	case ids := <-frames:
		t.Errorf("frame %v beyond the window", ids)
	case err := <-sent:
		t.Errorf("sending ended with %v", err)
	default:
	}
	s.mu.Lock()
	for f := range s.sessions {
		_, _ = f.conn.Write(wire.AppendPublishConfirm(nil, p.ID(), first))
	}
	s.mu.Unlock()
	if ids := receive(t, frames, "third frame"); !slices.Equal(ids, []uint64{4, 5}) {
		t.Errorf("third frame %v", ids)
	}
	if err := receive(t, sent, "end of sending"); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := p.Drain(ctx); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "4 messages") {
		t.Errorf("drain without confirms: %v", err)
	}
}

func TestPublisher_refusedMessages(t *testing.T) {
	s := newFakeServer(t)
	c := s.dial(nil)
	var refused []wire.PublishingError
	p := declare(t, c, PublisherConfig{Stream: "s", Refused: func(r []wire.PublishingError) { refused = append(refused, r...) }})
	s.answerTo(wire.KeyPublish, func(f *fakeSession, _ wire.Command) bool {
		_, _ = f.conn.Write(wire.AppendPublishError(nil, p.ID(), []uint64{7, 8}, wire.CodePublisherDoesNotExist))
		return true
	})
	if err := errors.Join(p.Send(7, nil), p.Send(8, nil), p.Drain(t.Context())); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(refused, []wire.PublishingError{{ID: 7, Code: wire.CodePublisherDoesNotExist}, {ID: 8, Code: wire.CodePublisherDoesNotExist}}) {
		t.Errorf("refused %v", refused)
	}
}

// The stream goes: its publishers end, and their ids are free again.
func TestPublisher_streamGone(t *testing.T) {
	s := newFakeServer(t)
	gone := make(chan string, 1)
	c := s.dial(func(cfg *Config) {
		cfg.MetadataUpdate = func(stream string, code wire.ResponseCode) { gone <- fmt.Sprint(stream, " ", code) }
	})
	p := declare(t, c, PublisherConfig{Stream: "s"})
	other := declare(t, c, PublisherConfig{Stream: "other"})
	s.answerTo(wire.KeyDelete, func(f *fakeSession, _ wire.Command) bool {
		f.send(&wire.MetadataUpdate{Code: wire.CodeStreamNotAvailable, Stream: "s"})
		return false
	})
	if err := c.Delete(t.Context(), "s"); err != nil {
		t.Fatal(err)
	}
	if got := receive(t, gone, "metadata update"); got != "s stream not available" {
		t.Error(got)
	}
	if err := p.Err(); !errors.Is(err, ErrStreamUnavailable) {
		t.Errorf("publisher ended by %v", err)
	}
	if err := other.Err(); err != nil {
		t.Errorf("another stream's publisher ended by %v", err)
	}
	again := declare(t, c, PublisherConfig{Stream: "s"})
	if again.ID() != p.ID() {
		t.Errorf("id %d, want %d again", again.ID(), p.ID())
	}
	if err := p.Close(t.Context()); err != nil || len(s.commands(wire.KeyDeletePublisher)) != 0 {
		t.Errorf("closing the one that is gone deleted the new one: %v", err)
	}
}

func TestPublisher_largestMessage(t *testing.T) {
	s := newFakeServer(t)
	s.tune.FrameMax = 4096
	c := s.dial(nil)
	p := declare(t, c, PublisherConfig{Stream: "s"})
	largest := make([]byte, 4096-wire.PublishOverhead)
	for id := range uint64(3) {
		if err := p.Send(id, largest); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Send(4, append(largest, 0)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one byte more: %v", err)
	}
	if err := p.Drain(t.Context()); err != nil || s.stream("s").next != 3 {
		t.Errorf("%d stored, %v", s.stream("s").next, err)
	}
}

// Frames hold one kind of entry: a filter value, and a sub-batch, begin another.
func TestPublisher_mixedKinds(t *testing.T) {
	s := newFakeServer(t)
	var got []string
	s.answerTo(wire.KeyPublish, func(_ *fakeSession, q wire.Command) bool {
		p := q.(*wire.Publish)
		entries := p.Entries()
		for e, ok := entries.Next(); ok; e, ok = entries.Next() {
			got = append(got, fmt.Sprintf("v%d %d %s %d", p.Version, e.PublishingID, e.Filter, e.Records))
		}
		return false
	})
	p := declare(t, s.dial(nil), PublisherConfig{Stream: "s"})
	err := errors.Join(p.Send(1, []byte("a")), p.SendFiltered(2, "eu", []byte("b")), p.SendFiltered(3, "us", []byte("c")),
		p.SendSubBatch(4, chunk.CompressionNone, []byte("d"), []byte("e")), p.Send(5, nil), p.Drain(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{"v1 1  1", "v2 2 eu 1", "v2 3 us 1", "v1 4  2", "v1 5  1"}; !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestCompression_roundTrip(t *testing.T) {
	var p packer
	var u unpacker
	message := bytes.Repeat([]byte("millrace "), 1000)
	for range 2 { // the second time with the same writers and readers
		for _, c := range []chunk.Compression{chunk.CompressionNone, chunk.CompressionGzip, chunk.CompressionSnappy, chunk.CompressionLZ4, chunk.CompressionZstd} {
			data, size, err := p.pack(c, [][]byte{message, nil, []byte("x")})
			if err != nil {
				t.Fatal(c, err)
			}
			if size != 3*4+len(message)+1 || c != chunk.CompressionNone && len(data) > size/4 {
				t.Errorf("compression %d: %d bytes of %d", c, len(data), size)
			}
			plain, err := u.unpack(c, data, size)
			if err != nil {
				t.Fatalf("compression %d: %v", c, err)
			}
			var lengths []int
			if err := chunk.Messages(plain, 3, func(m []byte) { lengths = append(lengths, len(m)) }); err != nil || !slices.Equal(lengths, []int{len(message), 0, 1}) {
				t.Errorf("compression %d: messages of %v, %v", c, lengths, err)
			}
			if c == chunk.CompressionNone {
				continue
			}
			for name, f := range map[string]func() error{
				"claims less":    func() error { _, err := u.unpack(c, data, size-1); return err },
				"claims more":    func() error { _, err := u.unpack(c, data, size+1); return err },
				"cut":            func() error { _, err := u.unpack(c, data[:len(data)/2], size); return err },
				"other bytes":    func() error { _, err := u.unpack(c, []byte("not compressed"), size); return err },
				"claims 64 MiB+": func() error { _, err := u.unpack(c, data, wire.SubBatchUncompressedMax+1); return err },
			} {
				if err := f(); !errors.Is(err, ErrCompression) {
					t.Errorf("compression %d %s: %v", c, name, err)
				}
			}
		}
	}
	if _, err := u.unpack(chunk.CompressionUser, nil, 1); !errors.Is(err, ErrCompression) {
		t.Errorf("compression 7: %v", err)
	}
	if _, _, err := p.pack(5, nil); !errors.Is(err, ErrCompression) {
		t.Errorf("pack by compression 5: %v", err)
	}
}

func TestData_roundTrip(t *testing.T) {
	for _, n := range []int{0, 1, 255, 256, 70000} {
		body := bytes.Repeat([]byte("b"), n)
		got, ok := UnwrapData(WrapData(nil, body))
		if !ok || !bytes.Equal(got, body) {
			t.Errorf("body of %d bytes: %d, %v", n, len(got), ok)
		}
	}
	if got := WrapData([]byte("before"), []byte("hi")); string(got) != "before\x00\x53\x75\xa0\x02hi" {
		t.Errorf("%x", got)
	}
}

func TestUnwrapData(t *testing.T) {
	rows := []struct {
		name, message, body string
		ok                  bool
	}{
		{"header, properties, data", "\x00\x53\x70\x45" + "\x00\x53\x73\xc0\x04\x01\xa1\x01m" + "\x00\x53\x75\xa0\x02hi", "hi", true},
		{"application properties, data, footer", "\x00\x53\x74\xd1\x00\x00\x00\x04\x00\x00\x00\x00" + "\x00\x53\x75\xa0\x01x" + "\x00\x53\x78\xc1\x01\x00", "x", true},
		{"two data sections", "\x00\x53\x75\xa0\x02hi\x00\x53\x75\xa0\x02yo", "hiyo", true},
		{"long descriptor, long binary", "\x00\x80\x00\x00\x00\x00\x00\x00\x00\x75\xb0\x00\x00\x00\x02hi", "hi", true},
		{"text value", "\x00\x53\x77\xa1\x02hi", "hi", true},
		{"long text value", "\x00\x53\x77\xb1\x00\x00\x00\x02hi", "hi", true},
		{"empty body", "\x00\x53\x75\xa0\x00", "", true},
		{"number value", "\x00\x53\x77\x54\x07", "", false},
		{"no body", "\x00\x53\x70\x45", "", false},
		{"nothing", "", "", false},
		{"plain text", "hello", "", false},
		{"unknown section", "\x00\x53\x79\xa0\x02hi", "", false},
		{"cut in the data", "\x00\x53\x75\xa0\x03hi", "", false},
		{"cut behind the descriptor", "\x00\x53\x75", "", false},
		{"cut length", "\x00\x53\x75\xb0\x00\x00", "", false},
		{"bytes behind", "\x00\x53\x75\xa0\x02hi!", "", false},
		{"length of 4 GiB", "\x00\x53\x75\xb0\xff\xff\xff\xffhi", "", false},
	}
	for _, r := range rows {
		body, ok := UnwrapData([]byte(r.message))
		if ok != r.ok || string(body) != r.body {
			t.Errorf("%s: %q, %v, want %q, %v", r.name, body, ok, r.body, r.ok)
		}
	}
}

func FuzzUnwrapData(f *testing.F) {
	f.Add([]byte("\x00\x53\x70\x45\x00\x53\x75\xa0\x02hi"))
	f.Add([]byte("\x00\x53\x77\xb1\x00\x00\x00\x02hi"))
	f.Fuzz(func(t *testing.T, message []byte) {
		body, ok := UnwrapData(message)
		if again, _ := UnwrapData(WrapData(nil, body)); ok && !bytes.Equal(again, body) {
			t.Fatalf("%x: body %x, wrapped and unwrapped %x", message, body, again)
		}
	})
}
