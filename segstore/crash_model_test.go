package segstore_test

import (
	"bytes"
	"fmt"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/tracking"
)

// link is one chunk as it was handed to the log, with what must hold behind it.
type link struct {
	chunk.Header
	head, data []byte
	// fold is the tracking state up to here, as a checkpoint; nil between the
	// parts of a snapshot.
	fold []byte
}

// history is one line of chunks with which a log may come back.
type history struct {
	from  manifest.Start // what is before links[0]
	links []link
	// must: everything up to here was reported durable.
	must chunk.LSN
}

func (h *history) tail() chunk.Tail {
	if n := len(h.links); n > 0 {
		return h.links[n-1].Tail()
	}
	return h.from.Tail()
}

func (h *history) next() chunk.Offset {
	if n := len(h.links); n > 0 {
		return h.links[n-1].Next()
	}
	return h.from.Offset
}

func (h *history) digest() chunk.Digest {
	if n := len(h.links); n > 0 {
		return h.links[n-1].DigestAfter()
	}
	return h.from.Digest
}

func (h *history) timestamp() chunk.Timestamp {
	if n := len(h.links); n > 0 {
		return h.links[n-1].Timestamp
	}
	return 0
}

// at returns the chunk with an LSN, nil if the history has none.
func (h *history) at(lsn chunk.LSN) *link {
	if i := int(lsn) - int(h.from.LSN); i >= 0 && i < len(h.links) {
		return &h.links[i]
	}
	return nil
}

// cut returns the history up to an LSN.
func (h *history) cut(n chunk.LSN) history {
	keep := int(n) + 1 - int(h.from.LSN)
	return history{from: h.from, links: h.links[:keep:keep], must: min(h.must, n)}
}

// fold folds tracking anew, as nobody else does: from the first chunk on.
func (h *history) fold() *tracking.State {
	s := tracking.New(tracking.Caps{}, h.from.LSN)
	for i := range h.links {
		l := &h.links[i]
		if err := s.Apply(&l.Header, l.TrailerOf(l.head)); err != nil {
			panic(err)
		}
	}
	return s
}

// foldAt returns the fold at the end as a checkpoint, which add has made. ok is
// false between the parts of a snapshot.
func (h *history) foldAt() (fold []byte, ok bool) {
	if n := len(h.links); n > 0 {
		fold = h.links[n-1].fold
		return fold, fold != nil
	}
	return h.fold().AppendCheckpoint(nil)
}

// lines returns the epoch table up to an LSN of a log that starts at start (C1).
func (h *history) lines(start, tail chunk.LSN) (lines []manifest.EpochLine) {
	if h.from.Line.Epoch > 0 {
		lines = append(lines, h.from.Line)
	}
	epoch := h.from.Line.Epoch
	for i := range h.links {
		l := &h.links[i]
		if l.LSN > tail {
			break
		}
		if l.Epoch != epoch {
			lines = append(lines, manifest.EpochLine{Epoch: l.Epoch, LSN: l.LSN, Offset: l.BaseOffset})
			epoch = l.Epoch
		}
	}
	for len(lines) > 1 && lines[1].LSN < start {
		lines = lines[1:]
	}
	return lines
}

// startAt returns the log start that a segment's first chunk gives.
func (h *history) startAt(lsn chunk.LSN) (manifest.Start, error) {
	if lsn == h.from.LSN {
		return h.from, nil
	}
	l := h.at(lsn)
	if l == nil || !l.Has(chunk.FlagSegmentStart) {
		return manifest.Start{}, fmt.Errorf("no segment starts at %d", lsn)
	}
	lines := h.lines(lsn, lsn-1)
	return manifest.Start{LSN: lsn, Offset: l.BaseOffset, Digest: l.DigestBefore, Line: lines[len(lines)-1]}, nil
}

// ghost is what the outside knows about a log: what was handed to it, what it
// has reported, and what it was asked for and has not answered yet. A crash may
// leave any state in between.
type ghost struct {
	// histories hold the present line first and, while a cut or reset is on its
	// way, the line before it.
	histories []history
	// startMin was reported as log start, startMax asked for.
	startMin, startMax chunk.LSN
	// commitMin and markMin were reported written to the journal; commitMax was
	// told to the log.
	commitMin, commitMax, markMin chunk.LSN
	promiseMin, promiseMax        chunk.Epoch
	// replacements are pieces of compaction, in their order.
	replacements []replacement
}

func (g *ghost) now() *history { return &g.histories[0] }

// clone returns a ghost that later changes of g leave alone.
func (g *ghost) clone() *ghost {
	c := *g
	c.histories = nil
	for _, h := range g.histories {
		h.links = h.links[:len(h.links):len(h.links)]
		c.histories = append(c.histories, h)
	}
	return &c
}

// rewrite notes that the log was asked to go on with another history.
func (g *ghost) rewrite(to history) { g.histories = append([]history{to}, g.histories...) }

// settle drops the histories that can't come back any more.
func (g *ghost) settle() { g.histories = g.histories[:1] }

// key tells ghosts apart that judge the same disk differently.
func (g *ghost) key() string {
	var b bytes.Buffer
	for _, h := range g.histories {
		fmt.Fprint(&b, h.from.LSN, h.must, h.tail(), ";")
	}
	for i := range g.replacements {
		fmt.Fprint(&b, g.replacements[i].out.Name(), g.replacements[i].installed, ";")
	}
	fmt.Fprint(&b, g.startMin, g.startMax, g.commitMin, g.commitMax, g.markMin, g.promiseMin, g.promiseMax)
	return b.String()
}

// outcome is what a recovery came to, as far as anybody can see.
type outcome struct {
	tail       chunk.Tail
	start      manifest.Start
	next       chunk.Offset
	digest     chunk.Digest
	commit     chunk.LSN
	journal    segstore.StreamState
	tracking   string
	chunks     string // digest of the bytes of all chunks
	histories  int    // which one came back
	boundaries string
}
