package link

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

func pair(t *testing.T, change func(*MuxConfig, *Config)) (a, b *host) {
	w := newTown(t)
	a, b = w.host(t, "a", withSecret(1), change), w.host(t, "b", withSecret(1), change)
	a.links.Connect("b")
	a.waitEvent("up b", 1)
	b.waitEvent("up a", 1)
	return a, b
}

func TestLinks_framesOfAStreamArriveInOrder(t *testing.T) {
	a, b := pair(t, nil)
	const streams, each = 5, 100
	var sent []*Frame
	for n := range each {
		for s := range streams {
			f := chunkFrame(chunk.Incarnation(s), n, 3000+n)
			sent = append(sent, f)
			a.links.Send("b", f)
			a.links.Send("b", &Frame{Stream: chunk.Incarnation(s), Message: protocol.Message{
				Kind: protocol.MsgCommit, Epoch: 3, Session: 1, Commit: chunk.LSN(n)}})
		}
	}
	b.wait("all frames", func() bool { return len(b.frames) == 2*streams*each })
	next := map[chunk.Incarnation]int{}
	for _, f := range b.frames {
		i := next[f.Stream]
		next[f.Stream]++
		want := protocol.MsgChunk
		if i%2 == 1 {
			want = protocol.MsgCommit
		}
		if f.Message.Kind != want || f.Message.Commit != chunk.LSN(i/2) {
			t.Fatalf("stream %v: frame %d is %v of %d", f.Stream, i, f.Message.Kind, f.Message.Commit)
		}
		if want == protocol.MsgChunk && (len(f.Data) != 3000+i/2 || f.Data[0] != byte(i/2)) {
			t.Fatalf("stream %v: chunk %d has other bytes", f.Stream, i/2)
		}
	}
	for _, f := range sent {
		f.Held.Release()
	}
	a.links.Close() // the queue lets go at the latest now
	for _, f := range sent {
		if n := f.Held.(*counted).count(); n != 0 {
			t.Fatalf("a chunk has still %d counts", n)
		}
	}
}

func TestLinks_bothDialAtOnce(t *testing.T) {
	w := newTown(t)
	a, b := w.host(t, "a", withSecret(1), nil), w.host(t, "b", withSecret(1), nil)
	for range 10 {
		a.links.Connect("b")
		b.links.Connect("a")
		a.wait("b is up", func() bool { return a.links.Connected("b") })
		b.wait("a is up", func() bool { return b.links.Connected("a") })
		a.links.Forget("b")
		b.links.Forget("a")
		// While they agree on one connection a may have seen it go, and come, before.
		a.wait("b down as often as up", func() bool { return a.count("down b") == a.count("up b") && !a.links.Connected("b") })
		b.wait("a is down", func() bool { return !b.links.Connected("a") })
	}
}

func TestLinks_comesBack(t *testing.T) {
	a, b := pair(t, nil)
	for i := 1; i <= 3; i++ {
		b.links.find("a").breakLink(errors.New("cut"))
		a.waitEvent("down b", i)
		a.waitEvent("up b", i+1)
		b.waitEvent("up a", i+1)
	}
	for _, h := range []*host{a, b} {
		h.mu.Lock()
		for i, e := range h.events {
			if up := e[:2] == "up"; up != (i%2 == 0) {
				t.Errorf("%s: %q: up and down must alternate", h.name, h.events)
				break
			}
		}
		h.mu.Unlock()
	}
}

// A node that moves to another address under its name is found there.
func TestLinks_movedNode(t *testing.T) {
	w := newTown(t)
	a := w.host(t, "a", withSecret(1), nil)
	b := w.host(t, "b", withSecret(1), nil)
	a.links.Connect("b")
	a.waitEvent("up b", 1)
	b.links.Close()
	_ = b.mux.Close()
	a.waitEvent("down b", 1)
	w.host(t, "b", withSecret(1), nil)
	a.waitEvent("up b", 2)
}

