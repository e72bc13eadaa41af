package node

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/millrace/millrace/admin"
	"github.com/millrace/millrace/broker"
	"github.com/millrace/millrace/cluster"
	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/cmd/millrace/inspect"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
)

// late is the metadata as replicas reach it: they run, and may have something
// to say, before the cluster is open. tell never blocks.
type late struct {
	mu      sync.Mutex // guards all below
	cluster *cluster.Cluster
	waiting []func(*cluster.Cluster)
}

func (l *late) tell(what func(*cluster.Cluster)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.cluster == nil {
		l.waiting = append(l.waiting, what)
		return
	}
	what(l.cluster)
}

// opened is the metadata, nil before it is open.
func (l *late) opened() *cluster.Cluster {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cluster
}

func (l *late) open(c *cluster.Cluster) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cluster = c
	for _, what := range l.waiting {
		what(c)
	}
	l.waiting = nil
}

// directory is the metadata as clients' sessions see it.
type directory struct{ *cluster.Cluster }

func (d directory) CreateStream(ctx context.Context, q broker.CreateStream) error {
	return changed(d.Cluster.CreateStream(ctx, cluster.CreateStream{VHost: q.VHost, Name: q.Name, Arguments: q.Arguments, Creator: q.Creator}))
}

func (d directory) DeleteStream(ctx context.Context, vhost, name string) error {
	return changed(d.Cluster.DeleteStream(ctx, vhost, name))
}

func (d directory) CreateSuperStream(ctx context.Context, q broker.CreateSuperStream) error {
	return changed(d.Cluster.CreateSuperStream(ctx, cluster.NewSuperStream{
		VHost: q.VHost, Name: q.Name, Partitions: q.Partitions, Arguments: q.Arguments, Creator: q.Creator,
	}))
}

func (d directory) DeleteSuperStream(ctx context.Context, vhost, name string) error {
	return changed(d.Cluster.DeleteSuperStream(ctx, vhost, name))
}

func (d directory) Up(node string) bool { return d.Cluster.Up(protocol.NodeID(node)) }

// changed names for sessions what passes: no majority, no leader yet, a node that
// stops.
func changed(err error) error {
	for _, passing := range []error{cluster.ErrUnavailable, cluster.ErrNoLeader, cluster.ErrStopped} {
		if errors.Is(err, passing) {
			return fmt.Errorf("%w: %w", broker.ErrMetadata, err)
		}
	}
	return err
}

// metadata is the metadata as operators see it.
type metadata struct{ *cluster.Cluster }

func (m metadata) CreateStream(ctx context.Context, user, vhost, name string, arguments map[string]string) error {
	parsed, err := catalog.ParseArguments(arguments)
	if err != nil {
		return err
	}
	return answered(m.Cluster.CreateStream(ctx, cluster.CreateStream{VHost: vhost, Name: name, Arguments: parsed, Creator: user}))
}

func (m metadata) ActivateGroup(ctx context.Context, group catalog.GroupRef) error {
	return answered(m.Cluster.ActivateGroup(ctx, group))
}

func (m metadata) DeleteStream(ctx context.Context, vhost, name string) error {
	return answered(m.Cluster.DeleteStream(ctx, vhost, name))
}

func (m metadata) MoveLeader(ctx context.Context, stream chunk.Incarnation, node string) error {
	return m.Cluster.MoveLeader(ctx, stream, protocol.NodeID(node))
}

// sessions are the connected clients as operators see them.
type sessions struct{ *broker.Broker }

func (s sessions) Close(name, reason string) bool { return s.CloseConnection(name, reason) }

func (s sessions) Connections() []admin.Connection {
	var list []admin.Connection
	for _, c := range s.Broker.Connections() {
		list = append(list, admin.Connection{
			Name: c.Name, User: c.User, VHost: c.VHost, Mechanism: c.Mechanism, TLS: c.TLS, Connected: c.Connected,
			Publishers: len(c.Publishers), Subscriptions: len(c.Consumers), Properties: c.Properties,
		})
	}
	return list
}

