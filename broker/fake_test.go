package broker_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

const nodeName = "n1"

// fakeNode is a directory and replicas without a cluster: the catalog and the
// logs are the real ones, what is committed a test can hold back.
type fakeNode struct {
	store *segstore.Store

	mu        sync.Mutex
	state     *catalog.State
	listeners map[int]func([]catalog.Change)
	count     int
	replicas  map[chunk.Incarnation]*fakeReplica
	passwords map[string]string
	gone      map[string]bool // nodes that are not up

	// Changes of groups are carried out one after the other, but not while held.
	groupChanges chan func()
	groupHold    sync.Mutex
	commands     int           // of groups
	contact      time.Duration // since the metadata's leader was heard
	broken       error         // what changes of groups meet
	behind       catalog.Body  // what View does not show yet
	catchingUp   func()        // called by Current
}

func newFakeNode(t testing.TB, fs vfs.FS, dir string) *fakeNode {
	store, err := segstore.NewStore(segstore.Options{FS: fs, Dir: dir, CacheBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	n := &fakeNode{
		store:     store,
		state:     catalog.New(),
		listeners: map[int]func([]catalog.Change){},
		replicas:  map[chunk.Incarnation]*fakeReplica{},
		passwords: map[string]string{},
		gone:      map[string]bool{},

		groupChanges: make(chan func(), 1024),
	}
	t.Cleanup(func() { close(n.groupChanges) })
	go func() {
		for change := range n.groupChanges {
			n.groupHold.Lock()
			change()
			n.groupHold.Unlock()
		}
	}()
	n.do(t, &catalog.PutNode{ID: nodeName, Disk: "d"})
	n.do(t, &catalog.CreateVHost{Name: "/"})
	n.addUser(t, "guest", "guest")
	n.permit(t, "guest", "/", ".*", ".*", ".*")
	return n
}

func vhost(name string) catalog.Body { return &catalog.CreateVHost{Name: name} }

func clearPermission(vhost, user string) catalog.Body {
	return &catalog.ClearPermission{VHost: vhost, User: user}
}

func deleteUser(name string) catalog.Body { return &catalog.DeleteUser{Name: name} }

func (n *fakeNode) addUser(t testing.TB, user, password string) {
	n.mu.Lock()
	n.passwords[user] = password
	n.mu.Unlock()
	n.do(t, &catalog.PutUser{Name: user, Hash: "hash of " + password})
}

func (n *fakeNode) permit(t testing.TB, user, vhost, configure, write, read string) {
	n.do(t, &catalog.SetPermission{VHost: vhost, User: user, Configure: configure, Write: write, Read: read})
}

func (n *fakeNode) do(t testing.TB, body catalog.Body) {
	t.Helper()
	if err := n.apply(body); err != nil {
		t.Fatal(err)
	}
}

func (n *fakeNode) apply(body catalog.Body) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.applyLocked(body)
}

func (n *fakeNode) applyLocked(body catalog.Body) error { return n.carryOutLocked(body).Err() }

func (n *fakeNode) carryOutLocked(body catalog.Body) catalog.Result {
	next, result, changes := n.state.Do(catalog.Command{At: 1, Body: body})
	n.state = next
	for _, told := range n.listeners {
		told(changes)
	}
	return result
}

func (n *fakeNode) ChangeGroups(changes []catalog.GroupChange, answered func(int, error)) {
	n.groupChanges <- func() {
		n.mu.Lock()
		broken := n.broken
		var result catalog.Result
		if broken == nil {
			n.commands++
			result = n.carryOutLocked(&catalog.ChangeGroups{Changes: changes})
		}
		n.mu.Unlock()
		for i := range changes {
			if broken != nil {
				answered(i, broken)
				continue
			}
			answered(i, result.Outcomes[i].Err())
		}
	}
}

// Current is behind until a test lets it be.
func (n *fakeNode) Current(context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if called := n.catchingUp; called != nil {
		n.mu.Unlock()
		called()
		n.mu.Lock()
	}
	if n.behind != nil {
		return errors.New("behind")
	}
	return nil
}

// lag has the node not know what was decided, until it catches up with that.
func (n *fakeNode) lag(decided catalog.Body) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.behind = decided
}

