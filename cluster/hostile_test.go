package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/link"
	"github.com/millrace/millrace/replication/protocol"
)

// What a node that has proven itself may send all the same: nothing of it
// changes anything or ends the node.
func TestHostile_knocksAndRequests(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	leader := leaderOf(t, sites)
	ctx := within(t)
	me := introduction{Node: "x", Disk: "d", Boot: "b", Address: "nowhere:1"}
	for name, q := range map[string]any{
		"nothing": "", "a list": []int{1}, "a number": 4,
		"another's name":           question{Ask: askJoin, Me: introduction{Node: "n2", Disk: "d"}},
		"an unknown question":      question{Ask: "riddle", Me: me},
		"a join without a node":    question{Ask: askJoin, Me: me},
		"a join of another node":   question{Ask: askJoin, Me: me, Join: &catalog.PutNode{ID: "y", Disk: "d"}},
		"a join of another disk":   question{Ask: askJoin, Me: me, Join: &catalog.PutNode{ID: "x", Disk: "e"}},
		"of another cluster":       question{Ask: askHello, Me: introduction{Node: "x", Cluster: "another"}},
		"a bad name":               question{Ask: askJoin, Me: introduction{Node: "x\n", Disk: "d"}, Join: &catalog.PutNode{ID: "x\n", Disk: "d"}},
		"a pledge from a member":   question{Ask: askPledge, Me: introduction{Node: "n2", Disk: "d", Cluster: leader.ID(), Boot: "b"}},
		"a member's name, another": question{Ask: askJoin, Me: introduction{Node: others(sites, leader)[0].name, Disk: "z", Boot: "b"}, Join: &catalog.PutNode{ID: others(sites, leader)[0].name, Disk: "z"}},
	} {
		from := protocol.NodeID("x")
		if typed, ok := q.(question); ok && name != "another's name" {
			from = typed.Me.Node
		}
		var w welcome
		if err := json.Unmarshal(leader.Knocked(ctx, from, encode(q)), &w); err != nil {
			t.Errorf("%s: answer can't be read: %v", name, err)
		}
		if w.Failure == nil && !(name == "a pledge from a member" && !w.Pledged) {
			t.Errorf("%s: answered %+v", name, w)
		}
	}
	unknown := encode(proposal{Commands: [][]byte{[]byte(`{"v":1,"type":"stream.polish","at":1,"body":{}}`)}})
	for name, r := range map[string]struct {
		method uint16
		body   []byte
	}{
		"no method":           {0x01ff, nil},
		"no JSON":             {methodPropose, []byte{0xff, 0}},
		"cut short":           {methodCreate, []byte(`{"VHost":"/","Na`)},
		"an unknown command":  {methodPropose, unknown},
		"a later version":     {methodPropose, encode(proposal{Commands: [][]byte{[]byte(`{"v":99,"type":"vhost.create","at":1,"body":{}}`)}})},
		"an unknown field":    {methodPropose, encode(proposal{Commands: [][]byte{[]byte(`{"v":1,"type":"vhost.create","at":1,"body":{"name":"v","colour":1}}`)}})},
		"a stream of no name": {methodCreate, encode(CreateStream{VHost: "/", Incarnation: 7})},
		"a node that is none": {methodRemove, encode("n9")},
	} {
		if status, body := leader.Asked(ctx, "n2", r.method, r.body); status != statusFailed {
			t.Errorf("%s: status %d, %s", name, status, body)
		}
	}
	nodes := 0
	for range leader.View().Nodes() {
		nodes++
	}
	if leader.Err() != nil || nodes != 3 || leader.View().StreamCount() != 0 {
		t.Errorf("%d nodes, %d streams, %v", nodes, leader.View().StreamCount(), leader.Err())
	}
	create(t, others(sites, leader)[0].Cluster, "all-well")
}

