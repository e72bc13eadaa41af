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
		l.store(1, 1, "r", i)
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

// busyPeers keep the first request and take those behind it.
type busyPeers struct {
	first func(Status, []byte, error)
	sent  [][]byte
}

func (p *busyPeers) Ask(_ string, _ Method, body []byte, _ time.Time, done func(Status, []byte, error)) error {
	if p.first == nil {
		p.first = done
		return nil
	}
	p.sent = append(p.sent, body)
	done(statusDone, nil, nil)
	return nil
}

// TestLane_storesOfTwoReigns: of what waits for one reference the newest epoch's
// goes out, and names its epoch.
func TestLane_storesOfTwoReigns(t *testing.T) {
	peers := new(busyPeers)
	l := newLane(&Broker{peers: peers}, "n1")
	l.store(1, 5, "other", 1)
	l.store(1, 5, "r", 500)
	l.store(1, 7, "r", 50)
	l.store(1, 5, "r", 600) // of a session that has not heard of epoch 7
	l.sendStores()
	list, err := decodeStored(peers.sent[0])
	if want := (stored{1, 7, 50, "r"}); err != nil || len(list) != 1 || list[0] != want {
		t.Errorf("%+v went out (%v), want %+v", list, err, want)
	}
}
