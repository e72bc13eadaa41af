package protocol

import "github.com/millrace/millrace/segstore/chunk"

// Chunk is all that the protocol knows of a chunk: its place, never its bytes.
type Chunk struct {
	LSN     chunk.LSN
	Epoch   chunk.Epoch
	Offset  chunk.Offset // base offset
	Records uint32
	Bytes   uint32 // of the whole chunk; what windows and bounds count
	Type    chunk.Type
	Flags   chunk.Flags
	// Before and After are the running digest around the chunk.
	Before, After chunk.Digest
}

// ChunkOf describes a chunk by its header.
func ChunkOf(h *chunk.Header) Chunk {
	return Chunk{
		LSN: h.LSN, Epoch: h.Epoch, Offset: h.BaseOffset, Records: h.Records, Bytes: uint32(h.Length()),
		Type: h.Type, Flags: h.Flags, Before: h.DigestBefore, After: h.DigestAfter(),
	}
}

// Next is the offset after the chunk's last record.
func (c *Chunk) Next() chunk.Offset { return c.Offset + chunk.Offset(c.Records) }

// Tail is the chunk's place in the order of tails.
func (c *Chunk) Tail() chunk.Tail { return chunk.Tail{Epoch: c.Epoch, LSN: c.LSN} }

func (c *Chunk) has(f chunk.Flags) bool { return c.Flags&f == f }

// Gap stands for chunks that compaction dropped between two that are sent
// (C5). The LSNs of the gap end just below the chunk it comes with.
type Gap struct {
	Lines    []EpochLine   // epochs that begin inside, the chunk's own included
	Segments []SegmentMark // segments that begin inside
}

// SegmentMark is a segment boundary whose first chunk is gone.
type SegmentMark struct {
	LSN  chunk.LSN
	Unit bool // it also begins a unit of retention
}
