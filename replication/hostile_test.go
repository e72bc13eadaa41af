package replication

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// forger makes chunks that would continue a replica's log, but for what a test
// spoils. Its replica must be at rest.
type forger struct {
	f    *fixture
	meta chunk.Meta
}

func newForger(f *fixture) *forger {
	log := f.replica.turns.run.log
	return &forger{f, chunk.Meta{
		Incarnation: streamUnderTest, LSN: log.Tail().LSN + 1, DigestBefore: log.Digest(),
		Timestamp: log.LastTimestamp() + 1, Epoch: log.Tail().Epoch, BaseOffset: log.Next(),
	}}
}

// user makes a user chunk of one message.
func (g *forger) user(body string) *segstore.Chunk {
	c := segstore.NewChunk(0)
	var b chunk.Builder
	b.Reset(c.Head, c.Data)
	b.AppendRun(chunk.AppendSimple(nil, []byte(body)), 1, 1)
	c.Head, c.Data, c.Header = b.Finish(&g.meta)
	return c
}

// control makes a control chunk with this payload.
func (g *forger) control(kind chunk.Type, flags chunk.Flags, payload []byte) *segstore.Chunk {
	g.meta.Flags, g.meta.Trailer = flags, payload
	c := segstore.NewChunk(0)
	c.Head, c.Header = chunk.BuildControl(kind, &g.meta, c.Head)
	return c
}

// bent changes bytes of a head and gives it a right CRC again.
func bent(c *segstore.Chunk, change func(head []byte)) *segstore.Chunk {
	change(c.Head)
	chunk.Restamp(streamUnderTest, c.Head, 0)
	return c
}

// TestHostile_leadersChunks: who rightfully leads sends chunks whose CRCs are
// right and which can't be the next ones. A follower stores none of them, has the
// session end, and follows again in the next one.
func TestHostile_leadersChunks(t *testing.T) {
	be := binary.BigEndian
	rows := []struct {
		name string
		make func(g *forger) *segstore.Chunk
	}{
		{"another digest before", func(g *forger) *segstore.Chunk { g.meta.DigestBefore++; return g.user("x") }},
		{"offsets that jump", func(g *forger) *segstore.Chunk { g.meta.BaseOffset++; return g.user("x") }},
		{"offsets that go back", func(g *forger) *segstore.Chunk { g.meta.BaseOffset--; return g.user("x") }},
		{"offsets beyond 64 bits", func(g *forger) *segstore.Chunk {
			return bent(g.user("x"), func(h []byte) { be.PutUint64(chunk.ClientHeaderOf(h)[24:], ^uint64(0)) })
		}},
		{"an LSN left out", func(g *forger) *segstore.Chunk { g.meta.LSN++; return g.user("x") }},
		{"an LSN again", func(g *forger) *segstore.Chunk { g.meta.LSN--; return g.user("x") }},
		{"an epoch above the session's", func(g *forger) *segstore.Chunk { g.meta.Epoch++; return g.user("x") }},
		{"an epoch below the log's", func(g *forger) *segstore.Chunk { g.meta.Epoch--; return g.user("x") }},
		{"another stream's", func(g *forger) *segstore.Chunk { g.meta.Incarnation++; return g.user("x") }},
		{"a trailer longer than the chunk", func(g *forger) *segstore.Chunk {
			return bent(g.user("x"), func(h []byte) { be.PutUint32(h[36:], 1<<20) })
		}},
		{"a trailer of 4 GiB", func(g *forger) *segstore.Chunk {
			return bent(g.user("x"), func(h []byte) { be.PutUint32(h[36:], ^uint32(0)) })
		}},
		{"data longer than the chunk", func(g *forger) *segstore.Chunk {
			return bent(g.user("x"), func(h []byte) {
				be.PutUint32(h[32:], 1000)
				be.PutUint32(chunk.ClientHeaderOf(h)[36:], 1000)
			})
		}},
		{"more data than the header says", func(g *forger) *segstore.Chunk {
			c := g.user("x")
			c.Data = append(c.Data, 0)
			return c
		}},
		{"an unknown type", func(g *forger) *segstore.Chunk {
			return bent(g.user("x"), func(h []byte) { h[4], chunk.ClientHeaderOf(h)[1] = 9, 9 })
		}},
		{"an unknown flag", func(g *forger) *segstore.Chunk {
			return bent(g.user("x"), func(h []byte) { h[6] = 0x80 })
		}},
		{"a newer format", func(g *forger) *segstore.Chunk {
			return bent(g.user("x"), func(h []byte) { h[3]++ })
		}},
		{"a time before the last one", func(g *forger) *segstore.Chunk { g.meta.Timestamp = 1; return g.user("x") }},
		{"a trailer that is no tracking", func(g *forger) *segstore.Chunk {
			g.meta.Trailer = []byte{0xff, 0xff, 0xff, 0xff, 0xff}
			return g.user("x")
		}},
		{"a delta that is no tracking", func(g *forger) *segstore.Chunk { return g.control(chunk.Delta, 0, []byte{0xff, 0xff, 0xff}) }},
		{"a snapshot that is no tracking", func(g *forger) *segstore.Chunk {
			return g.control(chunk.Snapshot, chunk.FlagSegmentStart|chunk.FlagSnapshotFirst|chunk.FlagSnapshotLast, []byte{0xff, 0xff, 0xff})
		}},
		{"half a snapshot's end", func(g *forger) *segstore.Chunk {
			return g.control(chunk.Snapshot, chunk.FlagSnapshotLast, []byte{0xff, 0xff, 0xff})
		}},
		{"nothing", func(*forger) *segstore.Chunk { return segstore.NewChunk(0) }},
	}
	c := newCluster(t)
	l := c.lead(2, "n1", "n2", "n3")
	p := l.declare("p")
	id := uint64(0)
	publish := func() {
		t.Helper()
		id++
		l.publish(p, message{id: id, body: fmt.Sprint("m", id)})
		c.agree(l, "n2", "n3")
	}
	publish()
	n3 := c.nodes["n3"]
	for _, r := range rows {
		before := n3.replica.Stats()
		leader, _ := l.replica.turns.run.protocol.Leading()
		session := leader.Peers()[1].Session()
		n3.node.Deliver("n1", &Frame{
			Stream: streamUnderTest, Chunk: r.make(newForger(n3)),
			Message: protocol.Message{Kind: protocol.MsgChunk, Epoch: 2, Session: session},
		})
		n3.turn(func() {}) // links are heard before it
		if after := n3.replica.Stats(); after.Log.Tail != before.Log.Tail || after.Role != RoleFollowing {
			t.Fatalf("%s: the tail went from %v to %v; the replica is %v", r.name, before.Log.Tail, after.Log.Tail, after.Role)
		}
		l.node.StreamDown("n3", streamUnderTest) // or a new session would wait for a second
		l.node.StreamUp("n3", streamUnderTest)
		publish()
	}
	l.wantSequence("p", id)
	select {
	case err := <-n3.lost:
		t.Errorf("a run of n3's has ended: %v", err)
	default:
	}
}

// turn runs something in a turn of the replica.
func (f *fixture) turn(what func()) {
	f.t.Helper()
	done := make(chan struct{})
	f.replica.post(event{kind: eventCompact, call: func() { what(); close(done) }})
	<-done
}