func TestLinks_slowStreamIsDroppedAlone(t *testing.T) {
	a, b := pair(t, func(_ *MuxConfig, c *Config) {
		c.Connections, c.WindowBytes, c.StreamQueueBytes = 1, 64<<10, 128<<10
	})
	b.mu.Lock()
	b.keep = true
	b.mu.Unlock()
	var sent []*Frame
	for n := range 40 { // 10 KiB each: the window, the queue, and more
		f := chunkFrame(1, n, 10<<10)
		sent = append(sent, f)
		a.links.Send("b", f)
	}
	a.waitEvent("stream down b 1", 1)
	a.waitEvent("stream up b 1", 1)
	a.links.Send("b", chunkFrame(2, 0, 10<<10))
	b.wait("the other stream", func() bool {
		for _, f := range b.frames {
			if f.Stream == 2 {
				return true
			}
		}
		return false
	})
	b.mu.Lock()
	got, most := 0, 64<<10+len(sent[0].Head)+len(sent[0].Data)
	for _, f := range b.frames {
		if f.Stream == 1 {
			got += f.Credit()
		}
	}
	b.mu.Unlock()
	if got > most {
		t.Errorf("%d bytes came of a stream that takes none, the window allows %d", got, most)
	}
	// What was taken is given back, and the stream goes on.
	b.mu.Lock()
	b.keep = false
	for _, f := range b.frames {
		f.Taken(f.Credit())
	}
	before := len(b.frames)
	b.mu.Unlock()
	for n := range 10 {
		a.links.Send("b", chunkFrame(1, 100+n, 10<<10))
	}
	b.wait("the stream again", func() bool { return len(b.frames) >= before+10 })
}

func TestLinks_idleStreamsSendNothing(t *testing.T) {
	a, b := pair(t, nil)
	for s := range 100 {
		a.links.Send("b", chunkFrame(chunk.Incarnation(s), 0, 100))
	}
	b.wait("the chunks", func() bool { return len(b.frames) == 100 })
	// All credit goes back with the next tick, and then no stream is known.
	deadline := time.Now().Add(patience)
	for _, h := range []*host{a, b} {
		for _, c := range h.links.find(map[*host]protocol.NodeID{a: "b", b: "a"}[h]).up.Load().conns {
			for left := 1; left > 0; {
				c.mu.Lock()
				left = len(c.queue.lines) + len(c.flow.in) + len(c.flow.owing)
				c.mu.Unlock()
				if time.Now().After(deadline) {
					t.Fatalf("%s still knows %d streams", h.name, left)
				}
			}
		}
	}
	a.wait("nothing", func() bool { return len(a.frames) == 0 })
}

func TestLinks_halfOpenIsNoticed(t *testing.T) {
	w := newTown(t)
	config := func(_ *MuxConfig, c *Config) { c.HeartbeatTimeout = 200 * time.Millisecond }
	a, b := w.host(t, "a", withSecret(1), config), w.host(t, "b", withSecret(1), config)
	addr, _ := w.address("b")
	p := newProxy(t, addr)
	w.move("b", p.addr())
	a.links.Connect("b")
	a.waitEvent("up b", 1)
	p.stall() // bytes go nowhere, and no end is told
	a.waitEvent("down b", 1)
	b.waitEvent("down a", 1)
	p.resume()
	a.waitEvent("up b", 2)
}

// A peer that takes nothing any more is down as soon as its silence tells, though
// more is waiting for it than the sockets hold: TLS's goodbye would wait for room.
func TestLinks_fullAndHalfOpenIsNoticed(t *testing.T) {
	ca := authority(t, "c1")
	w := newTown(t)
	config := func(_ *MuxConfig, c *Config) { c.HeartbeatTimeout = 300 * time.Millisecond }
	a, b := w.host(t, "a", identity(t, ca, "c1", "a"), config), w.host(t, "b", identity(t, ca, "c1", "b"), config)
	addr, _ := w.address("b")
	p := newProxy(t, addr)
	w.move("b", p.addr())
	a.links.Connect("b")
	a.waitEvent("up b", 1)
	b.waitEvent("up a", 1)
	p.stall()
	// The bound is of the silence's order, and below that of TLS's patience.
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Second)
	defer cancel()
	// One at a time and smaller than what TLS's writes are collected to, so that it
	// is their flush that finds no room. Each stream's window is 8 MiB.
	const streams, bytes = 16, corkBytes * 3 / 4
	down := func() bool { return a.count("down b") > 0 }
	for n := 0; ; n++ {
		f := chunkFrame(chunk.Incarnation(2*(n%streams)), n, bytes)
		held := &told{counted: counted{n: 1}, to: a}
		f.Held = held
		a.links.Send("b", f)
		a.waitFor(ctx, "a chunk written, or the link down", func() bool { return held.count() == 1 || down() })
		a.mu.Lock()
		over := down()
		a.mu.Unlock()
		if over {
			return
		}
	}
}

// told is a count whose changes a host waits for.
type told struct {
	counted
	to *host
}

func (h *told) Release() {
	h.counted.Release()
	h.to.mu.Lock()
	defer h.to.mu.Unlock()
	h.to.tell()
}

