package replication

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

const streamUnderTest chunk.Incarnation = 0x5eed

// alone is the configuration of a stream whose only replica is on node n1.
var alone = protocol.Configuration{Version: 1, Members: []protocol.Member{{Node: "n1"}}}

// fixture is a node with one stream, on a file system of the test's choice.
type fixture struct {
	t       testing.TB
	fs      vfs.FS
	dir     string
	config  Config
	stream  Stream
	store   *segstore.Store
	node    *Node
	replica *Replica
	lost    chan error
}

// newFixture makes the stream on a file system and starts it; nobody leads.
func newFixture(t testing.TB, fsys vfs.FS, dir string, change ...func(*fixture)) *fixture {
	t.Helper()
	f := &fixture{
		t: t, fs: fsys, dir: dir, config: Config{ID: "n1"}, lost: make(chan error, 100),
		stream: Stream{Incarnation: streamUnderTest, Name: "orders"},
	}
	for _, c := range change {
		c(f)
	}
	f.start(true)
	t.Cleanup(f.stop)
	return f
}

func (f *fixture) start(isNew bool) {
	f.t.Helper()
	var err error
	f.store, err = segstore.NewStore(segstore.Options{FS: f.fs, Dir: f.dir})
	f.must(err)
	f.config.Store = f.store
	f.config.Lost = func(_ chunk.Incarnation, err error) { f.lost <- err }
	f.node = NewNode(f.config)
	f.replica, err = f.node.Open(f.stream, isNew)
	f.must(err)
}

// stop closes everything in order; what fails then matters to no test.
func (f *fixture) stop() {
	if f.node != nil {
		// A leader that is cut off never gets its last offsets committed.
		ctx, cancel := context.WithTimeout(context.Background(), 500*time.Millisecond)
		defer cancel()
		_ = f.node.Close(ctx)
		_ = f.store.Close()
	}
	f.node, f.store = nil, nil
}

// on returns a node that starts from what another file system holds.
func (f *fixture) on(fsys vfs.FS) *fixture {
	f.t.Helper()
	g := &fixture{t: f.t, fs: fsys, dir: f.dir, config: f.config, stream: f.stream, lost: make(chan error, 100)}
	g.start(false)
	f.t.Cleanup(g.stop)
	return g
}

func (f *fixture) context() context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	f.t.Cleanup(cancel)
	return ctx
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// fence has the replica promise an epoch.
func (f *fixture) fence(epoch chunk.Epoch) protocol.Report {
	f.t.Helper()
	result := f.node.Fence(f.context(), []FenceRequest{{streamUnderTest, epoch}})[0]
	f.must(result.Err)
	return result.Report
}

// lead elects the replica as the coordinator does, and waits for its barrier.
func (f *fixture) lead(epoch chunk.Epoch) {
	f.t.Helper()
	f.assign(epoch)
	until(f.t, "the barrier is committed", func() bool { return f.replica.Stats().Role == RoleLeading })
}

func (f *fixture) assign(epoch chunk.Epoch) {
	f.t.Helper()
	report := f.fence(epoch)
	d := protocol.SelectLeader(epoch, []protocol.Report{report}, alone)
	if d.Kind != protocol.Elected {
		f.t.Fatalf("election of epoch %d: %v", epoch, d.Kind)
	}
	f.must(f.node.Assign(f.context(), protocol.Assignment{
		Stream: streamUnderTest, Epoch: epoch, Node: d.Node, Run: d.Run, Replicas: alone,
	}, &d.Inheritance))
}

func (f *fixture) declare(reference string) *Publisher {
	f.t.Helper()
	p, err := f.replica.Declare(reference)
	f.must(err)
	return p
}

// publish publishes and waits until all is confirmed.
func (f *fixture) publish(p *Publisher, messages ...message) {
	f.t.Helper()
	sink := newCollector()
	f.replica.Publish(batchOf(p, sink, messages...))
	f.must(sink.wait(f.t, 1))
}

