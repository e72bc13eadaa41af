package overtake

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"path"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

const (
	frameMessages = 100
	messageBytes  = 90
	epoch0        = 1_700_000_000 // seconds; where the world's time begins
)

// world is one node with streams, on a disk in memory, in a time of its own.
// One goroutine drives it: it moves the clock, and has all turns.
type world struct {
	t        testing.TB
	disk     *vfs.Mem
	clock    *clock
	turns    *scheduler
	rate     int64 // of compaction; negative: none
	store    *segstore.Store
	node     *replication.Node
	streams  []*stream
	failures int
}

// stream is a stream of the world with what it must hold.
type stream struct {
	*world
	about     replication.Stream
	replica   *replication.Replica
	publisher *replication.Publisher
	epoch     chunk.Epoch
	sent      uint64 // messages published
	confirmed uint64
	// stored is each reference's last stored offset; names are the references'.
	stored []chunk.Offset
	names  []string
	rounds int
	worst  sample
	// dropped were gained by compaction in runs before the present one.
	dropped int64
	drops   uint64 // of runs before the present one
	merges  uint64
	rolls   uint64
	window  [2]int64 // least and most seen
}

// sample is how much of its bound tracking took at one moment.
type sample struct {
	tracking, bound int64
	at              time.Duration
}

func newWorld(t testing.TB, compactRate int64) *world {
	w := &world{t: t, disk: vfs.NewMem(), clock: &clock{now: time.Unix(epoch0, 0)}, turns: &scheduler{signal: make(chan struct{}, 1)}, rate: compactRate}
	w.start()
	t.Cleanup(func() { w.stop() })
	return w
}

func (w *world) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// elapsed is how long the world has existed.
func (w *world) elapsed() time.Duration { return w.clock.Now().Sub(time.Unix(epoch0, 0)) }

func (w *world) start() {
	w.t.Helper()
	var err error
	w.store, err = segstore.NewStore(segstore.Options{FS: w.disk, Dir: "data", Syncer: vfs.NewInlineSyncer(), CacheBytes: 1 << 20})
	w.must(err)
	w.node = replication.NewNode(replication.Config{
		ID: "n1", Store: w.store, Scheduler: w.turns, Clock: w.clock, CompactBytesPerSecond: w.rate,
		Lost: func(_ chunk.Incarnation, err error) { w.t.Errorf("a run was lost: %v", err) },
	})
}

func (w *world) stop() {
	if w.node == nil {
		return
	}
	for _, s := range w.streams {
		st := s.replica.Stats()
		s.dropped += st.Log.Compaction.BytesDropped
		s.drops += st.Log.Compaction.Drops
		s.merges += st.Log.Compaction.Merges
		s.rolls += st.Rolls
	}
	w.await(func() error { return w.node.Close(context.Background()) })
	w.must(w.store.Close())
	w.node, w.clock.timers = nil, nil
}

// await has turns until a call that waits for them is over.
func (w *world) await(call func() error) {
	w.t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- call() }()
	hang := time.After(time.Minute)
	for {
		w.turns.drain()
		select {
		case err := <-ended:
			w.turns.drain()
			w.must(err)
			return
		case <-w.turns.signal:
		case <-hang:
			w.t.Fatal("a call does not end")
		}
	}
}

// run lets time pass, with all that happens in it.
func (w *world) run(d time.Duration) {
	until := w.clock.Now().Add(d)
	w.turns.drain()
	for w.clock.fire(until) {
		w.turns.drain()
	}
}

// restart closes the node in order and starts it again.
func (w *world) restart() {
	w.t.Helper()
	w.stop()
	w.reopen()
}

// powerOff goes on with what a power loss leaves of the disk.
func (w *world) powerOff() {
	w.t.Helper()
	lost := w.disk.Crash(vfs.Policy{}, vfs.Seeded(1))
	w.stop() // what it does now happens on a disk that nobody reads again
	w.disk = lost
	w.reopen()
}

func (w *world) reopen() {
	w.t.Helper()
	w.start()
	for _, s := range w.streams {
		s.open(false)
		s.lead()
	}
}

// add makes a stream of the node and has it led.
func (w *world) add(name string, settings replication.Settings, references int) *stream {
	w.t.Helper()
	s := &stream{world: w, about: replication.Stream{
		Incarnation: chunk.Incarnation(len(w.streams) + 1), Name: name, Settings: settings,
	}}
	for i := range references {
		s.names = append(s.names, fmt.Sprintf("consumer-%06d", i))
	}
	s.stored = make([]chunk.Offset, references)
	w.streams = append(w.streams, s)
	s.open(true)
	s.lead()
	return s
}

