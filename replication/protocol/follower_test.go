package protocol

import (
	"errors"
	"testing"

	"github.com/millrace/millrace/segstore/chunk"
)

func following(t *testing.T) *desk { return &desk{t: t, r: follow(t)} }

// hear is a message from leader b in epoch 1, session 1, unless it says other.
func hear(m Message) Input {
	if m.Epoch == 0 {
		m.Epoch = 1
	}
	if m.Session == 0 {
		m.Session = 1
	}
	return Input{Kind: InMessage, Peer: "b", Message: &m}
}

func user(n chunk.LSN, o chunk.Offset) Chunk {
	return Chunk{LSN: n, Epoch: 1, Offset: o, Records: 1, Bytes: 10}
}

// TestFollower_takesOnlyWhatContinuesItsLog is B2, field by field.
func TestFollower_takesOnlyWhatContinuesItsLog(t *testing.T) {
	good := Message{Kind: MsgChunk, Chunk: user(2, 0)}
	for name, spoil := range map[string]func(*Message){
		"an LSN again":            func(m *Message) { m.Chunk.LSN = 1 },
		"an LSN left out":         func(m *Message) { m.Chunk.LSN = 3 },
		"another base offset":     func(m *Message) { m.Chunk.Offset = 1 },
		"another digest":          func(m *Message) { m.Chunk.Before = 1 },
		"an epoch above":          func(m *Message) { m.Chunk.Epoch = 2 },
		"an epoch below":          func(m *Message) { m.Chunk.Epoch = 0 },
		"a gap that is none":      func(m *Message) { m.Gap = &Gap{} },
		"a gap after another end": func(m *Message) { m.Gap, m.Chunk.LSN, m.First, m.Tail.LSN = &Gap{}, 3, true, 2 },
	} {
		m := good
		spoil(&m)
		d := following(t)
		if out := d.want(hear(m), "refuse>b"); out[0].Message.Reason != ReasonOrder {
			t.Errorf("%s: %v", name, out[0].Message.Reason)
		}
		d.want(hear(good), "") // the session is over
	}
	d := following(t)
	d.want(hear(good), "write")
}

// TestFollower_firstChunkNamesTheOneBefore is B2 at a session's start.
func TestFollower_firstChunkNamesTheOneBefore(t *testing.T) {
	for name, c := range map[string]struct {
		m    Message
		want string
	}{
		"named":         {Message{First: true, Tail: chunk.Tail{Epoch: 1, LSN: 1}}, "write"},
		"not named":     {Message{}, "refuse>b"},
		"another epoch": {Message{First: true, Tail: chunk.Tail{Epoch: 2, LSN: 1}}, "refuse>b"},
		"another LSN":   {Message{First: true, Tail: chunk.Tail{Epoch: 1, LSN: 2}}, "refuse>b"},
	} {
		d := following(t)
		d.step(Input{Kind: InDurable, LSN: 1})
		d.step(hear(Message{Kind: MsgHello, Stream: 1, Session: 2}))
		d.want(hear(Message{Kind: MsgFound, Session: 2, Tail: chunk.Tail{Epoch: 1, LSN: 5}}), "joined>b ack>b")
		c.m.Kind, c.m.Session, c.m.Chunk = MsgChunk, 2, user(2, 0)
		d.step(hear(c.m))
		if got := d.out[0].Kind == OutWrite; got != (c.want == "write") {
			t.Errorf("%s: %v", name, kinds(d.out))
		}
	}
}

// TestFollower_hearsOnlyItsSession is B1: another epoch, another session,
// another node.
func TestFollower_hearsOnlyItsSession(t *testing.T) {
	d := following(t)
	for _, k := range []MessageKind{MsgChunk, MsgCommit, MsgPending, MsgFound, MsgCheck} {
		m := Message{Kind: k, Chunk: user(2, 0), Commit: 9}
		m.Session = 2
		d.want(hear(m), "")
		m.Session, m.Epoch = 1, 2
		d.want(hear(m), "")
		m.Epoch = 1
		d.want(Input{Kind: InMessage, Peer: "c", Message: &m}, "")
	}
}

// TestFollower_refusesHello, and tells why.
func TestFollower_refusesHello(t *testing.T) {
	hello := Message{Kind: MsgHello, Stream: 1, Epoch: 5, Session: 1}
	d := following(t)
	d.step(Input{Kind: InFence, Epoch: 5})
	low := hello
	low.Epoch = 4
	if m := d.want(hear(low), "refuse>b")[0].Message; m.Reason != ReasonPromised || m.Promised != 5 {
		t.Errorf("%+v", m)
	}
	other := hello
	other.Stream = 2
	if m := d.want(hear(other), "refuse>b")[0].Message; m.Reason != ReasonStream {
		t.Errorf("%+v", m)
	}
	d.step(Input{Kind: InDamaged, Tail: chunk.Tail{Epoch: 1, LSN: 1}})
	if m := d.want(hear(hello), "refuse>b")[0].Message; m.Reason != ReasonAside {
		t.Errorf("%+v", m)
	}
}

