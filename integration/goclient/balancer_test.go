package goclient

import (
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// balancer is a load balancer before the nodes: each connection goes to the next
// node that takes one. Clients see its address alone.
type balancer struct {
	listener net.Listener
	nodes    []string
	next     atomic.Int64
	taken    atomic.Int64 // connections
}

const segmentBytes = 8 << 10

func startBalancer(t *testing.T, nodes []string) *balancer {
	t.Helper()
	// The client's receive buffer is smaller than loopback's segments, by which it
	// would be fed in drops of 200 ms: segments are kept small, as on a network and
	// as the nodes do themselves.
	small := net.ListenConfig{Control: func(_, _ string, raw syscall.RawConn) (err error) {
		failed := raw.Control(func(fd uintptr) {
			err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, syscall.TCP_MAXSEG, segmentBytes)
		})
		return errors.Join(failed, err)
	}}
	listener, err := small.Listen(t.Context(), "tcp", "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{listener: listener, nodes: nodes}
	t.Cleanup(func() { listener.Close() })
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed
			}
			b.taken.Add(1)
			go b.serve(conn)
		}
	}()
	return b
}

func (b *balancer) port() int { return b.listener.Addr().(*net.TCPAddr).Port }

func (b *balancer) serve(from net.Conn) {
	defer from.Close()
	for range b.nodes {
		to, err := net.Dial("tcp", b.nodes[int(b.next.Add(1))%len(b.nodes)])
		if err != nil {
			continue
		}
		defer to.Close()
		var both sync.WaitGroup
		for _, way := range [][2]net.Conn{{from, to}, {to, from}} {
			both.Go(func() {
				_, _ = io.Copy(way[1], way[0]) // ends with either side
				from.Close()
				to.Close()
			})
		}
		both.Wait()
		return
	}
}
