package broker

import (
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/cluster/catalog"
	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/segstore/chunk"
	"github.com/millrace/millrace/wire"
)

// guests are the publishers of other nodes' clients on the streams that this
// node leads.
type guests struct {
	mu     sync.Mutex // guards byNode
	byNode map[string]map[uint64]*localPublisher

	waiting guestQueue
}

// guestsMax bounds what one node may have here: every publisher that its
// connections may have, by default, and more.
const guestsMax = 4 << 20

// ServePeer answers another node's broker, which has looked at its client's
// rights. It does not block, and carries requests of one node out in the order
// of the calls; reply is called once, from any goroutine.
func (b *Broker) ServePeer(node string, method Method, body []byte, reply func(Status, []byte)) {
	answer := func(err error) { reply(statusOf(err), nil) }
	if b.context.Err() != nil {
		answer(replication.ErrClosed)
		return
	}
	switch method {
	case methodDeclare:
		answer(b.declareGuest(node, body))
	case methodPublish:
		if err := b.publishGuest(node, body, reply); err != nil {
			answer(err)
		}
	case methodClose:
		closed, err := decodeClosed(body)
		for _, number := range closed {
			b.guests.remove(node, number)
		}
		answer(err)
	case methodSequence:
		b.tell(body, reply, sequenceOf)
	case methodOffset:
		b.tell(body, reply, offsetOf)
	case methodExtent:
		b.tellExtent(body, reply)
	case methodPlace:
		b.tellPlace(body, reply)
	case methodStore:
		taken, err := b.storeAll(node, body)
		reply(statusOf(err), taken)
	default:
		answer(errMalformedRequest)
	}
}

// leads finds the replica of a stream that this node leads in an epoch; 0: in
// whichever.
func (b *Broker) leads(stream chunk.Incarnation, epoch chunk.Epoch) (*catalog.Stream, Replica, error) {
	s, ok := b.directory.View().Incarnation(stream)
	if !ok || !s.Led() || string(s.Leader.Node) != b.config.NodeName || epoch != 0 && s.Epoch != epoch {
		return nil, nil, replication.ErrNotLeader
	}
	replica, ok := b.replicas.Replica(stream)
	if !ok {
		return nil, nil, replication.ErrMissing
	}
	return s, replica, nil
}

func (b *Broker) declareGuest(node string, body []byte) error {
	d, err := decodeDeclaration(body)
	if err != nil {
		return err
	}
	if b.alarms.on() {
		return errAlarm
	}
	_, replica, err := b.leads(d.stream, d.epoch)
	if err != nil {
		return err
	}
	if !b.guests.room(node, d.publisher) {
		return errMalformedRequest // before it takes a reference over
	}
	p, err := replica.Declare(d.reference)
	if err != nil {
		return err
	}
	b.guests.add(node, d.publisher, &localPublisher{replica: replica, publisher: p, named: d.reference != ""})
	return nil
}

func (b *Broker) publishGuest(node string, body []byte, reply func(Status, []byte)) error {
	number, entries, payload, err := decodePublish(body)
	if err != nil {
		return err
	}
	p := b.guests.find(node, number)
	if p == nil {
		return errPublisherUnknown
	}
	frame, err := wire.DecodePublish(payload)
	if err != nil || frame.Accepted != entries {
		return errMalformedRequest
	}
	batch := takeBatch()
	fillBatch(batch, &frame)
	b.takeGuest(guestBatch{node, p, batch, reply, time.Now().Add(publishPatience)})
	return nil
}

// takeGuest hands a batch over, behind those that wait for the end of an alarm.
func (b *Broker) takeGuest(g guestBatch) {
	b.guests.waiting.add(g, time.Now(), b.alarms.on)
}

// takeGuests hands over what waited for the end of an alarm.
func (b *Broker) takeGuests() {
	b.guests.waiting.publish(time.Now(), b.alarms.on)
}

// guestBatch is a batch of another node's client, and answers for it.
type guestBatch struct {
	node      string
	publisher *localPublisher
	batch     *replication.Batch
	reply     func(Status, []byte)
	until     time.Time // then the node gives it up
}

// guestQueue holds batches that came while an alarm holds publishers up. The
// link's credit bounds them, and comes back for those that the other node gives
// up or that its link took along: they leave the queue too.
type guestQueue struct {
	mu      sync.Mutex   // guards batches; held while they are handed over, so that none overtakes
	batches []guestBatch // as they came, which is also as they are given up
}

// add takes a batch in if others wait or an alarm is on, and else hands it over.
func (q *guestQueue) add(g guestBatch, now time.Time, held func() bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.giveUp(func(g *guestBatch) bool { return now.After(g.until) })
	if len(q.batches) > 0 || held() {
		q.batches = append(q.batches, g)
		return
	}
	g.publish()
}

