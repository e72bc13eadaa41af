package node

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"testing"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/cmd/millrace/config"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// TestHolders_askOneAfterAnother: a peer that has not what is asked for is passed
// over, the one that has is kept to, and the request says what is wanted.
func TestHolders_askOneAfterAnother(t *testing.T) {
	var asked []protocol.NodeID
	good := protocol.NodeID("n3")
	p := &holders{nodes: []protocol.NodeID{"n1", "n2", "n3"}, ask: func(_ context.Context, to protocol.NodeID, method uint16, body []byte) ([]byte, error) {
		asked = append(asked, to)
		be := binary.BigEndian
		if method != methodReadRange || len(body) != 28 || be.Uint64(body) != 7 || be.Uint64(body[8:]) != 5 ||
			be.Uint64(body[16:]) != 9 || be.Uint32(body[24:]) != 100 {
			t.Errorf("asked %s by %d % x", to, method, body)
		}
		switch to {
		case good:
			return append(be.AppendUint64(nil, 10), "chunks"...), nil
		case "n2":
			return []byte("short"), nil
		}
		return nil, errors.New("damaged too")
	}}
	for range 2 {
		b, next, err := p.ReadRange(context.Background(), 7, 5, 9, 100)
		if err != nil || next != 10 || !bytes.Equal(b, []byte("chunks")) {
			t.Fatalf("%q, next %d, %v", b, next, err)
		}
	}
	if want := []protocol.NodeID{"n1", "n2", "n3", "n3"}; !slices.Equal(asked, want) {
		t.Errorf("asked %v, want %v", asked, want)
	}
	good = "none"
	if _, _, err := p.ReadRange(context.Background(), 7, 5, 9, 100); err == nil {
		t.Error("nobody has it, and yet no error")
	}
}

func TestHoldersOf_areTheOthers(t *testing.T) {
	n := &Node{config: config.Config{NodeName: "n2"}}
	s := &catalog.Stream{Incarnation: chunk.Incarnation(7)}
	for _, id := range []protocol.NodeID{"n1", "n2", "n3"} {
		s.Replicas = append(s.Replicas, catalog.Replica{Node: id})
	}
	if got := n.holdersOf(s).nodes; !slices.Equal(got, []protocol.NodeID{"n1", "n3"}) {
		t.Errorf("peers %v", got)
	}
}
