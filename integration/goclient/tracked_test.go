package goclient

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/amqp"
	"github.com/rabbitmq/rabbitmq-stream-go-client/pkg/stream"

	"github.com/millrace/millrace/integration/harness"
)

// tracked is an application that stores its offset as it reads, and after each
// end of its consumer begins behind what it finds stored: it sees every record at
// least once, in order.
type tracked struct {
	env    *stream.Environment
	stream string
	ledger *harness.Ledger

	again chan struct{} // has the application start anew

	mu       sync.Mutex // guards all below
	stored   []storedAt // in the order of time; offsets grow
	killed   time.Time  // the last kill that no answer was held against
	handled  int64      // the highest offset, -1: none
	resumed  int        // from a stored offset
	stalest  time.Duration
	problems []error
}

type storedAt struct {
	at     time.Time
	offset int64
}

const (
	trackedReference = "tracked"
	storeEach        = 10 // records
	// storeWindow is how far a stored offset may fall back when a node is killed,
	// storeWindowMax the same for a machine that others use too.
	storeWindow    = 50 * time.Millisecond
	storeWindowMax = 10 * storeWindow
	trackedPause   = 100 * time.Millisecond
	// quiet is how long an application goes without a record before it begins
	// anew: its consumer may have ended before it could be told.
	quiet = 20 * time.Second
)

func (a *tracked) run(stop <-chan struct{}) {
	for {
		select {
		case <-stop:
			return
		default:
		}
		if err := a.consume(stop); err != nil {
			select { // a node is gone: it asks again
			case <-stop:
				return
			case <-time.After(trackedPause):
			}
		}
	}
}

// consume reads with one consumer of the client, for as long as it lasts.
func (a *tracked) consume(stop <-chan struct{}) error {
	asked := time.Now()
	from, err := a.env.QueryOffset(trackedReference, a.stream)
	if errors.Is(err, stream.OffsetNotFoundError) {
		from, err = -1, nil
	}
	if err != nil {
		return err
	}
	a.judge(from, asked)
	run := &trackedRun{app: a, next: from + 1, news: make(chan struct{}, 1)}
	begin := stream.OffsetSpecification{}.Offset(from + 1)
	if from < 0 {
		begin = stream.OffsetSpecification{}.First()
	}
	consumer, err := a.env.NewConsumer(a.stream, run.heard, stream.NewConsumerOptions().
		SetConsumerName(trackedReference).SetClientProvidedName(trackedReference).SetOffset(begin).SetManualCommit())
	if err != nil {
		return err
	}
	defer run.over.Store(true)
	closed := consumer.NotifyClose()
	for {
		select {
		case <-closed:
			return nil
		case <-run.news:
			continue
		case <-a.again:
		case <-time.After(quiet):
		case <-stop:
		}
		_ = consumer.Close() // its connection may have ended
		return nil
	}
}

// trackedRun is what one consumer gives.
type trackedRun struct {
	app  *tracked
	next int64
	over atomic.Bool // the client may still hand over what it had
	news chan struct{}
}

func (r *trackedRun) heard(at stream.ConsumerContext, m *amqp.Message) {
	if r.over.Load() {
		return
	}
	a, offset := r.app, at.Consumer.GetOffset()
	if _, _, err := harness.ParseMessage(m.GetData()); err != nil || offset != r.next {
		a.problem(fmt.Errorf("offset %d came where %d is due: %v", offset, r.next, err))
	}
	r.next = offset + 1
	a.mu.Lock()
	a.handled = max(a.handled, offset)
	a.mu.Unlock()
	select {
	case r.news <- struct{}{}:
	default:
	}
	if offset%storeEach == 0 && at.Consumer.StoreCustomOffset(offset) == nil {
		a.mu.Lock()
		a.stored = append(a.stored, storedAt{time.Now(), offset})
		a.mu.Unlock()
	}
}

func (a *tracked) problem(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.problems) < 20 {
		a.problems = append(a.problems, err)
	}
}

// killedAt notes that a node was killed.
func (a *tracked) killedAt(moment time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.killed = moment
}

// restart has the application begin anew.
func (a *tracked) restart() {
	select {
	case a.again <- struct{}{}:
	default:
	}
}

// judge holds an answer against what was stored before it was asked for, or
// before a node was killed.
func (a *tracked) judge(from int64, asked time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	moment := asked
	if !a.killed.IsZero() {
		moment, a.killed = a.killed, time.Time{}
	}
	if from > a.handled {
		a.problems = append(a.problems, fmt.Errorf("offset %d is stored, and %d was the last handled", from, a.handled))
	}
	if from >= 0 {
		a.resumed++
	}
	for _, s := range a.stored {
		if s.offset > from && s.at.Before(moment) {
			a.stalest = max(a.stalest, moment.Sub(s.at))
			break
		}
	}
	if a.stalest > storeWindowMax {
		a.problems = append(a.problems, fmt.Errorf("offset %d is answered, and a later one was stored %v before", from, a.stalest))
	}
	a.stored = nil // what is not stored is lost, and stored again
}
