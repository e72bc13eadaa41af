package protocol

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/segstore/chunk"
)

// entry is one chunk of a scripted log: its place, and what the messages and
// the tracking in it are, as in the model.
type entry struct {
	c        Chunk
	hole     bool      // compaction dropped it
	stripped bool      // compaction took its trailer
	part     bool      // the first part of a split snapshot
	split    bool      // a snapshot that needs the part before it
	msg      int       // user: the client's message
	seq      int       // user: publisher sequence; snapshot: de-duplication state
	seqLSN   chunk.LSN // snapshot: chunk that carried seq
	off      int       // stored offset: number of the store
	ver      uint64    // version of the stored offset
}

func (e *entry) snapshot() bool { return e.c.Type == chunk.Snapshot && !e.part }

// same tells whether two chunks are one, compaction apart.
func (e entry) same(g entry) bool {
	return e.c.Epoch == g.c.Epoch && e.c.Type == g.c.Type && e.msg == g.msg && e.c.Offset == g.c.Offset &&
		(e.stripped || e.seq == g.seq && e.off == g.off)
}

func (e entry) String() string {
	if e.hole {
		return "-"
	}
	s := ""
	if e.c.has(chunk.FlagSegmentStart) {
		s = "/"
	}
	s += fmt.Sprint(uint64(e.c.Epoch))
	switch {
	case e.c.Type == chunk.User:
		s += fmt.Sprint("m", e.msg)
	case e.c.Type == chunk.Delta:
		s += "d"
	case e.part:
		s += "P"
	default:
		s += "S"
	}
	if e.seq > 0 {
		s += fmt.Sprint("s", e.seq)
	}
	if e.off > 0 {
		s += fmt.Sprint("o", e.off)
	}
	if e.stripped {
		s += "~"
	}
	return s
}

// track is the tracking state: one publisher, one reference.
type track struct {
	seq  int
	lsn  chunk.LSN
	off  int
	ok   bool // known (F9)
	half bool // the chunk before was the first part of a snapshot
}

func (t *track) apply(e *entry, n chunk.LSN, w worldRules) {
	half := t.half
	t.half = false
	switch {
	case e.hole:
		t.ok = false
	case e.part:
		t.half = true
		if !w.partsComplete { // taken for the whole
			*t = track{seq: e.seq, lsn: e.seqLSN, ok: true, half: true}
		}
	case e.snapshot():
		if e.split && !half {
			t.ok = false
			return
		}
		*t = track{seq: e.seq, lsn: e.seqLSN, off: e.off, ok: true}
	case e.stripped:
		t.ok = false
	default:
		if e.seq > 0 {
			t.seq, t.lsn = e.seq, n
		}
		if e.off > 0 {
			t.off = e.off
		}
	}
}

// disk is what survives: all of it a crash, the durable part power loss.
type disk struct {
	log     []entry // log[i] is LSN i+1; below start they are zero
	lines   []EpochLine
	start   LogStart
	durable chunk.LSN
	journal Journal
	commit  chunk.LSN
	next    chunk.Offset
	digest  chunk.Digest
	segs    map[chunk.LSN]bool
}

func newDisk() *disk { return &disk{start: LogStart{LSN: 1}, segs: map[chunk.LSN]bool{}} }

func (d *disk) tail() chunk.LSN { return chunk.LSN(len(d.log)) }

func (d *disk) at(n chunk.LSN) *entry { return &d.log[n-1] }

func (d *disk) epochAt(n chunk.LSN) chunk.Epoch {
	t := EpochTable{d.lines}
	return t.At(n)
}

// put writes a chunk beyond the tail; LSNs between become holes.
func (d *disk) put(e entry) {
	for d.tail()+1 < e.c.LSN {
		d.log = append(d.log, entry{hole: true})
	}
	d.log = append(d.log, e)
	d.line(EpochLine{e.c.Epoch, e.c.LSN, e.c.Offset})
	d.next, d.digest = e.c.Next(), e.c.After
	if e.c.has(chunk.FlagSegmentStart) {
		d.segs[e.c.LSN] = true
	}
}

func (d *disk) line(l EpochLine) {
	t := EpochTable{d.lines}
	t.add(l)
	d.lines = t.lines
}

func (d *disk) truncate(n chunk.LSN) {
	for d.tail() > n {
		e := d.at(d.tail())
		if !e.hole {
			d.next, d.digest = e.c.Offset, e.c.Before
		}
		delete(d.segs, d.tail())
		d.log = d.log[:len(d.log)-1]
	}
	t := EpochTable{d.lines}
	t.truncate(n)
	d.lines = t.lines
	d.durable = min(d.durable, n)
}