// publish hands over what waits, unless an alarm is on again.
func (q *guestQueue) publish(now time.Time, held func() bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if held() {
		return
	}
	q.giveUp(func(g *guestBatch) bool { return now.After(g.until) })
	for _, g := range q.batches {
		g.publish()
	}
	q.batches = nil
}

// forget gives up what came from a node whose link broke.
func (q *guestQueue) forget(node string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.giveUp(func(g *guestBatch) bool { return g.node == node })
}

// giveUp expects mu to be held.
func (q *guestQueue) giveUp(which func(*guestBatch) bool) {
	q.batches = slices.DeleteFunc(q.batches, func(g guestBatch) bool {
		if !which(&g) {
			return false
		}
		g.publisher.holed.Store(true)
		g.settled(g.batch, errPublisherUnknown)
		return true
	})
}

func (g guestBatch) publish() {
	if g.publisher.holed.Load() {
		g.settled(g.batch, errPublisherUnknown)
		return
	}
	g.batch.Publisher, g.batch.Sink = g.publisher.publisher, &g
	g.publisher.replica.Publish(g.batch)
}

func (g *guestBatch) Confirmed(b *replication.Batch) { g.settled(b, nil) }

func (g *guestBatch) Failed(b *replication.Batch, err error) {
	if g.publisher.named && leavesHole(err) {
		g.publisher.holed.Store(true) // before a later batch comes
	}
	g.settled(b, err)
}

func (g *guestBatch) settled(b *replication.Batch, err error) {
	giveBatch(b)
	g.reply(statusOf(err), nil)
}

// tell answers what a replica here, whose stream is led here, knows of a reference.
func (b *Broker) tell(body []byte, reply func(Status, []byte), ask func(r Replica, reference string, answer func(uint64, bool, error))) {
	q, err := decodeQuestion(body)
	var replica Replica
	if err == nil {
		_, replica, err = b.leads(q.stream, q.epoch)
	}
	if err != nil {
		reply(statusOf(err), nil)
		return
	}
	ask(replica, q.reference, func(value uint64, known bool, err error) { reply(known64(value, known, err)) })
}

func sequenceOf(r Replica, reference string, answer func(uint64, bool, error)) {
	r.Sequence(reference, answer)
}

// offsetOf answers from a goroutine, since it may wait for a turn; the link
// bounds how many wait.
func offsetOf(r Replica, reference string, answer func(uint64, bool, error)) {
	go func() {
		offset, known, err := r.QueryOffset(reference)
		answer(uint64(offset), known, err)
	}()
}

func known64(value uint64, known bool, err error) (Status, []byte) {
	if err != nil {
		return statusOf(err), nil
	}
	return statusDone, appendKnown(nil, value, known)
}

// storeAll stores what it can: nobody hears of a single one, but of each stream how
// far it has come. Whether this node leads the epoch the replica knows, sooner
// than the catalog here.
func (b *Broker) storeAll(node string, body []byte) (taken []byte, err error) {
	list, err := decodeStored(body)
	if err != nil {
		return nil, err
	}
	at := map[chunk.Incarnation]int{}
	var streams []placed
	for _, s := range list {
		replica, ok := b.replicas.Replica(s.stream)
		if !ok {
			err = replication.ErrMissing
			continue
		}
		from := replication.Origin{Node: node, Epoch: s.epoch, Since: s.since}
		place, refused := replica.StoreOffsetFrom(from, s.reference, s.offset)
		if refused != nil {
			err = refused
			continue
		}
		i, known := at[s.stream]
		if !known {
			i = len(streams)
			at[s.stream] = i
			streams = append(streams, placed{stream: s.stream})
		}
		streams[i].epoch, streams[i].place = s.epoch, place
	}
	for i := range streams {
		taken = streams[i].append(taken)
	}
	return taken, err
}

// room says whether a node's publisher may get a number. The node's requests come
// one after another, so that it stays so until add.
func (g *guests) room(node string, number uint64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.byNode[node]
	return of[number] == nil && len(of) < guestsMax
}

func (g *guests) add(node string, number uint64, p *localPublisher) {
	g.mu.Lock()
	defer g.mu.Unlock()
	of := g.byNode[node]
	if of == nil {
		of = map[uint64]*localPublisher{}
		if g.byNode == nil {
			g.byNode = map[string]map[uint64]*localPublisher{}
		}
		g.byNode[node] = of
	}
	of[number] = p
}

func (g *guests) find(node string, number uint64) *localPublisher {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.byNode[node][number]
}

func (g *guests) remove(node string, number uint64) {
	g.mu.Lock()
	p := g.byNode[node][number]
	delete(g.byNode[node], number)
	g.mu.Unlock()
	if p != nil {
		p.close()
	}
}

// forget ends all publishers of a node.
func (g *guests) forget(node string) {
	g.waiting.forget(node)
	g.mu.Lock()
	of := g.byNode[node]
	delete(g.byNode, node)
	g.mu.Unlock()
	for _, p := range of {
		p.close()
	}
}
