package broker

import (
	"errors"
	"sync"
	"time"

	"github.com/millrace/millrace/replication"
	"github.com/millrace/millrace/wire"
)

var errEnded = errors.New("connection has ended")

// outbox is what a connection's writer goroutine has to do. Everybody may put
// something in; nobody waits there but a reader whose client does not read.
type outbox struct {
	// mu guards everything but the channels: held to put in and take out, never
	// over I/O.
	mu      sync.Mutex
	answers []byte       // whole frames, in order
	settled []settlement // batches whose fate is known
	// While held, notices wait in held for the answer that they must follow.
	holding bool
	held    []byte
	// ready holds the subscriptions that may have something to deliver, first
	// come first served. Invariant: each is in it at most once, with phase queued.
	ready     []*subscription
	pace      time.Duration // between looks whether a heartbeat is due; 0: none
	finishing bool          // nothing more will come: write what is here and end
	dead      bool          // nothing more will be written

	wake  chan struct{} // holds a token when the writer has to look
	space chan struct{} // holds a token when answers have been taken
}

// settlement is a batch that the client must be told of.
type settlement struct {
	publisher *publisher
	batch     *replication.Batch
	err       error // nil: it is confirmed
}

func (o *outbox) init() {
	o.wake = make(chan struct{}, 1)
	o.space = make(chan struct{}, 1)
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// answer puts a whole frame behind those that wait.
func (o *outbox) answer(command wire.Command) {
	o.mu.Lock()
	if !o.dead {
		o.answers = wire.Append(o.answers, command)
	}
	o.mu.Unlock()
	signal(o.wake)
}

// answerRaw is the same for frames that are encoded already.
func (o *outbox) answerRaw(encode func([]byte) []byte) {
	o.mu.Lock()
	if !o.dead {
		o.answers = encode(o.answers)
	}
	o.mu.Unlock()
	signal(o.wake)
}

// notify puts a frame that nobody asked for behind the answer that is being
// made, if one has asked for that by hold.
func (o *outbox) notify(command wire.Command) {
	o.mu.Lock()
	switch {
	case o.dead:
	case o.holding:
		o.held = wire.Append(o.held, command)
	default:
		o.answers = wire.Append(o.answers, command)
	}
	o.mu.Unlock()
	signal(o.wake)
}

// hold keeps notices back until the returned function lets them go.
func (o *outbox) hold() (release func()) {
	o.mu.Lock()
	o.holding = true
	o.mu.Unlock()
	return func() {
		o.mu.Lock()
		o.answers = append(o.answers, o.held...)
		o.holding, o.held = false, nil
		o.mu.Unlock()
		signal(o.wake)
	}
}

// settle notes the fate of a batch. It is called from a replica's turn.
func (o *outbox) settle(p *publisher, b *replication.Batch, err error) {
	o.mu.Lock()
	if o.dead {
		o.mu.Unlock()
		p.session.forget(b)
		return
	}
	o.settled = append(o.settled, settlement{p, b, err})
	first := len(o.settled) == 1
	o.mu.Unlock()
	if first {
		signal(o.wake)
	}
}

// beat sets how often the writer looks whether a heartbeat is due.
func (o *outbox) beat(pace time.Duration) {
	o.mu.Lock()
	o.pace = pace
	o.mu.Unlock()
	signal(o.wake)
}

// finish lets the writer write what is here and end.
func (o *outbox) finish() {
	o.mu.Lock()
	o.finishing = true
	o.mu.Unlock()
	signal(o.wake)
}

// die ends the writer without writing anything more.
func (o *outbox) die() {
	o.mu.Lock()
	o.dead = true
	lost := o.settled
	o.settled, o.answers = nil, nil
	o.mu.Unlock()
	for _, settlement := range lost {
		settlement.publisher.session.forget(settlement.batch)
	}
	signal(o.wake)
}

// awaitSpace waits until fewer bytes of answers wait than the bound allows.
func (o *outbox) awaitSpace(most int, leaving, dying <-chan struct{}) error {
	for {
		o.mu.Lock()
		held, dead := len(o.answers), o.dead
		o.mu.Unlock()
		switch {
		case dead:
			return errEnded
		case held <= most:
			return nil
		}
		select {
		case <-o.space:
		case <-leaving:
			return errLeaving
		case <-dying:
			return errEnded
		}
	}
}