func (s sessions) Publishers() []admin.Publisher {
	var list []admin.Publisher
	for _, c := range s.Broker.Connections() {
		for _, p := range c.Publishers {
			list = append(list, admin.Publisher{
				AtStream:  admin.AtStream{Stream: p.Stream, VHost: c.VHost, Reference: p.Reference, Connection: c.Name, User: c.User, ID: int(p.ID)},
				Published: p.Published, Confirmed: p.Confirmed, Refused: p.Errored,
			})
		}
	}
	return list
}

func (s sessions) Consumers() []admin.Consumer {
	var list []admin.Consumer
	for _, c := range s.Broker.Connections() {
		for _, q := range c.Consumers {
			consumer := admin.Consumer{
				AtStream: admin.AtStream{
					Stream: q.Stream, VHost: c.VHost, Reference: q.Properties["name"], Connection: c.Name, User: c.User, ID: int(q.SubscriptionID),
				},
				Consumed: q.Consumed, Credit: q.Credits,
			}
			if q.Activity != "up" {
				consumer.Activity = q.Activity
			}
			if q.Offset >= 0 {
				offset, lag := uint64(q.Offset), uint64(q.Lag)
				consumer.Offset, consumer.Lag = &offset, &lag
			}
			list = append(list, consumer)
		}
	}
	return list
}

func (s sessions) Traffic() admin.Traffic {
	stats := s.Stats()
	t := admin.Traffic{
		Published: stats.Published, Confirmed: stats.Confirmed, Refused: stats.Errored, Delivered: stats.Delivered,
		DeliveredBytes: stats.SentBytes, Blocked: stats.Blocked, Unanswered: stats.Unanswered, Overtaken: stats.Overtaken, Refusals: map[uint16]uint64{},
	}
	for code, n := range stats.Errors {
		t.Refusals[uint16(code)] = n
	}
	return t
}

// figures are this node's logs as operators see them.
type figures struct{ n *Node }

func (f figures) replica(stream chunk.Incarnation) (*replication.Replica, error) {
	r, ok := f.n.replicas.Replica(stream)
	if !ok {
		return nil, fmt.Errorf("%w: %s", admin.ErrNoReplica, stream)
	}
	return r, nil
}

func (f figures) Figures(stream chunk.Incarnation) (admin.Figures, error) {
	r, err := f.replica(stream)
	if err != nil {
		return admin.Figures{}, err
	}
	s := r.Stats()
	log, tracked := &s.Log, &s.Tracking
	out := admin.Figures{
		FirstOffset: uint64(log.First), NextOffset: uint64(s.Next), CommittedLSN: uint64(s.Commit), Segments: log.Segments,
		DamagedSegments: log.Damaged,
		StoredOffsets:   tracked.Offsets, StoredOffsetsMax: tracked.OffsetsMax, StoredOffsetsEvicted: tracked.OffsetsEvicted,
		StoredOffsetsPending: s.PendingOffsets, WindowMS: s.WindowMilliseconds,
		Sequences: tracked.Publishers, SequencesMax: tracked.PublishersMax, SequencesEvicted: tracked.PublishersEvicted,
		Bytes: admin.Bytes{
			User: uint64(log.UserBytes), Trailer: uint64(log.TrailerBytes), Delta: uint64(log.DeltaBytes),
			Snapshot: uint64(log.SnapshotBytes), Filter: uint64(log.FilterBytes), Index: uint64(log.IndexBytes),
			Disk: uint64(log.DiskBytes),
		},
		TrackingBytes: uint64(log.TrackingBytes), TrackingBound: uint64(log.TrackingBound), SequenceBytes: uint64(log.SequenceBytes),
		Compaction: compactionOf(&log.Compaction),
	}
	out.Leads, out.PublishersStopped = s.Epoch != 0, s.Starved
	for _, f := range s.Followers {
		out.Followers = append(out.Followers, admin.Follower{Node: string(f.Node), Linked: f.Linked, Behind: f.Behind})
	}
	if errors.Is(s.Log.Err, segstore.ErrDamaged) {
		out.DamagedSegments++
	}
	if out.NextOffset > out.FirstOffset {
		out.Messages = out.NextOffset - out.FirstOffset
	}
	return out, nil
}

