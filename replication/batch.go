package replication

import "github.com/millrace/millrace/segstore/chunk"

// Batch is one Publish frame, parsed and checked: entries of one publisher in
// the order sent. Whoever makes it must leave it alone, the bytes too, until
// its Sink has it back; then it may be used again.
type Batch struct {
	Publisher *Publisher
	// IDs are the publishing ids of the entries.
	IDs []uint64
	// Data holds the entries back to back in chunk layout; Ends[i] is where in
	// Data entry i ends. Invariant: len(Ends) = len(IDs), Ends strictly rises,
	// the last is len(Data).
	Ends []uint32
	Data []byte
	// Records counts the records of each entry; nil where all are simple.
	Records []uint32
	// Filters is each entry's filter value, empty for none; nil where all are.
	Filters [][]byte
	Sink    Sink
}

// Sink takes batches back. It is called from turns, in the order in which the
// batches of one publisher became certain, or from Publish itself where that
// refuses; it must not block.
type Sink interface {
	// Confirmed: every entry is committed, here or as the duplicate of one
	// that is.
	Confirmed(b *Batch)
	// Failed: not every entry is known to be stored, and none will be confirmed.
	Failed(b *Batch, err error)
}

// start returns where entry i begins in Data.
func (b *Batch) start(i int) uint32 {
	if i == 0 {
		return 0
	}
	return b.Ends[i-1]
}

// records counts the records of the entries from i up to j.
func (b *Batch) records(i, j int) uint32 {
	if b.Records == nil {
		return uint32(j - i)
	}
	var n uint32
	for _, r := range b.Records[i:j] {
		n += r
	}
	return n
}

// isSubBatch tells whether entry i is a sub-batch, which needs a chunk of its
// own: the top bit of its first byte.
func (b *Batch) isSubBatch(i int) bool {
	return b.Records != nil && b.Data[b.start(i)]&0x80 != 0
}

// waiting is a batch whose entries are all in chunks, until the last of these
// is committed.
type waiting struct {
	batch *Batch
	lsn   chunk.LSN
}
