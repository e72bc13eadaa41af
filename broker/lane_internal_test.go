package broker

import (
	"context"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
)

// promptPeers answer at once.
type promptPeers struct{}

func (promptPeers) Ask(_ string, _ Method, _ []byte, _ time.Time, done func(Status, []byte, error)) error {
	done(statusDone, nil, nil)
	return nil
}

// TestLane_storesBesideQueries: queries send what waits while clients store; each
// request is counted once, so that the next store goes out by itself.
func TestLane_storesBesideQueries(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	l := newLane(&Broker{peers: promptPeers{}}, "n1")
	var queries sync.WaitGroup
	for range 2 {
		queries.Go(func() {
			for ctx.Err() == nil {
				l.sendStores()
			}
		})
	}
	for i := range chunk.Offset(20_000) {
		l.store(1, "r", i)
	}
	cancel()
	queries.Wait()
	for deadline := time.Now().Add(10 * time.Second); ; runtime.Gosched() {
		l.mu.Lock()
		storing, waiting := l.storing, len(l.stores)
		l.mu.Unlock()
		if storing == 0 && waiting == 0 {
			return
		}
		if time.Now().After(deadline) || storing < 0 {
			t.Fatalf("%d requests are under way, %d offsets wait", storing, waiting)
		}
	}
}
