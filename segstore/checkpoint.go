package segstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"path"

	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/manifest"
	"github.com/millrace/millrace/segstore/vfs"
	"github.com/millrace/millrace/tracking"
)

// checkpoint is everything recovery would otherwise learn by reading the active
// segment from its head. It is a cache: of synced bytes only, checked against
// the chunk it ends with, and of no use is no harm.
type checkpoint struct {
	summary  manifest.Summary // up to the position Size
	last     chunk.Timestamp  // of the last chunk
	lastAt   int64            // position of the last chunk
	lastCRC  uint32           // of its head
	index    entries
	tracking []byte
}

const (
	checkpointMagic = 0xD34D4301 // D3 'M' 'C', version 1
	checkpointHead  = 16
	checkpointFixed = 8 + 8 + 4 + 4 + 4
)

var errBadCheckpoint = errors.New("segstore: bad checkpoint")

// encodeCheckpoint returns a checkpoint file:
//
//	 0        4        8                16
//	+--------+--------+----------------+
//	| magic  | CRC-32C| length of body |
//	+--------+--------+----------------+-----------------------------------+
//	| last timestamp u64 | last position u64 | last head CRC u32           |
//	| bytes of footer u32 | index entries u32 | footer | entries | tracking|
//	+----------------------------------------------------------------------+
//
// The footer is the summary so far, in its own block; entries are 32 B each;
// the tracking state takes the rest. The CRC starts from the incarnation and
// covers the body.
func encodeCheckpoint(inc chunk.Incarnation, c *checkpoint, x index) []byte {
	be := binary.BigEndian
	footer := manifest.AppendFooter(nil, &c.summary)
	b := make([]byte, checkpointHead, checkpointHead+checkpointFixed+len(footer)+indexEntryLength*x.len()+len(c.tracking))
	b = be.AppendUint64(b, uint64(c.last))
	b = be.AppendUint64(b, uint64(c.lastAt))
	b = be.AppendUint32(b, c.lastCRC)
	b = be.AppendUint32(b, uint32(len(footer)))
	b = be.AppendUint32(b, uint32(x.len()))
	b = append(b, footer...)
	b = appendEntries(b, x)
	b = append(b, c.tracking...)
	be.PutUint32(b[0:], checkpointMagic)
	be.PutUint32(b[4:], chunk.CRC(inc, b[checkpointHead:]))
	be.PutUint64(b[8:], uint64(len(b)-checkpointHead))
	return b
}

func decodeCheckpoint(inc chunk.Incarnation, b []byte) (*checkpoint, error) {
	be := binary.BigEndian
	if len(b) < checkpointHead+checkpointFixed || be.Uint32(b) != checkpointMagic ||
		be.Uint64(b[8:]) != uint64(len(b)-checkpointHead) || chunk.CRC(inc, b[checkpointHead:]) != be.Uint32(b[4:]) {
		return nil, errBadCheckpoint
	}
	b = b[checkpointHead:]
	c := &checkpoint{
		last: chunk.Timestamp(be.Uint64(b)), lastAt: int64(be.Uint64(b[8:])), lastCRC: be.Uint32(b[16:]),
	}
	footer, n := int(be.Uint32(b[20:])), int(be.Uint32(b[24:]))
	b = b[checkpointFixed:]
	if len(b) < footer || (len(b)-footer)/indexEntryLength < n {
		return nil, errBadCheckpoint
	}
	var err error
	if c.summary, err = manifest.DecodeFooter(inc, b[:footer]); err != nil {
		return nil, fmt.Errorf("%w: %w", errBadCheckpoint, err)
	}
	c.index = readEntries(b[footer:][:n*indexEntryLength])
	c.tracking = b[footer+n*indexEntryLength:]
	return c, nil
}

// checkpointing decides when the log writes its checkpoint. The state is that
// of the tail, which is not durable yet, so the bytes wait until it is.
type checkpointing struct {
	at      int64 // position up to which the newest one, or a waiting one, reaches
	waiting []byte
	lsn     chunk.LSN // durable from here on the waiting one may be written
}

// due writes the checkpoint that waits if it may, and takes one if enough was
// written since the last.
func (k *checkpointing) due(l *Log) {
	if k.waiting != nil && l.Durable().LSN >= k.lsn {
		k.write(l)
	}
	if k.waiting == nil && l.summary.Size-k.at >= l.config.CheckpointBytes {
		k.take(l)
	}
}

// last writes a checkpoint of the log's end, all of which is durable, so that
// the next opening reads nothing.
func (k *checkpointing) last(l *Log) {
	if l.active != nil && l.summary.Size > k.at {
		k.take(l)
	}
	if k.waiting != nil {
		k.write(l)
	}
}

// take encodes the present state. Between the parts of a snapshot there is none.
func (k *checkpointing) take(l *Log) {
	x := l.active.sparse.Load()
	state, ok := l.tracking.AppendCheckpoint(nil)
	if !ok || x == nil || l.summary.Size == 0 {
		return
	}
	k.waiting = encodeCheckpoint(l.inc, &checkpoint{
		summary: l.summary, last: l.last, lastAt: l.lastAt, lastCRC: l.lastCRC, tracking: state,
	}, x)
	k.at, k.lsn = l.summary.Size, l.summary.LastLSN
}

func (k *checkpointing) write(l *Log) {
	_ = writeCache(l.store.fs, path.Join(l.dir, checkpointName), k.waiting)
	k.waiting = nil
}

// reset forgets what waits: another segment is active, or the log was cut.
func (k *checkpointing) reset() { *k = checkpointing{} }

// loadCheckpoint returns the checkpoint if it is one of this segment, ends at or
// below limit, and the chunk that it ends with is really there.
func (l *Log) loadCheckpoint(f vfs.File, name manifest.Name, limit int64) (*checkpoint, *tracking.State) {
	b, err := vfs.ReadFile(l.store.fs, path.Join(l.dir, checkpointName))
	if err != nil {
		return nil, nil
	}
	c, err := decodeCheckpoint(l.inc, b)
	if err != nil || c.summary.Name() != name || c.summary.Size > limit || c.lastAt < 0 || c.lastAt >= c.summary.Size {
		return nil, nil
	}
	w := newWalker(f, l.inc, c.lastAt, c.summary.Size, true)
	h, _, _, _, err := w.next()
	if err != nil || h.HeadCRC != c.lastCRC || h.LSN != c.summary.LastLSN || w.position != c.summary.Size || h.Timestamp != c.last {
		return nil, nil
	}
	state, err := tracking.DecodeCheckpoint(l.config.Caps, c.tracking)
	if err != nil || state.Last() != h.Tail() {
		return nil, nil
	}
	return c, state
}
