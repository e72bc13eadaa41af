package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"go.uber.org/goleak"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

func TestMain(m *testing.M) {
	// memberlist lets a probe under way end by itself, within a second.
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/hashicorp/memberlist.(*Memberlist).probeNode"))
}

// replicas is a Fencer over replicas that hold nothing but what the rules A2
// and A5 are about. A new one with the same disk is the node after a restart.
type replicas struct {
	mu    sync.Mutex
	run   protocol.RunID // of all replicas of this process
	disk  *disk
	leads map[chunk.Incarnation]chunk.Epoch

	fences, installs int // calls
	// refuse makes fences of these streams fail.
	refuse map[string]error
	// installed counts how often a leader of an epoch was started anew.
	installed map[string]int
}

// disk is what survives a restart.
type disk struct {
	promised map[chunk.Incarnation]chunk.Epoch
}

func newDisk() *disk { return &disk{promised: map[chunk.Incarnation]chunk.Epoch{}} }

func newReplicas(d *disk, run protocol.RunID) *replicas {
	return &replicas{disk: d, run: run, leads: map[chunk.Incarnation]chunk.Epoch{}, refuse: map[string]error{}, installed: map[string]int{}}
}

func (r *replicas) Fence(_ context.Context, node protocol.NodeID, requests []catalog.FenceRequest) ([]FenceAnswer, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.fences++
	answers := make([]FenceAnswer, len(requests))
	for i, q := range requests {
		s := q.Stream
		switch err := r.refuse[s.Name]; {
		case err != nil:
			answers[i].Err = err
		case s.Epoch < r.disk.promised[s.Incarnation]:
			answers[i].Err = errors.New("a later epoch is promised")
		default:
			r.disk.promised[s.Incarnation] = s.Epoch
			delete(r.leads, s.Incarnation)
			me, _ := s.Replica(node)
			answers[i].Report = protocol.Report{
				Stream: s.Incarnation, Epoch: s.Epoch, Node: node, Run: r.run, Registration: me.Registration,
			}
		}
	}
	return answers, nil
}

func (r *replicas) Install(_ context.Context, node protocol.NodeID, installations []catalog.Installation) ([]error, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.installs++
	answers := make([]error, len(installations))
	for i, a := range installations {
		switch {
		case r.leads[a.Stream] == a.Epoch:
		case a.Run != r.run || a.Node != node || r.disk.promised[a.Stream] != a.Epoch:
			answers[i] = fmt.Errorf("%w: another run", ErrVoid)
		default:
			r.leads[a.Stream] = a.Epoch
			r.installed[fmt.Sprintf("%s %d", a.Stream, a.Epoch)]++
		}
	}
	return answers, nil
}

func (r *replicas) HandOver(_ context.Context, h catalog.Handover) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leads[h.Stream] != h.Epoch {
		return errors.New("does not lead")
	}
	return nil
}

// fail makes fences of a stream fail, or work again.
func (r *replicas) fail(stream string, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse[stream] = err
}

func (r *replicas) calls() (fences, installs int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.fences, r.installs
}

// patience bounds every wait of these tests; it is a bound for hangs only.
const patience = 30 * time.Second

func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// open starts a node in dir and closes it with the test, if it still runs.
func open(t *testing.T, dir string, f Fencer) *Cluster {
	t.Helper()
	c, err := Open(context.Background(), Config{
		Dir: dir, Node: "n1", Endpoints: catalog.Endpoints{Stream: "localhost:5552"}, Fencer: f,
		Users: []catalog.User{{Name: "guest", Hash: guestHash, Tags: []string{"administrator"}}},
		Log:   hclog.New(&hclog.LoggerOptions{Level: hclog.Warn, Output: testLog{t}}),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

type testLog struct{ t *testing.T }

func (l testLog) Write(b []byte) (int, error) {
	l.t.Logf("%s", b)
	return len(b), nil
}

func create(t *testing.T, c *Cluster, name string) {
	t.Helper()
	if err := c.CreateStream(within(t), CreateStream{VHost: "/", Name: name, Creator: "guest"}); err != nil {
		t.Fatal(err)
	}
}

// eventually waits until ok, asked at each change of the catalog.
func eventually(t *testing.T, c *Cluster, what string, ok func(*catalog.State) bool) {
	t.Helper()
	changed := make(chan struct{}, 1)
	cancel := c.Subscribe(func([]catalog.Change) {
		select {
		case changed <- struct{}{}:
		default:
		}
	})
	defer cancel()
	ctx := within(t)
	for !ok(c.View()) {
		select {
		case <-changed:
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		}
	}
}

var nullLog = hclog.NewNullLogger()
