package protocol

import (
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

var threeVoters = Configuration{Version: 1, Members: []Member{{Node: "a"}, {Node: "b"}, {Node: "c"}}}

// reign brings a replica to lead epoch 1, with its followers in session and
// its barrier appended, durable and committed.
func reign(tb testing.TB, limits Limits, c Configuration) *Replica {
	r, err := New("a", 1, limits, Recovered{Stream: 1})
	if err != nil {
		tb.Fatal(err)
	}
	var out []Output
	step := func(in Input) []Output {
		out = r.Step(0, in, out[:0])
		return out
	}
	id := step(Input{Kind: InFence, Epoch: 1})[0].ID
	step(Input{Kind: InPersisted, ID: id})
	step(Input{Kind: InAssign, Known: true, Assignment: &Assignment{Stream: 1, Epoch: 1, Node: "a", Run: 1, Replicas: c}})
	step(Input{Kind: InAppend, Chunk: Chunk{LSN: 1, Epoch: 1, Type: chunk.Delta, Flags: chunk.FlagEpochStart, Bytes: 100}})
	step(Input{Kind: InDurable, LSN: 1})
	for _, m := range c.Members[1:] {
		s := step(Input{Kind: InConnected, Peer: m.Node})[0].Message.Session
		say := func(k MessageKind, n chunk.LSN) {
			step(Input{Kind: InMessage, Peer: m.Node, Message: &Message{Kind: k, Epoch: 1, Session: s, LSN: n}})
		}
		say(MsgWelcome, 0)
		say(MsgFind, 0)
		say(MsgJoined, 0)
		step(Input{Kind: InRead, Peer: m.Node, ID: uint64(s), Chunk: Chunk{LSN: 1, Epoch: 1, Type: chunk.Delta, Bytes: 100}})
		step(Input{Kind: InReadEnd, Peer: m.Node, ID: uint64(s)})
		say(MsgAck, 1)
	}
	if l, ok := r.Leading(); !ok || !l.Ready() {
		tb.Fatal("not ready")
	}
	return r
}

// leaderLoop returns what one chunk is at a leader of three: appended, sent to
// both followers, durable here, acked by both, committed.
func leaderLoop(tb testing.TB) func() {
	r := reign(tb, Limits{}, threeVoters)
	l, _ := r.Leading()
	acks := [2]Message{}
	for i := range acks {
		acks[i] = Message{Kind: MsgAck, Epoch: 1, Session: l.Peers()[i].session}
	}
	out := make([]Output, 0, 64)
	c := Chunk{LSN: 1, Epoch: 1, Records: 100, Bytes: 10_000}
	return func() {
		c.LSN++
		out = r.Step(0, Input{Kind: InAppend, Chunk: c}, out[:0])
		c.Offset += 100
		out = r.Step(0, Input{Kind: InDurable, LSN: c.LSN}, out[:0])
		for i := range acks {
			acks[i].LSN = c.LSN
			out = r.Step(0, Input{Kind: InMessage, Peer: l.Peers()[i].Member.Node, Message: &acks[i]}, out[:0])
		}
		if r.commit != c.LSN {
			tb.Fatalf("committed %d of %d", r.commit, c.LSN)
		}
	}
}

// follow brings a replica into a session with leader b.
func follow(tb testing.TB) *Replica {
	r, err := New("a", 1, Limits{}, Recovered{Stream: 1, Journal: Journal{Promise: 1}})
	if err != nil {
		tb.Fatal(err)
	}
	hear := func(m Message) {
		m.Epoch, m.Session = 1, 1
		r.Step(0, Input{Kind: InMessage, Peer: "b", Message: &m}, nil)
	}
	hear(Message{Kind: MsgHello, Stream: 1})
	hear(Message{Kind: MsgFound})
	hear(Message{Kind: MsgChunk, First: true, Chunk: Chunk{LSN: 1, Epoch: 1, Type: chunk.Delta, Flags: chunk.FlagEpochStart}})
	if f, ok := r.Following(); !ok || f.phase != followStreaming || r.tail != 1 {
		tb.Fatal("not streaming")
	}
	return r
}

// followerLoop returns what one chunk is at a follower: taken, durable, acked,
// committed with the next.
func followerLoop(tb testing.TB) func() {
	r := follow(tb)
	out := make([]Output, 0, 64)
	m := Message{Kind: MsgChunk, Epoch: 1, Session: 1, Chunk: Chunk{LSN: 1, Epoch: 1, Records: 100, Bytes: 10_000}}
	return func() {
		m.Commit = m.Chunk.LSN
		m.Chunk.LSN++
		out = r.Step(0, Input{Kind: InMessage, Peer: "b", Message: &m}, out[:0])
		m.Chunk.Offset += 100
		out = r.Step(0, Input{Kind: InDurable, LSN: m.Chunk.LSN}, out[:0])
		if r.durable != m.Chunk.LSN || r.commit != m.Chunk.LSN-1 {
			tb.Fatalf("durable %d, committed %d of %d", r.durable, r.commit, m.Chunk.LSN)
		}
	}
}

func BenchmarkLeader(b *testing.B)   { bench(b, leaderLoop(b)) }
func BenchmarkFollower(b *testing.B) { bench(b, followerLoop(b)) }

func bench(b *testing.B, chunk func()) {
	b.ReportAllocs()
	for b.Loop() {
		chunk()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "chunks/s")
}

func TestStep_allocatesNothingPerChunk(t *testing.T) {
	for name, f := range map[string]func(){"leader": leaderLoop(t), "follower": followerLoop(t)} {
		if n := testing.AllocsPerRun(10_000, f); n > 0 {
			t.Errorf("%s: %v allocations a chunk", name, n)
		}
	}
}