func TestLinks_requests(t *testing.T) {
	a, b := pair(t, nil)
	b.mu.Lock()
	b.serve = func(from protocol.NodeID, r *Request) {
		go r.Reply(r.Method+1, append([]byte(from+" "), r.Body...))
	}
	b.mu.Unlock()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			body := fmt.Appendf(nil, "ask %d", i)
			r, err := a.links.Request(ctx, "b", uint16(i), body)
			if err != nil || r.Status != uint16(i+1) || string(r.Body) != "a "+string(body) {
				t.Errorf("%d: %d %q %v", i, r.Status, r.Body, err)
			}
		})
	}
	wg.Wait()
	if _, err := a.links.Request(ctx, "c", 1, nil); !errors.Is(err, ErrUnreachable) {
		t.Errorf("to nobody: %v", err)
	}
	if _, err := a.links.Request(ctx, "b", 1, make([]byte, bodyMax+1)); !errors.Is(err, ErrTooLarge) {
		t.Errorf("too large: %v", err)
	}
}

func TestLinks_requestsAreServedInOrder(t *testing.T) {
	a, b := pair(t, nil)
	var seen []uint16
	b.mu.Lock()
	b.serve = func(_ protocol.NodeID, r *Request) {
		b.mu.Lock()
		seen = append(seen, r.Method)
		b.mu.Unlock()
		r.Reply(0, nil)
	}
	b.mu.Unlock()
	done := make(chan error, 500)
	for i := range 500 {
		if err := a.links.Ask("b", uint16(i), nil, time.Now().Add(patience), func(_ Response, err error) { done <- err }); err != nil {
			t.Fatal(err)
		}
	}
	for range 500 {
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i, m := range seen {
		if int(m) != i {
			t.Fatalf("request %d came as number %d", m, i)
		}
	}
}

// A request passes while a stream has filled its connection's way.
func TestLinks_requestsPassChunks(t *testing.T) {
	a, b := pair(t, func(_ *MuxConfig, c *Config) { c.WindowBytes = 1 << 20 })
	b.mu.Lock()
	b.keep = true
	b.serve = func(_ protocol.NodeID, r *Request) { r.Reply(7, nil) }
	b.mu.Unlock()
	for n := range 12 {
		a.links.Send("b", chunkFrame(1, n, 1<<20)) // beyond the window: most wait
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	if r, err := a.links.Request(ctx, "b", 1, nil); err != nil || r.Status != 7 {
		t.Fatalf("%d %v", r.Status, err)
	}
}

func TestLinks_requestsHaveABound(t *testing.T) {
	a, b := pair(t, func(_ *MuxConfig, c *Config) { c.Requests = 3 })
	held := make(chan *Request, 10)
	b.mu.Lock()
	b.serve = func(_ protocol.NodeID, r *Request) { held <- r }
	b.mu.Unlock()
	errs := make(chan error, 10)
	done := func(_ Response, err error) { errs <- err }
	for range 3 {
		if err := a.links.Ask("b", 1, nil, time.Now().Add(patience), done); err != nil {
			t.Fatal(err)
		}
	}
	if err := a.links.Ask("b", 1, nil, time.Now().Add(patience), done); !errors.Is(err, ErrBacklog) {
		t.Fatalf("the fourth: %v", err)
	}
	waits := make(chan error, 1)
	go func() {
		_, err := a.links.Request(t.Context(), "b", 2, nil)
		waits <- err
	}()
	(<-held).Reply(0, nil)
	if err := <-errs; err != nil {
		t.Fatal(err)
	}
	for range 2 {
		(<-held).Reply(0, nil)
	}
	(<-held).Reply(0, nil) // the one that had to wait
	if err := <-waits; err != nil {
		t.Fatal(err)
	}
}

func TestLinks_requestsEnd(t *testing.T) {
	a, b := pair(t, nil)
	held := make(chan *Request, 10)
	b.mu.Lock()
	b.serve = func(_ protocol.NodeID, r *Request) { held <- r }
	b.mu.Unlock()
	errs := make(chan error, 1)
	done := func(_ Response, err error) { errs <- err }
	// In time or never.
	if err := a.links.Ask("b", 1, nil, time.Now().Add(30*time.Millisecond), done); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; !errors.Is(err, ErrTimeout) {
		t.Fatalf("late: %v", err)
	}
	(<-held).Reply(0, nil) // says nothing any more
	// With the link.
	if err := a.links.Ask("b", 1, nil, time.Now().Add(patience), done); err != nil {
		t.Fatal(err)
	}
	r := <-held
	b.links.find("a").breakLink(errors.New("cut"))
	if err := <-errs; !errors.Is(err, ErrUnreachable) {
		t.Fatalf("cut: %v", err)
	}
	r.Reply(0, nil) // to nobody
}