// TestFollower_promisesBeforeItWelcomes is A2 for a hello.
func TestFollower_promisesBeforeItWelcomes(t *testing.T) {
	d := following(t)
	id := d.want(hear(Message{Kind: MsgHello, Stream: 1, Epoch: 3}), "persist refuse>b")[0].ID
	d.want(hear(Message{Kind: MsgChunk, Chunk: user(2, 0)}), "") // epoch 1 is over
	d.want(Input{Kind: InPersisted, ID: id - 1}, "")
	d.want(Input{Kind: InPersisted, ID: id}, "welcome>b find>b")
}

// TestFollower_stopsAtASecondLeader is I1.
func TestFollower_stopsAtASecondLeader(t *testing.T) {
	d := following(t)
	d.want(Input{Kind: InMessage, Peer: "c", Message: &Message{Kind: MsgHello, Stream: 1, Epoch: 1, Session: 1}}, "refuse>b stopped")
}

// TestFollower_commitIsAtMostItsTail is B5.
func TestFollower_commitIsAtMostItsTail(t *testing.T) {
	d := following(t)
	if out := d.want(hear(Message{Kind: MsgCommit, Commit: 9}), "commit"); out[0].LSN != 1 {
		t.Fatalf("commit %d", out[0].LSN)
	}
	if out := d.want(hear(Message{Kind: MsgChunk, Chunk: user(2, 0)}), "write commit"); out[1].LSN != 2 || out[1].Offset != 1 {
		t.Fatalf("commit %d, offset %d", out[1].LSN, out[1].Offset)
	}
	if n := d.r.Persistable(); n != 0 {
		t.Fatalf("may remember %d, nothing is durable", n)
	}
	d.step(Input{Kind: InDurable, LSN: 1})
	if n := d.r.Persistable(); n != 1 {
		t.Fatalf("may remember %d", n)
	}
}

// TestFollower_gapAboveTheCommitStops is C5.
func TestFollower_gapAboveTheCommitStops(t *testing.T) {
	m := Message{Kind: MsgChunk, Chunk: user(5, 0), First: true, Tail: chunk.Tail{Epoch: 1, LSN: 1}, Gap: &Gap{}, Commit: 3}
	d := following(t)
	d.want(hear(m), "refuse>b stopped")
	d = following(t)
	m.Commit = 4
	out := d.want(hear(m), "gap write commit")
	if out[0].LSN != 4 || out[2].LSN != 4 {
		t.Fatalf("gap to %d, commit %d", out[0].LSN, out[2].LSN)
	}
}

// TestFollower_syncsBeforeACutSayNothing: what was durable before a cut is not
// what was written after it.
func TestFollower_syncsBeforeACutSayNothing(t *testing.T) {
	d := following(t)
	d.step(hear(Message{Kind: MsgChunk, Chunk: user(2, 0)}))
	d.step(hear(Message{Kind: MsgHello, Stream: 1, Session: 2}))
	d.want(hear(Message{Kind: MsgFound, Session: 2, Tail: chunk.Tail{Epoch: 1, LSN: 1}}), "truncate")
	d.want(hear(Message{Kind: MsgChunk, Session: 2, Chunk: user(2, 0)}), "") // not yet
	d.want(Input{Kind: InTruncated, LSN: 1}, "joined>b sync")
	d.want(hear(Message{Kind: MsgChunk, Session: 2, Chunk: user(2, 0), First: true, Tail: chunk.Tail{Epoch: 1, LSN: 1}}), "write")
	d.want(Input{Kind: InDurable, ID: 0, LSN: 2}, "")
	if d.r.Durable().LSN != 0 {
		t.Fatalf("durable %v", d.r.Durable())
	}
	d.want(Input{Kind: InDurable, ID: 1, LSN: 2}, "ack>b")
}

