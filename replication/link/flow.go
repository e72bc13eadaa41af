package link

import (
	"fmt"

	"github.com/millrace/millrace/segstore/chunk"
)

// flow is what a connection's peer has sent of each stream and is not yet told
// that it was taken. At most a window of it, and one frame, is ever there.
type flow struct {
	window int
	in     map[chunk.Incarnation]*inflow
	owing  []*inflow // owe something; told at the next tick
}

type inflow struct {
	stream  chunk.Incarnation
	waiting int // delivered and not taken
	owed    int // taken and not told
	listed  bool
	taken   func(int) // made once, so that a frame costs no allocation
}

func (f *flow) init(window int) {
	f.window = window
	f.in = map[chunk.Incarnation]*inflow{}
}

// arrived counts a frame; one beyond the window is an ErrCredit.
func (f *flow) arrived(s chunk.Incarnation, n int, taken func(chunk.Incarnation) func(int)) (func(int), error) {
	in := f.in[s]
	if in == nil {
		in = &inflow{stream: s, taken: taken(s)}
		f.in[s] = in
	}
	if in.waiting+in.owed >= f.window {
		return nil, fmt.Errorf("stream %v, %d bytes not taken: %w", s, in.waiting, ErrCredit)
	}
	in.waiting += n
	return in.taken, nil
}

// taken counts bytes that were dealt with, and returns what the peer is to be
// told right now.
func (f *flow) taken(s chunk.Incarnation, n int) (give int) {
	in := f.in[s]
	if in == nil {
		return 0 // the bundle is over
	}
	if n > in.waiting {
		panic(fmt.Sprintf("link: %d bytes of stream %v taken, %d had come", n, s, in.waiting))
	}
	in.waiting -= n
	in.owed += n
	if in.owed >= f.window/2 {
		give, in.owed = in.owed, 0
		return give
	}
	if !in.listed {
		in.listed = true
		f.owing = append(f.owing, in)
	}
	return 0
}

// tick tells what is owed, and forgets streams that have nothing under way.
func (f *flow) tick(give func(s chunk.Incarnation, n int)) {
	for _, in := range f.owing {
		in.listed = false
		if in.owed > 0 {
			give(in.stream, in.owed)
			in.owed = 0
		}
		if in.waiting == 0 {
			delete(f.in, in.stream)
		}
	}
	clear(f.owing)
	f.owing = f.owing[:0]
}