func (n *fakeNode) catchesUp(t testing.TB) {
	n.mu.Lock()
	decided := n.behind
	n.behind = nil
	err := n.applyLocked(decided)
	n.mu.Unlock()
	if err != nil {
		t.Fatal(err)
	}
}

func (n *fakeNode) Contact() time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.contact
}

func (n *fakeNode) setContact(d time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.contact = d
}

func (n *fakeNode) View() *catalog.State {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.state
}

func (n *fakeNode) Up(node string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return !n.gone[node]
}

func (n *fakeNode) goes(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone[node] = true
}

func (n *fakeNode) comes(node string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.gone, node)
}

func (n *fakeNode) Subscribe(told func([]catalog.Change)) (cancel func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.count++
	id := n.count
	n.listeners[id] = told
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.listeners, id)
	}
}

func (n *fakeNode) Authenticate(_ context.Context, user string, password []byte) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if want, ok := n.passwords[user]; !ok || want != string(password) {
		return errors.New("wrong")
	}
	return nil
}

func (n *fakeNode) CreateStream(_ context.Context, request broker.CreateStream) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, err := n.catalogueLocked(request)
	if err != nil {
		return err
	}
	if err := n.store.Create(s.Name, s.Incarnation); err != nil {
		return err
	}
	log, _, err := n.store.Open(s.Incarnation, segstore.Config{})
	if err != nil {
		return err
	}
	n.replicas[s.Incarnation] = newFakeReplica(log, s.Incarnation, request.Arguments.FilterSize())
	return n.electLocked(s.Incarnation)
}

func (n *fakeNode) CreateSuperStream(_ context.Context, request broker.CreateSuperStream) error {
	body := &catalog.CreateSuperStream{VHost: request.VHost, Name: request.Name}
	for _, p := range request.Partitions {
		n.mu.Lock()
		n.count++
		created := catalog.NewStream{
			VHost: request.VHost, Name: p.Stream, Arguments: request.Arguments, Incarnation: chunk.Incarnation(n.count),
		}
		n.mu.Unlock()
		created.Replicas = append(created.Replicas, nodeName)
		body.Partitions = append(body.Partitions, catalog.NewPartition{NewStream: created, Key: p.Key})
	}
	return n.apply(body)
}

func (n *fakeNode) DeleteSuperStream(_ context.Context, vhost, name string) error {
	return n.apply(&catalog.DeleteSuperStream{VHost: vhost, Name: name})
}

// catalogueLocked enters a new stream without a leader.
func (n *fakeNode) catalogueLocked(request broker.CreateStream) (*catalog.Stream, error) {
	n.count++
	created := catalog.NewStream{
		VHost: request.VHost, Name: request.Name, Arguments: request.Arguments, Creator: request.Creator,
		Incarnation: chunk.Incarnation(n.count),
	}
	created.Replicas = append(created.Replicas, nodeName)
	err := n.applyLocked(&catalog.CreateStreams{Streams: []catalog.NewStream{created}})
	if err != nil {
		return nil, err
	}
	s, _ := n.state.Incarnation(created.Incarnation)
	return s, nil
}

func (n *fakeNode) electLocked(stream chunk.Incarnation) error {
	s, _ := n.state.Incarnation(stream)
	return n.applyLocked(&catalog.AssignLeaders{Leaders: []catalog.Assign{{
		Stream: stream, Epoch: s.Epoch, Node: nodeName, Run: 1, ConfigVersion: s.ConfigVersion,
	}}})
}

// elect gives a stream that has none its leader.
func (n *fakeNode) elect(t testing.TB, name string) {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	s, _ := n.state.Stream("/", name)
	if err := n.electLocked(s.Incarnation); err != nil {
		t.Fatal(err)
	}
}

