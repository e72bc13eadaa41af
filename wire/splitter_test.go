package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
)

// feed gives s all of input in pieces of at most step bytes, 0 for as many as
// fit, and returns copies of the payloads.
func feed(s *Splitter, input []byte, step int) (payloads [][]byte, err error) {
	for len(input) > 0 {
		space := s.Space()
		if step > 0 {
			space = space[:min(step, len(space))]
		}
		n := copy(space, input)
		input = input[n:]
		s.Received(n)
		for {
			payload, err := s.Next()
			if err != nil {
				return payloads, err
			}
			if payload == nil {
				break
			}
			payloads = append(payloads, bytes.Clone(payload))
		}
	}
	return payloads, nil
}

func TestSplitter_anyPieces(t *testing.T) {
	var input []byte
	var want [][]byte
	for i, size := range []int{4, 5, 100, 4095, 4096, 4, 100_000, 8188, 8189, 4, 300_000, 17} {
		payload := bytes.Repeat([]byte{byte(i + 1)}, size)
		want = append(want, payload)
		input = binary.BigEndian.AppendUint32(input, uint32(size))
		input = append(input, payload...)
	}
	for _, step := range []int{1, 2, 3, 7, 1000, 4096, 65536, 0} {
		s := NewSplitter(FrameMaxDefault)
		got, err := feed(s, input, step)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(want) {
			t.Fatalf("pieces of %d: %d frames, want %d", step, len(got), len(want))
		}
		for i := range want {
			if !bytes.Equal(got[i], want[i]) {
				t.Errorf("pieces of %d: frame %d differs", step, i)
			}
		}
		if s.Buffered() != 0 {
			t.Errorf("pieces of %d: %d bytes left", step, s.Buffered())
		}
	}
}

func TestSplitter_limits(t *testing.T) {
	rows := []struct {
		limit, size uint32
		want        error
	}{
		{FrameMaxBeforeOpen, 0, ErrFrameTooSmall},
		{FrameMaxBeforeOpen, 1, ErrFrameTooSmall},
		{FrameMaxBeforeOpen, 2, ErrFrameTooSmall},
		{FrameMaxBeforeOpen, 3, ErrFrameTooSmall},
		{FrameMaxBeforeOpen, 4, nil},
		{FrameMaxBeforeOpen, FrameMaxBeforeOpen, nil},
		{FrameMaxBeforeOpen, FrameMaxBeforeOpen + 1, ErrFrameTooLarge},
		{FrameMaxBeforeOpen, 0x80000000, ErrFrameTooLarge},
		{FrameMaxBeforeOpen, 0xffffffff, ErrFrameTooLarge},
		{FrameMaxDefault, FrameMaxDefault + 1, ErrFrameTooLarge},
		{0, FrameMaxCeiling, nil},
		{0, FrameMaxCeiling + 1, ErrFrameTooLarge},
		{2 * FrameMaxCeiling, 2 * FrameMaxCeiling, nil},
		{2 * FrameMaxCeiling, 2*FrameMaxCeiling + 1, ErrFrameTooLarge},
	}
	for _, r := range rows {
		s := NewSplitter(r.limit)
		copy(s.Space(), binary.BigEndian.AppendUint32(nil, r.size))
		s.Received(4)
		for range 2 {
			payload, err := s.Next()
			if !errors.Is(err, r.want) || payload != nil {
				t.Errorf("size %d at limit %d: %d bytes, %v, want %v", r.size, r.limit, len(payload), err, r.want)
			}
		}
		if len(s.Space()) > 64<<10 {
			t.Errorf("size %d at limit %d: buffer of %d bytes for a claim", r.size, r.limit, len(s.Space()))
		}
	}
}

// The frames ahead of an oversized one are given first.
func TestSplitter_framesBeforeTheOversizedOne(t *testing.T) {
	s := NewSplitter(FrameMaxBeforeOpen)
	input := Append(Append(nil, &Heartbeat{}), &SaslHandshake{1})
	input = append(input, 0xff, 0xff, 0xff, 0xff)
	got, err := feed(s, input, 0)
	if len(got) != 2 || !errors.Is(err, ErrFrameTooLarge) {
		t.Errorf("%d frames, then %v", len(got), err)
	}
}

