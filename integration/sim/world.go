package sim

import (
	"container/heap"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"reflect"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// World is one run.
type World struct {
	seed    uint64
	stretch int64 // how many times longer than usual it runs
	opts    options
	rng     *rand.Rand
	now     int64 // microseconds since the start
	queue   eventQueue
	serial  uint64
	calm    bool
	trace   tracer
	nodes   []*node
	links   []*link
	meta    *metadata
	raft    *raft
	disks   int // that were given to nodes in place of others
	streams []*stream
	clients []client
	asked   []*asked    // by operators
	uids    []published // by uid
	wiped   int64       // when a disk was emptied last
	failure error
	body    []byte // scratch
	stats   Counts

	coverage Coverage
	rotten   *node // whose disk rots, if one does
	visitors int   // how many have come
}

// Counts tell how much happened, so that a report shows what was tried.
type Counts struct {
	Steps, Turns, Frames                          int
	Crashes, PowerLosses, Resets, Cuts, Elections int
	Published, Confirmed, Delivered, Committed    int
	Stores, Queries, Truncations, LogResets, Gaps int
	DiskFaults, Moves, Rolls, Starts              int
	MetaLeaders, Commands, Grants                 int
}

// event is something that happens at a time.
type event struct {
	at     int64
	serial uint64
	do     func()
}

type eventQueue []event

func (q eventQueue) Len() int { return len(q) }
func (q eventQueue) Less(i, j int) bool {
	return q[i].at < q[j].at || q[i].at == q[j].at && q[i].serial < q[j].serial
}
func (q eventQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *eventQueue) Push(x any)   { *q = append(*q, x.(event)) }
func (q *eventQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	old[len(old)-1] = event{}
	*q = old[:len(old)-1]
	return e
}

const (
	microsecond = int64(1)
	millisecond = 1000 * microsecond
	second      = 1000 * millisecond
)

// epochOfTime is what the clock of a node without skew shows at the start.
var epochOfTime = time.UnixMilli(1_700_000_000_000)

// after has something happen later.
func (w *World) after(delay int64, do func()) {
	w.serial++
	heap.Push(&w.queue, event{w.now + max(delay, 0), w.serial, do})
}

// run lets things happen up to a time, or until done says so, if given.
func (w *World) run(until int64, done func() bool) {
	for w.failure == nil && len(w.queue) > 0 && w.queue[0].at <= until {
		e := heap.Pop(&w.queue).(event)
		w.now = e.at
		w.stats.Steps++
		e.do()
		for _, n := range w.nodes {
			if n.dead {
				n.die()
			}
		}
		if done != nil && done() {
			return
		}
	}
	if w.failure == nil && (len(w.queue) == 0 || w.queue[0].at > until) {
		w.now = max(w.now, until)
	}
}

// chance is true so many times in a thousand.
func (w *World) chance(perMille int) bool { return w.rng.IntN(1000) < perMille }

// between draws a number.
func (w *World) between(low, high int64) int64 {
	if high <= low {
		return low
	}
	return low + w.rng.Int64N(high-low+1)
}

// choose serves vfs.Mem's crashes.
func (w *World) choose(n int) int { return w.rng.IntN(n) }

// violate ends the run.
func (w *World) violate(invariant, format string, args ...any) {
	if w.failure == nil {
		w.failure = fmt.Errorf("%s: %s", invariant, fmt.Sprintf(format, args...))
		w.log("VIOLATION", "%s", w.failure)
	}
}

// tracer hashes one line for each event that matters, and keeps them if asked.
type tracer struct {
	hash  uint64
	keep  bool
	lines [][]byte
	line  []byte
}

// log writes a line of the trace.
func (w *World) log(what, format string, args ...any) {
	t := &w.trace
	t.line = fmt.Appendf(t.line[:0], "%10.3f  %-9s ", float64(w.now)/1000, what)
	t.line = fmt.Appendf(t.line, format, args...)
	h := fnv.New64a()
	h.Write(t.line)
	t.hash = t.hash*0x9E3779B97F4A7C15 + h.Sum64()
	if t.keep {
		t.lines = append(t.lines, append([]byte(nil), t.line...))
	}
}

// stream is what the observer knows of one stream.
type stream struct {
	index    int
	name     string
	inc      chunk.Incarnation
	settings streamSettings
	ghost    ghost
	// made: the catalog has had it; deleted: it has it no more, and its name may
	// be another stream's by now.
	made, deleted bool
	want          int // replicas
}

func (s *stream) String() string { return s.name }

// published is what a client sent under a uid.
type published struct {
	stream    int
	client    int
	id        uint64
	part      int // of the sub-batch that has the id
	reference string
	length    int
	sent      int // how often
	committed bool
	offset    chunk.Offset
}

func nodeID(i int) protocol.NodeID { return protocol.NodeID(fmt.Sprint("n", i+1)) }

func (c *Counts) add(d *Counts) {
	sum, by := reflect.ValueOf(c).Elem(), reflect.ValueOf(d).Elem()
	for i := range sum.NumField() {
		sum.Field(i).SetInt(sum.Field(i).Int() + by.Field(i).Int())
	}
}
