package protocol

import (
	"fmt"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

// desk steps one replica and keeps what came out.
type desk struct {
	t   *testing.T
	r   *Replica
	now Tick
	out []Output
}

func (d *desk) step(in Input) []Output {
	d.out = d.r.Step(d.now, in, nil)
	return d.out
}

// want steps and compares the kinds of what came out; a send is told by its
// message and addressee.
func (d *desk) want(in Input, want string) []Output {
	d.t.Helper()
	d.step(in)
	got := ""
	for i, o := range d.out {
		if i > 0 {
			got += " "
		}
		switch o.Kind {
		case OutSend:
			got += fmt.Sprintf("%v>%s", o.Message.Kind, o.Peer)
		case OutPropose:
			got += fmt.Sprintf("propose-%v", o.Proposal.Kind)
		case OutRead:
			got += fmt.Sprintf("read>%s:%d-%d", o.Peer, o.LSN, o.Limit)
		default:
			got += o.Kind.String()
		}
	}
	if got != want {
		d.t.Fatalf("%v: got %q, want %q", in.Kind, got, want)
	}
	return d.out
}

// say is a message from a peer in its present session with a leader.
func (d *desk) say(from NodeID, m Message) Input {
	m.Epoch = d.r.leader.epoch
	if p := d.r.leader.peer(from); p != nil && m.Session == 0 {
		m.Session = p.session
	}
	return Input{Kind: InMessage, Peer: from, Message: &m}
}

// next is the next chunk of a leader, of so many bytes.
func (d *desk) next(bytes uint32) Input {
	c := Chunk{Epoch: d.r.leader.epoch, Records: 1, Bytes: bytes}
	c.LSN, c.Offset, c.Before = d.r.Next()
	c.After = c.Before + 1
	return Input{Kind: InAppend, Chunk: c}
}

func leading(t *testing.T, l Limits, c Configuration) (*desk, *Leader) {
	r := reign(t, l, c)
	lead, _ := r.Leading()
	return &desk{t: t, r: r}, lead
}

// TestLeader_acceptsABoundedAmount is B7.
func TestLeader_acceptsABoundedAmount(t *testing.T) {
	d, l := leading(t, Limits{UncommittedBytes: 1000}, threeVoters)
	d.step(d.next(600))
	if l.Accept() != Take || l.Uncommitted() != 600 {
		t.Fatalf("%v at %d", l.Accept(), l.Uncommitted())
	}
	d.step(d.next(600))
	if l.Accept() != Hold {
		t.Fatalf("%v with a majority in session", l.Accept())
	}
	d.step(Input{Kind: InDisconnected, Peer: "b"})
	if l.Accept() != Hold {
		t.Fatalf("%v with c in session", l.Accept())
	}
	d.step(Input{Kind: InDisconnected, Peer: "c"})
	if l.Accept() != Refuse {
		t.Fatalf("%v alone", l.Accept())
	}
	d.step(Input{Kind: InConnected, Peer: "b"})
	if l.Accept() != Refuse {
		t.Fatalf("%v before the session is open", l.Accept())
	}
	d.step(Input{Kind: InDurable, LSN: 3})
	d.step(d.say("b", Message{Kind: MsgWelcome}))
	d.step(d.say("b", Message{Kind: MsgJoined, LSN: 3}))
	d.step(d.say("b", Message{Kind: MsgAck, LSN: 3}))
	if l.Accept() != Take || l.Uncommitted() != 0 {
		t.Fatalf("%v at %d after the commit", l.Accept(), l.Uncommitted())
	}
}

// TestLeader_keepsAWindow: what a follower has not acked is bounded; chunks
// that were not sent are read later, one reading at a time.
func TestLeader_keepsAWindow(t *testing.T) {
	d, l := leading(t, Limits{WindowBytes: 1000}, voters("a", "b"))
	d.want(d.next(600), "write chunk>b sync")
	d.want(d.next(600), "write chunk>b")
	d.want(d.next(600), "write")
	d.want(d.next(600), "write")
	read := d.want(d.say("b", Message{Kind: MsgAck, LSN: 2}), "read>b:4-5")[0]
	if read.Bytes != 400 {
		t.Fatalf("may read %d bytes", read.Bytes)
	}
	d.want(d.next(600), "write") // not before the reading has ended
	in := Input{Kind: InRead, Peer: "b", ID: read.ID, Chunk: Chunk{LSN: 4, Epoch: 1, Bytes: 600}}
	d.want(in, "chunk>b")
	d.want(in, "") // read twice
	d.want(Input{Kind: InReadEnd, Peer: "b", ID: read.ID}, "")
	if p := l.peer("b"); p.next != 5 || p.flight.bytes != 1200 {
		t.Fatalf("next %d, %d bytes in flight", p.next, p.flight.bytes)
	}
	d.want(d.say("b", Message{Kind: MsgAck, LSN: 4}), "read>b:5-6")
}

// TestLeader_retriesAFailedReading: one that brought nothing ends the session;
// the next begins after a while, not at once.
func TestLeader_retriesAFailedReading(t *testing.T) {
	d, _ := leading(t, Limits{WindowChunks: 1}, voters("a", "b"))
	d.step(d.next(10))
	d.step(d.next(10))
	read := d.want(d.say("b", Message{Kind: MsgAck, LSN: 2}), "read>b:3-3")[0]
	d.want(Input{Kind: InReadEnd, Peer: "b", ID: read.ID}, "")
	if at, ok := d.r.Deadline(); !ok || at != 1000 {
		t.Fatalf("deadline %d %v", at, ok)
	}
	d.now = 999
	d.want(Input{Kind: InTick}, "")
	d.now = 1000
	hello := d.want(Input{Kind: InTick}, "hello>b")[0]
	if hello.Message.Session != 2 {
		t.Fatalf("session %d", hello.Message.Session)
	}
	d.now = 2000
	d.want(Input{Kind: InTick}, "hello>b") // unanswered
}

// TestLeader_sharesPending paces the frames of pending updates.
func TestLeader_sharesPending(t *testing.T) {
	d, _ := leading(t, Limits{}, voters("a", "b"))
	d.step(d.next(10)) // the first set goes with the first chunk after the barrier
	d.now = 5
	d.want(Input{Kind: InStored, ID: 1}, "")
	if at, ok := d.r.Deadline(); !ok || at != 20 {
		t.Fatalf("deadline %d %v", at, ok)
	}
	d.now = 20
	m := d.want(Input{Kind: InTick}, "pending>b")[0].Message
	if m.First || m.ID != 0 {
		t.Fatalf("%+v", m)
	}
	d.now = 45
	m = d.want(Input{Kind: InStored, ID: 3}, "pending>b")[0].Message
	if m.First || m.ID != 1 {
		t.Fatalf("%+v", m)
	}
	if _, ok := d.r.Deadline(); ok {
		t.Fatal("nothing is left to do")
	}
}

// TestLeader_queriesShareARound: a query that comes while a round is out needs
// the next one; those that wait share it.
func TestLeader_queriesShareARound(t *testing.T) {
	d, _ := leading(t, Limits{Queries: 3}, threeVoters)
	check := d.want(Input{Kind: InQuery, ID: 1, LSN: 1}, "check>b check>c")[0].Message.ID
	d.want(Input{Kind: InQuery, ID: 2, LSN: 1}, "")
	d.want(Input{Kind: InQuery, ID: 3, LSN: 1}, "")
	d.want(Input{Kind: InQuery, ID: 4, LSN: 1}, "refuse")
	d.want(d.say("b", Message{Kind: MsgChecked, ID: check}), "answer check>b check>c")
	d.want(d.say("c", Message{Kind: MsgChecked, ID: check}), "")
	d.want(d.say("c", Message{Kind: MsgChecked, ID: check + 1}), "answer answer")
}

// TestLeader_queryWaitsForItsChunk is F3 (a).
func TestLeader_queryWaitsForItsChunk(t *testing.T) {
	d, _ := leading(t, Limits{}, voters("a", "b"))
	d.step(d.next(10))
	d.want(Input{Kind: InQuery, ID: 7, LSN: 2}, "check>b")
	d.want(d.say("b", Message{Kind: MsgChecked, ID: 1}), "")
	d.want(Input{Kind: InDurable, LSN: 2}, "")
	d.want(d.say("b", Message{Kind: MsgAck, LSN: 2}), "commit commit>b answer")
}

// TestLeader_isDeposedByAPromise: whoever has promised more ends the reign.
func TestLeader_isDeposedByAPromise(t *testing.T) {
	d, _ := leading(t, Limits{}, threeVoters)
	d.step(Input{Kind: InQuery, ID: 7, LSN: 9})
	d.want(d.say("b", Message{Kind: MsgRefuse, Promised: 2}), "refuse deposed")
	if d.r.Role() != Following {
		t.Fatal(d.r.Role())
	}
	d.want(d.next(10), "refuse")
}

// TestLeader_startsOverWhatRetentionTook: a follower that waits for chunks
// which are gone needs a new search (C4).
func TestLeader_startsOverWhatRetentionTook(t *testing.T) {
	d, _ := leading(t, Limits{WindowChunks: 1}, voters("a", "b", "-c"))
	for range 3 {
		d.step(d.next(10))
	}
	d.step(Input{Kind: InDurable, LSN: 4})
	d.step(d.say("b", Message{Kind: MsgAck, LSN: 2}))
	read := d.out[len(d.out)-1]
	for n := chunk.LSN(3); n <= 4; n++ {
		d.step(Input{Kind: InRead, Peer: "b", ID: read.ID, Chunk: Chunk{LSN: n, Epoch: 1, Bytes: 10}})
	}
	d.step(d.say("b", Message{Kind: MsgAck, LSN: 4}))
	d.want(Input{Kind: InLogStart, Start: &LogStart{LSN: 4, Line: EpochLine{1, 1, 0}}}, "commit>b commit>c")
	d.want(d.say("c", Message{Kind: MsgAck, LSN: 1}), "")
	p := d.r.leader.peer("c")
	p.flight.reset() // its first chunk went, the next is gone
	d.want(Input{Kind: InTick}, "hello>c")
}

// TestLeader_asksAgain: a proposal that was not taken is repeated.
func TestLeader_asksAgain(t *testing.T) {
	d, _ := leading(t, Limits{}, voters("a", "-l"))
	p := d.r.leader.peer("l")
	if !p.proposed {
		t.Fatal("a learner that has caught up is not proposed")
	}
	d.now = 999
	d.want(Input{Kind: InTick}, "")
	d.now = 1000
	got := d.want(Input{Kind: InTick}, "propose-promote")[0].Proposal
	if want := (Proposal{Kind: ProposePromote, Node: "l", Epoch: 1, Config: 1}); got != want {
		t.Fatalf("%+v", got)
	}
}

// TestLeader_transferNeedsATarget is D4.
func TestLeader_transferNeedsATarget(t *testing.T) {
	d, l := leading(t, Limits{}, voters("a", "b", "C", "-l"))
	for _, n := range []NodeID{"a", "C", "c", "l", "x"} {
		if out := d.want(Input{Kind: InTransfer, Peer: n}, "refuse"); out[0].Reason != ReasonTarget {
			t.Fatalf("to %s: %v", n, out[0].Reason)
		}
	}
	d.want(Input{Kind: InTransfer, ID: 5}, "flush")
	if l.Accept() != Hold {
		t.Fatal(l.Accept())
	}
	d.want(Input{Kind: InTransfer, Peer: "b"}, "refuse")
	out := d.want(Input{Kind: InFlushed}, "transfer")
	if out[0].Peer != "b" || out[0].ID != 5 {
		t.Fatalf("%+v", out[0])
	}
	d.want(Input{Kind: InCancel}, "")
	if l.Accept() != Take {
		t.Fatal(l.Accept())
	}
}

// TestLeader_transferHoldsForNoSluggard: publishers wait for a target only once it
// has shown that it keeps up, and not for long then (D4).
func TestLeader_transferHoldsForNoSluggard(t *testing.T) {
	d, l := leading(t, Limits{TransferAfter: 5000, HoldAfter: 1000}, threeVoters)
	begin := d.now
	d.step(d.next(1))
	tail, _, _ := d.r.Next()
	had := tail - 1
	d.want(Input{Kind: InTransfer, Peer: "b"}, "")
	if l.Accept() != Take {
		t.Fatal("publishers wait for a target that lags")
	}
	d.now = begin + 4999
	d.want(Input{Kind: InTick}, "")
	d.now = begin + 5000
	d.want(Input{Kind: InTick}, "transfer-failed")

	// It keeps up, and stops when publishers are held.
	d.want(Input{Kind: InTransfer, Peer: "b"}, "")
	d.step(d.next(1))
	d.now += 10
	held := d.now
	d.want(d.say("b", Message{Kind: MsgAck, LSN: had}), "flush")
	if l.Accept() != Hold {
		t.Fatal("publishers are not held")
	}
	d.want(Input{Kind: InFlushed}, "")
	if at, ok := d.r.Deadline(); !ok || at > held+1000 {
		t.Fatalf("looks again at %d, %v", at, ok)
	}
	d.now = held + 999
	d.step(Input{Kind: InTick})
	if l.Accept() != Hold {
		t.Fatal("too soon")
	}
	d.now = held + 1000
	d.want(Input{Kind: InTick}, "transfer-failed")
	if l.Accept() != Take {
		t.Fatal("publishers are still held")
	}

	// Once it is told, the next epoch may take its time.
	d.want(Input{Kind: InTransfer, Peer: "b"}, "")
	d.step(Input{Kind: InDurable, LSN: had + 1})
	d.step(d.say("b", Message{Kind: MsgAck, LSN: had + 1}))
	d.want(Input{Kind: InFlushed}, "transfer")
	d.now += 4000
	d.step(Input{Kind: InTick})
	if l.Accept() != Hold {
		t.Fatal("it goes on behind the back of its heir")
	}
}

// TestLeader_badChunkPanics: the driver's bugs do not reach the log.
func TestLeader_badChunkPanics(t *testing.T) {
	for name, spoil := range map[string]func(*Chunk){
		"LSN":            func(c *Chunk) { c.LSN++ },
		"epoch":          func(c *Chunk) { c.Epoch++ },
		"offset":         func(c *Chunk) { c.Offset++ },
		"digest":         func(c *Chunk) { c.Before++ },
		"second barrier": func(c *Chunk) { c.Type, c.Flags = chunk.Delta, chunk.FlagEpochStart },
	} {
		d, _ := leading(t, Limits{}, voters("a"))
		in := d.next(10)
		spoil(&in.Chunk)
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			d.step(in)
		}()
	}
}

// TestLeader_stopsAtASecondOne is I1.
func TestLeader_stopsAtASecondOne(t *testing.T) {
	d, _ := leading(t, Limits{}, threeVoters)
	d.want(Input{Kind: InMessage, Peer: "b", Message: &Message{Kind: MsgHello, Stream: 1, Epoch: 1, Session: 1}}, "deposed stopped")
	d.want(Input{Kind: InFence, Epoch: 5}, "refuse")
}
