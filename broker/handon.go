package broker

import (
	"errors"
	"strings"
	"sync"
	"time"

	"github.com/millrace/millrace/segstore/chunk"
)

// handed are the stored offsets that a lane hands on to the leader's node. They are
// kept to the last for each reference while a request with earlier ones is under
// way.
//
// A client never hears of its store. So what the node has not answered when the
// link to it breaks is kept, and sent once more when the link is back, to the same
// reign. It may have been overtaken meanwhile, by way of another node: therefore it
// says how far the reign's order was known to have come when it was made, and the
// leader takes it only if it knows of no other node's store of the reference since
// (replication.Origin).
type handed struct {
	stores  map[storeKey]*storeValue
	storing int // requests under way
	// sending orders requests with offsets: taken before mu, held while they are
	// given away.
	sending sync.Mutex

	// late are those without an answer, which a timer has tried again.
	late   map[storeKey]*storeValue
	waking bool // it is set
	// heard is how far each stream's order has come in the reign last heard of.
	heard map[chunk.Incarnation]placed
	// made numbers the stores; newest has the last number of each reference, unless
	// there were too many.
	made   uint64
	newest map[storeKey]uint64
}

type storeKey struct {
	stream    chunk.Incarnation
	reference string
}

// storeValue is the last offset of a reference, and the epoch of the leader that
// it is for.
type storeValue struct {
	key    storeKey // with bytes of its own
	epoch  chunk.Epoch
	offset chunk.Offset
	number uint64 // handed.made
	// since is what the store says if it is sent once more; 0: it can't be.
	since uint64
	until time.Time // when a late one is given up
}

const (
	// laneStores is how many references wait while a request is under way; then
	// sessions wait too. Of as many the last number is known, and so many may be
	// late; those beyond are lost.
	laneStores = 4096
	// laneStreams is of how many streams the order is known.
	laneStreams = 4096
	// storesBytes is about how much one request with offsets holds.
	storesBytes = 64 << 10
	// lateEvery is between two tries to send what is late, and lateFor how long it
	// is tried: a link that breaks for longer seldom finds its leader again.
	lateEvery = 200 * time.Millisecond
	lateFor   = time.Minute
)

func newHanded() handed {
	return handed{
		stores: map[storeKey]*storeValue{}, late: map[storeKey]*storeValue{},
		heard: map[chunk.Incarnation]placed{}, newest: map[storeKey]uint64{},
	}
}

// store keeps an offset until the requests before it are answered. False: too
// many wait.
func (l *lane) store(stream chunk.Incarnation, epoch chunk.Epoch, reference string, offset chunk.Offset) bool {
	l.mu.Lock()
	key := storeKey{stream, reference}
	if waits := l.stores[key]; waits != nil {
		if epoch >= waits.epoch { // else its session has not heard of the election yet
			*waits = l.make(waits.key, epoch, offset)
		}
		l.mu.Unlock()
		return true
	}
	if len(l.stores) >= laneStores {
		l.mu.Unlock()
		return false
	}
	key.reference = strings.Clone(reference) // the caller's bytes are used again
	value := l.make(key, epoch, offset)
	l.stores[key] = &value
	idle := l.storing == 0
	l.mu.Unlock()
	if idle {
		l.sendStores(false)
	}
	return true
}

// make numbers a store, and takes its place before an older one that is late. It
// keeps the key, even where the map has an equal one already.
func (h *handed) make(key storeKey, epoch chunk.Epoch, offset chunk.Offset) storeValue {
	if _, known := h.newest[key]; !known && len(h.newest) >= laneStores {
		clear(h.newest)
	}
	h.made++
	h.newest[key] = h.made
	delete(h.late, key)
	v := storeValue{key: key, epoch: epoch, offset: offset, number: h.made}
	if at := h.heard[key.stream]; at.epoch == epoch {
		v.since = at.place + 1
	}
	return v
}

