package wire

import "encoding/binary"

// The limits of a frame's size, in bytes, without the size bytes themselves.
const (
	// FrameMaxBeforeOpen holds until Open has succeeded.
	FrameMaxBeforeOpen = 8 << 10
	// FrameMaxDefault is what a server proposes.
	FrameMaxDefault = 1 << 20
	// FrameMaxCeiling is what a limit of 0, "no limit", comes to.
	FrameMaxCeiling = 16 << 20
)

const (
	spaceFirst = 4 << 10   // the first buffer
	spaceReads = 256 << 10 // buffers grow up to this by reads that fill them
	// readsPerLimit keeps the buffer small while the limit is.
	readsPerLimit = 2
	spaceIdle     = 64 << 10 // an empty buffer above this is given back in time
	// roomyReads is after how many reads in a row that used less than a quarter
	// of a large buffer it is given back.
	roomyReads = 64
)

// Splitter cuts a stream of bytes into frames. Its owner reads into Space,
// says so by Received, and takes frames by Next until there is none:
//
//	n, err := conn.Read(s.Space())
//	s.Received(n)
//	for payload, err := s.Next(); payload != nil || err != nil; … { … }
//
// The buffer grows with the bytes that came, never with the size that a frame
// claims: it doubles only when it is full. A claim above the limit fails as
// soon as the four size bytes are there.
type Splitter struct {
	buf []byte
	// Invariant: 0 <= start <= end <= len(buf); buf[start:end] is not yet taken.
	start, end int
	limit      uint32
	roomy      int // reads in a row that used less than a quarter
}

// NewSplitter returns a Splitter with a limit as SetLimit takes it.
func NewSplitter(limit uint32) *Splitter {
	s := new(Splitter)
	s.SetLimit(limit)
	return s
}

// SetLimit sets the largest size of the frames that Next has not yet given,
// without the size bytes. 0 means FrameMaxCeiling. Servers clamp what they
// negotiate to that; clients may have to take more, since a broker may deliver
// larger chunks.
func (s *Splitter) SetLimit(limit uint32) {
	if limit == 0 {
		limit = FrameMaxCeiling
	}
	s.limit = limit
}

// Space returns where to read to, never empty. It makes the frames that Next
// gave invalid.
func (s *Splitter) Space() []byte {
	if s.start == s.end {
		s.start, s.end = 0, 0
		s.giveBack()
	}
	if len(s.buf) == 0 {
		s.buf = make([]byte, spaceFirst)
	}
	if s.end == len(s.buf) {
		s.makeRoom()
	}
	return s.buf[s.end:]
}

// Received says that n bytes were read into Space.
func (s *Splitter) Received(n int) {
	filled := n == len(s.buf)-s.end
	s.end += n
	if s.end-s.start < len(s.buf)/4 {
		s.roomy++
	} else {
		s.roomy = 0
	}
	// More is waiting than fits: larger reads mean fewer of them.
	if filled && len(s.buf) < min(spaceReads, readsPerLimit*int(s.limit)) {
		s.resize(2 * len(s.buf))
	}
}

// Next returns the payload of the next whole frame, nil if there is none yet.
// The payload is at least HeaderSize long and valid until Space is called. The
// error is ErrFrameTooLarge or ErrFrameTooSmall, and stays.
func (s *Splitter) Next() ([]byte, error) {
	have := s.buf[s.start:s.end]
	if len(have) < SizeSize {
		return nil, nil
	}
	size := binary.BigEndian.Uint32(have)
	switch {
	case size > s.limit:
		return nil, ErrFrameTooLarge
	case size < HeaderSize:
		return nil, ErrFrameTooSmall
	}
	end := SizeSize + int(size)
	if len(have) < end {
		return nil, nil
	}
	s.start += end
	return have[SizeSize:end:end], nil
}

// Buffered is the number of bytes received and not yet given: after Next had
// no frame, those of a frame that is not complete.
func (s *Splitter) Buffered() int { return s.end - s.start }

// Held returns the bytes that Buffered counts, valid until Space is called.
func (s *Splitter) Held() []byte { return s.buf[s.start:s.end] }

// Detach takes the buffer from a Splitter that holds no bytes, so that its owner
// can wait for some without memory; nil if it holds any, or has no buffer.
func (s *Splitter) Detach() []byte {
	if s.start < s.end {
		return nil
	}
	buf := s.buf
	s.buf, s.start, s.end = nil, 0, 0
	return buf
}

// Attach gives a Splitter without a buffer one to use; it may grow out of it.
func (s *Splitter) Attach(buf []byte) {
	if s.buf == nil {
		s.buf = buf[:cap(buf)]
	}
}

// makeRoom makes a full buffer have space behind what is still needed.
func (s *Splitter) makeRoom() {
	if s.start >= len(s.buf)/4 {
		s.end = copy(s.buf, s.buf[s.start:s.end])
		s.start = 0
		return
	}
	s.resize(2 * len(s.buf))
}

func (s *Splitter) resize(size int) {
	bigger := make([]byte, size)
	s.end = copy(bigger, s.buf[s.start:s.end])
	s.start, s.buf = 0, bigger
}

// giveBack drops an empty buffer that has been far too large for a while.
func (s *Splitter) giveBack() {
	if len(s.buf) > spaceIdle && s.roomy >= roomyReads {
		s.buf, s.roomy = nil, 0
	}
}
