package node

import (
	"testing"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
)

// TestResidents_restLonger: a stream that fails again and again is tried less
// often, and at once again after it was well.
func TestResidents_restLonger(t *testing.T) {
	r := &residents{pauses: map[chunk.Incarnation]time.Duration{}}
	for _, want := range []time.Duration{1, 2, 4, 8, 16, 16} {
		if got := r.pause(1); got != want*time.Second {
			t.Errorf("rests %v, want %v s", got, int(want))
		}
	}
	if got := r.pause(2); got != settlePause {
		t.Errorf("another stream rests %v", got)
	}
	r.settled(1)
	if got := r.pause(1); got != settlePause {
		t.Errorf("rests %v after it was well", got)
	}
}
