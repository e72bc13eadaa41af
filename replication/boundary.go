package replication

import "github.com/millrace/millrace/segstore/chunk"

// Boundary is the place before a segment. Whatever has been compacted on one
// side and not on the other, replicas that hold the same messages have the same
// running digest there.
type Boundary struct {
	LSN    chunk.LSN // of the segment's first chunk
	Offset chunk.Offset
	Digest chunk.Digest
}

// Boundaries are those of the replica's log that are committed, ascending; none
// between runs.
func (r *Replica) Boundaries() []Boundary {
	log := r.log.Load()
	if log == nil {
		return nil
	}
	var list []Boundary
	for _, s := range log.Segments() {
		if s.FirstLSN <= log.Commit()+1 {
			list = append(list, Boundary{s.FirstLSN, s.BaseOffset, s.DigestBefore})
		}
	}
	return list
}