func (f *fixture) sequence(reference string) (uint64, bool, error) {
	f.t.Helper()
	type answer struct {
		sequence uint64
		ok       bool
		err      error
	}
	got := make(chan answer, 1)
	f.replica.Sequence(reference, func(sequence uint64, ok bool, err error) { got <- answer{sequence, ok, err} })
	select {
	case a := <-got:
		return a.sequence, a.ok, a.err
	case <-time.After(20 * time.Second):
		f.t.Fatal("no answer to a sequence query")
	}
	panic("unreachable")
}

func (f *fixture) wantSequence(reference string, want uint64) {
	f.t.Helper()
	got, ok, err := f.sequence(reference)
	f.must(err)
	if got != want || ok != (want > 0) {
		f.t.Fatalf("sequence of %q is %d, %v; want %d", reference, got, ok, want)
	}
}

func (f *fixture) wantOffset(reference string, want chunk.Offset) {
	f.t.Helper()
	got, ok, err := f.replica.QueryOffset(reference)
	f.must(err)
	if !ok || got != want {
		f.t.Fatalf("offset of %q is %d, %v; want %d", reference, got, ok, want)
	}
}

// records reads all committed messages of the stream from its first.
func (f *fixture) records() []string {
	f.t.Helper()
	reader, err := f.replica.Attach(segstore.Spec{Kind: segstore.First})
	f.must(err)
	defer reader.Close()
	var bodies []string
	for {
		commit, _ := f.replica.Committed()
		view, ok, err := reader.Next(commit)
		f.must(err)
		if !ok {
			return bodies
		}
		data := view.Data
		if file, position, length, ok := view.Section(); ok {
			delivery := make([]byte, length)
			_, err := file.ReadAt(delivery, position)
			f.must(err)
			data = delivery[chunk.ClientHeaderLength:]
		}
		it := view.Header.EntriesIn(data)
		for it.Next() {
			bodies = append(bodies, string(it.Entry().Body))
		}
		f.must(it.Err())
		view.Release()
	}
}

func (f *fixture) wantRecords(want ...string) {
	f.t.Helper()
	if got := f.records(); fmt.Sprint(got) != fmt.Sprint(want) {
		f.t.Fatalf("the stream holds %d records %.200q, want %d %.200q", len(got), got, len(want), want)
	}
}

// until waits for a condition that others bring about.
func until(t testing.TB, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("still not: %s", what)
		}
		time.Sleep(time.Millisecond)
	}
}

// collector is a Sink that keeps what comes back.
type collector struct {
	mu        sync.Mutex
	confirmed []uint64
	failed    []uint64
	errs      []error
	changed   chan struct{}
}

func newCollector() *collector { return &collector{changed: make(chan struct{}, 1)} }

func (c *collector) Confirmed(b *Batch) {
	c.mu.Lock()
	c.confirmed = append(c.confirmed, b.IDs...)
	c.errs = append(c.errs, nil)
	c.mu.Unlock()
	c.tell()
}

func (c *collector) Failed(b *Batch, err error) {
	c.mu.Lock()
	c.failed = append(c.failed, b.IDs...)
	c.errs = append(c.errs, err)
	c.mu.Unlock()
	c.tell()
}

func (c *collector) tell() {
	select {
	case c.changed <- struct{}{}:
	default:
	}
}

// wait returns when so many batches are back, with their errors joined.
func (c *collector) wait(t testing.TB, batches int) error {
	t.Helper()
	deadline := time.After(20 * time.Second)
	for {
		c.mu.Lock()
		errs := c.errs
		c.mu.Unlock()
		if len(errs) >= batches {
			return errors.Join(errs...)
		}
		select {
		case <-c.changed:
		case <-deadline:
			t.Fatalf("%d of %d batches are back", len(errs), batches)
		}
	}
}

// ids returns what is confirmed so far.
func (c *collector) ids() []uint64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([]uint64(nil), c.confirmed...)
}
