package broker_test

import (
	"context"
	"errors"
	"testing"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// realNode runs real replicas, each a group of one; only the coordinator that
// would elect them is played.
type realNode struct {
	*fakeNode
	node *replication.Node
	lost chan error // why runs ended
}

func newRealNode(t testing.TB, fs vfs.FS, dir string) *realNode {
	n := &realNode{fakeNode: newFakeNode(t, fs, dir), lost: make(chan error, 16)}
	n.node = replication.NewNode(replication.Config{
		ID: nodeName, Store: n.store, Lost: func(_ chunk.Incarnation, err error) { n.lost <- err },
	})
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := n.node.Close(ctx); err != nil {
			t.Errorf("close node: %v", err)
		}
	})
	return n
}

func (n *realNode) CreateStream(ctx context.Context, request broker.CreateStream) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, err := n.catalogueLocked(request)
	if err != nil {
		return err
	}
	settings := replication.Settings{FilterLength: request.Arguments.FilterSize()}
	settings.RetainBytes, _ = request.Arguments.MaxLength()
	settings.Log.SegmentBytes = request.Arguments.SegmentSize()
	stream := replication.Stream{Incarnation: s.Incarnation, Name: s.Name, Settings: settings}
	if _, err := n.node.Open(stream, true); err != nil {
		return err
	}
	return n.leadLocked(ctx, s)
}

// CreateSuperStream makes the partitions, then the super stream over them.
func (n *realNode) CreateSuperStream(ctx context.Context, request broker.CreateSuperStream) error {
	if err := n.fakeNode.CreateSuperStream(ctx, request); err != nil {
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range request.Partitions {
		s, _ := n.state.Stream(request.VHost, p.Stream)
		if _, err := n.node.Open(replication.Stream{Incarnation: s.Incarnation, Name: s.Name}, true); err != nil {
			return err
		}
		if err := n.leadLocked(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// lead elects this node's replica for the epoch that a stream is in.
func (n *realNode) lead(t testing.TB, name string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	s, _ := n.state.Stream("/", name)
	if err := n.leadLocked(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

// leadLocked elects this node's replica for the stream's epoch.
func (n *realNode) leadLocked(ctx context.Context, s *catalog.Stream) error {
	fenced := n.node.Fence(ctx, []replication.FenceRequest{{Stream: s.Incarnation, Epoch: s.Epoch}})[0]
	if fenced.Err != nil {
		return fenced.Err
	}
	err := n.applyLocked(&catalog.AssignLeaders{Leaders: []catalog.Assign{{
		Stream: s.Incarnation, Epoch: s.Epoch, Node: nodeName, Run: fenced.Report.Run, ConfigVersion: s.ConfigVersion,
	}}})
	if err != nil {
		return err
	}
	led, _ := n.state.Incarnation(s.Incarnation)
	assignment, ok := led.Assignment()
	if !ok {
		return errors.New("no leader")
	}
	return n.node.Assign(ctx, assignment, nil)
}

func (n *realNode) DeleteStream(ctx context.Context, vhost, name string) error {
	n.mu.Lock()
	s, ok := n.state.Stream(vhost, name)
	n.mu.Unlock()
	if !ok {
		return catalog.ErrStreamMissing
	}
	if err := n.apply(&catalog.DeleteStreams{Streams: []catalog.OldStream{{
		VHost: vhost, Name: name, Incarnation: s.Incarnation,
	}}}); err != nil {
		return err
	}
	return n.node.Remove(ctx, s.Incarnation)
}

func (n *realNode) Replica(stream chunk.Incarnation) (broker.Replica, bool) {
	return broker.ReplicasOf(n.node).Replica(stream)
}

// serveReal is serve with real replicas.
func serveReal(t testing.TB, fs vfs.FS, dir string, change func(*broker.Config)) *house {
	t.Helper()
	node := newRealNode(t, fs, dir)
	h := startBroker(t, node, node, change)
	h.fakeNode = node.fakeNode
	return h
}
