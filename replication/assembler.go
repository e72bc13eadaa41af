package replication

import (
	"sort"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/tracking"
)

// assembler collects entries for the next user chunk. Entries are copied in as
// their batches come, so that when the disk is ready for the chunk only its
// CRCs are missing.
type assembler struct {
	builder      chunk.Builder
	filter       chunk.Filter
	filterLength int // bytes of a filter, where an entry has a value

	open bool // the builder has buffers, and at least one entry
	// batches are those whose last entries are in this chunk.
	batches []*Batch
	// references are those with entries in this chunk, in order of their first.
	references []*reference
	// trailerLength bounds the bytes of their sequences.
	trailerLength int
}

// run returns the end of the longest run of entries from i on that may join the
// chunk by one copy; i if not even one may. Duplicates end a run.
func (a *assembler) run(b *Batch, i int) int {
	ref := b.Publisher.reference
	if ref != nil && !ref.building && a.open &&
		a.trailerLength+tracking.SequenceLengthMax(len(ref.name)) > sequencesLengthMax {
		return i
	}
	if b.isSubBatch(i) {
		if a.open {
			return i
		}
		return i + 1
	}
	j := len(b.IDs)
	if ref != nil {
		j = rising(b.IDs, i)
	}
	if b.Records != nil {
		for k := i + 1; k < j; k++ {
			if b.isSubBatch(k) {
				j = k
			}
		}
	}
	first := b.start(i)
	if a.builder.Fits(int(b.Ends[j-1]-first), j-i) {
		return j
	}
	return i + sort.Search(j-i, func(n int) bool { return !a.builder.Fits(int(b.Ends[i+n]-first), n+1) })
}

// sequencesLengthMax bounds the sequences of a chunk, to leave room for stored
// offsets in its trailer.
const sequencesLengthMax = chunk.TrailerLengthMax / 2

// rising returns the end of the run of strictly rising ids from i on.
func rising(ids []uint64, i int) int {
	j := i + 1
	for j < len(ids) && ids[j] > ids[j-1] {
		j++
	}
	return j
}

// append copies the entries from i up to j into the chunk. Run has said that
// they fit, and the assembler is open.
func (a *assembler) append(b *Batch, i, j int) {
	a.builder.AppendRun(b.Data[b.start(i):b.Ends[j-1]], j-i, b.records(i, j))
	if b.Filters == nil {
		a.filter.Add(nil)
	} else {
		for _, value := range b.Filters[i:j] {
			a.filter.Add(value)
		}
	}
	ref := b.Publisher.reference
	if ref == nil {
		return
	}
	ref.seen, ref.last = true, b.IDs[j-1]
	if !ref.building {
		ref.building = true
		a.references = append(a.references, ref)
		a.trailerLength += tracking.SequenceLengthMax(len(ref.name))
	}
}

// begin opens the assembler with buffers for a chunk.
func (a *assembler) begin(head, data []byte) {
	a.builder.Reset(head, data)
	a.filter.Reset(a.filterLength)
	a.open = true
}

// sequences appends the sequences that the chunk's trailer must carry (F1).
func (a *assembler) sequences(dst []tracking.SequenceUpdate) []tracking.SequenceUpdate {
	for _, ref := range a.references {
		dst = append(dst, tracking.SequenceUpdate{Ref: ref.name, Sequence: ref.last})
	}
	return dst
}

// finished notes that the chunk was appended at an LSN, and hands its batches
// over to wait for the commit.
func (a *assembler) finished(lsn chunk.LSN, to *queue[waiting]) {
	for i, ref := range a.references {
		ref.lsn, ref.building = lsn, false
		a.references[i] = nil
	}
	for i, b := range a.batches {
		to.push(waiting{b, lsn})
		a.batches[i] = nil
	}
	a.reset()
}

// abandon drops the chunk; what its references have published since their last
// one in the log was not stored.
func (a *assembler) abandon() {
	for i, ref := range a.references {
		ref.building, ref.loaded = false, false
		a.references[i] = nil
	}
	clear(a.batches)
	a.reset()
}

func (a *assembler) reset() {
	a.builder.Reset(nil, nil)
	a.open, a.trailerLength = false, 0
	a.references, a.batches = a.references[:0], a.batches[:0]
}