func (d *disk) reset(s LogStart) {
	d.log = make([]entry, s.LSN-1)
	d.lines = nil
	if s.LSN > 1 {
		d.lines = []EpochLine{s.Line}
	}
	d.start, d.durable, d.next, d.digest = s, s.LSN-1, s.Offset, s.Digest
	d.segs = map[chunk.LSN]bool{}
}

// startAt is the log start at a segment's first chunk.
func (d *disk) startAt(n chunk.LSN) LogStart {
	t := EpochTable{d.lines}
	s := LogStart{LSN: n, Offset: d.next, Line: t.Line(n - 1), Digest: d.digest}
	for l := n; l <= d.tail(); l++ {
		if e := d.at(l); !e.hole {
			s.Offset, s.Digest = e.c.Offset, e.c.Before
			break
		}
	}
	return s
}

func (d *disk) retire(s LogStart) {
	for l := d.start.LSN; l < s.LSN; l++ {
		*d.at(l) = entry{}
		delete(d.segs, l)
	}
	d.start = s
	t := EpochTable{d.lines}
	t.retain(s.LSN)
	d.lines = t.lines
}

// fold rebuilds tracking from the log up to an LSN (F9).
func (d *disk) fold(n chunk.LSN, w worldRules) track {
	t := track{ok: d.start.LSN <= 1}
	for l := d.start.LSN; l <= min(n, d.tail()); l++ {
		t.apply(d.at(l), l, w)
	}
	return t
}

// whole: a complete snapshot ends at k and begins at or after from.
func (d *disk) whole(k, from chunk.LSN) bool {
	e := d.at(k)
	return !e.hole && e.snapshot() && (!e.split || k > from && d.at(k-1).part)
}

// proof is the highest LSN that must have been committed, since it is missing
// or stripped.
func (d *disk) proof() chunk.LSN {
	p := d.start.LSN - 1
	for l := d.start.LSN; l <= d.tail(); l++ {
		if d.at(l).hole || d.at(l).stripped {
			p = l
		}
	}
	return p
}

// cutStart is the highest segment start up to want that E3 allows.
func (d *disk) cutStart(want, commit chunk.LSN, w worldRules) chunk.LSN {
	best := d.start.LSN
	if w.retDurable {
		commit = min(commit, d.durable)
	}
	if !w.retCommitted {
		commit = d.tail()
	}
	for l := d.start.LSN + 1; l <= min(want, d.tail()); l++ {
		if !d.segs[l] {
			continue
		}
		ok := !w.retSnapshot && l-1 <= commit
		for k := l; w.retSnapshot && k <= commit; k++ {
			ok = ok || d.whole(k, l)
		}
		if ok {
			best = l
		}
	}
	return best
}

// superseded: compaction may drop k, given a complete snapshot that ends at s.
func (d *disk) superseded(k, s chunk.LSN, w worldRules) bool {
	e := d.at(k)
	if e.hole || e.c.Type == chunk.User && (e.stripped || e.seq == 0 && e.off == 0) {
		return false
	}
	if !w.compLater {
		return true
	}
	for b := k + 1; b <= s; b++ {
		if d.segs[b] {
			return true
		}
	}
	return false
}

// compact drops what the newest allowed snapshot supersedes, harder than E2,
// which keeps one snapshot in reserve. It returns how many chunks it touched.
func (d *disk) compact(commit chunk.LSN, w worldRules) int {
	if !w.compCommitted {
		commit = d.tail()
	}
	n := 0
	for s := min(commit, d.tail()); s > d.start.LSN && n == 0; s-- {
		if !d.whole(s, d.start.LSN) || s > d.durable {
			continue
		}
		for k := d.start.LSN; k < s; k++ {
			if !d.superseded(k, s, w) {
				continue
			}
			n++
			if e := d.at(k); e.c.Type == chunk.User {
				e.stripped, e.seq, e.off = true, 0, 0
			} else {
				*e = entry{hole: true}
			}
		}
	}
	return n
}

// linesOfChunks is the epoch table that only the chunks themselves would give:
// what C1 forbids.
func (d *disk) linesOfChunks() []EpochLine {
	var t EpochTable
	for l := d.start.LSN; l <= d.tail(); l++ {
		if e := d.at(l); !e.hole {
			t.add(EpochLine{e.c.Epoch, l, e.c.Offset})
		}
	}
	return t.lines
}

func (d *disk) String() string {
	var b strings.Builder
	if d.start.LSN > 1 {
		fmt.Fprintf(&b, "%d..", d.start.LSN)
	}
	b.WriteString("[")
	for l := d.start.LSN; l <= d.tail(); l++ {
		if l > d.start.LSN {
			b.WriteString(" ")
		}
		if l == d.durable+1 {
			b.WriteString("|")
		}
		b.WriteString(d.at(l).String())
	}
	b.WriteString("]")
	return b.String()
}
