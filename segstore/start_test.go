package segstore_test

import (
	"encoding/binary"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/tracking"
)

var (
	startGB      = flag.Int("start.gb", 1, "size of the node whose start is measured, in GB of sparse files")
	startStreams = flag.Int("start.streams", 10, "streams that share it")
)

const (
	bigSegment    = 20_000_000 // bytes of data of each segment's one user chunk
	bigTime       = chunk.Timestamp(1_700_000_000_000)
	bigTimeStride = 1000 // milliseconds from one segment to the next
)

// bigNode is a node of sparse files: what a start and an attach read is real,
// message bodies are holes.
type bigNode struct {
	t   *testing.T
	dir string
	inc chunk.Incarnation

	user     []byte // head of a user chunk, to be patched
	first    []byte // first bytes of its data
	digest   chunk.Digest
	lsn      chunk.LSN
	offset   chunk.Offset
	snapshot []byte
}

// template makes the one user chunk of which all are copies.
func (b *bigNode) template() {
	data := chunk.AppendSimple(nil, make([]byte, bigSegment))
	var builder chunk.Builder
	builder.Reset(nil, make([]byte, 0, len(data)))
	builder.AppendRun(data, 1, 1)
	head, _, _ := builder.Finish(&chunk.Meta{Incarnation: b.inc, LSN: 1, Timestamp: bigTime, Epoch: 1})
	b.user, b.first = head, data[:4]
	b.snapshot = tracking.New(tracking.Caps{}, 1).EncodeSnapshot(tracking.SnapshotOptions{Now: bigTime, Epoch: 1}, nil)[0]
}

// segment writes one file and returns its summary.
func (b *bigNode) segment(i int, sealed bool) manifest.Summary {
	at := bigTime + chunk.Timestamp(i*bigTimeStride)
	flags := chunk.FlagSegmentStart | chunk.FlagUnitStart | chunk.FlagSnapshotFirst | chunk.FlagSnapshotLast
	snapshot, sh := chunk.BuildControl(chunk.Snapshot, &chunk.Meta{
		Incarnation: b.inc, Flags: flags, LSN: b.lsn, SyncedLSN: b.lsn - 1, DigestBefore: b.digest,
		Timestamp: at, Epoch: 1, BaseOffset: b.offset, Trailer: b.snapshot,
	}, nil)
	user := slices.Clone(b.user)
	client := chunk.ClientHeaderOf(user)
	binary.BigEndian.PutUint64(user[8:], uint64(b.lsn+1))
	binary.BigEndian.PutUint64(user[24:], uint64(b.digest))
	binary.BigEndian.PutUint64(client[8:], uint64(at))
	binary.BigEndian.PutUint64(client[24:], uint64(b.offset))
	chunk.Restamp(b.inc, user, b.lsn)
	uh, err := chunk.Decode(b.inc, user)
	if err != nil {
		b.t.Fatal(err)
	}
	sum := manifest.NewSummary(b.inc, 0, &sh)
	before := chunk.Epoch(1)
	if i == 0 {
		before = 0
	}
	sum.Add(&sh, before)
	name := filepath.Join(b.dir, sum.Name().String()+".seg")
	f, err := os.Create(name)
	if err != nil {
		b.t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	write := func(bytes []byte, at int64) {
		if _, err := f.WriteAt(bytes, at); err != nil {
			b.t.Fatal(err)
		}
	}
	write(snapshot, 0)
	if sealed {
		write(user, sum.Size)
		write(b.first, sum.Size+int64(len(user)))
		sum.Add(&uh, 1)
		write(manifest.AppendFooter(nil, &sum), sum.Size)
		b.digest, b.offset = uh.DigestAfter(), uh.Next()
		b.lsn++
	}
	b.lsn++
	return sum
}

// stream writes a stream of so many sealed segments and an unsealed one.
func (b *bigNode) stream(dataDir string, inc chunk.Incarnation, segments int) {
	b.inc, b.digest, b.lsn, b.offset = inc, 0, 1, 0
	b.dir = filepath.Join(dataDir, "streams", segstore.Hash(fmt.Sprint("/", inc))+"-"+inc.String())
	b.template()
	var records []manifest.Record
	for i := range segments {
		records = append(records, manifest.Record{Kind: manifest.KindSealed, Summary: b.segment(i, true)})
	}
	b.segment(segments, false)
	if err := os.WriteFile(filepath.Join(b.dir, "MANIFEST"), manifest.Encode(inc, records), 0o644); err != nil {
		b.t.Fatal(err)
	}
}

// A start reads what the manifests say and the unsealed files' ends, whatever
// the size of the log, and an attach opens the one segment it is for.
// `make start-bench` has a node of 100 GB in 5,000 segments.
func TestStart_bigNode(t *testing.T) {
	dir := t.TempDir()
	segments := max(*startGB*1_000_000_000/bigSegment / *startStreams, 1)
	store, err := segstore.NewStore(segstore.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	for i := range *startStreams {
		inc := chunk.Incarnation(i + 1)
		if err := store.Create(fmt.Sprint("/", inc), inc); err != nil {
			t.Fatal(err)
		}
	}
	if err := store.Close(); err != nil {
		t.Fatal(err)
	}
	b := &bigNode{t: t}
	for i := range *startStreams {
		b.stream(dir, chunk.Incarnation(i+1), segments)
	}

	begin := time.Now()
	store, err = segstore.NewStore(segstore.Options{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	var read int64
	var log *segstore.Log
	for i := range *startStreams {
		l, found, err := store.Open(chunk.Incarnation(i+1), segstore.Config{})
		if err != nil || l.Err() != nil || len(found.Damage) > 0 {
			t.Fatalf("stream %d: %v, %v, %+v", i, err, l.Err(), found)
		}
		read += found.ReadBytes
		log = l
	}
	ready := time.Since(begin)
	if read > int64(*startStreams)*4096 {
		t.Errorf("read %d bytes of segments", read)
	}

	open := store.Stats().OpenFiles
	var took []time.Duration
	for i := range segments {
		for _, spec := range []segstore.Spec{
			{Kind: segstore.AtOffset, Offset: chunk.Offset(i)},
			{Kind: segstore.AtTimestamp, Timestamp: bigTime + chunk.Timestamp(i*bigTimeStride)},
		} {
			begin := time.Now()
			r, err := log.Attach(spec, log.Tail().LSN)
			took = append(took, time.Since(begin))
			if err != nil || r.Offset() != chunk.Offset(i) {
				t.Fatalf("attach at %s: offset %d, %v", spec, r.Offset(), err)
			}
			r.Close()
		}
		if i == 0 && store.Stats().OpenFiles > open+1 {
			t.Errorf("an attach opened %d files", store.Stats().OpenFiles-open)
		}
	}
	slices.Sort(took)
	t.Logf("%d GB in %d streams of %d segments: ready in %s, %d bytes of segments read; attach p50 %s, p99 %s",
		*startGB, *startStreams, segments+1, ready.Round(time.Millisecond), read, took[len(took)/2], took[len(took)*99/100])
}