// TestReplica_startCheck is A5, reason by reason.
func TestReplica_startCheck(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*desk, *Assignment)
		want   Reason
	}{
		"another stream":   {func(_ *desk, a *Assignment) { a.Stream = 2 }, ReasonStream},
		"another node":     {func(_ *desk, a *Assignment) { a.Node = "b" }, ReasonOtherRun},
		"another run":      {func(_ *desk, a *Assignment) { a.Run = 9 }, ReasonOtherRun},
		"an older epoch":   {func(_ *desk, a *Assignment) { a.Epoch = 1 }, ReasonPromised},
		"a later promise":  {func(d *desk, _ *Assignment) { d.step(Input{Kind: InFence, Epoch: 3}) }, ReasonPromised},
		"never fenced":     {func(_ *desk, a *Assignment) { a.Epoch = 3 }, ReasonNoReport},
		"damaged since":    {func(d *desk, _ *Assignment) { d.step(Input{Kind: InDamaged, Tail: chunk.Tail{Epoch: 1, LSN: 1}}) }, ReasonNoReport},
		"a newer config":   {func(d *desk, _ *Assignment) { d.step(Input{Kind: InConfig, Config: &Configuration{Version: 2}}) }, ReasonStaleConfig},
		"a tail that went": {func(d *desk, _ *Assignment) { d.r.durable = 0 }, ReasonLostTail},
	} {
		d := following(t)
		d.step(Input{Kind: InDurable, LSN: 1})
		id := d.want(Input{Kind: InFence, Epoch: 2}, "persist refuse>b")[0].ID
		d.want(Input{Kind: InPersisted, ID: id}, "report")
		a := Assignment{Stream: 1, Epoch: 2, Node: "a", Run: 1, Replicas: threeVoters}
		c.change(d, &a)
		if out := d.want(Input{Kind: InAssign, Assignment: &a, Known: true}, "refuse"); out[0].Reason != c.want {
			t.Errorf("%s: %v", name, out[0].Reason)
		}
	}
}

// TestReplica_unknownTrackingDoesNotLead is A6's net.
func TestReplica_unknownTrackingDoesNotLead(t *testing.T) {
	d := following(t)
	id := d.want(Input{Kind: InFence, Epoch: 2}, "persist refuse>b")[0].ID
	d.want(Input{Kind: InPersisted, ID: id}, "report")
	a := Assignment{Stream: 1, Epoch: 2, Node: "a", Run: 1, Replicas: threeVoters}
	if out := d.want(Input{Kind: InAssign, Assignment: &a}, "stopped"); out[0].Reason != ReasonTrackingUnknown {
		t.Error(out[0].Reason)
	}
}

// TestReplica_fenceWaitsForItsPromise is A2, also where a second fence comes
// before the first is answered.
func TestReplica_fenceWaitsForItsPromise(t *testing.T) {
	d := following(t)
	first := d.want(Input{Kind: InFence, Epoch: 2, ID: 20}, "persist refuse>b")[0].ID
	second := d.want(Input{Kind: InFence, Epoch: 3, ID: 30}, "refuse persist")
	if second[0].ID != 20 {
		t.Fatalf("refused %d", second[0].ID)
	}
	d.want(Input{Kind: InPersisted, ID: first}, "")
	out := d.want(Input{Kind: InPersisted, ID: second[1].ID}, "report")
	if out[0].ID != 30 || out[0].Report.Epoch != 3 {
		t.Fatalf("%+v", out[0].Report)
	}
	d.want(Input{Kind: InFence, Epoch: 3, ID: 31}, "report") // asked again
	d.want(Input{Kind: InFence, Epoch: 2, ID: 32}, "refuse")
}