func (s *stream) open(isNew bool) {
	s.t.Helper()
	var err error
	s.replica, err = s.node.Open(s.about, isNew)
	s.must(err)
	s.turns.drain()
}

// lead begins the next epoch, as the coordinator does.
func (s *stream) lead() {
	s.t.Helper()
	s.epoch++
	var found protocol.Report
	s.await(func() error {
		r := s.node.Fence(context.Background(), []replication.FenceRequest{{Stream: s.about.Incarnation, Epoch: s.epoch}})[0]
		found = r.Report
		return r.Err
	})
	config := protocol.Configuration{Version: 1, Members: []protocol.Member{{Node: "n1"}}}
	d := protocol.SelectLeader(s.epoch, []protocol.Report{found}, config)
	if d.Kind != protocol.Elected {
		s.t.Fatalf("epoch %d: %v", s.epoch, d.Kind)
	}
	var err error
	s.await(func() error {
		err = s.node.Assign(context.Background(), protocol.Assignment{
			Stream: s.about.Incarnation, Epoch: s.epoch, Node: d.Node, Run: d.Run, Replicas: config,
		}, &d.Inheritance)
		return nil
	})
	if err == nil {
		s.publisher, err = s.replica.Declare("")
	}
	if err != nil { // only unknown tracking keeps the one voter from leading
		s.t.Fatalf("state lost: %s does not lead epoch %d: %v", s.about.Name, s.epoch, err)
	}
}

// Confirmed and Failed make a stream the Sink of its batches.
func (s *stream) Confirmed(b *replication.Batch) { s.confirmed += uint64(len(b.IDs)) }

func (s *stream) Failed(_ *replication.Batch, err error) { s.t.Errorf("a batch failed: %v", err) }

// messageOf is the message at an offset: dense, and told by its offset alone.
func messageOf(o uint64) []byte {
	m := bytes.Repeat([]byte{byte('a' + o%26)}, messageBytes)
	copy(m, fmt.Appendf(nil, "%d ", o))
	return m
}

// publish publishes a frame.
func (s *stream) publish() { s.publishSome(frameMessages) }

// publishSome publishes a frame of so many messages.
func (s *stream) publishSome(messages int) {
	b := &replication.Batch{Publisher: s.publisher, Sink: s}
	for range messages {
		b.Data = binary.BigEndian.AppendUint32(b.Data, messageBytes)
		b.Data = append(b.Data, messageOf(s.sent)...)
		b.IDs = append(b.IDs, s.sent)
		b.Ends = append(b.Ends, uint32(len(b.Data)))
		s.sent++
	}
	s.replica.Publish(b)
	s.turns.drain()
}

// storeAll has each reference store an offset further on.
func (s *stream) storeAll() {
	s.t.Helper()
	s.rounds++
	for i := range s.names {
		s.stored[i] = chunk.Offset(s.rounds*10 + i%10)
		if err := s.replica.StoreOffset(s.names[i], s.stored[i]); err != nil {
			s.t.Fatal(err)
		}
	}
}

// sampled looks at the stream: at its window, and at how much tracking is on the
// disk, by the files' own lengths.
func (s *stream) sampled() {
	s.t.Helper()
	st := s.replica.Stats()
	if w := st.WindowMilliseconds; w > 0 {
		if s.window[0] == 0 || w < s.window[0] {
			s.window[0] = w
		}
		s.window[1] = max(s.window[1], w)
	}
	user := st.Log.UserBytes + 48*int64(st.Log.UserChunks) + st.Log.FilterBytes + st.Log.SequenceBytes
	footers := int64(st.Log.Segments)*footerBytes + int64(s.epoch)*epochLineBytes
	onDisk := s.segmentBytes() - user - footers
	if onDisk > st.Log.TrackingBound && s.failures == 0 {
		s.failures++
		s.t.Errorf("bound broken after %s: tracking takes %d bytes, may take %d; %+v", s.elapsed(), onDisk, st.Log.TrackingBound, st.Log.Compaction)
	}
	if s.worst.bound == 0 || float64(onDisk)/float64(st.Log.TrackingBound) > float64(s.worst.tracking)/float64(s.worst.bound) {
		s.worst = sample{onDisk, st.Log.TrackingBound, s.elapsed()}
	}
}

