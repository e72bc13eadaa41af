package broker

import (
	"sync"
	"sync/atomic"
)

// broadcast wakes all who wait for something to change. A waiter takes next
// before it looks, so that no change between looking and waiting is missed.
type broadcast struct {
	mu sync.Mutex // guards the channel
	ch chan struct{}
}

// next returns a channel that is closed at the next announcement.
func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch == nil {
		b.ch = make(chan struct{})
	}
	return b.ch
}

func (b *broadcast) announce() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ch != nil {
		close(b.ch)
		b.ch = nil
	}
}

// alarms are the reasons for which publishers are held up now, such as a full
// disk. Readers go on.
type alarms struct {
	count   atomic.Int32
	mu      sync.Mutex // guards reasons, whose number count is
	reasons map[string]bool
}

func (a *alarms) on() bool { return a.count.Load() > 0 }

func (a *alarms) set(reason string, on bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.reasons == nil {
		a.reasons = map[string]bool{}
	}
	if on {
		a.reasons[reason] = true
	} else {
		delete(a.reasons, reason)
	}
	a.count.Store(int32(len(a.reasons)))
}