// A member that sends raft what is no raft is cut off; raft goes on in its term.
func TestHostile_raftBytes(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	leader := leaderOf(t, sites)
	gone := others(sites, leader)[0]
	gone.stop()
	secret := make([]byte, 32)
	secret[0] = gone.town.secret
	rogue, err := link.NewMux(link.MuxConfig{
		Listener: gone.bind(), Cluster: leader.ID(), Node: gone.name, Security: shared{secret},
		Address: func(protocol.NodeID) (string, error) { return leader.addr, nil },
	})
	if err != nil {
		t.Fatal(err)
	}
	defer rogue.Close()
	layer := rogue.Raft()
	term := leader.meta.instance().CurrentTerm()
	for name, b := range map[string][]byte{
		"zeros":               make([]byte, 64),
		"an unknown command":  {0xee, 1, 2, 3},
		"a map of a billion":  {0, 0xdf, 0x3b, 0x9a, 0xca, 0x00},
		"bytes of 4 GiB":      {0, 0xc6, 0xff, 0xff, 0xff, 0xff},
		"a snapshot of bytes": append([]byte{2}, bytes.Repeat([]byte{0xff}, 4096)...),
		"HTTP":                []byte("GET / HTTP/1.1\r\n\r\n"),
	} {
		c, err := layer.Dial(leader.name, patience)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if _, err := c.Write(b); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		_, _ = io.Copy(io.Discard, c) // closed, or waiting for more
		_ = c.Close()
	}
	create(t, leader.Cluster, "goes-on")
	if now := leader.meta.instance().CurrentTerm(); now != term || !leader.leads() {
		t.Errorf("the term went from %d to %d", term, now)
	}
}

// A snapshot that is cut short anywhere is refused as a whole.
func TestHostile_snapshotCutShort(t *testing.T) {
	next, _, _ := catalog.New().Do(catalog.Command{Body: &catalog.CreateVHost{Name: "v"}})
	var sink discardSink
	if err := (&frozen{next, 77}).Persist(&sink); err != nil {
		t.Fatal(err)
	}
	whole := sink.Bytes()
	for cut := range len(whole) {
		failed := error(nil)
		m := &machine{view: new(atomic.Pointer[catalog.State]), shown: new(watermark), told: &listeners{}, failed: func(err error) { failed = err }, state: catalog.New()}
		if err := m.Restore(io.NopCloser(bytes.NewReader(whole[:cut]))); err == nil || failed == nil || m.view.Load() != nil {
			t.Fatalf("cut to %d of %d bytes: %v, told %v", cut, len(whole), err, failed)
		}
	}
	m, failed := offlineMachine()
	if err := m.Restore(io.NopCloser(bytes.NewReader(whole))); err != nil || *failed != nil || m.applied != 77 {
		t.Fatalf("whole: %v, applied %d", err, m.applied)
	}
	// One that was made before snapshots had an index is read too.
	if err := m.Restore(io.NopCloser(bytes.NewReader(next.Encode()))); err != nil || m.applied != 0 {
		t.Fatalf("without an index: %v", err)
	}
}

type discardSink struct{ bytes.Buffer }

func (*discardSink) ID() string    { return "1" }
func (*discardSink) Cancel() error { return nil }
func (*discardSink) Close() error  { return nil }

// An entry of an unknown type in the log stops every node alike, each with a
// reason that says what to do.
func TestHostile_unknownEntryStopsAllAlike(t *testing.T) {
	t.Parallel()
	sites := newTown(t).gather("n1", "n2", "n3")
	voting(t, sites, 3, 0)
	later := []byte(`{"v":1,"type":"stream.polish","at":1,"body":{}}`)
	if err := leaderOf(t, sites).meta.instance().Apply(later, time.Second).Error(); err != nil {
		t.Fatal(err)
	}
	for _, s := range sites {
		select {
		case <-s.Failed():
		case <-time.After(patience):
			t.Fatalf("%s goes on", s.name)
		}
		if err := s.Err(); !errors.Is(err, catalog.ErrUnknownCommand) || !strings.Contains(err.Error(), "upgrade this node") {
			t.Errorf("%s: %v", s.name, err)
		}
		if string(s.View().Encode()) != string(sites[0].View().Encode()) {
			t.Errorf("%s has another catalog", s.name)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if err := sites[0].CreateVHost(ctx, "", "v"); err == nil {
		t.Error("a change after that")
	}
}