func TestSplitter_limitOfTheNextFrame(t *testing.T) {
	s := NewSplitter(FrameMaxBeforeOpen)
	input := Append(nil, &Heartbeat{})
	input = append(input, binary.BigEndian.AppendUint32(nil, FrameMaxBeforeOpen+1)...)
	s.Received(copy(s.Space(), input))
	if payload, err := s.Next(); payload == nil || err != nil {
		t.Fatalf("first frame: %v", err)
	}
	s.SetLimit(FrameMaxDefault)
	if payload, err := s.Next(); payload != nil || err != nil {
		t.Errorf("the raised limit does not hold for the frame behind: %v", err)
	}
	if s.Buffered() != SizeSize {
		t.Errorf("%d bytes buffered, want the size alone", s.Buffered())
	}
}

// Before Open a client can make the buffer no larger than 64 KiB, whatever it
// sends; after it, a frame at the limit takes at most about twice that.
func TestSplitter_bufferStaysWithTheLimit(t *testing.T) {
	for _, r := range []struct {
		limit uint32
		most  int
	}{{FrameMaxBeforeOpen, 64 << 10}, {FrameMaxDefault, 2*FrameMaxDefault + 8<<10}} {
		s := NewSplitter(r.limit)
		frame := binary.BigEndian.AppendUint32(nil, r.limit)
		frame = append(frame, make([]byte, r.limit)...)
		for range 20 {
			if _, err := feed(s, frame, 0); err != nil {
				t.Fatal(err)
			}
			if len(s.buf) > r.most {
				t.Fatalf("limit %d: buffer of %d bytes", r.limit, len(s.buf))
			}
		}
	}
}

func TestSplitter_givesALargeBufferBack(t *testing.T) {
	s := NewSplitter(FrameMaxDefault)
	large := append(binary.BigEndian.AppendUint32(nil, FrameMaxDefault), make([]byte, FrameMaxDefault)...)
	if _, err := feed(s, large, 0); err != nil {
		t.Fatal(err)
	}
	small := Append(nil, &Heartbeat{})
	for range roomyReads + 1 {
		if _, err := feed(s, small, 0); err != nil {
			t.Fatal(err)
		}
	}
	if len(s.Space()) > spaceIdle {
		t.Errorf("buffer of %d bytes after %d small frames", len(s.buf), roomyReads+1)
	}
}

func TestSplitter_allocatesNothingForAFrame(t *testing.T) {
	s := NewSplitter(FrameMaxDefault)
	frame := publishOf(100, 100, 1)
	at := 0 // how much of the frame the splitter has; the stream repeats it
	step := func() {
		n := copy(s.Space(), frame[at:])
		at = (at + n) % len(frame)
		s.Received(n)
		for {
			payload, err := s.Next()
			if err != nil {
				t.Fatal(err)
			}
			if payload == nil {
				return
			}
		}
	}
	for range 100 {
		step()
	}
	if n := testing.AllocsPerRun(1000, step); n != 0 {
		t.Errorf("%v allocations a frame", n)
	}
}

func TestSplitter_lendsItsBuffer(t *testing.T) {
	s := NewSplitter(0)
	frame := Append(nil, &Heartbeat{})
	s.Received(copy(s.Space(), frame[:3]))
	if s.Detach() != nil || string(s.Held()) != string(frame[:3]) {
		t.Fatal("gave a buffer away that holds bytes")
	}
	s.Received(copy(s.Space(), frame[3:]))
	if payload, err := s.Next(); err != nil || len(payload) != HeaderSize {
		t.Fatalf("frame %x, %v", payload, err)
	}
	lent := s.Detach()
	if len(lent) != spaceFirst || s.Detach() != nil {
		t.Fatalf("gave %d bytes away", len(lent))
	}
	s.Attach(lent)
	if space := s.Space(); &space[0] != &lent[0] {
		t.Fatal("does not use the buffer that it was given")
	}
	s.Received(copy(s.Space(), frame))
	if payload, err := s.Next(); err != nil || len(payload) != HeaderSize {
		t.Fatalf("frame %x, %v", payload, err)
	}
}
