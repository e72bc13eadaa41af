package cluster

import (
	"sync"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/segstore/chunk"
)

// deletions are the streams that the catalog has given up since this process has
// begun to read it, those in raft's log included. What lies on the disk of one of
// them is nobody's: incarnations never come again. Of a stream that only a snapshot
// lacks that is not known: it may be the catalog that was rolled back.
type deletions struct {
	mu      sync.Mutex // guards streams
	streams map[chunk.Incarnation]bool
}

// deletionsMax bounds them; a folder of a stream beyond goes to quarantine.
const deletionsMax = 1 << 16

func (d *deletions) changed(changes []catalog.Change) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range changes {
		if c := &changes[i]; c.Kind == catalog.StreamChanged && c.Stream == nil && len(d.streams) < deletionsMax {
			if d.streams == nil {
				d.streams = map[chunk.Incarnation]bool{}
			}
			d.streams[c.Before.Incarnation] = true
		}
	}
}

// Deleted tells whether a stream is known to have been deleted, as far as this
// process has heard.
func (c *Cluster) Deleted(i chunk.Incarnation) bool {
	c.deletions.mu.Lock()
	defer c.deletions.mu.Unlock()
	return c.deletions.streams[i]
}
