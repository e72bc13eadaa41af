package broker

import (
	"net"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/segstore"
)

// contacts is metadata whose leader was heard so long ago.
type contacts struct {
	Directory
	ago atomic.Int64
}

func (c *contacts) Contact() time.Duration { return time.Duration(c.ago.Load()) }

// TestServe_endOfAloofness: a member's turn that is cut short for aloofness ends
// after that is over and all members were looked at; it has another turn then.
func TestServe_endOfAloofness(t *testing.T) {
	server, client := net.Pipe()
	defer server.Close()
	defer client.Close()
	directory := new(contacts)
	b := &Broker{config: Config{}.withDefaults(), directory: directory, began: time.Now()}
	s := newSession(b, server, nil, nil)
	sub := &subscription{session: s, tie: &tie{session: s}, member: new(membership), credit: 1}
	s.out.begin(sub, new(segstore.Reader))
	_, _, seen := s.out.next()
	directory.ago.Store(int64(time.Hour))

	s.out.mu.Lock() // so that the turn can't end
	ended := make(chan error)
	go func() {
		_, err := (&writer{session: s}).serve(sub, 1, seen)
		ended <- err
	}()
	for !b.aloof.Load() {
		runtime.Gosched()
	}
	directory.ago.Store(0)
	b.aloof.Store(false)
	s.out.enqueueLocked(sub) // as resume does
	s.out.mu.Unlock()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if sub.phase != queued {
		t.Errorf("after its turn the phase is %d, want %d", sub.phase, queued)
	}
}
