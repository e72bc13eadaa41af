package segstore

import (
	"time"

	"github.com/millrace/millrace/tracking"
)

// Config is what a stream's arguments and the node's settings say about a log.
// Zero fields take the defaults.
type Config struct {
	// SegmentBytes is the user bytes after which a unit rolls: 500,000,000 by
	// default, and no less than 64 KiB.
	SegmentBytes int64
	// MaxAge is the stream's age limit; a quarter of it rolls. 0 = none.
	MaxAge time.Duration
	// ControlBytes is the least that deltas and barriers must take of the active
	// segment before they roll it: 1 MiB.
	ControlBytes int64
	// ControlPerMille is the share of control bytes, in thousandths of the active
	// segment's user bytes, above which they roll it: 20.
	ControlPerMille int64
	// CheckpointBytes is the distance between two checkpoints: 64 MiB.
	CheckpointBytes int64
	// Caps bound the tracking state.
	Caps tracking.Caps
}

// The defaults of Config.
const (
	SegmentBytesDefault    = 500_000_000
	SegmentBytesMin        = 64 << 10
	ControlBytesDefault    = 1 << 20
	ControlPerMilleDefault = 20
	CheckpointBytesDefault = 64 << 20
)

func (c Config) orDefault() Config {
	set := func(v *int64, fallback int64) {
		if *v <= 0 {
			*v = fallback
		}
	}
	set(&c.SegmentBytes, SegmentBytesDefault)
	c.SegmentBytes = max(c.SegmentBytes, SegmentBytesMin)
	set(&c.ControlBytes, ControlBytesDefault)
	set(&c.ControlPerMille, ControlPerMilleDefault)
	set(&c.CheckpointBytes, CheckpointBytesDefault)
	return c
}
