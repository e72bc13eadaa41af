package broker

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/millrace/millrace/segstore"
	"github.com/millrace/millrace/wire"
)

// writer is what the writer goroutine of a connection works with. Each round it
// takes what waits in the outbox, lets subscriptions that have credit and data
// add chunks up to a bound, and writes everything at once:
//
//	run │ data │ run │ data │ run      run: answers, confirms, Deliver heads
//
// so that answers wait for one round of deliveries at most.
type writer struct {
	session *session
	pulse   pulse

	// run collects bytes of our own; those from begun on are not in vectors yet.
	run     []byte
	begun   int
	vectors net.Buffers
	left    net.Buffers     // of vectors, while they are written
	size    int             // bytes in vectors
	wrote   bool            // in this round
	lent    []segstore.View // whose bytes vectors refer to

	settled []settlement // taken from the outbox
	ids     []uint64     // scratch
}

const (
	// vectorsMax keeps one round within what the kernel takes in one call.
	vectorsMax = 1000
	// runBytesKept is the largest run that a resting writer keeps; what is larger
	// goes to those at work.
	runBytesKept = 4 << 10
	// idsKept is how many ids a resting writer keeps room for.
	idsKept = 16 << 10
	// copiedBytesMax is up to which size a chunk's data is copied behind its
	// head, which costs less than one more piece to write.
	copiedBytesMax = 4 << 10
)

// write is the writer goroutine. It ends when the outbox is finished or dead,
// or the socket fails.
func (s *session) write() {
	defer close(s.written)
	w := &writer{session: s}
	defer w.pulse.stop()
	defer w.giveBack()
	for {
		state := s.out.take(w)
		if state.dead {
			return
		}
		w.pulse.set(state.pace)
		w.settle(w.settled)
		clear(w.settled)
		w.wrote = false
		more, err := w.deliver()
		if err == nil {
			err = w.flush()
		}
		if w.wrote {
			w.pulse.quiet = false
		}
		switch {
		case err != nil:
			s.broker.note(s, err)
			s.kill()
			return
		case w.wrote || more:
		case state.finishing:
			return
		default:
			w.rest()
		}
	}
}

// rest waits until there is something to do or a heartbeat is due. It keeps
// little memory meanwhile.
func (w *writer) rest() {
	w.run = giveRun(w.run)
	w.session.out.slim()
	if cap(w.ids) > idsKept {
		w.ids = nil
	}
	select {
	case <-w.session.out.wake:
	case <-w.pulse.tick():
		if w.pulse.due() {
			w.session.out.answer(&wire.Heartbeat{})
		}
	}
}

// orders is what the outbox tells its writer beside what to write.
type orders struct {
	pace            time.Duration
	finishing, dead bool
}

// take moves what waits into the writer, and gives the emptied memory in
// exchange.
func (o *outbox) take(w *writer) orders {
	o.mu.Lock()
	state := orders{pace: o.pace, finishing: o.finishing, dead: o.dead}
	w.run, o.answers = o.answers, w.run // which flush has emptied
	if w.run == nil {
		w.run = takeRun()
	}
	w.settled, o.settled = o.settled, w.settled[:0]
	o.mu.Unlock()
	signal(o.space)
	return state
}

// slim gives the memory of answers away while there are none.
func (o *outbox) slim() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.answers) == 0 {
		o.answers = giveRun(o.answers)
	}
}

// runs are large empty runs that nobody needs at the moment, holders what they
// were put in with, so that neither way costs an allocation.
var runs, holders sync.Pool

func takeRun() []byte {
	holder, ok := runs.Get().(*[]byte)
	if !ok {
		return nil
	}
	run := *holder
	*holder = nil
	holders.Put(holder)
	return run
}

// giveRun takes an empty run back if it is large, and returns what is left.
func giveRun(run []byte) []byte {
	if cap(run) <= runBytesKept {
		return run
	}
	holder, ok := holders.Get().(*[]byte)
	if !ok {
		holder = new([]byte)
	}
	*holder = run[:0]
	runs.Put(holder)
	return nil
}

// refer adds bytes that are not ours, behind the run so far.
func (w *writer) refer(data []byte) {
	w.closeRun()
	w.vectors = append(w.vectors, data)
	w.size += len(data)
}

func (w *writer) closeRun() {
	if len(w.run) > w.begun {
		w.vectors = append(w.vectors, w.run[w.begun:])
		w.size += len(w.run) - w.begun
		w.begun = len(w.run)
	}
}

// flush writes everything and gives back what was lent. A client that leaves
// its socket full for too long is an error; one that reads slowly is not.
func (w *writer) flush() error {
	w.closeRun()
	defer w.giveBack()
	if w.size == 0 {
		return nil
	}
	w.sent(w.size)
	if w.session.tls != nil {
		return w.seal(w.vectors...)
	}
	w.left = w.vectors
	for len(w.left) > 0 {
		if err := w.allowTime(); err != nil {
			return err
		}
		n, err := w.left.WriteTo(w.session.conn)
		if err != nil && (!timedOut(err) || n == 0) {
			return w.blocked(err)
		}
	}
	return nil
}

// sent notes bytes that are being written.
func (w *writer) sent(bytes int) {
	w.wrote = true
	w.session.broker.stats.sentBytes.Add(uint64(bytes))
}

func (w *writer) allowTime() error {
	return w.session.socket.SetWriteDeadline(time.Now().Add(w.session.limits.BlockedSocketTimeout))
}

func (w *writer) blocked(err error) error {
	if timedOut(err) {
		w.session.broker.stats.cutConsumers.Add(1)
		return fmt.Errorf("%w for %s: see stream.blocked_socket_timeout", errBlocked, w.session.limits.BlockedSocketTimeout)
	}
	return err
}

var errBlocked = errors.New("client did not read")

// giveBack returns chunks and forgets what was written.
func (w *writer) giveBack() {
	for i := range w.lent {
		w.lent[i].Release()
		w.lent[i] = segstore.View{}
	}
	w.lent = w.lent[:0]
	clear(w.vectors)
	w.vectors = w.vectors[:0]
	w.run, w.begun, w.size = w.run[:0], 0, 0
}

// pulse says when a heartbeat is due: every pace, if nothing was written since
// the tick before; the first one always.
type pulse struct {
	pace  time.Duration
	timer *time.Timer
	quiet bool
	first bool
}

func (p *pulse) set(pace time.Duration) {
	if pace == p.pace {
		return
	}
	p.stop()
	p.pace, p.first, p.timer = pace, true, nil
	if pace > 0 {
		p.timer = time.NewTimer(pace)
	}
}

func (p *pulse) tick() <-chan time.Time {
	if p.timer == nil {
		return nil
	}
	return p.timer.C
}

// due notes a tick and says whether it asks for a heartbeat.
func (p *pulse) due() bool {
	due := p.quiet || p.first
	p.quiet, p.first = true, false
	p.timer.Reset(p.pace)
	return due
}

func (p *pulse) stop() {
	if p.timer != nil {
		p.timer.Stop()
	}
}
