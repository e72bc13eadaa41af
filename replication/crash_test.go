package replication

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// crashState is a file system as a crash left it, and what clients had been
// told before.
type crashState struct {
	name      string
	fs        *vfs.Mem
	confirmed []uint64 // publishing ids, in order
	sent      int      // messages published
	at        time.Time
	stored    []storedAt // every store so far, in order
}

type storedAt struct {
	offset chunk.Offset
	at     time.Time
}

// losses are the ways in which unsynced bytes and names may be lost.
var losses = []struct {
	name   string
	policy vfs.Policy
}{
	{"all unsynced is lost", vfs.Policy{}},
	{"only the process died", vfs.Policy{Writes: vfs.KeepAll, Names: vfs.KeepAll}},
	{"one moment", vfs.Policy{Ordered: true, Tears: vfs.TearAny, BordersMax: 4}},
	{"prefixes", vfs.Policy{Writes: vfs.KeepPrefix, Names: vfs.KeepPrefix, Tears: vfs.TearAny, BordersMax: 8, Grown: true}},
	{"any subset", vfs.Policy{Writes: vfs.KeepAny, Names: vfs.KeepAny, Tears: vfs.TearAny, BordersMax: 8, Grown: true}},
}

// TestCrash_confirmedSurvives crashes a node between any two changes that it
// makes to its disk, while it publishes, stores offsets, rolls and retires, and
// starts it again from what may be left.
func TestCrash_confirmedSurvives(t *testing.T) {
	const seeds, framesPerSeed, crashesPerSeed = 12, 60, 12
	total := 0
	for seed := range uint64(seeds) {
		synctest.Test(t, func(t *testing.T) {
			random := rand.New(rand.NewPCG(seed, 0))
			for _, s := range workload(t, random, seed, framesPerSeed, crashesPerSeed) {
				s.check(t)
				total++
			}
		})
		if t.Failed() {
			return
		}
	}
	if total < seeds*crashesPerSeed/2 {
		t.Fatalf("only %d crash states were checked", total)
	}
	t.Logf("%d crash states", total)
}

// workload runs a leader for a while, and crashes it here and there.
func workload(t *testing.T, random *rand.Rand, seed uint64, frames, crashes int) []*crashState {
	m := vfs.NewMem()
	f := newFixture(t, m, "/data", func(f *fixture) { f.stream.Settings.Log.SegmentBytes = 64 << 10 })
	f.lead(1)
	p := f.declare("p")
	sink := newCollector()
	var states []*crashState
	var stored []storedAt
	sent, changes := 0, 0
	next := random.IntN(30)
	var mu sync.Mutex // the disk is changed by turns and by syncs
	m.Observe(func(op vfs.Op, name string) {
		mu.Lock()
		defer mu.Unlock()
		changes++
		if changes < next || len(states) == crashes {
			return
		}
		next = changes + 1 + random.IntN(30)
		loss := losses[random.IntN(len(losses))]
		s := &crashState{
			name:      fmt.Sprintf("seed %d, change %d (%v %s), %s", seed, changes, op, name, loss.name),
			confirmed: sink.ids(), sent: sent, at: time.Now(), stored: slices.Clone(stored),
		}
		s.fs = m.Crash(loss.policy, vfs.Seeded(random.Uint64()))
		states = append(states, s)
	})
	for i := range frames {
		mu.Lock()
		n := 1 + random.IntN(20)
		sent += n
		batch := batchOf(p, sink, numbered(uint64(sent-n+1), n, 10+random.IntN(2000))...)
		stored = append(stored, storedAt{chunk.Offset(i), time.Now()})
		pause, wait := time.Duration(random.IntN(500))*time.Millisecond, random.IntN(3) == 0
		mu.Unlock()
		f.must(f.replica.StoreOffset("c", chunk.Offset(i)))
		f.replica.Publish(batch)
		if wait {
			synctest.Wait()
		}
		time.Sleep(pause)
	}
	m.Observe(nil)
	f.stop()
	return states
}

// check starts a node on the state and compares it with what was told.
func (s *crashState) check(t *testing.T) {
	t.Helper()
	stream := Stream{Incarnation: streamUnderTest, Name: "orders"}
	stream.Settings.Log.SegmentBytes = 64 << 10
	f := &fixture{t: t, fs: s.fs, dir: "/data", config: Config{ID: "n1"}, stream: stream, lost: make(chan error, 100)}
	f.start(false)
	defer f.stop()
	f.lead(2)

	records := f.records()
	want := bodiesOf(len(records))
	got := make([]string, len(records))
	for i, r := range records {
		got[i] = firstWords(r)
	}
	switch {
	case !slices.Equal(got, want):
		t.Errorf("%s: the log holds %d records, but not the first %d that were sent in order", s.name, len(got), len(want))
	case len(got) < len(s.confirmed):
		t.Errorf("%s: %d messages were confirmed, %d are left", s.name, len(s.confirmed), len(got))
	case len(got) > s.sent:
		t.Errorf("%s: %d messages were sent, %d are there", s.name, s.sent, len(got))
	}
	f.wantSequence("p", uint64(len(got)))

	// The publisher sends everything again, and goes on: nothing is there twice.
	p := f.declare("p")
	f.publish(p, numbered(1, s.sent+5, 10)...)
	if n := len(f.records()); n != s.sent+5 {
		t.Errorf("%s: %d records after publishing all %d again", s.name, n, s.sent+5)
	}
	s.checkOffset(t, f)
}

// checkOffset: the stored offset is one that was stored, and not older than the
// window.
func (s *crashState) checkOffset(t *testing.T, f *fixture) {
	t.Helper()
	const window = 5*time.Second + storesEvery + rideWithin*time.Millisecond
	got, ok, err := f.replica.QueryOffset("c")
	f.must(err)
	oldest := chunk.Offset(0)
	required := false
	for _, v := range s.stored {
		if s.at.Sub(v.at) > window {
			oldest, required = v.offset, true
		}
	}
	newest := chunk.Offset(0)
	if n := len(s.stored); n > 0 {
		newest = s.stored[n-1].offset
	}
	if required && !ok || ok && (got < oldest || got > newest) {
		t.Errorf("%s: offset %d, %v; stored were %d to %d", s.name, got, ok, oldest, newest)
	}
}

func bodiesOf(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf("message %d", i+1)
	}
	return list
}

// firstWords cuts the padding off a numbered message.
func firstWords(body string) string {
	var n int
	_, _ = fmt.Sscanf(body, "message %d", &n)
	return fmt.Sprintf("message %d", n)
}