func TestNew_refusesContradictions(t *testing.T) {
	one := []EpochLine{{Epoch: 1, LSN: 1}}
	for name, from := range map[string]Recovered{
		"tail under the log start": {Start: LogStart{LSN: 9}, Tail: 5, Lines: one},
		"a line above the tail":    {Tail: 5, Lines: []EpochLine{{Epoch: 1, LSN: 1}, {Epoch: 2, LSN: 6}}},
	} {
		if _, err := New("a", 1, Limits{}, from); !errors.Is(err, ErrRecovered) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r, err := New("a", 1, Limits{}, Recovered{Tail: 5, Next: 7, Lines: one, Commit: 8})
	if err != nil || !r.Aside() || r.journal.Mark.LSN != 8 || r.commit != 5 {
		t.Errorf("a commit above the tail is damage: %+v, %v", r, err)
	}
	r, err = New("a", 1, Limits{}, Recovered{Tail: 5, Next: 7, Lines: one, Proof: 4})
	if err != nil || r.commit != 4 {
		t.Errorf("what is missing was committed: %d, %v", r.commit, err)
	}
}

// TestFollower_resetsOnlyWhatNobodyKnowsCommitted is C4.
func TestFollower_resetsOnlyWhatNobodyKnowsCommitted(t *testing.T) {
	for start, want := range map[chunk.LSN]string{1: "truncate", 4: "refuse>b stopped", 5: "refuse>b stopped", 6: "reset", 9: "reset"} {
		d := following(t)
		for n := chunk.LSN(2); n <= 8; n++ {
			d.step(hear(Message{Kind: MsgChunk, Chunk: user(n, chunk.Offset(n-2)), Commit: 5}))
		}
		if start == 1 {
			d.r.commit = 0 // or a cut to 0 would be stopped by B6
		}
		d.step(hear(Message{Kind: MsgHello, Stream: 1, Session: 2}))
		begin := LogStart{LSN: start, Offset: 40, Line: EpochLine{Epoch: 3, LSN: 2}, Digest: 7}
		d.want(hear(Message{Kind: MsgFound, Session: 2, Start: begin}), want)
		if want != "reset" {
			continue
		}
		d.want(Input{Kind: InReset}, "commit joined>b ack>b")
		if lsn, next, digest := d.r.Next(); lsn != start || next != 40 || digest != 7 || d.r.Tail() != begin.Tail() {
			t.Errorf("begins at %d, %d, %v after %v", lsn, next, digest, d.r.Tail())
		}
		if n, end := d.r.Commit(); n != start-1 || end != 40 {
			t.Errorf("commit %d, offset %d", n, end)
		}
	}
}

// cutting is a follower whose truncation to 1 is under way.
func cutting(t *testing.T) *desk {
	d := following(t)
	d.step(hear(Message{Kind: MsgChunk, Chunk: user(2, 0)}))
	d.step(hear(Message{Kind: MsgHello, Stream: 1, Session: 2}))
	d.want(hear(Message{Kind: MsgFound, Session: 2, Tail: chunk.Tail{Epoch: 1, LSN: 1}}), "truncate")
	return d
}

// TestFollower_fenceWaitsForTheCut: a report must not speak of what is being
// cut away.
func TestFollower_fenceWaitsForTheCut(t *testing.T) {
	d := cutting(t)
	id := d.want(Input{Kind: InFence, Epoch: 2}, "persist refuse>b")[0].ID
	d.want(Input{Kind: InPersisted, ID: id}, "")
	if out := d.want(Input{Kind: InTruncated, LSN: 1}, "report"); out[0].Report.Tail.LSN > 1 {
		t.Fatalf("%+v", out[0].Report)
	}
	d = cutting(t)
	id = d.step(Input{Kind: InFence, Epoch: 2})[0].ID
	d.want(Input{Kind: InTruncated, LSN: 1}, "")
	d.want(Input{Kind: InPersisted, ID: id}, "report")
}

// TestFollower_nextSessionWaitsForTheCut, which may be of an older one.
func TestFollower_nextSessionWaitsForTheCut(t *testing.T) {
	d := cutting(t)
	d.want(hear(Message{Kind: MsgHello, Stream: 1, Session: 3}), "")
	d.want(Input{Kind: InTruncated, LSN: 1}, "welcome>b find>b")
	d = cutting(t)
	d.want(Input{Kind: InDisconnected, Peer: "b"}, "")
	d.want(Input{Kind: InTruncated, LSN: 1}, "")
	d.want(hear(Message{Kind: MsgHello, Stream: 1, Session: 4}), "welcome>b find>b")
}

// TestReplica_askedLogStart: a log start that E3 did not allow is asked for
// again when a newer snapshot is committed and durable here.
func TestReplica_askedLogStart(t *testing.T) {
	d := following(t)
	if out := d.want(hear(Message{Kind: MsgCommit, Commit: 1, Start: LogStart{LSN: 2}}), "commit log-start"); out[1].LSN != 2 {
		t.Fatalf("%+v", out[1])
	}
	d.want(hear(Message{Kind: MsgCommit, Commit: 1, Start: LogStart{LSN: 2}}), "")
	snap := Chunk{LSN: 2, Epoch: 1, Bytes: 9, Type: chunk.Snapshot,
		Flags: chunk.FlagSegmentStart | chunk.FlagSnapshotFirst | chunk.FlagSnapshotLast}
	d.want(hear(Message{Kind: MsgChunk, Chunk: snap, Commit: 1}), "write")
	d.want(hear(Message{Kind: MsgCommit, Commit: 2}), "commit") // not durable yet
	d.want(Input{Kind: InDurable, LSN: 2}, "log-start ack>b")
	d.want(Input{Kind: InLogStart, Start: &LogStart{LSN: 2, Line: EpochLine{Epoch: 1, LSN: 1}}}, "")
	if got := d.r.start.LSN; got != 2 {
		t.Fatalf("log start %d", got)
	}
}