// depose begins a new epoch, without a leader yet.
func (n *fakeNode) depose(t testing.TB, name string) {
	t.Helper()
	s, _ := n.View().Stream("/", name)
	n.do(t, &catalog.GrantEpochs{Streams: []catalog.Grant{{Stream: s.Incarnation, Epoch: s.Epoch + 1}}})
}

// addReplica has another node hold a stream, too.
func (n *fakeNode) addReplica(t testing.TB, name, node, addr string) {
	t.Helper()
	put := &catalog.PutNode{Disk: "other", Endpoints: catalog.Endpoints{Stream: addr}}
	setID(&put.ID, node)
	n.do(t, put)
	s, _ := n.View().Stream("/", name)
	n.do(t, &catalog.AddReplicas{Replicas: []catalog.Added{{Stream: s.Incarnation, Node: put.ID}}})
}

// promote makes another node's replica of a stream, which this node leads, a
// voter.
func (n *fakeNode) promote(t testing.TB, name, node string) {
	t.Helper()
	s, _ := n.View().Stream("/", name)
	c := catalog.VoterChange{Stream: s.Incarnation, Epoch: s.Epoch, Version: s.ConfigVersion, Voter: true}
	setID(&c.Node, node)
	for _, r := range s.Replicas {
		if r.Node == c.Node {
			c.Registration = r.Registration
		}
	}
	n.do(t, &catalog.ChangeVoters{Changes: []catalog.VoterChange{c}})
}

// takeAway takes a node's replica, which does not lead, from a stream.
func (n *fakeNode) takeAway(t testing.TB, name, node string) {
	t.Helper()
	s, _ := n.View().Stream("/", name)
	c := catalog.VoterChange{Stream: s.Incarnation, Epoch: s.Epoch, Version: s.ConfigVersion}
	setID(&c.Node, node)
	removed := catalog.Removed{Stream: s.Incarnation, Node: c.Node}
	for _, r := range s.Replicas {
		if r.Node == c.Node {
			c.Registration, removed.Registration = r.Registration, r.Registration
		}
	}
	n.do(t, &catalog.ChangeVoters{Changes: []catalog.VoterChange{c}})
	n.do(t, &catalog.RemoveReplicas{Replicas: []catalog.Removed{removed}})
}

// electOther gives a stream that has no leader one on another node.
func (n *fakeNode) electOther(t testing.TB, name, node string) {
	t.Helper()
	s, _ := n.View().Stream("/", name)
	a := catalog.Assign{Stream: s.Incarnation, Epoch: s.Epoch, Run: 1, ConfigVersion: s.ConfigVersion}
	setID(&a.Node, node)
	n.do(t, &catalog.AssignLeaders{Leaders: []catalog.Assign{a}})
}

func (n *fakeNode) drain(t testing.TB, node string) {
	mark := &catalog.MarkNode{Draining: true}
	setID(&mark.ID, node)
	n.do(t, mark)
}

// setID sets a node id without naming its type, which is not this room's.
func setID[ID ~string](id *ID, text string) { *id = ID(text) }

func (n *fakeNode) DeleteStream(_ context.Context, vhost, name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.state.Stream(vhost, name)
	if !ok {
		return catalog.ErrStreamMissing
	}
	n.replicas[s.Incarnation].close()
	delete(n.replicas, s.Incarnation)
	if err := n.store.Remove(s.Incarnation); err != nil {
		return err
	}
	return n.applyLocked(&catalog.DeleteStreams{Streams: []catalog.OldStream{{
		VHost: vhost, Name: name, Incarnation: s.Incarnation,
	}}})
}

func (n *fakeNode) Replica(stream chunk.Incarnation) (broker.Replica, bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r, ok := n.replicas[stream]
	return r, ok
}

