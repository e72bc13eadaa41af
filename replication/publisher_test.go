package replication

import (
	"errors"
	"strings"
	"testing"

	"github.com/millrace/millrace/segstore/vfs"
)

func TestDeclare_duplicates(t *testing.T) {
	for _, c := range []struct {
		name       string
		duplicates Duplicates
		err        error
		older      uint32 // state of the first session after the second's try
	}{
		{"takeover fences the older", Takeover, nil, publisherFenced},
		{"refuse leaves the older alone", Refuse, ErrReferenceInUse, publisherOpen},
		{"share leaves both", Share, nil, publisherOpen},
	} {
		t.Run(c.name, func(t *testing.T) {
			unused := 0
			ps := &publishers{duplicates: c.duplicates, unused: func(*reference) { unused++ }}
			ps.begin(1)
			first, err := ps.declare("order")
			if err != nil {
				t.Fatal(err)
			}
			other, err := ps.declare("invoice")
			if err != nil {
				t.Fatal(err)
			}
			second, err := ps.declare("order")
			if !errors.Is(err, c.err) {
				t.Fatalf("second declaration: %v, want %v", err, c.err)
			}
			if got := first.state.Load(); got != c.older {
				t.Fatalf("first session is in state %d, want %d", got, c.older)
			}
			if other.state.Load() != publisherOpen {
				t.Fatal("a session of another reference was fenced")
			}
			if second != nil && second.reference != first.reference {
				t.Fatal("two sessions of one reference do not share its sequence")
			}
			first.Close()
			first.Close()
			if c.older == publisherFenced && first.state.Load() != publisherFenced {
				t.Fatal("closing a fenced session opened it again")
			}
			if _, err := ps.declare("order"); c.duplicates == Refuse && err != nil {
				t.Fatalf("after the first session's end: %v", err)
			}
		})
	}
}

func TestDeclare_needsALeaderAndAFitReference(t *testing.T) {
	ps := &publishers{unused: func(*reference) {}}
	if _, err := ps.declare("a"); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("without a reign: %v", err)
	}
	ps.begin(3)
	if _, err := ps.declare(strings.Repeat("x", 256)); !errors.Is(err, ErrReferenceLength) {
		t.Fatalf("256 bytes: %v", err)
	}
	p, err := ps.declare("")
	if err != nil || p.reference != nil || p.Reference() != "" {
		t.Fatalf("nameless publisher: %+v, %v", p, err)
	}
	p.Close()
	ps.end()
	if _, err := ps.declare(""); !errors.Is(err, ErrNotLeader) {
		t.Fatalf("after the reign: %v", err)
	}
}

func TestPublishers_forgetKeepsWhatIsInUse(t *testing.T) {
	var idle []*reference
	ps := &publishers{unused: func(ref *reference) { idle = append(idle, ref) }}
	ps.begin(1)
	p, _ := ps.declare("a")
	p.Close()
	again, _ := ps.declare("a")
	ps.forget(idle[0])
	if ps.find("a") != again.reference {
		t.Fatal("a reference with a session was forgotten")
	}
	again.Close()
	ps.forget(idle[1])
	if ps.find("a") != nil || ps.count() != 0 {
		t.Fatal("a reference without sessions is kept")
	}
}

// gateSink keeps a turn waiting in its answer until the gate opens.
type gateSink struct {
	*collector
	entered, open chan struct{}
}

func (s gateSink) Confirmed(b *Batch) {
	close(s.entered)
	<-s.open
	s.collector.Confirmed(b)
}

// A batch that comes in the turn in which the replica closes is answered once.
func TestPublish_besideTheClose(t *testing.T) {
	f := newFixture(t, vfs.NewMem(), "/data")
	f.lead(1)
	p := f.declare("")
	gate := gateSink{newCollector(), make(chan struct{}), make(chan struct{})}
	f.replica.Publish(batchOf(p, gate, message{id: 1, body: "first"}))
	<-gate.entered
	sink := newCollector()
	f.replica.Publish(batchOf(p, sink, message{id: 2, body: "second"}))
	closed := make(chan error, 1)
	if !f.replica.post(event{kind: eventClose, done: func(err error) { closed <- err }}) {
		t.Fatal("the replica takes no event")
	}
	close(gate.open)
	f.must(<-closed)
	_ = sink.wait(t, 1)
	sink.mu.Lock()
	defer sink.mu.Unlock()
	if len(sink.errs) != 1 {
		t.Errorf("the batch is answered %d times: %v", len(sink.errs), sink.errs)
	}
	if q := f.replica.queued.Load(); q != 0 {
		t.Errorf("%d bytes count as queued", q)
	}
}
