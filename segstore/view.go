package segstore

import (
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/segstore/vfs"
)

// View is one chunk as a Reader gives it out: in memory, or as a section of a
// file that can be sent as it is. Nothing in it changes until Release, whatever
// happens to the log meanwhile.
type View struct {
	Header chunk.Header
	// Head is the whole head: storage header, filter, trailer, client header.
	Head []byte
	// Data is the data section; nil when it is in a file.
	Data []byte

	owner    *Chunk
	handles  *handles
	file     *handle
	position int64 // of the client header in the file
}

// Delivery returns what a Deliver frame carries, in two runs: the client header
// and the data. It is only for a View whose data is in memory.
func (v *View) Delivery() (clientHeader, data []byte) { return chunk.ClientHeaderOf(v.Head), v.Data }

// Chunk returns the chunk with a count for the caller, for a link: the one in
// memory, or a copy of what was read from a file. It is only for a View whose
// data is in memory.
func (v *View) Chunk() *Chunk {
	if v.owner != nil && v.owner.Header.LSN == v.Header.LSN { // no block of a file
		v.owner.Retain()
		return v.owner
	}
	c := NewChunk(len(v.Data))
	c.Header = v.Header
	c.Head, c.Data = append(c.Head[:0], v.Head...), append(c.Data[:0], v.Data...)
	return c
}

// Filter returns the chunk's filter, empty if it has none.
func (v *View) Filter() []byte { return v.Header.FilterOf(v.Head) }

// Section tells whether the data is in a file, and where what a Deliver frame
// carries lies there: client header and data as one run of length bytes at
// position. The file stays open until Release.
func (v *View) Section() (file vfs.File, position, length int64, ok bool) {
	if v.file == nil {
		return nil, 0, 0, false
	}
	return v.file.File, v.position, chunk.ClientHeaderLength + int64(v.Header.DataLength), true
}

// Release gives back what the View holds; it must not be used after.
func (v *View) Release() {
	if v.owner != nil {
		v.owner.Release()
	}
	if v.file != nil {
		v.handles.release(v.file)
	}
	*v = View{}
}