// sendStores gives away all offsets that wait, perhaps with those that are late.
// False: the link had no room for some, which wait on.
func (l *lane) sendStores(again bool) (all bool) {
	l.sending.Lock()
	defer l.sending.Unlock()
	var late map[storeKey]*storeValue
	l.mu.Lock()
	if again {
		late, l.late = l.late, map[storeKey]*storeValue{}
	}
	if len(l.stores)+len(late) == 0 {
		l.mu.Unlock()
		return true
	}
	waiting := l.stores // ours alone from here on
	l.stores = map[storeKey]*storeValue{}
	l.storing++
	l.mu.Unlock()
	defer l.stored()
	all = l.sendAll(late, true)
	return l.sendAll(waiting, false) && all
}

// sendAll gives away offsets in requests of a bounded size.
func (l *lane) sendAll(values map[storeKey]*storeValue, again bool) (all bool) {
	all = true
	r := handing{again: again}
	for key, value := range values {
		r.values = append(r.values, value)
		s := stored{stream: key.stream, epoch: value.epoch, offset: value.offset, reference: key.reference}
		if again {
			s.since = value.since
		}
		if r.body = s.append(r.body); len(r.body) >= storesBytes {
			all = l.sendStore(r) && all
			r = handing{again: again}
		}
	}
	if len(r.body) > 0 {
		all = l.sendStore(r) && all
	}
	return all
}

// handing is one request with offsets.
type handing struct {
	again  bool // they are late
	body   []byte
	values []*storeValue
}

// sendStore gives one request away. False: the link had no room.
func (l *lane) sendStore(r handing) bool {
	l.mu.Lock()
	l.storing++
	l.mu.Unlock()
	err := l.ask(methodStore, r.body, l.broker.config.RequestTimeout, func(_ Status, answer []byte, err error) {
		if err != nil {
			l.keepLate(r)
		} else {
			l.hear(answer)
		}
		l.stored()
	})
	switch {
	case err == nil:
		return true
	case errors.Is(err, ErrPeerBusy):
		l.keep(r)
		time.AfterFunc(lanePause, l.stored)
		return false
	}
	l.keepLate(r)
	l.stored()
	return true
}

// keep takes offsets back that there was no room for; what was stored meanwhile
// is newer.
func (l *lane) keep(r handing) {
	if r.again {
		l.keepLate(r)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range r.values {
		if newer := l.stores[v.key]; newer == nil || newer.epoch < v.epoch {
			l.stores[v.key] = v
		}
	}
}

// keepLate keeps what had no answer, for another try: of each reference the last
// store alone, which nothing may be sent behind.
func (l *lane) keepLate(r handing) {
	now := time.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, v := range r.values {
		if v.until.IsZero() {
			v.until = now.Add(lateFor)
		}
		if v.since == 0 || l.newest[v.key] != v.number || !now.Before(v.until) || len(l.late) >= laneStores {
			continue // lost, as with a leader; its client sees it by what it asks for next
		}
		l.late[v.key] = v
	}
	if len(l.late) > 0 && !l.waking {
		l.waking = true
		time.AfterFunc(lateEvery, l.tryLate)
	}
}

// tryLate sends what is late, unless the broker is closed.
func (l *lane) tryLate() {
	l.mu.Lock()
	l.waking = false
	l.mu.Unlock()
	if l.broker.context.Err() == nil {
		l.sendStores(true)
	}
}

// hear takes how far the orders have come.
func (l *lane) hear(answer []byte) {
	list, err := decodePlaced(answer)
	if err != nil {
		return // nothing is sent once more
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, p := range list {
		was, known := l.heard[p.stream]
		if p.epoch < was.epoch || p.epoch == was.epoch && p.place < was.place {
			continue
		}
		if !known && len(l.heard) >= laneStreams {
			clear(l.heard)
		}
		l.heard[p.stream] = p
	}
}

// stored ends a request; with the last one what came meanwhile goes out.
func (l *lane) stored() {
	l.mu.Lock()
	l.storing--
	more := l.storing == 0 && len(l.stores) > 0
	l.mu.Unlock()
	l.room.announce()
	if more {
		go l.sendStores(false) // this is the link's goroutine, or holds sending
	}
}