// underBudget holds what tracking has written, where nothing was retired, against
// the floor of the budget: 1 KiB/s, 4 MiB at once, and snapshots beside.
func (s *stream) underBudget() {
	s.t.Helper()
	st := s.replica.Stats().Log
	written := st.TrackingBytes + s.dropped + st.Compaction.BytesDropped
	if most := int64(s.elapsed().Seconds()*1024*1.1) + 8<<20; written > most && s.failures == 0 {
		s.failures++
		s.t.Errorf("write rate over budget: %d bytes of tracking in %s, %d would do", written, s.elapsed(), most)
	}
}

// A footer's bytes, and those of each epoch that begins in its segment.
const (
	footerBytes    = 284
	epochLineBytes = 24
)

// segmentBytes sums the segment files in the stream's directory.
func (s *stream) segmentBytes() (n int64) {
	s.t.Helper()
	dir := fmt.Sprintf("data/streams/%s-%s", segstore.Hash(s.about.Name), s.about.Incarnation)
	entries, err := s.disk.List(dir)
	s.must(err)
	for _, e := range entries {
		if path.Ext(e.Name) == ".seg" {
			n += e.Size
		}
	}
	return n
}

// count is what `stream describe` says: from summaries alone.
func (s *stream) count() uint64 { return s.replica.Stats().Log.Records }

// verify reads the whole stream, holds each message against what was published,
// and the number of them against the count; it returns the first offset.
func (s *stream) verify() (first uint64) {
	s.t.Helper()
	r, err := s.replica.Attach(segstore.Spec{Kind: segstore.First})
	s.must(err)
	defer r.Close()
	commit, _ := s.replica.Committed()
	first = uint64(r.Offset())
	next := first
	for {
		v, ok, err := r.Next(commit)
		if err != nil {
			s.t.Fatalf("read at offset %d: %v", next, err)
		}
		if !ok {
			break
		}
		next = s.verifyChunk(&v, next)
		v.Release()
	}
	read := next - first
	if next != s.confirmed || s.confirmed != s.sent {
		s.t.Errorf("read %d of %d messages, up to offset %d; %d are confirmed", read, s.sent, next, s.confirmed)
	}
	if n := s.count(); n != read {
		s.t.Errorf("message count wrong: described as %d, %d are readable", n, read)
	}
	return first
}

func (s *stream) verifyChunk(v *segstore.View, next uint64) uint64 {
	s.t.Helper()
	data := v.Data
	if file, position, length, ok := v.Section(); ok {
		data = make([]byte, length)
		if _, err := file.ReadAt(data, position); err != nil {
			s.t.Fatal(err)
		}
		data = data[chunk.ClientHeaderLength:]
	}
	if uint64(v.Header.BaseOffset) != next {
		s.t.Fatalf("message count wrong: offset %d follows %d", v.Header.BaseOffset, next)
	}
	it := v.Header.EntriesIn(data)
	for it.Next() {
		if !bytes.Equal(it.Entry().Body, messageOf(next)) {
			s.t.Fatalf("message %d is %.20q", next, it.Entry().Body)
		}
		next++
	}
	s.must(it.Err())
	return next
}

// answers asks for every reference's stored offset: the last one stored.
func (s *stream) answers() {
	s.t.Helper()
	wrong := 0
	for i, o := range s.offsets() {
		if s.rounds > 0 && o != int64(s.stored[i]) {
			if wrong++; wrong == 1 {
				s.t.Errorf("state lost: %s is at %d, stored %d", s.names[i], o, s.stored[i])
			}
		}
	}
	if wrong > 1 {
		s.t.Errorf("%d of %d references have lost their state", wrong, len(s.names))
	}
}

// offsets returns every reference's stored offset, −1 where there is none.
func (s *stream) offsets() []int64 {
	s.t.Helper()
	found := make([]int64, len(s.names))
	s.await(func() error {
		for i, name := range s.names {
			o, ok, err := s.replica.QueryOffset(name)
			if err != nil && !errors.Is(err, replication.ErrTrackingUnknown) {
				return err
			}
			if found[i] = -1; ok {
				found[i] = int64(o)
			}
		}
		return nil
	})
	return found
}

func (s *stream) String() string {
	st := s.replica.Stats()
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %d messages, %d segments, tracking at most %.1f %% of its bound (%d of %d bytes, after %s)",
		s.about.Name, st.Log.Records, st.Log.Segments, 100*float64(s.worst.tracking)/float64(max(s.worst.bound, 1)),
		s.worst.tracking, s.worst.bound, s.worst.at.Round(time.Second))
	fmt.Fprintf(&b, ", %d rolls, %d drops, %d merges, window %d to %d ms", s.rolls+st.Rolls,
		s.drops+st.Log.Compaction.Drops, s.merges+st.Log.Compaction.Merges, s.window[0], s.window[1])
	return b.String()
}