func compactionOf(c *segstore.CompactionStats) admin.Compaction {
	out := admin.Compaction{
		Droppable: uint64(c.BytesDroppable), Dropped: uint64(c.BytesDropped), Rewritten: uint64(c.BytesRewritten),
		Pinned: uint64(c.BytesPinned), Drops: c.Drops, Merges: c.Merges, Failures: c.Failures,
	}
	if c.LastError != nil {
		out.LastError = c.LastError.Error()
	}
	return out
}

// folder is the stream's files, believed up to the commit: what is behind it
// may be half written.
func (f figures) folder(stream chunk.Incarnation) (inspect.Folder, error) {
	r, err := f.replica(stream)
	if err != nil {
		return inspect.Folder{}, err
	}
	commit, _ := r.Committed()
	view := f.n.cluster.View()
	s, ok := view.Incarnation(stream)
	if !ok {
		return inspect.Folder{}, fmt.Errorf("%w: %s", catalog.ErrStreamMissing, stream)
	}
	name := segstore.Hash(LogName(s.VHost, s.Name)) + "-" + stream.String()
	folder, err := inspect.Open(filepath.Join(f.n.config.DataDir, "streams", name), stream)
	return folder.Until(commit), err
}

func (f figures) Segments(stream chunk.Incarnation) ([]admin.Segment, error) {
	r, err := f.replica(stream)
	if err != nil {
		return nil, err
	}
	found, err := r.Segments()
	if err != nil {
		return nil, notLed(err)
	}
	return inspect.Describe(found), nil
}

func (f figures) Chunks(stream chunk.Incarnation, file string) ([]admin.Chunk, error) {
	folder, err := f.folder(stream)
	if err != nil {
		return nil, err
	}
	return folder.Chunks(file)
}

func (f figures) Verify(ctx context.Context, stream chunk.Incarnation) ([]admin.Verdict, error) {
	folder, err := f.folder(stream)
	if err != nil {
		return nil, err
	}
	verdicts, err := folder.Verify(ctx)
	if err != nil {
		return nil, err
	}
	r, err := f.replica(stream)
	if err != nil {
		return nil, err
	}
	for _, v := range verdicts {
		if len(v.Problems) > 0 && strings.HasSuffix(v.File, ".seg") {
			if _, err := r.Check(v.File); err != nil { // so that the log knows, and may be repaired
				f.n.log.Warn("check a file that looks damaged", "file", v.File, "error", err)
			}
		}
	}
	return verdicts, nil
}

// Name is the node's in its cluster.
func (n *Node) Name() string { return n.config.NodeName }

// Status is the process at a glance; admin adds what it can count itself.
func (n *Node) Status() admin.Status {
	return admin.Status{
		Node: n.config.NodeName, Version: n.version, Started: n.started.UTC(), DataDir: n.config.DataDir,
		Disk: n.diskStatus(), Addresses: n.addresses, Scrub: n.scrubStatus(), Certificates: n.certificateStatus(),
		DamagedSegments: n.store.Stats().Damaged,
	}
}

func (n *Node) scrubStatus() admin.Scrub {
	st := n.scrubber.Stats()
	return admin.Scrub{
		Rounds: st.Rounds, RoundBegan: st.RoundBegan.UTC(), RoundBytes: st.RoundBytes, RoundDone: st.RoundDone,
		Bytes: st.Bytes, Damaged: st.Damaged, Unread: st.Unread,
		Compared: n.mender.compared.Load(), Differing: n.mender.differing.Load(),
	}
}

// Ready is nil while clients are served.
func (n *Node) Ready() error {
	switch {
	case n.ready.Load() && n.cluster.Removed():
		return cluster.ErrRemoved
	case n.ready.Load():
		return nil
	case n.Err() != nil:
		return n.Err()
	}
	return errors.New("streams are getting their leaders")
}
