package broker

import (
	"context"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"
	"unsafe"

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
				l.sendStores(false)
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

// TestLane_storesKeepNoBytes: a session's next frame takes the place of the one that
// a reference came in.
func TestLane_storesKeepNoBytes(t *testing.T) {
	l := newLane(&Broker{peers: new(busyPeers)}, "n1")
	l.store(1, 5, "other", 1) // the others wait behind it
	for offset := range chunk.Offset(2) {
		frame := []byte("r")
		l.store(1, 5, unsafe.String(&frame[0], len(frame)), offset)
		frame[0] = 'x'
	}
	key := storeKey{1, "r"}
	if v := l.stores[key]; v == nil || l.newest[key] != v.number {
		t.Errorf("of %+v the last number is known as %d", v, l.newest[key])
	}
	for key := range l.newest {
		if key.reference == "x" {
			t.Error("a later frame's bytes are kept")
		}
	}
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
	l.sendStores(false)
	list, err := decodeStored(peers.sent[0])
	if want := (stored{stream: 1, epoch: 7, offset: 50, reference: "r"}); err != nil || len(list) != 1 || list[0] != want {
		t.Errorf("%+v went out (%v), want %+v", list, err, want)
	}
}

// gonePeers are never reached.
type gonePeers struct{ asked int }

func (p *gonePeers) Ask(string, Method, []byte, time.Time, func(Status, []byte, error)) error {
	p.asked++
	return ErrPeerGone
}

// TestLane_lateIsBounded: while the link is broken as many references are kept as
// may be, and sessions don't wait for those beyond; what the leader's order is not
// known for is not kept at all.
func TestLane_lateIsBounded(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // nothing is tried again
	l := newLane(&Broker{peers: new(gonePeers), context: ctx}, "n1")
	late := func() int { l.mu.Lock(); defer l.mu.Unlock(); return len(l.late) }
	l.store(1, 5, "unknown", 1)
	if n := late(); n != 0 {
		t.Fatalf("%d are kept that can't be sent", n)
	}
	p := placed{1, 5, 7}
	l.hear(p.append(nil))
	for i := range 3 * laneStores {
		if !l.store(1, 5, strconv.Itoa(i), 1) {
			t.Fatalf("store %d has to wait", i)
		}
	}
	if n := late(); n == 0 || n > laneStores {
		t.Errorf("%d are kept, at most %d may be", n, laneStores)
	}
	l.store(1, 4, "older reign", 1)
	if l.late[storeKey{1, "older reign"}] != nil {
		t.Error("a store of another reign than is known is kept")
	}
}

// TestLane_atItsBounds: what is known already makes nothing else be forgotten.
func TestLane_atItsBounds(t *testing.T) {
	l := newLane(&Broker{peers: promptPeers{}}, "n1")
	know := func(i int) {
		l.store(1, 5, strconv.Itoa(i), 1)
		p := placed{chunk.Incarnation(i), 5, 7}
		l.hear(p.append(nil))
	}
	for i := range max(laneStores, laneStreams) {
		know(i)
	}
	know(0)
	if len(l.newest) != laneStores || len(l.heard) != laneStreams {
		t.Errorf("%d references and %d streams are known", len(l.newest), len(l.heard))
	}
	know(max(laneStores, laneStreams))
	if len(l.newest) > laneStores || len(l.heard) > laneStreams {
		t.Errorf("%d references and %d streams are beyond the bounds", len(l.newest), len(l.heard))
	}
}

// TestLane_lateIsTheNewest: of a reference's stores that get no answer, in whatever
// order that is found out, the last alone is kept, and none if one behind it was
// taken.
func TestLane_lateIsTheNewest(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	l := newLane(&Broker{peers: promptPeers{}, context: ctx}, "n1")
	p := placed{1, 5, 7}
	l.hear(p.append(nil))
	request := func(offset chunk.Offset) handing {
		key := storeKey{1, "r"}
		l.mu.Lock()
		defer l.mu.Unlock()
		v := l.make(key, 5, offset)
		return handing{values: []*storeValue{&v}}
	}
	first, second := request(1), request(2)
	l.keepLate(second)
	l.keepLate(first)
	if v := l.late[storeKey{1, "r"}]; v == nil || v.offset != 2 || v.since != 8 {
		t.Fatalf("kept is %+v", v)
	}
	request(3) // which is answered
	l.keepLate(second)
	if v := l.late[storeKey{1, "r"}]; v != nil {
		t.Errorf("kept is %+v behind one that was taken", v)
	}
}