// replica returns the log of a stream in the virtual host /.
func (n *fakeNode) replica(t testing.TB, name string) *fakeReplica {
	t.Helper()
	n.mu.Lock()
	defer n.mu.Unlock()
	s, ok := n.state.Stream("/", name)
	if !ok {
		t.Fatalf("no stream %q", name)
	}
	return n.replicas[s.Incarnation]
}

// fakeReplica is a log in memory without a group around it: a chunk for each
// batch, committed at once unless a test holds the commit.
type fakeReplica struct {
	log         *segstore.Log
	incarnation chunk.Incarnation
	filterSize  int

	mu         sync.Mutex
	appended   chunk.Header // the last chunk
	digest     chunk.Digest
	commits    chunk.LSN
	next       chunk.Offset // behind the last committed record
	held       bool
	waiting    []*replication.Batch
	names      map[*replication.Publisher]string
	owners     map[string]*replication.Publisher
	sequences  map[string]uint64
	offsets    map[string]chunk.Offset
	watchers   map[int]func()
	count      int
	closed     bool
	refuseWith error // what Publish answers instead
	refuseOnce bool  // and then no more
	stores     uint64
	origins    map[string]replication.Origin // of the last store, with its place as Since
}

func newFakeReplica(log *segstore.Log, incarnation chunk.Incarnation, filterSize int) *fakeReplica {
	r := &fakeReplica{
		log: log, incarnation: incarnation, filterSize: filterSize,
		names:     map[*replication.Publisher]string{},
		owners:    map[string]*replication.Publisher{},
		sequences: map[string]uint64{},
		offsets:   map[string]chunk.Offset{},
		watchers:  map[int]func(){},
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	barrier := segstore.NewChunk(0)
	meta := r.metaLocked()
	meta.Flags = chunk.FlagSegmentStart | chunk.FlagUnitStart | chunk.FlagEpochStart
	barrier.Head, barrier.Header = chunk.BuildControl(chunk.Delta, meta, barrier.Head)
	r.appendLocked(barrier)
	r.commits = 1
	r.log.SetCommit(1)
	return r
}

// metaLocked continues the log.
func (r *fakeReplica) metaLocked() *chunk.Meta {
	return &chunk.Meta{
		Incarnation: r.incarnation, LSN: r.appended.LSN + 1, Epoch: 1, DigestBefore: r.digest,
		BaseOffset: r.appended.Next(), Timestamp: chunk.Timestamp(1000 + r.appended.LSN),
	}
}

func (r *fakeReplica) appendLocked(c *segstore.Chunk) {
	if err := r.log.Append(c); err != nil {
		panic(err)
	}
	r.appended = c.Header
	r.digest = c.Header.DigestAfter()
	c.Release()
}

func (r *fakeReplica) Declare(reference string) (*replication.Publisher, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return nil, replication.ErrClosed
	}
	p := new(replication.Publisher)
	r.names[p] = reference
	if reference != "" {
		r.owners[reference] = p
	}
	return p, nil
}

func (r *fakeReplica) Publish(b *replication.Batch) {
	r.mu.Lock()
	name := r.names[b.Publisher]
	var failure error
	switch {
	case r.closed:
		failure = replication.ErrClosed
	case r.refuseWith != nil:
		failure = r.refuseWith
	case name != "" && r.owners[name] != b.Publisher:
		failure = replication.ErrFenced
	}
	if failure != nil {
		if r.refuseOnce {
			r.refuseWith, r.refuseOnce = nil, false
		}
		r.mu.Unlock()
		b.Sink.Failed(b, failure)
		return
	}
	r.storeLocked(b, name)
	r.waiting = append(r.waiting, b)
	held := r.held
	r.mu.Unlock()
	if !held {
		r.commit()
	}
}

