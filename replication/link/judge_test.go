package link

import (
	"errors"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

func TestJudge(t *testing.T) {
	led := Standing{Known: true, Replica: true, Epoch: 5, Leader: "a"}
	with := func(s Standing, change func(*Standing)) Standing {
		change(&s)
		return s
	}
	rows := []struct {
		name string
		s    Standing
		from protocol.NodeID
		kind protocol.MessageKind
		e    chunk.Epoch
		want error
	}{
		{"the leader's chunk", led, "a", protocol.MsgChunk, 5, nil},
		{"another's chunk in its epoch", led, "b", protocol.MsgChunk, 5, ErrNotLeader},
		{"a chunk of an older epoch", led, "a", protocol.MsgChunk, 4, ErrNotLeader},
		{"a chunk of an epoch that nobody gave out", led, "b", protocol.MsgChunk, 6, ErrEpochAhead},
		{"pending updates of no leader", led, "b", protocol.MsgPending, 5, ErrNotLeader},
		{"a commit of no leader", led, "b", protocol.MsgCommit, 5, ErrNotLeader},
		{"a deposed leader's hello, to be refused by the protocol", led, "b", protocol.MsgHello, 4, nil},
		{"a deposed leader's check", led, "b", protocol.MsgCheck, 4, nil},
		{"hello during an election", with(led, func(s *Standing) { s.Leader = "" }), "b", protocol.MsgHello, 5, nil},
		{"of a node without a replica", with(led, func(s *Standing) { s.Leader, s.Replica = "", false }), "b", protocol.MsgHello, 5, ErrNotReplica},
		{"a leader that was removed leads on", with(led, func(s *Standing) { s.Replica = false }), "a", protocol.MsgChunk, 5, nil},
		{"another incarnation", Standing{}, "a", protocol.MsgChunk, 5, ErrUnknownStream},
		{"a chunk to who leads", with(led, func(s *Standing) { s.Leader, s.Leads = "", 5 }), "b", protocol.MsgChunk, 5, ErrNotLeader},
		{"a hello to who leads", with(led, func(s *Standing) { s.Leader, s.Leads = "", 5 }), "b", protocol.MsgHello, 5, ErrNotLeader},
		{"a hello of the next leader to who led", with(led, func(s *Standing) { s.Epoch, s.Leader, s.Leads = 6, "", 5 }), "b", protocol.MsgHello, 6, nil},
		{"an ack to the leader", with(led, func(s *Standing) { s.Leads = 5 }), "b", protocol.MsgAck, 5, nil},
		{"an ack to a follower", led, "b", protocol.MsgAck, 5, ErrDirection},
		{"an ack of no epoch to a follower", led, "b", protocol.MsgAck, 0, ErrDirection},
		{"an ack of another epoch", with(led, func(s *Standing) { s.Leads = 5 }), "b", protocol.MsgAck, 4, ErrDirection},
		{"an ack of a node without a replica", with(led, func(s *Standing) { s.Leads, s.Replica = 5, false }), "b", protocol.MsgAck, 5, ErrNotReplica},
	}
	for _, r := range rows {
		err := Judge(r.s, r.from, &Frame{Message: protocol.Message{Kind: r.kind, Epoch: r.e}})
		if !errors.Is(err, r.want) {
			t.Errorf("%s: %v, want %v", r.name, err, r.want)
		}
	}
}

// A valid node pushes chunks for a stream that it does not lead: none gets in,
// its other frames do, and the link stays.
func TestLinks_chunksOfNoLeaderStayOut(t *testing.T) {
	a, b := pair(t, nil)
	b.mu.Lock()
	b.admit = func(from protocol.NodeID, f *Frame) error {
		s := Standing{Known: f.Stream != 3, Replica: true, Epoch: 3, Leader: "a"}
		if f.Stream == 1 {
			s.Leader = "c"
		}
		err := Judge(s, from, f)
		if err != nil {
			b.note("refused")
		}
		return err
	}
	b.mu.Unlock()
	for n := range 100 {
		a.links.Send("b", chunkFrame(1, n, 200<<10)) // beyond the window too
		a.links.Send("b", chunkFrame(3, n, 200))
	}
	a.links.Send("b", chunkFrame(2, 0, 10))
	a.links.Send("b", chunkFrame(1, 0, 10))
	// Streams have connections of their own, so the good one may come first.
	b.wait("the one that leads, and the others", func() bool { return len(b.frames) > 0 && b.count("refused") > 100 })
	if s := b.links.Stats(); s.Connected != 1 || s.RefusedFrames < 100 {
		t.Errorf("stats %+v", s)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.frames) != 1 || b.frames[0].Stream != 2 || b.count("down a") > 0 {
		t.Fatalf("%d frames, events %q", len(b.frames), b.events)
	}
}
