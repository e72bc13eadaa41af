package replication

import (
	"time"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/tracking"
)

// Settings say how a stream is kept. The zero value is every default.
type Settings struct {
	// Log sets the sizes of segments and the caps of tracking.
	Log segstore.Config
	// RetainBytes bounds the user bytes that are kept, RetainAge their age; zero
	// is no bound.
	RetainBytes int64
	RetainAge   time.Duration
	// FilterLength is the size in bytes of a chunk's filter, if entries have
	// filter values; 16 by default.
	FilterLength int
	// Pacing paces the writing of stored offsets.
	Pacing tracking.Pacing
	// Grace is how long a stored offset stays that retention has overtaken:
	// 24 h by default, negative: not at all.
	Grace time.Duration
}

func (s *Settings) grace() int64 {
	switch {
	case s.Grace == 0:
		return tracking.GraceDefault
	case s.Grace < 0:
		return 0
	}
	return s.Grace.Milliseconds()
}

func (s *Settings) offsetsMax() int {
	if s.Log.Caps.Offsets > 0 {
		return s.Log.Caps.Offsets
	}
	return tracking.OffsetsMaxDefault
}

func (s *Settings) retains() bool { return s.RetainBytes > 0 || s.RetainAge > 0 }

// configure takes new settings.
func (r *Replica) configure(s Settings) {
	t := &r.turns
	r.stream.Settings = s
	r.retains.Store(s.retains())
	t.assembler.filterLength = s.FilterLength
	if t.run != nil {
		t.run.log.Configure(s.Log)
	}
	t.retainWant, t.ageWant = true, true
}
