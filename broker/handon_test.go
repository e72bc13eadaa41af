package broker_test

import (
	"testing"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// storer is a client whose stores go from the entry node to the leader's.
type storer struct {
	*twoNodes
	*peer
	t *testing.T
}

func storing(t *testing.T) *storer {
	n := serveTwo(t, nil)
	n.created(t, "s")
	s := &storer{n, n.open(t), t}
	s.skip[wire.KeyMetadataUpdate] = true // of the stream's election, if that is heard of late
	s.store(5)
	s.wantOffset(5)
	eventually(t, "the entry node has heard", n.wire.answered)
	return s
}

// store stores an offset, and waits until its node has taken it.
func (s *storer) store(offset uint64) {
	s.t.Helper()
	s.send(&wire.StoreOffset{Reference: "r", Stream: "s", Offset: offset})
	s.ask(&wire.ExchangeCommandVersions{Correlation: s.next()}) // behind it
}

func (s *storer) stored() chunk.Offset {
	offset, _, err := s.replica(s.t, "s").QueryOffset("r")
	if err != nil {
		s.t.Fatal(err)
	}
	return offset
}

func (s *storer) wantOffset(want chunk.Offset) {
	s.t.Helper()
	eventually(s.t, "the leader has the offset", func() bool { return s.stored() == want })
}

// mended mends the link, and waits until what was kept has had its answer.
func (s *storer) mended() {
	s.t.Helper()
	before := s.wire.asked(methodStore)
	s.wire.mend()
	eventually(s.t, "what was kept is sent", func() bool { return s.wire.asked(methodStore) > before })
}

const methodStore broker.Method = 6

// What a client stores while the link to the leader's node is broken gets there
// once it is back: the last of it, though the client stores nothing more.
func TestHandOn_acrossABreak(t *testing.T) {
	s := storing(t)
	s.wire.cut()
	s.store(6)
	s.store(7)
	if got := s.stored(); got != 5 {
		t.Fatalf("stored is %d while the link is broken", got)
	}
	s.mended()
	s.wantOffset(7)
}

// What was on its way when the link broke may have come through without an answer:
// it is the node's own, and stands against nothing that is sent once more.
func TestHandOn_underWay(t *testing.T) {
	s := storing(t)
	s.wire.hold()
	s.send(&wire.StoreOffset{Reference: "r", Stream: "s", Offset: 6})
	s.wantOffset(6) // and no answer
	s.store(7)      // waits for that
	s.wire.cut()
	s.store(8)
	s.mended()
	s.wantOffset(8)
}

// What was stored by way of another node meanwhile stands, higher or lower.
func TestHandOn_overtaken(t *testing.T) {
	for _, newer := range []uint64{3, 9} {
		s := storing(t)
		s.wire.cut()
		s.store(7)
		other := s.leader.open(t)
		other.send(&wire.StoreOffset{Reference: "r", Stream: "s", Offset: newer})
		s.wantOffset(chunk.Offset(newer))
		s.mended()
		s.ask(&wire.QueryOffset{Correlation: s.next(), Reference: "r", Stream: "s"}) // behind it
		if got := s.stored(); got != chunk.Offset(newer) {
			t.Errorf("stored is %d, the last client stored %d", got, newer)
		}
	}
}

// Once the client has stored again over the link that is back, nothing older comes.
func TestHandOn_newestLast(t *testing.T) {
	s := storing(t)
	s.wire.cut()
	s.store(7)
	s.wire.mend()
	s.store(8)
	s.wantOffset(8)
	s.ask(&wire.QueryOffset{Correlation: s.next(), Reference: "r", Stream: "s"})
	if got := s.stored(); got != 8 {
		t.Errorf("stored is %d, want 8", got)
	}
}
