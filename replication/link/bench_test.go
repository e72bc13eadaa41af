package link

import (
	"crypto/tls"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/replication/protocol"
	"github.com/millrace/millrace/segstore/chunk"
)

// sink takes chunks into pooled memory and lets go at once.
type sink struct {
	pool sync.Pool
	got  chan int
	up   chan struct{}
	once sync.Once
}

type pooled struct {
	s          *sink
	head, data []byte
}

func (p *pooled) Retain()  {}
func (p *pooled) Release() { p.s.pool.Put(p) }

func (s *sink) Up(protocol.NodeID)                            { s.once.Do(func() { close(s.up) }) }
func (s *sink) Down(protocol.NodeID, error)                   {}
func (s *sink) StreamDown(protocol.NodeID, chunk.Incarnation) {}
func (s *sink) StreamUp(protocol.NodeID, chunk.Incarnation)   {}
func (s *sink) Admit(protocol.NodeID, *Frame) error           { return nil }
func (s *sink) Serve(_ protocol.NodeID, r *Request)           { r.Reply(0, nil) }
func (s *sink) Buffer(head, data int) ([]byte, []byte, Held) {
	p, _ := s.pool.Get().(*pooled)
	if p == nil {
		p = &pooled{s: s, head: make([]byte, 1<<10), data: make([]byte, 1<<20)}
	}
	return p.head[:head], p.data[:data], p
}
func (s *sink) Deliver(_ protocol.NodeID, f *Frame) {
	n := f.Credit()
	f.Held.Release()
	f.Taken(n)
	s.got <- n
}

type kept struct{}

func (kept) Retain()  {}
func (kept) Release() {}

func benchPair(b *testing.B, secured bool) (*Links, *sink) {
	w := newTown(b)
	var of [2]Security
	of[0], of[1] = withSecret(1), withSecret(1)
	if secured {
		ca, err := NewAuthority("c1", time.Now(), time.Hour)
		if err != nil {
			b.Fatal(err)
		}
		roots, _ := ParseAuthorities(ca.CertPEM)
		for i, n := range []protocol.NodeID{"a", "b"} {
			p, _ := ca.Issue("c1", n, nil, time.Now(), time.Hour)
			cert, err := tls.X509KeyPair(p.CertPEM, p.KeyPEM)
			if err != nil {
				b.Fatal(err)
			}
			of[i] = &security{cert: &cert, roots: roots}
		}
	}
	var links [2]*Links
	var sinks [2]*sink
	for i, n := range []protocol.NodeID{"a", "b"} {
		l := listen(b)
		w.move(n, l.Addr().String())
		m, err := NewMux(MuxConfig{Listener: l, Cluster: "c1", Node: n, Security: of[i], Address: w.address})
		if err != nil {
			b.Fatal(err)
		}
		sinks[i] = &sink{got: make(chan int, 1<<16), up: make(chan struct{})}
		links[i] = New(m, Config{}, sinks[i])
		b.Cleanup(func() { links[i].Close(); _ = m.Close() })
	}
	links[0].Connect("b")
	<-sinks[0].up
	<-sinks[1].up
	return links[0], sinks[1]
}

// BenchmarkChunks sends chunks of a few streams to another node over loopback,
// at most 4 MiB under way.
func BenchmarkChunks(b *testing.B) {
	for _, secured := range []bool{false, true} {
		for _, size := range []int{1 << 10, 16 << 10, 256 << 10, 1 << 20} {
			b.Run(fmt.Sprintf("tls=%v/bytes=%d", secured, size), func(b *testing.B) {
				from, to := benchPair(b, secured)
				f := chunkFrame(0, 0, size)
				f.Held = kept{}
				b.SetBytes(int64(f.Credit()))
				b.ReportAllocs()
				flying, n := 0, 0
				for b.Loop() {
					f.Stream = chunk.Incarnation(n & 3)
					n++
					from.Send("b", f)
					for flying += f.Credit(); flying > 4<<20; {
						flying -= <-to.got
					}
				}
				for flying > 0 {
					flying -= <-to.got
				}
			})
		}
	}
}

// BenchmarkRoundTrip is a request and its answer, one at a time.
func BenchmarkRoundTrip(b *testing.B) {
	from, _ := benchPair(b, false)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := from.Request(b.Context(), "b", 1, nil); err != nil {
			b.Fatal(err)
		}
	}
}

// TestQueue_allocatesNothing in steady state: queue, batch, write.
func TestQueue_allocatesNothing(t *testing.T) {
	var q queue
	c := Config{}
	c.setDefaults()
	q.init(&c)
	f := chunkFrame(1, 1, 100)
	f.Held = kept{}
	ack := &Frame{Stream: 2, Message: protocol.Message{Kind: protocol.MsgAck, LSN: 3}}
	batch := make([]item, 0, batchItems)
	n := testing.AllocsPerRun(1000, func() {
		q.push(f)
		q.push(ack)
		batch = q.batch(batch[:0])
		q.done(batch)
		q.credited(1, f.Credit())
	})
	if n != 0 || len(q.lines) != 0 || q.bytes != 0 {
		t.Errorf("%v allocations, %d lines and %d bytes left", n, len(q.lines), q.bytes)
	}
}