func (r *fakeReplica) storeLocked(b *replication.Batch, name string) {
	builder, filter := new(chunk.Builder), new(chunk.Filter)
	var c *segstore.Chunk
	begin := func() {
		c = segstore.NewChunk(len(b.Data))
		builder.Reset(c.Head, c.Data)
		filter.Reset(r.filterSize)
	}
	finish := func() {
		if builder.Entries() > 0 {
			meta := r.metaLocked()
			meta.Filter = filter.Bytes()
			c.Head, c.Data, c.Header = builder.Finish(meta)
			r.appendLocked(c)
		}
		begin()
	}
	begin()
	from := uint32(0)
	for i, id := range b.IDs {
		entry := b.Data[from:b.Ends[i]]
		from = b.Ends[i]
		if name != "" {
			if last, known := r.sequences[name]; known && id <= last {
				continue
			}
			r.sequences[name] = id
		}
		records := uint32(1)
		if b.Records != nil {
			records = b.Records[i]
		}
		subBatch := entry[0]&0x80 != 0
		if subBatch || !builder.Fits(len(entry), 1) {
			finish()
		}
		builder.AppendRun(entry, 1, records)
		var value []byte
		if b.Filters != nil {
			value = b.Filters[i]
		}
		filter.Add(value)
		if subBatch {
			finish()
		}
	}
	finish()
}

// hold keeps what is published from being committed, until commit is called.
func (r *fakeReplica) hold() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.held = true
}

// commit commits everything, and goes on doing so.
func (r *fakeReplica) commit() {
	r.mu.Lock()
	r.held = false
	r.commits, r.next = r.appended.LSN, r.appended.Next()
	r.log.SetCommit(r.commits)
	confirmed := r.waiting
	r.waiting = nil
	watchers := slices.Collect(maps.Values(r.watchers))
	r.mu.Unlock()
	for _, b := range confirmed {
		b.Sink.Confirmed(b)
	}
	for _, wake := range watchers {
		wake()
	}
}

// advance says that one more chunk is committed, without having one.
func (r *fakeReplica) advance() {
	r.mu.Lock()
	r.commits++
	watchers := slices.Collect(maps.Values(r.watchers))
	r.mu.Unlock()
	for _, wake := range watchers {
		wake()
	}
}

func (r *fakeReplica) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
}

func (r *fakeReplica) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuseWith = err
}

// failOnce fails one batch.
func (r *fakeReplica) failOnce(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuseWith, r.refuseOnce = err, true
}

func (r *fakeReplica) Sequence(reference string, answer func(uint64, bool, error)) {
	r.mu.Lock()
	last, known := r.sequences[reference]
	r.mu.Unlock()
	go answer(last, known, nil)
}

func (r *fakeReplica) StoreOffset(reference string, offset chunk.Offset) error {
	_, err := r.StoreOffsetFrom(replication.Origin{}, reference, offset)
	return err
}

func (r *fakeReplica) StoreOffsetFrom(from replication.Origin, reference string, offset chunk.Offset) (uint64, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if last := r.origins[reference]; from.Since != 0 && last.Node != from.Node && last.Since >= from.Since {
		return 0, replication.ErrOvertaken
	}
	r.stores++
	reference = strings.Clone(reference) // the caller's bytes are used again
	r.offsets[reference] = offset
	if r.origins == nil {
		r.origins = map[string]replication.Origin{}
	}
	r.origins[reference] = replication.Origin{Node: from.Node, Since: r.stores}
	return r.stores, nil
}

func (r *fakeReplica) QueryOffset(reference string) (chunk.Offset, bool, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	offset, known := r.offsets[reference]
	return offset, known, nil
}

func (r *fakeReplica) Committed() (chunk.LSN, chunk.Offset) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.commits, r.next
}

func (r *fakeReplica) Watch(wake func()) (cancel func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.count++
	id := r.count
	r.watchers[id] = wake
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.watchers, id)
	}
}

// watched is how many connections wait for the commit to advance.
func (r *fakeReplica) watched() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.watchers)
}

func (r *fakeReplica) Attach(spec segstore.Spec) (*segstore.Reader, error) {
	commit, _ := r.Committed()
	return r.log.Attach(spec, commit)
}
